//! Cost of training samples: from a long trace to its samples, and into the message.

use std::sync::Arc;

use divan::{Bencher, black_box};
use rollhouse::{
    orchestrator::samples,
    trace::{AgentInfo, AssistantMessage, CreditStream, Message, TaskData, Trace, TraceTask, TurnTokens},
};
use serde_json::value::RawValue;

fn main() {
    divan::main();
}

/// A trace of turns with 1,000 tokens each, half of them sampled.
fn trace(turns: usize) -> Trace {
    let Ok(config) = RawValue::from_string("{}".to_owned()) else { unreachable!("the text is JSON") };
    let agent = AgentInfo { config: config.into(), runtime: None, name: "agent".to_owned(), trainable: true };
    let mut trace = Trace::new(Arc::new(TraceTask::new("Task", TaskData::default())), agent);
    let mut leaf = None;
    for turn in 0..turns {
        let start = trace.graph.path_tokens(leaf);
        let tokens = TurnTokens {
            prompt_start: start,
            prompt_ids: (0..500).collect(),
            completion_ids: (0..500).collect(),
            completion_logprobs: (0..500).map(|token| -(token as f32) / 97.0).collect(),
            message_spans: Some(vec![Some((start + 3, start + 490))]),
            bridged: start > 0,
            ..TurnTokens::default()
        };
        let next = trace.graph.at(leaf, vec![Message::user(format!("question {turn}"))], Arc::default());
        leaf = trace.graph.commit(next, AssistantMessage::default(), Some(tokens)).ok();
        if let Some(tokens) = leaf.and_then(|leaf| trace.graph.tokens_mut(leaf)) {
            let _ = tokens.set_credit(CreditStream::Advantages, Some(vec![0.5; 500]));
        }
    }
    trace
}

#[divan::bench]
fn samples_of_200_turns_and_200_000_tokens(bencher: Bencher<'_, '_>) {
    let trace = trace(200);
    bencher.bench_local(|| samples(black_box(&trace), "env").map(|samples| samples.len()));
}

#[divan::bench]
fn message_of_200_000_tokens(bencher: Bencher<'_, '_>) {
    let trace = trace(200);
    let samples = samples(&trace, "env").unwrap_or_default();
    bencher.bench_local(|| rmp_serde::to_vec(black_box(&samples)).map(|message| message.len()));
}
