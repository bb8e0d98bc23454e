//! The trace vocabulary against recorded data of verifiers 0.4.0: hashes, graphs, lines and derived figures.

mod trace_replay;

use std::{fs, path::PathBuf, sync::Arc};

use rollhouse::trace::{AssistantMessage, EnvInfo, Episode, Graph, Message, TaskData, Tool, Trace, TraceTask};
use serde_json::{Value, json, value::RawValue};
use sha2::{Digest, Sha256};
use trace_replay::{floats, mask_value, node_values, replay, router_value, typed};

fn vectors(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/verifiers").join(path)
}

fn read(path: &str) -> Value {
    serde_json::from_slice(&fs::read(vectors(path)).unwrap()).unwrap()
}

#[test]
fn message_and_tool_hashes() {
    let vectors = read("message_hash.json");
    for case in vectors["messages"].as_array().unwrap() {
        assert_eq!(typed::<Message>(&case["message"]).hash(), case["hash"], "{}", case["case"]);
    }
    for case in vectors["tools"].as_array().unwrap() {
        assert_eq!(Tool::list_hash(&typed::<Vec<Tool>>(&case["tools"])), case["hash"], "{}", case["case"]);
    }
}

#[test]
fn task_hashes() {
    // The rows as text: a `Value` would already have lost the long whole numbers.
    #[derive(serde::Deserialize)]
    struct Case {
        case: String,
        data: Box<RawValue>,
        canonical: String,
        hash: String,
    }
    #[derive(serde::Deserialize)]
    struct Cases {
        tasks: Vec<Case>,
    }
    let cases: Cases = serde_json::from_slice(&fs::read(vectors("task_hash.json")).unwrap()).unwrap();
    for Case { case, data, canonical, hash } in cases.tasks {
        let row: TaskData = serde_json::from_str(data.get()).unwrap();
        assert_eq!(row.canonical(), canonical, "{case}");
        assert_eq!(row.hash(), hash, "{case}");
        assert_eq!(format!("{:x}", Sha256::digest(&canonical)), hash, "{case}");
        // Written and read again, the row is the same row.
        let again: TaskData = serde_json::from_str(&serde_json::to_string(&row).unwrap()).unwrap();
        assert_eq!(again.canonical(), canonical, "{case}");
    }
}

fn lines() -> Vec<String> {
    fs::read_to_string(vectors("traces/traces.jsonl")).unwrap().lines().map(str::to_owned).collect()
}

fn rewritten(line: &str) -> String {
    let mut out = Vec::new();
    Episode::from_line(line.as_bytes()).unwrap().write_line(&mut out).unwrap();
    assert_eq!(out.pop(), Some(b'\n'));
    String::from_utf8(out).unwrap()
}

/// Takes off what we add to errors.
fn without_fault_extras(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if map.contains_key("retryable") {
                map.shift_remove("class");
                map.shift_remove("retryable");
            }
            map.values_mut().for_each(without_fault_extras);
        }
        Value::Array(items) => items.iter_mut().for_each(without_fault_extras),
        _ => {}
    }
}

#[test]
fn lines_of_verifiers_come_back_equal() {
    for line in lines() {
        let ours = rewritten(&line);
        let mut value: Value = serde_json::from_str(&ours).unwrap();
        without_fault_extras(&mut value);
        let theirs: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value, theirs);
        assert_eq!(rewritten(&ours), ours, "writing is a fixed point");
    }
}

#[test]
fn recorded_hashes_are_recomputed() {
    for line in lines() {
        let episode = Episode::from_line(line.as_bytes()).unwrap();
        assert_eq!(Some(episode.task.data.hash()), episode.task.hash);
        let made = TraceTask::new(episode.task.kind.clone(), episode.task.data.clone());
        assert_eq!(made, *episode.task);
    }
}

#[test]
fn derived_figures_of_recorded_lines() {
    let derived = read("traces/derived.json");
    let lines = lines();
    for expected in derived["lines"].as_array().unwrap() {
        let episode = Episode::from_line(lines[expected["line"].as_u64().unwrap() as usize].as_bytes()).unwrap();
        let counts = episode.token_counts();
        assert_eq!(counts.input, expected["episode"]["num_input_tokens"]);
        assert_eq!(counts.output, expected["episode"]["num_output_tokens"]);
        assert_eq!(counts.total, expected["episode"]["num_total_tokens"]);
        let turns: usize = episode.traces.iter().map(Trace::num_turns).sum();
        assert_eq!(turns, expected["episode"]["num_turns"]);
        for (trace, expected) in episode.traces.iter().zip(expected["traces"].as_array().unwrap()) {
            let usage = json!(trace.usage());
            for (key, value) in expected["usage"].as_object().into_iter().flatten() {
                assert_eq!(usage.get(key).unwrap_or(&Value::Null), value, "{key}");
            }
            assert_eq!(trace.reward(), expected["reward"].as_f64().unwrap());
            assert_eq!(trace.is_truncated(), expected["is_truncated"]);
            assert_eq!(!trace.ok, expected["has_error"]);
            assert_eq!(trace.last_reply(), expected["last_reply"]);
            assert_eq!(json!(trace.stop_condition), expected["stop_condition"]);
            assert_derived(trace, expected);
            for (branch, expected) in trace.branches().iter().zip(expected["branches"].as_array().unwrap()) {
                assert_eq!(json!(branch.path), expected["path"]);
                assert_eq!(branch.trainable, expected["trainable"]);
                let counts = branch.token_counts();
                assert_eq!(json!([counts.input, counts.output, counts.total]), {
                    json!([expected["num_input_tokens"], expected["num_output_tokens"], expected["num_total_tokens"]])
                });
            }
        }
    }
}

