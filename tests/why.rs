//! `rollhouse why` tells from the journal alone why a rollout ended as it did.
#![allow(clippy::disallowed_methods, reason = "tests prepare files of their own")]

use std::fs;

use rollhouse::report::{explain, find_run};
use serde_json::{Value, json};
use tempfile::TempDir;

fn id(number: u64) -> String {
    format!("{number:08x}{:024x}", 0)
}

fn episode(number: u64, task: u64, trace: Value) -> Value {
    let record = json!({"type": "NumberTask", "data": {"idx": task}, "key": format!("key-{task}"), "hash": format!("{task:064x}")});
    let mut whole = json!({
        "id": id(number), "verifiers": {"version": "1"}, "task": record, "agent": {"config": {}}, "ok": true, "errors": [],
        "is_completed": true, "stop_condition": "agent_completed",
        "nodes": [{"message": {"role": "user", "content": "sort these"}},
                  {"parent": 0, "sampled": true, "message": {"role": "assistant", "content": " <sorted>\nAda </sorted>"}}],
    });
    whole.as_object_mut().unwrap().extend(trace.as_object().unwrap().clone());
    json!({"id": id(number), "env": {"id": "numbers"}, "task": record, "ok": whole["ok"], "traces": [whole]})
}

fn run() -> TempDir {
    let usage = json!({"prompt_tokens": 1_250, "completion_tokens": 40});
    let answered = json!({"node": 1, "endpoint": "/chat/completions", "finish_reason": "stop", "usage": usage});
    let busy = json!({"type": "ProviderError", "message": "the endpoint is overloaded", "status_code": 503, "class": "provider",
        "retryable": true});
    let refused = json!({"type": "ProviderError", "message": "the endpoint answered 401: wrong key in `OPENAI_API_KEY`",
        "status_code": 401, "class": "provider", "retryable": false, "traceback": "invalid_api_key\nfrom server"});
    let lines = [
        episode(
            1,
            0,
            json!({
                "rewards": {"exact": {"score": 0.0, "weight": 0.5}, "similarity": {"score": 0.8, "weight": 0.5}},
                "info": {"scoring": {"exact": "expected `Ada, Bob`, found `Ada`"}},
                "calls": [{"endpoint": "/chat/completions", "error": busy}, answered],
            }),
        ),
        episode(
            2,
            0,
            json!({"ok": false, "stop_condition": "provider_error", "errors": [refused], "nodes": [],
            "calls": [{"endpoint": "/chat/completions", "error": refused}]}),
        ),
        episode(
            0x1234_5678,
            1,
            json!({"ok": false, "rewards": {"exact": null}, "calls": [answered],
            "info": {"scoring": {"exact": "score NaN is not finite"}},
            "errors": [{"type": "ScoringError", "message": "reward `exact` is not finite"}]}),
        ),
    ];
    let output = tempfile::tempdir().unwrap();
    let run = output.path().join("numbers--small--null/1a2b3c4d");
    fs::create_dir_all(&run).unwrap();
    fs::write(run.join("traces.jsonl"), lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    output
}

fn why(output: &TempDir, rollout: &str) -> String {
    let run = find_run("1a2b3c4d", output.path()).unwrap();
    let mut text = Vec::new();
    match explain(&run, rollout, &mut text) {
        Ok(()) => String::from_utf8(text).unwrap(),
        Err(error) => format!("error: {error}"),
    }
}

#[test]
fn a_score_comes_with_its_parts_and_reasons() {
    let expected = "\
rollout 00000001 (line 0, task 0): scored 0.400 of 1.000
  exact scored 0.000, weight 0.5: expected `Ada, Bob`, found `Ada`
  similarity scored 0.800, weight 0.5
  stopped by agent_completed after 1 turn, last call 1.2K tokens in and 40 out
  call 1 of 2 /chat/completions failed: provider: the endpoint is overloaded (status 503)
  last reply: <sorted> Ada </sorted>
";
    assert_eq!(why(&run(), &id(1)), expected);
}

#[test]
fn a_failure_comes_with_its_chain_and_call() {
    let expected = "\
rollout 00000002 (line 1, task 0): failed, provider: the endpoint answered 401: wrong key in `OPENAI_API_KEY` \
(trying again will not help)
  stopped by provider_error after 0 turns
  caused by: invalid_api_key
  caused by: from server
  call 1 of 1 /chat/completions failed: provider: the endpoint answered 401: wrong key in `OPENAI_API_KEY`
  there is no reply
";
    assert_eq!(why(&run(), "1"), expected);
}

#[test]
fn a_scoring_failure_names_the_reward() {
    let text = why(&run(), "1:0");
    assert!(
        text.starts_with("rollout 12345678 (line 2, task 1): failed, scoring: reward `exact` is not finite"),
        "{text}"
    );
    assert!(text.contains("exact was due but not scored: score NaN is not finite"), "{text}");
}

#[test]
fn rollouts_are_found_by_id_line_and_task() {
    let output = run();
    for (rollout, found) in
        [("0", 1), ("1", 2), ("0:0", 1), ("0:1", 2), ("key-0:1", 2), ("00000002", 2), ("12345678", 0x1234_5678)]
    {
        let text = why(&output, rollout);
        assert!(text.starts_with(&format!("rollout {}", &id(found)[..8])), "{rollout}: {text}");
    }
    for nothing in ["9", "0:2", "ffffffff", "", "key-0:7"] {
        let text = why(&output, nothing);
        assert!(text.starts_with("error: no rollout") && text.contains("line number from 0"), "{nothing}: {text}");
    }
    let text = why(&output, "00000000000");
    assert!(text.starts_with("error: no rollout"), "{text}");
}

#[test]
fn runs_are_found_by_folder_and_name() {
    let output = run();
    let folder = output.path().join("numbers--small--null/1a2b3c4d");
    for name in ["numbers--small--null/1a2b3c4d", "1a2b3c4d", "1a2b", folder.to_str().unwrap()] {
        assert_eq!(find_run(name, output.path()).unwrap(), folder, "{name}");
    }
    let error = find_run("nothing", output.path()).unwrap_err().to_string();
    assert!(error.starts_with("there is no run `nothing`"), "{error}");
}

#[test]
fn half_a_surrogate_pair_hides_no_rollout() {
    let output = run();
    let journal = find_run("1a2b3c4d", output.path()).unwrap().join("traces.jsonl");
    // Python writes what its strings can hold and Rust's cannot.
    let text = fs::read_to_string(&journal).unwrap().replace("Ada </sorted>", "\\ud835 Ada </sorted>");
    fs::write(&journal, text).unwrap();
    let told = why(&output, "0");
    assert!(told.ends_with("last reply: <sorted> \u{fffd} Ada </sorted>\n"), "{told}");
}
