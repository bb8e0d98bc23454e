//! What a summary promises: unbiased numbers over what was scored, counts that add up, the same after any resume.
#![allow(clippy::disallowed_methods, reason = "tests prepare files of their own")]

use std::{fs, path::Path};

use futures::{StreamExt, stream};
use proptest::prelude::*;
use rollhouse::{
    eval::{Plan, Summary, pass_at_k, pass_hat_k},
    store::{Attempt, Index, Results, RunState, Verdict, compact},
    trace::{TaskData, TraceTask},
};
use serde_json::{Value, json};

/// One rollout of a task: a reward, or none for a failure.
type Rollout = (u64, Option<f64>);

fn state(tasks: u64, num_rollouts: u32) -> RunState {
    RunState {
        version: 1,
        id: "5f0c2f7f4be44ad0a2a0c7e6a5ad0b11".to_owned(),
        name: "numbers".to_owned(),
        taskset: "numbers".to_owned(),
        model: "small".to_owned(),
        simulated: true,
        num_rollouts,
        tasks: Some(tasks),
        taskset_files: std::collections::BTreeMap::new(),
        attempts: vec![Attempt { number: 1, started: 0.0, seconds: 2.0, resumed: 0 }],
        source: None,
    }
}

fn hash(task: u64) -> String {
    format!("{task:032x}{task:032x}")
}

fn line(id: usize, (task, reward): Rollout) -> String {
    let record = json!({"type": "NumberTask", "data": {"idx": task}, "key": hash(task), "hash": hash(task)});
    let usage = json!({"prompt_tokens": 10, "completion_tokens": 4, "cached_input_tokens": 2});
    let busy = json!({"type": "ProviderError", "message": "503", "status_code": 503});
    let timeout = json!({"type": "HarnessError", "message": format!("rollout {id} broke")});
    let (rewards, errors) = match reward {
        Some(score) => (json!({"exact": {"score": score, "weight": 1.0}}), json!([])),
        None => (json!({}), json!([timeout])),
    };
    json!({"id": format!("{id:032x}"), "task": record, "ok": reward.is_some(), "traces": [{
        "agent": {"config": {}}, "task": record, "ok": reward.is_some(), "errors": errors, "rewards": rewards,
        "metrics": {"length": id % 7}, "stop_condition": "agent_completed",
        "nodes": [{"message": {"role": "user", "content": ""}},
                  {"parent": 0, "sampled": true, "message": {"role": "assistant", "content": ""}}],
        "calls": [{"error": busy}, {"node": 1, "usage": usage, "finish_reason": "stop"}],
    }]})
    .to_string()
}

