//! Configuration as a user meets it: files and flags in, values, faults and provenance out.
#![allow(clippy::disallowed_methods, reason = "tests write the files that they read")]

use std::{fs, path::Path, time::Duration};

use proptest::prelude::*;
use rollhouse::{
    config::{
        Document, EvalConfig, FamilyConfig, Layer, Parsed, Resolved, Section, Tasksets, ThinkingRetention, TokenRoute,
        differences, flag_help,
    },
    rubric::judge::read_all,
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A taskset with a few fields; any other id is unknown.
fn demo_taskset(id: &str, block: &mut Section<'_>) {
    read_all(block);
    match id {
        "alphabet-sort" | "Alphabet_Sort" | "primeintellect/alphabet-sort@0.1.2" => {
            block.doc("Fewest turns").get_in("min_turns", 1..=20_u64, 1);
            block.doc("Most turns").get_in("max_turns", 1..=20_u64, 3);
            block.doc("Power of the similarity").get_or("similarity_power", 4.0);
            block.doc("Ties count").get_or("ties", false);
        }
        "vfx-demo" => {
            block.get_or("kinds", Vec::<String>::new());
            let mut task = block.child("task");
            task.get_or("with_tools", false);
            task.open("tools");
        }
        "" => {}
        other => {
            block.fault_hint("id", format!("unknown taskset `{other}`"), "did you mean `alphabet-sort`?");
            block.accept_rest();
        }
    }
}

struct Case {
    folder: TempDir,
}

impl Case {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        Self { folder }
    }

    fn root(&self) -> String {
        format!("{}/", self.folder.path().display())
    }

    /// Files are named without their folder, in and out.
    fn read(&self, line: &[&str]) -> Result<(EvalConfig, Resolved, Parsed), String> {
        let files: Vec<String> = fs::read_dir(self.folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let args: Vec<String> = line
            .iter()
            .map(|word| {
                let known = files.iter().any(|file| file == word) || word.starts_with("missing.");
                if known { format!("{}{word}", self.root()) } else { (*word).to_owned() }
            })
            .collect();
        EvalConfig::from_args(&args, None, &mut Tasksets(demo_taskset))
            .map_err(|faults| faults.to_string().replace(&self.root(), ""))
    }
}

/// `--section @ file` reads a file into a block; after a flag that is no block the file is one for itself.
#[test]
fn a_file_after_a_switch_is_a_configuration() {
    let root = "num_rollouts = 3\n[env.taskset]\nid = \"alphabet-sort\"\n";
    for switch in ["--dry-run", "--json", "--verbose", "-v", "--resume", "--no-push", "--clean", "-s"] {
        let (config, _, parsed) = read(&[("a.toml", root)], &[switch, "@", "a.toml"]);
        assert_eq!((config.num_rollouts, parsed.files.len()), (3, 1), "{switch}");
    }
    let files = [("a.toml", root), ("s.toml", "temperature = 0.5\n"), ("t.json", "{\"min_turns\": 2}")];
    let line =
        ["@", "a.toml", "--sampling", "@", "s.toml", "--env-args", "@", "t.json", "--env.taskset", "@", "t.json"];
    let (config, resolved, _) = read(&files, &line);
    assert_eq!(config.sampling["temperature"], 0.5);
    assert_eq!(resolved.key("env.taskset.min_turns").map(|key| key.value.clone()), Some(2.into()));
    check_faults(
        &files,
        &["alphabet-sort", "--model", "@", "a.toml"],
        &["--model: model: needs a value; expected `--model VALUE`; `--model=VALUE` if it starts with `-`"],
    );
}

fn read(files: &[(&str, &str)], line: &[&str]) -> (EvalConfig, Resolved, Parsed) {
    Case::new(files).read(line).unwrap_or_else(|faults| panic!("{faults}"))
}

#[track_caller]
fn check_faults(files: &[(&str, &str)], line: &[&str], expected: &[&str]) {
    let faults = Case::new(files).read(line).err().unwrap_or_default();
    assert_eq!(faults.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn the_command_of_the_guide_reads_as_its_users_mean_it() {
    let line = "alphabet-sort -m Qwen/Qwen3-0.6B -b http://localhost:8000/v1 -k MY_KEY -n 20 -r 4 -c 64 -t 512 -T 0.7 -s -v -o out";
    let (config, resolved, parsed) = read(&[], &line.split(' ').collect::<Vec<_>>());
    assert_eq!((config.taskset.as_str(), config.model.as_str()), ("alphabet-sort", "Qwen/Qwen3-0.6B"));
    assert_eq!((config.select.limit, config.num_rollouts, config.max_concurrent), (Some(20), 4, Some(64)));
    assert_eq!(Value::Object(config.sampling), json!({"temperature": 0.7, "max_tokens": 512}));
    let client = config.client.unwrap();
    assert_eq!(
        (client.base_urls, client.api_key_var),
        (vec!["http://localhost:8000/v1".to_owned()], "MY_KEY".to_owned())
    );
    assert!(config.verbose && !config.select.shuffle);
    assert_eq!(config.output_dir, Path::new("out"));
    assert!(parsed.switches.contains_key("save"));
    assert!(resolved.warnings.is_empty());
}

#[test]
fn nothing_but_a_taskset_runs_on_the_simulator() {
    let (config, ..) = read(&[], &["alphabet-sort"]);
    assert!(config.client.is_none());
    assert_eq!((config.model.as_str(), config.num_rollouts, config.max_concurrent), ("simulator", 1, Some(128)));
    assert_eq!(config.agent.harness, "null");
    assert_eq!(config.max_error_rate, 0.5);
}

#[test]
fn the_deadlines_of_a_call_let_long_generations_pass_and_still_end_a_dead_connection() {
    let (config, ..) = read(&[], &["alphabet-sort", "-m", "m", "-b", "http://h/v1/"]);
    let client = config.client.unwrap();
    assert_eq!(client.base_urls, ["http://h/v1"]);
    assert_eq!(client.connect, Duration::from_secs(30));
    assert!(client.first_byte.unwrap() > Duration::from_secs(12 * 60));
    assert!(client.idle.is_some() && client.call_budget.unwrap() > client.first_byte.unwrap());
    let line = [
        "alphabet-sort",
        "-m",
        "m",
        "-b",
        "http://h/v1",
        "--client.timeout.read",
        "7",
        "--client.timeout.call",
        "None",
    ];
    let client = read(&[], &line).0.client.unwrap();
    assert_eq!((client.first_byte, client.idle), (Some(Duration::from_secs(7)), Some(Duration::from_secs(7))));
    assert_eq!(client.call_budget, None);
}

#[test]
fn files_merge_left_to_right_and_flags_win() {
    let base = "model = \"a\"\nnum_rollouts = 2\n[env.taskset]\nid = \"alphabet-sort\"\nmin_turns = 2\n[env.agent]\nmax_turns = 8\n\
                [sampling]\ntemperature = 0.2\nstop = [\"x\"]\n";
    let over = "num_rollouts = 3\n[env.taskset]\nmax_turns = 5\n[env.agent]\nmax_turns = \"None\"\n[sampling]\nstop = [\"y\", \"z\"]\n";
    let files = [("base.toml", base), ("over.toml", over), ("agent.json", "{\"max_output_tokens\": 9}")];
    let line = [
        "@",
        "base.toml",
        "@",
        "over.toml",
        "--env.agent",
        "@",
        "agent.json",
        "--num-rollouts",
        "8",
        "--sampling.top-k",
        "5",
    ];
    let (config, resolved, parsed) = read(&files, &line);
    assert_eq!((config.model.as_str(), config.num_rollouts), ("a", 8));
    assert_eq!((config.agent.limits.max_turns, config.agent.limits.max_output_tokens), (None, Some(9)));
    assert_eq!(Value::Object(config.sampling), json!({"temperature": 0.2, "stop": ["y", "z"], "top_k": 5}));
    assert_eq!(parsed.files.len(), 3);
    let origin = |key: &str| {
        let text = resolved.key(key).unwrap_or_else(|| panic!("no {key}")).origin.to_string();
        text.rsplit('/').next().unwrap().to_owned()
    };
    assert_eq!(origin("model"), "base.toml:1:9");
    assert_eq!(origin("num_rollouts"), "--num-rollouts");
    assert_eq!(origin("env.taskset.min_turns"), "base.toml:5:13");
    assert_eq!(origin("env.taskset.max_turns"), "over.toml:3:13");
    assert_eq!(origin("env.agent.max_turns"), "over.toml:5:13");
    assert_eq!(origin("env.agent.max_output_tokens"), "agent.json:1:23");
    assert_eq!(origin("sampling.stop"), "over.toml:7:8");
    assert_eq!(origin("sampling.top_k"), "--sampling.top-k");
    assert_eq!(origin("select.seed"), "default");
    let text = resolved.explain();
    assert!(
        text.lines().any(|line| line.starts_with("env.agent.max_turns = None ") && line.ends_with("over.toml:5:13")),
        "{text}"
    );
    assert!(
        text.lines().any(|line| line.starts_with("max_concurrent = 128 ") && line.ends_with("  # default")),
        "{text}"
    );
}

#[test]
fn every_way_to_write_a_flag() {
    let check = |line: &[&str], key: &str, expected: Value| {
        let mut words = vec!["alphabet-sort"];
        words.extend(line);
        let (_, resolved, _) = read(&[], &words);
        assert_eq!(resolved.key(key).map(|key| key.value.clone()), Some(expected), "{line:?}");
    };
    check(&["--env.agent.max-turns", "3"], "env.agent.max_turns", json!(3));
    check(&["--env.agent.max_turns=3"], "env.agent.max_turns", json!(3));
    check(&["-n5"], "select.limit", json!(5));
    check(&["-n=5"], "select.limit", json!(5));
    check(&["-sv"], "verbose", json!(true));
    check(&["--verbose", "false"], "verbose", json!(false));
    check(&["--no-env.agent.network-notice"], "env.agent.network_notice", json!(false));
    check(&["--env.agent.no-network-notice"], "env.agent.network_notice", json!(false));
    check(&["--no-rich"], "rich", json!(false));
    check(&["--rich.show-logs"], "rich", json!({"show_logs": true}));
    check(
        &["--select.include.ids", "a", "7", "--select.include.ids", "b"],
        "select.include.ids",
        json!(["a", "7", "b"]),
    );
    check(&["--select.include.ids", "[\"a\", \"b\"]"], "select.include.ids", json!(["a", "b"]));
    check(&["--select.include.idx", "3", "5:9"], "select.include.idx", json!([3, "5:9"]));
    check(&["--sampling.presence-penalty", "-0.5"], "sampling.presence_penalty", json!(-0.5));
    check(&["--sampling.logprobs", "--verbose"], "sampling.logprobs", json!(true));
    check(&["--sampling.logit-bias", "{\"50\": 1}"], "sampling.logit_bias", json!({"50": 1}));
    check(&["--sampling.extra-body.min-p", "0.1"], "sampling.min_p", json!(0.1));
    check(&["--sampling.seed", "1_000"], "sampling.seed", json!(1000));
    check(&["--client.headers.X-Team", "a"], "client.headers", json!({"X-Team": "a"}));
    check(&["--client.headers", "{\"X-Team\": \"b\"}"], "client.headers", json!({"X-Team": "b"}));
    check(
        &["-m", "m", "--env.agent.client.base-url", "http://h", "--env.agent.client.headers.X-Team", "a"],
        "env.agent.client.headers",
        json!({"X-Team": "a"}),
    );
    check(&["--env.agent.sampling.top-k", "5"], "env.agent.sampling.top_k", json!(5));
    check(&["--run.name", "2026"], "run.name", json!("2026"));
    check(&["-c", "None"], "max_concurrent", json!(null));
    check(&["--shuffle", "--shuffle-seed", "9"], "select.seed", json!(9));
    check(&["-a", "{\"min_turns\": 2}", "--env.taskset.min-turns", "4"], "env.taskset.min_turns", json!(4));
    check(&["-S", "{\"temperature\": 0.1}", "-T", "0.9"], "sampling.temperature", json!(0.1));
    check(&["--resume", "--num-rollouts", "2", "--num-rollouts", "3"], "num_rollouts", json!(3));
}

#[test]
fn switches_of_the_command_stand_apart() {
    let (_, _, parsed) = read(&[], &["alphabet-sort", "--resume", "outputs/x", "--json", "--dry-run"]);
    assert_eq!(parsed.switches.get("resume"), Some(&Some("outputs/x".to_owned())));
    assert!(parsed.switches.contains_key("json") && parsed.switches.contains_key("dry-run"));
    let (_, _, parsed) = read(&[], &["alphabet-sort", "--clean", "--resume"]);
    assert_eq!(parsed.switches.get("resume"), Some(&None));
}

#[test]
fn flags_of_the_taskset_are_known_once_its_name_is() {
    for line in [
        ["alphabet-sort", "--env.taskset.ties", "--env.taskset.min-turns", "2"].as_slice(),
        &["--env.taskset.ties", "--env.taskset.min-turns", "2", "--env.taskset.id", "alphabet-sort"],
        &["alphabet-sort", "--env.taskset.ties", "1", "--env.taskset.min-turns=2"],
        &["--env.taskset.min-turns", "2", "-r", "1", "alphabet-sort", "--env.taskset.ties"],
    ] {
        let taskset = read(&[], line).1.dump()["env"]["taskset"].clone();
        assert_eq!((&taskset["ties"], &taskset["min_turns"]), (&json!(true), &json!(2)), "{line:?}");
    }
    check_faults(
        &[],
        &["--env.taskset.min-turns", "2", "alphabet-sort"],
        &["env.taskset.id: missing; name a taskset as the first argument or with `env.taskset.id`"],
    );
}

#[test]
fn ids_are_compared_without_owner_version_and_spelling() {
    for id in ["alphabet-sort", "primeintellect/alphabet-sort@0.1.2", "Alphabet_Sort"] {
        assert_eq!(read(&[], &[id]).0.taskset, "alphabet-sort");
    }
}

#[test]
fn several_engines_of_one_model() {
    let text = "model = \"m\"\n[env.taskset]\nid = \"alphabet-sort\"\n[client]\nbase_urls = [\"http://a/v1\", \"http://b/v1/\"]\n";
    let (config, resolved, _) = read(&[("a.toml", text)], &["@", "a.toml"]);
    assert_eq!(config.client.unwrap().base_urls, ["http://a/v1", "http://b/v1"]);
    assert_eq!(resolved.dump()["client"]["base_url"], json!(["http://a/v1", "http://b/v1"]));
    let line = ["alphabet-sort", "-m", "m", "-b", "http://a/v1", "-b", "http://b/v1"];
    assert_eq!(read(&[], &line).0.client.unwrap().base_urls, ["http://a/v1", "http://b/v1"]);
    assert!(resolved.dump()["client"].get("base_urls").is_none());
}

#[test]
fn the_seat_wins_over_the_run() {
    let text = "model = \"m\"\n[env.taskset]\nid = \"alphabet-sort\"\n[client]\nbase_url = \"http://a/v1\"\n[sampling]\ntemperature = 1\n\
                top_p = 0.9\n[env.agent]\nmodel = \"n\"\n[env.agent.sampling]\ntop_p = \"None\"\nmax_completion_tokens = 7\n\
                [env.agent.client]\nbase_url = \"http://b/v1\"\n[env.agent.retries]\nmax_retries = 1\n\
                rules = [{ type = \"ProviderError\", status_code = [\"5xx\", 429], max_retries = 2 }]\n";
    let (config, resolved, _) = read(&[("a.toml", text)], &["@", "a.toml"]);
    assert_eq!((config.model.as_str(), config.client.unwrap().base_urls[0].as_str()), ("n", "http://b/v1"));
    assert_eq!(Value::Object(config.sampling), json!({"temperature": 1, "max_tokens": 7}));
    assert_eq!(resolved.dump()["env"]["agent"]["sampling"], json!({"top_p": null, "max_tokens": 7}));
    assert_eq!((config.agent.retries.max_retries, config.agent.retries.rules[0].max_retries), (1, 2));
    assert_eq!(config.agent.retries.rules[0].status.len(), 2);
}

#[test]
fn faults_of_a_file_come_at_once_and_name_what_is_allowed() {
    let text = "modle = \"m\"\nnum_rollouts = 0\nmax_turns = 3\nharness = \"x\"\n[env.taskset]\nid = \"alphabet-srot\"\nfoo = 1\n\
                [env]\nharness = { id = \"null\" }\n[env.agent.timeout]\nrollout = \"fast\"\n[select]\nlimit = 2.5\n\
                include = { idx = [\"9:x\"] }\n[client]\ntimeout = 3\n[serve]\nmax_concurrent = 1\n";
    check_faults(
        &[("a.toml", text)],
        &["@", "a.toml"],
        &[
            "a.toml:1:1: modle: unknown key; did you mean `model`?",
            "a.toml:2:16: num_rollouts: out of bounds: 0; expected a whole number from 1",
            "a.toml:3:1: max_turns: unknown key; did you mean `env.agent.max_turns`?",
            "a.toml:4:1: harness: unknown key; did you mean `env.agent.harness`?",
            "a.toml:6:6: env.taskset.id: unknown taskset `alphabet-srot`; did you mean `alphabet-sort`?",
            "a.toml:9:1: env.harness: unknown key; the harness belongs to the agent: `env.agent.harness`",
            "a.toml:11:11: env.agent.timeout.rollout: wrong type: a string; expected a number",
            "a.toml:13:9: select.limit: wrong type: 2.5; expected a whole number from 0",
            "a.toml:14:20: select.include.idx[0]: not allowed: \"9:x\"; expected a list of positions such as 3 or \"start:stop:step\", from 0",
            "a.toml:16:11: client.timeout: not 3; expected a table of keys",
        ],
    );
}

#[test]
fn faults_of_two_files_and_of_flags_keep_their_places() {
    check_faults(
        &[("a.toml", "num_rollouts = \"x\"\n"), ("b.json", "{\n \"select\": {\"limit\": -1}\n}")],
        &["alphabet-sort", "@", "a.toml", "@", "b.json", "-T", "hot", "--env.agent.max-turnz", "3"],
        &[
            "a.toml:1:16: num_rollouts: wrong type: a string; expected a whole number from 0 to 4294967295",
            "b.json:2:22: select.limit: wrong type: -1; expected a whole number from 0",
            "-T: sampling.temperature: wrong type: a string; expected a number",
            "--env.agent.max-turnz: env.agent.max_turnz: unknown key; did you mean `--env.agent.max-turns`?",
        ],
    );
}

#[test]
fn faults_of_the_command_line() {
    check_faults(
        &[],
        &["alphabet-sort", "--num-rolouts", "3"],
        &["--num-rolouts: unknown flag; did you mean `--num-rollouts`?"],
    );
    check_faults(&[], &["alphabet-sort", "--dryrun"], &["--dryrun: unknown flag; did you mean `--dry-run`?"]);
    check_faults(&[], &["alphabet-sort", "--top-p", "1"], &["--top-p: unknown flag; did you mean `--sampling.top-p`?"]);
    check_faults(
        &[],
        &["alphabet-sort", "-n"],
        &["-n: select.limit: needs a value; expected `-n VALUE`; `-n=VALUE` if it starts with `-`"],
    );
    check_faults(
        &[],
        &["alphabet-sort", "other"],
        &["argument `other`: unexpected argument; a value that starts with `-` is given as `--key=value`"],
    );
    check_faults(
        &[],
        &["-a", "{x", "alphabet-sort"],
        &["-a: env.taskset: invalid JSON: key must be a string at line 1 column 2"],
    );
    check_faults(
        &[],
        &["-n", "3"],
        &["env.taskset.id: missing; name a taskset as the first argument or with `env.taskset.id`"],
    );
    check_faults(
        &[],
        &["alphabet-sort", "@", "missing.toml"],
        &["missing.toml:1:1: cannot read the file: No such file or directory (os error 2)"],
    );
    check_faults(
        &[],
        &["alphabet-sort", "-b", "http://h/v1"],
        &["model: missing; name a model of the endpoint with `-m` or `model`"],
    );
}

#[test]
fn faults_of_rules_and_ranges() {
    let text = "[env.agent.retries]\nrules = [{ message = \"(\" }, { status_code = [\"6xx\"], max_retries = -1 }, 3]\n\
                [select.exclude]\nidx = [\"1:2:0\"]\nids = [1, \"a\", 2]\n[sampling]\ntop_p = 1.5\nextra_body = 3\n";
    check_faults(
        &[("a.toml", text)],
        &["alphabet-sort", "@", "a.toml"],
        &[
            "a.toml:2:10: env.agent.retries.rules[0].max_retries: missing; expected a whole number from 0 to 4294967295",
            "a.toml:2:22: env.agent.retries.rules[0].message: not a regular expression: unclosed group",
            "a.toml:2:46: env.agent.retries.rules[1].status_code[0]: not allowed: \"6xx\"; expected a list of statuses such as 429 or \"5xx\"",
            "a.toml:2:68: env.agent.retries.rules[1].max_retries: wrong type: -1; expected a whole number from 0 to 4294967295",
            "a.toml:2:74: env.agent.retries.rules[2]: wrong type; expected a table of keys",
            "a.toml:2:74: env.agent.retries.rules[2].max_retries: missing; expected a whole number from 0 to 4294967295",
            "a.toml:4:8: select.exclude.idx[0]: not allowed: \"1:2:0\"; expected a list of positions such as 3 or \"start:stop:step\", from 0",
            "a.toml:5:8: select.exclude.ids[0]: not allowed: 1; expected a list of strings",
            "a.toml:5:16: select.exclude.ids[2]: not allowed: 2; expected a list of strings",
            "a.toml:7:9: sampling.top_p: out of bounds: 1.5; expected a number from 0 to 1",
            "a.toml:8:14: sampling.extra_body: wrong type: 3; expected a table of keys",
        ],
    );
}

#[test]
fn a_run_is_resumed_from_its_saved_configuration_and_flags_still_win() {
    let saved = read(&[], &["alphabet-sort", "-r", "4", "-T", "0.5", "--env.taskset.min-turns", "2"]).1.dump();
    let base = Layer::from_json("run/configs/resolved/eval.json", &saved.to_string()).unwrap();
    let args = ["--resume".to_owned(), "run".to_owned(), "-c".to_owned(), "7".to_owned()];
    let (config, resolved, parsed) = EvalConfig::from_args(&args, Some(base), &mut Tasksets(demo_taskset)).unwrap();
    assert_eq!((config.taskset.as_str(), config.num_rollouts, config.max_concurrent), ("alphabet-sort", 4, Some(7)));
    assert_eq!(parsed.switches.get("resume"), Some(&Some("run".to_owned())));
    assert_eq!(differences(&saved, &resolved.dump()), []);
}

#[test]
fn a_training_client_has_a_renderer() {
    let text = "model = \"m\"\n[client]\ntype = \"train\"\nbase_url = \"http://x/v1\"\nroute = \"chat\"\n\
                renderer = { name = \"qwen3\", enable_thinking = false, thinking_retention = \"all\" }\n\
                renderer_model_name = \"Qwen/Qwen3-8B\"\nmultiplex = 64\n";
    let config = read(&[("a.toml", text)], &["alphabet-sort", "@", "a.toml"]).0;
    let train = config.client.unwrap().train.unwrap();
    assert_eq!(train.route, TokenRoute::Chat);
    assert_eq!(train.renderer_model.as_deref(), Some("Qwen/Qwen3-8B"));
    assert_eq!(train.renderer.family, FamilyConfig::Qwen3 { enable_thinking: false });
    assert_eq!(train.renderer.thinking_retention, Some(ThinkingRetention::All));
    check_faults(
        &[(
            "a.toml",
            "model = \"m\"\n[client]\ntype = \"trian\"\nbase_url = \"http://x/v1\"\nrenderer = { name = \"qwen4\" }\n",
        )],
        &["alphabet-sort", "@", "a.toml"],
        &[
            "a.toml:3:8: client.type: unknown choice `trian`; expected one of eval, train; did you mean `train`?",
            "a.toml:5:1: client.renderer: unknown key; expected one of api_key_var, base_url, base_urls, headers, \
             headers_from_env, max_retries, stream, timeout, type",
        ],
    );
    check_faults(
        &[(
            "a.toml",
            "model = \"m\"\n[client]\ntype = \"train\"\nbase_url = \"http://x/v1\"\n\
             renderer = { name = \"qwen3\", enable_thinkin = false }\n",
        )],
        &["alphabet-sort", "@", "a.toml"],
        &["a.toml:5:30: client.renderer.enable_thinkin: unknown key; did you mean `client.renderer.enable_thinking`?"],
    );
}

#[test]
fn bad_syntax_is_located() {
    check_faults(
        &[("a.toml", "model = \"m\"\nnum_rollouts = = 3\n"), ("b.json", "{\n  \"model\": nul\n}")],
        &["alphabet-sort", "@", "a.toml", "@", "b.json"],
        &[
            "a.toml:2:16: invalid TOML: extra `=`, expected nothing",
            "a.toml:2:18: invalid TOML: unexpected key or value, expected newline, `#`",
            "b.json:2:12: invalid JSON: expected a value",
        ],
    );
}

#[test]
fn what_would_change_the_result_is_refused_and_what_would_not_is_told() {
    check_faults(
        &[],
        &[
            "alphabet-sort",
            "--env.id",
            "best-of-n",
            "--env.agent.harness.id",
            "bash",
            "--env.agent.runtime.type",
            "docker",
            "--env.taskset.task.judges",
            "[{\"id\": \"decision\"}, {\"id\": \"rubric\"}]",
        ],
        &[
            "--env.id: env.id: the env `best-of-n` is not supported yet; expected \"\", the single-agent env",
            "--env.agent.harness.id: env.agent.harness.id: the harness `bash` is not supported yet; expected `null`, which chats in process",
            "--env.agent.runtime.type: env.agent.runtime.type: the runtime `docker` is not supported yet; expected `subprocess`",
            "--env.taskset.task.judges: env.taskset.task.judges[0].id: the judge `decision` asks an evaluations API of its own, which rollhouse does not speak; use `reference` or `rubric`",
            "env.taskset.task.judges[1].path: missing; expected a path",
        ],
    );
    let line = ["alphabet-sort", "--push", "--env.interception.multiplex", "8", "--env.max-concurrent-agents", "2"];
    let warnings: Vec<String> = read(&[], &line).1.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert_eq!(warnings[0], "--push: push: has no effect: rollhouse uploads nothing");
}

#[test]
fn secrets_are_refused_and_never_repeated() {
    let text = "[client]\napi_key_var = \"sk-12345-secret\"\nbase_url = \"http://user:secret@h/v1\"\n\
                headers = { Authorization = \"Bearer secret\", X-Team = \"a\" }\n";
    let faults = Case::new(&[("a.toml", text)]).read(&["alphabet-sort", "@", "a.toml"]).err().unwrap();
    let expected = [
        "a.toml:2:15: client.api_key_var: not the name of an environment variable; export the key and name its variable here",
        "a.toml:3:12: client.base_url: a URL with a user name or password; put the key into the variable named by `client.api_key_var`",
        "a.toml:4:29: client.headers.Authorization: a secret does not belong into a configuration; \
         put the value into an environment variable and name it in `client.headers_from_env`",
    ];
    assert_eq!(faults.lines().collect::<Vec<_>>(), expected);
    assert!(!faults.contains("secret@") && !faults.contains("sk-12345") && !faults.contains("Bearer"));
}

#[test]
fn resolved_configurations_of_verifiers_read_here() {
    for name in ["plain", "limit", "branch", "errors", "timeout"] {
        let path = format!("{}/tests/vectors/verifiers/traces/resolved_config_{name}.json", env!("CARGO_MANIFEST_DIR"));
        let read = EvalConfig::from_args(&["@".to_owned(), path.clone()], None, &mut Tasksets(demo_taskset));
        let vector: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        if vector["env"]["agent"]["harness"]["id"] != "null" {
            let faults = read.err().unwrap().to_string();
            let expected = ": env.agent.harness.id: the harness `vfx-rewriter` is unknown; expected `null`, which chats in process";
            assert!(faults.ends_with(expected) && faults.lines().count() == 1, "{faults}");
            continue;
        }
        let (config, resolved, _) = read.unwrap_or_else(|faults| panic!("{name}: {faults}"));
        assert_eq!(config.taskset, "vfx-demo");
        assert!(resolved.warnings.is_empty(), "{:?}", resolved.warnings);
        // All that they say stands unchanged in ours.
        assert_subset(&vector, &resolved.dump(), "");
    }
}

#[track_caller]
fn assert_subset(part: &Value, whole: &Value, path: &str) {
    match part {
        Value::Object(map) => {
            for (key, value) in map {
                assert_subset(value, whole.get(key).unwrap_or(&Value::Null), &format!("{path}.{key}"));
            }
        }
        _ => assert_eq!(part, whole, "{path}"),
    }
}

#[test]
fn a_dump_reads_back_as_itself() {
    let line = "alphabet-sort -m m -b http://h/v1 -n 3 -r 2 -T 0.5 --sampling.top-k 5 --env.taskset.min-turns 2 --select.include.idx 1:5 \
                --client.headers.X-Team a --env.agent.max-turns 3 --env.timeout.episode 2.5";
    let (_, resolved, _) = read(&[], &line.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>());
    let (again, warnings) = reread(&resolved.dump());
    assert_eq!(again, resolved.dump());
    assert_eq!(warnings, 0);
}

fn reread(dump: &Value) -> (Value, usize) {
    let layer = Layer::from_json("eval.json", &serde_json::to_string_pretty(dump).unwrap()).unwrap();
    let (_, resolved) = EvalConfig::from_document(Document::new([layer]), &mut Tasksets(demo_taskset))
        .unwrap_or_else(|faults| panic!("{faults}"));
    (resolved.dump(), resolved.warnings.len())
}

#[test]
fn a_judge_may_move_and_not_change() {
    let dump = |judge: &str| {
        let judges = format!("[{{\"id\": \"reference\", {judge}}}]");
        read(&[], &["alphabet-sort", "--env.taskset.task.judges", &judges]).1.dump()
    };
    let saved = dump("\"model\": \"a\", \"base_url\": \"http://h/v1\"");
    let moved = dump("\"model\": \"a\", \"base_url\": \"http://other/v1\", \"api_key_var\": \"K\", \"max_retries\": 9");
    assert_eq!(differences(&saved, &moved), []);
    let keys = |now: &str| -> Vec<String> {
        differences(&saved, &dump(now)).into_iter().map(|difference| difference.key).collect()
    };
    assert_eq!(keys("\"model\": \"b\", \"base_url\": \"http://h/v1\""), ["env.taskset.task.judges[0].model"]);
    assert_eq!(keys("\"model\": \"a\""), ["env.taskset.task.judges[0].an endpoint of its own"]);
}

#[test]
fn a_resumed_run_may_differ_only_in_what_changes_no_rollout() {
    let base = "alphabet-sort -m m -b http://h/v1 -n 3 -r 2";
    let dump = |extra: &str| {
        let line = format!("{base} {extra}");
        read(&[], &line.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>()).1.dump()
    };
    let saved = dump("");
    let free = "-c 5 -v -o elsewhere --run.name x --client.max-retries 9 -b http://other/v1 --max-error-rate 1 --push";
    assert_eq!(differences(&saved, &dump(free)), []);
    let changed = dump("-T 0.5 -r 3 --env.agent.timeout.rollout 3 --env.taskset.min-turns 2");
    let keys: Vec<String> = differences(&saved, &changed).into_iter().map(|difference| difference.key).collect();
    assert_eq!(keys, ["num_rollouts", "sampling.temperature", "env.taskset.min_turns", "env.agent.timeout.rollout"]);
    let simulated = dump("-b None");
    assert_eq!(
        differences(&saved, &simulated)[0].to_string(),
        "client.base_url: \"http://h/v1\" in the saved run, null now"
    );
}

#[test]
fn where_a_python_taskset_runs_may_change_and_what_it_sees_may_not() {
    let keys = json!({"python": null, "workers": null, "memory_mb": 8192, "pass_env": [], "timeout": 60.0});
    let saved = json!({"env": {"taskset": keys}});
    let mut now = saved.clone();
    for (key, value) in [("python", json!("/x")), ("workers", json!(3)), ("memory_mb", json!(64))] {
        now["env"]["taskset"][key] = value;
    }
    assert_eq!(differences(&saved, &now), []);
    now["env"]["taskset"]["timeout"] = json!(1.0);
    now["env"]["taskset"]["pass_env"] = json!(["A"]);
    let keys: Vec<String> = differences(&saved, &now).into_iter().map(|difference| difference.key).collect();
    assert_eq!(keys, ["env.taskset.pass_env", "env.taskset.timeout"]);
    // Another taskset's key of the same name is its own.
    let own = |workers: u32| json!({"env": {"taskset": {"workers": workers}}});
    assert_eq!(differences(&own(1), &own(2)).len(), 1);
}

#[test]
fn help_lists_every_key_with_bounds_default_and_meaning() {
    let (_, resolved, _) = read(&[], &["alphabet-sort"]);
    let help = flag_help(&resolved.keys);
    for line in
        ["--env.agent.max-turns", "--client.timeout.first-byte", "--env.taskset.min-turns", "--sampling.temperature"]
    {
        assert!(help.contains(line), "{line} not in\n{help}");
    }
    let rollouts = help.lines().find(|line| line.contains("--num-rollouts ")).unwrap();
    assert!(rollouts.contains("Episodes per task (a whole number from 1, default 1)"), "{rollouts}");
    let undocumented: Vec<&str> = resolved
        .keys
        .iter()
        .filter(|key| key.doc.is_empty() && !key.path.starts_with("env.taskset."))
        .map(|key| key.path.as_str())
        .collect();
    assert!(undocumented.is_empty(), "{undocumented:?}");
}

/// Random documents of one layout: keys `a` to `d` hold numbers, `t` to `v` tables.
fn document() -> impl Strategy<Value = Value> {
    let leaf = prop::collection::btree_map("[a-d]", any::<i32>().prop_map(Value::from), 0..4).prop_map(to_object);
    leaf.prop_recursive(3, 16, 3, |inner| {
        let tables = prop::collection::btree_map("[t-v]", inner, 0..3);
        (tables, prop::collection::btree_map("[a-d]", any::<i32>().prop_map(Value::from), 0..4))
            .prop_map(|(tables, numbers)| to_object(tables.into_iter().chain(numbers).collect()))
    })
}

fn to_object(map: std::collections::BTreeMap<String, Value>) -> Value {
    Value::Object(map.into_iter().collect())
}

fn layer(value: &Value) -> Layer {
    Layer::from_json("x.json", &value.to_string()).unwrap()
}

/// What the merge should be, in a few plain lines.
fn laid_over(below: &Value, above: &Value) -> Value {
    let (Value::Object(below), Value::Object(above)) = (below, above) else { return above.clone() };
    let mut merged = below.clone();
    for (key, value) in above {
        let value = below.get(key).map_or_else(|| value.clone(), |known| laid_over(known, value));
        merged.insert(key.clone(), value);
    }
    Value::Object(merged)
}

proptest! {
    #[test]
    fn merging_is_associative_and_the_last_layer_wins(a in document(), b in document(), c in document()) {
        let left = layer(&a).merge(layer(&b)).merge(layer(&c)).to_value();
        let right = layer(&a).merge(layer(&b).merge(layer(&c))).to_value();
        prop_assert_eq!(&left, &right);
        prop_assert_eq!(left, laid_over(&laid_over(&a, &b), &c));
        prop_assert_eq!(layer(&a).merge(layer(&a)).to_value(), a);
    }

    #[test]
    fn json_reads_as_serde_json_reads_it(value in document(), text in "[^\u{0}]{0,20}") {
        let with_text = json!({ "x": value, "y": [text, null, true, 1.5e300, -3], "z": {} });
        prop_assume!(with_text["y"][0] != "None");
        prop_assert_eq!(layer(&with_text).to_value(), with_text.clone());
        let pretty = serde_json::to_string_pretty(&with_text).unwrap();
        prop_assert_eq!(Layer::from_json("x.json", &pretty).unwrap().to_value(), with_text);
    }

    #[test]
    fn broken_json_is_refused_wherever_serde_json_refuses_it(text in "[\\[\\]{}:,\"a1\\\\n. tfe-]{0,12}") {
        let theirs = serde_json::from_str::<Value>(&text).is_ok_and(|value| value.is_object());
        let ours = Layer::from_json("x.json", &text);
        // Ours refuses a key given twice as well.
        prop_assert!(theirs || ours.is_err(), "{text}");
    }

    #[test]
    fn any_dump_is_a_fixed_point(
        rollouts in 1_u32..99, limit in prop::option::of(1_u64..999), temperature in prop::option::of(0.0..2.0_f64),
        turns in prop::option::of(1_u64..9), top_k in any::<i32>(), url in any::<bool>(), wait in 0.001..1e6_f64,
    ) {
        let mut root = json!({
            "model": "m", "num_rollouts": rollouts, "select": {"limit": limit},
            "sampling": {"temperature": temperature, "extra_body": {"top_k": top_k}},
            "env": {"taskset": {"id": "alphabet-sort"}, "agent": {"max_turns": turns, "timeout": {"rollout": wait}}},
        });
        if url {
            root["client"] = json!({"base_urls": ["http://a/v1", "http://b/v1"]});
        }
        let (first, _) = reread(&root);
        let (second, _) = reread(&first);
        prop_assert_eq!(&first, &second);
        prop_assert_eq!(differences(&first, &second), []);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_words_and_no_text_break_the_readers(
        words in prop::collection::vec("(--?|@)?[a-z.=\\[{\"é -]{0,8}|-n|--client.headers.X|None|-3", 0..6), text in "\\PC{0,40}",
    ) {
        let _ = EvalConfig::from_args(&words, None, &mut Tasksets(demo_taskset));
        let _ = Layer::from_toml("x.toml", &text);
        let _ = Layer::from_json("x.json", &text);
        let _ = Layer::from_json("x.json", &format!("{{\"a\": {text}"));
    }
}
