//! Tasksets: lazy loaders of tasks, with the rubric that scores them and the user who talks in them.
//!
//! Opening a taskset reads its config only; data is read as the stream is polled. No key and no network is needed to
//! list, describe or open one.

use std::sync::Arc;

use futures::{future::BoxFuture, stream::BoxStream};

use crate::{
    rubric::Rubric,
    trace::{Fault, Message, TraceTask},
};

/// A loader of tasks.
pub trait Taskset: Send + Sync {
    /// The tasks in their unfiltered order, read as they are asked for. The same stream every time.
    fn tasks(&self) -> TaskStream;

    /// How many there are.
    fn size(&self) -> TasksetSize;

    /// How rollouts of its tasks are scored.
    fn rubric(&self) -> &Rubric;

    /// The user of a multi-turn task; `None` for single-turn tasks.
    fn user(&self, _task: &TraceTask) -> Option<Box<dyn User>> {
        None
    }

    /// What a perfect model would answer next in a conversation of this taskset; `None` if it is not one of its own.
    /// This is the simulator's `oracle` policy.
    fn solve(&self, _conversation: &[Message]) -> Option<String> {
        None
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

/// Whoever talks with the model in a multi-turn task. One per rollout; it may keep state.
pub trait User: Send {
    /// What the user does after the conversation so far (empty when the user opens it).
    fn reply<'a>(&'a mut self, conversation: &'a [Message]) -> BoxFuture<'a, Result<UserTurn, Fault>>;
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
#[derive(Clone, Debug, thiserror::Error)]
pub enum TasksetError {
    /// The data is not there or cannot be read.
    #[error("{0}")]
    Source(String),
    /// One row is broken.
    #[error("{file}:{row}: {problem}")]
    Row {
        /// The file.
        file: String,
        /// The row, from 1.
        row: u64,
        /// What is wrong and what is expected.
        problem: String,
    },
}
