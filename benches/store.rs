//! How fast episodes are journalled, and how fast a journal is indexed for resume or summarised.
//!
//! `ROLLHOUSE_BENCH_ROWS` sets the length of the journal that is read; 200000 rows are about 1 GB.
#![allow(clippy::disallowed_methods, reason = "benchmarks prepare files of their own")]

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use divan::{
    Bencher,
    counter::{BytesCount, ItemsCount},
};
use rollhouse::{
    eval::Summary,
    store::{Index, Journal, RunState, scan},
    trace::Episode,
};
use serde_json::{Value, json};

fn main() {
    divan::main();
}

fn rows() -> u64 {
    std::env::var("ROLLHOUSE_BENCH_ROWS").ok().and_then(|rows| rows.parse().ok()).unwrap_or(20_000)
}

/// A finished two-turn episode of about 5 KB, as runs without token ids have them.
fn line(id: u64) -> Value {
    let hash = format!("{:032x}{id:032x}", id / 4);
    let task = json!({"type": "NumberTask", "data": {"idx": id / 4, "prompt": "count ".repeat(40)}, "key": hash, "hash": hash});
    let text = "the \"quick\" fox\njumps over the lazy dog ".repeat(18);
    let usage = json!({"prompt_tokens": 210, "completion_tokens": 180});
    let node = |parent: Option<u32>, role: &str| {
        let mut node = json!({"message": {"role": role, "content": text}, "sampled": role == "assistant",
            "timestamp": 1764500000.25, "token_ids": [], "mask": [], "is_content": [], "logprobs": []});
        if let Some(parent) = parent {
            node["parent"] = json!(parent);
        }
        node
    };
    let call = |node: u32| {
        json!({"node": node, "model": "Qwen/Qwen3-0.6B", "sampling": {"temperature": 0.7}, "endpoint": "/chat/completions",
            "finish_reason": "stop", "usage": usage, "time": {"start": 1764500000.25, "end": 1764500001.5}})
    };
    json!({
        "id": format!("{id:032x}"), "env": {"id": "numbers"}, "task": task, "ok": true, "is_timeout": false, "errors": [],
        "traces": [{
            "version": 1, "id": format!("{id:032x}"), "verifiers": {"version": "1"}, "task": task,
            "agent": {"config": {"model": "Qwen/Qwen3-0.6B", "sampling": {"temperature": 0.7}}, "name": "agent", "trainable": true},
            "nodes": [node(None, "user"), node(Some(0), "assistant"), node(Some(1), "user"), node(Some(2), "assistant")],
            "calls": [call(1), call(3)],
            "rewards": {"exact": {"score": (id % 3) as f64 / 2.0, "weight": 1.0}}, "metrics": {"length": 12.0},
            "is_completed": true, "ok": true, "stop_condition": "agent_completed", "errors": [],
        }],
    })
}

/// A run directory with that many rows, made once.
fn run(rows: u64) -> PathBuf {
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("target/tmp/store-{rows}"));
    let path = run.join("traces.jsonl");
    if !path.exists() {
        fs::create_dir_all(&run).unwrap();
        let mut file = BufWriter::new(File::create(run.join("unfinished")).unwrap());
        for id in 0..rows {
            writeln!(file, "{}", line(id)).unwrap();
        }
        file.flush().unwrap();
        fs::rename(run.join("unfinished"), &path).unwrap();
    }
    run
}

#[divan::bench(sample_count = 5)]
fn index_for_resume(bencher: Bencher<'_, '_>) {
    let path = run(rows()).join("traces.jsonl");
    let bytes = BytesCount::new(fs::metadata(&path).unwrap().len());
    bencher
        .counter(bytes)
        .counter(ItemsCount::new(rows()))
        .bench(|| Index::open(&path, &path.with_file_name("pending.jsonl")).unwrap().finished());
}

#[divan::bench(sample_count = 5)]
fn scan_alone(bencher: Bencher<'_, '_>) {
    let path = run(rows()).join("traces.jsonl");
    let bytes = BytesCount::new(fs::metadata(&path).unwrap().len());
    bencher.counter(bytes).counter(ItemsCount::new(rows())).bench(|| scan(&path, |_| ()).unwrap());
}

#[divan::bench(sample_count = 5)]
fn summarise(bencher: Bencher<'_, '_>) {
    let run = run(rows());
    let state = RunState {
        version: 1,
        id: String::new(),
        name: String::new(),
        taskset: "numbers".to_owned(),
        model: "small".to_owned(),
        simulated: false,
        num_rollouts: 4,
        tasks: None,
        taskset_files: std::collections::BTreeMap::new(),
        attempts: Vec::new(),
        source: None,
    };
    bencher.counter(ItemsCount::new(rows())).bench(|| Summary::of_run(&run, &state).unwrap());
}

#[divan::bench(sample_count = 5)]
fn append(bencher: Bencher<'_, '_>) {
    const EPISODES: u64 = 2_000;
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let episode: Episode = serde_json::from_value(line(1)).unwrap();
    bencher
        .counter(ItemsCount::new(EPISODES))
        .with_inputs(|| (tempfile::tempdir().unwrap(), vec![episode.clone(); EPISODES as usize]))
        .bench_values(|(folder, episodes)| {
            runtime.block_on(async {
                let journal =
                    Journal::open(&folder.path().join("traces.jsonl"), rollhouse::config::Redactor::default()).unwrap();
                for episode in episodes {
                    journal.append(episode).await.unwrap();
                }
                journal.close().await.unwrap();
            });
            folder
        });
}
