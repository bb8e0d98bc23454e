//! `rollhouse replay` scores the rollouts of a finished run anew: the same rewards where nothing changed, others exactly
//! where rubric, keys or rows did, no failure as a 0, and the source as it was.
#![allow(clippy::disallowed_methods, reason = "tests prepare files and processes of their own")]

mod program;

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use program::{Done, Folder, Simulator, episodes, metrics};
use serde_json::{Value, json};

/// A run in a folder, and the bytes of all its files.
struct Source {
    folder: Folder,
    run: PathBuf,
    bytes: BTreeMap<PathBuf, Vec<u8>>,
}

impl Source {
    fn of(arguments: &[&str]) -> Self {
        let folder = Folder::new();
        let arguments = [&["eval", "--run.name", "source"], arguments].concat();
        folder.run(&arguments).expect(0);
        Self::taken(folder)
    }

    fn taken(folder: Folder) -> Self {
        let run = folder.path().join("outputs/source");
        let bytes = bytes_of(&run);
        Self { folder, run, bytes }
    }

    /// The report of a replay that ends well.
    #[track_caller]
    fn replay(&self, arguments: &[&str]) -> Value {
        let report = self.try_replay(arguments).expect(0).json();
        assert_eq!(report["version"], 1);
        report
    }

    #[track_caller]
    fn try_replay(&self, arguments: &[&str]) -> Done {
        let done = self.folder.run(&[&["replay", "source", "--json"], arguments].concat());
        assert!(bytes_of(&self.run) == self.bytes, "the source was touched by {arguments:?}");
        done
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

fn bytes_of(run: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![run.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => drop(files.insert(path.clone(), fs::read(path).unwrap())),
            }
        }
    }
    files
}

/// What the agents and the scorers left of each rollout, by episode id.
fn scores(run: &Path) -> BTreeMap<String, Value> {
    let told = |trace: &Value| {
        json!([
            trace["rewards"],
            trace["metrics"],
            trace["info"],
            trace["ok"],
            trace["errors"],
            trace["stop_condition"]
        ])
    };
    let of = |episode: &Value| json!([told(&episode["traces"][0]), episode["ok"], episode["task"]]);
    episodes(run).iter().map(|episode| (episode["id"].as_str().unwrap().to_owned(), of(episode))).collect()
}

fn work(run: &Path) -> BTreeMap<String, Value> {
    let of = |trace: &Value| json!([trace["id"], trace["nodes"], trace["calls"], trace["agent"], trace["verifiers"]]);
    let work = |episode: &Value| episode["traces"].as_array().unwrap().iter().map(of).collect::<Value>();
    episodes(run).iter().map(|episode| (episode["id"].as_str().unwrap().to_owned(), work(episode))).collect()
}

fn results(run: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(run.join("results.json")).unwrap()).unwrap()
}

#[test]
fn a_run_of_every_shipped_taskset_replays_to_exactly_the_same_scores() {
    for taskset in ["reverse-text", "alphabet-sort", "gsm8k", "wordle", "color-codeword"] {
        let source = Source::of(&[taskset, "-n", "6", "-r", "2"]);
        let report = source.replay(&["-o", "again"]);
        assert_eq!(report["rollouts"]["unchanged"], 12, "{taskset}: {report:#}");
        assert_eq!(
            (&report["tasks_changed"], &report["rows"]["same"]),
            (&0.into(), &6.into()),
            "{taskset}: {report:#}"
        );
        let again = source.path("again");
        assert_eq!(scores(&again), scores(&source.run), "{taskset}");
        assert_eq!(work(&again), work(&source.run), "{taskset}");
        for figure in ["reward", "pass_at_k", "rewards", "metrics", "scored", "usage", "turns", "tasks", "rollouts"] {
            assert_eq!(results(&again)[figure], results(&source.run)[figure], "{taskset}: {figure}");
        }
        // It is a run of its own that says where it comes from, and can be replayed itself.
        let state: Value = serde_json::from_str(&fs::read_to_string(again.join("run.json")).unwrap()).unwrap();
        assert_eq!(state["source"]["name"], "source", "{state:#}");
        assert_ne!(state["id"], state["source"]["id"]);
        for episode in episodes(&again) {
            assert_eq!((&episode["run"]["id"], &episode["run"]["name"]), (&state["id"], &"again".into()));
        }
        let third = source.folder.run(&["replay", "again", "--json", "--no-save"]).expect(0).json();
        assert_eq!(third["rollouts"]["unchanged"], 12, "{third:#}");
    }
}

