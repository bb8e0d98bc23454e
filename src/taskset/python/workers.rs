//! The pool: which worker makes a call, and what becomes of a worker that cannot be trusted any more.

use std::{
    future, mem,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

use super::{
    Call, CallFailure, FailureKind, Interpreter, Lane,
    frame::{self, Frame},
    worker::{NoAnswer, Worker},
};
use crate::runtime;

/// How workers of a taskset are started.
#[derive(Clone, Debug)]
pub struct WorkerSettings {
    /// The taskset's name, in log lines.
    pub name: String,
    /// The Python to run.
    pub interpreter: Interpreter,
    /// The author's script. Workers run in its folder, which is also where they import from first.
    pub script: PathBuf,
    /// The source of the module `rollhouse`: `open(script_path, arguments)` is called once in each worker,
    /// `handle(op, body)` for each call; that returns a JSON value or an awaitable of one.
    pub module: &'static str,
    /// What `open` is given.
    pub arguments: serde_json::Value,
    /// The most workers of the exclusive lane, at least 1.
    pub count: usize,
    /// How long a worker may take to start and to import the script.
    pub start_deadline: Duration,
    /// Bytes that a worker, and each process it starts, may allocate. A worker whose resident memory has grown by an
    /// eighth of it since the import is replaced between two calls.
    pub memory_limit: u64,
}

impl WorkerSettings {
    /// 8 GiB: what no reward needs, and what a machine survives.
    pub const MEMORY_LIMIT: u64 = 8 << 30;
    /// Importing a large library from a cold disk takes most of a minute.
    pub const START_DEADLINE: Duration = Duration::from_secs(120);
}

/// The workers of a taskset: processes are started when they are needed and end when the last handle is dropped. Cheap to
/// clone.
#[derive(Clone, Debug)]
pub struct Workers(Arc<Pool>);

type Starting = Shared<BoxFuture<'static, Result<Arc<Worker>, CallFailure>>>;

#[derive(Debug)]
struct Pool {
    settings: WorkerSettings,
    /// One for each worker of the exclusive lane that may exist.
    places: Semaphore,
    // Locks held for a push or a pop.
    idle: Mutex<Vec<Worker>>,
    shared: Mutex<Option<Starting>>,
    warned: AtomicBool,
}

impl Workers {
    /// A pool without a process.
    pub fn new(settings: WorkerSettings) -> Self {
        let places = Semaphore::new(settings.count.max(1));
        let (idle, shared, warned) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        Self(Arc::new(Pool { settings, places, idle, shared, warned }))
    }

    /// Makes a call. Dropping the future stops the call: its worker is killed, or in the shared lane the call cancelled.
    ///
    /// # Errors
    /// When the call has no value of this type; the worker that is to blame is replaced, and no other call fails for it. A
    /// process that ends during a call may have been spoilt by an earlier one: the call is made again in a new one first.
    pub async fn call<T: DeserializeOwned>(&self, call: Call<'_>) -> Result<T, CallFailure> {
        value(runtime::run(self.clone().make(Made::of(&call)?)).await)
    }

    /// Makes a call and blocks until it is done, without a tokio runtime.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn call_blocking<T: DeserializeOwned>(&self, call: Call<'_>) -> Result<T, CallFailure> {
        value(runtime::block_on(self.clone().make(Made::of(&call)?)))
    }

    /// A worker of the caller's own, beside those of the lanes, for functions that keep something between calls. It is
    /// started with the first call.
    pub fn dedicated(&self) -> Dedicated {
        Dedicated { pool: self.0.clone(), state: Own::New }
    }

    async fn make(self, call: Made) -> Result<Frame, CallFailure> {
        match call.lane {
            Lane::Exclusive => self.0.alone(&call).await,
            Lane::Shared => match self.0.beside(&call).await {
                Err(NoAnswer::Gone(_)) => self.0.alone(&call).await,
                Err(NoAnswer::Failed(failure)) => Err(failure),
                Ok(frame) => Ok(frame),
            },
        }
    }
}

/// A call as it goes to a worker.
struct Made {
    body: Vec<u8>,
    deadline: Duration,
    lane: Lane,
}

impl Made {
    fn of(call: &Call<'_>) -> Result<Self, CallFailure> {
        let body = frame::call(call.op, call.body);
        if u32::try_from(body.len()).is_err() {
            let problem = format!("the call takes {} bytes, which is too much", body.len());
            return Err(CallFailure::new(FailureKind::Unreadable, problem));
        }
        Ok(Self { body, deadline: call.deadline, lane: call.lane })
    }
}

