//! What holds for every sequence of turns and every episode.
#![allow(clippy::disallowed_methods, reason = "tests write the journals that they read")]

#[path = "trace_replay/generate.rs"]
mod generate;
mod trace_replay;

use std::sync::Arc;

use generate::{Step, turns};
use proptest::{collection::vec, prelude::*};
use rollhouse::{
    store::scan,
    trace::{
        AssistantMessage, CreditStream, EnvInfo, Episode, Graph, GraphError, Message, RewardScore, TaskData,
        TokenFlags, Tool, Trace, TraceTask, TurnTokens, Usage, readable_json,
    },
};
use serde_json::{Value, json};
use trace_replay::{node_values, replay, typed};

fn episode(trace: Trace) -> Episode {
    let mut episode = Episode::new(EnvInfo::default(), Arc::clone(&trace.task), None);
    episode.traces.push(trace);
    episode
}

fn line(episode: &Episode) -> Vec<u8> {
    let mut line = Vec::new();
    episode.write_line(&mut line).unwrap();
    line
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Every turn with tokens can be read back from its path, whatever came before it and after.
    #[test]
    fn a_path_is_the_prompt_and_completion_of_its_last_turn(steps in vec(any::<Step>(), 1..12), plain: bool) {
        let case = turns(&steps, plain);
        let trace = replay(&case, false, |_, _, _| ());
        let commits = case["ops"].as_array().unwrap().iter().filter(|op| op["op"] == "commit");
        for (op, call) in commits.zip(&trace.calls) {
            if op["tokens"].is_null() {
                continue;
            }
            let path = trace.graph.path(call.node.unwrap());
            let ids: Vec<u32> =
                path.iter().flat_map(|node| trace.graph.nodes()[*node as usize].tokens.ids().to_vec()).collect();
            let expected: Vec<u32> =
                [typed::<Vec<u32>>(&op["tokens"]["prompt_ids"]), typed(&op["tokens"]["completion_ids"])].concat();
            prop_assert_eq!(&ids, &expected);
            prop_assert_eq!(trace.graph.path_tokens(call.node), ids.len());
        }
        for node in trace.graph.nodes() {
            let tokens = &node.tokens;
            prop_assert_eq!(tokens.mask().len(), tokens.ids().len());
            prop_assert_eq!(tokens.mask().count(), tokens.logprobs().len());
            prop_assert!(tokens.is_content().is_empty() || tokens.is_content().len() == tokens.ids().len());
        }
    }

    /// Preparing and the fast path give the same graph.
    #[test]
    fn the_fast_path_commits_the_same_nodes(steps in vec(any::<Step>(), 1..12)) {
        let case = turns(&steps, true);
        let (slow, fast) = (replay(&case, false, |_, _, _| ()), replay(&case, true, |_, _, _| ()));
        prop_assert_eq!(node_values(&slow), node_values(&fast));
    }

    /// Writing what was read writes the same bytes, and reading loses nothing but what stays on the wire.
    #[test]
    fn write_read_write_is_a_fixed_point(
        steps in vec(any::<Step>(), 1..8),
        texts in vec(any::<String>(), 4),
        credit in vec(proptest::num::f32::ANY, 1..4),
        score in -1e9..1e9_f64,
        metric in proptest::num::f64::ANY,
    ) {
        let mut trace = replay(&turns(&steps, false), false, |_, _, _| ());
        let data = TaskData { name: Some(texts[0].clone()), extra: typed(&json!({"k": texts[1]})), ..TaskData::default() };
        trace.task = Arc::new(TraceTask::new(texts[2].clone(), data));
        trace.info.insert(texts[3].clone(), json!([null, texts[3]]));
        trace.rewards.insert("r".to_owned(), Some(RewardScore { score, weight: 1.0 }));
        trace.metrics.insert("m".to_owned(), Some(metric));
        let reply = (trace.graph.nodes().len() - 1) as u32;
        let tokens = trace.graph.tokens_mut(reply).unwrap();
        let values = credit.iter().copied().cycle().take(tokens.mask().count()).collect();
        tokens.set_credit(CreditStream::Entropies, Some(values)).unwrap();
        let episode = episode(trace);
        let first = line(&episode);
        prop_assert_eq!(first.iter().filter(|byte| **byte == b'\n').count(), 1);
        let read = Episode::from_line(&first).unwrap();
        prop_assert_eq!(line(&read), first);
        prop_assert_eq!(read.token_counts(), episode.token_counts());
        prop_assert_eq!(&read.task, &episode.task);
    }

    /// Derived counts, by another road: calls in order of their branch.
    #[test]
    fn counts_follow_the_usage(steps in vec(any::<Step>(), 1..12)) {
        let trace = replay(&turns(&steps, false), false, |_, _, _| ());
        let counts = trace.token_counts();
        let completions: u64 = trace.calls.iter().flat_map(|call| &call.usage).map(|usage| usage.completion_tokens).sum();
        prop_assert_eq!(trace.num_turns(), steps.len());
        prop_assert_eq!(counts.total, counts.input + completions);
        prop_assert!(counts.output >= completions);
        // The call of each node, against the nearest call above it.
        let call = |node: u32| trace.calls.iter().find(|call| call.node == Some(node));
        let mut input = 0;
        for (node, call_here) in (0..trace.graph.nodes().len() as u32).filter_map(|node| Some((node, call(node)?))) {
            let above = trace.graph.path(node).into_iter().rev().skip(1).find_map(call);
            let before = above.and_then(|call| call.usage.as_ref()).map_or(0, |usage| usage.total_tokens());
            input += call_here.usage.as_ref().unwrap().input_tokens().saturating_sub(before);
        }
        prop_assert_eq!(counts.input, input);

        // The light reader of journals counts the same, without building the trace.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("traces.jsonl");
        let usages: Vec<Usage> = trace.calls.iter().filter_map(|call| call.usage.clone()).collect();
        std::fs::write(&path, line(&episode(trace))).unwrap();
        let mut rows = Vec::new();
        scan(&path, |row| rows.push(row)).unwrap();
        prop_assert_eq!(rows.len(), 1);
        prop_assert_eq!(rows[0].usage.new_input_tokens, counts.input);
        prop_assert_eq!(rows[0].usage.output_tokens, completions);
        prop_assert_eq!(rows[0].usage.input_tokens, usages.iter().map(Usage::input_tokens).sum::<u64>());
    }

    #[test]
    fn flags_keep_their_values(flags in vec(any::<bool>(), 0..200), off in 0..70_usize, on in 0..70_usize) {
        let stored = TokenFlags::new(flags.iter().copied());
        prop_assert_eq!(stored.count(), flags.iter().filter(|flag| **flag).count());
        prop_assert_eq!(stored.len(), flags.len());
        prop_assert_eq!(stored.iter().collect::<Vec<_>>(), flags);
        let suffix = TokenFlags::suffix(off, on);
        prop_assert_eq!(TokenFlags::new(suffix.iter()), suffix);
    }

    /// Any bytes become text, and a line of any JSON text becomes one that parses.
    #[test]
    fn lines_are_repaired(bytes in vec(any::<u8>(), 0..60), escapes in vec(0xd700_u32..0xe100, 0..6)) {
        let _ = readable_json(&bytes);
        let text: String = escapes.iter().map(|unit| format!("\\u{unit:04x}")).collect();
        let value: Value = serde_json::from_str(&readable_json(format!("[\"{text}\"]").as_bytes())).unwrap();
        let units: Vec<u16> = escapes.iter().map(|unit| *unit as u16).collect();
        prop_assert_eq!(&value[0], &String::from_utf16_lossy(&units));
    }
}

