//! Traces against the real verifiers: our lines load there and theirs here, figures, graphs and hashes agree.
#![allow(clippy::disallowed_methods, reason = "tests prepare files and processes of their own")]

#[path = "trace_replay/dress.rs"]
mod dress;
#[path = "trace_replay/generate.rs"]
mod generate;
mod trace_replay;

use std::{env, fs, process::Command};

use dress::{TEXTS, dress};
use generate::{Step, turns};
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use rollhouse::trace::{CreditStream, Episode, Message, TaskData, TokenCounts, Tool, Trace, readable_json};
use serde_json::{Value, json};
use trace_replay::{node_values, replay, typed};

fn cases(random: &mut StdRng, count: usize) -> Vec<Value> {
    (0..count)
        .map(|case| {
            let steps: Vec<Step> = (0..random.random_range(1..9)).map(|_| random.random()).collect();
            turns(&steps, case % 3 == 0)
        })
        .collect()
}

/// A random JSON text, sometimes a broken one.
fn json_text(random: &mut StdRng, depth: u32) -> String {
    match random.random_range(0..if depth > 2 { 9 } else { 12 }) {
        0 => ["null", "true", "false", "NaN", "Infinity", "-Infinity", "-0", "-0.0", "1e400", "01", "1."]
            [random.random_range(0..11)]
        .to_owned(),
        1 => random.random::<i64>().to_string(),
        2 => format!("{}{}", random.random::<u64>(), random.random::<u64>()),
        3 => format!(
            "{:?}",
            f64::from(random.random::<u32>() >> random.random_range(0..32)) * 2_f64.powi(random.random_range(-8..26))
                + 0.25
        ),
        4 => format!("{:?}", f64::from_bits(random.next_u64())).replace("inf", "1e999"),
        5 => format!("{:e}", random.random::<f64>() * 10_f64.powi(random.random_range(-8..20))),
        6 | 7 => format!(
            "\"{}\"",
            ["a", "é", "\\u00e9", "\\ud83d\\ude42", "\\ud835", "🙂", "\\/\\b\\u007f", "\u{7f}"]
                [random.random_range(0..8)]
        ),
        8 => " 1 ".to_owned(),
        9 | 10 => {
            let entries: Vec<String> = (0..random.random_range(0..4))
                .map(|_| {
                    format!(
                        "\"{}\": {}",
                        ["b", "a", "é", "\\uffff", "🙂", "Z"][random.random_range(0..6)],
                        json_text(random, depth + 1)
                    )
                })
                .collect();
            format!("{{{}}}", entries.join(", "))
        }
        _ => {
            let items: Vec<String> = (0..random.random_range(0..4)).map(|_| json_text(random, depth + 1)).collect();
            format!("[{}]", items.join(","))
        }
    }
}

