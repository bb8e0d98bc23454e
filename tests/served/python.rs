//! The real verifiers in a process of its own.
#![allow(
    unreachable_pub,
    clippy::disallowed_methods,
    reason = "a module of some tests, which ask the peer in a process"
)]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rollhouse::zmtp::Address;
use serde_json::{Value, json};

/// `tests/python/serve_peer.py` at work.
pub struct Python {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    /// Where its env servers are.
    pub addresses: Vec<Address>,
}

impl Python {
    pub fn start(blocks: &[Value]) -> Self {
        let python = std::env::var("ROLLHOUSE_TEST_PYTHON")
            .expect("ROLLHOUSE_TEST_PYTHON names no interpreter with verifiers: run the tests with `tests/run`");
        let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/python");
        let mut child = Command::new(python)
            .arg(tests.join("serve_peer.py"))
            .arg(json!(blocks).to_string())
            .env("PYTHONPATH", tests.join("rh_env"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let mut python = Self { child, stdin, stdout, addresses: Vec::new() };
        let addresses = python.answer();
        python.addresses =
            addresses.as_array().unwrap().iter().map(|text| text.as_str().unwrap().parse().unwrap()).collect();
        python
    }

    fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("the peer is gone: {line}"))
    }

    /// Gives a command and waits for its answer; call it where a thread may block.
    pub fn ask(&mut self, what: &str, mut request: Value) -> Value {
        request["do"] = what.into();
        writeln!(self.stdin.as_mut().unwrap(), "{request}").unwrap();
        self.answer()
    }

    /// Stops it, or lets it go on.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Ends it in good order.
    pub fn end(mut self) {
        drop(self.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
