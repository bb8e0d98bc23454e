//! Captured sessions of verifiers 0.4.0, replayed byte for byte: its requests to our server, its answers to our client.
#![allow(clippy::disallowed_methods, reason = "tests read their vectors")]

mod served;

use std::{fs, path::PathBuf, sync::Arc};

use bytes::Bytes;
use rollhouse::{
    agent::Watch,
    serve::{Client, Refused, RunError, RunRequest},
    trace::Episode,
    zmtp::{Arrival, Dealer, Inbox, Router, Settings, Visit},
};
use serde_json::Value;
use served::{Running, Seen, Told, line, loopback, map, until, within};

fn session(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/verifiers/env_server").join(name)
}

fn frame(session_name: &str, name: &str) -> Bytes {
    fs::read(session(session_name).join(name)).unwrap().into()
}

/// The messages of a session whose frames are all there: whether the client sent it, and its frames.
fn messages(name: &str) -> Vec<(bool, Vec<Bytes>)> {
    let index: Value = serde_json::from_slice(&frame(name, "index.json")).unwrap();
    let messages = index["messages"].as_array().unwrap().iter();
    let frames = |message: &Value| {
        message["files"].as_array().unwrap().iter().map(|file| frame(name, file.as_str().unwrap())).collect()
    };
    messages.map(|message| (message["direction"] == "c2s", frames(message))).collect()
}

async fn answer(inbox: &mut Inbox) -> Vec<Bytes> {
    loop {
        match within(inbox.recv()).await.unwrap() {
            Arrival::Message(frames) => return frames,
            Arrival::Up => {}
            Arrival::Lost(error) => panic!("the link was lost: {error}"),
        }
    }
}

