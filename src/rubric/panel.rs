//! Several scores from one look at a rollout.

use futures::future::BoxFuture;

use super::{Score, ScoreContext};
use crate::trace::Fault;

/// Something that gives several scores at once: one call of a judge for several criteria, one call of a worker process
/// for several functions.
pub trait Panel: Send + Sync {
    /// Scores one rollout: a result for each line that the panel was added with, in their order. A result too many or too
    /// few is a fault of all of them. Dropping the future ends the scoring.
    fn score<'a>(&'a self, context: ScoreContext<'a>) -> BoxFuture<'a, Vec<Result<Score, Fault>>>;

    /// Whether what it waits for is slow, dear or not to be had again, so that the rollout is written down before; as
    /// `Scorer::waits`.
    fn waits(&self) -> bool {
        true
    }
}
