//! The inference client against servers that behave, misbehave and break, all on loopback.
#![allow(clippy::disallowed_methods, reason = "the servers that break are the test's own")]

mod support;

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use rollhouse::{
    config::Secret,
    inference::{
        ChatCall, ChatFailure, ChatReply, FailureKind, Pool, PoolEvent, PoolObserver, PoolSettings, ProbeFailure,
        RetrySettings, Session,
    },
    trace::{FinishReason, Message, Usage},
};
use serde_json::{Map, Value, json};
use support::{Server, Step, answer, hello, stream_head};

const CHAT: &str = "/v1/chat/completions";

fn quick(urls: &[String]) -> PoolSettings {
    let mut settings = PoolSettings::new(urls);
    settings.retry = RetrySettings {
        max_retries: 3,
        budget: Some(Duration::from_secs(20)),
        first_wait: Duration::from_millis(1),
        longest_wait: Duration::from_millis(20),
        longest_retry_after: Duration::from_secs(5),
    };
    settings.breaker.first_probe = Duration::from_millis(5);
    settings.breaker.longest_probe = Duration::from_millis(20);
    settings
}

fn pool(server: &Server, change: impl FnOnce(&mut PoolSettings)) -> Pool {
    let mut settings = quick(&[server.base_url()]);
    change(&mut settings);
    Pool::new(settings, None).unwrap()
}

async fn say(session: &Session, tokens: bool) -> Result<ChatReply, ChatFailure> {
    let (messages, sampling) = ([Message::user("hi")], Map::new());
    let call = ChatCall { model: "m", messages: &messages, tools: &[], sampling: &sampling, tokens };
    session.chat(&call).await
}

/// One call against a server that always does the same.
async fn ask(steps: Vec<Step>, change: impl FnOnce(&mut PoolSettings)) -> (Result<ChatReply, ChatFailure>, usize) {
    let server = Server::start(move |_| steps.clone()).await;
    let pool = pool(&server, change);
    let outcome = say(&pool.session("s"), true).await;
    (outcome, server.count(CHAT))
}

fn vector(name: &str) -> Vec<u8> {
    fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/real_endpoint").join(name)).unwrap()
}

async fn whole(name: &str) -> Result<ChatReply, ChatFailure> {
    ask(answer(200, "", vector(name)), |settings| settings.retry.max_retries = 0).await.0
}

async fn streamed(name: &str) -> Result<ChatReply, ChatFailure> {
    let steps = vec![stream_head(), Step::Send(vector(name)), Step::Close];
    ask(steps, |settings| (settings.stream, settings.retry.max_retries) = (true, 0)).await.0
}

async fn refused(status: u16, name: &str) -> ChatFailure {
    let (outcome, requests) = ask(answer(status, "", vector(name)), |settings| settings.retry.max_retries = 1).await;
    let failure = outcome.unwrap_err();
    assert_eq!(requests, failure.failed.len());
    assert_eq!(failure.fault().status_code, Some(status));
    failure
}

// Real answers.

#[tokio::test]
async fn whole_answers_of_real_servers_are_read() {
    for (name, text, finish, prompt, cached, completion, exact) in [
        ("vllm_plain.json", "The capital of France is Paris.", FinishReason::Stop, 37, 0, 8, None),
        (
            "vllm_logprobs_token_ids.json",
            "The capital of France is Paris.",
            FinishReason::Stop,
            37,
            0,
            8,
            Some((37, 8)),
        ),
        ("vllm_length_n2_seed.json", "In a bustling port city,", FinishReason::Length, 37, 0, 12, Some((37, 6))),
        ("vllm_stop_string.json", "1. 1\n2. 2\n3. 3\n", FinishReason::Stop, 41, 0, 16, None),
        ("vllm_prompt_logprobs.json", "Hello! How", FinishReason::Length, 18, 0, 3, None),
        ("llama_plain.json", "Hello! How can I assist you today?", FinishReason::Stop, 1, 30, 10, None),
        ("llama_logprobs.json", "Hello! How can I assist you today?", FinishReason::Stop, 1, 30, 10, None),
        ("llama_length_n2.json", "The old vessel of the ship", FinishReason::Length, 11, 26, 6, None),
    ] {
        let reply = whole(name).await.unwrap();
        assert_eq!(reply.message.content.as_deref(), Some(text), "{name}");
        assert_eq!(reply.finish_reason, Some(finish), "{name}");
        let usage = Usage {
            prompt_tokens: prompt,
            completion_tokens: completion,
            cached_input_tokens: Some(cached),
            ..Usage::default()
        };
        assert_eq!(reply.usage, Some(usage), "{name}");
        let sizes = reply.tokens.as_ref().map(|tokens| (tokens.prompt_ids.len(), tokens.completion_ids.len()));
        assert_eq!(sizes, exact, "{name}");
        if let Some(tokens) = reply.tokens {
            assert_eq!(tokens.completion_logprobs.len(), tokens.completion_ids.len());
        }
    }
}

