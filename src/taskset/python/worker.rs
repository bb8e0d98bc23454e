//! One Python process: its start, its calls, its end. All of it lives on the thread of the processes.

use std::{
    collections::HashMap,
    io,
    os::fd::OwnedFd,
    pin::pin,
    process::ExitStatus,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt as _, future::FusedFuture as _};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncWriteExt, BufReader},
    net::unix::pipe,
    sync::{mpsc, oneshot},
    time,
};

use super::{
    CallFailure, FailureKind, WorkerSettings,
    frame::{self, Frame, Kind},
    output::Output,
};
use crate::runtime::{Child, Program, Signal, Stream};

const BRIDGE: &str = include_str!("bridge.py");
/// Reads the bridge from the input, so that it stands on no command line, and runs it.
const BOOTSTRAP: &str = "import os, sys
if sys.version_info < (3, 8):
    sys.exit('Python 3.8 or newer is needed, this is ' + sys.version.split()[0])
requests = os.fdopen(os.dup(0), 'rb')
exec(compile(requests.read(int(requests.readline())), '<rollhouse>', 'exec'))
";

/// How long a process has to do what takes no time: to end when it is told to, to give back a call that is cancelled.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the last words of an ended process are waited for; what it left behind may hold the stream open.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// The calls that have no answer yet; `None` when there will be no more answers.
type Waiting = Option<HashMap<u64, oneshot::Sender<Frame>>>;

/// A Python process that has imported the script. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Worker {
    child: Child,
    // Unbounded: no more frames than there are calls in flight.
    frames: mpsc::UnboundedSender<Vec<u8>>,
    // Locks, because a future has to be `Send`; only one thread comes here.
    waiting: Arc<Mutex<Waiting>>,
    output: Arc<Mutex<Output>>,
    calls: AtomicU64,
    /// Where the script lies.
    folder: String,
}

/// Why a call has no answer.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// The function's own doing.
    Failed(CallFailure),
    /// The process ended or hung with this call in flight.
    Gone(CallFailure),
}

/// What the bridge needs at its start.
#[derive(Serialize)]
struct Start<'a> {
    mark: &'a str,
    module: &'a str,
    script: &'a str,
    arguments: &'a serde_json::Value,
    shared: bool,
    largest: usize,
    growth: u64,
}

impl Worker {
    /// Starts a process and waits until it has imported the script.
    pub(super) async fn start(settings: &WorkerSettings, shared: bool) -> Result<Self, CallFailure> {
        let cannot = |problem: String| CallFailure::new(FailureKind::CannotStart, problem);
        let child = Child::start(program(settings)).await.map_err(|error| {
            cannot(format!("{error}; check that it is a Python interpreter, 3.8 or newer, that runs by itself"))
        })?;
        let mark = format!("\0{}", uuid::Uuid::new_v4());
        let worker =
            Self::connect(child, settings, &mark).map_err(|error| cannot(format!("no pipes to Python: {error}")))?;
        let start = Start {
            mark: &mark,
            module: settings.module,
            script: settings.script.to_str().ok_or_else(|| cannot(format!("{:?} is not UTF-8", settings.script)))?,
            arguments: &settings.arguments,
            shared,
            largest: frame::LARGEST,
            growth: settings.memory_limit / 8,
        };
        let opening = frame::opening(BRIDGE, &start).map_err(|error| cannot(error.to_string()))?;
        let mut answer = worker.expect(0).ok_or_else(|| cannot("Python ended at once".to_owned()))?;
        let _ = worker.frames.send(opening);
        let name = settings.script.file_name().unwrap_or_default().to_string_lossy();
        let failure = match time::timeout(settings.start_deadline, &mut answer).await {
            Ok(Ok(frame)) => match frame.failure() {
                None => return Ok(worker),
                Some(failure) => CallFailure { output: worker.told().0, ..failure },
            },
            Ok(Err(_)) => worker.died().await,
            Err(_) => worker.hung(&mut answer, settings.start_deadline).await,
        };
        Err(CallFailure {
            kind: FailureKind::CannotStart,
            message: format!("{name} cannot be imported: {}", failure.message),
            ..failure
        })
    }

    fn connect(mut child: Child, settings: &WorkerSettings, mark: &str) -> io::Result<Self> {
        let missing = || io::Error::other("not piped");
        let input = pipe::Sender::from_owned_fd(child.stdin.take().ok_or_else(missing)?)?;
        let receiver = |stream: Option<OwnedFd>| pipe::Receiver::from_owned_fd(stream.ok_or_else(missing)?);
        let (answers, errors) = (receiver(child.stdout.take())?, receiver(child.stderr.take())?);
        let (frames, queue) = mpsc::unbounded_channel();
        let waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        let output = Arc::new(Mutex::new(Output::new(settings.name.as_str().into())));
        let folder = settings.script.parent().map_or_else(String::new, |folder| folder.display().to_string());
        tokio::spawn(write(input, queue));
        tokio::spawn(read(answers, errors, mark.to_owned(), waiting.clone(), output.clone()));
        Ok(Self { child, frames, waiting, output, calls: AtomicU64::new(0), folder })
    }

