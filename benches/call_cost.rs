//! What one single-turn call costs in CPU time: bare reqwest, bare async-openai, and a pool's session, with the same
//! request against a server in another process that does next to nothing.
//!
//!     cargo bench --bench call_cost [-- CALLS]
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a measuring program of its own")]

use std::{
    future::Future,
    io::{BufRead as _, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
    time::Instant,
};

use async_openai::{Client, config::OpenAIConfig, middleware::ReqwestService};
use futures::{StreamExt as _, stream};
use nix::sys::resource::{UsageWho, getrusage};
use rollhouse::{
    inference::{ChatCall, Pool, PoolSettings},
    trace::Message,
};
use serde_json::{Map, Value, json};

const IN_FLIGHT: usize = 64;
const SERVE: &str = "--serve";
const ANSWER: &str = r#"{"id":"chatcmpl-1","object":"chat.completion","created":1796038875,"model":"sim","choices":[{"index":0,"message":{"role":"assistant","content":"The capital of France is Paris.","refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":null}],"usage":{"prompt_tokens":37,"total_tokens":45,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":0}},"prompt_token_ids":null}"#;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if arguments.first().is_some_and(|argument| argument == SERVE) {
        return serve();
    }
    let calls: usize = arguments.first().map_or(20_000, |calls| calls.parse().unwrap());
    let mut server = Command::new(std::env::current_exe().unwrap()).arg(SERVE).stdout(Stdio::piped()).spawn().unwrap();
    let mut address = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut address).unwrap();
    let base_url = format!("http://{}/v1", address.trim());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(measure(&base_url, calls));
    server.kill().unwrap();
    server.wait().unwrap();
}

async fn measure(base_url: &str, calls: usize) {
    let pool = Pool::new(PoolSettings::new([base_url]), None).unwrap();
    let http = reqwest::Client::builder().no_proxy().tcp_nodelay(true).build().unwrap();
    let url = format!("{base_url}/chat/completions");
    let config = OpenAIConfig::default().with_api_base(base_url).with_api_key("EMPTY");
    let openai = Client::build(http.clone(), config).with_http_service(ReqwestService::new(http.clone()));
    let text = |number: usize| {
        format!("What is the capital of France? Answer in one short sentence. This is question {number}.")
    };
    let body = |number| json!({"model": "sim", "messages": [{"role": "user", "content": text(number)}], "temperature": 0.7, "max_tokens": 64});

    let bare = |number| {
        let request =
            http.post(&url).header("authorization", "Bearer EMPTY").header("x-session-id", "s").json(&body(number));
        async move {
            let answer: Value = request.send().await.unwrap().json().await.unwrap();
            assert!(answer["choices"][0]["message"]["content"].is_string());
        }
    };
    let openai = |number| {
        let openai = openai.clone();
        let body = body(number);
        async move {
            let answer: Value = openai.chat().create_byot(body).await.unwrap();
            assert!(answer["choices"][0]["message"]["content"].is_string());
        }
    };
    let session = |number: usize| {
        let pool = &pool;
        async move {
            let mut sampling = Map::new();
            sampling.insert("temperature".into(), json!(0.7));
            sampling.insert("max_tokens".into(), json!(64));
            let messages = [Message::user(text(number))];
            let call = ChatCall { model: "sim", messages: &messages, tools: &[], sampling: &sampling, tokens: false };
            let reply = pool.session("0123456789abcdef0123456789abcdef").chat(&call).await.unwrap();
            assert!(reply.message.content.is_some());
        }
    };
    // Three rounds each, in turn, and the least of each: the machine may be busy with other work.
    let mut least = [f64::INFINITY; 3];
    for round in 0..4 {
        let cost = [cost(calls, bare).await, cost(calls, openai).await, cost(calls, session).await];
        if round > 0 {
            for (least, cost) in least.iter_mut().zip(cost) {
                *least = least.min(cost);
            }
        }
    }
    for (name, cost) in ["bare reqwest", "bare async-openai", "session of a pool"].iter().zip(least) {
        println!("{name:18} {:7.1} µs CPU per call, {:.2} times bare reqwest", cost * 1e6, cost / least[0]);
    }
}

/// CPU seconds (user and system) per call.
async fn cost<F: Future<Output = ()>>(calls: usize, call: impl Fn(usize) -> F) -> f64 {
    let (begin, started) = (cpu(), Instant::now());
    stream::iter(0..calls).for_each_concurrent(IN_FLIGHT, call).await;
    let spent = cpu() - begin;
    assert!(started.elapsed().as_secs() < 600, "the server does not keep up");
    spent / calls as f64
}

fn cpu() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    [usage.user_time(), usage.system_time()].iter().map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6).sum()
}

/// Answers every request with the same text, a thread for each connection.
fn serve() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("{}", listener.local_addr().unwrap());
    std::io::stdout().flush().unwrap();
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{ANSWER}",
        ANSWER.len()
    );
    for stream in listener.incoming() {
        let answer = answer.clone();
        std::thread::spawn(move || answer_all(stream.unwrap(), answer.as_bytes()));
    }
}

fn answer_all(mut stream: TcpStream, answer: &[u8]) {
    stream.set_nodelay(true).unwrap();
    let (mut buffer, mut filled) = (vec![0; 64 << 10], 0);
    loop {
        match stream.read(&mut buffer[filled..]) {
            Ok(0) | Err(_) => return,
            Ok(read) => filled += read,
        }
        let text = &buffer[..filled];
        let Some(head) = text.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let lower = String::from_utf8_lossy(&text[..head]).to_lowercase();
        let length = lower.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()?.trim().parse().ok());
        if filled >= head + 4 + length.unwrap_or(0) {
            filled = 0;
            if stream.write_all(answer).is_err() {
                return;
            }
        }
    }
}