fn reply(text: &str) -> AssistantMessage {
    AssistantMessage { content: Some(text.to_owned()), ..AssistantMessage::default() }
}

/// A conversation of `turns` turns of `length` tokens, of which `prompt` are the user's, with 4 letters a token.
fn long_graph(turns: usize, length: usize, prompt: usize) -> Graph {
    let mut graph = Graph::default();
    let tools: Arc<[Tool]> = Arc::default();
    let mut leaf = None;
    for turn in 0..turns {
        let start = graph.path_tokens(leaf);
        let tokens = TurnTokens {
            prompt_start: start,
            prompt_ids: vec![turn as u32; prompt],
            completion_ids: (0..(length - prompt) as u32).collect(),
            completion_logprobs: vec![-0.5; length - prompt],
            message_spans: Some(vec![Some((start + 1, start + prompt - 2))]),
            is_content: (0..prompt).map(|token| (1..prompt - 2).contains(&token)).collect(),
            ..TurnTokens::default()
        };
        let next = graph.at(leaf, vec![Message::user("word".repeat(prompt))], Arc::clone(&tools));
        leaf = Some(graph.commit(next, reply(&"word".repeat(length - prompt)), Some(tokens)).unwrap());
    }
    graph
}

#[test]
fn a_rollout_of_120_000_tokens_fits_in_a_megabyte_and_a_half() {
    for (turns, prompt) in [(1, 10), (30, 10), (100, 300), (400, 150)] {
        let mut graph = long_graph(turns, 120_000 / turns, prompt);
        assert_eq!(graph.path_tokens(Some(graph.nodes().len() as u32 - 1)), 120_000);
        let running = graph.heap_size();
        graph.shrink_to_fit();
        let finished = graph.heap_size();
        assert!(finished <= running);
        assert!(finished <= 1_500_000, "{turns} turns: {finished}");
        assert!(running <= 1_600_000, "{turns} turns: {running}");
    }
}

