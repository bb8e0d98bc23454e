//! A process of `bridge.py`: asked one thing after another, a line of JSON each way. All of it lives on the thread of the
//! processes.

use std::{
    collections::HashMap,
    fmt,
    os::fd::OwnedFd,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json, value::RawValue};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::unix::pipe,
    time,
};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    runtime::{self, Child, Program, Signal, Stream},
    taskset::python::{Interpreter, Output, end_in_words, frame_in_words},
};

const BRIDGE: &str = include_str!("bridge.py");
/// The variable that holds the bridge, so that it stands on no command line.
const BRIDGE_VARIABLE: &str = "ROLLHOUSE_BRIDGE";
const BOOTSTRAP: &str = "import os; exec(compile(os.environ.pop('ROLLHOUSE_BRIDGE'), '<rollhouse>', 'exec'))";
/// What the bridge serves stands in variables of this name and a number: the system bounds the length of each.
const SERVE_VARIABLE: &str = "ROLLHOUSE_SERVE";
const PART: usize = 64 << 10;

/// How long a process has to do what takes no time.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the last words of an ended process are waited for.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Why Python did not answer; displays with its frames and what was printed last, a line each.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
pub struct BridgeError {
    /// What went wrong, in one line, with the place in the package where it is known.
    pub message: String,
    /// The package's frames, outermost first, as Python writes them.
    pub traceback: Vec<String>,
    /// What was printed last.
    pub output: Vec<String>,
}

impl fmt::Display for BridgeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        for line in &self.traceback {
            write!(f, "\n{line}")?;
        }
        if !self.output.is_empty() {
            f.write_str("\nlast output:")?;
            for line in &self.output {
                write!(f, "\n{line}")?;
            }
        }
        Ok(())
    }
}

impl BridgeError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }
}

/// An exception, as the bridge tells it.
#[derive(Debug, Deserialize)]
pub(super) struct Told {
    #[serde(rename = "type")]
    kind: String,
    message: String,
    place: Option<String>,
    traceback: Vec<String>,
}

impl Told {
    /// As an error, with what was printed before it.
    pub(super) fn into_error(self, output: Vec<String>) -> BridgeError {
        let place = self.place.map(|place| format!(" ({place})")).unwrap_or_default();
        let separator = if self.message.is_empty() { "" } else { ": " };
        let message = format!("{}{separator}{}{place}", self.kind, self.message);
        BridgeError { message, traceback: self.traceback, output }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer<T> {
    Value(T),
    Error(Told),
}

/// Dropping it kills it.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    requests: pipe::Sender,
    answers: BufReader<pipe::Receiver>,
    output: Arc<Mutex<Output>>,
    listening: AbortOnDropHandle<()>,
}

impl Process {
    /// Starts one; `name` is who prints.
    pub(super) async fn start(interpreter: &Interpreter, name: &str) -> Result<Self, BridgeError> {
        let program =
            Program { stdin: Stream::Piped, stdout: Stream::Piped, stderr: Stream::Piped, ..program(interpreter) };
        let mut child = Child::start(program).await.map_err(|error| BridgeError::new(error.to_string()))?;
        let pipes = |error: std::io::Error| BridgeError::new(format!("no pipes to Python: {error}"));
        let missing = || std::io::Error::other("not piped");
        let receiver = |stream: Option<OwnedFd>| pipe::Receiver::from_owned_fd(stream.ok_or_else(missing)?);
        let requests = child.stdin.take().ok_or_else(missing).and_then(pipe::Sender::from_owned_fd).map_err(pipes)?;
        let answers = receiver(child.stdout.take()).map_err(pipes)?;
        let errors = receiver(child.stderr.take()).map_err(pipes)?;
        let output = Arc::new(Mutex::new(Output::new(name.into())));
        let listening = AbortOnDropHandle::new(tokio::spawn(listen(errors, Arc::clone(&output))));
        Ok(Self { child, requests, answers: BufReader::with_capacity(64 << 10, answers), output, listening })
    }

    /// Sends a request whose answer is read by [`Self::line`].
    pub(super) async fn send(&mut self, request: &Value) -> Result<(), BridgeError> {
        lock(&self.output).begin();
        let sent = self.requests.write_all(format!("{request}\n").as_bytes()).await;
        if sent.is_err() { Err(self.ended().await) } else { Ok(()) }
    }

    /// The next line of an answer; whether more stands ready behind it.
    pub(super) async fn line(&mut self, line: &mut Vec<u8>, deadline: Duration) -> Result<bool, BridgeError> {
        line.clear();
        match time::timeout(deadline, self.answers.read_until(b'\n', line)).await {
            Ok(Ok(count)) if count > 0 && line.ends_with(b"\n") => Ok(self.answers.buffer().contains(&b'\n')),
            Ok(_) => Err(self.ended().await),
            Err(_) => Err(self.hung(deadline).await),
        }
    }

    /// What was printed last.
    pub(super) fn told(&self) -> Vec<String> {
        lock(&self.output).told().0
    }

    async fn ask<T: DeserializeOwned>(
        &mut self,
        request: &Value,
        deadline: Duration,
    ) -> Result<Answer<T>, BridgeError> {
        self.send(request).await?;
        let mut line = Vec::new();
        self.line(&mut line, deadline).await?;
        // What was printed came before the answer, on another pipe.
        tokio::task::yield_now().await;
        serde_json::from_slice(&line).map_err(|error| unreadable(&line, &error))
    }

