//! Rewards and metrics: named scorers that see a task and its trace.
//!
//! What enters is a finished trace; what leaves is the same trace with its rewards, metrics and the reasons for them.
//! A scorer that fails, or whose score is not finite, makes the rollout unscored: it is never a reward of 0.
//!
//! Three layers, each usable alone: plain functions over text ([`text`], [`similarity`], [`tags`], [`fence`], [`math`],
//! [`schema`]), [`Answer`] which says what part of the last reply they look at, and [`Compare`] which makes a
//! [`Scorer`] of both.

mod answer;
mod compare;
pub mod fence;
mod group;
mod ledger;
pub mod math;
mod panel;
pub mod schema;
mod score;
pub mod similarity;
pub mod tags;
pub mod text;

use std::{ops::RangeInclusive, sync::Arc};

use futures::future::BoxFuture;

pub use answer::{Answer, after_hashes, boxed, last_number, strip_think};
pub use compare::{Compare, Expected, all_of, any_of, clamp, compare, examine, threshold};
pub use group::GroupScorer;
pub use ledger::{Expense, Ledger};
pub use panel::Panel;
pub use score::{asynchronous, heavy};

use crate::trace::{Fault, TaskData, Trace};

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
    fault: Option<RubricError>,
}

/// One scorer of a rubric, with the lines that it fills.
#[derive(Clone)]
struct Seat {
    lines: Vec<RewardLine>,
    scorer: Source,
}

#[derive(Clone)]
enum Source {
    /// Fills its one line.
    One(Arc<dyn Scorer>),
    /// Fills all its lines.
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

impl Rubric {
    /// A rubric with nothing in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a weighted reward.
    #[must_use]
    pub fn reward(self, name: &str, weight: f64, scorer: impl Scorer + 'static) -> Self {
        self.seat_reward(RewardLine::new(name, weight), Arc::new(scorer))
    }

    /// Adds a weighted reward whose raw score must lie within bounds, ends included; outside, the scoring failed.
    #[must_use]
    pub fn reward_in(
        self,
        name: &str,
        weight: f64,
        bounds: RangeInclusive<f64>,
        scorer: impl Scorer + 'static,
    ) -> Self {
        self.seat_reward(RewardLine { bounds: Some(bounds), ..RewardLine::new(name, weight) }, Arc::new(scorer))
    }

    /// Adds a weighted reward of a line made before.
    #[must_use]
    pub fn seat_reward(self, line: RewardLine, scorer: Arc<dyn Scorer>) -> Self {
        self.add_rewards(vec![line], Source::One(scorer))
    }

    /// Adds rewards that one panel scores together; its scores come in the order of the lines.
    #[must_use]
    pub fn panel(self, lines: Vec<RewardLine>, panel: Arc<dyn Panel>) -> Self {
        self.add_rewards(lines, Source::Panel(panel))
    }

    /// Adds a metric.
    #[must_use]
    pub fn metric(self, name: &str, scorer: impl Scorer + 'static) -> Self {
        self.seat_metric(name, Arc::new(scorer))
    }

    /// Adds a metric whose scorer is shared.
    #[must_use]
    pub fn seat_metric(self, name: &str, scorer: Arc<dyn Scorer>) -> Self {
        self.add_metrics(&[name.to_owned()], Source::One(scorer))
    }

    /// Adds metrics that one panel measures together, in the order of the names.
    #[must_use]
    pub fn metric_panel(self, names: &[String], panel: Arc<dyn Panel>) -> Self {
        self.add_metrics(names, Source::Panel(panel))
    }

    /// Adds a weighted reward that compares all rollouts of a task with each other.
    #[must_use]
    pub fn group_reward(mut self, line: RewardLine, scorer: Arc<dyn GroupScorer>) -> Self {
        self.check(&line);
        self.group_rewards.push((line, scorer));
        self
    }

    /// The rubric, if nothing in the chain that made it was wrong.
    pub fn build(self) -> Result<Self, RubricError> {
        match self.fault {
            Some(fault) => Err(fault),
            None => Ok(self),
        }
    }

    /// The names of its rewards, then of its metrics, in the order they were added.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.lines().map(|line| line.name)
    }

    /// Its rewards with their weights, those of groups last, then its metrics, in the order they were added.
    pub fn lines(&self) -> impl Iterator<Item = RubricLine<'_>> {
        let own = self.rewards.iter().flat_map(|seat| &seat.lines);
        let rewards = own.chain(self.group_rewards.iter().map(|(line, _)| line)).map(|line| (line, Some(line.weight)));
        let metrics = self.metrics.iter().flat_map(|seat| &seat.lines).map(|line| (line, None));
        rewards.chain(metrics).map(|(line, weight)| RubricLine {
            name: &line.name,
            weight,
            bounds: line.bounds.clone(),
        })
    }

    /// Whether some of its rewards are given to a whole group: then no rollout of a task is scored before all are done.
    pub fn compares_groups(&self) -> bool {
        !self.group_rewards.is_empty()
    }

    fn add_rewards(mut self, lines: Vec<RewardLine>, scorer: Source) -> Self {
        lines.iter().for_each(|line| self.check(line));
        self.rewards.push(Seat { lines, scorer });
        self
    }

    fn add_metrics(mut self, names: &[String], scorer: Source) -> Self {
        let lines = names.iter().map(|name| RewardLine::new(name, 0.0)).collect::<Vec<_>>();
        names.iter().for_each(|name| self.check_name(name));
        self.metrics.push(Seat { lines, scorer });
        self
    }

    fn check(&mut self, line: &RewardLine) {
        let name = &line.name;
        self.check_name(name);
        if !line.weight.is_finite() {
            self.fault.get_or_insert(RubricError::Weight { name: name.clone(), weight: line.weight });
        }
        if let Some(bounds) = &line.bounds {
            let (low, high) = (*bounds.start(), *bounds.end());
            if !(low.is_finite() && high.is_finite() && low <= high) {
                self.fault.get_or_insert(RubricError::Bounds { name: name.clone(), low, high });
            }
        }
    }

    fn check_name(&mut self, name: &str) {
        if name.is_empty() {
            self.fault.get_or_insert(RubricError::Unnamed);
        } else if self.names().any(|other| other == name) {
            self.fault.get_or_insert(RubricError::Duplicate(name.to_owned()));
        }
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
}
