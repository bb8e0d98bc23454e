//! Harnesses: the programs that drive a model through a task.
//!
//! What enters is what the task or the user says, and a handle to the model; what leaves is a finished segment. The
//! handle records every call and refuses the one that would break a budget, so a harness only has to pass a halt on.

mod null;

use futures::future::BoxFuture;

use crate::trace::{AssistantMessage, Fault, Message};

pub use null::Null;

/// A program that drives a model.
pub trait Harness: Send + Sync {
    /// Runs one segment: says the messages, lets the model work, and ends when it is the user's turn again.
    ///
    /// # Errors
    /// A [`Halt`] when the rollout is over.
    fn segment<'a>(&'a self, say: Vec<Message>, model: &'a mut dyn Model) -> BoxFuture<'a, Result<(), Halt>>;
}

/// The model as a harness sees it: one conversation that grows.
pub trait Model: Send {
    /// Adds messages to the conversation and returns the model's answer, which is then part of it.
    ///
    /// # Errors
    /// A [`Halt`] when a budget refuses the call or the call failed for good.
    fn ask<'a>(&'a mut self, say: Vec<Message>) -> BoxFuture<'a, Result<AssistantMessage, Halt>>;
}

/// Why no further call can be made.
#[derive(Clone, Debug, PartialEq)]
pub enum Halt {
    /// An ordinary ending, under this stop condition: the rollout is scored.
    Stopped(String),
    /// A failure: the rollout has no score.
    Failed(Fault),
}
