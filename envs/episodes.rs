//! Episodes of one env: played, scored, retried, and each failure recorded.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt as _;
use tokio::time::Instant;

use super::{Attempt, Env, Scoring};
use crate::{
    agent::{RetryBudget, Watch},
    config::RetryRules,
    taskset::Task,
    trace::{EnvInfo, Episode, Fault, FaultClass, GroupInfo, RunInfo, Trace},
};

/// How long agents may take to end after the episode's deadline before they are dropped with their traces.
const TEARDOWN: Duration = Duration::from_secs(5);

/// Runs and scores episodes of one env: deadline, retries, and a record of every failure.
pub struct Episodes {
    /// The control flow.
    pub env: Arc<dyn Env>,
    /// How its rollouts are scored.
    pub scoring: Scoring,
    /// How episodes name it.
    pub info: EnvInfo,
    /// The run they belong to; `None` where that is for somebody else to say.
    pub run: Option<RunInfo>,
    /// Bound on one episode, retries not included; `None` is no bound.
    pub deadline: Option<Duration>,
    /// Retries of a whole episode.
    pub retries: RetryRules,
    /// Who sees its rollouts grow.
    pub watch: Option<Arc<dyn Watch>>,
}

/// An episode whose agents are done.
#[derive(Debug)]
pub struct Played {
    /// The episode; ok if no agent failed.
    pub episode: Episode,
    /// When it must be scored.
    pub deadline: Option<Instant>,
}

impl Episodes {
    /// Lets the agents of one episode work, and again while they fail and may be retried; the failures of earlier
    /// attempts stand first.
    pub async fn play(&self, task: &Task) -> Played {
        let mut budget = RetryBudget::new(&self.retries);
        let mut history = Vec::new();
        loop {
            let mut played = self.attempt(task).await;
            let episode = &mut played.episode;
            let backoff = if episode.ok { None } else { budget.take(&failures(episode)) };
            let Some(backoff) = backoff else {
                episode.errors.splice(0..0, history);
                return played;
            };
            history.extend(failures(episode));
            for trace in &episode.traces {
                self.watch.iter().for_each(|watch| watch.discarded(trace));
            }
            tokio::time::sleep(backoff).await;
        }
    }

    /// An episode as it was written down, to be scored now: all but what is scored already. Its deadline begins anew.
    pub fn reopen(&self, mut episode: Episode, task: &Task) -> Played {
        for trace in &mut episode.traces {
            if trace.task.hash == task.hash {
                trace.task = Arc::clone(task);
            }
            if !trace.ok {
                trace.reopen_scoring();
            }
        }
        episode.task = Arc::clone(task);
        episode.ok = true;
        Played { episode, deadline: self.ends() }
    }

    /// Scores every trace of an episode that no agent failed in; failures are recorded. Rewards of groups stay due.
    pub async fn score(&self, played: Played) -> Episode {
        let Played { mut episode, deadline } = played;
        if episode.ok {
            for trace in &mut episode.traces {
                self.scoring.score(trace, deadline).await;
            }
            episode.ok = episode.traces.iter().all(|trace| trace.ok);
        }
        episode.is_timeout |= episode.traces.iter().any(|trace| trace.stop_condition.as_deref() == Some(TIMEOUT));
        episode.traces.iter().for_each(log);
        episode
    }

    /// Gives the scored episodes of one task their rewards as a group.
    ///
    /// # Errors
    /// The failure that left all of them unscored; it is recorded in each.
    pub async fn score_group(&self, group: &mut [Episode]) -> Result<(), Fault> {
        let Some(first) = group.first() else { return Ok(()) };
        let task = Arc::clone(&first.task);
        let info = first.group.clone().unwrap_or_else(|| GroupInfo { id: first.id.clone() });
        let mut traces: Vec<&mut Trace> = group.iter_mut().flat_map(|episode| &mut episode.traces).collect();
        let scored = self.scoring.score_group(&task.data, &mut traces).await;
        for episode in group {
            episode.group = Some(info.clone());
            if let Err(fault) = &scored {
                episode.ok = false;
                episode.errors.push(fault.clone());
            }
        }
        scored
    }

    async fn attempt(&self, task: &Task) -> Played {
        let mut episode = Episode::new(self.info.clone(), Arc::clone(task), self.run.clone());
        let deadline = self.ends();
        let run = AssertUnwindSafe(self.env.run(task, deadline)).catch_unwind();
        let ended = match deadline {
            None => Some(run.await),
            Some(deadline) => {
                tokio::time::timeout_at(deadline.checked_add(TEARDOWN).unwrap_or(deadline), run).await.ok()
            }
        };
        match ended {
            Some(Ok(Attempt { traces, errors, is_timeout })) => {
                episode.ok = errors.is_empty() && !traces.is_empty() && traces.iter().all(|trace| trace.ok);
                (episode.traces, episode.errors, episode.is_timeout) = (traces, errors, is_timeout);
            }
            Some(Err(panic)) => episode.errors.push(Fault::from_panic(FaultClass::Task, "the env", panic.as_ref())),
            None => {
                episode.is_timeout = true;
                let message = "the episode did not end by its deadline; its agents were dropped";
                episode.errors.push(Fault::new(FaultClass::Infrastructure, message));
            }
        }
        Played { episode, deadline }
    }

    /// When an episode must end that begins now. A deadline beyond the clock's end is none.
    fn ends(&self) -> Option<Instant> {
        self.deadline.and_then(|deadline| Instant::now().checked_add(deadline))
    }
}

/// The stop condition of an agent that the episode's deadline ended.
const TIMEOUT: &str = "episode_timeout";

fn log(trace: &Trace) {
    tracing::info!(
        id = %trace.id,
        task = trace.task.data.idx,
        reward = trace.reward(),
        turns = trace.graph.nodes().iter().filter(|node| node.sampled).count(),
        stop = trace.errors.last().map_or(trace.stop_condition.as_deref(), |fault| Some(&fault.kind)),
        "rollout done"
    );
}

/// The episode's own failures and those of its failed traces, in the order they were recorded.
fn failures(episode: &Episode) -> Vec<Fault> {
    let of_traces = episode.traces.iter().filter(|trace| !trace.ok).flat_map(|trace| &trace.errors);
    episode.errors.iter().chain(of_traces).cloned().collect()
}
