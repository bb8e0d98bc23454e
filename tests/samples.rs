//! Traces as training samples, against recorded data of prime-rl, and the promise that holds for every graph.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod trace_replay;

use std::{fs, path::PathBuf, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use indexmap::IndexMap;
use proptest::prelude::*;
use rollhouse::{
    orchestrator::{Routing, SampleError, StackedTensor, TrainingSample, prepare, samples},
    trace::{AssistantMessage, CreditStream, ExpertWidth, Graph, Message, Node, RouterRows, Tensor, Trace, TurnTokens},
};
use serde_json::{Value, json};
use trace_replay::{empty_trace, typed};

fn vectors(folder: &str) -> Vec<(String, Value)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/prime_rl").join(folder);
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    let name = |file: &PathBuf| file.file_stem().unwrap().to_str().unwrap().to_owned();
    files.iter().map(|file| (name(file), serde_json::from_slice(&fs::read(file).unwrap()).unwrap())).collect()
}

fn bytes(text: &Value) -> Bytes {
    STANDARD.decode(text.get("b64").unwrap_or(text).as_str().unwrap()).unwrap().into()
}

fn rows(value: &Value) -> RouterRows {
    let shape: Vec<usize> = typed(&value["shape"]);
    let width = if value["dtype"] == "uint8" { ExpertWidth::One } else { ExpertWidth::Two };
    RouterRows { data: bytes(&value["data"]), width, layers: shape[1], top_k: shape[2] }
}

fn tensor(value: &Value) -> Tensor {
    Tensor { dtype: typed(&value["dtype"]), shape: typed(&value["shape"]), data: bytes(&value["data"]) }
}

fn stacked(value: &Value) -> StackedTensor {
    let Tensor { dtype, shape, data } = tensor(value);
    StackedTensor { dtype, shape, parts: vec![data] }
}

/// The trace of a vector: its nodes as a line of a journal has them, and what only the wire carries set afterwards.
fn trace_of(case: &Value) -> Result<Trace, serde_json::Error> {
    let mut value = serde_json::to_value(empty_trace()).unwrap();
    let mut nodes = case["trace"]["nodes"].clone();
    for node in nodes.as_array_mut().unwrap() {
        let node = node.as_object_mut().unwrap();
        node["message"]["content"] = json!("");
        if node["message"]["role"] == "tool" {
            node["message"]["tool_call_id"] = json!("call");
        }
        node.remove("routed_experts");
        node.remove("multi_modal_data");
    }
    value["nodes"] = nodes;
    if case["mm_token_type_ids_mapping"].is_object() {
        value["mm_token_type_id_map"] = case["mm_token_type_ids_mapping"].clone();
    }
    let mut trace: Trace = serde_json::from_str(&value.to_string())?;
    for (position, node) in case["trace"]["nodes"].as_array().unwrap().iter().enumerate() {
        let tokens = trace.graph.tokens_mut(position as u32).unwrap();
        if node["routed_experts"].is_object() {
            tokens.set_routed_experts(Some(rows(&node["routed_experts"])));
        }
        if let Some(images) = node["multi_modal_data"]["mm_items"]["image"].as_array() {
            let image = |image: &Value| {
                image.as_object().unwrap().iter().map(|(name, value)| (name.clone(), tensor(value))).collect()
            };
            tokens.set_images(images.iter().map(image).collect());
        }
    }
    Ok(trace)
}

fn sample_of(value: &Value) -> TrainingSample {
    let field = |name: &str| Some(&value[name]).filter(|value| !value.is_null());
    let tensors = |value: &Value| -> IndexMap<String, StackedTensor> {
        value.as_object().unwrap().iter().map(|(name, value)| (name.clone(), stacked(value))).collect()
    };
    TrainingSample {
        token_ids: typed(&value["token_ids"]),
        mask: typed(&value["mask"]),
        logprobs: typed(&value["logprobs"]),
        temperatures: typed(&value["temperatures"]),
        env_name: typed(&value["env_name"]),
        ref_logprobs: field("ref_logprobs").map(typed),
        mm_kwargs: field("mm_kwargs").map(tensors),
        routed_experts: field("routed_experts").map(|value| Routing { parts: vec![rows(value)] }),
        mm_token_type_ids: field("mm_token_type_ids").map(typed),
        rl_weights: field("rl_weights").map(typed),
        ce_weights: field("ce_weights").map(typed),
        ref_kl_weights: field("ref_kl_weights").map(typed),
        advantages: field("advantages").map(typed),
    }
}

/// Arrays that do not fit their node: prime-rl fills or cuts them where it does not raise; here no trace holds them.
const REFUSED: [&str; 4] =
    ["15_short_logprobs", "16_long_logprobs", "18_empty_advantages_list", "25_loss_weights_misaligned"];