fn error_of(payload: &[u8]) -> String {
    rmp_serde::from_slice::<Value>(payload).unwrap()["error"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_and_faults_have_the_answers_of_verifiers() {
    let told = Told::new(|request, _, _| async move {
        assert!(!request.task_data["answer"].is_string(), "only the faulty row gets here");
        Err(Refused::invalid("DemoData", [("answer", "Input should be a valid string")]))
    });
    let server = Running::start(told).await;
    let (dealer, mut inbox) = Dealer::connect(server.address.clone(), Settings::default());
    let mut asked = None;
    let (mut same, mut begun) = (0, 0);
    for (is_request, frames) in messages("misc") {
        if is_request {
            dealer.send(frames.clone()).await.unwrap();
            asked = Some(frames);
            continue;
        }
        let ours = answer(&mut inbox).await;
        if ours == frames {
            same += 1;
            continue;
        }
        // What pydantic adds to a line, with a link to its pages, is left out.
        let (text, whole) = (error_of(&ours[2]), error_of(&frames[2]));
        assert_eq!(ours[..2], frames[..2]);
        assert!(
            text.starts_with("ValidationError: ") && whole.starts_with(&text),
            "{asked:?}: {text:?} is not {whole:?}"
        );
        begun += 1;
    }
    assert_eq!((same, begun), (7, 3));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_has_the_two_replies_of_verifiers() {
    let told = Told::endless();
    let counts = Arc::clone(&told.counts);
    let server = Running::start(told).await;
    let (dealer, mut inbox) = Dealer::connect(server.address.clone(), Settings::default());
    let (requests, answers): (Vec<_>, Vec<_>) =
        messages("cancelled").into_iter().partition(|(is_request, _)| *is_request);
    for (_, frames) in requests {
        dealer.send(frames).await.unwrap();
        until(|| counts.begun() == 1).await;
    }
    let mut theirs: Vec<Vec<Bytes>> = answers.into_iter().map(|(_, frames)| frames).collect();
    theirs.retain(|frames| &frames[1][..] == b"reply");
    let mut ours = vec![answer(&mut inbox).await, answer(&mut inbox).await];
    // Either may come first.
    ours.sort();
    theirs.sort();
    assert_eq!(ours, theirs);
    server.stop().await;
}

type Asked = Arc<std::sync::Mutex<Vec<Vec<Bytes>>>>;

/// A peer that answers each run with the frames of a session, or never, and keeps what it was asked.
async fn teller(session_name: Option<&'static str>) -> (Client, tokio::task::JoinHandle<()>, Asked) {
    let frames = session_name.map_or_else(Vec::new, |name| {
        let names = fs::read_dir(session(name)).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut files: Vec<String> = names.filter(|name| name.ends_with("_s2c_2.bin")).collect();
        files.sort();
        files.iter().map(|file| frame(name, file)).collect::<Vec<Bytes>>()
    });
    let (router, mut guests) = Router::bind(&loopback(), Settings::default()).await.unwrap();
    let client = Client::connect(router.address().clone(), Settings::default());
    let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
    let heard = Arc::clone(&asked);
    let task = tokio::spawn(async move {
        while let Some(visit) = guests.recv().await {
            let Visit::Message(peer, request) = visit else { continue };
            heard.lock().unwrap().push(request.clone());
            if &request[1][..] != b"run" {
                continue;
            }
            for (position, payload) in frames.iter().enumerate() {
                let kind = if position + 1 == frames.len() { "reply" } else { "delta" };
                router.send(peer, vec![request[0].clone(), Bytes::from(kind), payload.clone()]).await.unwrap();
            }
        }
    });
    (client, task, asked)
}

fn asked_as_captured() -> RunRequest {
    let mut fields = map(rmp_serde::from_slice(&frame("single", "000_c2s_2.bin")).unwrap());
    let mut take = |key: &str| fields.shift_remove(key).unwrap();
    RunRequest {
        task_data: map(take("task_data")),
        client: map(take("client")),
        model: take("model").as_str().unwrap().to_owned(),
        sampling: map(take("sampling")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_become_the_episodes_of_verifiers() {
    for (name, discarded) in [
        ("agent_retry", 1),
        ("branches", 0),
        ("length", 0),
        ("multi_turn", 0),
        ("provider_error", 0),
        ("retry_discard", 1),
        ("reward_raises", 0),
        ("single", 0),
        ("tool", 0),
        ("train_tokens", 0),
    ] {
        let (client, peer, asked) = teller(Some(name)).await;
        let (request, seen) = (asked_as_captured(), Arc::new(Seen::default()));
        let watch = Arc::clone(&seen) as Arc<dyn Watch>;
        let episode = within(client.run(&request, Some(watch))).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        let record = Episode::from_line(&frame(name, "record.json")).unwrap();
        assert_eq!(line(&episode), line(&record), "{name}");
        assert_eq!(seen.discarded.lock().unwrap().len(), discarded, "{name}");
        assert!(!seen.states.lock().unwrap().is_empty());
        let heard = asked.lock().unwrap().remove(0);
        assert_eq!(heard[2], frame("single", "000_c2s_2.bin"), "the request is that of verifiers");
        assert!(heard[0].len() == 32 && heard[0].iter().all(u8::is_ascii_hexdigit));
        peer.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_run_is_cancelled_in_the_words_of_verifiers() {
    let (client, peer, asked) = teller(None).await;
    let run = tokio::spawn({
        let client = client.clone();
        async move { client.run(&asked_as_captured(), None).await }
    });
    until(|| asked.lock().unwrap().len() == 1).await;
    run.abort();
    until(|| asked.lock().unwrap().len() == 2).await;
    let heard = asked.lock().unwrap();
    let captured: Vec<_> = messages("cancelled").into_iter().filter(|(is_request, _)| *is_request).collect();
    let (captured_run, captured_cancel) = (&captured[0].1, &captured[1].1);
    assert_eq!(heard[1][1], captured_cancel[1]);
    // The same but for the id.
    let at = captured_cancel[2].windows(32).position(|part| part == &captured_run[0][..]).unwrap();
    let mut expected = captured_cancel[2].to_vec();
    expected[at..at + 32].copy_from_slice(&heard[0][0]);
    assert_eq!(heard[1][2], expected);
    peer.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_run_and_a_refused_one_are_told_apart() {
    // The two replies of the session, in either order, are for two requests: the run's own is the second.
    let refusal = messages("cancelled").pop().unwrap().1[2].clone();
    assert_eq!(error_of(&refusal), "Cancelled: rollout aborted");
    let (router, mut guests) = Router::bind(&loopback(), Settings::default()).await.unwrap();
    let client = Client::connect(router.address().clone(), Settings::default());
    let validation = messages("misc")[11].1[2].clone();
    let peer = tokio::spawn(async move {
        let mut replies = vec![validation, refusal];
        while let Some(visit) = guests.recv().await {
            if let Visit::Message(peer, request) = visit {
                let reply = replies.pop().unwrap();
                router.send(peer, vec![request[0].clone(), Bytes::from("reply"), reply]).await.unwrap();
            }
        }
    });
    assert!(matches!(within(client.run(&asked_as_captured(), None)).await, Err(RunError::Cancelled)));
    let Err(RunError::Refused(refused)) = within(client.run(&asked_as_captured(), None)).await else { panic!() };
    assert_eq!(refused.class, "ValidationError");
    assert!(refused.message.starts_with("1 validation error for DemoData\nanswer\n"));
    peer.abort();
}
