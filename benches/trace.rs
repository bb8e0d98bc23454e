//! Costs of the trace room on the way of every call: committing a turn, hashing messages, writing an episode.

use std::sync::Arc;

use divan::{Bencher, black_box, counter::BytesCount};
use rollhouse::trace::{
    AgentInfo, AssistantMessage, EnvInfo, Episode, Graph, Message, TaskData, Tool, Trace, TraceTask, Turn, TurnTokens,
};
use serde_json::value::RawValue;

fn main() {
    divan::main();
}

fn reply(text: String) -> AssistantMessage {
    AssistantMessage { content: Some(text), ..AssistantMessage::default() }
}

/// Tokens of one turn after a stored prefix: 50 of the user's, then the model's.
fn tokens(graph: &Graph, leaf: Option<u32>, sampled: usize) -> TurnTokens {
    let start = graph.path_tokens(leaf);
    TurnTokens {
        prompt_start: start,
        prompt_ids: (0..50).collect(),
        completion_ids: (0..sampled as u32).collect(),
        completion_logprobs: (0..sampled).map(|token| -(token as f32) / 97.0).collect(),
        message_spans: Some(vec![Some((start + 3, start + 45))]),
        ..TurnTokens::default()
    }
}

fn conversation(turns: usize, sampled: usize) -> (Graph, Option<u32>) {
    let mut graph = Graph::default();
    let tools: Arc<[Tool]> = Arc::default();
    let mut leaf = None;
    for turn in 0..turns {
        let tokens = tokens(&graph, leaf, sampled);
        let next = graph.at(leaf, vec![Message::user(format!("question {turn}"))], Arc::clone(&tools));
        leaf = graph.commit(next, reply("word".repeat(sampled)), Some(tokens)).ok();
    }
    (graph, leaf)
}

/// The same turn at the end of a short and of a long conversation; the graph grows by the turns measured.
#[divan::bench(args = [10, 1000, 10_000])]
fn commit_a_turn(bencher: Bencher<'_, '_>, turns: usize) {
    let (graph, leaf) = conversation(turns, 100);
    let graph = std::cell::RefCell::new(graph);
    let inputs = || {
        let graph = graph.borrow();
        let tail = vec![Message::user("and then?")];
        (graph.at(leaf, tail, Arc::default()), reply("word".repeat(100)), tokens(&graph, leaf, 100))
    };
    bencher
        .with_inputs(inputs)
        .bench_local_values(|(turn, reply, tokens): (Turn, _, _)| graph.borrow_mut().commit(turn, reply, Some(tokens)));
}

/// Finding the prefix of a whole prompt, which the fast path saves.
#[divan::bench(args = [10, 1000])]
fn prepare_a_whole_prompt(bencher: Bencher<'_, '_>, turns: usize) {
    let (graph, _) = conversation(turns, 100);
    let prompt: Vec<Message> = graph.transcript().into_iter().cloned().collect();
    bencher.bench_local(|| black_box(graph.prepare(black_box(&prompt), Arc::default())));
}

#[divan::bench(args = [100, 10_000])]
fn hash_a_message(bencher: Bencher<'_, '_>, letters: usize) {
    let message = Message::user("a".repeat(letters));
    bencher.counter(BytesCount::new(letters)).bench_local(|| black_box(&message).hash());
}

fn episode(turns: usize, sampled: usize) -> Episode {
    let Ok(config) = RawValue::from_string(r#"{"model":"m","harness":{"id":"null"}}"#.to_owned()) else {
        unreachable!("the text is JSON")
    };
    let task = Arc::new(TraceTask::new("Task", TaskData::default()));
    let agent = AgentInfo { config: config.into(), runtime: None, name: "agent".to_owned(), trainable: true };
    let mut trace = Trace::new(Arc::clone(&task), agent);
    trace.graph = conversation(turns, sampled).0;
    let mut episode = Episode::new(EnvInfo::default(), task, None);
    episode.traces.push(trace);
    episode
}

/// One turn, and a rollout of 120,000 tokens.
#[divan::bench(args = [(1, 50), (100, 1150)])]
fn write_a_line(bencher: Bencher<'_, '_>, (turns, sampled): (usize, usize)) {
    let episode = episode(turns, sampled);
    let mut line = Vec::new();
    let written = episode.write_line(&mut line);
    assert!(written.is_ok());
    bencher.counter(BytesCount::new(line.len())).bench_local(|| {
        line.clear();
        episode.write_line(black_box(&mut line))
    });
}

#[divan::bench(args = [(1, 50), (100, 1150)])]
fn read_a_line(bencher: Bencher<'_, '_>, (turns, sampled): (usize, usize)) {
    let mut line = Vec::new();
    assert!(episode(turns, sampled).write_line(&mut line).is_ok());
    bencher.counter(BytesCount::new(line.len())).bench_local(|| Episode::from_line(black_box(&line)));
}

#[divan::bench]
fn hash_a_task_row() -> String {
    black_box(&TaskData::default()).hash()
}
