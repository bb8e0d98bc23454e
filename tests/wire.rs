//! Episodes on the env-server wire: captured sessions of verifiers 0.4.0, our own deltas there, and what holds for all.
#![allow(clippy::disallowed_methods, reason = "tests prepare files and processes of their own")]

#[path = "trace_replay/dress.rs"]
mod dress;
#[path = "trace_replay/generate.rs"]
mod generate;
mod trace_replay;

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use bytes::Bytes;
use dress::{TEXTS, dress};
use generate::{Step, turns};
use proptest::{collection::vec, prelude::*};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use rollhouse::trace::{
    AgentInfo, Episode, ExpertWidth, Fault, FaultClass, Message, ParentLink, RewardScore, RouterRows, TaskData, Trace,
    TraceTask, Usage, readable_json,
    wire::{Applied, Assembly, Head, Json, Sent, TraceSummary, WireError, discard, head, read, task_data, trace_of},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use trace_replay::{empty_trace, grow, mask_value, node_values, replay, router_value, typed};

fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/verifiers/env_server")
}

fn json_file(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn decoded(frame: &[u8]) -> Value {
    read::<Json<Value>>(frame).unwrap().0
}

fn packed(value: &Value) -> Bytes {
    rmp_serde::to_vec_named(value).unwrap().into()
}

/// The frames of a trace that has not been sent: one.
fn whole(trace: &Trace, pending: &[Message]) -> Bytes {
    let mut frames = Sent::default().delta(trace, pending).unwrap();
    assert_eq!(frames.len(), 1);
    frames.remove(0)
}

/// A trace in the form of an assembled record, with its preview.
fn record(trace: &Trace, pending: &[Message]) -> Value {
    let Value::Object(mut delta) = decoded(&whole(trace, pending)) else { panic!("a delta is a map") };
    let mut record = Map::new();
    for key in ["nodes", "calls", "errors", "extra_usage", "request_rewrites", "response_rewrites", "pending"] {
        record.insert(key.to_owned(), delta.remove(key).unwrap_or_else(|| json!([])));
    }
    for key in ["open", "set"] {
        let Some(Value::Object(fields)) = delta.remove(key) else { panic!("a first delta has `{key}`") };
        record.extend(fields);
    }
    record.into()
}

fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(without_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

/// What is the same on both sides but for what this program does not keep: the nulls of typed blocks, and per-token digits
/// beyond four bytes.
fn comparable(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(data)) = map.get("data").and_then(|data| data.get("$b64")).cloned() {
                map.insert("data".to_owned(), data.into());
            }
            for (key, value) in map {
                match key.as_str() {
                    "agent" | "sampling" => without_nulls(value),
                    "logprobs" => {
                        let floats: Vec<f32> = typed(value);
                        *value = floats.into_iter().map(f64::from).map(Value::from).collect();
                    }
                    _ => comparable(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(comparable),
        _ => {}
    }
}

fn assert_same(mut ours: Value, mut theirs: Value, what: &str) {
    unmarked(&mut ours);
    comparable(&mut ours);
    comparable(&mut theirs);
    if ours != theirs {
        let (ours, theirs) = (flat(&ours), flat(&theirs));
        for (path, value) in &ours {
            assert_eq!(Some(value), theirs.get(path), "{what}: {path}");
        }
        for path in theirs.keys() {
            assert!(ours.contains_key(path), "{what}: {path} is missing");
        }
    }
}

fn flat(value: &Value) -> BTreeMap<String, Value> {
    fn walk(path: String, value: &Value, out: &mut BTreeMap<String, Value>) {
        match value {
            Value::Object(map) => map.iter().for_each(|(key, value)| walk(format!("{path}.{key}"), value, out)),
            Value::Array(items) => {
                items.iter().enumerate().for_each(|(place, value)| walk(format!("{path}[{place}]"), value, out));
            }
            value => {
                out.insert(path, value.clone());
            }
        }
    }
    let mut out = BTreeMap::new();
    walk(String::new(), value, &mut out);
    out
}

#[derive(Deserialize)]
struct Reply {
    success: bool,
    head: Head,
    traces: Vec<TraceSummary>,
}

const SESSIONS: [&str; 10] = [
    "single",
    "multi_turn",
    "tool",
    "branches",
    "length",
    "reward_raises",
    "provider_error",
    "retry_discard",
    "agent_retry",
    "train_tokens",
];

/// What a captured session sends, in order: its deltas, and the reply that ends it.
fn session(name: &str) -> (Vec<Bytes>, Reply) {
    let mut files: Vec<PathBuf> =
        fs::read_dir(vectors().join(name)).unwrap().map(|file| file.unwrap().path()).collect();
    // The payloads of what the server sent.
    files.retain(|file| file.to_string_lossy().ends_with("_s2c_2.bin"));
    files.sort();
    let mut frames: Vec<Bytes> = files.iter().map(|file| fs::read(file).unwrap().into()).collect();
    let reply = frames.pop().unwrap();
    assert!(frames.iter().all(|frame| trace_of(frame).is_some()) && trace_of(&reply).is_none(), "{name}");
    (frames, read(&reply).unwrap())
}

fn assembled(frames: &[Bytes]) -> Assembly {
    let mut assembly = Assembly::default();
    for frame in frames {
        assembly.apply(frame).unwrap();
    }
    assembly
}

#[test]
fn captured_sessions_come_to_the_records_of_verifiers() {
    for name in SESSIONS {
        let (frames, reply) = session(name);
        assert!(reply.success);
        let mut discarded = 0;
        let mut assembly = Assembly::default();
        for frame in &frames {
            let (id, discards) = trace_of(frame).unwrap();
            match assembly.apply(frame).unwrap() {
                Applied::Changed(trace, _) => assert!(trace.id == id && !discards, "{name}"),
                Applied::Discarded(trace) => {
                    assert!(trace.unwrap().id == id && discards, "{name}");
                    discarded += 1;
                }
            }
        }
        assert_eq!(discarded, usize::from(name.ends_with("retry") || name == "retry_discard"), "{name}");
        let episode = assembly.finish(reply.head, &reply.traces).unwrap();

        let expected = json_file(&vectors().join(name).join("assembled.json"));
        let mut ours = decoded(&rmp_serde::to_vec_named(&head(&episode)).unwrap());
        ours["traces"] = episode
            .traces
            .iter()
            .map(|trace| {
                let mut record = record(trace, &[]);
                record.as_object_mut().unwrap().shift_remove("pending");
                record
            })
            .collect();
        assert_same(ours, expected, name);

        // The line of the file: what the wire alone has is gone, failures say whose they are.
        let mut line = Vec::new();
        episode.write_line(&mut line).unwrap();
        let mut ours: Value = serde_json::from_slice(&line).unwrap();
        let mut expected = json_file(&vectors().join(name).join("record.json"));
        for trace in expected["traces"].as_array_mut().unwrap() {
            for node in trace["nodes"].as_array_mut().unwrap() {
                for key in ["routed_experts", "sampling_mask"] {
                    node.as_object_mut().unwrap().shift_remove(key);
                }
            }
        }
        unmarked(&mut ours);
        assert_eq!(ours, expected, "{name}");
    }
}

/// Takes our own marks from every recorded failure.
fn unmarked(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if map.contains_key("class") && map.contains_key("retryable") {
                map.shift_remove("class");
                map.shift_remove("retryable");
            }
            map.values_mut().for_each(unmarked);
        }
        Value::Array(items) => items.iter_mut().for_each(unmarked),
        _ => {}
    }
}

#[test]
fn hand_made_deltas_apply_step_by_step() {
    for unit in ["discard", "links", "prepended_errors", "preview", "routing"] {
        let folder = vectors().join("delta_units").join(unit);
        let index = json_file(&folder.join("index.json"));
        let mut assembly = Assembly::default();
        for step in index["steps"].as_array().unwrap() {
            let what = format!("{unit}: {}", step["note"]);
            for name in step["deltas"].as_array().unwrap() {
                let frame: Bytes = fs::read(folder.join(name.as_str().unwrap())).unwrap().into();
                assembly.apply(&frame).unwrap();
            }
            let expected = step["assembled"].as_object().unwrap();
            assert_eq!(assembly.trace_ids().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{what}");
            for (id, expected) in expected {
                let (trace, pending) = assembly.trace(id).unwrap();
                assert_same(record(trace, pending), expected.clone(), &what);
            }
        }
        let head: Head = read(&packed(&json!({"id": "e", "task": {"type": "Task", "data": {}}}))).unwrap();
        for case in index["finish"].as_array().unwrap() {
            let summaries: Vec<TraceSummary> = typed(&case["summaries"]);
            let finished = assembly.clone().finish(head.clone(), &summaries);
            assert_eq!(finished.is_ok(), case["accepted"] == true, "{unit}: {case}");
            match finished {
                Ok(episode) => assert_eq!(episode.traces.iter().map(TraceSummary::of).collect::<Vec<_>>(), summaries),
                Err(WireError::MissingTrace(id)) => assert!(case["error"].as_str().unwrap().ends_with(&id)),
                Err(WireError::Counts { said, .. }) => assert_eq!(said, summaries[0]),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn failures_of_verifiers_say_whose_they_are_and_whether_to_try_again() {
    for (kind, status, class, retryable) in [
        ("ProviderError", Some(400), FaultClass::Provider, false),
        ("ProviderError", Some(429), FaultClass::Provider, true),
        ("ProviderError", Some(503), FaultClass::Provider, true),
        ("ProviderError", None, FaultClass::Provider, true),
        ("SandboxError", None, FaultClass::Infrastructure, true),
        ("TunnelError", None, FaultClass::Infrastructure, true),
        ("InterceptionError", None, FaultClass::Infrastructure, true),
        ("HarnessError", None, FaultClass::Harness, false),
        ("ToolsetError", None, FaultClass::Harness, false),
        ("TaskError", None, FaultClass::Task, false),
        ("ValueError", None, FaultClass::Task, false),
    ] {
        let error = json!({"type": kind, "message": "m", "status_code": status, "traceback": null});
        let fault: Fault = read(&packed(&error)).unwrap();
        assert_eq!((fault.class, fault.retryable), (class, retryable), "{kind} {status:?}");
    }
    // Our own server says so itself.
    let fault = Fault::new(FaultClass::Provider, "m").retryable(true).with_status(Some(400));
    let mut trace = empty_trace();
    trace.record_fault(fault.clone());
    let assembly = assembled(&[whole(&trace, &[])]);
    assert_eq!(assembly.trace(&trace.id).unwrap().0.errors, [fault]);
}

/// Something that may change in a trace between two deltas.
fn touch(trace: &mut Trace, byte: u8) {
    let text = TEXTS[byte as usize % 7];
    match byte % 12 {
        0 => trace.info = json!({"note": text, "kept": {"none": null}}).as_object().unwrap().clone(),
        1 => {
            trace.rewards.insert(text.to_owned(), Some(RewardScore { score: f64::from(byte), weight: 0.5 }));
        }
        2 => {
            trace.metrics.insert("due".to_owned(), None);
        }
        3 => trace.errors.push(Fault::new(FaultClass::Task, text)),
        4 => trace.errors.insert(0, Fault::new(FaultClass::Infrastructure, "earlier")),
        5 => trace.extra_usage.push(Usage { prompt_tokens: 3, cost: Some(0.25), ..Usage::default() }),
        6 => trace.stop(text),
        7 => trace.root_reply = Some(text.to_owned()),
        8 => trace.request_rewrites.push(json!({"handler": text})),
        9 => trace.timing.agent.start = f64::from(byte),
        10 => trace.calls.push(trace_call(byte)),
        _ => {
            let nodes = trace.graph.nodes().len() as u32;
            if nodes > 0 {
                let node = u32::from(byte) % nodes;
                let link = ParentLink { node: nodes - 1, kind: format!("k{}", byte % 5) };
                trace.graph.link(&[(node, link)]).unwrap();
            }
        }
    }
}

/// A failed call with usage.
fn trace_call(byte: u8) -> rollhouse::trace::ModelCall {
    typed(&json!({"model": "m", "sampling": {"n": byte % 3}, "usage": {"prompt_tokens": byte, "completion_tokens": 2},
        "error": {"type": "ProviderError", "message": "x", "status_code": 500}}))
}

/// A trace grown turn by turn, its deltas, and what the last of them says of the token counts. `marks` decide after each
/// operation what else changes and whether a delta is cut.
fn grown(case: &Value, marks: &[u8]) -> (Trace, Vec<Bytes>, Value) {
    let mut sent = Sent::default();
    let mut frames: Vec<Bytes> = Vec::new();
    let mut counts = Map::new();
    let mut mark = marks.iter().copied().cycle();
    let mut cut = |trace: &Trace, pending: &[Message], frames: &mut Vec<Bytes>| {
        for frame in sent.delta(trace, pending).unwrap() {
            let delta = decoded(&frame);
            for (key, value) in delta["set"].as_object().into_iter().flatten() {
                if key.starts_with("num_") {
                    counts.insert(key.clone(), value.clone());
                }
            }
            frames.push(frame);
        }
    };
    let trace = grow(
        case,
        false,
        |_, _, _| (),
        |trace| {
            let byte = mark.next().unwrap();
            touch(trace, byte);
            if byte % 3 > 0 {
                let pending = [Message::user("waits"), Message::user(TEXTS[byte as usize % 7])];
                cut(trace, &pending[..byte as usize % 3], &mut frames);
            }
        },
    );
    cut(&trace, &[], &mut frames);
    let mut again = Vec::new();
    cut(&trace, &[], &mut again);
    assert!(again.is_empty(), "nothing has changed: {}", decoded(&again[0]));
    (trace, frames, counts.into())
}

/// All that a decoded trace is used for.
fn use_trace(trace: &Trace) {
    for branch in trace.branches() {
        let _ = (branch.token_counts(), branch.logprobs(), branch.routed_experts(), branch.sampling_mask());
    }
    let _ = (trace.token_counts(), trace.is_truncated(), trace.reward(), trace.last_reply().len());
    let mut episode = Episode::new(Default::default(), Arc::clone(&trace.task), None);
    episode.traces.push(trace.clone());
    episode.write_line(&mut Vec::new()).unwrap();
    whole(trace, &[]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// However a trace is cut into deltas, they come to that trace.
    #[test]
    fn any_cut_assembles_to_the_same_trace(steps in vec(any::<Step>(), 1..8), marks in vec(any::<u8>(), 1..20)) {
        let (trace, frames, counts) = grown(&turns(&steps, false), &marks);
        let mut assembly = Assembly::default();
        for frame in &frames {
            assembly.apply(frame).unwrap();
        }
        let (copy, pending) = assembly.trace(&trace.id).unwrap();
        prop_assert_eq!(pending, &[]);
        prop_assert_eq!(decoded(&whole(copy, &[])), decoded(&whole(&trace, &[])));
        prop_assert_eq!(whole(copy, &[]), whole(&trace, &[]));
        prop_assert_eq!(node_values(copy), node_values(&trace));
        let expected = trace.token_counts();
        prop_assert_eq!(counts, json!({"num_input_tokens": expected.input, "num_output_tokens": expected.output,
            "num_total_tokens": expected.total}));

        // And who relays them sends the same.
        let mut relayed = Assembly::default();
        let mut sent = Sent::default();
        let mut first = Assembly::default();
        for frame in &frames {
            if let Applied::Changed(trace, pending) = first.apply(frame).unwrap() {
                for frame in sent.delta(trace, pending).unwrap() {
                    relayed.apply(&frame).unwrap();
                }
            }
        }
        prop_assert_eq!(whole(relayed.trace(&trace.id).unwrap().0, &[]), whole(&trace, &[]));
    }

    /// Frames with wrong bytes are refused or applied, and what was applied can be used.
    #[test]
    fn broken_frames_never_panic(
        steps in vec(any::<Step>(), 1..4),
        marks in vec(any::<u8>(), 1..6),
        wrong in vec((any::<u32>(), any::<u8>(), 0..4_u8), 60),
    ) {
        let (_, frames, _) = grown(&turns(&steps, true), &marks);
        let mut assembly = Assembly::default();
        for frame in &frames {
            for (at, byte, how) in &wrong {
                let mut broken = frame.to_vec();
                let at = *at as usize % broken.len();
                match how {
                    0 => broken[at] = *byte,
                    1 => broken[at] ^= 1 << (byte % 8),
                    2 => broken.truncate(at),
                    _ => broken.insert(at, *byte),
                }
                let _ = trace_of(&broken);
                let mut copy = assembly.clone();
                if let Ok(Applied::Changed(trace, _)) = copy.apply(&broken.into()) {
                    use_trace(trace);
                }
            }
            assembly.apply(frame).unwrap();
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let mut trace = replay(&turns(&[[0; 8], [1, 1, 1, 0, 1, 1, 0, 1]], true), false, |_, _, _| ());
    trace.id = "t".to_owned();
    let first = whole(&trace, &[]);
    let nodes = trace.graph.nodes().len();
    let row = |shape: Value, dtype: &str, data: &[u8]| {
        let mut map = BTreeMap::new();
        map.insert("dtype", Field::Json(json!(dtype)));
        map.insert("shape", Field::Json(shape));
        map.insert("data", Field::Data(data.to_vec()));
        map
    };
    #[derive(serde::Serialize, Clone)]
    #[serde(untagged)]
    enum Field {
        Json(Value),
        Data(#[serde(with = "serde_bytes")] Vec<u8>),
    }
    let repair = |node: &str, row: BTreeMap<&'static str, Field>| -> Bytes {
        #[derive(serde::Serialize)]
        struct Repair<'a> {
            trace: &'a str,
            routing_repairs: BTreeMap<&'a str, BTreeMap<&'static str, Field>>,
        }
        let repair = Repair { trace: "t", routing_repairs: BTreeMap::from([(node, row)]) };
        rmp_serde::to_vec_named(&repair).unwrap().into()
    };
    let node = |parent: Value| json!({"parent": parent, "message": {"role": "user", "content": "x"}});
    let refused = [
        packed(&json!({"trace": "other", "nodes": []})),
        packed(&json!({"trace": "other", "open": {"id": "other", "task": {"type": "T", "data": {}}}})),
        packed(&json!({"trace": "other", "open": {"id": "x", "task": {"type": "T", "data": {}}},
            "set": {"agent": {"config": {}}}})),
        packed(&json!({"nodes": []})),
        packed(&json!([])),
        packed(&json!({"trace": "t", "links": {"99": [{"node": 0, "type": "x"}]}})),
        packed(&json!({"trace": "t", "links": {"-1": [{"node": 0, "type": "x"}]}})),
        packed(&json!({"trace": "t", "links": {"0": [{"node": 0, "type": "x"}], "99": []}})),
        packed(&json!({"trace": "t", "links": {"0": [{"node": 0, "type": "x"}]}, "nodes": [node(json!(nodes))]})),
        packed(&json!({"trace": "t", "nodes": [node(json!(u32::MAX))]})),
        packed(&json!({"trace": "t", "nodes": [{"message": {"role": "user"}}]})),
        packed(&json!({"trace": "t", "nodes": [{"message": {"role": "who", "content": "x"}}]})),
        packed(&json!({"trace": "t", "nodes": [{"token_ids": [1], "mask": [], "message": {"role": "assistant"}}]})),
        packed(&json!({"trace": "t", "set": {"timing": 3}, "calls": [{}]})),
        repair("99", row(json!([1, 2, 2]), "uint8", &[1; 4])),
        repair("0", row(json!([2, 2, 2]), "uint8", &[1; 8])),
        repair("0", row(json!([1, 2, 2]), "uint8", &[1; 3])),
        repair("0", row(json!([1, 4]), "uint8", &[1; 4])),
        repair("0", row(json!([1, 1, 4]), "uint8", &[1; 4])),
        repair("0", row(json!([0, u64::MAX, u64::MAX]), "uint8", &[])),
        repair("0", row(json!([1, 2, 2]), "float32", &[1; 16])),
        repair("0", row(json!([1, 2, 2]), "int32", &[255; 16])),
        [&b"\x82\xa5trace\xa1t\xa5calls\xdd\x00\x10\x00\x01"[..], &vec![0x80; (1 << 20) + 1]].concat().into(),
        // A list of four thousand million nodes that has none, and a map that goes on after its end.
        Bytes::from_static(b"\x82\xa5trace\xa1t\xa5nodes\xdd\xff\xff\xff\xff"),
        Bytes::from_static(b"\x82\xa5trace\xa1t\xa4info\xdb\xff\xff\xff\xff"),
        Bytes::from_static(b"\x81\xa5trace\xa1t\xc0"),
        Bytes::from_static(b"\x81\xa5trace\xa1t\xc4"),
        Bytes::new(),
        [&b"\x82\xa5trace\xa1t\xa3set\x81\xa4info\x81\xa1x"[..], &[0x91; 100_000], &[0xc0]].concat().into(),
        [&b"\x82\xa5trace\xa1t\xa7unknown"[..], &[0x91; 100_000], &[0xc0]].concat().into(),
    ];
    let mut assembly = assembled(&[first]);
    assert!(trace.graph.nodes()[0].tokens.routed_experts().is_some(), "the repairs would have a row to replace");
    let before = whole(assembly.trace("t").unwrap().0, &[]);
    for frame in refused {
        assert!(assembly.apply(&frame).is_err(), "{frame:?}");
        assert_eq!(assembly.trace_ids().collect::<Vec<_>>(), ["t"]);
        assert_eq!(whole(assembly.trace("t").unwrap().0, &[]), before, "{frame:?}");
    }
    // Whole numbers of any width, keys of either kind, fields of a later version.
    for frame in [
        repair("0", row(json!([1, 2, 2]), "int64", &[[7, 1, 0, 0, 0, 0, 0, 0]; 4].concat())),
        packed(&json!({"trace": "t", "links": {"1": [{"node": 0, "type": "x", "new": 1}]}, "new": {"a": [1.5]}})),
        packed(&json!({"trace": "t", "open": {"id": "t", "task": {"type": "T", "data": {}}}, "calls": [{"new": 1}]})),
    ] {
        assembly.apply(&frame).unwrap();
    }
    let (trace, _) = assembly.trace("t").unwrap();
    let rows = trace.graph.nodes()[0].tokens.routed_experts().unwrap();
    assert_eq!((rows.width, &rows.data[rows.data.len() - 8..]), (ExpertWidth::Two, &[7, 1, 7, 1, 7, 1, 7, 1][..]));
    assert_eq!(trace.graph.nodes()[1].semantic_parents.last().unwrap().kind, "x");
}

/// A frame by hand: an opened trace with something of its own in `info`.
fn with_info(info: &[u8]) -> Bytes {
    let mut frame = whole(&Trace { id: "t".to_owned(), ..empty_trace() }, &[]).to_vec();
    let at = frame.windows(6).position(|bytes| bytes == b"\xa4info\x80").unwrap();
    frame.splice(at + 5..at + 6, info.iter().copied());
    frame.into()
}

fn info_of(frame: &Bytes) -> Value {
    let assembly = assembled(std::slice::from_ref(frame));
    let (trace, _) = assembly.trace("t").unwrap();
    use_trace(trace);
    Value::Object(trace.info.clone())
}

#[test]
fn what_json_cannot_hold_costs_itself_alone() {
    // A tensor: small data as base64, large data as its length.
    let tensor = |size: u16| {
        let head = b"\x81\xa1x\x84\xb0__torch_tensor__\xc3\xa5dtype\xa5uint8\xa5shape\x91";
        let size = size.to_be_bytes();
        let data = vec![0xff; usize::from(u16::from_be_bytes(size))];
        [&head[..], &[0xcd], &size, b"\xa4data\xc5", &size, &data].concat()
    };
    assert_eq!(
        info_of(&with_info(&tensor(3))),
        json!({"x": {"__torch_tensor__": true, "dtype": "uint8", "shape": [3], "data": "////"}})
    );
    assert_eq!(info_of(&with_info(&tensor(5000)))["x"]["data"], "<5000 bytes left out>");
    // Keys that are no text, what is not finite, extensions, floats of four bytes.
    let odd = b"\x86\x01\xa1a\xff\xa1b\xc3\xcb\x7f\xf0\0\0\0\0\0\0\xc0\xd4\x05\x01\xa1f\xca\x3f\x80\0\0\xa1u\xcf\xff\xff\xff\xff\xff\xff\xff\xff";
    assert_eq!(
        info_of(&with_info(odd)),
        json!({"1": "a", "-1": "b", "true": null, "null": null, "f": 1.0, "u": u64::MAX})
    );
    // More values than anybody keeps: a byte each there, and many here.
    let many = [&b"\x81\xa1x\xdd\0\x40\0\0"[..], &[0xc0; 1 << 22]].concat();
    let error = Assembly::default().apply(&with_info(&many)).unwrap_err().to_string();
    assert!(error.contains("more than 4194304 values"), "{error}");
    // Text that is not UTF-8, wherever it stands; the tensors beside it stay what they are.
    let mut trace = replay(&turns(&[[0; 8]], true), false, |_, _, _| ());
    trace.id = "t".to_owned();
    let mut frame = whole(&trace, &[]).to_vec();
    let at = frame.windows(8).rposition(|bytes| bytes == b"\xa7content").unwrap() + 8;
    assert_eq!(&frame[at..at + 2], b"\xa1x");
    frame.splice(at..at + 2, *b"\xa4a\xff\xc3(");
    assert_eq!(trace_of(&frame), Some(("t", false)));
    let assembly = assembled(&[frame.into()]);
    let (copy, _) = assembly.trace("t").unwrap();
    assert_eq!(copy.last_reply(), "a\u{fffd}\u{fffd}(");
    let rows = |trace: &Trace| {
        trace.graph.nodes().iter().map(|node| node.tokens.routed_experts().cloned()).collect::<Vec<_>>()
    };
    assert_eq!(rows(copy), rows(&trace));
}

#[test]
fn large_tensors_stay_in_their_frame_and_small_ones_do_not_keep_it() {
    let with_rows = |positions: usize| {
        let mut trace = replay(&turns(&[[0; 8]], true), false, |_, _, _| ());
        trace.id = "t".to_owned();
        let frame = whole(&trace, &[]);
        let mut assembly = assembled(&[frame]);
        let rows = vec![7_u8; positions * 4];
        let mut delta =
            b"\x82\xa5trace\xa1t\xa5nodes\x91\x82\xa7message\x82\xa4role\xa4user\xa7content\xda\x1f\x40".to_vec();
        delta.extend_from_slice(&[b'x'; 8000]);
        delta.extend_from_slice(b"\xaerouted_experts\x83\xa5dtype\xa5uint8\xa5shape\x93\xce");
        delta.extend_from_slice(&(positions as u32).to_be_bytes());
        delta.extend_from_slice(b"\x02\x02\xa4data\xc6");
        delta.extend_from_slice(&(rows.len() as u32).to_be_bytes());
        delta.extend_from_slice(&rows);
        let frame = Bytes::from(delta);
        let inside = frame.as_ptr_range();
        assembly.apply(&frame).unwrap();
        let (trace, _) = assembly.trace("t").unwrap();
        let rows: &RouterRows = trace.graph.nodes().last().unwrap().tokens.routed_experts().unwrap();
        assert_eq!((rows.rows(), rows.width), (positions, ExpertWidth::One));
        (inside.contains(&rows.data.as_ptr()), frame.is_unique())
    };
    assert_eq!(with_rows(100_000), (true, false));
    assert_eq!(with_rows(1500), (false, true), "6 kB of 14");
    assert_eq!(with_rows(2100), (true, false), "8.4 kB of 16.5");
    assert_eq!(with_rows(4), (false, true));
}

#[test]
fn a_glance_finds_the_trace() {
    assert_eq!(trace_of(&discard("abc")), Some(("abc", true)));
    assert_eq!(trace_of(&packed(&json!({"discard": true, "trace": "abc"}))), Some(("abc", true)));
    assert_eq!(trace_of(&packed(&json!({"discard": false, "trace": "abc"}))), Some(("abc", false)));
    assert_eq!(
        trace_of(&packed(&json!({"nodes": [[1, {"a": "b"}]], "set": {}, "trace": "abc"}))),
        Some(("abc", false))
    );
    assert_eq!(trace_of(&packed(&json!({"success": true, "traces": []}))), None);
    for odd in [
        &b""[..],
        b"\x81",
        b"\x81\xa5trace",
        b"\x81\xa5trace\x01",
        b"\xdf\xff\xff\xff\xff",
        b"\xc0",
        b"\x81\xa5trace\xa1\xff",
    ] {
        assert_eq!(trace_of(odd), None, "{odd:?}");
    }
}

#[test]
fn a_row_crosses_the_wire_whole() {
    let row = r#"{"idx":3,"prompt":[{"role":"user","content":"x"}],"timeout":{"agent":2.0},"none":null,"mine":{"a":[1,null]},
        "long":123456789012345678901234567890}"#;
    let data: TaskData = serde_json::from_str(row).unwrap();
    let frame = rmp_serde::to_vec_named(&task_data(&data)).unwrap();
    let Json(back) = read::<Json<TaskData>>(&frame).unwrap();
    // Too long for msgpack: it arrives rounded.
    assert!(!data.exact.is_empty() && back.exact.is_empty());
    assert_eq!(TaskData { exact: Default::default(), ..data }, back);
    assert_eq!(decoded(&frame)["workdir"], Value::Null);
}

#[test]
fn blocks_that_change_are_sent_again_and_others_are_not() {
    let mut trace = replay(&turns(&[[0; 8]], true), false, |_, _, _| ());
    let mut sent = Sent::default();
    let mut next = |trace: &Trace, pending: &[Message]| -> Vec<Value> {
        sent.delta(trace, pending).unwrap().iter().map(|frame| decoded(frame)).collect()
    };
    let first = next(&trace, &[]);
    assert_eq!(first[0]["set"].as_object().unwrap().len(), 15);
    assert!(next(&trace, &[]).is_empty());

    let other = serde_json::value::to_raw_value(&json!({"model": "m"})).unwrap();
    trace.agent = AgentInfo { config: other.into(), runtime: None, ..trace.agent.clone() };
    trace.ok = true;
    let delta = next(&trace, &[]).remove(0);
    assert_eq!(
        delta,
        json!({"trace": trace.id, "set": {"agent": {"config": {"model": "m"}, "runtime": null,
        "name": "agent", "trainable": true}, "ok": true}})
    );
    // The same text in another place is no change.
    trace.agent.config = serde_json::value::to_raw_value(&json!({"model": "m"})).unwrap().into();
    assert!(next(&trace, &[]).is_empty());

    // A preview comes once, and goes when it is over.
    let waiting = [Message::user("go on")];
    let preview = json!([{"role": "user", "content": "go on"}]);
    assert_eq!(next(&trace, &waiting), [json!({"trace": trace.id, "pending": preview})]);
    assert!(next(&trace, &waiting).is_empty());
    assert_eq!(next(&trace, &[]), [json!({"trace": trace.id, "pending": []})]);
    next(&trace, &waiting);
    let turn = trace.graph.prepare(&waiting, Arc::default());
    trace.graph.commit_prompt(turn).unwrap();
    let delta = next(&trace, &[]).remove(0);
    assert!(delta.get("pending").is_none() && delta["nodes"][0]["message"]["content"] == "go on", "{delta}");

    // Earlier failures that come to stand in front: the trace is sent anew.
    trace.errors.push(Fault::new(FaultClass::Task, "late"));
    assert_eq!(next(&trace, &[]).len(), 1);
    trace.errors.insert(0, Fault::new(FaultClass::Task, "early"));
    let deltas = next(&trace, &[]);
    assert_eq!(deltas[0], json!({"trace": trace.id, "discard": true}));
    assert_eq!(deltas[1]["errors"].as_array().unwrap().len(), 2);
    assert_eq!(deltas[1]["set"].as_object().unwrap().len(), 15);
}

/// An episode with all that messages, tools and calls may have.
fn rich() -> Episode {
    let tools = json!([{"type": "function", "name": "f", "namespace": "n", "description": "d", "strict": true,
        "parameters": {"type": "object", "properties": {"x": {"default": null, "maximum": 1.5}}}, "vendor": {"a": [null]}}]);
    let prompt = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": "data:x"}}]},
        {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
            {"id": "1", "type": "function", "name": "f", "namespace": "n", "arguments": "{\"x\": 1}"},
            {"id": "2", "type": "custom", "name": "g", "arguments": "free"}],
            "provider_state": [{"type": "reasoning", "encrypted_content": "e", "nested": {"none": null, "list": [1, -1, 2.5]}}]},
        {"role": "tool", "tool_call_id": "1", "content": "one", "name": "f"},
        {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "two"}]},
    ]);
    let tokens = json!({"prompt_ids": [1, 2, 3, 70_000], "completion_ids": [4], "completion_logprobs": [-0.1],
        "message_spans": [[0, 1], [1, 2], null, null, [2, 3]], "mm_token_type_id_map": {"9": 1, "10": 2}});
    let reply = json!({"role": "assistant", "content": "done", "tool_calls": []});
    let case = json!({"ops": [
        {"op": "prepare", "id": "t", "prompt": prompt, "tools": tools},
        {"op": "commit", "id": "t", "response": reply, "tokens": tokens, "acp": "r1", "finish_reason": "tool_calls",
            "usage": {"prompt_tokens": 5, "completion_tokens": 1, "cached_input_tokens": 2, "reasoning_tokens": 1, "cost": 0.5}},
        {"op": "call", "error": true},
    ]});
    let mut trace = replay(&case, false, |_, _, _| ());
    trace.calls[0].sampling = typed(&json!({"temperature": 0.5, "bar": {"none": null}}));
    trace.calls[0].policy = typed(&json!({"code": "c", "paths": ["a.b"]}));
    trace.calls[1].error =
        Some(Fault { causes: vec!["a".to_owned(), "b".to_owned()], ..Fault::new(FaultClass::Provider, "x") });
    trace.verifiers.commit = Some("abc".to_owned());
    trace.response_rewrites.push(json!({"handler": "h"}));
    let runtime = json!({"type": "subprocess", "id": "x", "borrowed": true});
    trace.agent.runtime = Some(serde_json::value::to_raw_value(&runtime).unwrap().into());
    (trace.agent.name, trace.agent.trainable) = ("judge".to_owned(), false);
    trace.stop("agent_completed");
    trace.ok = true;
    let mut episode = Episode::new(Default::default(), Arc::clone(&trace.task), None);
    episode.env.name = Some("mine".to_owned());
    episode.run = typed(&json!({"type": "train", "id": "r", "name": "n",
        "work": {"type": "train", "step": 3, "policy": {"start": 1, "end": 2}}}));
    episode.errors.push(Fault::new(FaultClass::Infrastructure, "earlier attempt").with_status(Some(500)));
    episode.traces.push(trace);

    let assembly = assembled(&[whole(&episode.traces[0], &[])]);
    let head = read(&rmp_serde::to_vec_named(&head(&episode)).unwrap()).unwrap();
    let copy = assembly.finish(head, &[TraceSummary::of(&episode.traces[0])]).unwrap();
    let lines = [&episode, &copy].map(|episode| {
        let mut line = Vec::new();
        episode.write_line(&mut line).unwrap();
        String::from_utf8(line).unwrap()
    });
    assert_eq!(lines[0], lines[1]);
    assert_eq!(whole(&episode.traces[0], &[]), whole(&copy.traces[0], &[]));
    episode
}

#[test]
fn what_could_not_be_sent_is_sent_when_it_can_be() {
    let mut trace = replay(&turns(&[[0; 8]], true), false, |_, _, _| ());
    let good = Arc::clone(&trace.agent.config);
    // Valid JSON, and deeper than any reader takes.
    let deep = serde_json::value::RawValue::from_string(format!("{}{}", "[".repeat(300), "]".repeat(300))).unwrap();
    let deep: Arc<serde_json::value::RawValue> = deep.into();
    let mut sent = Sent::default();
    trace.agent.config = Arc::clone(&deep);
    assert!(matches!(sent.delta(&trace, &[]), Err(WireError::Encode(_))));
    trace.agent.config = Arc::clone(&good);
    assert_eq!(
        sent.delta(&trace, &[]).unwrap().iter().map(|frame| decoded(frame)).collect::<Vec<_>>(),
        [decoded(&whole(&trace, &[]))]
    );
    trace.agent.config = deep;
    trace.stop("late");
    assert!(sent.delta(&trace, &[]).is_err());
    trace.agent.config = good;
    let frames = sent.delta(&trace, &[]).unwrap();
    assert_eq!(trace_of(&frames[0]), Some((&*trace.id, true)));
    assert_eq!(decoded(&frames[1]), decoded(&whole(&trace, &[])));
}

#[test]
fn counts_of_a_hostile_server_do_not_overflow() {
    let mut episode = Episode::new(Default::default(), Arc::clone(&empty_trace().task), None);
    for _ in 0..2 {
        let mut trace = replay(&turns(&[[0; 8]], true), false, |_, _, _| ());
        trace.calls[0].usage = typed(&json!({"prompt_tokens": u64::MAX, "completion_tokens": u64::MAX}));
        let assembly = assembled(&[whole(&trace, &[])]);
        episode.traces.push(assembly.trace(&trace.id).unwrap().0.clone());
    }
    episode.write_line(&mut Vec::new()).unwrap();
    assert_eq!(decoded(&rmp_serde::to_vec_named(&head(&episode)).unwrap())["num_total_tokens"], u64::MAX);
}

/// What the wire alone has of a trace's nodes.
fn tensors(trace: &Trace) -> Value {
    let of_node = |node: &rollhouse::trace::Node| {
        json!([router_value(node.tokens.routed_experts()), mask_value(node.tokens.sampling_mask())])
    };
    trace.graph.nodes().iter().map(of_node).collect()
}

#[test]
fn verifiers_assembles_our_deltas_to_the_same_record() {
    #[derive(serde::Serialize)]
    struct Case {
        frames: Vec<serde_bytes::ByteBuf>,
        #[serde(with = "serde_bytes")]
        head: Vec<u8>,
        traces: Vec<TraceSummary>,
    }
    let python = env::var("ROLLHOUSE_TEST_PYTHON")
        .expect("ROLLHOUSE_TEST_PYTHON is not set: run the tests with tests/run, which sets up the Python peers");
    let mut random = StdRng::seed_from_u64(11);
    let mut cases = Vec::new();
    let mut episodes = Vec::new();
    let mut add = |episode: Episode, frames: Vec<Bytes>| {
        cases.push(Case {
            frames: frames.into_iter().map(|frame| serde_bytes::ByteBuf::from(frame.to_vec())).collect(),
            head: rmp_serde::to_vec_named(&head(&episode)).unwrap(),
            traces: episode.traces.iter().map(TraceSummary::of).collect(),
        });
        episodes.push(episode);
    };
    for case in 0..120 {
        let steps: Vec<Step> = (0..random.random_range(1..8)).map(|_| random.random()).collect();
        let case_turns = turns(&steps, case % 3 == 0);
        if case % 2 == 0 {
            // All at once, with something in every field.
            let episode = dress(&mut random, replay(&case_turns, false, |_, _, _| ()));
            let frames = vec![whole(&episode.traces[0], &[])];
            add(episode, frames);
        } else {
            let marks: Vec<u8> = (0..9).map(|_| random.random()).collect();
            let (trace, mut frames, _) = grown(&case_turns, &marks);
            let (other, more, _) = grown(&turns(&steps[..1], true), &marks[..3]);
            frames.extend(more);
            let mut episode = Episode::new(Default::default(), Arc::clone(&trace.task), None);
            episode.traces = vec![trace, other];
            add(episode, frames);
        }
    }
    let episode = rich();
    let frames = vec![whole(&episode.traces[0], &[])];
    add(episode, frames);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("cases.msgpack"), rmp_serde::to_vec_named(&cases).unwrap()).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/wire_peer.py");
    let status = Command::new(&python).arg(script).arg(folder.path()).status().unwrap();
    assert!(status.success(), "{script} failed under {python}");

    let theirs = fs::read(folder.path().join("theirs/traces.jsonl")).unwrap();
    let theirs: Vec<&[u8]> = theirs.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
    assert_eq!(theirs.len(), episodes.len());
    let their_tensors = json_file(&folder.path().join("tensors.json"));
    for ((episode, line), their_tensors) in episodes.iter().zip(theirs).zip(their_tensors.as_array().unwrap()) {
        let mut ours = Vec::new();
        episode.write_line(&mut ours).unwrap();
        let mut values: Vec<Value> =
            [&ours[..], line].iter().map(|line| serde_json::from_str(&readable_json(line)).unwrap()).collect();
        for value in &mut values {
            unmarked(value);
            comparable(value);
            for trace in value["traces"].as_array_mut().unwrap() {
                // They complete the seat's config.
                trace["agent"]["config"] = Value::Null;
            }
            rounded(value);
        }
        assert_eq!(flat(&values[0]), flat(&values[1]));
        assert_eq!(episode.traces.iter().map(tensors).collect::<Value>(), *their_tensors);
    }
}

/// Numbers too long for 64 bits cross the wire rounded.
fn rounded(episode: &mut Value) {
    for task in std::iter::once("/task/data/long".to_owned())
        .chain((0..2).map(|trace| format!("/traces/{trace}/task/data/long")))
    {
        if let Some(long) = episode.pointer_mut(&task) {
            *long = long.as_array().unwrap().iter().map(|number| json!(number.as_f64())).collect();
        }
    }
}

#[test]
fn a_task_is_kept_once() {
    let trace = empty_trace();
    let mut episode = Episode::new(Default::default(), Arc::new(TraceTask::new("Task", TaskData::default())), None);
    episode.traces.push(trace);
    let assembly = assembled(&[whole(&episode.traces[0], &[])]);
    let head: Head = read(&rmp_serde::to_vec_named(&head(&episode)).unwrap()).unwrap();
    let episode = assembly.finish(head, &[TraceSummary::of(&episode.traces[0])]).unwrap();
    assert!(Arc::ptr_eq(&episode.task, &episode.traces[0].task));
}
