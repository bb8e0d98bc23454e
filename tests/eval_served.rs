//! `rollhouse eval` on envs that are served: by workers of the run's own, in boxes or not, or by a server elsewhere.
#![allow(clippy::disallowed_methods, reason = "tests prepare files and processes of their own")]

mod program;
#[path = "support/venv.rs"]
mod venv;

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use program::{Done, Folder, Simulator, episodes};
use serde_json::{Value, json};

/// A command that finds programs, and the packages of the tests.
fn command(folder: &Folder, words: &[&str]) -> Command {
    let mut command = folder.command(words);
    command.env("PATH", env::var_os("PATH").unwrap_or_default()).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("PYTHONPATH", venv::test_packages());
    command
}

fn run(folder: &Folder, words: &[&str]) -> Done {
    Done::of(command(folder, words).output().unwrap())
}

/// The flags with which a package of the tests is found.
fn with_python(words: &[&str]) -> Vec<String> {
    let python = venv::test_python().display().to_string();
    let more = ["--python".to_owned(), python, "--serve.pass-env".to_owned(), "PYTHONPATH".to_owned()];
    words.iter().map(|word| (*word).to_owned()).chain(more).collect()
}

fn run_python(folder: &Folder, words: &[&str]) -> Done {
    let words = with_python(words);
    run(folder, &words.iter().map(String::as_str).collect::<Vec<_>>())
}

/// A program that tells its address in its first line, ended when dropped.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
        let mut address = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
        Self { child, address: address.trim().to_owned() }
    }

    fn end(mut self) -> Option<i32> {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for what is bound to come; the bound is for a machine that is busy.
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "{what} did not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The processes that a process started, by what is on their command lines.
fn children(of: u32, word: &str) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse::<u32>().ok());
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if parent == Some(of) && String::from_utf8_lossy(&words).contains(word) {
            found.push(pid);
        }
    }
    found
}

/// What the real verifiers derives of a run, which it must be able to load.
fn peer(run: &Path) -> Value {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/eval_peer.py");
    let output = Command::new(venv::test_python()).arg(script).arg(run).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice::<Value>(&output.stdout).unwrap()[0].clone()
}

fn resolved(run: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(run.join("configs/resolved/eval.json")).unwrap()).unwrap()
}

/// A worker that dies in the middle, several agents in an episode, a resume, and verifiers reads it all.
#[test]
fn a_package_of_verifiers_is_evaluated_by_workers_of_the_runs_own() {
    let folder = Folder::new();
    let once = folder.path().join("died");
    let words = ["eval", "rh-pair", "-n", "2", "-r", "2", "--json", "--run.name", "pair"];
    let task = format!("{{\"die\": true, \"once\": {:?}}}", once.to_str().unwrap());
    let mut all = words.to_vec();
    all.extend(["--env.taskset.task", &task, "--env.solver.max-turns", "3", "--serve.pool.type", "static"]);
    all.extend(["--serve.pool.num-workers", "1"]);
    let done = run_python(&folder, &all).expect(0);
    assert!(once.exists(), "the worker was to die once");
    let results = done.json();
    assert_eq!((&results["scored"], &results["failed"]), (&json!(4), &json!(0)), "{results:#}");
    let run_dir = folder.path().join("outputs/pair");
    let config = resolved(&run_dir);
    assert_eq!(config["env"]["solver"]["max_turns"], 3);
    assert_eq!(config["env"]["critic"]["max_turns"], 1, "what Python resolved is shown");
    assert_eq!(config["env"]["solver"]["runtime"]["type"], "subprocess");
    let log = fs::read_to_string(run_dir.join("logs/latest/worker-0.log")).unwrap();
    assert!(log.contains("last words of a worker"), "{log}");
    let written = episodes(&run_dir);
    assert!(written.iter().all(|episode| episode["traces"].as_array().unwrap().len() == 3), "{written:#?}");
    folder.run(&["why", run_dir.to_str().unwrap(), "0"]).expect(0).says("exact scored");

    // What is lost is redone, and only that.
    let text = fs::read_to_string(run_dir.join("traces.jsonl")).unwrap();
    let kept: Vec<&str> = text.lines().take(3).collect();
    fs::write(run_dir.join("traces.jsonl"), format!("{}\n", kept.join("\n"))).unwrap();
    let again = run_python(&folder, &["eval", "--resume", run_dir.to_str().unwrap(), "--json"]).expect(0);
    assert_eq!(again.json()["scored"], 4);
    let now = fs::read_to_string(run_dir.join("traces.jsonl")).unwrap();
    assert!(kept.iter().all(|line| now.contains(line)) && now.lines().count() == 4);

    let theirs = peer(&run_dir);
    assert_eq!((&theirs["episodes"], &theirs["ok"], &theirs["hashes"]), (&json!(4), &json!(4), &json!(true)));
}

