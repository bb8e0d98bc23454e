//! The floor of the comparison: the requests of a single-turn evaluation by a bare reqwest loop, nothing recorded.
//!
//!     cargo bench --bench bare -- BASE_URL REQUESTS IN_FLIGHT
//!
//! Prints one line of JSON: wall seconds, CPU seconds, peak MiB.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a measuring program of its own")]

use std::time::Instant;

use futures::{StreamExt as _, stream};
use nix::sys::resource::{UsageWho, getrusage};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [base_url, requests, in_flight] = arguments.as_slice() else {
        println!("nothing measured: needs BASE_URL REQUESTS IN_FLIGHT");
        return;
    };
    let (requests, in_flight): (usize, usize) = (requests.parse().unwrap(), in_flight.parse().unwrap());
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let started = Instant::now();
    runtime.block_on(async {
        let client = reqwest::Client::builder().no_proxy().tcp_nodelay(true).build().unwrap();
        let url = format!("{base_url}/chat/completions");
        stream::iter(0..requests)
            .for_each_concurrent(in_flight, |number| {
                let client = client.clone();
                let url = url.clone();
                async move {
                    let text =
                        format!("a short line of text number {number} that is long enough to be worth turning around");
                    let body = serde_json::json!({
                        "model": "sim",
                        "messages": [{"role": "user", "content": text}],
                    });
                    let answer = client.post(url).json(&body).send().await.unwrap();
                    let answer: serde_json::Value = answer.json().await.unwrap();
                    assert!(answer["choices"][0]["message"]["content"].is_string());
                }
            })
            .await;
    });
    let wall = started.elapsed().as_secs_f64();
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let cpu = [usage.user_time(), usage.system_time()]
        .iter()
        .map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6)
        .sum::<f64>();
    println!(r#"{{"wall_s":{wall},"cpu_s":{cpu},"peak_mib":{}}}"#, usage.max_rss() / 1024);
}