    /// Whether it still answers.
    pub(super) fn is_alive(&self) -> bool {
        lock(&self.waiting).is_some()
    }

    /// How many calls it was given.
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Makes the only call of this worker, and kills the worker when the deadline has passed.
    pub(super) async fn ask_alone(&self, body: &[u8], deadline: Duration) -> Result<Frame, NoAnswer> {
        lock(&self.output).begin();
        let Some(mut asked) = self.ask(body) else { return Err(NoAnswer::Gone(self.died().await)) };
        match time::timeout(deadline, &mut asked.answer).await {
            Ok(Ok(frame)) => Ok(frame),
            Ok(Err(_)) => Err(NoAnswer::Gone(self.died().await)),
            Err(_) => Err(NoAnswer::Failed(self.hung(&mut asked.answer, deadline).await)),
        }
    }

    /// Makes a call beside others. When the deadline has passed, the call alone is cancelled, if the process does so.
    pub(super) async fn ask_beside(&self, body: &[u8], deadline: Duration) -> Result<Frame, NoAnswer> {
        let Some(mut asked) = self.ask(body) else { return Err(NoAnswer::Gone(self.died().await)) };
        match time::timeout(deadline, &mut asked.answer).await {
            Ok(Ok(frame)) => Ok(frame),
            Ok(Err(_)) => Err(NoAnswer::Gone(self.died().await)),
            Err(_) => {
                asked.cancel();
                if let Ok(Ok(_)) = time::timeout(PATIENCE, &mut asked.answer).await {
                    return Err(NoAnswer::Failed(too_late(deadline)));
                }
                // Which call holds it up is found out by making each alone.
                self.child.signal(Signal::SIGKILL);
                Err(NoAnswer::Gone(too_late(deadline)))
            }
        }
    }

    fn ask(&self, body: &[u8]) -> Option<Asked<'_>> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let answer = self.expect(number)?;
        // Fails only when the process has ended, which the answer tells.
        let _ = self.frames.send(frame::frame(number, frame::CALL, body));
        Some(Asked { worker: self, number, answer })
    }

    fn expect(&self, number: u64) -> Option<oneshot::Receiver<Frame>> {
        let (answer, answered) = oneshot::channel();
        lock(&self.waiting).as_mut()?.insert(number, answer);
        Some(answered)
    }

    /// What it printed last, and the frames it dumped.
    pub(super) fn told(&self) -> (Vec<String>, Vec<String>) {
        lock(&self.output).told()
    }

    /// The failure of a call whose process has ended.
    async fn died(&self) -> CallFailure {
        let status = match time::timeout(PATIENCE, self.child.wait()).await {
            Ok(Ok(status)) => described(status),
            Ok(Err(error)) => error.to_string(),
            Err(_) => {
                self.child.signal(Signal::SIGKILL);
                "it closed its private streams".to_owned()
            }
        };
        self.ended(FailureKind::Died, format!("the Python process ended: {status}"))
    }

    /// Kills a process that does not answer in time; Python says where it was.
    async fn hung(&self, answer: &mut oneshot::Receiver<Frame>, deadline: Duration) -> CallFailure {
        self.child.signal(Signal::SIGABRT);
        let _ = time::timeout(PATIENCE, answer).await;
        self.child.signal(Signal::SIGKILL);
        self.ended(FailureKind::TimedOut, too_late(deadline).message)
    }

    fn ended(&self, kind: FailureKind, message: String) -> CallFailure {
        let (output, traceback) = self.told();
        // The innermost of the author's own lines, if there is one.
        let own = traceback.iter().rfind(|frame| frame.contains(&*self.folder)).or(traceback.last());
        let place = own.and_then(|frame| place(frame)).map(|place| format!(" ({place})")).unwrap_or_default();
        CallFailure { kind, message: message + &place, traceback, output }
    }
}

/// A call in flight; dropped without an answer it is cancelled.
struct Asked<'a> {
    worker: &'a Worker,
    number: u64,
    answer: oneshot::Receiver<Frame>,
}

impl Asked<'_> {
    fn cancel(&self) {
        let _ = self.worker.frames.send(frame::frame(self.number, frame::CANCEL, b""));
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let unanswered = lock(&self.worker.waiting).as_mut().is_some_and(|calls| calls.remove(&self.number).is_some());
        if unanswered {
            self.cancel();
        }
    }
}

fn program(settings: &WorkerSettings) -> Program {
    let interpreter = &settings.interpreter;
    let mut arguments = interpreter.arguments.clone();
    arguments.extend(["-c".into(), BOOTSTRAP.into()]);
    let mut environment = interpreter.environment.clone();
    if !environment.iter().any(|(name, _)| name == "PYTHONHASHSEED") {
        // The same order of a set in every worker.
        environment.push(("PYTHONHASHSEED".into(), "0".into()));
    }
    Program {
        arguments,
        environment,
        folder: settings.script.parent().map(Into::into),
        stdin: Stream::Piped,
        stdout: Stream::Piped,
        stderr: Stream::Piped,
        memory_limit: Some(settings.memory_limit),
        ..Program::new(&interpreter.program)
    }
}