#[test]
fn the_block_of_a_package_is_checked_by_python_and_its_faults_stand_where_they_were_written() {
    let folder = Folder::new();
    folder.write(
        "bad.toml",
        "[env.taskset]\nid = \"owner/rh-env@1.0\"\ncuont = 3\n[env.agent]\nmax_trns = 1\n[env.taskset.task]\nslow = \"x\"\n",
    );
    let done = run_python(&folder, &["eval", "@", "bad.toml", "--env.taskset.count", "many"]).expect(2);
    for line in [
        "bad.toml:3:9: env.taskset.cuont: unknown key; did you mean `count`?",
        "bad.toml:5:12: env.agent.max_trns: unknown key; did you mean `max_turns`?",
        "bad.toml:7:8: env.taskset.task.slow: input should be a valid number",
        "--env.taskset.count: env.taskset.count: input should be a valid integer",
    ] {
        assert!(done.stderr.contains(line), "`{line}` is missing in {done:#?}");
    }
    assert!(!folder.path().join("outputs").exists());
    // Words get the type that the package gives them.
    let words =
        ["eval", "rh-env", "--env.taskset.task.once", "5", "--env.taskset.wordy", "-a", "{\"count\": 3}", "--dry-run"];
    let done = run_python(&folder, &words).expect(0);
    for line in ["env.taskset.task.once = \"5\"", "env.taskset.wordy = true", "env.taskset.count = 3"] {
        assert!(done.stdout.contains(line), "`{line}` is missing in {done:#?}");
    }
    run_python(&folder, &["eval", "rh-env", "--help"]).expect(0).says("--env.taskset.broken-at");
    run_python(&folder, &["eval", "rh-absent"])
        .expect(2)
        .says("unknown taskset `rh-absent`")
        .says("rollhouse env install");
    run_python(&folder, &["eval", "rh-broken"]).expect(2).says("env.taskset.id");
}

/// Tries to get out of its box, from the function of a taskset; the assertion that fails is the error of the rollout.
const PRISONER: &str = r#"
import os, socket, subprocess
from rollhouse import load, reference, reward

@load
def tasks():
    for a in range(3):
        yield {"prompt": f"{a} + {a}?", "answer": str(2 * a)}

@reference
def perfect(answer):
    return answer

@reward
def graded(reply, answer):
    return len(reply) + int(answer) / 8

