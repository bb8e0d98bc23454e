//! Drives the built program as a user does: commands, a simulator process, run folders.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::disallowed_methods,
    reason = "each test file uses a part of it; tests spawn the program"
)]

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

/// A folder to run in, gone at the end.
pub struct Folder {
    dir: TempDir,
}

impl Folder {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// A command of the program, run in this folder with nothing of the caller's environment but the path.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rollhouse"));
        command.args(arguments).current_dir(self.path()).env_clear().stdin(Stdio::null());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Done {
        Done::of(self.command(arguments).output().unwrap())
    }

    /// The run folders below `outputs/`.
    pub fn runs(&self) -> Vec<PathBuf> {
        let folders = |path: PathBuf| -> Vec<PathBuf> {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
        };
        let groups = folders(self.path().join("outputs"));
        let is_run = |path: &PathBuf| path.join("traces.jsonl").exists();
        groups.iter().cloned().chain(groups.iter().cloned().flat_map(folders)).filter(is_run).collect()
    }

    /// The only run folder below `outputs/`.
    pub fn only_run(&self) -> PathBuf {
        let mut runs = self.runs();
        assert_eq!(runs.len(), 1, "{runs:?}");
        runs.remove(0)
    }
}

/// A finished command.
#[derive(Debug)]
pub struct Done {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Done {
    pub fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    #[track_caller]
    pub fn says(self, text: &str) -> Self {
        assert!(self.stdout.contains(text) || self.stderr.contains(text), "`{text}` is missing in {self:#?}");
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("stdout is not one JSON value: {error}: {self:#?}"))
    }
}

/// A simulator process, ended when dropped.
pub struct Simulator {
    child: Child,
    pub base_url: String,
}

impl Simulator {
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_with_env(arguments, &[])
    }

    pub fn start_with_env(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_rollhouse"))
            .args(["sim", "--port", "0"])
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let start = line.find("http://").unwrap_or_else(|| panic!("no address in `{line}`"));
        let base_url = line[start..].split_whitespace().next().unwrap().to_owned();
        Self { child, base_url }
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines of a run's journal, parsed.
pub fn episodes(run: &Path) -> Vec<Value> {
    let text = fs::read_to_string(run.join("traces.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The sums of a simulator's metrics over their labels.
pub fn metrics(base_url: &str) -> BTreeMap<String, f64> {
    let address = base_url.trim_start_matches("http://").trim_end_matches("/v1");
    let mut connection = TcpStream::connect(address).unwrap();
    connection.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    connection.read_to_string(&mut text).unwrap();
    let mut sums = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("vllm:")) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let name = name.split('{').next().unwrap().to_owned();
        *sums.entry(name).or_insert(0.0) += value.parse::<f64>().unwrap();
    }
    sums
}
