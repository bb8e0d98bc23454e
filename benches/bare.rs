//! The floor of the comparison: the requests of `eval reverse-text` by a bare reqwest loop, nothing recorded.
//!
//!     cargo bench --bench bare -- BASE_URL REQUESTS IN_FLIGHT
//!
//! The texts are made before the clock starts; bodies and headers are those of the evaluation's calls. Prints one line of
//! JSON: wall seconds and CPU seconds of the loop, peak MiB of the process.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a measuring program of its own")]

use std::time::Instant;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use nix::sys::resource::{UsageWho, getrusage};
use rollhouse::{
    config::{Document, Reader},
    tasksets,
    trace::{Content, Message},
};
use serde_json::{Value, json};

/// System prompt and user's text of a task.
type Texts = (String, String);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [base_url, requests, in_flight] = arguments.as_slice() else {
        println!("nothing measured: needs BASE_URL REQUESTS IN_FLIGHT");
        return;
    };
    let (requests, in_flight): (usize, usize) = (requests.parse().unwrap(), in_flight.parse().unwrap());
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let tasks = runtime.block_on(tasks(requests));
    let (before, started) = (cpu(), Instant::now());
    runtime.block_on(async {
        let client = reqwest::Client::builder().no_proxy().tcp_nodelay(true).build().unwrap();
        let url = format!("{base_url}/chat/completions");
        // Tasks of the runtime, as a program would use them that wants its requests on all cores.
        stream::iter(tasks)
            .map(|(system, user)| tokio::spawn(call(client.clone(), url.clone(), system, user)))
            .buffer_unordered(in_flight)
            .for_each(|done| async { done.unwrap() })
            .await;
    });
    let (wall, cpu) = (started.elapsed().as_secs_f64(), cpu() - before);
    let peak = getrusage(UsageWho::RUSAGE_SELF).unwrap().max_rss() as f64 / 1024.0;
    println!("{}", json!({ "wall_s": wall, "cpu_s": cpu, "peak_mib": peak }));
}

async fn call(client: reqwest::Client, url: String, system: String, user: String) {
    let body = json!({
        "model": "sim",
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": user}],
    });
    let request = client.post(url).bearer_auth("EMPTY").header("x-session-id", "0123456789abcdef0123456789abcdef");
    let answer: Value = request.json(&body).send().await.unwrap().json().await.unwrap();
    assert!(answer["choices"][0]["message"]["content"].is_string());
}

async fn tasks(count: usize) -> Vec<Texts> {
    let reader = &mut Reader::new(Document::new([]));
    let taskset = (tasksets::find("reverse-text").unwrap().open)(&mut reader.root()).unwrap();
    let texts = taskset.tasks().take(count).map_ok(|task| match task.data.opening().as_slice() {
        [Message::System(system), Message::User(user)] => (text(&system.content), text(&user.content)),
        other => panic!("not the opening of reverse-text: {other:?}"),
    });
    texts.try_collect().await.unwrap()
}

fn text(content: &Content) -> String {
    match content {
        Content::Text(text) => text.clone(),
        Content::Parts(parts) => panic!("not a text: {parts:?}"),
    }
}

/// CPU seconds of the process, user and system.
fn cpu() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    [usage.user_time(), usage.system_time()].iter().map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6).sum()
}