fn assert_derived(trace: &Trace, expected: &Value) {
    let counts = trace.token_counts();
    assert_eq!(counts.input, expected["num_input_tokens"]);
    assert_eq!(counts.output, expected["num_output_tokens"]);
    assert_eq!(counts.total, expected["num_total_tokens"]);
    assert_eq!(trace.num_turns(), expected["num_turns"]);
    assert_eq!(trace.branches().len(), expected["num_branches"]);
}

fn assert_graph(trace: &Trace, case: &Value) {
    assert_eq!(node_values(trace), case["nodes"]);
    assert_eq!(json!(trace.graph.leaves()), case["leaves"]);
    assert_eq!(json!(trace.graph.tools()), case["tools"]);
    assert_eq!(json!(trace.graph.mm_token_type_id_map()), case["mm_token_type_id_map"]);
    let branches: Vec<Value> = trace
        .branches()
        .iter()
        .map(|branch| {
            let counts = branch.token_counts();
            json!({
                "path": branch.path,
                "call_nodes": branch.calls.iter().map(|call| call.node).collect::<Vec<_>>(),
                "trainable": branch.trainable,
                "token_ids": branch.token_ids(),
                "sampled_mask": branch.sampled_mask(),
                "logprobs": floats(&branch.logprobs()),
                "mm_token_type_ids": branch.mm_token_type_ids(),
                "routed_experts": router_value(branch.routed_experts().as_ref()),
                "sampling_mask": mask_value(branch.sampling_mask().as_ref()),
                "num_input_tokens": counts.input,
                "num_output_tokens": counts.output,
                "num_total_tokens": counts.total,
            })
        })
        .collect();
    assert_eq!(Value::from(branches), case["branches"]);
    assert_derived(trace, &case["derived"]);
    assert_eq!(trace.is_truncated(), case["derived"]["is_truncated"]);
}

#[test]
fn graphs() {
    let mut cases = 0;
    for entry in fs::read_dir(vectors("graph")).unwrap() {
        let path = entry.unwrap().path();
        let case: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        for fast in [false, true] {
            let trace = replay(&case, fast, |trace, turn, expected| {
                let path = turn.leaf.map(|leaf| trace.graph.path(leaf)).unwrap_or_default();
                assert_eq!(json!(path), expected["prefix_node_ids"]);
                assert_eq!(trace.graph.path_tokens(turn.leaf), expected["path_len"]);
                assert_eq!(trace.graph.path_messages(turn.leaf), path.len());
                assert_eq!(json!(turn.tail), expected["tail"]);
            });
            assert_graph(&trace, &case);
            assert_file_keeps_the_graph(&trace, &case);
        }
        cases += 1;
    }
    assert_eq!(cases, 17);
}

/// A graph read from its line has the same nodes, figures and prefixes, less what stays on the wire.
fn assert_file_keeps_the_graph(trace: &Trace, case: &Value) {
    let mut episode = Episode::new(EnvInfo::default(), Arc::clone(&trace.task), None);
    episode.traces.push(trace.clone());
    let mut line = Vec::new();
    episode.write_line(&mut line).unwrap();
    let read = Episode::from_line(&line).unwrap();
    let mut case = case.clone();
    for list in ["nodes", "branches"] {
        for item in case[list].as_array_mut().unwrap() {
            item["routed_experts"] = Value::Null;
            item["sampling_mask"] = Value::Null;
        }
    }
    assert_graph(&read.traces[0], &case);
    let leaf = (trace.graph.nodes().len() - 1) as u32;
    let path = trace.graph.path(leaf);
    let nodes = trace.graph.nodes();
    let prompt: Vec<Message> = path.iter().map(|node| nodes[*node as usize].message.clone()).collect();
    let tools = || Arc::clone(&nodes[path[0] as usize].tools);
    let found = |graph: &Graph| graph.prepare(&prompt, tools()).leaf;
    assert_eq!(found(&read.traces[0].graph), found(&trace.graph));
}

#[test]
fn an_assistant_message_answers_the_fast_path() {
    let mut graph = Graph::default();
    let tools: Arc<[Tool]> = Arc::default();
    let reply = |text: &str| AssistantMessage { content: Some(text.to_owned()), ..AssistantMessage::default() };
    let first = graph.commit(graph.at(None, vec![Message::user("a")], Arc::clone(&tools)), reply("b"), None).unwrap();
    let second = graph.commit(graph.at(first, vec![Message::user("c")], tools), reply("d"), None).unwrap();
    assert_eq!(graph.path(second), [0, 1, 2, 3]);
    let texts: Vec<String> = graph.transcript().into_iter().map(Message::text).collect();
    assert_eq!(texts, ["a", "b", "c", "d"]);
}
