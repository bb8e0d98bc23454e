//! What the simulated endpoint costs: it is the other side of every benchmark, and must not be what limits them.
//!
//! Requests are written as bytes over keep-alive connections, so that the client's share is small; `cpu` lines give the
//! processor time of the whole process (server and this client) per request.
#![allow(clippy::disallowed_methods, reason = "a measuring program is a client of its own")]

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use divan::Bencher;
use nix::sys::resource::{UsageWho, getrusage};
use rollhouse::sim::{Policy, Settings, Simulator};
use tokio::runtime::Runtime;

/// Requests of one connection in one sample.
const BURST: usize = 500;

fn main() {
    divan::main();
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

fn request(body: &str) -> Vec<u8> {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: sim\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn cpu() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("a process has usage");
    let (user, system) = (usage.user_time(), usage.system_time());
    let micros = (user.tv_sec() + system.tv_sec()) * 1_000_000 + user.tv_usec() + system.tv_usec();
    Duration::from_micros(micros as u64)
}

/// Sends `count` requests one after the other and reads each answer whole.
fn converse(stream: &mut TcpStream, request: &[u8], count: usize) {
    let mut buffer = vec![0; 1 << 16];
    for _ in 0..count {
        stream.write_all(request).expect("the server reads");
        let mut filled = 0;
        loop {
            let read = stream.read(&mut buffer[filled..]).expect("the server answers");
            assert!(read > 0, "the server keeps the connection");
            filled += read;
            if whole(&buffer[..filled]) {
                break;
            }
        }
    }
}

/// Whether an answer is complete: by its length, or by the last chunk.
fn whole(answer: &[u8]) -> bool {
    let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
    let head = std::str::from_utf8(&answer[..end]).expect("headers are text");
    match head.lines().find_map(|line| line.strip_prefix("content-length: ")) {
        Some(length) => answer.len() == end + 4 + length.parse::<usize>().expect("a number"),
        None => answer.ends_with(b"0\r\n\r\n"),
    }
}

#[expect(clippy::print_stderr, reason = "a figure that divan has no column for")]
fn bench(bencher: Bencher<'_, '_>, name: &str, body: &str) {
    let runtime = runtime();
    let settings =
        Settings { policy: Policy::Fixed("olleh ,dlrow a fo rewsna na si siht".to_owned()), ..Settings::default() };
    let simulator = runtime.block_on(Simulator::start(settings, None)).expect("it starts");
    let mut stream = TcpStream::connect(simulator.address()).expect("it listens");
    stream.set_nodelay(true).expect("a socket option");
    let request = request(body);
    let (before, served) = (cpu(), simulator.stats().requests);
    bencher.counter(divan::counter::ItemsCount::new(BURST)).bench_local(|| converse(&mut stream, &request, BURST));
    let requests = simulator.stats().requests - served;
    let spent = (cpu() - before).as_secs_f64() * 1e6 / requests.max(1) as f64;
    eprintln!("{name}: cpu {spent:.1} µs a request, client included, over {requests} requests");
    drop(stream);
    runtime.block_on(simulator.shutdown());
}

#[divan::bench(sample_count = 20, sample_size = 1)]
fn chat(bencher: Bencher<'_, '_>) {
    bench(
        bencher,
        "chat",
        r#"{"model":"sim","messages":[{"role":"user","content":"Reverse this text: hello world"}],"temperature":1.0}"#,
    );
}

#[divan::bench(sample_count = 20, sample_size = 1)]
fn chat_with_tokens(bencher: Bencher<'_, '_>) {
    let body = r#"{"model":"sim","messages":[{"role":"user","content":"Reverse this text: hello world"}],"logprobs":true,"return_token_ids":true}"#;
    bench(bencher, "chat with tokens", body);
}

#[divan::bench(sample_count = 20, sample_size = 1)]
fn streamed_chat(bencher: Bencher<'_, '_>) {
    let body =
        r#"{"model":"sim","stream":true,"messages":[{"role":"user","content":"Reverse this text: hello world"}]}"#;
    bench(bencher, "streamed chat", body);
}

#[divan::bench(sample_count = 20, sample_size = 1)]
fn long_conversation(bencher: Bencher<'_, '_>) {
    let turns: Vec<String> = (0..40)
        .flat_map(|turn| {
            let text = format!("turn {turn}: {}", "words and more words ".repeat(12));
            [
                format!(r#"{{"role":"user","content":"{text}"}}"#),
                format!(r#"{{"role":"assistant","content":"{text}"}}"#),
            ]
        })
        .collect();
    let body = format!(r#"{{"model":"sim","messages":[{},{{"role":"user","content":"and now?"}}]}}"#, turns.join(","));
    bench(bencher, "conversation of 20 kB", &body);
}
