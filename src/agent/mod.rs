//! The life of one rollout: setup, harness, finalize; budgets, deadlines, retries and the outcome.
//!
//! What enters is a task and the hooks of its taskset; what leaves is always a complete trace: one that waits to be
//! scored, or one with the failure that decided it. A budget, a full context window, a stop condition of the taskset
//! and the time-out of a stage are ordinary endings that are scored.

mod limits;
mod retry;
mod rollout;
mod seat;
mod tokens;

use std::sync::Arc;

use serde_json::{Map, Value};
use tokio::{sync::mpsc, time::Instant};

use crate::{
    config::{Limits, RetryRules, StageDeadlines},
    harness::Harness,
    inference::Pool,
    store::Event,
    taskset::{Hooks, Task},
    trace::{AgentInfo, Fault, FaultClass, Message, Trace},
};

pub use retry::RetryBudget;
pub use rollout::Rollout;
pub use seat::{client_block, seat};
pub use tokens::{TokenIn, TokenTurns};

/// An agent: harness, model and policy of one seat. Cheap to share between rollouts.
pub struct Agent {
    /// The program that drives the model.
    pub harness: Arc<dyn Harness>,
    /// The endpoint.
    pub pool: Pool,
    /// The model asked.
    pub model: String,
    /// Sampling fields of every call.
    pub sampling: Arc<Map<String, Value>>,
    /// Speaks in exact tokens, for training; `None` speaks in text.
    pub tokens: Option<Arc<TokenIn>>,
    /// Budgets of a rollout.
    pub limits: Limits,
    /// Deadlines that replace the task's own.
    pub deadlines: StageDeadlines,
    /// Retries of a whole rollout.
    pub retries: RetryRules,
    /// The seat as every trace records it.
    pub info: AgentInfo,
    /// Where what happens is told.
    pub events: mpsc::Sender<Event>,
    /// Who sees its rollouts grow.
    pub watch: Option<Arc<dyn Watch>>,
}

/// Sees rollouts while they grow. Called on the task of the rollout; it must return at once.
pub trait Watch: Send + Sync {
    /// A rollout is about to wait, and stands like this: before its setup, each model call, each word of its user or its hooks, and
    /// when the agent is done. `pending` are the messages of a request in flight that no node of the trace holds yet.
    fn changed(&self, trace: &Trace, pending: &[Message]);

    /// A rollout is given up, for another attempt.
    fn discarded(&self, trace: &Trace);
}

impl Agent {
    /// Opens a rollout that its caller drives turn by turn, with the deadline of the whole episode; its setup has run
    /// then. Where that failed or took too long, no segment can run.
    pub async fn begin(
        self: &Arc<Self>,
        task: &Task,
        hooks: Option<Arc<dyn Hooks>>,
        deadline: Option<Instant>,
    ) -> Rollout {
        let mut rollout = Rollout::begin(Arc::clone(self), task, hooks, deadline);
        rollout.set_up().await;
        rollout
    }

    /// Runs a single-segment rollout on the task's own prompt, and again while it fails and may be retried. The trace
    /// carries the failures of the attempts before it. It is not scored.
    pub async fn run(self: &Arc<Self>, task: &Task, hooks: Option<Arc<dyn Hooks>>, deadline: Option<Instant>) -> Trace {
        let mut budget = RetryBudget::new(&self.retries);
        let mut history = Vec::new();
        loop {
            let mut rollout = self.begin(task, hooks.clone(), deadline).await;
            if task.data.prompt.is_none() {
                rollout.fail(Fault::new(FaultClass::Task, "the task has no prompt and no user who opens it"));
            }
            rollout.segment(task.data.opening()).await;
            let mut trace = rollout.finish().await;
            let backoff = if trace.ok { None } else { budget.take(&trace.errors) };
            let Some(backoff) = backoff else {
                trace.errors.splice(0..0, history);
                return trace;
            };
            history.append(&mut trace.errors);
            self.watch.iter().for_each(|watch| watch.discarded(&trace));
            drop(trace);
            tokio::time::sleep(backoff).await;
        }
    }
}
