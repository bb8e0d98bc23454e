//! Our client and our server: runs, live views, cancels, faults of either side, and many runs at once.

mod served;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use rollhouse::{
    agent::Watch,
    envs::Env as _,
    serve::{Client, NotReady, Refused, RemoteEnv, RemoteSettings, RunError, RunRequest, ServerSettings},
    sim,
    taskset::Task,
    trace::{AgentInfo, AssistantMessage, EnvInfo, Episode, FaultClass, Message, TaskData, Trace, TraceTask},
    zmtp::{Address, Arrival, Dealer, Inbox, Settings},
};
use serde_json::{Value, json, value::RawValue};
use served::{
    Running, Seen, Told, any_request, host, host_settings, loopback, map, request, solver, tasks, taskset, until,
    within,
};
use tokio_util::sync::CancellationToken;

fn task() -> Task {
    Arc::new(TraceTask::new("PlainTask", TaskData { idx: Some(0), ..TaskData::default() }))
}

fn trace(task: &Task) -> Trace {
    let raw = |text: &str| Arc::from(RawValue::from_string(text.to_owned()).unwrap());
    let info = AgentInfo { config: raw("{}"), runtime: None, name: "agent".to_owned(), trainable: true };
    Trace::new(Arc::clone(task), info)
}

fn say(trace: &mut Trace, prompt: &str, reply: &str) {
    let turn = trace.graph.prepare(&[Message::user(prompt)], Arc::from([]));
    let reply = AssistantMessage { content: Some(reply.to_owned()), ..AssistantMessage::default() };
    trace.graph.commit(turn, reply, None).unwrap();
}

fn episode(traces: Vec<Trace>) -> Episode {
    let mut episode = Episode::new(EnvInfo::default(), task(), None);
    episode.ok = true;
    episode.traces = traces;
    episode
}

/// A host that ends at once.
fn trivial() -> Told {
    Told::new(|_, _, _| async { Ok(episode(vec![trace(&task())])) })
}

/// A Unix socket, which nobody else can take meanwhile as they could a port.
fn socket(folder: &tempfile::TempDir) -> Address {
    Address::Ipc(folder.path().join("socket"))
}

/// A peer that speaks the protocol by hand.
struct Hand {
    dealer: Dealer,
    inbox: Inbox,
}

impl Hand {
    fn connect(address: &Address, settings: Settings) -> Self {
        let (dealer, inbox) = Dealer::connect(address.clone(), settings);
        Self { dealer, inbox }
    }

    async fn send(&self, frames: &[&[u8]]) {
        let frames = frames.iter().map(|frame| Bytes::copy_from_slice(frame)).collect();
        self.dealer.send(frames).await.unwrap();
    }

    async fn next(&mut self) -> [Bytes; 3] {
        loop {
            match within(self.inbox.recv()).await.unwrap() {
                Arrival::Message(frames) => return frames.try_into().unwrap(),
                Arrival::Up => {}
                Arrival::Lost(error) => panic!("the link was lost: {error}"),
            }
        }
    }

    /// The next reply, past the deltas.
    async fn reply(&mut self) -> (Bytes, Value) {
        loop {
            let [id, kind, payload] = self.next().await;
            if &kind[..] == b"reply" {
                return (id, rmp_serde::from_slice(&payload).unwrap());
            }
        }
    }
}

