//! What a replay changed, for people and their scripts. Keys are stable; a change of meaning raises `version`.

use std::collections::BTreeMap;

use indexmap::{IndexMap, IndexSet};
use serde::Serialize;

use crate::store::{Mean, Results, RewardMean, SourceRun};

/// What a replay changed.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayReport {
    /// Schema version, 1.
    pub version: u32,
    /// The run whose rollouts were scored.
    pub source: SourceRun,
    /// The folder of the replay; absent when nothing was saved.
    pub run_dir: Option<String>,
    /// Whose rubric scored.
    pub taskset: String,
    /// The model that made the rollouts.
    pub model: String,
    /// It was the built-in simulator.
    pub simulated: bool,
    /// With which rows.
    pub rows: RowCounts,
    /// What became of the rollouts.
    pub rollouts: RolloutCounts,
    /// Why rollouts that could have been scored were not, by the class of the failure.
    pub failures: BTreeMap<String, Failures>,
    /// The run as it was scored before.
    pub before: Side,
    /// The run as it is scored now.
    pub after: Side,
    /// Mean raw score of each reward.
    pub rewards: IndexMap<String, Change>,
    /// Mean of each metric.
    pub metrics: IndexMap<String, Change>,
    /// How many tasks have another reward, score or metric, or another number of scored rollouts.
    pub tasks_changed: u64,
    /// Those of them that changed most, most first.
    pub tasks: Vec<TaskChange>,
    /// A few of the rollouts whose reward changed most.
    pub examples: Vec<Example>,
}

/// Where the rows of the run's tasks come from. The sum is the number of tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RowCounts {
    /// The taskset has the very same row.
    pub same: u64,
    /// The taskset has the row and it differs; the taskset's scores.
    pub changed: u64,
    /// The taskset does not have it; the stored row scores.
    pub not_found: u64,
    /// The stored row scores because that was asked for.
    pub stored: u64,
}

/// What became of the rollouts. The first six add up to those that were met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RolloutCounts {
    /// Scored before and now, with the same reward.
    pub unchanged: u64,
    /// With a higher one.
    pub up: u64,
    /// With a lower one.
    pub down: u64,
    /// Scored now, and not before.
    pub newly_scored: u64,
    /// Scored before, and not now.
    pub newly_failed: u64,
    /// Scored neither before nor now; the agent's own failures stay failures.
    pub still_failed: u64,
    /// Lines of the source that are no episode, or none that can be read in full.
    pub malformed: u64,
    /// Lines of the source that repeat an episode; they are left out.
    pub repeated: u64,
    /// Rollouts of an unfinished source that only lack their scores, in its `pending.jsonl`; they are left out.
    pub pending: u64,
}

/// Failures of a class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failures {
    /// How many.
    pub count: u64,
    /// What the first of them says.
    pub message: String,
    /// Its rollout, for `rollhouse why`.
    pub rollout: String,
}

/// A run as it is scored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Side {
    /// Rollouts with a reward.
    pub scored: u64,
    /// Rollouts without one.
    pub failed: u64,
    /// Mean reward with its standard error, clustered by task.
    pub reward: RewardMean,
}

/// A mean before and after; absent on the side that has nothing to average.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Change {
    /// Before.
    pub before: Option<f64>,
    /// After.
    pub after: Option<f64>,
}

/// A task whose scores changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskChange {
    /// Its position in its taskset.
    pub task: Option<u64>,
    /// Its key.
    pub key: String,
    /// Its rollouts.
    pub rollouts: u64,
    /// Mean reward over those that are scored.
    pub reward: Change,
    /// Mean raw score of each reward.
    pub rewards: IndexMap<String, Change>,
    /// Mean of each metric.
    pub metrics: IndexMap<String, Change>,
}

/// A rollout whose reward changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Example {
    /// Its id, the same in both runs, for `rollhouse why`.
    pub rollout: String,
    /// Its task's position.
    pub task: Option<u64>,
    /// Its line in the source, from 0.
    pub source_line: u64,
    /// Its line in the replay, from 0.
    pub line: u64,
    /// Its reward.
    pub reward: Change,
    /// The scores that changed; all of them where only weights did.
    pub reasons: Vec<Reason>,
}

/// A score of a rollout and why it is what it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reason {
    /// The reward's name.
    pub name: String,
    /// Its raw score.
    pub score: Change,
    /// What its scorer says now, if anything.
    pub why: Option<String>,
}

impl RolloutCounts {
    /// Rollouts that were met.
    pub fn met(&self) -> u64 {
        self.unchanged + self.up + self.down + self.newly_scored + self.newly_failed + self.still_failed
    }
}

impl Change {
    /// How much it changed; endless where one side is missing.
    pub fn size(&self) -> f64 {
        match (self.before, self.after) {
            (Some(before), Some(after)) => (after - before).abs(),
            (None, None) => 0.0,
            _ => f64::INFINITY,
        }
    }
}

impl ReplayReport {
    /// Fills in what the summaries of both sides say of the whole run.
    pub(super) fn compare(&mut self, before: &Results, after: &Results) {
        let side = |results: &Results| Side { scored: results.scored, failed: results.failed, reward: results.reward };
        (self.before, self.after) = (side(before), side(after));
        self.rewards = changes(&before.rewards, &after.rewards);
        self.metrics = changes(&before.metrics, &after.metrics);
    }
}

fn changes(before: &IndexMap<String, Mean>, after: &IndexMap<String, Mean>) -> IndexMap<String, Change> {
    let names: IndexSet<&String> = after.keys().chain(before.keys()).collect();
    let mean = |means: &IndexMap<String, Mean>, name: &String| means.get(name).and_then(|mean| mean.mean);
    names
        .into_iter()
        .map(|name| (name.clone(), Change { before: mean(before, name), after: mean(after, name) }))
        .collect()
}
