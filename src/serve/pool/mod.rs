//! A pool of worker processes behind one address.
//!
//! What enters are the requests of clients, as the wire has them; what leaves are the workers' own frames, unread. A worker
//! that dies, stops, stalls or talks nonsense is killed with its group and replaced at once, and its runs are redone on
//! others or failed, as the settings say; no client waits for a run that nobody works on.

mod desk;
mod front;
mod log;
mod run;
mod scale;
mod supervise;
mod worker;

use std::{
    any::Any,
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use tokio::sync::{oneshot, watch};
use tokio_util::task::AbortOnDropHandle;

use self::run::Run;
use super::links;
use crate::{
    config::Redactor,
    runtime::{Child, PrivateFolder},
    zmtp::{self, Address, BindError},
};

/// How a pool works.
#[derive(Clone)]
pub struct PoolSettings {
    /// How many workers there are.
    pub kind: PoolKind,
    /// Runs that each worker works on at a time, told to it at its start; `None` is without bound.
    pub max_concurrent: Option<usize>,
    /// What becomes of the runs of a worker that is lost.
    pub on_lost: OnLost,
    /// How long an elastic pool has more workers than its runs need before it ends one.
    pub idle: Duration,
    /// How long a worker may take from its start until it answers.
    pub startup: Duration,
    /// How long a worker may leave a question for its health unanswered, and say nothing else, before it counts as
    /// stalled. One that is dead or stopped is noticed within seconds whatever this is.
    pub stalled: Duration,
    /// How long a worker may take to end after SIGTERM, before SIGKILL.
    pub grace: Duration,
    /// Where the workers' output is kept, as `worker-N.log`; `None` keeps the last lines of each, for errors, only.
    pub logs: Option<PathBuf>,
    /// Takes secrets out of logs and errors.
    pub redactor: Redactor,
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self {
            kind: PoolKind::default(),
            max_concurrent: None,
            on_lost: OnLost::default(),
            idle: Duration::from_secs(60),
            startup: Duration::from_secs(300),
            stalled: Duration::from_secs(60),
            grace: Duration::from_secs(10),
            logs: None,
            redactor: Redactor::default(),
        }
    }
}

/// How many workers a pool has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolKind {
    /// Always as many.
    Static {
        /// How many; at least one.
        num_workers: usize,
    },
    /// One at first, and one more whenever the runs in flight reach nine tenths of what all are good for.
    Elastic {
        /// At most as many; `None` is without bound.
        max_workers: Option<usize>,
        /// The runs that one worker is good for.
        multiplex: usize,
    },
}

impl Default for PoolKind {
    /// The pool of verifiers 0.4.0.
    fn default() -> Self {
        Self::Elastic { max_workers: None, multiplex: 128 }
    }
}

/// What becomes of the runs of a worker that is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLost {
    /// They are begun anew on another.
    Redo {
        /// How often one run is, before it is held to be what kills its workers.
        max_redos: u32,
    },
    /// They fail, with an error that says that it was not theirs.
    Fail,
}

impl Default for OnLost {
    fn default() -> Self {
        Self::Redo { max_redos: 2 }
    }
}

/// Starts workers: any program that serves the protocol at a given address.
pub trait Crew: Send + Sync {
    /// Starts one. It is asked to end by SIGTERM; its standard output and error are best piped, which brings them into its
    /// log and into errors.
    fn start<'a>(&'a self, seat: &'a Seat) -> BoxFuture<'a, Result<Started, NotStarted>>;
}

/// Where a new worker works.
#[derive(Clone, Debug)]
pub struct Seat {
    /// Its number, from 0; a worker that replaces another has the number of that.
    pub index: usize,
    /// Where it shall listen: a socket in `folder`.
    pub address: Address,
    /// A folder of its own, private to this user and gone with it.
    pub folder: PathBuf,
    /// Runs that it shall work on at a time.
    pub max_concurrent: Option<usize>,
}

/// A worker that was started.
pub struct Started {
    /// Its process.
    pub child: Child,
    /// Where it is reached, if not at the address of its seat.
    pub address: Option<Address>,
    /// What must live as long as it does, such as its box and its routes.
    pub keep: Box<dyn Any + Send>,
}

impl fmt::Debug for Started {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Started").field("child", &self.child).finish_non_exhaustive()
    }
}

impl From<Child> for Started {
    fn from(child: Child) -> Self {
        Self { child, address: None, keep: Box::new(()) }
    }
}

/// Why a worker could not be started; says what the user must change.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotStarted(pub String);

/// Why there is no pool.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PoolError {
    /// Nothing can listen there.
    #[error(transparent)]
    Bind(Arc<BindError>),
    /// There is no place for the workers' sockets.
    #[error("no temporary folder for the sockets of workers: {0}")]
    Folder(Arc<io::Error>),
    /// The settings make no sense.
    #[error("{0}")]
    Settings(&'static str),
    /// No worker comes up, or none stays up: why, and what it said last.
    #[error("{0}")]
    Workers(String),
    /// It was shut down.
    #[error("the pool of env server workers is shut down")]
    Closed,
}