#[tokio::test]
async fn tool_calls_of_real_servers_are_read() {
    for (name, arguments, finish) in [
        ("vllm_tool_call.json", "{\"city\": \"Paris\"}", FinishReason::ToolCalls),
        ("vllm_tool_call_named_odd_arguments.json", "\"Paris\"", FinishReason::Stop),
    ] {
        let reply = whole(name).await.unwrap();
        assert_eq!((reply.message.content, reply.finish_reason), (None, Some(finish)), "{name}");
        let calls = reply.message.tool_calls.unwrap();
        assert_eq!((calls.len(), &*calls[0].name, &*calls[0].arguments), (1, "get_weather", arguments), "{name}");
        assert!(calls[0].id.starts_with("chatcmpl-tool-"));
    }
    let reply = streamed("vllm_tool_call_stream.sse").await.unwrap();
    let calls = reply.message.tool_calls.unwrap();
    assert_eq!((&*calls[0].name, &*calls[0].arguments), ("get_weather", "{\n    \"city\" : \"Paris\"\n}"));
    assert_eq!(
        (calls[0].id.as_str(), reply.finish_reason),
        ("chatcmpl-tool-8286db18df4302ec", Some(FinishReason::ToolCalls))
    );
}

#[tokio::test]
async fn streams_of_real_servers_say_the_same_as_whole_answers() {
    let (stream, whole_one) =
        (streamed("vllm_stream.sse").await.unwrap(), whole("vllm_logprobs_token_ids.json").await.unwrap());
    assert_eq!(stream.message, whole_one.message);
    assert_eq!(stream.tokens, whole_one.tokens);
    assert_eq!(stream.usage, whole_one.usage);
    let llama = streamed("llama_stream.sse").await.unwrap();
    assert_eq!(llama.message.content.as_deref(), Some("Hello! How can I assist you today?"));
    assert_eq!(llama.usage.unwrap().input_tokens(), 31);
}

#[tokio::test]
async fn an_aborted_generation_is_no_answer() {
    for outcome in [whole("vllm_chat_aborted.json").await, streamed("vllm_stream_aborted.sse").await] {
        let failure = outcome.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Unavailable);
        assert!(failure.fault().retryable && failure.to_string().contains("abort"), "{failure}");
    }
}

#[tokio::test]
async fn refusals_of_real_servers_are_told_apart() {
    for name in
        ["vllm_error_context_overflow.json", "vllm_generate_error_overflow.json", "llama_error_context_overflow.json"]
    {
        let failure = refused(400, name).await;
        assert_eq!((failure.kind, failure.failed.len()), (FailureKind::ContextOverflow, 1), "{name}");
    }
    let failure = refused(400, "vllm_error_max_tokens.json").await;
    assert_eq!((failure.kind, failure.failed.len()), (FailureKind::Refused, 1));
    assert!(failure.to_string().contains("lower `max_tokens`"), "{failure}");
    let failure = refused(404, "vllm_error_unknown_model.json").await;
    assert_eq!((failure.kind, failure.failed.len()), (FailureKind::UnknownModel, 1));
    let failure = refused(503, "vllm_error_overloaded.json").await;
    assert_eq!((failure.kind, failure.failed.len()), (FailureKind::Unavailable, 2));
}