#[test]
fn what_contradicts_itself_is_refused_and_changes_nothing() {
    let good = TurnTokens {
        prompt_ids: vec![7, 60, 9, 1],
        completion_ids: vec![80, 9],
        completion_logprobs: vec![-0.5, -0.25],
        message_spans: Some(vec![Some((1, 3))]),
        is_content: vec![false, true, false, false],
        ..TurnTokens::default()
    };
    let mut graph = Graph::default();
    let turn = |graph: &Graph| graph.prepare(&[Message::user("a")], Arc::default());
    let mut refused = |change: &dyn Fn(&mut TurnTokens)| {
        let mut tokens = good.clone();
        change(&mut tokens);
        let error = graph.commit(turn(&graph), reply("b"), Some(tokens)).unwrap_err();
        assert!(graph.nodes().is_empty());
        error
    };
    let length = |what, expected, got| GraphError::Length { what, expected, got };
    assert_eq!(refused(&|tokens| tokens.completion_logprobs.truncate(1)), length("completion_logprobs", 2, 1));
    assert_eq!(refused(&|tokens| tokens.is_content.truncate(3)), length("is_content", 4, 3));
    assert_eq!(refused(&|tokens| tokens.message_spans = Some(Vec::new())), length("message_spans", 1, 0));
    let span = GraphError::Span { message: 0, start: 1, end: 5 };
    assert_eq!(refused(&|tokens| tokens.message_spans = Some(vec![Some((1, 5))])), span);
    assert!(matches!(refused(&|tokens| tokens.prompt_start = 2), GraphError::NotAnExtension { stored: 0 }));
    let renderer = refused(&|tokens| {
        tokens.is_content.clear();
        tokens.renderer_prompt_ids = Some(vec![7, 60, 9, 2]);
    });
    assert!(matches!(renderer, GraphError::Renderer { .. }));
    assert_eq!(graph.commit(turn(&graph), reply("b"), Some(good.clone())), Ok(1));
    let next = graph.at(1, vec![Message::user("c")], Arc::default());
    let other =
        TurnTokens { prompt_ids: vec![8; 9], bridged: true, message_spans: None, is_content: Vec::new(), ..good };
    assert_eq!(graph.commit(next, reply("d"), Some(other)), Err(GraphError::NotAnExtension { stored: 6 }));
    assert_eq!(graph.nodes().len(), 2);
    let nowhere = graph.at(9, Vec::new(), Arc::default());
    assert_eq!(graph.commit(nowhere, reply("d"), None), Err(GraphError::NoSuchNode { node: 9, nodes: 2 }));
}

#[test]
fn broken_lines_are_named() {
    let good = line(&episode(replay(&turns(&[[0; 8]], true), false, |_, _, _| ())));
    let broken = |from: &str, to: &str| {
        let text = String::from_utf8(good.clone()).unwrap();
        assert!(text.contains(from), "{text}");
        Episode::from_line(text.replacen(from, to, 1).as_bytes()).unwrap_err().to_string()
    };
    assert!(Episode::from_line(&good).is_ok());
    assert!(broken("\"parent\":0", "\"parent\":7").contains("node 7 does not exist"));
    assert!(broken("\"mask\":[false,", "\"mask\":[").contains("mask has"));
    assert!(Episode::from_line(&good[..good.len() / 2]).is_err());
    // Half a surrogate pair does not cost the line.
    let text = String::from_utf8(good.clone()).unwrap().replacen("\"content\":\"", "\"content\":\"\\ud835", 1);
    let read = Episode::from_line(text.as_bytes()).unwrap();
    assert!(read.traces[0].graph.nodes()[0].message.text().starts_with('\u{fffd}'));
}
