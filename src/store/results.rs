//! `results.json`: the summary of a run, for people's scripts. Keys are stable; a change of meaning raises `version`.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

/// The summary of a run. `scored + failed + not_run` is always `rollouts`; a failed rollout is in no mean and no pass@k.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Schema version, 1.
    pub version: u32,
    /// The run directory.
    pub run_dir: String,
    /// Taskset id.
    pub taskset: String,
    /// Model name.
    pub model: String,
    /// The model is the built-in simulator.
    pub simulated: bool,
    /// Selected tasks.
    pub tasks: u64,
    /// Planned rollouts.
    pub rollouts: u64,
    /// Rollouts with a reward.
    pub scored: u64,
    /// Rollouts that failed and have none.
    pub failed: u64,
    /// Planned rollouts that never finished.
    pub not_run: u64,
    /// Mean reward over the scored rollouts and its standard error, clustered by task.
    pub reward: RewardMean,
    /// Share of tasks solved by at least one of k rollouts, unbiased; keys are k.
    pub pass_at_k: BTreeMap<u32, f64>,
    /// Share of tasks solved by all of k rollouts, unbiased; keys are k.
    pub pass_hat_k: BTreeMap<u32, f64>,
    /// Mean raw score of each reward over the scored rollouts.
    pub rewards: IndexMap<String, Mean>,
    /// Mean of each metric over the scored rollouts that have it.
    pub metrics: IndexMap<String, Mean>,
    /// Tokens of all rollouts in the journal, failed ones included: they were paid for too.
    pub usage: UsageTotals,
    /// What judges took, in the same rollouts; no part of `usage`.
    #[serde(default)]
    pub judge_usage: JudgeUsage,
    /// Model turns per scored rollout.
    pub turns: Mean,
    /// Scored rollouts that hit a budget or the window.
    pub truncated: u64,
    /// Scored rollouts in which a stage deadline expired.
    pub timed_out: u64,
    /// Stop condition to count, over the traces of scored rollouts.
    pub stop_conditions: BTreeMap<String, u64>,
    /// Fault class to count, over failed rollouts.
    pub errors: BTreeMap<String, u64>,
    /// One failure of each class: the first in the journal.
    pub error_examples: BTreeMap<String, ErrorExample>,
    /// Calls and rollouts that were tried again.
    pub retries: u64,
    /// Wall time of the run, seconds, all attempts together.
    pub wall_s: f64,
    /// Finished rollouts per second of wall time, over all attempts; absent when one was killed, which left no time.
    pub rollouts_per_s: Option<f64>,
    /// Sampled tokens per second of wall time, likewise.
    pub output_tokens_per_s: Option<f64>,
    /// What the mean reward says about training on this; absent when nothing was scored.
    pub verdict: Option<Verdict>,
}

/// A mean with its standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RewardMean {
    /// The mean; absent when nothing was scored.
    pub mean: Option<f64>,
    /// Its standard error; absent with fewer than two tasks.
    pub stderr: Option<f64>,
}

/// A mean; absent when there was nothing to average.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mean {
    /// The mean.
    pub mean: Option<f64>,
}

/// Tokens of a run, as its endpoints counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageTotals {
    /// Prompt tokens of all calls, those read from a prefix cache included.
    pub input_tokens: u64,
    /// Sampled tokens of all calls.
    pub output_tokens: u64,
    /// Of the prompt tokens, those read from a prefix cache, where reported.
    pub cached_input_tokens: u64,
    /// Of the prompt tokens, those that a call added to the one before it on its branch: verifiers' `num_input_tokens`.
    #[serde(default)]
    pub new_input_tokens: u64,
}

impl UsageTotals {
    /// Adds other totals; sums stay within bounds.
    pub fn add(&mut self, other: &Self) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.cached_input_tokens = self.cached_input_tokens.saturating_add(other.cached_input_tokens);
        self.new_input_tokens = self.new_input_tokens.saturating_add(other.new_input_tokens);
    }
}

/// What judges took, as their endpoints counted it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JudgeUsage {
    /// Answers they gave, those that held no verdict included.
    pub calls: u64,
    /// Verdicts that an equal question had got before: nobody was asked.
    pub cached: u64,
    /// Prompt tokens of the calls.
    pub input_tokens: u64,
    /// Sampled tokens of the calls.
    pub output_tokens: u64,
}

impl JudgeUsage {
    /// Adds another usage; sums stay within bounds.
    pub fn add(&mut self, other: &Self) {
        self.calls = self.calls.saturating_add(other.calls);
        self.cached = self.cached.saturating_add(other.cached);
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
    }
}

/// One failure of a class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorExample {
    /// What happened.
    pub message: String,
    /// The episode's id, for `rollhouse why`.
    pub rollout: String,
}

/// What a baseline says about training: the mean share of the full reward is below 10 %, above 80 %, or between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Below 10 %: hardly any rollout earns something.
    TooHard,
    /// 10 to 80 %, bounds included.
    Trainable,
    /// Above 80 %: little is left to learn.
    TooEasy,
}
