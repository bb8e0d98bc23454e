//! `rollhouse eval` as a user runs it.
#![allow(clippy::disallowed_methods, reason = "tests prepare files and processes of their own")]

mod program;

use std::{collections::BTreeMap, fs, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use program::{Done, Folder, Simulator, episodes};
use serde_json::{Value, json};

#[test]
fn the_first_command_of_the_readme_needs_nothing() {
    let folder = Folder::new();
    let done = folder.run(&["eval", "alphabet-sort", "-n", "5", "-r", "4"]).expect(0);
    assert!(done.stdout.contains("simulated"), "{done:#?}");
    let run = folder.only_run();
    assert_eq!(episodes(&run).len(), 20);
    let results: Value = serde_json::from_str(&fs::read_to_string(run.join("results.json")).unwrap()).unwrap();
    assert_eq!(results["simulated"], true);
    assert_eq!(results["scored"], 20);
}

#[test]
fn results_have_every_documented_key() {
    let folder = Folder::new();
    let done = folder.run(&["eval", "reverse-text", "-n", "6", "-r", "2", "--json"]).expect(0);
    let results = done.json();
    for key in [
        "/version",
        "/run_dir",
        "/taskset",
        "/model",
        "/simulated",
        "/tasks",
        "/rollouts",
        "/scored",
        "/failed",
        "/not_run",
        "/reward/mean",
        "/reward/stderr",
        "/pass_at_k/1",
        "/pass_at_k/2",
        "/pass_hat_k/1",
        "/pass_hat_k/2",
        "/usage/input_tokens",
        "/usage/output_tokens",
        "/turns/mean",
        "/truncated",
        "/errors",
        "/retries",
        "/wall_s",
        "/verdict",
    ] {
        assert!(results.pointer(key).is_some_and(|value| !value.is_null()), "{key} is missing in {results:#}");
    }
    assert!(results["rewards"].as_object().unwrap().values().all(|reward| reward["mean"].is_number()), "{results:#}");
    assert_eq!(results["rollouts"], 12);
}

#[test]
fn every_shipped_taskset_is_solved_by_the_oracle() {
    for taskset in ["reverse-text", "alphabet-sort", "gsm8k", "wordle", "color-codeword"] {
        let folder = Folder::new();
        let results = folder.run(&["eval", taskset, "-n", "4", "-r", "2", "--json"]).expect(0).json();
        assert_eq!(results["scored"], 8, "{taskset}: {results:#}");
        let mean = results["reward"]["mean"].as_f64().unwrap();
        assert!(mean > 0.3, "{taskset}: {results:#}");
    }
}

/// Infrastructure faults are retried or fail a rollout; they never move the mean of the scored ones.
#[test]
fn injected_faults_do_not_move_the_mean() {
    let mut means = Vec::new();
    for share in ["0", "0.1", "0.2", "0.3"] {
        let simulator = Simulator::start(&[
            "--policy",
            "oracle",
            "--error-rate",
            "0.3",
            "--fault",
            &format!("500:{share}"),
            "--fault",
            &format!("malformed:{share}"),
        ]);
        let folder = Folder::new();
        let results = folder
            .run(&[
                "eval",
                "reverse-text",
                "-m",
                "sim",
                "-b",
                &simulator.base_url,
                "-n",
                "60",
                "-r",
                "2",
                "--client.max-retries",
                "1",
                "--max-error-rate",
                "1",
                "--json",
            ])
            .expect(0)
            .json();
        let count = |key: &str| results[key].as_u64().unwrap();
        assert_eq!(count("scored") + count("failed") + count("not_run"), 120, "{results:#}");
        assert_eq!(count("not_run"), 0);
        let failed: u64 = results["errors"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
        assert_eq!(failed, count("failed"), "{results:#}");
        if share == "0" {
            assert_eq!(count("failed"), 0, "{results:#}");
        } else {
            assert!(results["retries"].as_u64().unwrap() > 0, "{results:#}");
        }
        means.push((results["reward"]["mean"].as_f64().unwrap(), results["reward"]["stderr"].as_f64().unwrap()));
    }
    let (clean, error) = means[0];
    for (mean, _) in &means {
        assert!((mean - clean).abs() <= 4.0 * error.max(0.02), "{means:?}");
    }
}

/// Half of the tasks need a second turn, which no longer fits the window.
#[test]
fn a_full_window_is_an_ordinary_ending_that_is_told_in_words() {
    let simulator = Simulator::start(&["--policy", "oracle", "--max-model-len", "700"]);
    let folder = Folder::new();
    let arguments = ["eval", "alphabet-sort", "-m", "sim", "-b", &simulator.base_url, "-n", "6", "-r", "2", "--json"];
    let results = folder.run(&arguments).expect(0).json();
    let overflows = results["stop_conditions"]["context_overflow"].as_u64().unwrap();
    assert!(overflows > 0 && overflows < 12, "{results:#}");
    assert_eq!((&results["scored"], &results["truncated"]), (&12.into(), &overflows.into()), "{results:#}");
    let run = folder.only_run();
    let full = episodes(&run).iter().position(|episode| !episode["traces"][0]["info"]["context_overflow"].is_null());
    let why = folder.run(&["why", run.to_str().unwrap(), &full.unwrap().to_string()]).expect(0).stdout;
    assert!(why.contains("stopped by context_overflow"), "{why}");
    assert!(why.contains("maximum context length is 700 tokens"), "{why}");
}

#[test]
fn bad_input_has_one_clear_message_and_the_right_status() {
    let simulator = Simulator::start_with_env(&["--api-key-var", "SIM_KEY"], &[("SIM_KEY", "a-key")]);
    let open = Simulator::start(&[]);
    let folder = Folder::new();
    folder.write("broken.toml", "model = \"m\"\nnum_rollouts = \n");
    folder.write(
        "typo.toml",
        "num_rolouts = 3\n[env.taskset]\nid = \"reverse-text\"\nmini_turns = 1\n[client]\nbase_urll = 3\n",
    );
    folder.write("rows.jsonl", "{\"question\": \"1+1?\", \"answer\": \"#### 2\"}\n{\"question\": 3}\n");
    let endpoint = open.base_url.as_str();
    let key_endpoint = simulator.base_url.as_str();
    let cases: &[(&[&str], i32, &[&str])] = &[
        (&["eval", "alphabet-srot"], 2, &["alphabet-srot", "alphabet-sort"]),
        (
            &["eval", "reverse-text", "-m", "x", "-b", "http://127.0.0.1:9/v1", "-n", "1"],
            1,
            &["127.0.0.1:9", "no endpoint"],
        ),
        (
            &["eval", "reverse-text", "-m", "sim", "-b", key_endpoint, "-k", "NO_SUCH_KEY", "-n", "1"],
            1,
            &["NO_SUCH_KEY"],
        ),
        (&["eval", "reverse-text", "-m", "nope", "-b", endpoint, "-n", "1"], 1, &["nope", "sim"]),
        (&["eval", "@", "broken.toml"], 2, &["broken.toml:2"]),
        (&["eval", "@", "typo.toml"], 2, &["typo.toml:1", "num_rollouts", "typo.toml:4", "typo.toml:6", "base_url"]),
        (&["eval", "@", "missing.toml"], 2, &["missing.toml"]),
        (&["eval", "reverse-text", "--num-rolouts", "3"], 2, &["--num-rolouts", "--num-rollouts"]),
        (&["eval", "reverse-text", "-n", "1", "-r", "0"], 2, &["num_rollouts"]),
        (&["eval", "gsm8k", "-a", "{\"path\": \"rows.jsonl\"}"], 1, &["rows.jsonl:2"]),
        (&["eval", "gsm8k", "-a", "{\"path\": \"nowhere.jsonl\"}"], 1, &["nowhere.jsonl"]),
        (&["eval", "reverse-text", "-n", "1", "-o", "/proc/nowhere"], 1, &["/proc/nowhere"]),
        (&["eval", "--resume", "outputs/none"], 2, &["outputs/none"]),
        (&["eval"], 2, &["taskset"]),
        (&["frobnicate"], 2, &["frobnicate"]),
    ];
    for (arguments, code, parts) in cases {
        let done = folder.run(arguments);
        assert_eq!(done.code, Some(*code), "{arguments:?}: {done:#?}");
        for part in *parts {
            assert!(done.stderr.contains(part), "{arguments:?}: `{part}` is missing in {done:#?}");
        }
        assert!(!done.stderr.contains("panicked"), "{done:#?}");
    }
}

#[test]
fn an_infinite_taskset_must_be_bounded() {
    let folder = Folder::new();
    folder.run(&["eval", "reverse-text"]).expect(2).says("-n");
}

#[test]
fn the_key_is_sent_and_written_nowhere() {
    let secret = "sk-very-secret-0123456789";
    let simulator =
        Simulator::start_with_env(&["--api-key-var", "SIM_KEY", "--policy", "echo"], &[("SIM_KEY", secret)]);
    let folder = Folder::new();
    let arguments = [
        "eval",
        "reverse-text",
        "-m",
        "sim",
        "-b",
        &simulator.base_url,
        "-k",
        "MY_KEY",
        "-n",
        "3",
        "-v",
        "--max-error-rate",
        "1",
    ];
    let done = Done::of(folder.command(&arguments).env("MY_KEY", secret).output().unwrap()).expect(0);
    assert!(!done.stdout.contains(secret) && !done.stderr.contains(secret), "{done:#?}");
    let mut files = 0;
    let mut folders = vec![folder.path().to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            } else if path.is_file() {
                files += 1;
                assert!(!String::from_utf8_lossy(&fs::read(&path).unwrap()).contains(secret), "{}", path.display());
            }
        }
    }
    assert!(files >= 4, "only {files} files were looked at");
}

