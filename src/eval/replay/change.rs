//! Gathers what changed, task by task. Memory grows with the number of tasks that are named in the end.

use std::{collections::BTreeMap, path::Path};

use indexmap::IndexMap;

use super::{Change, Example, Failures, Reason, ReplayReport, RolloutCounts, TaskChange, rescore::Rescored};
use crate::{
    eval::Summary,
    store::{Results, Row, RunState},
};

/// Rollouts whose reasons are told.
const EXAMPLES: usize = 5;
/// Rewards nearer to each other than this are the same: sums of weighted scores are not exact.
const SAME: f64 = 1e-9;
/// Failure messages are cut to this many characters.
const MESSAGE_LENGTH: usize = 500;

/// What has changed so far.
pub(super) struct Tally {
    before: Summary,
    after: Summary,
    counts: RolloutCounts,
    failures: BTreeMap<String, Failures>,
    /// Lines that could not be read in full.
    pub(super) unreadable: u64,
    current: Option<(usize, TaskTally)>,
    most_tasks: usize,
    tasks_changed: u64,
    tasks: Vec<TaskChange>,
    examples: Vec<Example>,
}

/// A task whose rollouts are still coming.
#[derive(Default)]
struct TaskTally {
    idx: Option<u64>,
    key: String,
    rollouts: u64,
    reward: Pair,
    rewards: IndexMap<String, Pair>,
    metrics: IndexMap<String, Pair>,
}

/// Sum and number on each side.
#[derive(Clone, Copy, Default)]
struct Pair {
    before: (f64, u64),
    after: (f64, u64),
}

impl Tally {
    /// Nothing yet, of a run with this many rollouts per task; at most so many tasks are named.
    pub(super) fn new(num_rollouts: u32, most_tasks: usize) -> Self {
        Self {
            before: Summary::new(num_rollouts),
            after: Summary::new(num_rollouts),
            counts: RolloutCounts::default(),
            failures: BTreeMap::new(),
            unreadable: 0,
            current: None,
            most_tasks,
            tasks_changed: 0,
            tasks: Vec::new(),
            examples: Vec::new(),
        }
    }

    /// Lines that were met, read or not.
    pub(super) fn met(&self) -> u64 {
        self.counts.met() + self.unreadable
    }

    /// Adds a rollout of the task of this number. All rollouts of a task come after one another.
    pub(super) fn add(&mut self, number: usize, rescored: &Rescored) {
        let Rescored { before, after, .. } = rescored;
        let line = self.counts.met();
        self.before.add(before);
        self.after.add(after);
        if self.current.as_ref().is_none_or(|(current, _)| *current != number) {
            self.close_task();
            let task = TaskTally { idx: after.task_idx, key: after.task_key.clone(), ..TaskTally::default() };
            self.current = Some((number, task));
        }
        if let Some((_, task)) = &mut self.current {
            task.add(before, after);
        }
        let counts = &mut self.counts;
        let count = match (before.finished, after.finished) {
            (true, true) if (after.reward - before.reward).abs() <= SAME => &mut counts.unchanged,
            (true, true) if after.reward > before.reward => &mut counts.up,
            (true, true) => &mut counts.down,
            (false, true) => &mut counts.newly_scored,
            (true, false) => &mut counts.newly_failed,
            (false, false) => &mut counts.still_failed,
        };
        *count += 1;
        if let Some(fault) = after.fault.as_ref().filter(|_| rescored.scored) {
            let failures = self.failures.entry(fault.class.name().to_owned()).or_insert_with(|| Failures {
                count: 0,
                message: fault.message.chars().take(MESSAGE_LENGTH).collect(),
                rollout: after.id.clone(),
            });
            failures.count += 1;
        }
        if before.finished && after.finished && (after.reward - before.reward).abs() > SAME {
            keep_most(&mut self.examples, example(rescored, line), EXAMPLES, |example| example.reward.size());
        }
    }

