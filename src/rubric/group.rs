//! Rewards that compare all rollouts of a task.

use futures::future::BoxFuture;

use super::Score;
use crate::trace::{Fault, TaskData, Trace};

/// Something that scores all rollouts of a task with regard to each other.
pub trait GroupScorer: Send + Sync {
    /// Scores a group: a score for each trace, in their order. Only rollouts that have all their own scores are in it.
    fn score<'a>(&'a self, task: &'a TaskData, group: &'a [&'a Trace]) -> BoxFuture<'a, Result<Vec<Score>, Fault>>;
}
