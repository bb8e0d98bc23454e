//! What authors are promised: a new taskset of each kind works as it is made, `validate` passes it, and names the row when
//! something in it is broken.
#![allow(clippy::disallowed_methods, reason = "tests break the files that they were given")]

mod program;

/// The Rust form of the example, as it stands.
#[path = "../examples/tasksets/rust/src/taskset.rs"]
#[allow(unreachable_pub, reason = "in its package it is the root's")]
mod rust_form;

use std::{env, fs, path::Path, process::Command, sync::Arc};

use futures::TryStreamExt as _;
use program::{Done, Folder};
use rollhouse::{
    config::{Document, Reader},
    taskset::{Found, Task, Taskset},
    tasksets::find,
    trace::{AgentInfo, AssistantMessage, Trace},
};
use serde_json::{Value, value::RawValue};

/// What `--json` has, in this order.
const CHECKS: [&str; 14] = [
    "opens",
    "loads",
    "keys",
    "ids",
    "reload",
    "prompts",
    "leak",
    "reference",
    "empty",
    "wrong",
    "scores",
    "again",
    "speed",
    "cases",
];

/// A new folder with a taskset of a kind, called `sums`.
fn made(kind: &str) -> Folder {
    let folder = Folder::new();
    folder.run(&["init", "sums", "--kind", kind]).expect(0).says("rollhouse validate ./sums");
    folder
}

/// A command that finds Python, too.
fn command(folder: &Folder, arguments: &[&str]) -> Command {
    let mut command = folder.command(arguments);
    let python = env::var_os("ROLLHOUSE_TEST_PYTHON");
    let beside = python.as_ref().and_then(|python| Path::new(python).parent());
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = beside.map(Path::to_owned).into_iter().chain(env::split_paths(&path));
    command.env("PATH", env::join_paths(folders).unwrap());
    command
}

fn run(folder: &Folder, arguments: &[&str]) -> Done {
    Done::of(command(folder, arguments).output().unwrap())
}

fn validated(folder: &Folder) -> Done {
    run(folder, &["validate", "./sums", "--timeout", "60"])
}

/// Changes a file of the taskset.
fn change(folder: &Folder, file: &str, from: &str, to: &str) {
    let path = folder.path().join("sums").join(file);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "`{from}` is not in {file}");
    fs::write(&path, text.replacen(from, to, 1)).unwrap();
}

