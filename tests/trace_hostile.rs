//! Hostile lines of a `traces.jsonl`: every value of real lines replaced by what nobody expects, and broken text. Nothing
//! panics, and what a reader takes it can also count, explain and write again.
#![allow(clippy::disallowed_methods, reason = "tests write the files that they read")]

use std::fs;

use rollhouse::{
    report::explain,
    store::{Row, scan},
    trace::Episode,
};
use serde_json::Value;

/// Whole values in JSON, some of them not quite.
fn hostile_values() -> Vec<String> {
    let plain = [
        "null",
        "true",
        "-1",
        "0",
        "0.5",
        "4294967295",
        "4294967296",
        "18446744073709551615",
        "-9223372036854775808",
        "1e308",
        "-1e308",
        "1e999",
        "NaN",
        "\"\"",
        "\"NaN\"",
        r#""\ud835""#,
        r#""\u0000\u001b[31m""#,
        "[]",
        "[null]",
        "[-1]",
        "[18446744073709551615]",
        "[[]]",
        "{}",
        r#"{"":null}"#,
        r#"{"a":{"b":[1]}}"#,
    ];
    let deep = [format!("{}{}", "[".repeat(2000), "]".repeat(2000)), "{\"a\":".repeat(2000)];
    let long = ["9".repeat(5000), format!("\"{}\"", "x".repeat(5000))];
    plain.into_iter().map(str::to_owned).chain(deep).chain(long).collect()
}

/// How many values a value consists of.
fn size(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(size).sum(),
        Value::Object(fields) => fields.values().map(size).sum::<usize>(),
        _ => 0,
    }
}

/// Writes a value with the one at `target` (counted in the order of writing) replaced, or, where it is a field, preceded by
/// a field of the same name.
fn render(value: &Value, target: &mut usize, hostile: &str, double: bool, out: &mut String) {
    if *target == 0 {
        *target = usize::MAX;
        out.push_str(hostile);
        return;
    }
    *target -= 1;
    match value {
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at > 0 { "," } else { "" });
                render(item, target, hostile, double, out);
            }
            out.push(']');
        }
        Value::Object(fields) => {
            out.push('{');
            for (at, (name, field)) in fields.iter().enumerate() {
                out.push_str(if at > 0 { "," } else { "" });
                let name = serde_json::to_string(name).unwrap();
                if double && *target == 0 {
                    out.push_str(&format!("{name}:{hostile},"));
                    *target = usize::MAX;
                }
                out.push_str(&format!("{name}:"));
                render(field, target, hostile, double, out);
            }
            out.push('}');
        }
        other => out.push_str(&other.to_string()),
    }
}

/// Does with a line what the program does with it anywhere.
fn use_line(line: &[u8]) -> bool {
    let Ok(episode) = Episode::from_line(line) else { return false };
    let _ =
        (episode.outcome(), episode.fault(), episode.reward(), episode.task.data.hash(), episode.task.data.opening());
    for trace in &episode.traces {
        let _ = (trace.token_counts(), trace.usage(), trace.num_turns(), trace.is_truncated(), trace.last_reply());
        let _ = (trace.graph.heap_size(), trace.graph.transcript());
        for branch in trace.branches() {
            let _ = (
                branch.token_counts(),
                branch.token_ids(),
                branch.sampled_mask(),
                branch.logprobs(),
                branch.messages(),
            );
            let _ = (branch.routed_experts(), branch.sampling_mask(), branch.mm_token_type_ids());
        }
    }
    let mut written = Vec::new();
    episode.write_line(&mut written).unwrap();
    Episode::from_line(&written).expect("what was written can be read");
    true
}

fn base_lines() -> Vec<String> {
    let lines = include_str!("vectors/verifiers/traces/traces.jsonl");
    lines.lines().map(str::to_owned).collect()
}

/// Counts every line of a file and explains some of them.
fn use_file(lines: &[Vec<u8>]) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("traces.jsonl"), lines.join(&b'\n')).unwrap();
    let mut rows: Vec<Row> = Vec::new();
    scan(&folder.path().join("traces.jsonl"), |row| rows.push(row)).unwrap();
    for row in rows.iter().step_by(rows.len() / 16 + 1) {
        // A line that only the fast reader takes is an error here, never a panic.
        let _ = explain(folder.path(), &row.line.to_string(), &mut Vec::new());
    }
}

#[test]
fn no_value_anywhere_in_a_line_breaks_a_reader() {
    let hostile = hostile_values();
    let lines = base_lines();
    // Of the shipped lines, the longest and the shortest: together they have every field.
    let mut chosen: Vec<&String> = lines.iter().collect();
    chosen.sort_by_key(|line| line.len());
    let chosen = [chosen[0], chosen[chosen.len() / 2], chosen[chosen.len() - 1]];
    let (mut read, mut refused) = (0, 0);
    for line in chosen {
        let value: Value = serde_json::from_str(line).unwrap();
        for target in 0..size(&value) {
            let mut file = Vec::new();
            // Not every value in every place: a stride that shares no factor with their number reaches all pairs of kinds.
            for (index, hostile) in hostile.iter().enumerate().filter(|(index, _)| (index + target) % 4 == 0) {
                let mut text = String::new();
                render(&value, &mut target.clone(), hostile, index % 3 == 0, &mut text);
                if use_line(text.as_bytes()) {
                    read += 1
                } else {
                    refused += 1
                }
                file.push(text.into_bytes());
            }
            if target % 8 == 0 {
                use_file(&file);
            }
        }
    }
    assert!(read > 1000 && refused > 1000, "{read} read and {refused} refused");
}

#[test]
fn half_a_surrogate_pair_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let mut episode: Value = serde_json::from_str(&base_lines()[0]).unwrap();
    for node in episode["traces"][0]["nodes"].as_array_mut().unwrap() {
        node["message"]["content"] = "HALF".into();
    }
    fs::write(folder.path().join("traces.jsonl"), episode.to_string().replace("HALF", r"a\ud835b")).unwrap();
    let mut out = Vec::new();
    explain(folder.path(), "0", &mut out).unwrap();
    let out = String::from_utf8(out).unwrap();
    assert!(out.contains("last reply: a\u{fffd}b"), "{out}");
}

#[test]
fn broken_text_is_refused_or_read_and_never_a_panic() {
    let line = base_lines().remove(0);
    let bytes = line.as_bytes();
    let mut file = Vec::new();
    for at in (0..bytes.len()).step_by(bytes.len() / 200) {
        for byte in [0_u8, 0xff, b'"', b'\\', b'}', b'[', b'\n'] {
            let mut broken = bytes.to_vec();
            broken[at] = byte;
            use_line(&broken);
            file.push(broken);
        }
        use_line(&bytes[..at]);
        file.push(bytes[..at].to_vec());
    }
    for odd in ["", "null", "[]", "{}", "\"", "{\"id\":", &"[".repeat(200_000), &"{\"a\":".repeat(200_000)] {
        assert!(!use_line(odd.as_bytes()));
        file.push(odd.as_bytes().to_vec());
    }
    use_file(&file);
}
