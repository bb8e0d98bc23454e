//! The summary of a run, computed from its journal alone: a resumed run and an uninterrupted one with the same rollouts
//! give the same numbers, to the last bit, in whatever order the rollouts finished.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use indexmap::IndexMap;

use crate::store::{
    ErrorExample, Fingerprint, JudgeUsage, Mean, Results, RewardMean, Row, RunState, StoreError, UsageTotals, Verdict,
    scan_once, traces_of,
};

/// A reward this close to its upper bound is a pass: sums of weighted scores are not exact.
const PASS_TOLERANCE: f64 = 1e-9;

/// Bounds of the share of the full reward within which training has something to learn from.
const TRAINABLE: std::ops::RangeInclusive<f64> = 0.1..=0.8;

/// Failure messages in results are cut to this many characters.
const MESSAGE_LENGTH: usize = 500;

/// Gathers rows into results. Memory grows with the number of tasks, not of rollouts.
#[derive(Debug)]
pub struct Summary {
    num_rollouts: u32,
    tasks: HashMap<Fingerprint, TaskTally>,
    scored: u64,
    failed: u64,
    reward: ExactSum,
    share: ExactSum,
    shares: u64,
    rewards: BTreeMap<String, Average>,
    metrics: BTreeMap<String, Average>,
    usage: UsageTotals,
    judge_usage: JudgeUsage,
    turns: u64,
    truncated: u64,
    timed_out: u64,
    stop_conditions: BTreeMap<String, u64>,
    errors: BTreeMap<String, u64>,
    error_examples: BTreeMap<String, ErrorExample>,
    retries: u64,
}

/// The rollouts of one task.
#[derive(Debug, Default)]
struct TaskTally {
    rows: u32,
    scored: u32,
    passed: u32,
    reward: ExactSum,
}

/// A question that the data cannot answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EstimateError {
    /// More rollouts are asked about than there are.
    #[error("k = {k} needs at least {k} scored rollouts of a task, there are {n}; raise `--num-rollouts`")]
    TooFewRollouts {
        /// Rollouts asked about.
        k: u32,
        /// Rollouts there are.
        n: u32,
    },
    /// More passes than rollouts.
    #[error("{c} passes of {n} rollouts is not possible")]
    TooManyPasses {
        /// Passes.
        c: u32,
        /// Rollouts there are.
        n: u32,
    },
}

/// Chance that at least one of `k` rollouts drawn without replacement from `n`, of which `c` passed, is a pass:
/// 1 - C(n-c,k) / C(n,k), the unbiased estimator of Chen et al. 2021, "Evaluating large language models trained on code".
pub fn pass_at_k(n: u32, c: u32, k: u32) -> Result<f64, EstimateError> {
    check(n, c, k)?;
    Ok(1.0 - ratio(n - c, n, k))
}

/// Chance that all of `k` rollouts drawn without replacement from `n`, of which `c` passed, are passes: C(c,k) / C(n,k), as
/// in Yao et al. 2024, "tau-bench".
pub fn pass_hat_k(n: u32, c: u32, k: u32) -> Result<f64, EstimateError> {
    check(n, c, k)?;
    Ok(ratio(c, n, k))
}

fn check(n: u32, c: u32, k: u32) -> Result<(), EstimateError> {
    if k > n {
        return Err(EstimateError::TooFewRollouts { k, n });
    }
    if c > n {
        return Err(EstimateError::TooManyPasses { c, n });
    }
    Ok(())
}

/// C(m,k) / C(n,k) for m <= n: exact integers where they fit, else the product of its factors.
fn ratio(m: u32, n: u32, k: u32) -> f64 {
    if m < k {
        return 0.0;
    }
    match (choose(m, k), choose(n, k)) {
        (Some(part), Some(whole)) => part as f64 / whole as f64,
        _ => (0..k).map(|i| f64::from(m - i) / f64::from(n - i)).product(),
    }
}

fn choose(n: u32, k: u32) -> Option<u128> {
    // Each step's division is exact: the product of i+1 neighbours is divisible by (i+1)!.
    (0..k.min(n - k)).try_fold(1_u128, |c, i| Some(c.checked_mul(u128::from(n - i))? / u128::from(i + 1)))
}

impl Summary {
    /// An empty summary of a run with this many rollouts per task.
    pub fn new(num_rollouts: u32) -> Self {
        Self {
            num_rollouts,
            tasks: HashMap::new(),
            scored: 0,
            failed: 0,
            reward: ExactSum::default(),
            share: ExactSum::default(),
            shares: 0,
            rewards: BTreeMap::new(),
            metrics: BTreeMap::new(),
            usage: UsageTotals::default(),
            judge_usage: JudgeUsage::default(),
            turns: 0,
            truncated: 0,
            timed_out: 0,
            stop_conditions: BTreeMap::new(),
            errors: BTreeMap::new(),
            error_examples: BTreeMap::new(),
            retries: 0,
        }
    }

