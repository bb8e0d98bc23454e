//! Rewards and metrics: named scorers that see a task and its trace.
//!
//! What enters is a finished trace; what leaves is the same trace with its rewards, metrics and the reasons for them.
//! A scorer that fails, or whose score is not finite, makes the rollout unscored: it is never a reward of 0.

use std::sync::Arc;

use futures::future::BoxFuture;

use crate::trace::{Fault, TaskData, Trace};

/// What a scorer sees.
#[derive(Clone, Copy, Debug)]
pub struct ScoreContext<'a> {
    /// The row.
    pub task: &'a TaskData,
    /// The rollout, finished but for its scores.
    pub trace: &'a Trace,
}

/// A score and, where there is something to say, the reason for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// The value; must be finite.
    pub value: f64,
    /// Which check gave it, in a line; kept in the trace under `info.scoring.<name>`.
    pub why: Option<String>,
}

/// Something that scores a rollout.
pub trait Scorer: Send + Sync {
    /// Scores one rollout.
    fn score<'a>(&'a self, context: ScoreContext<'a>) -> BoxFuture<'a, Result<Score, Fault>>;
}

/// The named, weighted rewards and unweighted metrics of a task.
#[derive(Clone, Default)]
pub struct Rubric {
    rewards: Vec<Named>,
    metrics: Vec<Named>,
}

#[derive(Clone)]
struct Named {
    name: String,
    weight: f64,
    scorer: Arc<dyn Scorer>,
}

impl Rubric {
    /// A rubric with nothing in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a weighted reward.
    #[must_use]
    pub fn reward(mut self, name: &str, weight: f64, scorer: impl Scorer + 'static) -> Self {
        self.rewards.push(Named { name: name.to_owned(), weight, scorer: Arc::new(scorer) });
        self
    }

    /// Adds a metric.
    #[must_use]
    pub fn metric(mut self, name: &str, scorer: impl Scorer + 'static) -> Self {
        self.metrics.push(Named { name: name.to_owned(), weight: 0.0, scorer: Arc::new(scorer) });
        self
    }
}

impl Score {
    /// A score with its reason.
    pub fn because(value: f64, why: impl Into<String>) -> Self {
        Self { value, why: Some(why.into()) }
    }
}

impl From<f64> for Score {
    fn from(value: f64) -> Self {
        Self { value, why: None }
    }
}

/// A plain function is a scorer.
impl<F> Scorer for F
where
    F: Fn(ScoreContext<'_>) -> Result<Score, Fault> + Send + Sync,
{
    fn score<'a>(&'a self, context: ScoreContext<'a>) -> BoxFuture<'a, Result<Score, Fault>> {
        Box::pin(std::future::ready(self(context)))
    }
}