@reward(weight=0.0)
def enclosed():
    if os.environ["HOME"] != "/tmp":
        return 0.0
    # The home of the host, what else lies beside the taskset, and the run with its logs.
    for path in (HOME, os.path.dirname(HOME) + "/outputs", "/var/log", "/sys"):
        assert not os.path.exists(path), path
    assert not os.access(__file__, os.W_OK) and not os.access(os.path.dirname(__file__), os.W_OK)
    # Other workers: of all sockets and processes there are its own alone.
    pools = [name for name in os.listdir("/tmp") if name.startswith("rollhouse-")]
    assert len(pools) == 1 and len(os.listdir("/tmp/" + pools[0])) == 1, pools
    lines = [open(f"/proc/{pid}/cmdline").read() for pid in os.listdir("/proc") if pid.isdigit() and pid != "1"]
    assert sum("env-server" in line for line in lines) == 1, lines
    # The network but for the endpoint.
    for address in (("1.1.1.1", 80), ("127.0.0.1", PORT)):
        try:
            socket.create_connection(address, 5)
        except OSError:
            continue
        raise AssertionError(address)
    # Variables that no worker needs, in whatever process.
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for name in ("environ", "cmdline"):
            try:
                text = open(f"/proc/{pid}/{name}").read()
            except OSError:
                continue
            assert "value-of-the-host" not in text, (pid, name)
    # Something that goes its own way, and stays.
    subprocess.Popen(["/bin/sh", "-c", "setsid sleep 1006.25 </dev/null >/dev/null 2>&1 &"], env={}).wait()
    return 1.0
"#;

#[test]
fn a_boxed_worker_reaches_no_home_no_other_worker_no_network_and_no_variable_of_ours() {
    let folder = Folder::new();
    let home = folder.write("home/.key", "of the host").parent().unwrap().to_owned();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    folder.write("sums/taskset.py", &format!("HOME, PORT = {:?}, {port}\n{PRISONER}", home.to_str().unwrap()));
    let results = |name: &str, more: &[&str]| {
        let words = ["eval", "./sums", "-r", "2", "--json", "--run.name", name];
        let mut command = command(&folder, &[&words, more].concat());
        command.env("HOME", &home).env("A_SECRET", "value-of-the-host");
        let done = Done::of(command.output().unwrap()).expect(0);
        let results = done.json();
        assert_eq!(results["scored"], 6, "{results:#} {}", done.stderr);
        results
    };
    let two = ["--serve.pool.type", "static", "--serve.pool.num-workers", "2"];
    let boxed = results("boxed", &[&two[..], &["--serve.runtime.type", "sandbox"]].concat());
    assert_eq!(boxed["rewards"]["enclosed"]["mean"], 1.0, "{boxed:#}");
    assert_eq!(sleepers("1006.25"), 0, "something outlived the run");
    let free = results("free", &two);
    assert_eq!(free["rewards"]["enclosed"]["mean"], 0.0, "{free:#}");
    assert_eq!(free["reward"], boxed["reward"]);
    let theirs = peer(&folder.path().join("outputs/boxed"));
    assert_eq!((&theirs["ok"], &theirs["client"]), (&json!(6), &json!("eval")));
}

/// How many processes sleep for so long, which no other test does.
fn sleepers(seconds: &str) -> usize {
    let wanted = format!("sleep\0{seconds}\0");
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter(|entry| fs::read_to_string(entry.path().join("cmdline")).is_ok_and(|line| line == wanted)).count()
}

#[test]
fn a_package_of_verifiers_scores_the_same_in_a_box() {
    let folder = Folder::new();
    let words = ["eval", "rh-env", "-n", "2", "--json"];
    let free = run_python(&folder, &words).expect(0).json();
    let in_box = ["--serve.runtime.type", "sandbox", "--serve.runtime.memory", "2"];
    let boxed = run_python(&folder, &[&words[..], &in_box].concat()).expect(0).json();
    assert_eq!((&boxed["scored"], &boxed["failed"]), (&json!(2), &json!(0)), "{boxed:#}");
    assert_eq!((&free["reward"], &free["rewards"]), (&boxed["reward"], &boxed["rewards"]));
}

/// Rewards of a group see what models said, and no worker sees a whole group.
#[test]
fn a_box_that_would_not_hold_a_function_is_refused() {
    let folder = Folder::new();
    folder.write(
        "group/taskset.py",
        "from rollhouse import group_reward, load\n\n@load\ndef tasks():\n    yield {\"prompt\": \"a\", \"answer\": \"a\"}\n\n\
         @group_reward\ndef best(group):\n    return [1.0 for _ in group]\n",
    );
    run(&folder, &["eval", "./group", "--serve.runtime.type", "sandbox"])
        .expect(2)
        .says("serve.runtime: a sandbox does not hold");
    // One that has no folder of its own would bring the home along.
    folder.write("taskset.py", "from rollhouse import load\n\n@load\ndef tasks():\n    yield {\"prompt\": \"a\"}\n");
    let mut command = command(&folder, &["eval", "./taskset.py", "--serve.runtime.type", "sandbox"]);
    Done::of(command.env("HOME", folder.path()).output().unwrap()).expect(2).says("sees your home");
}