#[test]
fn a_new_taskset_passes_validation_and_runs_as_it_is_made() {
    for kind in ["declarative", "python"] {
        let folder = made(kind);
        validated(&folder).expect(0).says(" 0 failed, 0 with warnings").says("passed   cases");
        let report = run(&folder, &["validate", "./sums", "--json"]).expect(0).json();
        assert_eq!((&report["outcome"], &report["rows"]), (&"passed".into(), &12.into()), "{kind}");
        let names: Vec<&str> =
            report["checks"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
        assert_eq!(names, CHECKS, "{kind}");
        let done = run(&folder, &["eval", "./sums", "-r", "2", "--run.name", "first"]).expect(0);
        done.says("24 planned: 24 scored").says("metrics     words");
        run(&folder, &["replay", "outputs/first"]).expect(0);
    }
}

#[test]
fn names_are_checked_and_nothing_is_overwritten() {
    let folder = made("declarative");
    folder.run(&["init", "sums"]).expect(2).says("is there already");
    fs::create_dir(folder.path().join("empty")).unwrap();
    folder.run(&["init", "empty"]).expect(0).says("made ./empty: ");
    folder.run(&["init", "My_Sums"]).expect(2).says("did you mean `my-sums`?");
    folder.run(&["init", "gsm8k"]).expect(2).says("a name of rollhouse's own");
    folder.run(&["init", "deep/er/more-sums"]).expect(0).says("rollhouse eval ./deep/er/more-sums");
    let text = fs::read_to_string(folder.path().join("deep/er/more-sums/README.md")).unwrap();
    assert!(text.starts_with("# more-sums\n") && !text.contains("word-problems"));
}

#[test]
fn what_is_broken_in_a_declared_taskset_is_found_and_its_row_is_named() {
    let row = "{\"id\": \"bus\", \"question\": \"A bus";
    let breaks: &[(&str, &str, &str, &[&str])] = &[
        // A row whose answer is no number, an answer in the prompt, a row twice, an empty prompt.
        ("data.jsonl", "\"answer\": \"28\"", "\"answer\": \"many\"", &["FAILED   scores", "task 1 (id bus, \"A bus"]),
        ("data.jsonl", row, &row.replace("A bus", "The answer is 28. A bus"), &["FAILED   leak", "task 1 (id bus"]),
        ("data.jsonl", "\"id\": \"candles\"", "\"id\": \"bus\"", &["FAILED   ids", "has the id `bus` of task 1"]),
        // A reward that nobody can earn, one that everybody earns, one that is out of bounds.
        ("taskset.toml", "\"hashes\"]", "\"boxed\"]\nthreshold = 2", &["FAILED   reference", "task 0 (id apples"]),
        (
            "taskset.toml",
            "scorer = \"number\"\nparse = [\"strip_think\", \"hashes\"]\nexpected = \"answer\"",
            "scorer = \"length\"",
            &["FAILED   wrong", "task 0 (id apples", "full marks for the reference answer with a mistake in it"],
        ),
        // Cases that do not come out, expect nothing, or name nothing.
        ("cases.jsonl", "\"correct\": 1", "\"correct\": 0.5", &["cases.jsonl:1: expected reward `correct` 0.5, got"]),
        ("cases.jsonl", "\"task\": 6", "\"task\": 60", &["cases.jsonl:5: there is no task 60"]),
        ("cases.jsonl", ", \"rewards\": {\"correct\": 0}", "", &["cases.jsonl:2: expects nothing"]),
        ("cases.jsonl", "\"words\"", "\"word\"", &["cases.jsonl:1: no metric `word`: there is `words`"]),
        ("cases.jsonl", "{\"task\"", "[\"task\"", &["cases.jsonl:1: is no JSON object"]),
        ("cases.jsonl", "\"correct\": 1}", "\"correct\": \"1\"}", &["cases.jsonl:1: ", "expected a number at column"]),
        // A row that does not load, the first row and all of them.
        (
            "data.jsonl",
            "\"question\": \"A bus",
            "\"query\": \"A bus",
            &["sums: the first row\n", "data.jsonl:2", "1 of 1"],
        ),
        ("taskset.toml", "{{ question }}\n", "{{ query }}\n", &["sums: no rows\n", "FAILED   loads", "data.jsonl:1"]),
    ];
    for (file, from, to, said) in breaks {
        let folder = made("declarative");
        change(&folder, file, from, to);
        let done = validated(&folder).expect(1);
        for text in *said {
            assert!(done.stdout.contains(text), "`{text}` is missing after `{to}`: {}", done.stdout);
        }
    }
}

#[test]
fn what_is_broken_in_a_taskset_in_python_is_found_and_its_row_is_named() {
    let reward = "    return found == float(answer), f\"answered {found}, expected {answer}\"";
    let breaks: &[(&str, &str, &[&str])] = &[
        // Rows that differ from load to load, a row twice.
        (
            "\"answer\": row[\"answer\"]",
            "\"answer\": row[\"answer\"], \"now\": time.time_ns()",
            &["FAILED   reload", "`now` differs"],
        ),
        (
            "for line in (Path(__file__).parent / \"data.jsonl\").read_text().splitlines():",
            "for line in 2 * (Path(__file__).parent / \"data.jsonl\").read_text().splitlines():",
            &["FAILED   ids", "task 12 (id apples", "is task 0 once more"],
        ),
        // A score that is no number, a failure on an empty reply, a function that never returns.
        (reward, "    return float(\"nan\")", &["FAILED   scores", "task 0 (id apples", "is not a finite number"]),
        // Scores that chance decides, a user who never has enough, an example that is the question itself.
        (
            "        return 0, \"no number behind ####\"",
            "        return time.time_ns() % 1009 / 1e4",
            &["FAILED   again", "an empty reply: reward `correct` gave 0."],
        ),
        (
            "@metric\n",
            "from rollhouse import group_reward, user\n@group_reward\ndef best(group):\n    return [time.time_ns() % 1009 \
             for _ in group]\n@user\ndef more():\n    return 'go on'\n@metric\n",
            &["FAILED   again", "its replies as a group: reward `best` gave ", "did not end in 100 turns"],
        ),
        (
            "\"prompt\": PROMPT.format(question=row[\"question\"])",
            "\"prompt\": [{\"role\": role, \"content\": text} for role, text in ((\"user\", row[\"question\"]), \
             (\"assistant\", \"I know\"), (\"user\", row[\"question\"]))]",
            &["FAILED   leak", "an example in the prompt asks the same"],
        ),
        (
            "        return 0, \"no number behind ####\"",
            "        return 1 / 0",
            &["FAILED   scores", "an empty reply", "ZeroDivisionError"],
        ),
    ];
    for (from, to, said) in breaks {
        let folder = made("python");
        change(&folder, "taskset.py", from, to);
        change(&folder, "taskset.py", "import json\n", "import json\nimport time\n");
        let done = validated(&folder).expect(1);
        for text in *said {
            assert!(done.stdout.contains(text), "`{text}` is missing after `{to}`: {}", done.stdout);
        }
    }
}

#[test]
fn a_package_is_built_and_goes_on_in_its_own_program() {
    let folder = made("rust");
    let cargo = |arguments: &[&str]| {
        let mut command = command(&folder, arguments);
        // Cargo finds its compiler and its registry there.
        for name in ["HOME", "CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN", "CARGO_TARGET_DIR"] {
            command.envs(env::var_os(name).map(|value| (name, value)));
        }
        Done::of(command.env("CARGO_NET_OFFLINE", "true").output().unwrap())
    };
    cargo(&["validate", "./sums"]).expect(0).says(" 0 failed, 0 with warnings").says("passed   cases");
    cargo(&["eval", "./sums", "-n", "3", "--run.name", "first"]).expect(0).says("3 planned: 3 scored");
    cargo(&["tasksets", "describe", "./sums"]).expect(0).says("# sums");
    cargo(&["eval", "--resume", "outputs/first"]).expect(0);
    change(&folder, "src/taskset.rs", "fn words(", "fn wordz(");
    let broken = cargo(&["validate", "./sums"]).expect(2).says("cannot build the package `./sums`");
    assert!(broken.stderr.contains("cannot find value `words`") && broken.stdout.is_empty(), "{broken:?}");
}

#[test]
fn a_package_without_rollhouse_is_no_taskset_and_is_not_run() {
    let folder = Folder::new();
    folder
        .write("other/Cargo.toml", "[package]\nname = \"other\"\nversion = \"0.1.0\"\n[dependencies]\nserde = \"1\"\n");
    folder.write("other/src/main.rs", "fn main() { println!(\"here\") }");
    let done = folder.run(&["validate", "./other"]).expect(2).says("does not depend on rollhouse");
    assert_eq!(done.stdout, "");
}

#[test]
fn the_example_of_a_package_is_built_with_the_versions_of_rollhouse() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let locked = |path: &str| -> Vec<(String, String)> {
        let lock: toml::Table = fs::read_to_string(root.join(path)).unwrap().parse().unwrap();
        let text = |package: &toml::Value, key: &str| package[key].as_str().unwrap().to_owned();
        let packages = lock["package"].as_array().unwrap().iter();
        packages.map(|package| (text(package, "name"), text(package, "version"))).collect()
    };
    let (ours, theirs) = (locked("Cargo.lock"), locked("examples/tasksets/rust/Cargo.lock"));
    let other: Vec<_> =
        theirs.iter().filter(|(name, _)| name != "word-problems").filter(|one| !ours.contains(one)).collect();
    assert!(other.is_empty(), "copy Cargo.lock beside the example and build it: {other:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_three_forms_of_the_example_score_the_same_replies_alike() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/tasksets");
    let form = |kind: &str| find(examples.join(kind).to_str().unwrap()).unwrap();
    let mut settings = serde_json::json!({});
    if let Ok(python) = env::var("ROLLHOUSE_TEST_PYTHON") {
        settings["python"] = python.into();
    }
    let rust = Found::from(&rust_form::SHIPPED);
    let none = serde_json::json!({});
    let forms = [open(&rust, &none), open(&form("declarative"), &none), open(&form("python"), &settings)];
    let mut tasks: Vec<Vec<Task>> = Vec::new();
    for form in &forms {
        tasks.push(form.tasks().try_collect().await.unwrap());
    }
    // What a number is dressed in, rightly and wrongly, behind what comes before and after it. The scorers of rollhouse read
    // fractions, percentages and powers of ten, too; the function of the example does not.
    let numbers = [
        "39",
        "39.0",
        "+39",
        "-39",
        "\u{2212}39",
        "$39",
        "1,800",
        "1800.",
        "1800",
        "18,00",
        ",39",
        "039",
        ".39",
        "39.0.0",
        "",
        "thirty-nine",
        "39 apples",
        "3 9",
        "\u{663}\u{669}",
        "\u{ff13}\u{ff19}",
        "nan",
        "inf",
        "1_800",
        "- 39",
        "--39",
        "0x27",
    ];
    let before = [
        "#### ",
        "####",
        "so\n#### ",
        "",
        "##### ",
        "<think>#### ",
        "<think>no</think>\n#### ",
        "</think> #### ",
        "#### 1\n#### ",
    ];
    let after = ["", "\n", "\r\n", "\nThat is it.", "\n#### 40", "</think>", " ####", "\u{a0}", "\0"];
    let mut replies: Vec<String> = Vec::new();
    for number in numbers {
        replies
            .extend(before.iter().flat_map(|before| after.iter().map(move |after| format!("{before}{number}{after}"))));
    }
    replies.push(format!("#### {}", "9".repeat(400)));
    replies.push("#### 39 ".repeat(50_000));
    for position in [0, 3] {
        let texts: Vec<_> = tasks.iter().map(|tasks| tasks[position].data.opening()[0].text()).collect();
        assert!(texts.iter().all(|text| *text == texts[0]), "the prompts differ: {texts:#?}");
        for reply in &replies {
            let mut scores = Vec::new();
            for (form, tasks) in forms.iter().zip(&tasks) {
                let trace = scored(&**form, &tasks[position], reply).await;
                scores.push((trace.rewards.clone(), trace.metrics.clone()));
            }
            assert!(
                scores.iter().all(|score| *score == scores[0]),
                "task {position}, {:?}: {scores:#?}",
                reply.chars().take(80).collect::<String>()
            );
        }
    }
}