    /// The error of a process that has ended, or closed its streams.
    async fn ended(&mut self) -> BridgeError {
        let status = match time::timeout(PATIENCE, self.child.wait()).await {
            Ok(Ok(status)) => end_in_words(status),
            Ok(Err(error)) => error.to_string(),
            Err(_) => {
                self.child.signal(Signal::SIGKILL);
                "it closed its private streams".to_owned()
            }
        };
        self.last_words(format!("the Python process ended: {status}")).await
    }

    /// Kills a process that does not answer; Python says where it was.
    async fn hung(&mut self, deadline: Duration) -> BridgeError {
        self.child.signal(Signal::SIGABRT);
        let _ = time::timeout(PATIENCE, self.child.wait()).await;
        self.child.signal(Signal::SIGKILL);
        self.last_words(format!("no answer within {} s", deadline.as_secs_f64())).await
    }

    async fn last_words(&mut self, message: String) -> BridgeError {
        let _ = time::timeout(LAST_WORDS, &mut self.listening).await;
        let (output, traceback) = lock(&self.output).told();
        let place = traceback.last().and_then(|frame| frame_in_words(frame));
        let place = place.map(|place| format!(" ({place})")).unwrap_or_default();
        BridgeError { message: message + &place, traceback, output }
    }
}

/// The error of a line that is no answer, as when a package writes to descriptors that are not its own.
pub(super) fn unreadable(line: &[u8], error: &serde_json::Error) -> BridgeError {
    let begins = String::from_utf8_lossy(&line[..line.len().min(60)]);
    let message =
        format!("wrote {begins:?} where its answer is read, which is no descriptor of the package's: {error}");
    BridgeError::new(message)
}

/// Asks a kept process, or a new one, and keeps it for the next question where it answered.
pub(super) fn ask<T: DeserializeOwned + Send + 'static>(
    kept: &Kept,
    interpreter: &Interpreter,
    name: &str,
    request: Value,
    deadline: Duration,
) -> Result<T, BridgeError> {
    let (interpreter, name, before) = (interpreter.clone(), name.to_owned(), kept.take());
    let asked = runtime::block_on(async move {
        let mut process = match before {
            Some(process) => process,
            None => Process::start(&interpreter, &name).await?,
        };
        let answer = process.ask(&request, deadline).await?;
        Ok::<_, BridgeError>((process, answer))
    });
    let (process, answer) = asked.map_err(|error| BridgeError::new(error.to_string())).flatten()?;
    let answer = match answer {
        Answer::Value(value) => Ok(value),
        Answer::Error(told) => Err(told.into_error(process.told())),
    };
    kept.keep(process);
    answer
}

/// A process of an interpreter that waits for the next question, whoever has it: Python takes seconds to import verifiers.
// A lock, because the process goes from hand to hand; it is never waited for.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept(Arc<Slot>);

type Slot = Mutex<Option<Process>>;

/// One for each interpreter that somebody still has a package of.
static KEPT: LazyLock<Mutex<HashMap<String, Weak<Slot>>>> = LazyLock::new(Mutex::default);

impl Kept {
    /// That of an interpreter, with its whole environment.
    pub(super) fn of(interpreter: &Interpreter) -> Self {
        let mut all = lock(&KEPT);
        all.retain(|_, kept| kept.strong_count() > 0);
        let key = format!("{interpreter:?}");
        if let Some(kept) = all.get(&key).and_then(Weak::upgrade) {
            return Self(kept);
        }
        let kept = Arc::default();
        all.insert(key, Arc::downgrade(&kept));
        Self(kept)
    }

    pub(super) fn take(&self) -> Option<Process> {
        lock(&self.0).take()
    }

    fn keep(&self, process: Process) {
        let before = lock(&self.0).replace(process);
        drop(before);
    }
}

/// A line of an answer that has many.
#[derive(Deserialize)]
pub(super) struct Line<'a> {
    /// A row; in an error, its position.
    #[serde(borrow)]
    pub(super) row: Option<&'a RawValue>,
    /// Why there are no more.
    pub(super) error: Option<Told>,
    /// How many there are; the last line.
    pub(super) end: Option<u64>,
}

/// Python with the bridge, which answers requests on its streams.
fn program(interpreter: &Interpreter) -> Program {
    let mut arguments = interpreter.arguments.clone();
    arguments.extend(["-c".into(), BOOTSTRAP.into()]);
    let mut environment = interpreter.environment.clone();
    environment.push((BRIDGE_VARIABLE.into(), BRIDGE.into()));
    // What is printed before a crash is seen.
    environment.push(("PYTHONUNBUFFERED".into(), "1".into()));
    Program { arguments, environment, ..Program::new(&interpreter.program) }
}

/// Python with the bridge, which serves an env.
pub(super) fn server_program(
    interpreter: &Interpreter,
    env: &Value,
    address: &str,
    max_concurrent: Option<u32>,
) -> Program {
    let mut program = Program { stderr: Stream::Piped, ..program(interpreter) };
    let text = json!({"env": env, "address": address, "max_concurrent": max_concurrent}).to_string();
    let mut rest = text.as_str();
    let mut number = 0;
    while !rest.is_empty() {
        let mut end = rest.len().min(PART);
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        let (part, after) = rest.split_at(end);
        program.environment.push((format!("{SERVE_VARIABLE}_{number:03}").into(), part.into()));
        (rest, number) = (after, number + 1);
    }
    program
}

async fn listen(errors: pipe::Receiver, output: Arc<Mutex<Output>>) {
    let mut bytes = [0; 16 << 10];
    while errors.readable().await.is_ok() {
        match errors.try_read(&mut bytes) {
            Ok(0) => return,
            Ok(count) => lock(&output).take(&bytes[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
