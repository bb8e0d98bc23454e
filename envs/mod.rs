//! Environments: the control flow among agents for one task.
//!
//! What enters is a task; what leaves is its episode, always complete. An env never raises: a failure is recorded in
//! the episode with its class.

mod scripted_user;
mod single_agent;

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{FutureExt as _, future::BoxFuture};
use tokio::time::Instant;

use crate::{
    agent::{Agent, RetryBudget},
    config::RetryRules,
    taskset::{Task, Taskset},
    trace::{EnvInfo, Episode, Fault, FaultClass, RunInfo, Trace},
};

pub use scripted_user::ScriptedUser;
pub use single_agent::SingleAgent;

/// The control flow among agents for one task.
pub trait Env: Send + Sync {
    /// Runs one task and returns the traces of all its agents, in completion order. Agents end by the deadline.
    fn run<'a>(&'a self, task: &'a Task, deadline: Option<Instant>) -> BoxFuture<'a, Vec<Trace>>;
}

/// The env of a taskset: its user drives the exchange where it has one, else the agent runs alone.
pub fn for_taskset(taskset: Arc<dyn Taskset>, agent: Arc<Agent>) -> Arc<dyn Env> {
    Arc::new(ScriptedUser::new(taskset, agent))
}

/// How long agents may take to end after the episode's deadline before they are dropped with their traces.
const TEARDOWN: Duration = Duration::from_secs(5);

/// Runs episodes of one env: deadline, retries, and a record of every failure.
pub struct Episodes {
    /// The control flow.
    pub env: Arc<dyn Env>,
    /// How episodes name it.
    pub info: EnvInfo,
    /// The run they belong to.
    pub run: RunInfo,
    /// Bound on one episode, retries not included; `None` is no bound.
    pub deadline: Option<Duration>,
    /// Retries of a whole episode.
    pub retries: RetryRules,
}

impl Episodes {
    /// Runs one episode, and again while it fails and may be retried; the failures of earlier attempts stand first.
    pub async fn run(&self, task: &Task) -> Episode {
        let mut budget = RetryBudget::new(&self.retries);
        let mut history = Vec::new();
        loop {
            let mut episode = self.attempt(task).await;
            let backoff = if episode.ok { None } else { budget.take(&failures(&episode)) };
            let Some(backoff) = backoff else {
                episode.errors.splice(0..0, history);
                return episode;
            };
            history.extend(failures(&episode));
            tokio::time::sleep(backoff).await;
        }
    }

    async fn attempt(&self, task: &Task) -> Episode {
        let mut episode = Episode::new(self.info.clone(), Arc::clone(task), Some(self.run.clone()));
        // A deadline beyond the clock's end is none.
        let deadline = self.deadline.and_then(|deadline| Instant::now().checked_add(deadline));
        let run = AssertUnwindSafe(self.env.run(task, deadline)).catch_unwind();
        let ended = match deadline {
            None => Some(run.await),
            Some(deadline) => {
                tokio::time::timeout_at(deadline.checked_add(TEARDOWN).unwrap_or(deadline), run).await.ok()
            }
        };
        match ended {
            Some(Ok(traces)) => {
                episode.ok = !traces.is_empty() && traces.iter().all(|trace| trace.ok);
                episode.is_timeout =
                    traces.iter().any(|trace| trace.stop_condition.as_deref() == Some("episode_timeout"));
                episode.traces = traces;
            }
            Some(Err(panic)) => episode.errors.push(Fault::from_panic(FaultClass::Task, "the env", panic.as_ref())),
            None => {
                episode.is_timeout = true;
                let message = "the episode did not end by its deadline; its agents were dropped";
                episode.errors.push(Fault::new(FaultClass::Infrastructure, message));
            }
        }
        episode
    }
}

/// The episode's own failures and those of its failed traces, in the order they were recorded.
fn failures(episode: &Episode) -> Vec<Fault> {
    let of_traces = episode.traces.iter().filter(|trace| !trace.ok).flat_map(|trace| &trace.errors);
    episode.errors.iter().chain(of_traces).cloned().collect()
}