fn packed(value: &impl serde::Serialize) -> Vec<u8> {
    rmp_serde::to_vec_named(value).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_episode_comes_over_whole_and_is_seen_as_it_grows() {
    for (id, turns, config) in
        [("reverse-text", 1, json!({})), ("alphabet-sort", 2, json!({"min_turns": 2, "max_turns": 3}))]
    {
        let taskset = taskset(id, config);
        let simulator = solver(&taskset, sim::Settings::default()).await;
        let server = Running::start(host(&taskset, id)).await;
        let client = server.client();
        client.wait_ready(Duration::from_secs(20)).await.unwrap();
        for task in tasks(taskset.as_ref(), 3).await {
            let seen = Arc::new(Seen::default());
            let watch = Arc::clone(&seen) as Arc<dyn Watch>;
            let episode = within(client.run(&request(&task, &simulator.base_url()), Some(watch))).await.unwrap();
            assert!(episode.ok, "{:?}", episode.fault());
            assert_eq!((episode.traces.len(), episode.reward()), (1, 1.0));
            let trace = &episode.traces[0];
            assert_eq!((&trace.task.hash, &trace.task.kind), (&task.hash, &task.kind));
            assert!(trace.calls.len() >= turns);
            let states = seen.states.lock().unwrap();
            assert!(states.iter().all(|state| state.trace == trace.id));
            assert!(states.is_sorted_by_key(|state| state.nodes), "{states:?}");
            assert!(states.iter().any(|state| state.pending > 0), "{states:?}");
            assert_eq!(states.last().unwrap().nodes, trace.graph.nodes().len());
        }
        client.close().await;
        server.stop().await;
        simulator.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_request_lacks_is_said() {
    let taskset = taskset("reverse-text", json!({}));
    let server = Running::start(host(&taskset, "reverse-text")).await;
    let client = server.client();
    let task = &tasks(taskset.as_ref(), 1).await[0];
    let good = request(task, "http://127.0.0.1:1/v1");
    type Spoil = Box<dyn Fn(&mut RunRequest)>;
    let cases: [(&str, Spoil); 6] = [
        (
            "1 validation error for ReverseTextTask\nprompt\n",
            Box::new(|r| {
                r.task_data.insert("prompt".to_owned(), 5.into());
            }),
        ),
        (
            "client.type\n  Field required",
            Box::new(|r| {
                r.client.shift_remove("type");
            }),
        ),
        (
            "client.base_ulr\n  unknown key; did you mean `client.base_url`?",
            Box::new(|r| {
                r.client.insert("base_ulr".to_owned(), "http://x/v1".into());
            }),
        ),
        (
            "client.base_url\n  Field required",
            Box::new(|r| {
                r.client.shift_remove("base_url");
            }),
        ),
        (
            "client.base_url\n  not a URL",
            Box::new(|r| {
                r.client.insert("base_url".to_owned(), "localhost".into());
            }),
        ),
        (
            "sampling.temperature\n  out of bounds",
            Box::new(|r| {
                r.sampling.insert("temperature".to_owned(), (-1).into());
            }),
        ),
    ];
    for (text, spoil) in cases {
        let mut bad = good.clone();
        spoil(&mut bad);
        let error = within(client.run(&bad, None)).await.unwrap_err();
        let RunError::Refused(refused) = &error else { panic!("{error:?}") };
        assert_eq!(refused.class, "ValidationError");
        assert!(refused.message.contains(text), "{text}: {refused}");
        assert!(!error.retry_helps() && error.fault().kind == "ValidationError", "{error:?}");
    }
    server.stop().await;
}

/// Two endpoints that serve the same name: the window of one says nothing about the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_window_is_that_of_the_endpoint() {
    let taskset = taskset("alphabet-sort", json!({"min_turns": 3, "max_turns": 3}));
    let server = Running::start(host(&taskset, "alphabet-sort")).await;
    let client = server.client();
    let task = &tasks(taskset.as_ref(), 1).await[0];
    for (window, calls) in [(100_000, 3), (16, 0)] {
        let settings = sim::Settings { max_model_len: window, policy: sim::Policy::Random, ..sim::Settings::default() };
        let simulator = sim::Simulator::start(settings, None).await.unwrap();
        let mut asked = request(task, &simulator.base_url());
        asked.client = map(json!({
            "type": "train", "base_url": simulator.base_url(), "renderer": {"name": "smollm2"},
            "renderer_model_name": concat!(env!("CARGO_MANIFEST_DIR"), "/examples/sim-model"),
        }));
        let episode = within(client.run(&asked, None)).await.unwrap();
        let trace = &episode.traces[0];
        assert_eq!(trace.calls.len(), calls, "{:?}", trace.calls);
        assert!(trace.calls.iter().all(|call| call.error.is_none()), "{:?}", trace.calls);
        assert_eq!(trace.stop_condition.as_deref() == Some("max_total_tokens"), calls == 0);
        simulator.shutdown().await;
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sampling_and_nested_fields_reach_the_model() {
    let taskset = taskset("reverse-text", json!({}));
    let simulator = solver(&taskset, sim::Settings::default()).await;
    let mut settings = host_settings("reverse-text");
    settings.sampling = map(json!({"top_p": 0.5, "seed": null}));
    let server = Running::start(rollhouse::serve::TasksetHost::new(Arc::clone(&taskset), settings)).await;
    let client = server.client();
    let task = &tasks(taskset.as_ref(), 1).await[0];
    let mut asked = request(task, &simulator.base_url());
    asked.sampling = map(json!({
        "temperature": null, "max_completion_tokens": 50, "extra_body": {"top_k": 5, "max_tokens": 9}, "seed": 3, "top_p": 0.9
    }));
    let episode = within(client.run(&asked, None)).await.unwrap();
    let sampling = episode.traces[0].calls[0].sampling.as_ref().unwrap();
    assert_eq!(json!(**sampling), json!({"top_p": 0.5, "max_tokens": 9, "top_k": 5}));
    let config: Value = serde_json::from_str(episode.traces[0].agent.config.get()).unwrap();
    assert_eq!(config["client"]["type"], "eval");
    server.stop().await;
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_dropped_is_aborted_down_to_the_model_call() {
    let taskset = taskset("reverse-text", json!({}));
    let slow = sim::Settings { time_to_first_token: Duration::from_secs(3600), ..sim::Settings::default() };
    let simulator = solver(&taskset, slow).await;
    let server = Running::start(host(&taskset, "reverse-text")).await;
    let client = server.client();
    let task = &tasks(taskset.as_ref(), 1).await[0];
    let asked = request(task, &simulator.base_url());
    let run = tokio::spawn({
        let client = client.clone();
        async move { client.run(&asked, None).await }
    });
    until(|| simulator.stats().running > 0).await;
    run.abort();
    assert!(run.await.unwrap_err().is_cancelled());
    until(|| simulator.stats().running == 0).await;
    client.health(Duration::from_secs(20)).await.unwrap();
    // So is each run of a client that leaves.
    let asked = request(task, &simulator.base_url());
    let leaving = server.client();
    let run = tokio::spawn(async move { leaving.run(&asked, None).await });
    until(|| simulator.stats().running > 0).await;
    run.abort();
    until(|| simulator.stats().running == 0).await;
    server.stop().await;
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn so_many_runs_at_a_time_and_waiting_ones_can_be_cancelled() {
    let told = Told::endless();
    let counts = Arc::clone(&told.counts);
    let settings = ServerSettings { max_concurrent: Some(2), ..ServerSettings::default() };
    let server = Running::with(told, &loopback(), settings).await;
    let mut hand = Hand::connect(&server.address, Settings::default());
    let run = packed(&any_request());
    for id in [b"a", b"b", b"c"] {
        hand.send(&[id, b"run", &run]).await;
    }
    until(|| counts.running() == 2).await;
    hand.send(&[b"x", b"cancel", &packed(&json!({"request_id": "c"}))]).await;
    let (mut got, wanted) = (
        Vec::new(),
        vec![
            (Bytes::from("c"), json!({"success": false, "error": "Cancelled: rollout aborted"})),
            (Bytes::from("x"), json!({"success": true, "error": null, "cancelled": true})),
        ],
    );
    for _ in 0..2 {
        got.push(hand.reply().await);
    }
    got.sort_by(|left, right| left.0.cmp(&right.0));
    assert_eq!(got, wanted);
    // A second time nobody is there to be cancelled.
    hand.send(&[b"y", b"cancel", &packed(&json!({"request_id": "c"}))]).await;
    assert_eq!(hand.reply().await.1["cancelled"], false);
    assert_eq!((counts.begun(), counts.most()), (2, 2));
    // The one that is cancelled makes room.
    hand.send(&[b"d", b"run", &run]).await;
    hand.send(&[b"z", b"cancel", &packed(&json!({"request_id": "a"}))]).await;
    until(|| counts.begun() == 3).await;
    assert_eq!(counts.most(), 2);
    drop(hand);
    until(|| counts.running() == 0).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_is_answered_and_what_is_no_request_is_dropped() {
    let server = Running::start(trivial()).await;
    let mut hand = Hand::connect(&server.address, Settings::default());
    let run = packed(&any_request());
    for (route, payload, error) in [
        (&b"run"[..], &b"\xc1"[..], "FormatError: "),
        (b"run", b"\x80\x80", "ExtraData: unpack(b) received extra data."),
        (b"cancel", b"\x81\x01\x01", "ValueError: int is not allowed for map key when strict_map_key=True"),
        (b"cancel", b"\x80", "ValidationError: 1 validation error for CancelRequest\nrequest_id\n  Field required"),
        (
            b"cancel",
            b"\x81\xaarequest_id\x01",
            "ValidationError: 1 validation error for CancelRequest\nrequest_id\n  Input",
        ),
        (b"", b"\x80", "unknown method ''"),
        (b"runs", b"\x80", "unknown method 'runs'"),
        (b"\xff", b"\x80", "UnicodeDecodeError: "),
    ] {
        hand.send(&[b"id", route, payload]).await;
        let (id, reply) = hand.reply().await;
        assert_eq!((&id[..], &reply["success"]), (&b"id"[..], &json!(false)));
        assert!(reply["error"].as_str().unwrap().starts_with(error), "{reply}");
    }
    for frames in [&[&b"id"[..]][..], &[b"id", b"run"], &[b"id", b"run", &run, b"more"], &[b"", b"", b"", b"", b""]] {
        hand.send(frames).await;
    }
    // What nobody calls a request is not kept, and what is refused is not sent back whole.
    let long = [b'x'; 1_025];
    hand.send(&[&long, b"health", b"\x80"]).await;
    hand.send(&[b"id", &long, b"\x80"]).await;
    let wrong = json!({"task_data": {}, "client": {"type": "x".repeat(1 << 20)}, "model": [], "sampling": {}});
    hand.send(&[b"wrong", b"run", &packed(&wrong)]).await;
    let (id, reply) = hand.reply().await;
    assert!(&id[..] == b"wrong" && reply["error"].as_str().unwrap().len() < 70_000, "{reply:.300}");
    // Ids may be any bytes, and be cancelled, too.
    for id in [&b"\xff\xfe\x00"[..], b""] {
        hand.send(&[id, b"run", &run]).await;
        let (answered, reply) = hand.reply().await;
        assert_eq!((&answered[..], &reply["success"]), (id, &json!(true)));
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_id_of_two_clients_names_two_runs() {
    let told = Told::endless();
    let counts = Arc::clone(&told.counts);
    let server = Running::start(told).await;
    let run = packed(&any_request());
    let cancel = packed(&serde_bytes_map(b"same\xff"));
    let mut hands =
        [Hand::connect(&server.address, Settings::default()), Hand::connect(&server.address, Settings::default())];
    for hand in &hands {
        hand.send(&[b"same\xff", b"run", &run]).await;
    }
    until(|| counts.running() == 2).await;
    hands[0].send(&[b"same\xff", b"run", &run]).await;
    assert_eq!(hands[0].reply().await.1["error"], "ValueError: a run with this request id is in flight");
    hands[0].send(&[b"c", b"cancel", &cancel]).await;
    for _ in 0..2 {
        hands[0].reply().await;
    }
    assert_eq!(counts.running(), 1);
    hands[1].send(&[b"c", b"cancel", &cancel]).await;
    for _ in 0..2 {
        hands[1].reply().await;
    }
    assert_eq!(counts.running(), 0);
    server.stop().await;
}

/// A cancel that names its run by bytes that are no text.
fn serde_bytes_map(id: &[u8]) -> std::collections::BTreeMap<&'static str, &serde_bytes::Bytes> {
    [("request_id", serde_bytes::Bytes::new(id))].into()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_panics_or_refuses_fails_its_run_alone() {
    let told = Told::new(|_, _, before| async move {
        match before {
            0 => panic!("oh"),
            1 => Err(Refused::new("OSError", "too many open files")),
            2 => Err(Refused::cancelled()),
            _ => Ok(episode(vec![trace(&task())])),
        }
    });
    let server = Running::start(told).await;
    let client = server.client();
    let mut ends = Vec::new();
    for _ in 0..4 {
        ends.push(within(client.run(&any_request(), None)).await);
    }
    let error = |at: usize| ends[at].as_ref().unwrap_err();
    assert_eq!(error(0).to_string(), "the env server refused the run: RuntimeError: the env panicked: oh");
    assert!(error(0).retry_helps() && error(1).retry_helps() && error(2).retry_helps());
    assert_eq!((error(1).fault().class, error(1).fault().kind), (FaultClass::Infrastructure, "OSError".to_owned()));
    assert_eq!(error(2).fault().class, FaultClass::Cancelled);
    assert!(ends[3].is_ok());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_server_fails_its_runs_at_once_and_is_found_again() {
    let told = Told::endless();
    let counts = Arc::clone(&told.counts);
    let folder = tempfile::tempdir().unwrap();
    let address = socket(&folder);
    let server = Running::with(told, &address, ServerSettings::default()).await;
    let client = server.client();
    let asked = any_request();
    let (first, second) =
        tokio::join!(async { tokio::join!(client.run(&asked, None), client.run(&asked, None)) }, async {
            until(|| counts.running() == 2).await;
            server.kill().await;
        });
    let ((one, two), ()) = (first, second);
    for error in [one.unwrap_err(), two.unwrap_err()] {
        assert!(error.is_lost() && error.retry_helps(), "{error:?}");
        let fault = error.fault();
        assert!(fault.class == FaultClass::Infrastructure && fault.retryable, "{fault:?}");
    }
    let server = Running::with(trivial(), &address, ServerSettings::default()).await;
    client.wait_ready(Duration::from_secs(20)).await.unwrap();
    assert!(within(client.run(&asked, None)).await.unwrap().ok);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_env_elsewhere_is_asked_anew_when_its_server_was_lost() {
    for (max_redos, is_told_to_go) in [(0, false), (1, false), (1, true)] {
        let told = Told::endless();
        let counts = Arc::clone(&told.counts);
        let folder = tempfile::tempdir().unwrap();
        let address = socket(&folder);
        let hasty = ServerSettings { drain: Duration::ZERO, ..ServerSettings::default() };
        let server = Running::with(told, &address, hasty).await;
        let settings = RemoteSettings { max_redos, model: "m".to_owned(), ..RemoteSettings::default() };
        let env = RemoteEnv::new(server.client(), settings, None);
        let own = task();
        let (attempt, server) = tokio::join!(within(env.run(&own, None)), async {
            until(|| counts.running() == 1).await;
            if is_told_to_go {
                server.stop().await;
            } else {
                server.kill().await;
            }
            Running::with(trivial(), &address, ServerSettings::default()).await
        });
        if max_redos == 0 {
            assert!(attempt.traces.is_empty());
            assert_eq!(attempt.errors[0].class, FaultClass::Infrastructure);
            assert!(attempt.errors[0].retryable);
        } else {
            assert!(attempt.errors.is_empty(), "{is_told_to_go}: {:?}", attempt.errors);
            assert!(Arc::ptr_eq(&attempt.traces[0].task, &own), "the row is kept once");
        }
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_of_an_episode_cancels_it_over_there() {
    let told = Told::endless();
    let counts = Arc::clone(&told.counts);
    let server = Running::start(told).await;
    let env = RemoteEnv::new(server.client(), RemoteSettings::default(), None);
    let deadline = tokio::time::Instant::now() + Duration::from_millis(300);
    let attempt = within(env.run(&task(), Some(deadline))).await;
    assert!(attempt.is_timeout && attempt.errors[0].message.contains("by its deadline"));
    until(|| counts.running() == 0).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_there_and_one_that_does_not_answer_are_told_apart() {
    let quick = Settings { connect: Duration::from_millis(200), ..Settings::default() };
    let folder = tempfile::tempdir().unwrap();
    let client = Client::connect(socket(&folder), quick.clone());
    let error = client.wait_ready(Duration::from_millis(500)).await.unwrap_err();
    assert!(matches!(error, NotReady::NoServer { .. }), "{error}");
    let error = client.run(&any_request(), None).await.unwrap_err();
    assert!(matches!(error, RunError::Unreached { .. }) && error.retry_helps(), "{error:?}");
    // One that takes connections and says nothing.
    let (router, _guests) = rollhouse::zmtp::Router::bind(&loopback(), Settings::default()).await.unwrap();
    let client = Client::connect(router.address().clone(), quick);
    let error = client.wait_ready(Duration::from_millis(500)).await.unwrap_err();
    assert!(matches!(error, NotReady::Silent { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_lets_runs_end_refuses_new_ones_and_cancels_the_rest() {
    let gate = Arc::new(tokio::sync::Notify::new());
    let told = Told::new({
        let gate = Arc::clone(&gate);
        move |_, _, before| {
            let gate = Arc::clone(&gate);
            async move {
                if before == 0 {
                    gate.notified().await;
                    return Ok(episode(vec![trace(&task())]));
                }
                std::future::pending().await
            }
        }
    });
    let counts = Arc::clone(&told.counts);
    let settings = ServerSettings { drain: Duration::from_secs(2), ..ServerSettings::default() };
    let server = Running::with(told, &loopback(), settings).await;
    let client = server.client();
    let asked = any_request();
    let first = tokio::spawn({
        let (client, asked) = (client.clone(), asked.clone());
        async move { client.run(&asked, None).await }
    });
    until(|| counts.running() == 1).await;
    let second = tokio::spawn({
        let (client, asked) = (client.clone(), asked.clone());
        async move { client.run(&asked, None).await }
    });
    until(|| counts.running() == 2).await;
    server.ask_to_stop();
    let late = within(client.run(&asked, None)).await.unwrap_err();
    assert!(late.to_string().contains("shutting down") && late.retry_helps(), "{late}");
    gate.notify_one();
    assert!(within(first).await.unwrap().unwrap().ok);
    assert!(matches!(within(second).await.unwrap(), Err(RunError::Cancelled)));
    server.ended().await;
    assert_eq!((counts.running(), counts.begun()), (0, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_client_gets_the_whole_in_fewer_pieces() {
    const TURNS: usize = 400;
    let grown = CancellationToken::new();
    let told = Told::new({
        let grown = grown.clone();
        move |_, watch, _| {
            let grown = grown.clone();
            async move {
                let mut trace = trace(&task());
                for turn in 0..TURNS {
                    say(&mut trace, &format!("{turn} {}", "x".repeat(10_000)), "yes");
                    watch.changed(&trace, &[]);
                    tokio::task::yield_now().await;
                }
                grown.cancel();
                Ok(episode(vec![trace]))
            }
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let address = socket(&folder);
    let narrow = Settings { queue_bytes: 1 << 16, ..Settings::default() };
    let settings = ServerSettings { link: narrow.clone(), ..ServerSettings::default() };
    let server = Running::with(told, &address, settings).await;
    let mut hand = Hand::connect(&server.address, narrow);
    hand.send(&[b"id", b"run", &packed(&any_request())]).await;
    // The client reads nothing: the run comes to the end of its growth all the same.
    within(grown.cancelled()).await;
    let mut assembly = rollhouse::trace::wire::Assembly::default();
    let mut frames = 0;
    let reply = loop {
        let [_, kind, payload] = hand.next().await;
        if &kind[..] == b"reply" {
            break payload;
        }
        frames += 1;
        assembly.apply(&payload).unwrap();
    };
    let reply: Value = rmp_serde::from_slice(&reply).unwrap();
    assert_eq!(reply["success"], true, "{reply}");
    let id = assembly.trace_ids().next().unwrap().to_owned();
    let (whole, _) = assembly.trace(&id).unwrap();
    assert_eq!(whole.graph.nodes().len(), 2 * TURNS);
    assert!(frames < TURNS, "{frames} frames");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_of_many_megabytes_comes_over() {
    let told = Told::new(|_, watch, _| async move {
        let mut long = trace(&task());
        for turn in 0..5 {
            say(&mut long, &format!("{turn} {}", "long ".repeat(400_000)), "yes");
        }
        watch.changed(&long, &[Message::user("x".repeat(2 << 20))]);
        long.info.insert("blob".to_owned(), "b".repeat(10 << 20).into());
        let mut given_up = trace(&task());
        say(&mut given_up, "no", "no");
        watch.changed(&given_up, &[]);
        watch.discarded(&given_up);
        Ok(episode(vec![long, trace(&task())]))
    });
    let server = Running::start(told).await;
    let seen = Arc::new(Seen::default());
    let watch = Arc::clone(&seen) as Arc<dyn Watch>;
    let episode = within(server.client().run(&any_request(), Some(watch))).await.unwrap();
    assert_eq!(episode.traces.len(), 2);
    assert_eq!(episode.traces[0].graph.nodes().len(), 10);
    assert_eq!(episode.traces[0].info["blob"].as_str().unwrap().len(), 10 << 20);
    assert_eq!(seen.discarded.lock().unwrap().len(), 1);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_runs_are_in_flight_over_one_connection() {
    const RUNS: usize = 5000;
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let told = Told::new({
        let gate = Arc::clone(&gate);
        move |request: RunRequest, watch: Arc<dyn Watch>, _| {
            let gate = Arc::clone(&gate);
            async move {
                let mut grown = trace(&task());
                watch.changed(&grown, &[]);
                let _pass = gate.acquire().await.unwrap();
                say(&mut grown, "hello", &request.model);
                watch.changed(&grown, &[]);
                Ok(episode(vec![grown]))
            }
        }
    });
    let counts = Arc::clone(&told.counts);
    let server = Running::start(told).await;
    let client = server.client();
    let mut runs = tokio::task::JoinSet::new();
    for number in 0..RUNS {
        let client = client.clone();
        let asked = RunRequest { model: format!("model-{number}"), ..any_request() };
        runs.spawn(async move { (number, client.run(&asked, None).await) });
    }
    until(|| counts.running() == RUNS).await;
    client.health(Duration::from_secs(30)).await.unwrap();
    gate.add_permits(RUNS);
    let mut done = 0;
    while let Some(joined) = within(runs.join_next()).await {
        let (number, episode) = joined.unwrap();
        assert_eq!(episode.unwrap().traces[0].last_reply(), format!("model-{number}"));
        done += 1;
    }
    assert_eq!((done, counts.running()), (RUNS, 0));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_does_not_hold_together_fails_its_run() {
    let (router, mut guests) = rollhouse::zmtp::Router::bind(&loopback(), Settings::default()).await.unwrap();
    let address = router.address().clone();
    let liar = tokio::spawn(async move {
        let mut told = 0;
        while let Some(visit) = guests.recv().await {
            let rollhouse::zmtp::Visit::Message(peer, frames) = visit else { continue };
            if &frames[1][..] != b"run" {
                continue;
            }
            let answers: Vec<(&str, Vec<u8>)> = match told {
                0 => vec![("delta", b"\x80".to_vec())],
                1 => vec![("reply", b"\xc1".to_vec())],
                2 => vec![("reply", packed(&json!({"success": true, "error": null})))],
                3 => vec![("reply", packed(&json!({"success": false, "error": ""})))],
                4 => vec![("reply", packed(&json!({"success": false, "error": "ä".repeat(1 << 20)})))],
                _ => vec![(
                    "reply",
                    packed(&json!({
                        "success": true, "error": null, "head": {"id": "e", "task": {"type": "T", "data": {}}},
                        "traces": [{"id": "nobody", "nodes": 1, "calls": 1}]
                    })),
                )],
            };
            told += 1;
            // Not for this client at all, and not of the protocol.
            router.send(peer, vec![Bytes::from("nobody"), Bytes::from("reply"), Bytes::new()]).await.unwrap();
            router.send(peer, vec![Bytes::from("one frame")]).await.unwrap();
            for (kind, payload) in answers {
                router.send(peer, vec![frames[0].clone(), Bytes::from(kind), payload.into()]).await.unwrap();
            }
        }
    });
    let client = Client::connect(address, Settings::default());
    for (number, text) in
        ["put together", "cannot be read", "no head", "gave no reason", "ää … (2097152 bytes)", "nobody"]
            .into_iter()
            .enumerate()
    {
        let error = within(client.run(&any_request(), None)).await.unwrap_err();
        assert!(error.to_string().contains(text), "{number}: {error}");
        assert!(error.to_string().len() < 70_000, "an error is there to be read");
        assert_eq!(matches!(error, RunError::Assembly(_)), ![3, 4].contains(&number), "{error:?}");
    }
    liar.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_a_client_that_was_dropped() {
    let told = Told::endless();
    let counts = Arc::clone(&told.counts);
    let server = Running::start(told).await;
    let client = server.client();
    let run = tokio::spawn({
        let client = client.clone();
        async move { client.run(&any_request(), None).await }
    });
    until(|| counts.running() == 1).await;
    run.abort();
    // Cancels that were given leave first.
    client.close().await;
    until(|| counts.running() == 0).await;
    assert_eq!(counts.begun.load(Ordering::SeqCst), 1);
    server.stop().await;
}