/// What a pool looks like at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolStatus {
    /// Its workers, by their number.
    pub workers: Vec<WorkerStatus>,
    /// Runs that have not ended, with those that were cancelled and are not gone yet.
    pub in_flight: usize,
    /// Those of them that no worker has yet.
    pub waiting: usize,
    /// Workers that were lost, so far.
    pub lost: u64,
    /// Runs that were begun anew, so far; one that was twice counts twice.
    pub redone: u64,
    /// Why the pool gave up.
    pub failed: Option<String>,
}

impl PoolStatus {
    /// How many workers are ready.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.workers.iter().filter(|worker| worker.state == WorkerState::Ready).count()
    }
}

/// What a worker looks like at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerStatus {
    /// Its number.
    pub index: usize,
    /// Its process, once it has one.
    pub pid: Option<u32>,
    /// How far it is.
    pub state: WorkerState,
    /// Runs that it has, or will get when it is ready.
    pub in_flight: usize,
}

/// How far a worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerState {
    /// It does not answer yet.
    Starting,
    /// It works.
    Ready,
    /// It ends what it has, gets no more, and goes.
    Draining,
    /// It was lost, and will be started again after a pause.
    Dead,
}

/// A pool of workers. Dropping it kills them.
#[derive(Debug)]
pub struct Pool {
    address: Address,
    status: watch::Receiver<PoolStatus>,
    close: oneshot::Sender<Duration>,
    task: AbortOnDropHandle<()>,
}

impl Pool {
    /// Listens, and starts the first workers. Requests are accepted from now on and wait until a worker is ready.
    ///
    /// # Errors
    /// When nothing can listen there, or the settings make no sense.
    pub async fn start(address: &Address, settings: PoolSettings, crew: Arc<dyn Crew>) -> Result<Self, PoolError> {
        settings.check()?;
        let folder = PrivateFolder::new().await;
        let folder = folder.map_err(|error| PoolError::Folder(Arc::new(error)))?;
        let bound = links::bind(address, zmtp::Settings::default()).await;
        let (router, guests) = bound.map_err(|error| PoolError::Bind(Arc::new(error)))?;
        let address = router.address().clone();
        let (showing, status) = watch::channel(PoolStatus::default());
        let (close, closed) = oneshot::channel();
        let run = Run::new(settings, crew, router, folder, showing);
        let task = AbortOnDropHandle::new(tokio::spawn(run.work(guests, closed)));
        Ok(Self { address, status, close, task })
    }

    /// Where it listens; with the port that the system gave.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Waits until a worker is ready.
    ///
    /// # Errors
    /// When none comes up: at once, with how it ended and the last lines it wrote.
    pub async fn ready(&self) -> Result<(), PoolError> {
        let mut status = self.status.clone();
        let shown = status.wait_for(|status| status.ready() > 0 || status.failed.is_some()).await;
        match shown.map_err(|_| PoolError::Closed)?.failed.clone() {
            None => Ok(()),
            Some(why) => Err(PoolError::Workers(why)),
        }
    }

    /// What it looks like, now and whenever that changes.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<PoolStatus> {
        self.status.clone()
    }

    /// Waits until it has given up, which it does by itself only when its workers keep dying; why.
    pub async fn failed(&self) -> PoolError {
        let mut status = self.status.clone();
        match status.wait_for(|status| status.failed.is_some()).await {
            Ok(shown) => PoolError::Workers(shown.failed.clone().unwrap_or_default()),
            Err(_) => PoolError::Closed,
        }
    }

    /// Takes no more runs, lets those in flight finish for at most `drain`, cancels the rest, and ends the workers.
    pub async fn shut_down(self, drain: Duration) {
        // Fails when the task has ended, which is what is wanted.
        let _ = self.close.send(drain);
        let _ = self.task.await;
    }
}

impl PoolSettings {
    fn check(&self) -> Result<(), PoolError> {
        let fault = match (self.kind, self.on_lost) {
            (PoolKind::Static { num_workers: 0 }, _) => "`num_workers` is 0; a pool has at least one worker",
            (PoolKind::Elastic { max_workers: Some(0), .. }, _) => "`max_workers` is 0; a pool has at least one worker",
            (PoolKind::Elastic { multiplex: 0, .. }, _) => "`multiplex` is 0; a worker is good for at least one run",
            (_, OnLost::Redo { max_redos: 101.. }) => "`max_redos` is more than 100",
            _ if self.max_concurrent == Some(0) => "`max_concurrent` is 0; a worker works on at least one run",
            _ => return Ok(()),
        };
        Err(PoolError::Settings(fault))
    }
}

/// The log of a worker.
#[must_use]
pub fn log_of(logs: &Path, index: usize) -> PathBuf {
    logs.join(format!("worker-{index}.log"))
}