// Odd answers.

#[tokio::test]
async fn what_is_no_answer_is_a_typed_failure() {
    let message =
        |message: &str| format!(r#"{{"choices":[{{"index":0,"message":{message},"finish_reason":"stop"}}]}}"#);
    for body in [
        "".to_owned(),
        "null".to_owned(),
        "[]".to_owned(),
        "{}".to_owned(),
        "<html>busy</html>".to_owned(),
        r#"{"choices":[]}"#.to_owned(),
        r#"{"choices":null}"#.to_owned(),
        r#"{"choices":"x"}"#.to_owned(),
        r#"{"choices":[{"finish_reason":"stop"}]}"#.to_owned(),
        message("null"),
        message("5"),
        message(r#"{"content":5}"#),
        message(r#"{"content":null}"#),
        message(r#"{"tool_calls":"x"}"#),
        r#"{"choices":[{"message":{"content":"cut"#.to_owned(),
        r#"{"error":{"message":"no engine","code":502}}"#.to_owned(),
        r#"{"object":"error","message":"no engine","code":502}"#.to_owned(),
        // Nobody sampled this.
        r#"{"choices":[{"message":{"content":""},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":0}}"#.to_owned(),
    ] {
        let (outcome, requests) = ask(answer(200, "", &body), |_| {}).await;
        let failure = outcome.expect_err(&body);
        assert_eq!((failure.kind, failure.failed.len(), requests), (FailureKind::Unavailable, 4, 4), "{body}");
    }
    // What is no JSON is shown as it begins, so that a proxy's page is known for one.
    let page = ask(answer(200, "", "<html>\n  busy</html>"), |_| {}).await.0.unwrap_err().to_string();
    assert!(page.contains("it begins with `<html> busy</html>`"), "{page}");

    // An overflow that a proxy reports inside a good status.
    let body = r#"{"error":{"message":"maximum context length is 10 tokens","code":400}}"#;
    assert_eq!(ask(answer(200, "", body), |_| {}).await.0.unwrap_err().kind, FailureKind::ContextOverflow);
}

#[tokio::test]
async fn odd_answers_are_read_as_far_as_they_make_sense() {
    let ask_body = async |body: &str| ask(answer(200, "", body), |_| {}).await.0.unwrap();
    let message =
        |message: &str, rest: &str| format!(r#"{{"choices":[{{"message":{message},"finish_reason":"stop"}}]{rest}}}"#);

    let reply =
        ask_body(&message(r#"{"content":"a\ud835b","reasoning":"r"}"#, r#","usage":{"prompt_tokens":"x"}"#)).await;
    assert_eq!((reply.message.content.unwrap().as_str(), reply.usage), ("a\u{fffd}b", None));
    assert_eq!(reply.message.reasoning_content.as_deref(), Some("r"));

    let usage = r#","usage":{"prompt_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":9},"completion_tokens_details":{"reasoning_tokens":1},"cost":0.5}"#;
    let usage = ask_body(&message(r#"{"content":[{"type":"text","text":"x"}]}"#, usage)).await.usage.unwrap();
    let expected = Usage {
        prompt_tokens: 5,
        completion_tokens: 2,
        cached_input_tokens: None,
        reasoning_tokens: Some(1),
        cost: Some(0.5),
    };
    assert_eq!(usage, expected);

    // Counts that cannot be are no counts; parts may be bare texts; names may hold half a surrogate pair.
    for count in ["-5", "18446744073709551615", "1e30", "null"] {
        let usage = format!(r#","usage":{{"prompt_tokens":{count},"completion_tokens":1}}"#);
        assert_eq!(ask_body(&message(r#"{"content":"x"}"#, &usage)).await.usage, None, "{count}");
    }
    let parts =
        r#"{"content":["a",{"type":"text","text":"b"}],"tool_calls":[{"id":"\ud835","function":{"name":"f"}}]}"#;
    let odd = ask_body(&message(parts, "")).await.message;
    assert_eq!((odd.content.as_deref(), &*odd.tool_calls.unwrap()[0].id), (Some("ab"), "\u{fffd}"));

    let details = r#"{"content":"","reasoning_details":[{"type":"reasoning.text","text":"one"},{"type":"reasoning.summary","summary":"two"}]}"#;
    let reply = ask_body(&message(details, "")).await;
    assert_eq!(reply.message.reasoning_content.as_deref(), Some("one\ntwo"));
    assert_eq!(reply.message.provider_state.unwrap().len(), 2);

    let calls = r#"{"content":null,"tool_calls":[{"id":"","function":{"name":"f","arguments":{"a":1}}},{"function":{"name":"g","arguments":null}}]}"#;
    let calls = ask_body(&message(calls, "")).await.message.tool_calls.unwrap();
    assert_eq!((&*calls[0].arguments, &*calls[1].arguments), (r#"{"a":1}"#, ""));
    assert!(calls[0].id.len() > 5 && calls[0].id != calls[1].id);

    // A model may end its turn at once, and end for a reason outside the vocabulary.
    assert_eq!(ask_body(&message(r#"{"content":""}"#, "")).await.message.content, None);
    let filtered = r#"{"choices":[{"message":{"content":"x"},"finish_reason":"content_filter"}]}"#;
    assert_eq!(ask_body(filtered).await.finish_reason, None);
}

/// On a runtime of several threads long answers are parsed aside.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_answers_are_read_too() {
    let text = "né ".repeat(500_000);
    let body = format!(r#"{{"choices":[{{"message":{{"content":"{text}"}},"finish_reason":"stop"}}]}}"#);
    for stream in [false, true] {
        let reply = ask(answer(200, "", &body), |settings| settings.stream = stream).await.0.unwrap();
        assert_eq!(reply.message.content.map(|content| content.len()), Some(text.len()));
    }
}

#[tokio::test]
async fn streams_are_read_in_any_shape_and_a_cut_one_fails() {
    let chunk = |text: &str| format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\r\n\r\n");
    let end = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    let ask_stream =
        async |pieces: Vec<Step>| ask([vec![stream_head()], pieces].concat(), |settings| settings.stream = true).await;
    let send = |text: String| Step::Send(text.into_bytes());

    // No end mark, half a character in one piece and half in the next, comments, no blank line at the end.
    let pieces = vec![
        send(format!(": ping\n\n{}{}", chunk("a\\ud83d"), chunk("\\ude00b"))),
        send(end.trim_end().to_owned()),
        Step::Close,
    ];
    let reply = ask_stream(pieces).await.0.unwrap();
    assert_eq!((reply.message.content.as_deref(), reply.usage), (Some("a\u{1f600}b"), None));

    for pieces in [
        vec![send(chunk("a")), Step::Close],
        vec![send(chunk("a")), Step::Reset],
        vec![send("data: {\"choices\"".into()), Step::Close],
        vec![send("data: [DONE]\n\n".into()), Step::Close],
        vec![send("data: {\"error\":{\"message\":\"engine died\",\"code\":500}}\n\n".into()), Step::Close],
        vec![send(format!("{}event: error\ndata: engine died\n\ndata: [DONE]\n\n", chunk("a"))), Step::Close],
        vec![
            send(format!("{}event: error\ndata: {{\"message\":\"died\"}}\n\ndata: [DONE]\n\n", chunk("a"))),
            Step::Close,
        ],
        vec![
            send(format!("{}data: {{\"object\":\"error\",\"message\":\"died\"}}\n\ndata: [DONE]\n\n", chunk("a"))),
            Step::Close,
        ],
        vec![Step::Close],
    ] {
        let (outcome, requests) = ask_stream(pieces.clone()).await;
        let failure = outcome.expect_err(&format!("{pieces:?}"));
        assert_eq!((failure.kind, requests), (FailureKind::Unavailable, 4), "{failure}");
    }

    // A server that does not stream although it was asked to.
    let reply = ask(hello(), |settings| settings.stream = true).await.0.unwrap();
    assert_eq!(reply.message.content.as_deref(), Some("hello"));
}

// Faults of the connection.

#[tokio::test]
async fn broken_connections_are_tried_again() {
    let head = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"choices\"".to_vec();
    for steps in [
        vec![Step::Close],
        vec![Step::Reset],
        vec![Step::Send(head.clone()), Step::Close],
        vec![Step::Send(head), Step::Reset],
        vec![Step::Send(b"not http at all\r\n\r\n".to_vec()), Step::Close],
    ] {
        let calls = AtomicUsize::new(0);
        let script = steps.clone();
        let server = Server::start(move |_| match calls.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => script.clone(),
            _ => hello(),
        })
        .await;
        let pool = pool(&server, |_| {});
        let reply = say(&pool.session("s"), false).await.unwrap();
        assert_eq!((reply.failed.len(), server.count(CHAT)), (2, 3), "{steps:?}");
        for attempt in &reply.failed {
            assert!(attempt.time.end >= attempt.time.start && attempt.time.start > 0.0);
            assert!(attempt.fault.message.starts_with(&server.base_url()), "{}", attempt.fault.message);
        }
    }
}

#[tokio::test]
async fn deadlines_cut_servers_that_stall() {
    let limit = Duration::from_millis(40);
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 100\r\n\r\ndata: ".to_vec();
    for (steps, stream, wording) in [
        (vec![Step::Hang], false, "did not begin to answer within 0.04 s"),
        (vec![Step::Send(b"HTTP/1.1 200 OK\r\nx: ".to_vec()), Step::Hang], true, "did not begin to answer"),
        (vec![Step::Send(head.clone()), Step::Hang], false, "stalled: nothing came within 0.04 s"),
        (vec![Step::Send(head), Step::Hang], true, "stalled: nothing came within 0.04 s"),
    ] {
        let begin = Instant::now();
        let (outcome, requests) = ask(steps, |settings| {
            settings.stream = stream;
            settings.retry.max_retries = 1;
            (settings.deadlines.first_byte, settings.deadlines.idle) = (Some(limit), Some(limit));
        })
        .await;
        let failure = outcome.unwrap_err();
        assert!(failure.to_string().contains(wording), "{failure}");
        assert_eq!(requests, 2);
        assert!(begin.elapsed() < Duration::from_secs(5));
    }
}

#[tokio::test]
async fn an_answer_that_keeps_coming_is_not_cut() {
    let body = r#"{"choices":[{"message":{"content":"slow"},"finish_reason":"stop"}]}"#;
    let mut steps = vec![Step::Send(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes())];
    for piece in body.as_bytes().chunks(10) {
        steps.extend([Step::Wait(Duration::from_millis(60)), Step::Send(piece.to_vec())]);
    }
    // Shorter than the whole, longer than each wait.
    let (outcome, _) = ask(steps, |settings| settings.deadlines.idle = Some(Duration::from_millis(300))).await;
    assert_eq!(outcome.unwrap().message.content.as_deref(), Some("slow"));
}

#[tokio::test]
async fn the_budget_ends_a_call_that_hangs() {
    let begin = Instant::now();
    let (outcome, _) = ask(vec![Step::Hang], |settings| settings.retry.budget = Some(Duration::from_millis(80))).await;
    let failure = outcome.unwrap_err();
    assert_eq!((failure.kind, failure.failed.len()), (FailureKind::Unavailable, 1));
    assert!(failure.to_string().contains("budget of 0.08 s") && begin.elapsed() < Duration::from_secs(5), "{failure}");
}

#[tokio::test]
async fn retries_are_announced_and_retry_after_is_waited_for() {
    let calls = AtomicUsize::new(0);
    let server = Server::start(move |_| match calls.fetch_add(1, Ordering::Relaxed) {
        0 => answer(429, "retry-after-ms: 120\r\n", r#"{"error":{"message":"slow down"}}"#),
        _ => hello(),
    })
    .await;
    let events = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&events);
    let observer: PoolObserver = Arc::new(move |event| log.lock().unwrap().push(event));
    let pool = Pool::new(quick(&[server.base_url()]), Some(observer)).unwrap();
    let begin = Instant::now();
    let reply = say(&pool.session("s"), false).await.unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(120));
    assert_eq!(reply.failed[0].fault.status_code, Some(429));
    let events = events.lock().unwrap();
    let [PoolEvent::Retry { session, endpoint, cause, wait }] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((&**session, &**endpoint), ("s", server.base_url().as_str()));
    assert!(cause.contains("slow down") && *wait >= Duration::from_millis(120));
}

#[tokio::test]
async fn what_cannot_succeed_is_asked_once() {
    for (status, kind) in [
        (400, FailureKind::Refused),
        (401, FailureKind::Unauthorized),
        (403, FailureKind::Unauthorized),
        (404, FailureKind::Refused),
        (422, FailureKind::Refused),
        (307, FailureKind::Refused),
    ] {
        let (outcome, requests) = ask(answer(status, "location: http://127.0.0.1:1/\r\n", "{}"), |_| {}).await;
        let failure = outcome.unwrap_err();
        assert_eq!((failure.kind, requests), (kind, 1), "{status}");
        assert!(!failure.fault().retryable);
    }
}

// Sessions and engines.

#[tokio::test]
async fn a_session_stays_at_one_engine_and_sessions_spread() {
    let mut servers = Vec::new();
    for _ in 0..4 {
        servers.push(Server::start(|_| hello()).await);
    }
    let urls: Vec<String> = servers.iter().map(Server::base_url).collect();
    let pool = Pool::new(quick(&urls), None).unwrap();
    let sessions: Vec<Session> = (0..8).map(|number| pool.session(&format!("trace-{number}"))).collect();
    for session in &sessions {
        for _ in 0..3 {
            let reply = say(session, false).await.unwrap();
            assert_eq!(reply.endpoint, session.endpoint());
        }
    }
    for server in &servers {
        let requests = server.requests.lock().unwrap();
        assert_eq!(requests.len(), 6, "two sessions of three turns each");
        let mut ids: Vec<&str> = requests.iter().map(|request| request.header("x-session-id").unwrap()).collect();
        ids.dedup();
        assert_eq!(ids.len(), 2, "the turns of a session come to one engine: {ids:?}");
    }
    // Seats are given back.
    let first = sessions[0].endpoint();
    drop(sessions);
    assert_eq!(pool.session("next").endpoint(), first);
}

#[tokio::test]
async fn a_dead_engine_is_left_and_comes_back() {
    let (alive, broken) = (Server::start(|_| hello()).await, Arc::new(AtomicBool::new(false)));
    let switch = Arc::clone(&broken);
    let weak = Server::start(move |_| if switch.load(Ordering::Relaxed) { vec![Step::Reset] } else { hello() }).await;
    let (sender, mut events) = tokio::sync::mpsc::unbounded_channel();
    let observer: PoolObserver = Arc::new(move |event| drop(sender.send(event)));
    let pool = Pool::new(quick(&[weak.base_url(), alive.base_url()]), Some(observer)).unwrap();
    let session = pool.session("s");
    assert_eq!(&*say(&session, false).await.unwrap().endpoint, weak.base_url());

    broken.store(true, Ordering::Relaxed);
    let reply = say(&session, false).await.unwrap();
    assert_eq!((&*reply.endpoint, reply.failed.len()), (alive.base_url().as_str(), 3));
    assert_eq!(&*pool.session("new").endpoint(), alive.base_url(), "new sessions avoid it");
    assert_eq!(&*say(&session, false).await.unwrap().endpoint, alive.base_url(), "the session stays where it moved");

    broken.store(false, Ordering::Relaxed);
    let mut seen = Vec::new();
    loop {
        let event = tokio::time::timeout(Duration::from_secs(10), events.recv()).await.unwrap().unwrap();
        let back = matches!(event, PoolEvent::EngineBack { .. });
        seen.push(event);
        if back {
            break;
        }
    }
    assert!(
        seen.iter()
            .any(|event| matches!(event, PoolEvent::EngineOut { endpoint, .. } if **endpoint == weak.base_url()))
    );
    assert!(seen.iter().any(|event| matches!(event, PoolEvent::Moved { to, .. } if **to == alive.base_url())));
    assert_eq!(&*pool.session("later").endpoint(), weak.base_url(), "it has the least load and is back");
}

#[tokio::test]
async fn the_only_engine_is_asked_within_the_budget_even_when_it_is_out() {
    let server = Server::start(|_| hello()).await;
    let (address, url) = (server.address, server.base_url());
    drop(server);
    let mut settings = quick(&[url]);
    settings.retry.max_retries = 1000;
    let pool = Pool::new(settings, None).unwrap();
    let session = pool.session("s");
    let restart = async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        Server::on(address, |_| hello()).await
    };
    let (reply, _server) = tokio::join!(say(&session, false), restart);
    assert!(reply.unwrap().failed.len() > 3);
}

#[tokio::test]
async fn dropping_a_call_closes_its_connection() {
    let (sender, mut closed) = tokio::sync::mpsc::unbounded_channel();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut sink = tokio::io::sink();
        sender.send("open").unwrap();
        let _ = tokio::io::copy(&mut stream, &mut sink).await;
        sender.send("closed").unwrap();
    });
    let pool = Pool::new(quick(&[format!("http://{address}/v1")]), None).unwrap();
    let session = pool.session("s");
    tokio::select! {
        _ = say(&session, false) => panic!("nothing answers"),
        opened = closed.recv() => assert_eq!(opened, Some("open")),
    }
    let ended = tokio::time::timeout(Duration::from_secs(10), closed.recv()).await.unwrap();
    assert_eq!(ended, Some("closed"));
    server.await.unwrap();
}

#[tokio::test]
async fn connections_are_capped() {
    let (open, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (count, peak) = (Arc::clone(&open), Arc::clone(&most));
    let server = Server::start(move |_| {
        peak.fetch_max(count.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let mut steps = vec![Step::Wait(Duration::from_millis(5))];
        steps.extend(hello());
        steps
    })
    .await;
    let pool = pool(&server, |settings| settings.max_connections = Some(2));
    let sessions: Vec<Session> = (0..12).map(|number| pool.session(&number.to_string())).collect();
    let calls = sessions.iter().map(|session| {
        let open = Arc::clone(&open);
        async move {
            say(session, false).await.unwrap();
            open.fetch_sub(1, Ordering::SeqCst);
        }
    });
    futures::future::join_all(calls).await;
    assert!(most.load(Ordering::SeqCst) <= 3, "{most:?}");
}

// Requests, keys, probes.

#[tokio::test]
async fn requests_carry_what_they_should() {
    let server = Server::start(|_| hello()).await;
    let pool = pool(&server, |settings| {
        settings.key = Some(Secret::new("key-123456".into()));
        settings.session_header = "x-router-id".into();
        settings.headers.insert("X-Team".into(), "red".into());
        settings.secret_headers.insert("x-token".into(), Secret::new("token-123456".into()));
    });
    let Value::Object(sampling) = json!({"temperature": 0, "top_k": 5, "max_tokens": 9}) else { unreachable!() };
    let messages = [Message::user("hi")];
    let call = ChatCall { model: "m", messages: &messages, tools: &[], sampling: &sampling, tokens: true };
    pool.session("trace 1").chat(&call).await.unwrap();
    let requests = server.requests.lock().unwrap();
    let request = &requests[0];
    assert_eq!(request.path, CHAT);
    for (name, value) in [
        ("authorization", "Bearer key-123456"),
        ("x-router-id", "trace_1"),
        ("x-team", "red"),
        ("x-token", "token-123456"),
        ("content-type", "application/json"),
    ] {
        assert_eq!(request.header(name), Some(value), "{name}");
    }
    assert_eq!(
        request.json(),
        json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0, "top_k": 5,
            "max_tokens": 9, "logprobs": true, "return_token_ids": true})
    );
}

#[tokio::test]
async fn secrets_stay_out_of_everything_that_is_said() {
    let server = Server::start(|_| {
        answer(500, "", r#"{"error":{"message":"key-123456 pass-123456 query-123456 token-123456 were refused"}}"#)
    })
    .await;
    let url = format!("http://user:pass-123456@{}/v1?api=query-123456", server.address);
    let dead = "http://user:pass-123456@127.0.0.1:1/v1?api=query-123456".to_owned();
    for url in [url, dead] {
        let mut settings = quick(&[url]);
        settings.key = Some(Secret::new("key-123456".into()));
        settings.secret_headers.insert("x-token".into(), Secret::new("token-123456".into()));
        let events = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&events);
        let observer: PoolObserver = Arc::new(move |event| log.lock().unwrap().push(event));
        let pool = Pool::new(settings, Some(observer)).unwrap();
        let failure = say(&pool.session("s"), false).await.unwrap_err();
        let probe = pool.models().await;
        let said = format!("{failure} {failure:?} {events:?} {probe:?} {:?}", pool.endpoints());
        for part in ["123456", "user"] {
            assert!(!said.contains(part), "{said}");
        }
    }
    let mut settings = quick(&["http://127.0.0.1:1/v1".to_owned()]);
    settings.key = Some(Secret::new("bad\nkey-123456".into()));
    let error = Pool::new(settings, None).err().unwrap();
    assert!(!format!("{error} {error:?}").contains("123456"));
}

#[tokio::test]
async fn probes_say_what_is_wrong() {
    let models = Server::start(|_| answer(200, "", vector("vllm_models.json"))).await;
    let pool = |url: String| Pool::new(quick(&[url]), None).unwrap();
    let good = pool(models.base_url());
    let served = good.models().await.unwrap().unwrap();
    assert_eq!((&*served[0].id, served[0].max_model_len), ("SmolLM2-135M-Instruct", Some(2048)));
    assert_eq!(good.check_model("SmolLM2-135M-Instruct").await.unwrap(), Some(served[0].clone()));
    let Err(ProbeFailure::UnknownModel { served, .. }) = good.check_model("nope").await else { panic!() };
    assert_eq!(served, ["SmolLM2-135M-Instruct"]);

    let error = pool("http://127.0.0.1:1/v1".into()).check_model("m").await.unwrap_err().to_string();
    assert!(error.starts_with("no endpoint at http://127.0.0.1:1/v1: no connection"), "{error}");

    let locked = Server::start(|_| answer(401, "", r#"{"error":{"message":"Incorrect API key"}}"#)).await;
    let error = pool(locked.base_url()).check_model("m").await.unwrap_err();
    assert!(
        matches!(error, ProbeFailure::Unauthorized { .. }) && error.to_string().contains("OPENAI_API_KEY"),
        "{error}"
    );

    // Servers without the list, with an empty one, or with one that says nothing about names.
    for (status, body) in [
        (404, "{}"),
        (405, ""),
        (500, "oops"),
        (200, "hello"),
        (200, r#"{"data":[]}"#),
        (200, r#"{"data":[{"id":"/models/x.gguf","owned_by":"llamacpp"}]}"#),
    ] {
        let silent = Server::start(move |_| answer(status, "", body)).await;
        assert_eq!(pool(silent.base_url()).check_model("m").await.unwrap(), None, "{status} {body}");
    }
}

#[test]
fn pools_are_refused_for_what_they_cannot_use() {
    for urls in [vec![], vec!["".to_owned()], vec!["localhost:8000".to_owned()]] {
        assert!(Pool::new(quick(&urls), None).is_err(), "{urls:?}");
    }
    let mut settings = quick(&["http://127.0.0.1:1/v1".to_owned()]);
    settings.headers.insert("bad name".into(), "x".into());
    assert!(Pool::new(settings, None).is_err());
}
