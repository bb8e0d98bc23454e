//! `reasoning-gym/<dataset>`: every dataset of the package is a taskset whose reference answers earn full marks.
#![allow(clippy::disallowed_methods, reason = "tests ask the package in a process of its own")]

mod program;

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use futures::TryStreamExt as _;
use program::{Folder, episodes};
use rollhouse::{
    config::{Document, Layer, Reader},
    taskset::{Task, TasksetSize},
    tasksets::find,
};
use serde_json::{Value, json};

/// Cannot be made by its defaults: it mixes datasets that have to be named.
const WITHOUT_DEFAULTS: &[&str] = &["composite"];
/// Their entries have no reference answer; they only judge one.
const WITHOUT_REFERENCE: &[&str] = &["boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"];

fn python() -> String {
    std::env::var("ROLLHOUSE_TEST_PYTHON")
        .expect("ROLLHOUSE_TEST_PYTHON names no interpreter with reasoning-gym: run the tests with `tests/run`")
}

#[test]
fn every_dataset_gives_its_reference_answers_full_marks_and_silence_less() {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/python/reasoning_gym_peer.py");
    let start = |part: &str| {
        let mut command = Command::new(python());
        command.arg(&script).args([part, "2"]).env("PYTHONHASHSEED", "0");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut text = String::new();
    for process in [start("0"), start("1")] {
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        text += std::str::from_utf8(&output.stdout).unwrap();
    }
    // Some datasets print, without a line end.
    let lines = text.lines().filter_map(|line| serde_json::from_str(line.trim_start_matches('.')).ok());
    let results: Vec<Value> = lines.collect();
    assert!(results.len() > 100, "{} datasets", results.len());
    for result in results {
        let dataset = result["dataset"].as_str().unwrap();
        if WITHOUT_DEFAULTS.contains(&dataset) {
            assert!(result["error"].as_str().unwrap().contains("at least one dataset"), "{result}");
            continue;
        }
        assert_eq!(result["error"], Value::Null, "{result}");
        let expected = if WITHOUT_REFERENCE.contains(&dataset) { Value::Null } else { json!(1.0) };
        let scores = result["scores"].as_array().unwrap();
        assert_eq!(scores.len(), 2, "{result}");
        for pair in scores {
            assert_eq!(pair[0], expected, "{result}");
            assert!(pair[1].as_f64().unwrap() < 1.0, "{result}");
        }
    }
}

#[test]
fn a_dataset_is_shown_and_evaluated_like_any_taskset() {
    let folder = Folder::new();
    let keys = json!({"python": python(), "size": 6, "min_animals": 2, "max_animals": 3}).to_string();
    let shown = folder.run(&["tasksets", "show", "reasoning-gym/leg-counting", "-n", "2", "-a", &keys]).expect(0);
    let shown = shown.says("reasoning-gym/leg_counting: 6 tasks").says("<answer>answer here</answer>");
    assert!(shown.stdout.contains("== task 1 ") && !shown.stdout.contains("== task 2 "), "{shown:#?}");
    let results = folder.run(&["eval", "reasoning-gym/leg_counting", "-a", &keys, "--json"]).expect(0).json();
    assert_eq!((&results["rollouts"], &results["scored"]), (&json!(6), &json!(6)), "{results}");
    assert!(results["rewards"]["score"]["mean"].as_f64().unwrap() > 0.3, "{results}");
    let run = folder.only_run();
    assert!(run.to_str().unwrap().contains("outputs/reasoning-gym-leg-counting--simulator--null/"), "{run:?}");
    for episode in episodes(&run) {
        assert_eq!(episode["task"]["type"], "ReasoningGymLegCountingTask");
        assert!(episode["traces"][0]["info"]["scoring"]["score"].is_string());
    }
}

#[test]
fn what_is_missing_is_said() {
    let folder = Folder::new();
    let keys = json!({"python": python()}).to_string();
    let show = |id: &str, keys: &str| folder.run(&["tasksets", "show", id, "-a", keys]).expect(2);
    show("reasoning-gym/leg_cuonting", &keys).says("has no dataset `leg_cuonting`").says("`leg_counting`");
    let keys = json!({"python": python(), "min_animal": 2}).to_string();
    show("reasoning-gym/leg_counting", &keys).says("did you mean `min_animals`");
    // An interpreter without any package.
    let plain = Command::new(python()).args(["-c", "import sys; print(sys.base_prefix)"]).output().unwrap();
    let plain = PathBuf::from(String::from_utf8(plain.stdout).unwrap().trim()).join("bin/python3");
    let isolated = folder.write("plain/python3", &format!("#!/bin/sh\nexec {} -S \"$@\"\n", plain.display()));
    std::fs::set_permissions(&isolated, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let keys = json!({"python": isolated}).to_string();
    show("reasoning-gym/leg_counting", &keys).says("pip install reasoning-gym").says("is not installed in");
}

#[test]
fn many_datasets_are_scored_by_the_pool() {
    let folder = Folder::new();
    let names = [
        "ab",
        "aiw",
        "base_conversion",
        "binary_matrix",
        "calendar_arithmetic",
        "chain_sum",
        "color_cube_rotation",
        "complex_arithmetic",
        "countdown",
        "family_relationships",
        "game_of_life",
        "graph_color",
        "jugs",
        "knights_knaves",
        "letter_jumble",
        "mini_sudoku",
        "n_queens",
        "needle_haystack",
        "palindrome_generation",
        "polynomial_equations",
        "products",
        "rotate_matrix",
        "self_reference",
        "simple_equations",
        "spell_backward",
        "string_insertion",
        "syllogism",
        "tower_of_hanoi",
        "tsumego",
        "word_sorting",
    ];
    let names = names.iter().filter(|name| !WITHOUT_REFERENCE.contains(name));
    let datasets: Vec<Value> = names.map(|name| json!({"name": name})).collect();
    let keys = json!({"python": python(), "size": 60, "datasets": datasets}).to_string();
    let flags = ["-n", "60", "--env.taskset.workers", "2", "--json"];
    let done = folder.run(&[&["eval", "reasoning-gym/composite", "-a", &keys][..], &flags].concat()).expect(0);
    assert_eq!(done.json()["scored"], 60, "{done:#?}");
    // The simulator is wrong at times, and silence is worth less than the reference.
    assert!(done.json()["reward"]["mean"].as_f64().unwrap() > 0.5, "{done:#?}");
}

#[tokio::test]
async fn the_size_and_the_seed_are_keys() {
    let open = |keys: Value| {
        let layer = Layer::from_json("keys", &keys.to_string()).unwrap();
        let mut reader = Reader::new(Document::new([layer]));
        let opened = (find("Reasoning_Gym/Chain_Sum").unwrap().open)(&mut reader.root()).unwrap();
        reader.finish().unwrap();
        opened
    };
    let first = open(json!({"python": python(), "size": 20}));
    assert_eq!(first.size(), TasksetSize::Finite(20));
    let all: Vec<Task> = first.tasks().try_collect().await.unwrap();
    assert_eq!(all.len(), 20);
    let again: Vec<Task> = first.tasks_from(15).try_collect().await.unwrap();
    assert_eq!(again, all[15..]);
    let other: Vec<Task> =
        open(json!({"python": python(), "size": 20, "seed": 1})).tasks().try_collect().await.unwrap();
    assert_ne!(other, all);
}
