//! Rewards and metrics: named scorers that see a task and its trace.
//!
//! What enters is a finished trace; what leaves is the same trace with its rewards, metrics and the reasons for them.
//! A scorer that fails, or whose score is not finite, makes the rollout unscored: it is never a reward of 0.
//!
//! Three layers, each usable alone: plain functions over text ([`text`], [`similarity`], [`tags`], [`fence`], [`math`],
//! [`schema`]), [`Answer`] which says what part of the last reply they look at, and [`Compare`] which makes a
//! [`Scorer`] of both.

mod answer;
mod build;
mod compare;
mod corrupt;
pub mod declared;
mod expected;
mod extract;
pub mod fence;
mod group;
pub mod json;
pub mod judge;
mod ledger;
pub mod math;
mod panel;
pub mod schema;
mod score;
pub mod similarity;
pub mod tags;
pub mod text;
pub mod words;

use std::{ops::RangeInclusive, sync::Arc};

use futures::future::BoxFuture;

pub use answer::Answer;
pub use compare::{Compare, all_of, any_of, clamp, compare, examine, inverted, threshold, try_compare};
pub use corrupt::corrupted;
pub use expected::Expected;
pub use extract::{after_hashes, boxed, first_line, last_line, last_number, strip_think};
pub use group::GroupScorer;
pub use ledger::{Expense, Ledger};
pub use panel::Panel;
pub use score::{asynchronous, heavy};

use crate::trace::{Fault, TaskData, Trace};
use judge::Judge;

/// What a scorer sees.
#[derive(Clone, Copy, Debug)]
pub struct ScoreContext<'a> {
    /// The row.
    pub task: &'a TaskData,
    /// The rollout, finished but for its scores; rewards find the metrics already in it.
    pub trace: &'a Trace,
    /// Where a scorer that asks a model writes down what that took.
    pub ledger: &'a Ledger,
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
    /// Scores one rollout. Dropping the future ends the scoring.
    fn score<'a>(&'a self, context: ScoreContext<'a>) -> BoxFuture<'a, Result<Score, Fault>>;

    /// The score at once, of a scorer that waits for nothing; `None` (the default) for all others. Such scorers run
    /// in place, without a future; when the replies are long, the worker's other tasks are moved away first.
    fn score_now(&self, _context: ScoreContext<'_>) -> Option<Result<Score, Fault>> {
        None
    }

    /// Whether it waits for something outside this process, so that the rollout is written down before: a model, another
    /// process. True but for scorers that are known to compute in place.
    fn waits(&self) -> bool {
        true
    }
}

/// The named, weighted rewards and unweighted metrics of a task.
///
/// Built as a chain; a chain with a fault in it (a name twice, a weight that is no number) is refused by
/// [`Rubric::build`], and one that was never built scores nothing: [`Rubric::score`] fails with the same message.
#[derive(Clone, Default)]
pub struct Rubric {
    rewards: Vec<Seat>,
    metrics: Vec<Seat>,
    group_rewards: Vec<(RewardLine, Arc<dyn GroupScorer>)>,
    judges: Vec<Arc<Judge>>,
    fault: Option<RubricError>,
}

/// One scorer of a rubric, with the lines that it fills.
#[derive(Clone)]
struct Seat {
    lines: Vec<RewardLine>,
    /// Metrics that the scorer of rewards gives beside them, after them.
    details: Vec<RewardLine>,
    scorer: Source,
}

#[derive(Clone)]
enum Source {
    /// Fills its one line.
    One(Arc<dyn Scorer>),
    /// Fills all its lines, then its details.
    Panel(Arc<dyn Panel>),
}

/// A reward of a rubric before it is scored. For a metric the weight says nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct RewardLine {
    /// The name under which the score is kept.
    pub name: String,
    /// Its share in the total.
    pub weight: f64,
    /// Bounds of the raw score, ends included; outside, the scoring failed.
    pub bounds: Option<RangeInclusive<f64>>,
}

/// One line of a rubric, for help texts and descriptions.
#[derive(Clone, Debug, PartialEq)]
pub struct RubricLine<'a> {
    /// The name under which the score is kept.
    pub name: &'a str,
    /// The weight of a reward; `None` for a metric.
    pub weight: Option<f64>,
    /// The declared bounds of the raw score, ends included.
    pub bounds: Option<RangeInclusive<f64>>,
}

/// Why a rubric or a scorer cannot be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RubricError {
    /// Two scorers of one name.
    #[error("the rubric names `{0}` twice: give each reward and metric its own name")]
    Duplicate(String),
    /// A scorer without a name.
    #[error("a reward or metric has an empty name: name it")]
    Unnamed,
    /// A weight that is no number.
    #[error("the weight of reward `{name}` is {weight}: give a finite number")]
    Weight {
        /// The reward.
        name: String,
        /// Its weight.
        weight: f64,
    },
    /// A weight for a reward that is not there.
    #[error("there is no reward `{name}`{}", among(.there))]
    NoReward {
        /// The name asked for.
        name: String,
        /// The rewards that are there.
        there: Vec<String>,
    },
    /// Bounds that hold nothing.
    #[error("the bounds of reward `{name}` are {low} to {high}: give two finite numbers, the lower first")]
    Bounds {
        /// The reward.
        name: String,
        /// Lower end.
        low: f64,
        /// Upper end.
        high: f64,
    },
    /// A pattern that does not compile.
    #[error("`{pattern}` is not a regular expression: {problem}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What the compiler says.
        problem: String,
    },
    /// A JSON schema that does not compile.
    #[error("not a valid JSON schema: {0}")]
    Schema(String),
}

/// The end of the message about an unknown reward.
fn among(there: &[String]) -> String {
    match there {
        [] => ": the taskset has none".to_owned(),
        names => format!(": it has {}", names.join(", ")),
    }
}

impl RewardLine {
    /// A reward without bounds.
    pub fn new(name: &str, weight: f64) -> Self {
        Self { name: name.to_owned(), weight, bounds: None }
    }
}

impl Score {
    /// A score with its reason.
    pub fn because(value: f64, why: impl Into<String>) -> Self {
        Self { value, why: Some(why.into()) }
    }

    /// A full score with its reason.
    pub fn pass(why: impl Into<String>) -> Self {
        Self::because(1.0, why)
    }

    /// A score of 0 with its reason.
    pub fn fail(why: impl Into<String>) -> Self {
        Self::because(0.0, why)
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

    fn score_now(&self, context: ScoreContext<'_>) -> Option<Result<Score, Fault>> {
        Some(self(context))
    }

    fn waits(&self) -> bool {
        false
    }
}