/// Both kinds of server: that of verifiers, and ours with Python behind it.
#[test]
fn an_evaluation_connects_to_a_server_elsewhere() {
    let folder = Folder::new();
    let script = "import multiprocessing, sys, threading\n\
                  from verifiers.v1.serve import serve_env\n\
                  def main():\n    address = multiprocessing.Queue()\n    \
                  threading.Thread(target=lambda: print(address.get(), flush=True), daemon=True).start()\n    \
                  block = {'taskset': {'id': 'rh-env'}, 'agent': {'runtime': {'type': 'subprocess'}}}\n    \
                  serve_env(max_workers=1, address='tcp://127.0.0.1:0', address_queue=address, config_data=block)\n\
                  main()\n";
    let mut theirs = Command::new(venv::test_python());
    theirs.args(["-c", script]).env("PYTHONPATH", venv::test_packages()).env("PYTHONDONTWRITEBYTECODE", "1");
    let words = with_python(&["env-server", "rh-env", "--serve.address", "tcp://127.0.0.1:0"]);
    let ours = command(&folder, &words.iter().map(String::as_str).collect::<Vec<_>>());
    for (kind, server) in [("verifiers", theirs), ("rollhouse", ours)] {
        let server = Server::start(server);
        let words =
            ["eval", "rh-env", "-n", "3", "-r", "2", "--serve.address", &server.address, "--json", "--run.name", kind];
        let results = run_python(&folder, &words).expect(0).json();
        assert_eq!((&results["scored"], &results["failed"]), (&json!(6), &json!(0)), "{kind}: {results:#}");
        assert_eq!(server.end(), Some(0), "{kind}");
    }
}

#[test]
fn a_taskset_of_rollhouses_own_scores_the_same_wherever_it_runs() {
    let folder = Folder::new();
    let simulator = Simulator::start(&["--policy", "oracle", "--error-rate", "0.3"]);
    let base = ["eval", "alphabet-sort", "-n", "6", "-r", "2", "-m", "sim", "-b", &simulator.base_url, "--json"];
    let server =
        Server::start(command(&folder, &["env-server", "alphabet-sort", "--serve.address", "tcp://127.0.0.1:0"]));
    let mut means = Vec::new();
    for (name, more) in [
        ("here", &[][..]),
        ("workers", &["--serve.pool.type", "static", "--serve.pool.num-workers", "2"]),
        ("elsewhere", &["--serve.address", &server.address]),
    ] {
        let words: Vec<&str> = base.iter().copied().chain(["--run.name", name]).chain(more.iter().copied()).collect();
        let results = run(&folder, &words).expect(0).json();
        assert_eq!((&results["scored"], &results["failed"]), (&json!(12), &json!(0)), "{name}: {results:#}");
        means.push(results["turns"]["mean"].clone());
    }
    assert!(means.windows(2).all(|pair| pair[0] == pair[1]), "{means:?}");
    // A resumed run may be served elsewhere.
    let run_dir = folder.path().join("outputs/workers");
    run(&folder, &["eval", "--resume", run_dir.to_str().unwrap(), "--serve.address", &server.address]).expect(0);
    let words = ["eval", "alphabet-sort", "-n", "1", "--env.agent.max-turns", "3", "--serve.address", &server.address];
    run(&folder, &words).expect(0).says("no effect have env.agent.max_turns");
}