async fn write(mut input: pipe::Sender, mut queue: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(frame) = queue.recv().await {
        // The process has ended; its other streams say so.
        if input.write_all(&frame).await.is_err() {
            return;
        }
    }
}

/// Hands answers and output on until the process ends.
async fn read(
    answers: pipe::Receiver,
    errors: pipe::Receiver,
    mark: String,
    waiting: Arc<Mutex<Waiting>>,
    output: Arc<Mutex<Output>>,
) {
    {
        let mut listening = pin!(listen(&errors, &output).fuse());
        let mut answering = pin!(answer(answers, &mark, &waiting, &errors, &output));
        let ended = loop {
            tokio::select! {
                ended = &mut answering => break ended,
                () = &mut listening, if !listening.is_terminated() => {}
            }
        };
        if let Err(error) = ended {
            lock(&output).take(format!("\n{error}\n").as_bytes());
        }
        if !listening.is_terminated() {
            let _ = time::timeout(LAST_WORDS, listening).await;
        }
    }
    lock(&output).close();
    *lock(&waiting) = None;
}

async fn answer(
    answers: pipe::Receiver,
    mark: &str,
    waiting: &Mutex<Waiting>,
    errors: &pipe::Receiver,
    output: &Mutex<Output>,
) -> io::Result<()> {
    let mut answers = BufReader::with_capacity(64 << 10, answers);
    // Where the mark never comes, the reason stands on the other stream.
    if frame::skip_to(mark.as_bytes(), &mut answers).await.is_err() {
        return Ok(());
    }
    while let Some(frame) = frame::read(&mut answers).await? {
        // What the call printed came before its answer.
        drain(errors, output);
        lock(output).close();
        let asked = lock(waiting).as_mut().and_then(|calls| calls.remove(&frame.number));
        if let Some(asked) = asked {
            // Nobody waits for a call that was dropped.
            let _ = asked.send(frame);
        }
    }
    Ok(())
}

async fn listen(errors: &pipe::Receiver, output: &Mutex<Output>) {
    while errors.readable().await.is_ok() {
        if drain(errors, output) {
            return;
        }
    }
}

/// Takes what is there of the output, up to what the pipe may hold several times; whether it has ended.
fn drain(errors: &pipe::Receiver, output: &Mutex<Output>) -> bool {
    let mut bytes = [0; 32 << 10];
    for _ in 0..8 {
        match errors.try_read(&mut bytes) {
            Ok(0) => return true,
            Ok(count) => lock(output).take(&bytes[..count]),
            Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
        }
    }
    false
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `File "/x/taskset.py", line 5 in f` as `taskset.py:5 in f`.
pub(in crate::taskset) fn place(frame: &str) -> Option<String> {
    let (file, rest) = frame.trim().strip_prefix("File \"")?.split_once("\", line ")?;
    Some(format!("{}:{rest}", file.rsplit('/').next()?))
}

fn too_late(deadline: Duration) -> CallFailure {
    CallFailure::new(FailureKind::TimedOut, format!("no answer within {} s", deadline.as_secs_f64()))
}

pub(in crate::taskset) fn described(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.code(), status.signal().map(Signal::try_from)) {
        (Some(code), _) => format!("exit status {code}"),
        (_, Some(Ok(Signal::SIGKILL))) => "killed by SIGKILL, as the system does when memory runs out".to_owned(),
        (_, Some(Ok(signal))) => format!("killed by {signal}"),
        _ => status.to_string(),
    }
}

/// What the bridge tells of an exception.
#[derive(Deserialize)]
struct Told {
    #[serde(rename = "type")]
    kind: String,
    message: String,
    #[serde(rename = "where")]
    place: Option<String>,
    traceback: Vec<String>,
}

impl Frame {
    /// The failure that an answer tells of; `None` when it is a value.
    pub(super) fn failure(&self) -> Option<CallFailure> {
        let text = String::from_utf8_lossy(&self.body);
        match self.kind {
            Kind::Value => None,
            Kind::Unreadable => {
                let problem = serde_json::from_slice(&self.body).unwrap_or_else(|_| text.into_owned());
                Some(CallFailure::new(FailureKind::Unreadable, format!("it returned no JSON: {problem}")))
            }
            Kind::Raised => Some(match serde_json::from_slice::<Told>(&self.body) {
                Err(_) => CallFailure::new(FailureKind::Raised, text),
                Ok(told) => {
                    let place = told.place.map(|place| format!(" ({place})")).unwrap_or_default();
                    let message = told.message.split_whitespace().collect::<Vec<_>>().join(" ");
                    let separator = if message.is_empty() { "" } else { ": " };
                    let message = format!("{}{separator}{message}{place}", told.kind);
                    CallFailure { traceback: told.traceback, ..CallFailure::new(FailureKind::Raised, message) }
                }
            }),
        }
    }
}
