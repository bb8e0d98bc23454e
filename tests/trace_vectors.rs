//! The trace vocabulary against recorded data of verifiers 0.4.0: hashes, graphs, lines and derived figures.

use std::{collections::HashMap, fs, path::PathBuf, sync::Arc};

use rollhouse::trace::{
    AcpInfo, AgentInfo, AssistantMessage, EnvInfo, Episode, ExpertWidth, Fault, FaultClass, Graph, Message, ModelCall,
    RouterRows, SamplingMask, TaskData, Tool, Trace, TraceTask, Turn, TurnTokens,
};
use serde_json::{Value, json, value::RawValue};
use sha2::{Digest, Sha256};

fn vectors(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/verifiers").join(path)
}

fn read(path: &str) -> Value {
    serde_json::from_slice(&fs::read(vectors(path)).unwrap()).unwrap()
}

fn typed<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
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

fn empty_trace() -> Trace {
    let config = RawValue::from_string("{}".to_owned()).unwrap();
    let agent = AgentInfo { config: config.into(), runtime: None, name: "agent".to_owned(), trainable: true };
    Trace::new(Arc::new(TraceTask::new("Task", TaskData::default())), agent)
}

/// Router numbers of the vectors as rows: `[positions][layers][choices]`.
fn router_rows(rows: &Value) -> RouterRows {
    let rows: Vec<Vec<Vec<u8>>> = typed(rows);
    RouterRows {
        layers: rows[0].len(),
        top_k: rows[0][0].len(),
        width: ExpertWidth::One,
        data: rows.into_iter().flatten().flatten().collect::<Vec<u8>>().into(),
    }
}

fn router_value(rows: Option<&RouterRows>) -> Value {
    let Some(rows) = rows else { return Value::Null };
    let layer = |layer: &[u8]| json!(layer);
    let row = |row: &[u8]| row.chunks(rows.top_k).map(layer).collect::<Value>();
    rows.data.chunks(rows.layers * rows.top_k).map(row).collect()
}

fn mask_value(mask: Option<&SamplingMask>) -> Value {
    mask.map_or(
        Value::Null,
        |mask| json!({"ids": mask.ids().collect::<Vec<_>>(), "counts": mask.counts().collect::<Vec<_>>()}),
    )
}

fn turn_tokens(tokens: &Value) -> Option<TurnTokens> {
    if tokens.is_null() {
        return None;
    }
    let field = |key: &str| tokens.get(key).filter(|value| !value.is_null());
    Some(TurnTokens {
        prompt_ids: typed(&tokens["prompt_ids"]),
        completion_ids: typed(&tokens["completion_ids"]),
        completion_logprobs: typed(&tokens["completion_logprobs"]),
        message_spans: field("message_spans").map(typed),
        is_content: field("is_content").map(typed).unwrap_or_default(),
        bridged: field("bridged").is_some_and(|bridged| bridged == true),
        renderer_prompt_ids: field("renderer_prompt_ids").map(typed),
        mm_placeholders: field("mm_placeholders").map(typed),
        mm_token_type_id_map: field("mm_token_type_id_map")
            .map(|map| serde_json::from_str(&map.to_string()).unwrap())
            .unwrap_or_default(),
        routed_experts: field("routed_experts").map(|routed| (router_rows(&routed["rows"]), typed(&routed["start"]))),
        sampling_mask: field("sampling_mask").map(|rows| {
            let rows: Vec<Vec<u32>> = typed(rows);
            SamplingMask::from_rows(rows.iter().map(Vec::as_slice))
        }),
        ..TurnTokens::default()
    })
}

/// Replays the operations of one case; `fast` commits through the leaf where the prompt allows it.
fn replay(case: &Value, fast: bool) -> Trace {
    let mut trace = empty_trace();
    let mut turns: HashMap<String, Turn> = HashMap::new();
    for op in case["ops"].as_array().unwrap() {
        let id = op["id"].as_str().unwrap_or_default().to_owned();
        match op["op"].as_str().unwrap() {
            "prepare" => {
                let tools: Arc<[Tool]> = typed::<Vec<Tool>>(&op["tools"]).into();
                let prompt: Vec<Message> = typed(&op["prompt"]);
                let turn = trace.graph.prepare(&prompt, Arc::clone(&tools));
                let path = turn.leaf.map(|leaf| trace.graph.path(leaf)).unwrap_or_default();
                assert_eq!(json!(path), op["expect"]["prefix_node_ids"]);
                assert_eq!(trace.graph.path_tokens(turn.leaf), op["expect"]["path_len"]);
                assert_eq!(trace.graph.path_messages(turn.leaf), path.len());
                assert_eq!(json!(turn.tail), op["expect"]["tail"]);
                let turn = if fast { trace.graph.at(turn.leaf, turn.tail, tools) } else { turn };
                turns.insert(id, turn);
            }
            "commit" => {
                let turn = turns.remove(&id).unwrap();
                let response: Message = typed(&op["response"]);
                let Message::Assistant(response) = response else { panic!("a reply is an assistant message") };
                let node = trace.graph.commit(turn, response, turn_tokens(&op["tokens"])).unwrap();
                assert_eq!(node, op["expect"]["node"]);
                assert_eq!(trace.graph.nodes().len(), op["expect"]["total_nodes"]);
                trace.calls.push(ModelCall {
                    node: Some(node),
                    usage: typed(&op["usage"]),
                    finish_reason: typed(&op["finish_reason"]),
                    acp: op["acp"].as_str().map(|request_id| AcpInfo { request_id: request_id.to_owned() }),
                    ..ModelCall::default()
                });
            }
            "commit_prompt" => {
                trace.graph.commit_prompt(turns.remove(&id).unwrap()).unwrap();
                assert_eq!(trace.graph.nodes().len(), op["expect"]["total_nodes"]);
            }
            "abandon" => {
                turns.remove(&id);
            }
            "call" => trace.calls.push(ModelCall {
                usage: typed(&op["usage"]),
                error: (op["error"] == true).then(|| Fault::new(FaultClass::Provider, "refused")),
                ..ModelCall::default()
            }),
            "edges" => {
                let edges: Vec<(String, String, String)> = typed(&op["edges"]);
                trace.add_semantic_edges(&edges).unwrap();
                trace.add_semantic_edges(&edges).unwrap();
            }
            other => panic!("unknown operation {other}"),
        }
    }
    trace
}

fn floats(values: &[f32]) -> Value {
    json!(values.iter().map(|value| (f64::from(*value) * 1e6).round() / 1e6).collect::<Vec<_>>())
}

fn assert_graph(trace: &Trace, case: &Value) {
    for (node, expected) in trace.graph.nodes().iter().zip(case["nodes"].as_array().unwrap()) {
        let tokens = &node.tokens;
        assert_eq!(
            json!({
                "parent": node.parent,
                "sampled": node.sampled,
                "message": node.message,
                "tools": *node.tools,
                "semantic_parents": node.semantic_parents,
                "token_ids": tokens.ids(),
                "mask": tokens.mask().iter().collect::<Vec<_>>(),
                "is_content": tokens.is_content().iter().collect::<Vec<_>>(),
                "logprobs": floats(tokens.logprobs()),
                "routed_experts": router_value(tokens.routed_experts()),
                "sampling_mask": mask_value(tokens.sampling_mask()),
            }),
            *expected
        );
    }
    assert_eq!(trace.graph.nodes().len(), case["nodes"].as_array().unwrap().len());
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
        println!("{}", path.display());
        let case: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        for fast in [false, true] {
            let trace = replay(&case, fast);
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
