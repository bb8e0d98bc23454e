//! One agent, one segment on the task's own prompt.

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::time::Instant;

use super::{Attempt, Env};
use crate::{
    agent::Agent,
    taskset::{Task, Taskset},
};

/// The agent works alone.
pub struct SingleAgent {
    taskset: Arc<dyn Taskset>,
    agent: Arc<Agent>,
}

impl SingleAgent {
    /// An env over a taskset.
    pub fn new(taskset: Arc<dyn Taskset>, agent: Arc<Agent>) -> Self {
        Self { taskset, agent }
    }
}

impl Env for SingleAgent {
    fn run<'a>(&'a self, task: &'a Task, deadline: Option<Instant>) -> BoxFuture<'a, Attempt> {
        Box::pin(async move { self.agent.run(task, self.taskset.hooks(), deadline).await.into() })
    }
}