#[test]
fn an_interrupt_finishes_cleanly_and_a_resume_does_the_rest() {
    let simulator = Simulator::start(&["--policy", "oracle", "--ttft-ms", "40"]);
    let folder = Folder::new();
    let arguments = ["eval", "reverse-text", "-m", "sim", "-b", &simulator.base_url, "-n", "200", "-r", "1", "-c", "4"];
    let mut command = folder.command(&arguments);
    let child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    wait_for_lines(&folder, 8);
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let done = Done::of(child.wait_with_output().unwrap()).expect(130).says("--resume");
    assert!(done.stderr.contains("finishing"), "{done:#?}");

    let run = folder.only_run();
    let before = episodes(&run);
    assert!(before.len() >= 8 && before.len() < 200, "{}", before.len());
    assert!(before.iter().all(|episode| episode["ok"] == true));

    folder.run(&["eval", "--resume", run.to_str().unwrap()]).expect(0);
    let after = episodes(&run);
    assert_eq!(after.len(), 200);
    assert_eq!(&after[..before.len()], &before[..], "finished rollouts stay as they were");
    assert_eq!(per_task(&after).values().copied().collect::<Vec<_>>(), [1; 200]);

    // A resume of a finished run has nothing to do.
    let again = folder.run(&["eval", "--resume", run.to_str().unwrap(), "--json"]).expect(0).json();
    assert_eq!(again["scored"], 200);
    assert_eq!(episodes(&run).len(), 200);
}