#[test]
fn samples_are_those_of_the_vectors() {
    let cases = vectors("samples");
    assert_eq!(cases.len(), 32);
    for (name, case) in cases {
        let trace = trace_of(&case);
        if REFUSED.contains(&name.as_str()) {
            let error = trace.err().unwrap_or_else(|| panic!("{name} was read")).to_string();
            assert!(["logprobs", "advantages", "loss_weights"].iter().any(|what| error.contains(what)), "{error}");
            continue;
        }
        let ours = samples(&trace.unwrap_or_else(|error| panic!("{name}: {error}")), "env").unwrap();
        // The messages compare what goes out: 13 fields, pieces put together.
        let encoded: Vec<Vec<u8>> = ours.iter().map(|sample| rmp_serde::to_vec(sample).unwrap()).collect();
        let expected: Vec<TrainingSample> = case["samples"].as_array().unwrap().iter().map(sample_of).collect();
        let theirs: Vec<Vec<u8>> = expected.iter().map(|sample| rmp_serde::to_vec(sample).unwrap()).collect();
        assert_eq!(encoded, theirs, "{name}: {ours:?} is not {expected:?}");
        assert!(encoded.iter().all(|sample| sample[0] == 0x9d), "{name}: an array of 13");
    }
}

#[test]
fn a_prepared_sample_is_the_micro_batch_of_the_vectors() {
    let mut proved = Vec::new();
    for (name, case) in vectors("micro_batch") {
        let [sample] = &case["samples"].as_array().unwrap()[..] else { continue };
        // A vector that is padded, or whose numbers are signed, is another thing.
        if case["pad_to_multiple_of"] != 1 || case["ranks"].as_array().unwrap().len() != 1 {
            continue;
        }
        let file = format!("{}/tests/vectors/prime_rl/micro_batch/{name}.bin", env!("CARGO_MANIFEST_DIR"));
        let prepared = prepare(sample_of(sample), typed(&case["seq_len"])).unwrap();
        let ours = rmp_serde::to_vec(&[prepared]).unwrap();
        // Router numbers are never negative here, so two bytes of them are named without a sign.
        let theirs = fs::read(file).unwrap();
        let named = |text: &[u8]| String::from_utf8_lossy(text).replace("\u{a5}int16", "\u{a6}uint16");
        if name.contains("i16") {
            let signed = b"\xa5int16";
            let at = theirs.windows(signed.len()).position(|bytes| bytes == signed).unwrap();
            assert_eq!(ours, [&theirs[..at], b"\xa6uint16", &theirs[at + signed.len()..]].concat(), "{name}");
        } else {
            assert_eq!(ours, theirs, "{name}: {}", named(&ours));
        }
        proved.push(name);
    }
    assert!(proved.contains(&"mm_truncated".to_owned()), "{proved:?}");
    assert!(proved.contains(&"mm_truncated_no_image".to_owned()), "{proved:?}");
}

fn plain(tokens: usize) -> TrainingSample {
    sample_of(&json!({
        "token_ids": vec![7; tokens], "mask": vec![true; tokens], "logprobs": vec![-0.5; tokens],
        "temperatures": vec![1.0; tokens], "env_name": "env", "advantages": vec![1.0; tokens],
    }))
}

#[test]
fn what_cannot_be_trained_is_refused() {
    assert!(prepare(plain(3), 2).is_ok());
    let refused = |change: fn(&mut TrainingSample)| {
        let mut sample = plain(3);
        change(&mut sample);
        prepare(sample, 8).unwrap_err()
    };
    assert_eq!(refused(|sample| sample.env_name = "all".to_owned()), SampleError::ReservedName);
    assert_eq!(refused(|sample| sample.advantages = None), SampleError::NoAdvantages);
    let short = SampleError::Length { what: "temperatures", expected: 3, got: 2 };
    assert_eq!(refused(|sample| sample.temperatures.truncate(2)), short);
    let short = SampleError::Length { what: "mm_token_type_ids", expected: 3, got: 1 };
    assert_eq!(refused(|sample| sample.mm_token_type_ids = Some(vec![0])), short);
    let unweighted = |sample: &mut TrainingSample| {
        sample.advantages = None;
        sample.rl_weights = Some(vec![0.0; 3]);
    };
    let mut sample = plain(3);
    unweighted(&mut sample);
    assert_eq!(prepare(sample, 8).unwrap().advantages, [0.0; 3], "no token is trained by reinforcement");
}

