//! A run of ours loads in the real verifiers, and both derive the same figures.
#![allow(clippy::disallowed_methods, reason = "tests ask the peer in a process of its own")]

mod program;

use std::{path::PathBuf, process::Command};

use program::{Folder, Simulator};
use serde_json::Value;

#[test]
fn verifiers_loads_our_runs_and_derives_the_same_figures() {
    let simulator = Simulator::start(&["--error-rate", "0.4", "--max-model-len", "4096"]);
    let mut runs: Vec<(&str, Folder, Value)> = Vec::new();
    for (taskset, flags) in [
        ("reverse-text", &["--client.timeout.read", "60"][..]),
        ("alphabet-sort", &["--max-turns", "2", "--sampling.top-k", "5"]),
        ("wordle", &["--env.agent.retries.max-retries", "1"]),
        ("color-codeword", &["-t", "12"]),
    ] {
        let folder = Folder::new();
        let mut arguments =
            vec!["eval", taskset, "-m", "sim", "-b", &simulator.base_url, "-n", "6", "-r", "2", "--json"];
        arguments.extend(flags);
        let results = folder.run(&arguments).expect(0).json();
        runs.push((taskset, folder, results));
    }
    let folder = Folder::new();
    let results = folder.run(&["eval", "alphabet-sort", "-n", "6", "-r", "2", "--json"]).expect(0).json();
    runs.push(("simulated in process", folder, results));
    let folder = Folder::new();
    folder.write("criteria.toml", "[[criteria]]\nname = \"clear\"\ntext = \"Is it clear?\"\n");
    folder.write(
        "judges.toml",
        "[[env.taskset.task.judges]]\nid = \"reference\"\n\
         [[env.taskset.task.judges]]\nid = \"rubric\"\nname = \"quality\"\npath = \"criteria.toml\"\nweight = 0.5\n",
    );
    let results = folder.run(&["eval", "gsm8k", "@", "judges.toml", "-n", "4", "-r", "3", "--json"]).expect(0).json();
    assert!(results["judge_usage"]["calls"].as_u64() > Some(0), "{results:#}");
    runs.push(("judged", folder, results));
    // The peer takes seconds to start, so it is asked once.
    let folders: Vec<PathBuf> = runs.iter().map(|(_, folder, _)| folder.only_run()).collect();
    let derived = peer(&folders);
    assert_eq!(derived.len(), runs.len());
    for ((what, _, ours), theirs) in runs.iter().zip(&derived) {
        same(what, ours, theirs);
    }
}

#[track_caller]
fn same(what: &str, ours: &Value, theirs: &Value) {
    let near = |left: &Value, right: &Value| match (left.as_f64(), right.as_f64()) {
        (Some(left), Some(right)) => (left - right).abs() < 1e-9,
        _ => false,
    };
    assert_eq!(ours["rollouts"], theirs["episodes"], "{what}");
    assert_eq!(ours["scored"], theirs["ok"], "{what}");
    for (ours, theirs) in [
        (&ours["reward"]["mean"], &theirs["reward"]),
        (&ours["turns"]["mean"], &theirs["turns"]),
        (&ours["truncated"], &theirs["truncated"]),
        (&ours["usage"]["new_input_tokens"], &theirs["input_tokens"]),
        (&ours["usage"]["output_tokens"], &theirs["output_tokens"]),
        (&ours["judge_usage"]["calls"], &theirs["judge_calls"]),
        (&ours["judge_usage"]["cached"], &theirs["judge_cached"]),
        (&ours["judge_usage"]["input_tokens"], &theirs["judge_input_tokens"]),
        (&ours["judge_usage"]["output_tokens"], &theirs["judge_output_tokens"]),
    ] {
        assert!(near(ours, theirs), "{what}: {ours} here, {theirs} there");
    }
    for kind in ["rewards", "metrics"] {
        for (name, value) in theirs[kind].as_object().unwrap() {
            assert!(
                near(&ours[kind][name]["mean"], value),
                "{what}: {kind}.{name}: {} here, {value} there",
                ours[kind][name]
            );
        }
    }
    assert_eq!((&theirs["client"], &theirs["hashes"]), (&"eval".into(), &true.into()), "{what}");
}

fn peer(runs: &[PathBuf]) -> Vec<Value> {
    let python = std::env::var("ROLLHOUSE_TEST_PYTHON")
        .expect("ROLLHOUSE_TEST_PYTHON names no interpreter with verifiers: run the tests with `tests/run`");
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/python/eval_peer.py");
    let output = Command::new(python).arg(script).args(runs).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}