    /// Reads a run's journal once and summarises it. Of several lines of an episode the one counts
    /// that a resumed run keeps: see [`scan_once`].
    pub fn of_run(run: &Path, state: &RunState) -> Result<Results, StoreError> {
        let new = || Self::new(state.num_rollouts);
        let (summary, ..) = scan_once(&traces_of(run), new, |summary, row| summary.add(&row))?;
        Ok(summary.finish(run, state))
    }

    /// Counts one row. Rows of a task beyond the planned number of rollouts are left out, so that counts add up.
    pub fn add(&mut self, row: &Row) {
        let tally = self.tasks.entry(row.task).or_default();
        if tally.rows == self.num_rollouts {
            return;
        }
        tally.rows += 1;
        self.usage.add(&row.usage);
        self.judge_usage.add(&row.judge_usage);
        self.retries += row.retries;
        if let Some(fault) = &row.fault {
            let class = fault.class.name().to_owned();
            self.failed += 1;
            *self.errors.entry(class.clone()).or_default() += 1;
            self.error_examples.entry(class).or_insert_with(|| ErrorExample {
                message: fault.message.chars().take(MESSAGE_LENGTH).collect(),
                rollout: row.id.clone(),
            });
            return;
        }
        tally.scored += 1;
        tally.passed += u32::from(passes(row));
        tally.reward.add(row.reward);
        self.scored += 1;
        self.reward.add(row.reward);
        if row.full_reward > 0.0 {
            self.share.add(row.reward / row.full_reward);
            self.shares += 1;
        }
        for (name, score) in &row.rewards {
            self.rewards.entry(name.clone()).or_default().add(*score);
        }
        for (name, value) in &row.metrics {
            self.metrics.entry(name.clone()).or_default().add(*value);
        }
        for condition in &row.stop_conditions {
            *self.stop_conditions.entry(condition.clone()).or_default() += 1;
        }
        self.turns += row.turns;
        self.truncated += u64::from(row.truncated);
        self.timed_out += u64::from(row.timed_out);
    }

    /// The results so far.
    pub fn finish(self, run: &Path, state: &RunState) -> Results {
        let tasks = state.tasks.unwrap_or(0).max(self.tasks.len() as u64);
        let rollouts = tasks.saturating_mul(u64::from(self.num_rollouts));
        let wall_s = state.wall_seconds();
        // An attempt that was killed left no wall time, so there are no rates over the whole run then.
        let timed = wall_s > 0.0 && state.attempts.iter().all(|attempt| attempt.seconds > 0.0);
        let rate = |count: u64| timed.then(|| count as f64 / wall_s);
        let verdict = (self.shares > 0).then(|| verdict(self.share.value() / self.shares as f64));
        Results {
            version: 1,
            run_dir: run.display().to_string(),
            taskset: state.taskset.clone(),
            model: state.model.clone(),
            simulated: state.simulated,
            tasks,
            rollouts,
            scored: self.scored,
            failed: self.failed,
            not_run: rollouts - self.scored - self.failed,
            reward: self.reward_mean(),
            pass_at_k: self.over_tasks(pass_at_k),
            pass_hat_k: self.over_tasks(pass_hat_k),
            rewards: means(&self.rewards),
            metrics: means(&self.metrics),
            usage: self.usage,
            judge_usage: self.judge_usage,
            turns: Mean { mean: (self.scored > 0).then(|| self.turns as f64 / self.scored as f64) },
            truncated: self.truncated,
            timed_out: self.timed_out,
            stop_conditions: self.stop_conditions,
            errors: self.errors,
            error_examples: self.error_examples,
            retries: self.retries,
            wall_s,
            rollouts_per_s: rate(self.scored + self.failed),
            output_tokens_per_s: rate(self.usage.output_tokens),
            verdict,
        }
    }

    /// The mean over all N scored rollouts, and its standard error clustered by task (Miller 2024, "Adding error bars to
    /// evals", with the usual small-sample factor): with S the sum and n the number of a task's rewards, m the mean and T
    /// the number of tasks, the square root of T/(T-1) * sum over tasks of (S - n m)^2, divided by N. When all tasks have
    /// equally many rollouts this is the standard deviation of the task means over the root of T.
    fn reward_mean(&self) -> RewardMean {
        if self.scored == 0 {
            return RewardMean::default();
        }
        let total = self.scored as f64;
        let mean = self.reward.value() / total;
        let mut squares = ExactSum::default();
        let mut tasks = 0.0;
        for tally in self.tasks.values().filter(|tally| tally.scored > 0) {
            squares.add((tally.reward.value() - f64::from(tally.scored) * mean).powi(2));
            tasks += 1.0;
        }
        let stderr = (tasks > 1.0).then(|| (squares.value() * tasks / (tasks - 1.0)).sqrt() / total);
        RewardMean { mean: Some(mean), stderr }
    }

    /// The mean of an estimate over the tasks with at least k scored rollouts, for k = 1, 2, 4, … up to the planned number.
    fn over_tasks(&self, estimate: fn(u32, u32, u32) -> Result<f64, EstimateError>) -> BTreeMap<u32, f64> {
        let powers = std::iter::successors(Some(1_u32), |k| k.checked_mul(2)).take_while(|k| *k < self.num_rollouts);
        let ks = powers.chain([self.num_rollouts]);
        let mean = |k| {
            let mut average = Average::default();
            for tally in self.tasks.values() {
                if let Ok(value) = estimate(tally.scored, tally.passed, k) {
                    average.add(value);
                }
            }
            Some((k, average.mean()?))
        };
        ks.filter_map(mean).collect()
    }
}