    /// The summaries of both sides, and the report with what was gathered here.
    pub(super) fn finish(
        mut self,
        source: &Path,
        run_dir: Option<&Path>,
        state: &RunState,
    ) -> (Results, Results, ReplayReport) {
        self.close_task();
        let folder = run_dir.unwrap_or(source);
        let report = ReplayReport {
            version: 1,
            source: state.source.clone().unwrap_or_default(),
            run_dir: run_dir.map(|run_dir| run_dir.display().to_string()),
            taskset: state.taskset.clone(),
            model: state.model.clone(),
            simulated: state.simulated,
            rows: Default::default(),
            rollouts: RolloutCounts { malformed: self.unreadable, ..self.counts },
            failures: self.failures,
            before: Default::default(),
            after: Default::default(),
            rewards: IndexMap::new(),
            metrics: IndexMap::new(),
            tasks_changed: self.tasks_changed,
            tasks: self.tasks,
            examples: self.examples,
        };
        (self.before.finish(source, state), self.after.finish(folder, state), report)
    }

    fn close_task(&mut self) {
        let Some((_, task)) = self.current.take() else { return };
        if task.changed() {
            self.tasks_changed += 1;
            keep_most(&mut self.tasks, task.finish(), self.most_tasks, |task| task.reward.size());
        }
    }
}

/// Adds an entry to a list that is sorted by size, largest first, and keeps so many; of equal ones the first come first.
fn keep_most<T>(list: &mut Vec<T>, entry: T, most: usize, size: impl Fn(&T) -> f64) {
    let at = list.partition_point(|other| size(other) >= size(&entry));
    if at < most {
        list.insert(at, entry);
        list.truncate(most);
    }
}

impl TaskTally {
    fn add(&mut self, before: &Row, after: &Row) {
        self.rollouts += 1;
        for (row, side) in [(before, Pair::before as fn(&mut Pair) -> &mut (f64, u64)), (after, Pair::after)] {
            if !row.finished {
                continue;
            }
            let add = |pair: &mut Pair, value: f64| {
                let (sum, count) = side(pair);
                *sum += value;
                *count += 1;
            };
            add(&mut self.reward, row.reward);
            row.rewards.iter().for_each(|(name, score)| add(self.rewards.entry(name.clone()).or_default(), *score));
            row.metrics.iter().for_each(|(name, value)| add(self.metrics.entry(name.clone()).or_default(), *value));
        }
    }

    fn changed(&self) -> bool {
        let mut pairs = std::iter::once(&self.reward).chain(self.rewards.values()).chain(self.metrics.values());
        pairs.any(|pair| pair.before.1 != pair.after.1 || pair.change().size() > SAME)
    }

    fn finish(self) -> TaskChange {
        let changes = |pairs: IndexMap<String, Pair>| pairs.into_iter().map(|(name, pair)| (name, pair.change()));
        TaskChange {
            task: self.idx,
            key: self.key,
            rollouts: self.rollouts,
            reward: self.reward.change(),
            rewards: changes(self.rewards).collect(),
            metrics: changes(self.metrics).collect(),
        }
    }
}

impl Pair {
    fn before(&mut self) -> &mut (f64, u64) {
        &mut self.before
    }

    fn after(&mut self) -> &mut (f64, u64) {
        &mut self.after
    }

    fn change(&self) -> Change {
        let mean = |(sum, count): (f64, u64)| (count > 0).then(|| sum / count as f64);
        Change { before: mean(self.before), after: mean(self.after) }
    }
}

fn example(rescored: &Rescored, line: u64) -> Example {
    let Rescored { before, after, reasons, .. } = rescored;
    let score = |row: &Row, name: &str| row.rewards.iter().find(|(known, _)| known == name).map(|(_, score)| *score);
    let mut told: Vec<Reason> = Vec::new();
    for (name, _) in after.rewards.iter().chain(&before.rewards) {
        if told.iter().all(|reason| reason.name != *name) {
            let why = reasons.iter().find(|(known, _)| known == name).map(|(_, why)| why.clone());
            let score = Change { before: score(before, name), after: score(after, name) };
            told.push(Reason { name: name.clone(), score, why });
        }
    }
    if told.iter().any(|reason| reason.score.size() > 0.0) {
        told.retain(|reason| reason.score.size() > 0.0);
    }
    Example {
        rollout: after.id.clone(),
        task: after.task_idx,
        source_line: rescored.line,
        line,
        reward: Change { before: Some(before.reward), after: Some(after.reward) },
        reasons: told,
    }
}
