//! A run goes on from what lies in its folder, whatever was before.
#![allow(clippy::disallowed_methods, reason = "tests prepare files of their own")]

mod program;

use std::{fs, path::Path};

use program::{Done, Folder, Simulator, episodes};
use serde_json::Value;

/// A run of ten tasks, of whose journal only a part is left.
fn interrupted(folder: &Folder) {
    folder.run(&["eval", "reverse-text", "-n", "10", "-r", "2", "--run.name", "one"]).expect(0);
    let traces = folder.path().join("outputs/one/traces.jsonl");
    let text = fs::read_to_string(&traces).unwrap();
    let kept: String = text.split_inclusive('\n').take(7).collect();
    fs::write(&traces, kept).unwrap();
}

fn change_config(folder: &Folder, change: impl FnOnce(&mut Value)) {
    let path = folder.path().join("outputs/one/configs/resolved/eval.json");
    let mut config = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut config);
    fs::write(&path, config.to_string()).unwrap();
}

#[test]
fn every_spelling_of_a_resume_does_the_rest() {
    let resolved = "outputs/one/configs/resolved/eval.json";
    for spelling in [
        &["--resume", "outputs/one"][..],
        &["--resume", "outputs/one/", "reverse-text", "-n", "10", "-r", "2", "-c", "1"],
        &["@", resolved, "--resume"],
        &["@", resolved, "-R", "outputs/one"],
        &["reverse-text", "-n", "10", "-r", "2", "--run.name", "one", "--resume"],
    ] {
        let folder = Folder::new();
        interrupted(&folder);
        let results = folder.run(&[&["eval", "--json"], spelling].concat()).expect(0).json();
        assert_eq!((&results["scored"], &results["not_run"]), (&20.into(), &0.into()), "{spelling:?}: {results:#}");
        assert_eq!(episodes(&folder.path().join("outputs/one")).len(), 20, "{spelling:?}");
    }
}

/// A newer version has keys that the saved configuration of an older run lacks.
#[test]
fn a_key_that_is_younger_than_the_run_has_its_default() {
    let folder = Folder::new();
    interrupted(&folder);
    change_config(&folder, |config| {
        config["env"]["agent"].as_object_mut().unwrap().remove("network_notice").unwrap();
        config["env"]["taskset"].as_object_mut().unwrap().remove("seed").unwrap();
    });
    folder.run(&["eval", "--resume", "outputs/one"]).expect(0);
    folder.run(&["eval", "--resume", "outputs/one", "-a", "{\"seed\": 4}"]).expect(2).says("env.taskset.seed: 0 in");
}

#[test]
fn a_lost_state_is_made_anew() {
    let folder = Folder::new();
    interrupted(&folder);
    fs::remove_file(folder.path().join("outputs/one/run.json")).unwrap();
    let results = folder.run(&["eval", "--resume", "outputs/one", "--json"]).expect(0).json();
    assert_eq!(results["scored"], 20, "{results:#}");
}

/// A placeholder for a key may be any word, also one that the trace format uses.
#[test]
fn a_placeholder_key_loses_no_rollout() {
    let simulator = Simulator::start(&[]);
    for key in ["traces", "content", "system", "assistant"] {
        let folder = Folder::new();
        let arguments =
            ["eval", "reverse-text", "-n", "3", "-m", "sim", "-b", &simulator.base_url, "--run.name", "one"];
        let with_key = |arguments: &[&str]| {
            Done::of(folder.command(arguments).env("OPENAI_API_KEY", key).output().unwrap()).expect(0)
        };
        with_key(&arguments);
        let before = episodes(&folder.path().join("outputs/one"));
        with_key(&["eval", "--resume", "outputs/one"]);
        assert_eq!(episodes(&folder.path().join("outputs/one")), before, "{key}");
        assert_eq!(before[0]["traces"][0]["nodes"].as_array().unwrap().len(), 3, "{key}");
    }
}

/// A run folder as version 0.1.0 wrote it, one of its three rollouts missing: every later version goes on with it.
#[test]
fn a_run_of_every_released_version_is_resumed() {
    let folder = Folder::new();
    let (from, run) = (Path::new("tests/vectors/rollhouse/run-1"), folder.path().join("outputs/run-1"));
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join(from);
    fs::create_dir_all(run.join("configs/resolved")).unwrap();
    for file in ["traces.jsonl", "run.json", "configs/resolved/eval.json"] {
        fs::copy(from.join(file), run.join(file)).unwrap();
    }
    let results = folder.run(&["eval", "--resume", "run-1", "--json"]).expect(0).json();
    assert_eq!((&results["scored"], &results["rollouts"]), (&3.into(), &3.into()), "{results:#}");
    let before = fs::read_to_string(from.join("traces.jsonl")).unwrap();
    let after = fs::read_to_string(run.join("traces.jsonl")).unwrap();
    assert!(after.starts_with(&before), "finished rollouts stay byte for byte");
    folder.run(&["why", "run-1", "0"]).expect(0).says("scored");
}
