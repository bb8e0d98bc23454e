//! What finished rollouts cost in memory while they are held: traces with ids, masks and logprobs for every token.
//!
//!     cargo bench --bench held [-- ROLLOUTS [TOKENS_EACH]]
//!
//! By default 100 rollouts of 120,000 tokens. Prints one line of JSON: MB for each, and what 4,000 would take, by the
//! growth of the resident set and by the peak of the process.
#![allow(clippy::print_stdout, reason = "a measuring program of its own")]

use std::sync::Arc;

use nix::sys::resource::{UsageWho, getrusage};
use rollhouse::trace::{
    AgentInfo, AssistantMessage, FinishReason, Message, ModelCall, TaskData, Trace, TraceTask, TurnTokens, Usage,
};
use serde_json::{json, value::RawValue};

/// Tokens of a turn: the user's or a tool's, then the model's.
const PROMPT: usize = 400;
const SAMPLED: usize = 600;

fn main() {
    let arguments: Vec<usize> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let rollouts = arguments.first().copied().unwrap_or(100);
    let tokens = arguments.get(1).copied().unwrap_or(120_000);
    let before = resident();
    let held: Vec<Trace> = (0..rollouts).map(|number| rollout(number, tokens)).collect();
    let grown = (resident() - before) / 1e6;
    let peak = getrusage(UsageWho::RUSAGE_SELF).unwrap().max_rss() as f64 * 1024.0 / 1e6;
    let ids: usize =
        held.iter().map(|trace| trace.graph.nodes().iter().map(|node| node.tokens.ids().len()).sum::<usize>()).sum();
    assert_eq!(ids, rollouts * tokens.div_ceil(PROMPT + SAMPLED) * (PROMPT + SAMPLED));
    let each = grown / rollouts as f64;
    let figures =
        json!({ "rollouts": rollouts, "tokens": ids, "mb_each": each, "gb_for_4000": each * 4.0, "peak_mb": peak });
    println!("{figures}");
}

/// A rollout of many turns, its texts of four characters a token.
fn rollout(number: usize, tokens: usize) -> Trace {
    let task = Arc::new(TraceTask::new("HeldTask", TaskData { idx: Some(number as u64), ..TaskData::default() }));
    let agent = AgentInfo {
        config: Arc::from(RawValue::from_string("{}".to_owned()).unwrap()),
        runtime: None,
        name: "agent".to_owned(),
        trainable: true,
    };
    let mut trace = Trace::new(task, agent);
    let mut leaf = None;
    for turn in 0..tokens.div_ceil(PROMPT + SAMPLED) {
        let start = trace.graph.path_tokens(leaf);
        let turn_tokens = TurnTokens {
            prompt_start: start,
            prompt_ids: (0..PROMPT as u32).map(|id| id * 7 + turn as u32).collect(),
            completion_ids: (0..SAMPLED as u32).map(|id| id * 11 + number as u32).collect(),
            completion_logprobs: (0..SAMPLED).map(|token| -(token as f32) / 97.0).collect(),
            message_spans: Some(vec![Some((start + 3, start + PROMPT - 5))]),
            is_content: (0..PROMPT).map(|at| (3..PROMPT - 5).contains(&at)).collect(),
            ..TurnTokens::default()
        };
        let reply = AssistantMessage { content: Some("word".repeat(SAMPLED)), ..AssistantMessage::default() };
        let next = trace.graph.at(leaf, vec![Message::user("text".repeat(PROMPT))], Arc::default());
        let node = trace.graph.commit(next, reply, Some(turn_tokens)).unwrap();
        leaf = Some(node);
        let usage =
            Usage { prompt_tokens: (start + PROMPT) as u64, completion_tokens: SAMPLED as u64, ..Usage::default() };
        trace.calls.push(ModelCall {
            node: Some(node),
            finish_reason: Some(FinishReason::Stop),
            usage: Some(usage),
            ..ModelCall::default()
        });
    }
    trace.graph.shrink_to_fit();
    trace
}

/// Bytes of the resident set.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() * 1024.0
}