#[test]
fn a_resume_with_another_config_is_refused() {
    let folder = Folder::new();
    folder.run(&["eval", "reverse-text", "-n", "2"]).expect(0);
    let run = folder.only_run();
    let run = run.to_str().unwrap();
    folder.run(&["eval", "--resume", run, "--sampling.temperature", "0.1"]).expect(2).says("sampling");
    folder.run(&["eval", "--resume", run, "-c", "3"]).expect(0);
}

#[test]
fn failed_rollouts_have_a_class_and_no_reward_and_a_resume_redoes_them() {
    let broken = Simulator::start(&["--fault", "500:1@/v1/chat/completions"]);
    let folder = Folder::new();
    let port = broken.base_url.clone();
    let arguments = [
        "eval",
        "reverse-text",
        "-m",
        "sim",
        "-b",
        &port,
        "-n",
        "4",
        "--client.max-retries",
        "0",
        "--max-error-rate",
        "1",
        "--json",
    ];
    let results = folder.run(&arguments).expect(0).json();
    assert_eq!((&results["scored"], &results["failed"]), (&0.into(), &4.into()), "{results:#}");
    assert_eq!(results["errors"]["provider"], 4);
    assert!(results["reward"]["mean"].is_null());
    let run = folder.only_run();
    for episode in episodes(&run) {
        assert_eq!(episode["ok"], false);
        assert_eq!(episode["traces"][0]["errors"][0]["type"], "ProviderError");
        assert_eq!(episode["traces"][0]["errors"][0]["status_code"], 500);
    }
    let id = episodes(&run)[0]["id"].as_str().unwrap().to_owned();
    folder.run(&["why", run.to_str().unwrap(), &id]).expect(0).says("500");
    // Too many failures fail the run.
    let strict = Folder::new();
    strict.run(&[&arguments[..10], &["--max-error-rate", "0.2"]].concat()).expect(1).says("max_error_rate");
}