#[test]
fn router_rows_stay_where_they_are() {
    let (_, case) = vectors("samples").into_iter().find(|(name, _)| name == "27_routed_experts").unwrap();
    let trace = trace_of(&case).unwrap();
    let sample = samples(&trace, "env").unwrap().remove(0);
    let nodes = trace.graph.nodes().iter().filter_map(|node| node.tokens.routed_experts());
    for (held, part) in nodes.zip(&sample.routed_experts.unwrap().parts) {
        assert_eq!(held.data.as_ptr(), part.data.as_ptr());
    }
}

/// One call: which earlier reply it goes on from (if any), how many ids its message takes, and how many are sampled.
type Call = (Option<prop::sample::Index>, usize, usize);

/// Every id is another number, so that a token tells where it came from.
fn grow(calls: &[Call]) -> (Graph, Vec<(u32, Vec<u32>)>) {
    let mut graph = Graph::default();
    let mut ends: Vec<(u32, Vec<u32>)> = Vec::new();
    let mut next = 0..u32::MAX;
    for (number, (from, asked, sampled)) in calls.iter().enumerate() {
        let from = from.as_ref().filter(|_| !ends.is_empty()).map(|index| index.get(&ends).clone());
        let leaf = from.as_ref().map(|(leaf, _)| *leaf);
        let mut ids = from.map(|(_, ids)| ids).unwrap_or_default();
        let start = ids.len();
        let prompt: Vec<u32> = next.by_ref().take(asked + 2).collect();
        let completion: Vec<u32> = next.by_ref().take(*sampled).collect();
        ids.extend(prompt.iter().chain(&completion));
        let tokens = TurnTokens {
            prompt_start: start,
            prompt_ids: prompt,
            completion_logprobs: completion.iter().map(|id| -(*id as f32)).collect(),
            completion_ids: completion,
            message_spans: Some(vec![Some((start + 1, start + 1 + asked))]),
            bridged: start > 0,
            ..TurnTokens::default()
        };
        let turn = graph.at(leaf, vec![Message::user(format!("question {number}"))], Arc::default());
        let reply = AssistantMessage { content: Some(format!("answer {number}")), ..AssistantMessage::default() };
        let node = graph.commit(turn, reply, Some(tokens)).unwrap();
        ends.push((node, ids));
    }
    (graph, ends)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn each_sampled_token_is_trained_once(
        calls in prop::collection::vec((prop::option::weighted(0.8, any::<prop::sample::Index>()), 0..6_usize, 0..6_usize), 1..24)
    ) {
        let (graph, ends) = grow(&calls);
        let mut trace = empty_trace();
        trace.graph = graph;
        let leaves = trace.graph.leaves();
        for (node, ids) in &ends {
            let path = trace.graph.path(*node);
            let joined: Vec<u32> =
                path.iter().flat_map(|node| trace.graph.nodes()[*node as usize].tokens.ids().to_vec()).collect();
            prop_assert_eq!(&joined, ids, "a path is prompt and completion of its call");
        }
        let sampled: Vec<u32> = trace.graph.nodes().iter().flat_map(sampled_ids).collect();
        for node in 0..trace.graph.nodes().len() as u32 {
            let tokens = trace.graph.tokens_mut(node).unwrap();
            let credit = tokens.logprobs().iter().map(|logprob| logprob * 2.0).collect();
            tokens.set_credit(CreditStream::Advantages, Some(credit)).unwrap();
        }
        let samples = samples(&trace, "env").unwrap();
        let mut trained: Vec<u32> = Vec::new();
        for sample in &samples {
            prop_assert!(ends.iter().any(|(node, ids)| leaves.contains(node) && *ids == sample.token_ids));
            prop_assert_eq!(sample.mask.len(), sample.token_ids.len());
            prop_assert_eq!(sample.logprobs.len(), sample.token_ids.len());
            let advantages = sample.advantages.as_ref().unwrap();
            for (position, id) in sample.token_ids.iter().enumerate() {
                let expected = if sampled.contains(id) { -(*id as f32) } else { 0.0 };
                prop_assert_eq!(sample.logprobs[position], expected, "the logprob of its own token");
                prop_assert_eq!(advantages[position], expected * 2.0);
                prop_assert!(!sample.mask[position] || sampled.contains(id), "only what was sampled is trained");
            }
            trained.extend(sample.token_ids.iter().zip(&sample.mask).filter(|(_, mask)| **mask).map(|(id, _)| *id));
        }
        trained.sort_unstable();
        prop_assert_eq!(trained, sampled, "each once, none left out");
    }
}

fn sampled_ids(node: &Node) -> Vec<u32> {
    node.tokens.ids().iter().zip(node.tokens.mask().iter()).filter(|(_, sampled)| *sampled).map(|(id, _)| *id).collect()
}
