//! One rollout, or all those of a task, scored anew.

use std::{collections::HashSet, path::PathBuf, sync::Arc, time::Instant};

use futures::future::join_all;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::index::Line;
use crate::{
    envs::Scoring,
    store::{Row, StoreError, read_line, read_row},
    taskset::Task,
    telemetry::aside,
    trace::{Episode, Fault, RunInfo, Trace},
};

/// Bytes of a line from which on it is decoded and encoded aside from the async workers.
const LONG: usize = 256 << 10;

/// The stop condition that an expired deadline of the scoring leaves, instead of the one that the agent's work had.
const SCORING_TIMEOUT: &str = "scoring_timeout";

/// Scores rollouts.
pub(super) struct Rescorer {
    /// How.
    pub(super) scoring: Scoring,
    /// Where they lie.
    pub(super) traces: PathBuf,
    /// The run that they belong to from now on.
    pub(super) run: RunInfo,
    /// How many at once.
    pub(super) permits: Semaphore,
}

/// A rollout before and after.
pub(super) struct Rescored {
    /// Its line in the source, from 0.
    pub(super) line: u64,
    /// As it stands in the source.
    pub(super) before: Row,
    /// As it stands in the replay.
    pub(super) after: Row,
    /// The replay's line.
    pub(super) episode: Episode,
    /// Why each reward is what it is now; empty where the total has not changed.
    pub(super) reasons: Vec<(String, String)>,
    /// It came as far as its scoring, and was scored again.
    pub(super) scored: bool,
    /// How long its scoring took.
    pub(super) seconds: f64,
}

impl Rescorer {
    /// Scores rollouts of a task, with another row if one is given; `None` stands for a line that cannot be read in full.
    /// They are compared with each other where the rubric does that.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub(super) async fn work(&self, task: Option<Task>, lines: Vec<Line>) -> Result<Vec<Option<Rescored>>, StoreError> {
        let started = Instant::now();
        let mut rollouts: Vec<Option<Rollout>> = join_all(lines.iter().map(|line| self.one(*line, task.as_ref())))
            .await
            .into_iter()
            .collect::<Result<_, _>>()?;
        if self.scoring.taskset.rubric().compares_groups() {
            self.compare(rollouts.iter_mut().flatten()).await;
        }
        let seconds = started.elapsed().as_secs_f64();
        Ok(rollouts.into_iter().map(|rollout| rollout.and_then(|rollout| rollout.settle(seconds))).collect())
    }

    async fn one(&self, line: Line, task: Option<&Task>) -> Result<Option<Rollout>, StoreError> {
        // A closed semaphore does not occur: it is never closed.
        let _permit = self.permits.acquire().await;
        let text = read_line(&self.traces, line.span)?;
        let read = aside(text.len() > LONG, || Some((read_row(&text)?, Episode::from_line(text.as_bytes()))));
        let Some((before, Ok(episode))) = read else {
            tracing::warn!(line = line.number, "a line of the source cannot be read in full");
            return Ok(None);
        };
        let scored = reached_scoring(&episode);
        let mut rollout = Rollout { line: line.number, length: text.len(), before, episode, scored };
        drop(text);
        let episode = &mut rollout.episode;
        episode.run = Some(self.run.clone());
        if scored {
            if let Some(task) = task {
                episode.task = Arc::clone(task);
            }
            clear(episode);
            for trace in &mut episode.traces {
                if let Some(task) = task {
                    trace.task = Arc::clone(task);
                }
                let old = trace.judge_calls().len();
                self.scoring.score(trace, None).await;
                settle_judges(trace, old);
            }
            episode.ok = episode.traces.iter().all(|trace| trace.ok);
        }
        Ok(Some(rollout))
    }

    /// Gives the rewards that compare the rollouts of a task.
    async fn compare(&self, rollouts: impl Iterator<Item = &mut Rollout>) {
        let mut episodes: Vec<&mut Episode> = rollouts
            .filter(|rollout| rollout.scored && rollout.episode.ok)
            .map(|rollout| &mut rollout.episode)
            .collect();
        let Some(task) = episodes.first().map(|episode| Arc::clone(&episode.task)) else { return };
        let mut group: Vec<&mut Trace> = episodes.iter_mut().flat_map(|episode| &mut episode.traces).collect();
        if let Err(fault) = self.scoring.score_group(&task.data, &mut group).await {
            for episode in episodes {
                episode.ok = false;
                episode.errors.push(fault.clone());
            }
        }
    }
}