#[test]
fn the_help_of_a_taskset_lists_its_keys() {
    let folder = Folder::new();
    folder.run(&["eval", "wordle", "--help"]).expect(0).says("--env.taskset.max-guesses");
    let plain = folder.run(&["eval", "--help"]).expect(0).says("--num-rollouts");
    assert!(!plain.stdout.contains("max-guesses"), "{plain:#?}");
}

#[test]
fn deadlines_beyond_the_end_of_the_clock_are_none() {
    let folder = Folder::new();
    let simulator = Simulator::start(&["--policy", "echo"]);
    let mut arguments = vec!["eval", "reverse-text", "-m", "sim", "-b", &simulator.base_url, "-n", "1"];
    for flag in [
        "--env.timeout.episode=1.8e19",
        "--env.agent.timeout.rollout=1.8e19",
        "--env.agent.timeout.scoring=1.8e19",
        "--client.timeout.call=1.8e19",
        "--client.timeout.connect=1.8e19",
        "--client.timeout.first-byte=1.8e19",
        "--client.timeout.idle=1.8e19",
    ] {
        arguments.push(flag);
    }
    folder.run(&arguments).expect(0);
}

fn wait_for_lines(folder: &Folder, lines: usize) {
    for _ in 0..2000 {
        let journals = folder.runs().into_iter().filter_map(|run| fs::read(run.join("traces.jsonl")).ok());
        let written: usize = journals.map(|text| text.iter().filter(|byte| **byte == b'\n').count()).sum();
        if written >= lines {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("the run wrote too few lines");
}

fn per_task(episodes: &[Value]) -> BTreeMap<u64, usize> {
    let mut counts = BTreeMap::new();
    for episode in episodes {
        *counts.entry(episode["task"]["data"]["idx"].as_u64().unwrap()).or_default() += 1;
    }
    counts
}

#[test]
fn a_saved_configuration_runs_again_under_another_name() {
    let folder = Folder::new();
    folder.run(&["eval", "reverse-text", "-n", "2", "--verbose", "True"]).expect(0);
    let saved = folder.only_run().join("configs/resolved/eval.json");
    let saved = saved.to_str().unwrap();
    folder.run(&["eval", "@", saved]).expect(1).says("already holds finished rollouts");
    folder.run(&["eval", "@", saved, "--run.name", "again"]).expect(0);
    assert_eq!(episodes(&folder.path().join("outputs/again")).len(), 2);
    // By its name a run is found as `why` finds it.
    folder.run(&["eval", "--resume", "again"]).expect(0);
}

#[test]
fn a_run_without_tasks_leaves_nothing_behind() {
    let folder = Folder::new();
    folder.run(&["eval", "gsm8k", "-a", "{\"path\": \"nowhere.jsonl\"}"]).expect(1).says("nowhere.jsonl");
    folder.run(&["eval", "gsm8k", "--select.include.ids", "no-such-id"]).expect(2).says("no task is selected");
    assert!(!folder.path().join("outputs").exists());
}

#[test]
fn a_sampling_field_that_is_most_likely_a_slip_is_told() {
    let folder = Folder::new();
    let done =
        folder.run(&["eval", "reverse-text", "-n", "1", "--sampling.temprature", "0.5", "--sampling.top-k", "5"]);
    let done = done.expect(0).says("Did you mean `temperature`");
    assert!(!done.stderr.contains("top_k"), "{done:#?}");
}

#[test]
fn tokens_are_those_that_the_endpoint_counts() {
    let simulator = Simulator::start(&[]);
    let folder = Folder::new();
    let arguments = ["eval", "alphabet-sort", "-m", "sim", "-b", &simulator.base_url, "-n", "4", "-r", "2", "--json"];
    let usage = folder.run(&arguments).expect(0).json()["usage"].clone();
    let metrics = program::metrics(&simulator.base_url);
    assert_eq!(usage["input_tokens"].as_f64(), metrics.get("vllm:prompt_tokens_total").copied(), "{usage}");
    assert_eq!(usage["output_tokens"].as_f64(), metrics.get("vllm:generation_tokens_total").copied(), "{usage}");
    assert!(usage["new_input_tokens"].as_u64() < usage["input_tokens"].as_u64(), "{usage}");
}

#[test]
fn a_trace_names_the_seat_that_made_it() {
    let simulator = Simulator::start(&["--model", "of-the-seat"]);
    let folder = Folder::new();
    let seat = ["--env.agent.model", "of-the-seat", "--env.agent.sampling.temperature", "0.3"];
    let run =
        ["eval", "reverse-text", "-n", "1", "-m", "of-the-run", "-b", &simulator.base_url, "--sampling.top-k", "4"];
    folder.run(&[&run[..], &seat[..]].concat()).expect(0);
    let trace = &episodes(&folder.only_run())[0]["traces"][0];
    let config = &trace["agent"]["config"];
    assert_eq!((&config["model"], &trace["calls"][0]["model"]), (&"of-the-seat".into(), &"of-the-seat".into()));
    assert_eq!((&config["sampling"]["temperature"], &config["sampling"]["top_k"]), (&0.3.into(), &4.into()));
    assert_eq!(trace["calls"][0]["sampling"], serde_json::json!({"top_k": 4, "temperature": 0.3}));
}

#[test]
fn the_rewards_of_any_taskset_take_other_weights() {
    let folder = Folder::new();
    let weights = |name: &str, key: &str| {
        let flag = format!("--env.taskset.task.rewards.{name}.{key}");
        folder.run(&["eval", "gsm8k", "-n", "4", "--json", "--clean", "--run.dir", "same", &flag, "0.25"])
    };
    let results = weights("correct", "weight").expect(0).json();
    let score = results["rewards"]["correct"]["mean"].as_f64().unwrap();
    assert!(score > 0.0, "{results:#}");
    assert_eq!(results["reward"]["mean"], json!(score * 0.25), "{results:#}");
    weights("corect", "weight").expect(2).says("there is no reward `corect`: it has correct; did you mean `correct`?");
    weights("correct", "fn").expect(2).says("only its `weight` can be set");
    weights("correct", "wieght")
        .expect(2)
        .says("env.taskset.task.rewards.correct: `wieght`: unknown key; expected `weight`");
}
