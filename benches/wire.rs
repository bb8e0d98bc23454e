//! Costs of the env-server wire: cutting and applying the delta of a turn, whole traces, and large tensors.

use std::sync::Arc;

use bytes::Bytes;
use divan::{Bencher, black_box, counter::BytesCount};
use rollhouse::trace::{
    AgentInfo, AssistantMessage, ExpertWidth, Message, ModelCall, RouterRows, TaskData, Trace, TraceTask, TurnTokens,
    Usage,
    wire::{Assembly, Sent, trace_of},
};
use serde_json::value::RawValue;

fn main() {
    divan::main();
}

fn empty() -> Trace {
    let Ok(config) = RawValue::from_string(r#"{"model":"m","harness":{"id":"null"}}"#.to_owned()) else {
        unreachable!("the text is JSON")
    };
    let agent = AgentInfo { config: config.into(), runtime: None, name: "agent".to_owned(), trainable: true };
    Trace::new(Arc::new(TraceTask::new("Task", TaskData::default())), agent)
}

/// Adds a turn: 50 tokens of the user's, then the model's; with router rows of so many bytes a token, if any.
fn add_turn(trace: &mut Trace, leaf: Option<u32>, sampled: usize, routed: usize) -> Option<u32> {
    let start = trace.graph.path_tokens(leaf);
    let rows = |data: Vec<u8>| RouterRows { data: data.into(), width: ExpertWidth::One, layers: routed / 8, top_k: 8 };
    let tokens = TurnTokens {
        prompt_start: start,
        prompt_ids: (0..50).collect(),
        completion_ids: (0..sampled as u32).map(|token| token * 37 % 150_000).collect(),
        completion_logprobs: (0..sampled).map(|token| -(token as f32) / 97.0).collect(),
        message_spans: Some(vec![Some((start + 3, start + 45))]),
        routed_experts: (routed > 0).then(|| (rows(vec![7; (50 + sampled) * routed]), start)),
        ..TurnTokens::default()
    };
    let turn = trace.graph.at(leaf, vec![Message::user(format!("question {start}"))], Arc::default());
    let reply = AssistantMessage { content: Some("word".repeat(sampled)), ..AssistantMessage::default() };
    let node = trace.graph.commit(turn, reply, Some(tokens)).ok();
    let usage = Usage { prompt_tokens: start as u64 + 50, completion_tokens: sampled as u64, ..Usage::default() };
    trace.calls.push(ModelCall { node, usage: Some(usage), ..ModelCall::default() });
    node
}

fn conversation(turns: usize, sampled: usize, routed: usize) -> (Trace, Option<u32>) {
    let mut trace = empty();
    let mut leaf = None;
    for _ in 0..turns {
        leaf = add_turn(&mut trace, leaf, sampled, routed);
    }
    (trace, leaf)
}

fn delta(sent: &mut Sent, trace: &Trace) -> Vec<Bytes> {
    sent.delta(trace, &[]).unwrap_or_default()
}

fn applied(frames: &[Bytes]) -> Assembly {
    let mut assembly = Assembly::default();
    for frame in frames {
        assert!(assembly.apply(frame).is_ok());
    }
    assembly
}

/// The delta of one turn of 100 tokens at the end of a short and of a long conversation.
#[divan::bench(args = [10, 1000, 10_000])]
fn cut_a_turn(bencher: Bencher<'_, '_>, turns: usize) {
    let (trace, leaf) = conversation(turns, 100, 0);
    let mut sent = Sent::default();
    delta(&mut sent, &trace);
    // The conversation grows by the turns measured.
    let state = std::cell::RefCell::new((trace, leaf, sent));
    bencher
        .with_inputs(|| {
            let (trace, leaf, _) = &mut *state.borrow_mut();
            *leaf = add_turn(trace, *leaf, 100, 0);
        })
        .bench_local_values(|()| {
            let (trace, _, sent) = &mut *state.borrow_mut();
            delta(sent, trace)
        });
}

/// What a trigger costs when nothing has changed.
#[divan::bench(args = [10, 10_000])]
fn find_nothing_new(bencher: Bencher<'_, '_>, turns: usize) {
    let (trace, _) = conversation(turns, 100, 0);
    let mut sent = Sent::default();
    delta(&mut sent, &trace);
    bencher.bench_local(|| delta(&mut sent, black_box(&trace)));
}

/// The same turn on the other side.
#[divan::bench(args = [10, 1000, 10_000])]
fn apply_a_turn(bencher: Bencher<'_, '_>, turns: usize) {
    let (mut trace, leaf) = conversation(turns, 100, 0);
    let mut sent = Sent::default();
    let assembly = std::cell::RefCell::new(applied(&delta(&mut sent, &trace)));
    let state = std::cell::RefCell::new((leaf, sent));
    bencher
        .with_inputs(|| {
            let (leaf, sent) = &mut *state.borrow_mut();
            *leaf = add_turn(&mut trace, *leaf, 100, 0);
            delta(sent, &trace).remove(0)
        })
        .bench_local_values(|frame| assert!(assembly.borrow_mut().apply(&frame).is_ok()));
}

/// A trace of 10 MB in 4,000 nodes, and one of 100 MB of router rows in one turn.
const LARGE: [(usize, usize, usize); 2] = [(2000, 500, 0), (1, 260_000, 400)];

#[divan::bench(args = LARGE)]
fn cut_a_whole_trace(bencher: Bencher<'_, '_>, (turns, sampled, routed): (usize, usize, usize)) {
    let (trace, _) = conversation(turns, sampled, routed);
    let size: usize = delta(&mut Sent::default(), &trace).iter().map(Bytes::len).sum();
    bencher.counter(BytesCount::new(size)).bench_local(|| delta(&mut Sent::default(), black_box(&trace)));
}

#[divan::bench(args = LARGE)]
fn apply_a_whole_trace(bencher: Bencher<'_, '_>, (turns, sampled, routed): (usize, usize, usize)) {
    let frames = delta(&mut Sent::default(), &conversation(turns, sampled, routed).0);
    let size: usize = frames.iter().map(Bytes::len).sum();
    bencher.counter(BytesCount::new(size)).bench_local(|| applied(black_box(&frames)));
}

#[divan::bench(args = LARGE)]
fn glance_at_a_whole_trace(bencher: Bencher<'_, '_>, (turns, sampled, routed): (usize, usize, usize)) {
    let frames = delta(&mut Sent::default(), &conversation(turns, sampled, routed).0);
    bencher.bench_local(|| trace_of(black_box(&frames[0])).is_some());
}