/// A rollout passes when it earns the full reward, which is the sum of its positive weights (scores are at most 1); 1 where
/// no weight is positive.
fn passes(row: &Row) -> bool {
    let full = if row.full_reward > 0.0 { row.full_reward } else { 1.0 };
    row.reward >= full - PASS_TOLERANCE
}

/// What the mean share of the full reward says about training.
fn verdict(share: f64) -> Verdict {
    match share {
        share if share < *TRAINABLE.start() => Verdict::TooHard,
        share if share > *TRAINABLE.end() => Verdict::TooEasy,
        _ => Verdict::Trainable,
    }
}

fn means(averages: &BTreeMap<String, Average>) -> IndexMap<String, Mean> {
    averages.iter().map(|(name, average)| (name.clone(), Mean { mean: average.mean() })).collect()
}

#[derive(Debug, Default)]
struct Average {
    sum: ExactSum,
    count: u64,
}

impl Average {
    fn add(&mut self, value: f64) {
        self.sum.add(value);
        self.count += 1;
    }

    fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum.value() / self.count as f64)
    }
}

/// A sum without rounding on the way, so that it does not depend on the order of what is added: the parts do not overlap,
/// smallest first (Shewchuk 1997, "Adaptive precision floating-point arithmetic").
#[derive(Debug, Default)]
struct ExactSum {
    parts: Vec<f64>,
}

impl ExactSum {
    fn add(&mut self, value: f64) {
        let mut rest = value;
        let mut kept = 0;
        for index in 0..self.parts.len() {
            let part = self.parts[index];
            let (large, small) = if rest.abs() < part.abs() { (part, rest) } else { (rest, part) };
            let sum = large + small;
            let error = small - (sum - large);
            if error != 0.0 {
                self.parts[kept] = error;
                kept += 1;
            }
            rest = sum;
        }
        self.parts.truncate(kept);
        self.parts.push(rest);
    }

    /// The sum, correctly rounded.
    fn value(&self) -> f64 {
        let mut parts = self.parts.iter().rev();
        let Some(mut sum) = parts.next().copied() else { return 0.0 };
        while let Some(part) = parts.next() {
            let before = sum;
            sum = before + part;
            let error = part - (sum - before);
            if error == 0.0 {
                continue;
            }
            // Half-way cases are decided by what comes below.
            if parts.next().is_some_and(|below| (error < 0.0) == (*below < 0.0)) {
                let twice = error * 2.0;
                let nudged = sum + twice;
                if twice == nudged - sum {
                    sum = nudged;
                }
            }
            break;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_right_of_four() {
        assert_eq!(pass_at_k(4, 1, 1), Ok(0.25));
        assert_eq!(pass_at_k(4, 1, 2), Ok(0.5));
        assert_eq!(pass_at_k(4, 1, 4), Ok(1.0));
        assert_eq!(pass_hat_k(4, 1, 1), Ok(0.25));
        assert_eq!(pass_hat_k(4, 1, 2), Ok(0.0));
        assert_eq!(pass_at_k(4, 1, 8), Err(EstimateError::TooFewRollouts { k: 8, n: 4 }));
        assert_eq!(pass_hat_k(4, 5, 2), Err(EstimateError::TooManyPasses { c: 5, n: 4 }));
    }

    #[test]
    fn large_counts_neither_overflow_nor_lose_precision() {
        let estimate = pass_at_k(4096, 1, 1024).unwrap();
        assert!((estimate - 0.25).abs() < 1e-12, "{estimate}");
        assert_eq!(pass_hat_k(4096, 4096, 2048), Ok(1.0));
    }

    #[test]
    fn verdict_bounds_are_trainable() {
        assert_eq!(verdict(0.0999), Verdict::TooHard);
        assert_eq!(verdict(0.1), Verdict::Trainable);
        assert_eq!(verdict(0.8), Verdict::Trainable);
        assert_eq!(verdict(0.8001), Verdict::TooEasy);
    }

    #[test]
    fn sums_are_exact() {
        let mut sum = ExactSum::default();
        for value in [1e100, 1.0, -1e100, 1e-30] {
            sum.add(value);
        }
        assert_eq!(sum.value(), 1.0);
        let mut tenths = ExactSum::default();
        (0..10).for_each(|_| tenths.add(0.1));
        assert_eq!(tenths.value(), 1.0);
    }

    proptest! {
        #[test]
        fn sums_do_not_depend_on_order(mut values in prop::collection::vec(-1e6_f64..1e6, 0..50)) {
            let sum = |values: &[f64]| {
                let mut sum = ExactSum::default();
                values.iter().for_each(|value| sum.add(*value));
                sum.value()
            };
            let forward = sum(&values);
            values.sort_by(f64::total_cmp);
            prop_assert_eq!(forward, sum(&values));
        }
    }
}