impl Pool {
    /// A call in a worker that has no other.
    async fn alone(&self, call: &Made) -> Result<Frame, CallFailure> {
        let Ok(_place) = self.places.acquire().await else { return future::pending().await };
        let mut used = true;
        loop {
            let idle = if used { lock(&self.idle).pop() } else { None };
            let worker = match idle {
                Some(worker) if !worker.is_alive() => continue,
                Some(worker) => worker,
                None => Worker::start(&self.settings, false).await?,
            };
            match worker.ask_alone(&call.body, call.deadline).await {
                // It may have been spoilt by an earlier call, by a thread left behind for example.
                Err(NoAnswer::Gone(_)) if worker.calls() > 1 => used = false,
                Err(NoAnswer::Gone(failure) | NoAnswer::Failed(failure)) => return Err(failure),
                Ok(frame) => {
                    let failure = frame.failure().map(|failure| CallFailure { output: worker.told().0, ..failure });
                    if !self.is_spent(&frame) {
                        lock(&self.idle).push(worker);
                    }
                    return failure.map_or(Ok(frame), Err);
                }
            }
        }
    }

    /// A call in the worker of the shared lane.
    async fn beside(&self, call: &Made) -> Result<Frame, NoAnswer> {
        let starting = lock(&self.shared).get_or_insert_with(|| self.start_shared()).clone();
        let started = starting.clone().await;
        let answer = match &started {
            Ok(worker) => worker.ask_beside(&call.body, call.deadline).await,
            Err(failure) => Err(NoAnswer::Failed(failure.clone())),
        };
        let done = match &answer {
            Ok(frame) => self.is_spent(frame),
            Err(NoAnswer::Gone(_)) => true,
            Err(NoAnswer::Failed(_)) => started.is_err(),
        };
        if done {
            // Those in flight keep it until they are done.
            let mut shared = lock(&self.shared);
            if shared.as_ref().is_some_and(|current| current.ptr_eq(&starting)) {
                *shared = None;
            }
        }
        let frame = answer?;
        frame.failure().map_or(Ok(frame), |failure| Err(NoAnswer::Failed(failure)))
    }

    fn start_shared(&self) -> Starting {
        let settings = self.settings.clone();
        async move { Worker::start(&settings, true).await.map(Arc::new) }.boxed().shared()
    }

    fn is_spent(&self, frame: &Frame) -> bool {
        let Some(reason) = frame.spent else { return false };
        let taskset = &self.settings.name;
        if self.warned.swap(true, Ordering::Relaxed) {
            tracing::debug!(%taskset, "a Python worker is replaced: {reason}");
        } else {
            tracing::warn!(%taskset, "a Python worker is replaced: {reason} (said once)");
        }
        true
    }
}

/// A worker of one's own. Dropping it ends the process.
#[derive(Debug)]
pub struct Dedicated {
    pool: Arc<Pool>,
    state: Own,
}

#[derive(Debug)]
enum Own {
    New,
    Ready(Worker),
    /// Ended, and what it kept with it.
    Lost,
}

impl Dedicated {
    /// Makes a call; the lane does not matter. What the functions keep stays for the next call.
    ///
    /// # Errors
    /// When the call has no value of this type. When the process has ended, or a call was dropped on its way, so does every
    /// later call: what it kept is lost.
    pub async fn call<T: DeserializeOwned>(&mut self, call: Call<'_>) -> Result<T, CallFailure> {
        let call = Made::of(&call)?;
        let (pool, state) = (self.pool.clone(), mem::replace(&mut self.state, Own::Lost));
        let made = runtime::run(async move {
            let worker = match state {
                Own::New => Worker::start(&pool.settings, false).await?,
                Own::Ready(worker) => worker,
                Own::Lost => {
                    let problem = "the process ended at an earlier call, and what it kept is lost";
                    return Err(CallFailure::new(FailureKind::Died, problem));
                }
            };
            match worker.ask_alone(&call.body, call.deadline).await {
                Err(NoAnswer::Gone(failure) | NoAnswer::Failed(failure)) => Err(failure),
                Ok(frame) => Ok((worker, frame)),
            }
        });
        let (worker, frame) = made.await.map_err(|error| broken(&error)).flatten()?;
        let failure = frame.failure().map(|failure| CallFailure { output: worker.told().0, ..failure });
        self.state = Own::Ready(worker);
        value(Ok(failure.map_or(Ok(frame), Err)))
    }
}

fn value<T: DeserializeOwned>(answer: std::io::Result<Result<Frame, CallFailure>>) -> Result<T, CallFailure> {
    let frame = answer.map_err(|error| broken(&error))??;
    serde_json::from_slice(&frame.body).map_err(|error| {
        let shown: String = String::from_utf8_lossy(&frame.body).chars().take(80).collect();
        CallFailure::new(FailureKind::Unreadable, format!("it returned `{shown}`: {error}"))
    })
}

fn broken(error: &std::io::Error) -> CallFailure {
    CallFailure::new(FailureKind::CannotStart, error.to_string())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