#[test]
fn a_worker_that_is_killed_costs_nothing_and_a_stopped_run_leaves_nothing() {
    let folder = Folder::new();
    let simulator = Simulator::start(&["--policy", "oracle", "--ttft-ms", "500"]);
    let words = [
        "eval",
        "reverse-text",
        "-n",
        "12",
        "-r",
        "1",
        "-c",
        "4",
        "-m",
        "sim",
        "-b",
        &simulator.base_url,
        "--json",
        "--serve.pool.type",
        "static",
        "--serve.pool.num-workers",
        "2",
    ];
    let running = command(&folder, &words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let workers = wait_for("the workers", || {
        let runs = folder.runs();
        let begun = runs.first().is_some_and(|run| !episodes(run).is_empty());
        Some(children(running.id(), "env-server")).filter(|found| found.len() == 2 && begun)
    });
    kill(Pid::from_raw(workers[0]), Signal::SIGKILL).unwrap();
    let done = Done::of(running.wait_with_output().unwrap()).expect(0);
    let results = done.json();
    assert_eq!((&results["scored"], &results["failed"]), (&json!(12), &json!(0)), "{results:#}");
    done.says("1 lost");

    let folder = Folder::new();
    let simulator = Simulator::start(&["--fault", "hang:1"]);
    let mut words = words;
    words[11] = &simulator.base_url;
    let running = command(&folder, &words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let workers =
        wait_for("the workers", || Some(children(running.id(), "env-server")).filter(|found| found.len() == 2));
    let pid = Pid::from_raw(running.id().cast_signed());
    wait_for("the run", || folder.path().join("outputs").read_dir().ok().map(drop));
    wait_for("the first run", || {
        let log = find(&folder.path().join("outputs"), "eval.log")?;
        fs::read_to_string(log).ok().filter(|log| log.contains("run start"))
    });
    kill(pid, Signal::SIGINT).unwrap();
    kill(pid, Signal::SIGTERM).unwrap();
    assert_eq!(Done::of(running.wait_with_output().unwrap()).code, Some(130));
    for worker in workers {
        assert!(!Path::new(&format!("/proc/{worker}")).exists(), "a worker outlived its run");
    }
}

fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    for entry in fs::read_dir(folder).ok()?.flatten() {
        let path = entry.path();
        if entry.file_name() == name {
            return Some(path);
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir())
            && let Some(found) = find(&path, name)
        {
            return Some(found);
        }
    }
    None
}

#[test]
fn a_server_that_is_not_there_or_cannot_start_ends_the_run_with_the_reason() {
    let folder = Folder::new();
    let words = ["eval", "reverse-text", "-n", "2", "--serve.address", "ipc:///nowhere/s", "--serve.startup", "0.5"];
    run(&folder, &words).expect(1).says("there is no env server at ipc:///nowhere/s");
    // Something else is there, which will not become an env server; the default is to wait for minutes.
    let simulator = Simulator::start(&["--policy", "oracle"]);
    let port = simulator.base_url.trim_start_matches("http://").trim_end_matches("/v1");
    let words = ["eval", "reverse-text", "-n", "2", "--serve.address", &format!("tcp://{port}")];
    run(&folder, &words).expect(1).says("is no env server (the peer is no ZeroMQ socket)");
    // The rewards of another taskset are none of this one.
    let words = ["env-server", "alphabet-sort", "--serve.address", "tcp://127.0.0.1:0"];
    let server = Server::start(command(&folder, &words));
    let words = ["eval", "reverse-text", "-n", "2", "-m", "sim", "-b", &simulator.base_url, "--serve.address"];
    run(&folder, &[&words[..], &[&server.address]].concat())
        .expect(1)
        .says("serves `alphabet-sort`, not `reverse-text`");
    server.end();
    run(&folder, &["eval", "reverse-text", "-n", "2", "--serve.address", "tcp://localhost"])
        .expect(2)
        .says("serve.address");
    // The oracle's own functions work, the worker's do not.
    let words =
        ["eval", "rh-env", "--env.taskset.task.die", "--serve.on-lost", "fail", "--max-error-rate", "1", "-n", "2"];
    run_python(&folder, &words).expect(0).says("infrastructure");
}
