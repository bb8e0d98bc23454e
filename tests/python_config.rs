//! The resolved configuration against the one that verifiers' own `vf-eval --dry-run` writes for the same input.
#![allow(clippy::disallowed_methods, reason = "tests spawn the peer and write its input")]

use std::{
    env, fs,
    io::Write,
    process::{Command, Stdio},
};

use rollhouse::{
    config::{EvalConfig, Section, Tasksets},
    rubric::judge::read_all,
};
use serde_json::{Map, Value};

/// The fields of `tests/python/rh_demo.py`.
fn demo_taskset(id: &str, block: &mut Section<'_>) {
    read_all(block);
    if id == "rh-demo" {
        block.get_or("min_turns", 1_i64);
        block.get_or("power", 4.0);
        block.get_or("words", Vec::<String>::new());
        block.get_or("exact", false);
    }
}

/// Ours differ: another harness, a local runtime, another endpoint and key, no upload, our own keys.
const COMMON: &[&str] = &[
    "--env.agent.harness.id",
    "null",
    "--env.agent.runtime.type",
    "subprocess",
    "--no-push",
    "-m",
    "m",
    "--client.base-url",
    "http://127.0.0.1:9/v1",
    "--client.api-key-var",
    "NO_KEY",
    "--no-rich",
];

const FILE: &str = r#"
model = "from-file"
num_rollouts = 2
max_concurrent = "None"

[client]
base_url = "http://127.0.0.1:8000/v1"
api_key_var = "MY_KEY"
headers = { X-Team = "a" }
headers_from_env = { Authorization = "TEAM_TOKEN" }
timeout = { connect = 5, read = 60.5 }

[sampling]
temperature = 0.7
max_completion_tokens = 512
stop = ["\n\n"]
extra_body = { top_k = 20, temperature = 0.1 }

[select]
limit = 10
shuffle = true
seed = 7
include = { idx = [1, "3:9:2"], names = ["a"] }

[env.taskset]
id = "rh-demo"
words = ["x", "y"]
exact = true

[env.timeout]
episode = 30

[env.agent]
max_turns = 8
sampling = { top_p = 0.5 }
timeout = { rollout = 2.5 }

[env.agent.retries]
max_retries = 1
rules = [{ type = "ProviderError", status_code = ["5xx", 429], max_retries = 2 }, { message = "cut", max_retries = 0 }]
"#;

const SECOND: &str =
    "num_rollouts = 5\n[sampling]\nstop = []\n[env.taskset]\nwords = [\"z\"]\n[env.agent]\nmax_turns = \"None\"\n";

/// Command lines after the common flags; the last column says whether both accept it.
const CASES: &[(&[&str], bool)] = &[
    (&["rh-demo"], true),
    (&["rh-demo", "-n", "3", "-r", "4", "-c", "5", "-v", "-o", "outputs"], true),
    (&["@", "first.toml"], true),
    (&["@", "first.toml", "@", "second.toml"], true),
    (&["@", "first.toml", "--env.agent.max-turns", "3", "--sampling.temperature", "0.25"], true),
    (&["@", "first.toml", "--env.taskset", "@", "block.json"], true),
    (&["rh-demo", "--env.taskset.min-turns", "2", "--env.taskset.exact", "--env.taskset.power=0.5"], true),
    (&["rh-demo", "--env.taskset.words", "[\"a\", \"b\"]", "--no-env.agent.network-notice"], true),
    (&["rh-demo", "--group-size", "3", "--select.shuffle", "--select.seed", "9"], true),
    (&["rh-demo", "--max-concurrent", "None", "--env.agent.timeout.setup", "1.5"], true),
    (&["rh-demo", "--sampling.max-tokens", "12", "--sampling.reasoning-effort", "low"], true),
    (&["rh-demo", "--num-rollouts", "0"], false),
    (&["rh-demo", "--env.agent.max-turnz", "3"], false),
    (&["rh-demo", "--select.limit", "0"], false),
    (&["rh-demo", "--select.include.idx", "[\"5:x\"]"], false),
    (&["rh-demo", "--env.taskset.min-turns", "two"], false),
    (&["rh-demo", "--client.timeout.connect", "0"], false),
    (&["@", "broken.toml"], false),
    (&["@", "unknown.toml"], false),
];

#[test]
fn command_lines_resolve_as_in_verifiers() {
    let python = env::var("ROLLHOUSE_TEST_PYTHON").expect("no ROLLHOUSE_TEST_PYTHON: run the tests with `tests/run`");
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("first.toml", FILE),
        ("second.toml", SECOND),
        ("block.json", "{\"power\": 2.5, \"words\": [\"q\"]}"),
        ("broken.toml", "model = \n"),
        ("unknown.toml", "[env.taskset]\nid = \"rh-demo\"\nwordz = []\n"),
    ] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let lines: Vec<Vec<String>> = CASES
        .iter()
        .map(|(line, _)| {
            // What a file gives is not given again: flags would win over it.
            let common = if line.contains(&"first.toml") { &COMMON[..5] } else { COMMON };
            let words = line.iter().chain(common).map(|word| {
                let file = folder.path().join(word);
                if file.is_file() { file.display().to_string() } else { (*word).to_owned() }
            });
            words.collect()
        })
        .collect();
    let theirs = resolve_in_verifiers(&python, folder.path(), &lines);
    for ((line, theirs), (case, accepted)) in lines.iter().zip(&theirs).zip(CASES) {
        let ours = EvalConfig::from_args(line, None, &mut Tasksets(demo_taskset));
        assert_eq!((ours.is_ok(), theirs.is_object()), (*accepted, *accepted), "{case:?}: {:?}", ours.err());
        let Ok((_, resolved, _)) = ours else { continue };
        let mut differences = Vec::new();
        compare(theirs, &resolved.dump(), "", &mut differences);
        assert!(differences.is_empty(), "{case:?}:\n{}", differences.join("\n"));
    }
}

fn resolve_in_verifiers(python: &str, folder: &std::path::Path, lines: &[Vec<String>]) -> Vec<Value> {
    let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python");
    let mut child = Command::new(python)
        .arg(format!("{scripts}/resolve.py"))
        .current_dir(folder)
        .env("PYTHONPATH", scripts)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&serde_json::to_vec(lines).unwrap()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Keys that are generated by the one and left open by the other, or spelled as given by the one and resolved by the other.
const APART: &[&str] = &[".run.name", ".run.dir", ".rich", ".push", ".output_dir"];

/// Everything that theirs says, ours says too; numbers by value.
fn compare(theirs: &Value, ours: &Value, path: &str, differences: &mut Vec<String>) {
    if APART.contains(&path) {
        return;
    }
    let same = match (theirs, ours) {
        (Value::Object(fields), ours) => {
            let empty = Map::new();
            let known = ours.as_object().unwrap_or(&empty);
            for (key, value) in fields {
                compare(value, known.get(key).unwrap_or(&Value::Null), &format!("{path}.{key}"), differences);
            }
            true
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (index, (left, right)) in left.iter().zip(right).enumerate() {
                compare(left, right, &format!("{path}[{index}]"), differences);
            }
            true
        }
        (Value::Number(left), Value::Number(right)) => left.as_f64() == right.as_f64(),
        (left, right) => left == right,
    };
    if !same {
        differences.push(format!("{path}: {theirs} there, {ours} here"));
    }
}
