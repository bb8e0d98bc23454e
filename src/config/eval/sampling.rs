//! The block of sampling fields.

use serde_json::{Map, Value};

use crate::config::{
    Section, nearest,
    node::{Content, Node, Table},
};

/// Fields of chat completions that servers are known to take (OpenAI, vLLM 0.32, SGLang, llama.cpp). Any other is sent too; one
/// that is nearly spelled like these is most likely a slip.
const FIELDS: &[&str] = &[
    "allowed_token_ids",
    "bad_words",
    "cache_salt",
    "chat_template_kwargs",
    "frequency_penalty",
    "ignore_eos",
    "include_stop_str_in_output",
    "length_penalty",
    "logit_bias",
    "logprobs",
    "max_tokens",
    "metadata",
    "min_p",
    "min_tokens",
    "n",
    "parallel_tool_calls",
    "presence_penalty",
    "priority",
    "prompt_logprobs",
    "reasoning",
    "reasoning_effort",
    "repetition_penalty",
    "response_format",
    "return_token_ids",
    "seed",
    "service_tier",
    "skip_special_tokens",
    "stop",
    "stop_token_ids",
    "structured_outputs",
    "temperature",
    "thinking",
    "top_k",
    "top_logprobs",
    "top_p",
    "truncate_prompt_tokens",
    "user",
    "verbosity",
];

/// Reads the block `sampling` of something that samples for itself, such as a judge: the fields given, nulls left out.
pub fn read_sampling(parent: &mut Section<'_>) -> Map<String, Value> {
    let mut sampling = Map::new();
    lay_sampling(&mut parent.child("sampling"), false, &mut sampling);
    sampling.retain(|_, value| !value.is_null());
    sampling
}

/// Lays the sampling fields of a block over those of the run: `extra_body` hoisted, `max_completion_tokens` renamed. A
/// null clears a field. The run's block shows its known fields even when they are not given (`whole`).
pub(super) fn lay_sampling(block: &mut Section<'_>, whole: bool, sampling: &mut Map<String, Value>) {
    let table = hoisted(block, whole);
    let (path, at, steps) = (block.path.clone(), block.at.clone(), block.steps.clone());
    let mut plain = Section { record: &mut *block.record, table: Some(&table), path, at, steps, doc: "" };
    if whole || table.contains_key("temperature") {
        plain.doc("Sampling temperature").limit_in("temperature", 0.0.., None::<f64>);
    }
    if whole || table.contains_key("top_p") {
        plain.doc("Nucleus sampling").limit_in("top_p", 0.0..=1.0, None::<f64>);
    }
    if whole || table.contains_key("reasoning_effort") {
        plain.doc("Reasoning effort, in the endpoint's words").get::<String>("reasoning_effort");
    }
    if whole || table.contains_key("max_tokens") {
        plain.doc("Sampled tokens of one call").limit_in("max_tokens", 1.., None::<u64>);
    }
    plain.doc("Any other field of the request, such as sampling.top_k").rest();
    for key in table.keys() {
        if !FIELDS.contains(&key.as_str())
            && let Some(near) = nearest(key, FIELDS.iter().copied()).first()
        {
            plain.warn(key, format!("no field that rollhouse knows; it is sent as it is. Did you mean `{near}`?"));
        }
        let value = plain.record.keys.get(&plain.dotted(key)).map_or(Value::Null, |known| known.value.clone());
        sampling.insert(key.clone(), value);
    }
}

/// The block's fields in plain form. A field that is given for itself wins over the hoisted or renamed one.
fn hoisted(block: &mut Section<'_>, whole: bool) -> Table {
    // Known, and not shown: the fields that they stand for are.
    for key in ["extra_body", "max_completion_tokens"] {
        if whole || block.has(key) {
            if key == "extra_body" {
                block.doc("Fields that are taken as if they stood beside it").open(key);
            } else {
                block.doc("The same as max_tokens").get::<u64>(key);
            }
            block.record.hide(&block.dotted(key));
        }
    }
    let mut table = block.table.cloned().unwrap_or_default();
    let offer = |table: &mut Table, key: String, node: Node| {
        if table.get(&key).is_none_or(Node::is_null) {
            table.insert(key, node);
        }
    };
    // Another type than a table is a fault of `open`.
    if let Some(Node { content: Content::Table(fields), .. }) = table.shift_remove("extra_body") {
        for (key, node) in fields {
            offer(&mut table, key, node);
        }
    }
    if let Some(limit) = table.shift_remove("max_completion_tokens") {
        offer(&mut table, "max_tokens".to_owned(), limit);
    }
    table
}