/// A rollout while it is scored.
struct Rollout {
    line: u64,
    length: usize,
    before: Row,
    episode: Episode,
    scored: bool,
}

impl Rollout {
    /// What it has come to; `None` for an episode that does not read as a row any more, which does not occur.
    fn settle(self, seconds: f64) -> Option<Rescored> {
        let Self { line, length, before, episode, scored } = self;
        let after = aside(length > LONG, || serde_json::to_string(&episode).ok().and_then(|text| read_row(&text)));
        let after = after?;
        let reasons = if before.reward == after.reward { Vec::new() } else { reasons(&episode) };
        Some(Rescored { line, before, after, episode, reasons, scored, seconds })
    }
}

/// Whether the agents' work came to its end, so that there is something to score. A rollout whose scoring failed is one,
/// whatever the class of that failure.
fn reached_scoring(episode: &Episode) -> bool {
    let reached = |trace: &Trace| trace.ok || trace.timing.scoring.start > 0.0;
    let due = |trace: &Trace| trace.rewards.values().any(Option::is_none);
    // Only the scoring of a group fails without failing a trace; it leaves its rewards due.
    let own_failure = !episode.ok && episode.traces.iter().all(|trace| trace.ok) && !episode.traces.iter().any(due);
    !episode.traces.is_empty() && !own_failure && episode.traces.iter().all(reached)
}

/// Takes away what the last scoring left. The agents' work stays, and so do their failures in earlier attempts. The
/// exchanges with judges stay for now: a judge that has the same question finds its verdict there.
fn clear(episode: &mut Episode) {
    let traces_ok = episode.traces.iter().all(|trace| trace.ok);
    forget(&mut episode.errors, !episode.ok && traces_ok);
    for trace in &mut episode.traces {
        forget(&mut trace.errors, !trace.ok);
        trace.rewards.clear();
        trace.metrics.clear();
        trace.info.shift_remove(Trace::REASONS);
        trace.extra_usage.clear();
        trace.reopen_scoring();
        // A run of verifiers does not tell what stood there before.
        if trace.stop_condition.as_deref() == Some(SCORING_TIMEOUT) {
            trace.stop_condition = None;
            trace.is_timeout = false;
        }
    }
}

/// Takes the failures of the last scoring, and of its retries, out of the record. The one that decided may be of any
/// class.
fn forget(errors: &mut Vec<Fault>, decided: bool) {
    if decided {
        errors.pop();
    }
    while errors.last().is_some_and(|fault| fault.class.is_of_scoring()) {
        errors.pop();
    }
}

/// Takes out the exchanges with judges that are gone, and those of judges that were asked anew. The first `old` of them
/// stood there before.
fn settle_judges(trace: &mut Trace, old: usize) {
    let Some(Value::Array(calls)) = trace.info.get_mut(Trace::JUDGE_CALLS) else { return };
    let name = |call: &Value| call["name"].as_str().unwrap_or_default().to_owned();
    let asked: HashSet<String> = calls.iter().skip(old).map(name).collect();
    let kept = |call: &Value| trace.rewards.contains_key(&name(call)) && !asked.contains(&name(call));
    let fresh = calls.split_off(old.min(calls.len()));
    calls.retain(kept);
    calls.extend(fresh);
    if calls.is_empty() {
        trace.info.shift_remove(Trace::JUDGE_CALLS);
    }
}

fn reasons(episode: &Episode) -> Vec<(String, String)> {
    let kept = episode.traces.iter().filter_map(Trace::reasons);
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    kept.flatten().map(|(name, why)| (name.clone(), text(why))).collect()
}
