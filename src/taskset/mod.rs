//! Tasksets: lazy loaders of tasks, with the rubric that scores them and the user who talks in them.
//!
//! Opening a taskset reads its config only; data is read as the stream is polled. No key and no network is needed to
//! list, describe or open one. What leaves is a [`TaskStream`], most often through [`select`].

mod adapted;
mod class;
pub mod dataset;
mod declarative;
pub mod local;
pub mod python;
mod random;
mod registry;
mod sample;
pub mod verifiers;

use std::{path::PathBuf, sync::Arc};

use futures::{StreamExt, future::BoxFuture, stream, stream::BoxStream};
use serde_json::{Map, Value};

pub use adapted::Adapted;
pub use class::type_name;
pub use random::PythonRandom;
pub use registry::{Found, Opener, Shipped, find_in};
pub use sample::{planned, select};

use crate::{
    config::Faults,
    rubric::Rubric,
    trace::{Fault, Message, TaskData, Trace, TraceTask},
};

/// A loader of tasks.
pub trait Taskset: Send + Sync {
    /// The tasks in their unfiltered order, read as they are asked for. The same stream every time. Polling it needs
    /// a tokio runtime when the data is a file: files are read on blocking threads. It ends after the first error.
    fn tasks(&self) -> TaskStream;

    /// The tasks from a position on. The default reads and drops those before it; a taskset that makes its tasks from
    /// their positions does better.
    fn tasks_from(&self, position: u64) -> TaskStream {
        let skipped = usize::try_from(position).unwrap_or(usize::MAX);
        let mut passed = 0;
        // Errors among the dropped tasks must still come out.
        let rest = self.tasks().filter(move |task| {
            let keep = task.is_err() || passed >= skipped;
            passed += 1;
            std::future::ready(keep)
        });
        rest.boxed()
    }

    /// How many there are.
    fn size(&self) -> TasksetSize;

    /// How rollouts of its tasks are scored.
    fn rubric(&self) -> &Rubric;

    /// The user of a multi-turn task; `None` for single-turn tasks.
    fn user(&self, _task: &TraceTask) -> Option<Box<dyn User>> {
        None
    }

    /// What runs around the model's turns: setup, stop conditions, finalize; `None` when there is nothing.
    fn hooks(&self) -> Option<Arc<dyn Hooks>> {
        None
    }

    /// The environment variables that its own functions see because somebody passed them on; none for a taskset whose
    /// functions are part of this program.
    fn passed_variables(&self) -> &[String] {
        &[]
    }

    /// What a perfect model would answer next in a conversation of this taskset, told from the conversation alone; `None`
    /// if it is not one of its own. This is the simulator's `oracle` policy when it serves alone.
    fn solve(&self, _conversation: &[Message]) -> Option<String> {
        None
    }

    /// What a perfect model would answer next to one of its tasks; `None` where there is no reference answer. Validation
    /// and simulated runs play with it. The default asks [`Self::solve`].
    fn reference<'a>(
        &'a self,
        _task: &'a TraceTask,
        conversation: &'a [Message],
    ) -> BoxFuture<'a, Result<Option<String>, Fault>> {
        Box::pin(std::future::ready(Ok(self.solve(conversation))))
    }
}

/// Tasks as they are read.
pub type TaskStream = BoxStream<'static, Result<Task, TasksetError>>;

/// One task, cheap to clone.
pub type Task = Arc<TraceTask>;

/// How many tasks a taskset has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TasksetSize {
    /// Exactly this many.
    Finite(u64),
    /// An end, but where is only known after reading.
    Unknown,
    /// No end.
    Infinite,
}

/// What a taskset's own functions keep for the length of a rollout. JSON, so that it outlives the process that made it and
/// is there again when an old rollout is scored anew; the trace records it ([`Trace::state`]).
pub type State = Map<String, Value>;

/// A rollout between two turns, as the taskset's own functions see it.
#[derive(Debug)]
pub struct Exchange<'a> {
    /// The conversation so far.
    pub conversation: &'a [Message],
    /// What the taskset keeps for this rollout.
    pub state: &'a mut State,
}

/// Whoever talks with the model in a multi-turn task. One per rollout; it may keep state of its own, too.
pub trait User: Send {
    /// What the user does after the conversation so far (empty when the user opens it). It takes none of the agent's time:
    /// only the deadline of the whole episode, `env.timeout.episode`, ends it. One that waits for something outside bounds
    /// itself, as a function of a `taskset.py` does with its `timeout`.
    fn reply<'a>(&'a mut self, exchange: Exchange<'a>) -> BoxFuture<'a, Result<UserTurn, Fault>>;
}

/// What runs around the turns of every rollout of a taskset.
pub trait Hooks: Send + Sync {
    /// Runs before the first turn. A failure fails the rollout.
    fn setup<'a>(&'a self, _task: &'a TraceTask, _state: &'a mut State) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Asked after each model turn: the name of the stop condition that ends the rollout now, in the ordinary way.
    fn stop<'a>(
        &'a self,
        _task: &'a TraceTask,
        _exchange: Exchange<'a>,
    ) -> BoxFuture<'a, Result<Option<String>, Fault>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Runs after the last turn of a rollout that did not fail, before it is scored.
    fn finalize<'a>(&'a self, _trace: &'a Trace, _state: &'a mut State) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// What a user does.
#[derive(Clone, Debug, PartialEq)]
pub enum UserTurn {
    /// Says something; the model answers.
    Say(Vec<Message>),
    /// Ends the conversation.
    Close,
}

/// Why tasks could not be loaded. The message names the file and the row, and says what to change.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TasksetError {
    /// The data is not there or cannot be read.
    #[error("{0}")]
    Source(String),
    /// One row is broken.
    #[error("{file}:{row}: {problem}")]
    Row {
        /// The file.
        file: String,
        /// The row, from 1; in a text file the line.
        row: u64,
        /// What is wrong and what is expected.
        problem: String,
    },
    /// The selection cannot be made of this taskset.
    #[error("{0}")]
    Select(String),
    /// What declares the taskset has faults.
    #[error("{0}")]
    Declaration(Faults),
    /// The taskset is a program of its own.
    #[error("the taskset in {} is a Rust package of its own, which this program cannot open", folder.display())]
    Package {
        /// The folder of its `Cargo.toml`.
        folder: PathBuf,
    },
    /// No taskset has this name.
    #[error("unknown taskset `{id}`{}{}", registry::suggestion(nearest), registry::folder_hint(folder.as_deref()))]
    Unknown {
        /// The name asked for.
        id: String,
        /// The names most like it, best first.
        nearest: Vec<String>,
        /// A folder that it may mean.
        folder: Option<String>,
    },
}

/// Tasks that are made from their positions: `make(idx)` for each position from `start` up to `count`, without end when
/// there is no count. `make` gives the row; its `idx` is set here.
pub fn generated(
    kind: &'static str,
    start: u64,
    count: Option<u64>,
    make: impl Fn(u64) -> TaskData + Send + 'static,
) -> TaskStream {
    let tasks = (start..count.unwrap_or(u64::MAX)).map(move |idx| {
        let mut data = make(idx);
        data.idx = Some(idx);
        Ok(Arc::new(TraceTask::new(kind, data)))
    });
    stream::iter(tasks).boxed()
}