fn hash_questions(random: &mut StdRng) -> (Vec<Value>, Vec<Value>, Vec<String>) {
    let messages = (0..400)
        .map(|_| {
            let arguments = json_text(random, 0);
            json!({
                "role": "assistant",
                "content": TEXTS[random.random_range(0..7)],
                "tool_calls": [{"id": "c", "name": "f", "arguments": arguments}],
                "provider_state": [
                    {"type": (["reasoning", "message", "function_call", "", "other"][random.random_range(0..5)]),
                     "role": "assistant", "call_id": (["c", "d"][random.random_range(0..2)]),
                     "signature": (if random.random() { json!("s") } else { Value::Null }),
                     "content": [{"type": (["output_text", "refusal"][random.random_range(0..2)]), "x": [1.5, null, "é"]}]},
                ],
            })
        })
        .collect();
    let tools = (0..20)
        .map(|_| {
            json!([{"name": "f", "description": TEXTS[random.random_range(0..7)], "strict": null, "vendor": null,
                "parameters": {"b": [1, 2.0, null, 1e20], "a": {"z": -1, "é": random.random::<f64>()}}}])
        })
        .collect();
    let mut rows: Vec<String> = (0..300)
        .map(|row| {
            let mut text = json_text(random, 0);
            while serde_json::from_str::<Value>(&text).is_err() || text.contains("\\ud835") || text.trim() == "-0" {
                text = json_text(random, 0);
            }
            // Python's reader keeps -0 a whole number; ours a double: nobody writes it.
            let text = text.replace("-0,", "0,").replace("-0}", "0}").replace("-0]", "0]");
            format!(
                r#"{{"idx":{row},"extra":{text},"none":null,"timeout":{{"agent":{}}},"resources":{{"cpu":2,"gpu":"A"}}}}"#,
                random.random_range(1..1000)
            )
        })
        .collect();
    let float = |round: usize| match round % 2 {
        // Often equally near to two shortest decimals.
        0 => f64::from(random.random::<u32>()) * 2_f64.powi(random.random_range(-60..60)) + 0.25,
        _ => f64::from_bits(random.next_u64()),
    };
    let floats: Vec<f64> = (0..6000).map(float).filter(|float| float.is_finite()).collect();
    rows.push(format!(r#"{{"extra":{}}}"#, json!(floats)));
    (messages, tools, rows)
}

fn counts(counts: TokenCounts) -> Value {
    json!([counts.input, counts.output, counts.total])
}

fn derived(episode: &Episode) -> Value {
    let traces: Vec<Value> = episode
        .traces
        .iter()
        .map(|trace| {
            let branches: Vec<Value> = trace
                .branches()
                .iter()
                .map(|branch| {
                    json!({
                        "trainable": branch.trainable,
                        "counts": counts(branch.token_counts()),
                        "token_ids": branch.token_ids(),
                        "mask": branch.sampled_mask(),
                        "logprobs": rounded(&branch.logprobs()),
                        "advantages": branch.credit(CreditStream::Advantages).map(|values| rounded(&values)),
                        "loss_weights": branch.loss_weights("policy"),
                    })
                })
                .collect();
            json!({
                "reward": trace.reward(),
                "counts": counts(trace.token_counts()),
                "turns": trace.num_turns(),
                "truncated": trace.is_truncated(),
                "last_reply": trace.last_reply(),
                "usage": trace.usage(),
                "messages": trace.graph.nodes().iter().map(|node| node.message.hash()).collect::<Vec<_>>(),
                "branches": branches,
            })
        })
        .collect();
    json!({"id": episode.id, "counts": counts(episode.token_counts()), "hash": episode.task.data.hash(), "traces": traces})
}

/// Four decimals, without the sign of zero.
fn rounded(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| (f64::from(*value) * 1e4).round_ties_even() / 1e4 + 0.0).collect()
}

#[test]
fn verifiers_agrees_both_ways() {
    let python = env::var("ROLLHOUSE_TEST_PYTHON")
        .expect("ROLLHOUSE_TEST_PYTHON is not set: run the tests with tests/run, which sets up the Python peers");
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut random = StdRng::seed_from_u64(7);
    let cases = cases(&mut random, 250);
    let traces: Vec<Trace> = cases.iter().map(|case| replay(case, false, |_, _, _| ())).collect();
    let (messages, tools, rows) = hash_questions(&mut random);
    let episodes: Vec<Episode> = traces[..100].iter().map(|trace| dress(&mut random, trace.clone())).collect();
    let mut lines = Vec::new();
    for episode in &episodes {
        episode.write_line(&mut lines).unwrap();
    }
    fs::write(path("traces.jsonl"), &lines).unwrap();
    fs::write(path("turns.json"), serde_json::to_vec(&cases).unwrap()).unwrap();
    let asked = json!({"messages": messages, "tools": tools, "rows": rows});
    fs::write(path("hashes.json"), serde_json::to_vec(&asked).unwrap()).unwrap();

    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/trace_peer.py");
    let status = Command::new(&python).arg(script).arg(folder.path()).status().unwrap();
    assert!(status.success(), "{script} failed under {python}");
    let answer = |name: &str| -> Value { serde_json::from_slice(&fs::read(path(name)).unwrap()).unwrap() };

    // Our lines there: the same figures.
    for (episode, theirs) in episodes.iter().zip(answer("derived.json").as_array().unwrap()) {
        assert_eq!(derived(episode), *theirs);
    }

    // Their lines here: the same line again, and ours but for the seat's config, which they complete.
    let theirs = fs::read(path("theirs/traces.jsonl")).unwrap();
    let (ours, theirs): (Vec<&[u8]>, Vec<&[u8]>) =
        (lines.split(|byte| *byte == b'\n').collect(), theirs.split(|byte| *byte == b'\n').collect());
    assert_eq!(ours.len(), theirs.len());
    for (ours, theirs) in ours.iter().zip(&theirs).filter(|(line, _)| !line.is_empty()) {
        let mut again = Vec::new();
        Episode::from_line(theirs).unwrap().write_line(&mut again).unwrap();
        let mut values: Vec<Value> =
            [&again, *theirs, *ours].iter().map(|line| serde_json::from_str(&readable_json(line)).unwrap()).collect();
        values.iter_mut().for_each(without_fault_extras);
        assert_eq!(values[0], values[1]);
        for value in &mut values {
            value["traces"][0]["agent"]["config"] = Value::Null;
        }
        assert_eq!(values[1], values[2]);
    }

    // The same turns make the same graph.
    for ((case, trace), theirs) in cases.iter().zip(&traces).zip(answer("nodes.json").as_array().unwrap()) {
        assert_eq!(node_values(trace), theirs["nodes"], "{case}");
        assert_eq!(json!(trace.graph.tools()), theirs["tools"]);
    }

    // The same hashes.
    let hashed = answer("hashed.json");
    for (message, hash) in messages.iter().zip(hashed["messages"].as_array().unwrap()) {
        assert_eq!(typed::<Message>(message).hash(), *hash, "{message}");
    }
    for (tools, hash) in tools.iter().zip(hashed["tools"].as_array().unwrap()) {
        assert_eq!(Tool::list_hash(&typed::<Vec<Tool>>(tools)), *hash, "{tools}");
    }
    for (row, hash) in rows.iter().zip(hashed["rows"].as_array().unwrap()) {
        assert_eq!(serde_json::from_str::<TaskData>(row).unwrap().hash(), *hash, "{row}");
    }
}

fn without_fault_extras(value: &mut Value) {
    for trace in value["traces"].as_array_mut().unwrap() {
        for error in trace["errors"].as_array_mut().unwrap() {
            error.as_object_mut().unwrap().shift_remove("class");
            error.as_object_mut().unwrap().shift_remove("retryable");
        }
    }
}
