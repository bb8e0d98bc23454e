//! What the functions of a Python taskset cannot reach, and what is left of them when a run is killed: nothing.
#![allow(
    clippy::disallowed_methods,
    reason = "tests write the scripts that they run and look through the files of a run"
)]

mod program;

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use nix::{
    sys::{
        signal::{Signal, kill},
        stat::Mode,
    },
    unistd::{Pid, mkfifo},
};
use program::{Done, Folder, Simulator};

fn python() -> String {
    std::env::var("ROLLHOUSE_TEST_PYTHON")
        .expect("ROLLHOUSE_TEST_PYTHON names no interpreter: run the tests with `tests/run`")
}

/// An evaluation of `./taskset.py`.
fn eval(folder: &Folder, flags: &[&str]) -> Command {
    let python = python();
    let start = ["eval", "./taskset.py", "--env.taskset.python", &python, "--max-error-rate", "1"];
    folder.command(&[&start, flags].concat())
}

const TELLS: &str = r#"
import os, sys
from rollhouse import *
@load(size=4)
def tasks(): return [{"prompt": "x", "kind": kind} for kind in ("raises", "why", "prints", "state")]
@setup
def begin(state, kind):
    if kind == "state": state["seen"] = os.environ["MY_TOKEN"]
@reward
def tells(reply, kind):
    seen = os.environ["MY_TOKEN"]
    if kind == "raises": raise ValueError(f"refused with {seen}")
    if kind == "prints": print(seen, file=sys.stderr)
    return 1, f"with {seen}"
@metric
def others(): return sum(name.startswith("OPENAI") or name == "RUN_KEY" for name in os.environ)
"#;

#[test]
fn a_secret_that_is_passed_on_is_written_nowhere() {
    let folder = Folder::new();
    folder.write("taskset.py", TELLS);
    let secret = "tok-4f9a8c21d7";
    let variables = [("MY_TOKEN", secret), ("OPENAI_API_KEY", "sk-12345678"), ("RUN_KEY", "sk-87654321")];
    let flags = ["-v", "--env.taskset.pass-env", r#"["MY_TOKEN"]"#];
    let done = Done::of(eval(&folder, &flags).envs(variables).output().unwrap()).expect(0);
    let run = folder.only_run();
    let traces = program::episodes(&run);
    assert_eq!(traces.len(), 4);
    for episode in &traces {
        assert_eq!(episode["traces"][0]["metrics"]["others"], 0.0, "no other variable is seen");
    }
    assert!(!done.stdout.contains(secret) && !done.stderr.contains(secret), "{done:#?}");
    let mut told = 0;
    for file in files(&run) {
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(!text.contains(secret), "{}", file.display());
        told += text.matches("[redacted]").count();
    }
    assert!(told >= 5, "told {told} times");
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn the_key_of_the_runs_endpoint_is_not_passed_on() {
    let folder = Folder::new();
    folder.write("taskset.py", TELLS);
    let simulator = Simulator::start(&[]);
    for name in ["RUN_KEY", "ALIAS"] {
        let passed = format!(r#"["MY_TOKEN", "{name}"]"#);
        let flags = ["-m", "simulator", "-b", &simulator.base_url, "-k", "RUN_KEY", "--env.taskset.pass-env", &passed];
        let variables = [("MY_TOKEN", "tok-4f9a8c21d7"), ("RUN_KEY", "sk-87654321"), ("ALIAS", "sk-87654321")];
        let done = Done::of(eval(&folder, &flags).envs(variables).output().unwrap()).expect(2);
        let done = done.says(&format!("env.taskset.pass_env: `{name}` holds the key of an endpoint"));
        assert!(!done.stderr.contains("sk-87654321"), "{done:#?}");
    }
    assert!(folder.runs().is_empty());
}

/// Every call hangs, and leaves processes in groups of their own that hold the pipe, too.
const HANGS: &str = r#"
import os, subprocess, time
from rollhouse import *
@load(infinite=True)
def tasks():
    while True: yield {"prompt": "x"}
@reference
def perfect(): return "y"
@reward
def hangs(reply):
    pipe = open("pipe", "w")
    subprocess.Popen(["sleep", "1000"], stdout=pipe, start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
    pipe.write("ready\n")
    pipe.flush()
    time.sleep(1000)
@reward
async def waits(reply):
    import asyncio
    pipe = open("pipe", "w")
    await asyncio.create_subprocess_exec("sleep", "1000", stdout=pipe)
    await asyncio.sleep(1000)
"#;

#[test]
fn a_run_that_is_killed_or_interrupted_leaves_no_process() {
    for interrupted in [false, true] {
        let folder = Folder::new();
        folder.write("taskset.py", HANGS);
        let pipe = folder.path().join("pipe");
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let mut command = eval(&folder, &["-n", "200", "-c", "200", "--env.taskset.workers", "4"]);
        command.env("PATH", "/usr/bin:/bin").stdout(Stdio::null()).stderr(Stdio::piped());
        let mut run = command.spawn().unwrap();
        // As soon as somebody holds it; its end comes when nobody does any more.
        let mut held = File::open(pipe).unwrap();
        let mut line = [0; 6];
        held.read_exact(&mut line).unwrap();
        let pid = Pid::from_raw(run.id().cast_signed());
        let signal = |signal| kill(pid, signal).unwrap();
        let mut said = BufReader::new(run.stderr.take().unwrap()).lines();
        if interrupted {
            signal(Signal::SIGINT);
            // Two at once would be one.
            assert!(said.any(|line| line.unwrap().contains("once more drops them")));
            signal(Signal::SIGINT);
        } else {
            signal(Signal::SIGKILL);
        }
        said.for_each(drop);
        assert_eq!(run.wait().unwrap().code(), interrupted.then_some(130));
        held.read_to_end(&mut Vec::new()).unwrap();
    }
}
