//! Replays recorded or generated turns on a trace.

use std::{collections::HashMap, sync::Arc};

use rollhouse::trace::{
    AcpInfo, AgentInfo, ExpertWidth, Fault, FaultClass, Message, ModelCall, Node, RouterRows, SamplingMask, TaskData,
    Tool, Trace, TraceTask, Turn, TurnTokens,
};
use serde_json::{Value, json, value::RawValue};

pub(crate) fn typed<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

pub(crate) fn empty_trace() -> Trace {
    let config = RawValue::from_string("{}".to_owned()).unwrap();
    let agent = AgentInfo { config: config.into(), runtime: None, name: "agent".to_owned(), trainable: true };
    Trace::new(Arc::new(TraceTask::new("Task", TaskData::default())), agent)
}

/// Router numbers of the vectors as rows: `[positions][layers][choices]`.
pub(crate) fn router_rows(rows: &Value) -> RouterRows {
    let rows: Vec<Vec<Vec<u8>>> = typed(rows);
    RouterRows {
        layers: rows[0].len(),
        top_k: rows[0][0].len(),
        width: ExpertWidth::One,
        data: rows.into_iter().flatten().flatten().collect::<Vec<u8>>().into(),
    }
}

pub(crate) fn router_value(rows: Option<&RouterRows>) -> Value {
    let Some(rows) = rows else { return Value::Null };
    let layer = |layer: &[u8]| json!(layer);
    let row = |row: &[u8]| row.chunks(rows.top_k).map(layer).collect::<Value>();
    rows.data.chunks(rows.layers * rows.top_k).map(row).collect()
}

pub(crate) fn mask_value(mask: Option<&SamplingMask>) -> Value {
    mask.map_or(
        Value::Null,
        |mask| json!({"ids": mask.ids().collect::<Vec<_>>(), "counts": mask.counts().collect::<Vec<_>>()}),
    )
}

pub(crate) fn turn_tokens(tokens: &Value) -> Option<TurnTokens> {
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

/// Replays the operations of one case and shows each prepared turn to `expect`; `fast` commits through the leaf where the prompt allows it.
pub(crate) fn replay(case: &Value, fast: bool, expect: impl Fn(&Trace, &Turn, &Value)) -> Trace {
    grow(case, fast, expect, |_| ())
}

/// The same, and shows the trace after each operation.
pub(crate) fn grow(
    case: &Value,
    fast: bool,
    expect: impl Fn(&Trace, &Turn, &Value),
    mut each: impl FnMut(&mut Trace),
) -> Trace {
    let mut trace = empty_trace();
    let mut turns: HashMap<String, Turn> = HashMap::new();
    for op in case["ops"].as_array().unwrap() {
        let id = op["id"].as_str().unwrap_or_default().to_owned();
        match op["op"].as_str().unwrap() {
            "prepare" => {
                let tools: Arc<[Tool]> = typed::<Vec<Tool>>(&op["tools"]).into();
                let prompt: Vec<Message> = typed(&op["prompt"]);
                let turn = trace.graph.prepare(&prompt, Arc::clone(&tools));
                expect(&trace, &turn, &op["expect"]);
                let turn = if fast { trace.graph.at(turn.leaf, turn.tail, tools) } else { turn };
                turns.insert(id, turn);
            }
            "commit" => {
                let turn = turns.remove(&id).unwrap();
                let response: Message = typed(&op["response"]);
                let Message::Assistant(response) = response else { panic!("a reply is an assistant message") };
                let node = trace.graph.commit(turn, response, turn_tokens(&op["tokens"])).unwrap();
                assert_eq!(node as usize + 1, trace.graph.nodes().len());
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
        each(&mut trace);
    }
    trace
}

pub(crate) fn floats(values: &[f32]) -> Value {
    json!(values.iter().map(|value| (f64::from(*value) * 1e6).round() / 1e6).collect::<Vec<_>>())
}

/// The nodes in the form of the vectors.
pub(crate) fn node_values(trace: &Trace) -> Value {
    let value = |node: &Node| {
        let tokens = &node.tokens;
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
        })
    };
    trace.graph.nodes().iter().map(value).collect()
}