#[test]
fn weights_of_the_run_hold_in_a_replay_and_other_ones_weigh_anew() {
    let source = Source::of(&["reverse-text", "-n", "6", "--env.taskset.task.rewards.similarity.weight", "2"]);
    let same = source.replay(&["--no-save"]);
    assert_eq!(same["rollouts"]["unchanged"], 6, "{same:#}");
    let single = source.replay(&["--no-save", "-a", r#"{"task": {"rewards": {"similarity": {"weight": 1}}}}"#]);
    let mean = |side: &str| single[side]["reward"]["mean"].as_f64().unwrap();
    assert_eq!(
        (single["rollouts"]["unchanged"].as_u64(), mean("before")),
        (Some(0), 2.0 * mean("after")),
        "{single:#}"
    );
}

#[test]
fn a_key_changes_what_it_should_and_the_reasons_are_told() {
    let source = Source::of(&["alphabet-sort", "-n", "12", "-r", "3"]);
    let milder = source.replay(&["-a", r#"{"similarity_power": 1}"#, "-o", "milder"]);
    assert!(milder["after"]["reward"]["mean"].as_f64() > milder["before"]["reward"]["mean"].as_f64(), "{milder:#}");
    assert!(milder["after"]["reward"]["stderr"].is_number());
    assert_eq!(milder["rollouts"]["down"], 0);
    assert_eq!(milder["metrics"]["format"]["before"], milder["metrics"]["format"]["after"]);
    let named = milder["tasks"].as_array().unwrap();
    assert_eq!(named.len() as u64, milder["tasks_changed"].as_u64().unwrap(), "JSON names them all");
    let sizes: Vec<f64> = named.iter().map(|task| size(&task["reward"])).collect();
    assert!(sizes.is_sorted_by(|one, next| one >= next), "{sizes:?}");
    // A line and an id lead to the very rollout.
    let example = &milder["examples"][0];
    let line = example["line"].to_string();
    let score = format!("scored {:.3}", example["reward"]["after"].as_f64().unwrap());
    let id = &example["rollout"].as_str().unwrap()[..8];
    source.folder.run(&["why", "./milder", &line]).expect(0).says(id).says(&score);
    source.folder.run(&["why", "source", &example["source_line"].to_string()]).expect(0).says(id);
    assert!(example["reasons"][0]["why"].as_str().unwrap().contains("similarity"), "{example:#}");
    // People see a few of them, and as much with a replay of the replay.
    let back = source.folder.run(&["replay", "./milder", "-a", r#"{"similarity_power": 4}"#]).expect(0);
    assert!(back.stdout.contains("down") && back.stdout.contains("rollout "), "{back:#?}");
    let back = source.folder.only_replay();
    assert_eq!(scores(&back), scores(&source.run), "the way back gives what there was");

    source
        .try_replay(&["-a", r#"{"similarity_pwr": 1}"#])
        .expect(2)
        .says("did you mean `env.taskset.similarity_power`");
    source.try_replay(&["-a", "[1]"]).expect(2).says("--env-args");
    source.try_replay(&["--taskset", "alfabet-sort"]).expect(2).says("did you mean `alphabet-sort`");
    source.try_replay(&["-o", "outputs/source"]).expect(2).says("holds a run already");
    source.folder.run(&["eval", "--resume", "milder"]).expect(2).says("is a replay, and a replay begins anew");
    source.folder.run(&["replay", "nothing"]).expect(2).says("there is no run `nothing`");
}

fn size(change: &Value) -> f64 {
    (change["after"].as_f64().unwrap() - change["before"].as_f64().unwrap()).abs()
}

impl Folder {
    /// The only replay below `outputs/`.
    fn only_replay(&self) -> PathBuf {
        let replays = |run: &PathBuf| run.parent().unwrap().to_string_lossy().ends_with("--replay");
        let mut found: Vec<PathBuf> = self.runs().into_iter().filter(replays).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }
}

#[test]
fn failures_of_the_agent_stay_failures_and_no_failure_is_a_zero() {
    let folder = Folder::new();
    let simulator = Simulator::start(&["--policy", "oracle", "--error-rate", "0.3", "--fault", "500:0.3"]);
    let arguments =
        ["eval", "reverse-text", "--run.name", "source", "-m", "sim", "-b", &simulator.base_url, "-n", "30"];
    let more = ["--client.max-retries", "0", "--max-error-rate", "1", "-r", "2"];
    folder.run(&[&arguments[..], &more[..]].concat()).expect(0);
    let source = Source::taken(folder);
    let before = results(&source.run);
    let failed = before["failed"].as_u64().unwrap();
    assert!(failed > 0, "{before:#}");

    let report = source.replay(&["-o", "again"]);
    assert_eq!(report["rollouts"]["still_failed"], failed, "{report:#}");
    assert_eq!((&report["before"], &report["failures"]), (&report["after"], &json!({})), "{report:#}");
    assert_eq!(scores(&source.path("again")), scores(&source.run));

    // Under the rubric of another taskset nothing can be scored: these are failures of the scoring, told and counted.
    let wrong = source.try_replay(&["--taskset", "color-codeword", "--stored-rows", "-o", "wrong"]).expect(1);
    assert!(wrong.stderr.contains(&format!("the scoring of {0} of {0} rollouts failed", 60 - failed)), "{wrong:#?}");
    let wrong = wrong.json();
    assert_eq!(wrong["rollouts"]["newly_failed"], 60 - failed, "{wrong:#}");
    assert_eq!((&wrong["after"]["reward"]["mean"], &wrong["after"]["scored"]), (&Value::Null, &0.into()), "{wrong:#}");
    // Such a failure can be mended: what failed in its scoring alone is scored again.
    let mended = source.folder.run(&["replay", "./wrong", "--taskset", "reverse-text", "-o", "mended", "--json"]);
    let mended = mended.expect(0).json();
    assert_eq!(mended["rollouts"]["newly_scored"], 60 - failed, "{mended:#}");
    assert_eq!(mended["rollouts"]["still_failed"], failed, "{mended:#}");
    assert_eq!(scores(&source.path("mended")), scores(&source.run));
}

#[test]
fn a_corrected_row_counts_and_a_stored_one_on_request() {
    let folder = Folder::new();
    let sample = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tasksets/gsm8k/sample.jsonl")).unwrap();
    let rows: Vec<&str> = sample.lines().take(5).collect();
    let data = folder.write("rows.jsonl", &rows.join("\n"));
    folder.run(&["eval", "gsm8k", "-a", r#"{"path": "rows.jsonl"}"#, "-r", "2", "--run.name", "source"]).expect(0);
    let source = Source::taken(folder);
    assert_eq!(source.replay(&["--no-save"])["rows"]["same"], 5);

    let mut corrected: Value = serde_json::from_str(rows[2]).unwrap();
    corrected["answer"] = "So it is\n#### 987654".into();
    let corrected = corrected.to_string();
    fs::write(&data, [rows[0], rows[1], &corrected, rows[3]].join("\n")).unwrap();
    let report = source.replay(&["-o", "corrected"]);
    assert_eq!(report["rows"], json!({"same": 3, "changed": 1, "not_found": 1, "stored": 0}), "{report:#}");
    for task in report["tasks"].as_array().unwrap() {
        assert_eq!((&task["task"], &task["reward"]["after"]), (&2.into(), &json!(0.0)), "{report:#}");
    }
    for episode in episodes(&source.path("corrected")).iter().filter(|episode| episode["task"]["data"]["idx"] == 2) {
        assert_eq!(episode["task"]["data"]["answer"], "987654", "the row that scored is kept");
        assert_eq!(episode["traces"][0]["task"], episode["task"]);
    }
    let report = source.replay(&["--stored-rows", "--no-save"]);
    assert_eq!((&report["rows"]["stored"], &report["tasks_changed"]), (&5.into(), &0.into()), "{report:#}");

    fs::remove_file(&data).unwrap();
    source.try_replay(&["--no-save"]).expect(1).says("--stored-rows");
    assert_eq!(source.replay(&["--stored-rows", "--no-save"])["rollouts"]["unchanged"], 10);
}

#[test]
fn a_torn_journal_loses_only_what_is_torn() {
    let source = Source::of(&["reverse-text", "-n", "4", "-r", "2"]);
    let whole = fs::read_to_string(source.run.join("traces.jsonl")).unwrap();
    let last = whole.lines().last().unwrap();
    let torn = format!("not json\n\n{whole}{last}\n{}", &last[..last.len() / 2]);
    fs::write(source.run.join("traces.jsonl"), torn).unwrap();
    let source = Source::taken(source.folder);
    let report = source.replay(&["-o", "again"]);
    let counts = &report["rollouts"];
    assert_eq!((&counts["unchanged"], &counts["malformed"], &counts["repeated"]), (&8.into(), &2.into(), &1.into()));
    assert_eq!(episodes(&source.path("again")).len(), 8);
    fs::write(source.run.join("traces.jsonl"), "not json\n").unwrap();
    source.folder.run(&["replay", "source"]).expect(2).says("holds no rollout");
}

/// A run of this many rollouts with this many bytes beside: a small one whose lines stand there again and again under other
/// ids.
fn long_run(rollouts: usize, padding: usize) -> Source {
    let source = Source::of(&["reverse-text", "-n", "50", "-r", "1"]);
    let padded = |mut episode: Value| {
        episode["traces"][0]["info"]["padding"] = "x".repeat(padding).into();
        (episode.to_string(), episode["id"].as_str().unwrap().to_owned())
    };
    let lines: Vec<(String, String)> = episodes(&source.run).into_iter().map(padded).collect();
    let mut file = fs::File::create(source.run.join("traces.jsonl")).unwrap();
    for number in 0..rollouts {
        let (line, id) = &lines[number % lines.len()];
        writeln!(file, "{}", line.replace(id, &format!("{number:032x}"))).unwrap();
    }
    let state = fs::read_to_string(source.run.join("run.json")).unwrap();
    let planned = format!("\"num_rollouts\": {}", rollouts.div_ceil(lines.len()));
    fs::write(source.run.join("run.json"), state.replace("\"num_rollouts\": 1", &planned)).unwrap();
    Source::taken(source.folder)
}

/// How often a process is looked at. Its peak only grows, so that nothing is missed but its last moment.
const SAMPLE: Duration = Duration::from_millis(5);

/// The most memory that a replay of a journal with so many long rollouts takes, in KiB.
fn peak_of_replay(rollouts: usize) -> (u64, Source) {
    let source = long_run(rollouts, 20_000);
    let mut command = source.folder.command(&["replay", "source", "--json", "-c", "16"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let status = PathBuf::from(format!("/proc/{}/status", child.id()));
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        peak = line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok()).unwrap_or(peak);
        thread::sleep(SAMPLE);
    }
    let done = Done::of(child.wait_with_output().unwrap()).expect(0);
    assert_eq!(done.json()["rollouts"]["unchanged"], rollouts);
    assert!(peak > 0);
    (peak, source)
}

#[test]
fn a_long_journal_takes_little_memory() {
    // The program itself takes some: what counts is what more rollouts add.
    let (few, _) = peak_of_replay(200);
    let (many, source) = peak_of_replay(3_000);
    let size = fs::metadata(source.run.join("traces.jsonl")).unwrap().len();
    assert!(size > 70_000_000, "the journal has {size} bytes");
    assert!(many < few + (40 << 10), "{many} KiB for {size} bytes, {few} KiB for a fifteenth of them");
    assert_eq!(results(&source.folder.only_replay())["scored"], 3_000);
}

#[test]
fn a_replay_that_is_stopped_or_killed_leaves_whole_lines_and_the_source() {
    let source = long_run(6_000, 0);
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let folder = source.path(signal.as_str());
        let arguments = ["replay", "source", "-o", signal.as_str()];
        let mut child = source.folder.command(&arguments).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        while fs::metadata(folder.join("traces.jsonl")).map_or(0, |file| file.len()) == 0 {
            assert!(child.try_wait().unwrap().is_none(), "it ended before it began");
            thread::sleep(SAMPLE);
        }
        kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
        let status = child.wait().unwrap();
        assert!(bytes_of(&source.run) == source.bytes, "the source was touched");
        let text = fs::read_to_string(folder.join("traces.jsonl")).unwrap();
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        assert!(whole.clone().all(|line| serde_json::from_str::<Value>(line).is_ok()));
        let lines = whole.count() as u64;
        assert!((1..6_000).contains(&lines), "{lines}");
        if signal == Signal::SIGINT {
            assert_eq!(status.code(), Some(130));
            assert_eq!(results(&folder)["scored"], lines, "what was scored is summed up");
        }
    }
}

const COMPARED: &str = r#"
from rollhouse import load, reward, group_reward

@load
def tasks(share: float = 1.0):
    for number in range(3):
        yield {"prompt": f"say {number}", "number": number}

@reward
def long(reply):
    return float(len(reply) > 4)

@group_reward(weight=0.5)
def members(group, config):
    return [len(group) * config["share"]] * len(group)
"#;

#[test]
fn a_script_that_changed_scores_its_groups_anew() {
    let python = std::env::var("ROLLHOUSE_TEST_PYTHON")
        .expect("ROLLHOUSE_TEST_PYTHON names no interpreter: run the tests with `tests/run`");
    let (folder, model) = (Folder::new(), Simulator::start(&["--policy", "echo"]));
    let script = folder.write("compared/taskset.py", COMPARED);
    let eval = ["eval", "./compared", "--env.taskset.python", &python, "-m", "sim", "-b", &model.base_url];
    folder.run(&[&eval[..], &["-r", "2", "--run.name", "source"]].concat()).expect(0);
    let source = Source::taken(folder);
    let report = source.replay(&["-o", "again"]);
    assert_eq!(report["rollouts"]["unchanged"], 6, "{report:#}");
    assert_eq!(scores(&source.path("again")), scores(&source.run));
    let state: Value = serde_json::from_str(&fs::read_to_string(source.path("again/run.json")).unwrap()).unwrap();
    assert!(!state["taskset_files"].as_object().unwrap().is_empty(), "{state:#}");
    assert!(source.path("again/logs/latest/replay.log").exists());

    let report = source.replay(&["-a", r#"{"share": 0.5}"#, "--no-save"]);
    assert_eq!(report["rewards"]["members"], json!({"before": 2.0, "after": 1.0}), "{report:#}");
    fs::write(&script, COMPARED.replace("len(group) *", "3 *")).unwrap();
    let report = source.replay(&["--no-save"]);
    assert_eq!(report["rewards"]["members"], json!({"before": 2.0, "after": 3.0}), "{report:#}");
    assert_eq!((&report["rollouts"]["up"], &report["tasks_changed"]), (&6.into(), &3.into()), "{report:#}");
    // A group that cannot be scored leaves no score, and no 0.
    fs::write(&script, COMPARED.replace("return [len(group)", "raise ValueError(\"no\")\n    return [len(group)"))
        .unwrap();
    let failed = source.try_replay(&["--no-save"]).expect(1).json();
    assert_eq!((&failed["rollouts"]["newly_failed"], &failed["after"]["scored"]), (&6.into(), &0.into()), "{failed:#}");
}

/// A taskset in a file whose judge is asked at the run's endpoint, or at `endpoint`.
fn judged(endpoint: &str, prompt: &str) -> String {
    format!(
        "prompt = \"Say {{{{ word }}}}\"\nanswer = \"{{{{ word }}}}\"\n[data]\nrows = [{{ word = \"a\" }}, {{ word = \"b\" }}]\n\
         [config]\nlevel = \"easy\"\n[[reward]]\nname = \"said\"\nscorer = \"contains\"\n[[judge]]\nname = \"polite\"\n\
         prompt = \"{prompt} {{{{ config.level }}}} {{{{ reply }}}}\"\nmodel = \"sim\"\n{endpoint}\n"
    )
}

#[test]
fn nobody_is_asked_unless_that_is_wanted() {
    // A judge that says yes whatever it is asked.
    let judge = Simulator::start(&["--policy", "fixed", "--text", "Verdict: yes"]);
    let asked = || metrics(&judge.base_url)["vllm:request_success_total"];
    for own in [false, true] {
        let folder = Folder::new();
        let endpoint = if own { format!("base_url = \"{}\"", judge.base_url) } else { String::new() };
        let file = folder.write("words/taskset.toml", &judged(&endpoint, "Is it polite?"));
        let eval = ["eval", "./words", "-m", "sim", "-b", &judge.base_url, "-r", "2", "--run.name", "source"];
        folder.run(&eval).expect(0);
        let source = Source::taken(folder);
        let before = asked();
        let report = source.replay(&["-o", "recorded"]);
        assert_eq!((&report["rollouts"]["unchanged"], asked()), (&4.into(), before), "{report:#}");
        assert_eq!(scores(&source.path("recorded")), scores(&source.run));

        // Another question has no verdict yet: offline that is a failure with a way out, and no 0.
        fs::write(&file, judged(&endpoint, "Is it really polite?")).unwrap();
        let offline = source.try_replay(&["--no-save"]).expect(1).says("is not recorded").json();
        assert_eq!((&offline["rollouts"]["newly_failed"], asked()), (&4.into(), before), "{offline:#}");
        let with_judges = if own { vec!["--judges"] } else { vec!["-b", &judge.base_url, "-m", "sim"] };
        let report = source.replay(&[&with_judges[..], &["-o", "asked"]].concat());
        assert_eq!(report["rollouts"]["unchanged"], 4, "{report:#}");
        assert!(asked() > before);
        if !own {
            source.try_replay(&["--judges", "--no-save"]).expect(1).says("it names no endpoint");
        }
        // A key of the taskset stands in the question, too; other rewards change with the file.
        let changed = asked();
        source.replay(&[&with_judges[..], &["--no-save", "-a", r#"{"level": "hard"}"#]].concat());
        assert!(asked() > changed);
        fs::write(&file, judged(&endpoint, "Is it polite?").replace("contains", "exact")).unwrap();
        let edited = source.replay(&["--no-save"]);
        assert_eq!(edited["rewards"]["said"], json!({"before": 0.0, "after": 0.0}), "{edited:#}");
    }
}

/// A run of the real verifiers, of a taskset whose name is known here: its own configuration finds its rows and its rubric.
#[test]
fn a_run_of_verifiers_is_scored_anew_and_the_replay_loads_there() {
    let folder = Folder::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sample = fs::read_to_string(root.join("tasksets/gsm8k/sample.jsonl")).unwrap();
    let rows: Vec<&str> = sample.lines().take(4).collect();
    folder.write("rows.jsonl", &rows.join("\n"));
    let simulator = Simulator::start(&["--policy", "oracle", "--error-rate", "0.4"]);
    let config = format!(
        "model = \"sim\"\nnum_rollouts = 2\npush = false\noutput_dir = \"peer\"\n[run]\nname = \"run\"\n\
         [client]\nbase_url = \"{}\"\napi_key_var = \"PEER_KEY\"\n\
         [env.taskset]\nid = \"gsm8k\"\npath = \"rows.jsonl\"\n[env.agent.harness]\nid = \"gsm8k\"\n\
         [env.agent.runtime]\ntype = \"subprocess\"\n",
        simulator.base_url
    );
    folder.write("peer.toml", &config);
    let code = "from verifiers.v1.cli.eval.main import main; main()";
    python(&folder, &["-c", code, "@", "peer.toml"]);

    for run in ["peer/run", "peer/run/traces.jsonl"] {
        let report = folder.run(&["replay", run, "--json", "--no-save"]).expect(0);
        assert!(report.stderr.contains("flavour"), "a key that ours lacks is told: {report:#?}");
        let report = report.json();
        assert_eq!(report["rollouts"]["unchanged"], 8, "{report:#}");
        assert_eq!(report["rows"]["changed"], 4, "found by position and prompt: {report:#}");
        assert_eq!((&report["model"], &report["taskset"]), (&"sim".into(), &"gsm8k".into()));
    }
    let stored = folder.run(&["replay", "peer/run", "--json", "--stored-rows", "--taskset", "gsm8k", "-o", "ours"]);
    let stored = stored.expect(0).json();
    assert_eq!(stored["rollouts"]["unchanged"], 8, "{stored:#}");
    assert_eq!(work(&folder.path().join("ours")), work(&folder.path().join("peer/run")));

    let script = root.join("tests/python/eval_peer.py");
    let loaded = python(&folder, &[script.to_str().unwrap(), "peer/run", "ours"]);
    let loaded: Value = serde_json::from_str(&loaded).unwrap();
    for figure in ["episodes", "ok", "reward", "turns", "input_tokens", "output_tokens", "hashes"] {
        assert_eq!(loaded[0][figure], loaded[1][figure], "{figure}: {loaded:#}");
    }
}

fn python(folder: &Folder, arguments: &[&str]) -> String {
    let python = std::env::var("ROLLHOUSE_TEST_PYTHON")
        .expect("ROLLHOUSE_TEST_PYTHON names no interpreter with verifiers: run the tests with `tests/run`");
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/peer");
    let output = Command::new(python)
        .args(arguments)
        .current_dir(folder.path())
        .env("PYTHONPATH", modules)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PEER_KEY", "key")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
