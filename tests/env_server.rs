//! `rollhouse env-server` as a user runs it.
#![allow(clippy::disallowed_methods, reason = "tests prepare files and processes of their own")]

mod program;

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    net::TcpListener,
    process::{Child, ChildStdout, Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use program::{Folder, Simulator, episodes};
use serde_json::json;

/// A server that takes runs, ended when dropped.
struct Server {
    child: Child,
    stdout: BufReader<ChildStdout>,
    address: String,
}

impl Server {
    fn start(folder: &Folder, words: &[&str]) -> Self {
        let mut command: Command = folder.command(words);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut address = String::new();
        stdout.read_line(&mut address).unwrap();
        Self { child, stdout, address: address.trim().to_owned() }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// The exit status, the rest of the output, and the log.
    fn ended(mut self) -> (Option<i32>, String, String) {
        let code = self.child.wait().unwrap().code();
        let (mut rest, mut log) = (String::new(), String::new());
        self.stdout.read_to_string(&mut rest).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (code, rest, log)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_tells_its_address_once_it_takes_runs_and_drains_when_told_to_end() {
    let folder = Folder::new();
    let simulator = Simulator::start(&["--policy", "oracle", "--ttft-ms", "400"]);
    let server = Server::start(&folder, &["env-server", "reverse-text", "--serve.address", "tcp://127.0.0.1:0"]);
    assert!(server.address.starts_with("tcp://127.0.0.1:") && !server.address.ends_with(":0"), "{}", server.address);
    let words = [
        "eval",
        "reverse-text",
        "-n",
        "4",
        "-c",
        "4",
        "-m",
        "sim",
        "-b",
        &simulator.base_url,
        "--serve.address",
        &server.address,
        "--run.name",
        "drained",
        "--json",
    ];
    let running = folder.command(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = |metrics: &std::collections::BTreeMap<String, f64>| metrics["vllm:num_requests_running"] >= 4.0;
    while !begun(&program::metrics(&simulator.base_url)) {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    server.signal(Signal::SIGTERM);
    let (code, rest, log) = server.ended();
    assert_eq!((code, rest.as_str()), (Some(0), ""), "{log}");
    assert!(log.contains("is served at tcp://127.0.0.1:") && !log.contains("warning"), "{log}");
    // The runs in flight were finished, and nothing was lost.
    let done = program::Done::of(running.wait_with_output().unwrap()).expect(0);
    assert_eq!(done.json()["scored"], json!(4), "{done:#?}");
    assert_eq!(episodes(&folder.path().join("outputs/drained")).len(), 4);
}

#[test]
fn a_second_signal_drops_what_is_in_flight() {
    let folder = Folder::new();
    let simulator = Simulator::start(&["--ttft-ms", "600000"]);
    let socket = folder.path().join("s");
    let address = format!("ipc://{}", socket.display());
    let server =
        Server::start(&folder, &["env-server", "reverse-text", "--serve.address", &address, "--serve.grace", "600"]);
    assert_eq!(server.address, address);
    let words = [
        "eval",
        "reverse-text",
        "-n",
        "1",
        "-m",
        "sim",
        "-b",
        &simulator.base_url,
        "--serve.address",
        &address,
        "--serve.on-lost",
        "fail",
    ];
    let running = folder.command(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while program::metrics(&simulator.base_url)["vllm:num_requests_running"] < 1.0 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    server.signal(Signal::SIGINT);
    server.signal(Signal::SIGTERM);
    let (code, _, log) = server.ended();
    assert_eq!(code, Some(130), "{log}");
    let done = program::Done::of(running.wait_with_output().unwrap()).expect(1);
    done.says("infrastructure");
}

/// An evaluation's configuration, an env block alone, and one of an older kind serve the same env.
#[test]
fn every_file_that_names_an_env_serves_it() {
    let folder = Folder::new();
    folder.write("eval.toml", "model = \"m\"\nnum_rollouts = 4\n[client]\nbase_url = \"http://localhost:1/v1\"\n[env.taskset]\nid = \"alphabet-sort\"\nmax_turns = 2\n");
    folder.write(
        "env.toml",
        "[taskset]\nid = \"alphabet-sort\"\nmax_turns = 2\n[agent]\nmax_turns = 5\n[serve]\nmax_concurrent = 3\n",
    );
    folder.write("old.toml", "id = \"alphabet-sort\"\n");
    for (file, lines) in [
        ("eval.toml", &["env.taskset.max_turns = 2 "][..]),
        ("env.toml", &["env.taskset.max_turns = 2 ", "env.agent.max_turns = 5 ", "serve.max_concurrent = 3 "]),
        ("old.toml", &["env.taskset.id = \"alphabet-sort\" "]),
    ] {
        let done = folder.run(&["env-server", "@", file, "--dry-run"]).expect(0);
        assert!(lines.iter().all(|line| done.stdout.contains(line)), "{file}: {done:#?}");
    }
    folder.write("bad.toml", "[taskset]\nid = \"alphabet-sort\"\nmax_trns = 2\n[agents]\n");
    let done = folder.run(&["env-server", "@", "bad.toml"]).expect(2);
    done.says("bad.toml:3:1: env.taskset.max_trns: unknown key; did you mean")
        .says("bad.toml:4:2: env.agents: unknown key");
}

#[test]
fn what_cannot_be_served_says_so_and_strangers_are_warned_of() {
    let folder = Folder::new();
    folder.run(&["env-server"]).expect(2).says("env.taskset.id: missing");
    folder.run(&["env-server", "reverse-text", "--resume"]).expect(2).says("belongs to `rollhouse eval`");
    folder.run(&["env-server", "--help"]).expect(0).says("--serve.address");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", taken.local_addr().unwrap());
    folder.run(&["env-server", "reverse-text", "--serve.address", &address]).expect(1).says(&address);
    let server = Server::start(&folder, &["env-server", "reverse-text", "--serve.address", "tcp://0.0.0.0:0"]);
    server.signal(Signal::SIGINT);
    let (code, _, log) = server.ended();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("the protocol has no authentication"), "{log}");
    assert!(fs::read_dir(folder.path()).unwrap().next().is_none(), "a server writes nothing where it runs");
}