fn write(run: &Path, lines: &[String]) {
    fs::write(run.join("traces.jsonl"), lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
}

fn summarise(rollouts: &[Rollout], tasks: u64, num_rollouts: u32) -> Results {
    let run = tempfile::tempdir().unwrap();
    let lines: Vec<String> = rollouts.iter().enumerate().map(|(id, rollout)| line(id, *rollout)).collect();
    write(run.path(), &lines);
    Summary::of_run(run.path(), &state(tasks, num_rollouts)).unwrap()
}

#[test]
fn estimates_equal_the_peers() {
    let vector: Value = serde_json::from_str(include_str!("vectors/prime_rl/pass_at_k.json")).unwrap();
    for example in vector["per_example"].as_array().unwrap() {
        let rewards: Vec<f64> = serde_json::from_value(example["rewards"].clone()).unwrap();
        let n = rewards.len() as u32;
        let c = rewards.iter().filter(|reward| **reward == 1.0).count() as u32;
        for (name, expected) in example["result"].as_object().unwrap() {
            let k = name[5..].parse().unwrap();
            let found = if name.starts_with("pass@") { pass_at_k(n, c, k) } else { pass_hat_k(n, c, k) };
            let expected = expected.as_f64().unwrap();
            assert!((found.unwrap() - expected).abs() <= 1e-15, "{name} of {n}, {c}");
        }
    }
    for example in vector["over_groups"].as_array().unwrap() {
        let groups: Vec<Vec<f64>> = serde_json::from_value(example["groups"].clone()).unwrap();
        // The peer reports nothing once any reward lies between 0 and 1; here only the full reward passes.
        if groups.iter().flatten().any(|reward| *reward != 0.0 && *reward != 1.0) {
            continue;
        }
        let longest = groups.iter().map(Vec::len).max().unwrap_or(0) as u32;
        let rollouts: Vec<Rollout> = (0..)
            .zip(&groups)
            .flat_map(|(task, group)| group.iter().map(move |reward| (task, Some(*reward))))
            .collect();
        let results = summarise(&rollouts, groups.len() as u64, longest);
        let expected = example["result"].as_object().unwrap();
        assert_eq!(results.pass_at_k.len() + results.pass_hat_k.len(), expected.len());
        for (name, expected) in expected {
            let table = if name.starts_with("pass@") { &results.pass_at_k } else { &results.pass_hat_k };
            let found = table[&name[5..].parse().unwrap()];
            assert!((found - expected.as_f64().unwrap()).abs() <= 1e-15, "{name}");
        }
    }
}

#[test]
fn one_right_of_four_is_certain_at_four() {
    let results = summarise(&[(0, Some(0.0)), (0, Some(1.0)), (0, Some(0.0)), (0, Some(0.0))], 1, 4);
    assert_eq!(results.pass_at_k, [(1, 0.25), (2, 0.5), (4, 1.0)].into());
    assert_eq!(results.pass_hat_k, [(1, 0.25), (2, 0.0), (4, 0.0)].into());
    assert_eq!(results.reward.stderr, None);
}

#[test]
fn a_failure_is_in_no_mean() {
    let rollouts = [(0, Some(1.0)), (0, None), (1, None), (1, None), (2, Some(0.5)), (2, Some(1.0))];
    let results = summarise(&rollouts, 4, 2);
    assert_eq!((results.rollouts, results.scored, results.failed, results.not_run), (8, 3, 3, 2));
    assert_eq!(results.reward.mean, Some(2.5 / 3.0));
    assert_eq!(results.rewards["exact"].mean, Some(2.5 / 3.0));
    // Task 1 has no scored rollout and task 0 only one.
    assert_eq!(results.pass_at_k, [(1, 0.75), (2, 1.0)].into());
    assert_eq!(results.pass_hat_k, [(1, 0.75), (2, 0.0)].into());
    assert_eq!(results.errors, [("harness".to_owned(), 3)].into());
    assert_eq!(results.error_examples["harness"].message, "rollout 1 broke");
    assert_eq!(results.verdict, Some(Verdict::TooEasy));
}

#[test]
fn standard_error_is_that_of_the_task_means() {
    let results = summarise(
        &[(0, Some(1.0)), (0, Some(0.0)), (1, Some(1.0)), (1, Some(1.0)), (2, Some(0.0)), (2, Some(0.0))],
        3,
        2,
    );
    // Task means 0.5, 1 and 0: standard deviation 0.5, over the root of 3.
    assert_eq!(results.reward.mean, Some(0.5));
    assert!((results.reward.stderr.unwrap() - 0.5 / 3_f64.sqrt()).abs() < 1e-15);
    assert_eq!(results.verdict, Some(Verdict::Trainable));
}

#[test]
fn results_have_the_promised_keys() {
    let results = summarise(&[(0, Some(0.0)), (0, Some(0.0)), (1, None)], 2, 2);
    let value = serde_json::to_value(&results).unwrap();
    let expected = json!({
        "version": 1, "taskset": "numbers", "model": "small", "simulated": true, "tasks": 2, "rollouts": 4,
        "scored": 2, "failed": 1, "not_run": 1, "reward": {"mean": 0.0, "stderr": null},
        "pass_at_k": {"1": 0.0, "2": 0.0}, "pass_hat_k": {"1": 0.0, "2": 0.0}, "rewards": {"exact": {"mean": 0.0}},
        "metrics": {"length": {"mean": 0.5}}, "turns": {"mean": 1.0}, "truncated": 0, "errors": {"harness": 1},
        "usage": {"input_tokens": 36, "output_tokens": 12, "cached_input_tokens": 6, "new_input_tokens": 36},
        "retries": 3, "wall_s": 2.0,
        "verdict": "too_hard",
    });
    for (key, expected) in expected.as_object().unwrap() {
        assert_eq!(&value[key], expected, "{key}");
    }
    assert!(value["run_dir"].is_string());
    let read: Results = serde_json::from_value(value).unwrap();
    assert_eq!(read, results);
}

#[test]
fn an_empty_run_has_a_summary() {
    let results = summarise(&[], 3, 4);
    assert_eq!((results.rollouts, results.not_run), (12, 12));
    assert_eq!((results.reward.mean, results.verdict), (None, None));
    assert!(results.pass_at_k.is_empty());
}

#[test]
fn ten_tasks_stopped_at_thirty_and_resumed() {
    // Rewards that have no exact binary form, so that the order of addition would show.
    let all: Vec<Rollout> =
        (0..80_u64).map(|n| (n / 8, (n % 11 != 0).then_some([0.1, 1.0, 0.7, 0.3, 0.0][n as usize % 5]))).collect();
    let uninterrupted = summarise(&all, 10, 8);

    let run = tempfile::tempdir().unwrap();
    let lines: Vec<String> = all.iter().enumerate().map(|(id, rollout)| line(id, *rollout)).collect();
    // The first attempt finished other rollouts first, some of which failed and are redone with the same outcome.
    let (mut first, rest): (Vec<_>, Vec<_>) = lines.into_iter().enumerate().partition(|(id, _)| id % 8 < 3);
    first.reverse();
    let first: Vec<String> = first.into_iter().map(|(_, line)| line).collect();
    write(run.path(), &first);
    let path = run.path().join("traces.jsonl");
    let index = Index::open(&path, &path.with_file_name("pending.jsonl")).unwrap();
    assert!(index.finished() < 30);
    let finished = fs::read_to_string(&path).unwrap();
    let redone = first.iter().filter(|line| !finished.contains(line.as_str())).cloned();
    let lines: Vec<String> =
        finished.lines().map(str::to_owned).chain(rest.into_iter().map(|(_, line)| line)).chain(redone).collect();
    write(run.path(), &lines);
    let resumed = Summary::of_run(run.path(), &state(10, 8)).unwrap();

    // What differs is where the run lies and which failure came first.
    let comparable = |results: &Results| {
        let mut value = serde_json::to_value(results).unwrap();
        value["run_dir"].take();
        value["error_examples"].take();
        value
    };
    assert_eq!(comparable(&resumed), comparable(&uninterrupted));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn counts_add_up(
        rollouts in prop::collection::vec((0..6_u64, prop::option::of(0.0..=1.0_f64)), 0..40),
        tasks in 0..8_u64,
        num_rollouts in 1..6_u32,
    ) {
        let results = summarise(&rollouts, tasks, num_rollouts);
        prop_assert_eq!(results.scored + results.failed + results.not_run, results.rollouts);
        prop_assert_eq!(results.errors.values().sum::<u64>(), results.failed);
    }

    #[test]
    fn after_a_whole_plan_the_counts_are_the_plans(
        rollouts in prop::collection::vec((0..6_u64, prop::option::of(0.0..=1.0_f64)), 0..40),
        tasks in 1..8_u64,
        num_rollouts in 1..6_u32,
    ) {
        let run = tempfile::tempdir().unwrap();
        let lines: Vec<String> = rollouts.iter().enumerate().map(|(id, rollout)| line(id, *rollout)).collect();
        write(run.path(), &lines);
        let path = run.path().join("traces.jsonl");
        let index = Index::open(&path, &path.with_file_name("pending.jsonl")).unwrap();
        let stream = stream::iter((0..tasks).map(|task| {
            let data = TaskData { idx: Some(task), ..TaskData::default() };
            let hash = Some(hash(task));
            Ok(std::sync::Arc::new(TraceTask { kind: "NumberTask".to_owned(), data, key: hash.clone(), hash }))
        }));
        let mut plan = Plan::new(stream.boxed(), num_rollouts, index);
        let mut open = 0;
        futures::executor::block_on(async {
            while let Some(assignment) = plan.next().await {
                open += u64::from(assignment.unwrap().missing);
            }
        });
        let counts = plan.counts();
        compact(&path, &plan.leftovers().unwrap()).unwrap();
        let results = Summary::of_run(run.path(), &state(tasks, num_rollouts)).unwrap();
        prop_assert_eq!(results.rollouts, counts.planned);
        prop_assert_eq!((results.scored, results.failed, results.not_run), (counts.kept, 0, open));
    }
}