#[test]
fn a_run_of_one_form_replays_in_another_to_the_same_rewards() {
    let folder = made("python");
    folder.run(&["init", "told", "--kind", "declarative"]).expect(0);
    run(&folder, &["eval", "./sums", "-r", "3", "--run.name", "first"]).expect(0).says("36 planned: 36 scored");
    let replayed = run(&folder, &["replay", "outputs/first", "--taskset", "./told"]).expect(0);
    replayed.says("36 unchanged, 0 up, 0 down");
}

fn open(found: &Found, settings: &Value) -> Arc<dyn Taskset> {
    let layer = rollhouse::config::Layer::from_value(settings);
    let mut reader = Reader::new(Document::new([layer]));
    let opened = (found.open)(&mut reader.root()).unwrap();
    reader.finish().unwrap();
    opened
}

async fn scored(taskset: &dyn Taskset, task: &Task, reply: &str) -> Trace {
    let config = Arc::from(RawValue::from_string("{}".to_owned()).unwrap());
    let agent = AgentInfo { config, runtime: None, name: "agent".to_owned(), trainable: true };
    let mut trace = Trace::new(Arc::clone(task), agent);
    let turn = trace.graph.prepare(&task.data.opening(), Arc::from([]));
    let reply = AssistantMessage { content: Some(reply.to_owned()), ..AssistantMessage::default() };
    trace.graph.commit(turn, reply, None).unwrap();
    taskset.rubric().score(&mut trace).await.unwrap();
    trace
}
