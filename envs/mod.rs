//! Environments: the control flow among agents for one task.
//!
//! What enters is a task; what leaves is its episode, always complete. An env never raises: a failure is recorded in
//! the episode with its class. Scoring is a stage of its own, so that it can be done again without the agents.

mod episodes;
mod scoring;
mod scripted_user;
mod single_agent;

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::time::Instant;

use crate::{
    agent::Agent,
    taskset::{Task, Taskset},
    trace::{Fault, Trace},
};

pub use episodes::{Episodes, Played};
pub use scoring::Scoring;
pub use scripted_user::ScriptedUser;
pub use single_agent::SingleAgent;

/// The control flow among agents for one task.
pub trait Env: Send + Sync {
    /// Runs one task. Agents end by the deadline. Traces need no scores yet; an env that decides by scores asks its own
    /// [`Scoring`].
    fn run<'a>(&'a self, task: &'a Task, deadline: Option<Instant>) -> BoxFuture<'a, Attempt>;
}

/// What one run of an env left behind.
#[derive(Debug, Default)]
pub struct Attempt {
    /// The traces of all its agents, in completion order.
    pub traces: Vec<Trace>,
    /// Failures that belong to no agent.
    pub errors: Vec<Fault>,
    /// A deadline of the env's own ran out.
    pub is_timeout: bool,
}

impl From<Trace> for Attempt {
    fn from(trace: Trace) -> Self {
        Self { traces: vec![trace], ..Self::default() }
    }
}

/// The env of a taskset: its user drives the exchange where it has one, else the agent runs alone.
pub fn for_taskset(taskset: Arc<dyn Taskset>, agent: Arc<Agent>) -> Arc<dyn Env> {
    Arc::new(ScriptedUser::new(taskset, agent))
}
