//! Scoring: what comes after the agents' work, and may be done again without it.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};

use crate::{
    agent::RetryBudget,
    config::RetryRules,
    rubric::Ledger,
    taskset::Taskset,
    trace::{Fault, FaultClass, TaskData, TimeSpan, Trace},
};

/// How finished rollouts are scored: the taskset's rubric, under a deadline, with retries of its own. An env whose control
/// flow needs scores has one and asks it itself; a rollout that is scored is not scored again.
pub struct Scoring {
    /// Whose rubric.
    pub taskset: Arc<dyn Taskset>,
    /// Bound on the scoring of one rollout or group, instead of the task's own.
    pub deadline: Option<Duration>,
    /// Retries of a rollout and of an episode: each failure of the scoring takes one of the first that has one for it.
    pub retries: [RetryRules; 2],
}

impl Scoring {
    /// Scores a finished rollout, and again while that fails and may be retried. One that failed or is scored already
    /// stays as it is. `deadline` is that of the whole episode.
    pub async fn score(&self, trace: &mut Trace, deadline: Option<Instant>) {
        if !trace.ok || self.taskset.rubric().has_scored(trace) {
            return;
        }
        let mut budgets = self.budgets();
        while let Err(fault) = self.attempt(trace, deadline).await {
            trace.ok = false;
            trace.errors.push(fault.clone());
            let in_time = deadline.is_none_or(|deadline| deadline > Instant::now());
            let Some(backoff) = in_time.then(|| take(&mut budgets, &fault)).flatten() else { return };
            tokio::time::sleep(backoff).await;
            trace.reopen_scoring();
        }
    }

    /// Scores all rollouts of a task with regard to each other; each is scored by itself already.
    ///
    /// # Errors
    /// The failure that left all of them without their group rewards, after its retries.
    pub async fn score_group(&self, task: &TaskData, group: &mut [&mut Trace]) -> Result<(), Fault> {
        let rubric = self.taskset.rubric();
        let mut budgets = self.budgets();
        loop {
            let scored = within(self.end(task, None), rubric.score_group(task, group)).await;
            let Err(fault) = scored.unwrap_or_else(|| Err(too_slow())) else { return Ok(()) };
            let Some(backoff) = take(&mut budgets, &fault) else { return Err(fault) };
            tokio::time::sleep(backoff).await;
        }
    }

    async fn attempt(&self, trace: &mut Trace, deadline: Option<Instant>) -> Result<(), Fault> {
        let ledger = Ledger::default();
        let end = self.end(&trace.task.data, deadline);
        trace.timing.scoring = TimeSpan::begin();
        let scored = within(end, self.taskset.rubric().score_into(trace, &ledger)).await;
        // Also what a scoring that was dropped has spent.
        ledger.settle(trace);
        trace.timing.scoring.finish();
        scored.unwrap_or_else(|| {
            trace.record_timeout("scoring");
            Err(too_slow())
        })
    }

    /// When a scoring that begins now must end.
    fn end(&self, task: &TaskData, episode: Option<Instant>) -> Option<Instant> {
        let own = task.timeout.scoring.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let stage = self.deadline.or(own).and_then(|stage| Instant::now().checked_add(stage));
        stage.into_iter().chain(episode).min()
    }

    fn budgets(&self) -> [RetryBudget<'_>; 2] {
        self.retries.each_ref().map(RetryBudget::new)
    }
}

fn take(budgets: &mut [RetryBudget<'_>], fault: &Fault) -> Option<Duration> {
    budgets.iter_mut().find_map(|budget| budget.take(std::slice::from_ref(fault)))
}

fn too_slow() -> Fault {
    Fault::new(FaultClass::Scoring, "scoring did not finish within its deadline").retryable(true)
}

async fn within<T>(end: Option<Instant>, work: impl Future<Output = T>) -> Option<T> {
    match end {
        None => Some(work.await),
        Some(end) => timeout_at(end, work).await.ok(),
    }
}
