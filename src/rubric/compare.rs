//! Scorers made of an answer, what is expected, and a check.

use std::{ops::RangeInclusive, sync::Arc};

use futures::{
    FutureExt,
    future::{BoxFuture, join_all},
};

use super::{Answer, Expected, Score, ScoreContext, Scorer, expected::unusable, score::on_blocking_thread};
use crate::trace::Fault;

type Check = dyn Fn(&str, &str) -> Result<Score, Fault> + Send + Sync;

/// A scorer that compares the answer with what is expected, the best of several. A rollout without an answer scores 0,
/// with the reason.
#[derive(Clone)]
pub struct Compare {
    answer: Answer,
    expected: Expected,
    check: Arc<Check>,
    heavy: bool,
}

/// Compares the answer (first argument of `check`) with what is expected (second).
///
/// ```
/// use rollhouse::rubric::{Answer, Expected, Rubric, compare, text};
///
/// let answer = Answer::whole().strip_think().tag("answer");
/// let correct = compare(answer, Expected::field("answer"), |answer, expected| {
///     text::exact(answer, expected, text::Normalise::TRIM)
/// });
/// let rubric = Rubric::new().reward("correct", 1.0, correct).build()?;
/// assert_eq!(rubric.names().collect::<Vec<_>>(), ["correct"]);
/// # Ok::<(), rollhouse::rubric::RubricError>(())
/// ```
pub fn compare(
    answer: Answer,
    expected: Expected,
    check: impl Fn(&str, &str) -> Score + Send + Sync + 'static,
) -> Compare {
    try_compare(answer, expected, move |answer, expected| Ok(check(answer, expected)))
}

/// [`compare`] with a check that may find the row unusable: a fault, never a score.
pub fn try_compare(
    answer: Answer,
    expected: Expected,
    check: impl Fn(&str, &str) -> Result<Score, Fault> + Send + Sync + 'static,
) -> Compare {
    Compare { answer, expected, check: Arc::new(check), heavy: false }
}

/// Checks the answer alone, for example its length.
pub fn examine(answer: Answer, check: impl Fn(&str) -> Score + Send + Sync + 'static) -> Compare {
    compare(answer, Expected::Text(String::new()), move |answer, _| check(answer))
}

impl Compare {
    /// The same scorer, run on a thread for blocking work: for checks that may take more than a few milliseconds.
    #[must_use]
    pub fn heavy(mut self) -> Self {
        self.heavy = true;
        self
    }

    fn pick(&self, context: ScoreContext<'_>) -> Result<Result<Picked, Score>, Fault> {
        let expected = self.expected.of(context.task)?;
        Ok(match self.answer.of(context.trace) {
            Ok(answer) => Ok(Picked { answer, expected }),
            Err(why) => Err(Score::fail(format!("no answer: {why}"))),
        })
    }
}

struct Picked {
    answer: String,
    expected: Vec<String>,
}

impl Picked {
    /// The best score of all that is expected; what is not finite wins, so that it is seen and fails.
    fn best(&self, check: &Check) -> Result<Score, Fault> {
        let (first, others) = self.expected.split_first().ok_or_else(|| unusable("nothing is expected".to_owned()))?;
        let mut best = check(&self.answer, first)?;
        for expected in others {
            let score = check(&self.answer, expected)?;
            if best.value.is_finite() && (score.value > best.value || !score.value.is_finite()) {
                best = score;
            }
        }
        Ok(best)
    }
}

impl Scorer for Compare {
    fn score<'a>(&'a self, context: ScoreContext<'a>) -> BoxFuture<'a, Result<Score, Fault>> {
        async move {
            match self.pick(context)? {
                Err(score) => Ok(score),
                Ok(picked) if self.heavy => {
                    let check = Arc::clone(&self.check);
                    on_blocking_thread(picked, move |picked| picked.best(&*check)).await
                }
                Ok(picked) => picked.best(&*self.check),
            }
        }
        .boxed()
    }

    fn score_now(&self, context: ScoreContext<'_>) -> Option<Result<Score, Fault>> {
        if self.heavy {
            return None;
        }
        Some(self.pick(context).and_then(|picked| match picked {
            Ok(picked) => picked.best(&*self.check),
            Err(score) => Ok(score),
        }))
    }

    fn waits(&self) -> bool {
        false
    }
}

/// A scorer that others hold, too.
pub(super) struct Shared(pub Arc<dyn Scorer>);

impl Scorer for Shared {
    fn score<'a>(&'a self, context: ScoreContext<'a>) -> BoxFuture<'a, Result<Score, Fault>> {
        self.0.score(context)
    }

    fn score_now(&self, context: ScoreContext<'_>) -> Option<Result<Score, Fault>> {
        self.0.score_now(context)
    }

    fn waits(&self) -> bool {
        self.0.waits()
    }
}

/// A scorer's score after a change.
struct Changed<S, F> {
    scorer: S,
    change: F,
}

impl<S: Scorer, F: Fn(Score) -> Score + Send + Sync> Scorer for Changed<S, F> {
    fn score<'a>(&'a self, context: ScoreContext<'a>) -> BoxFuture<'a, Result<Score, Fault>> {
        self.scorer.score(context).map(|result| result.map(&self.change)).boxed()
    }

    fn score_now(&self, context: ScoreContext<'_>) -> Option<Result<Score, Fault>> {
        self.scorer.score_now(context).map(|result| result.map(&self.change))
    }

    fn waits(&self) -> bool {
        self.scorer.waits()
    }
}

/// 1 when the scorer gives at least `least`, else 0. A score that is not a number stays one and fails.
pub fn threshold(least: f64, scorer: impl Scorer) -> impl Scorer {
    Changed {
        scorer,
        change: move |score: Score| {
            if score.value.is_nan() {
                return score;
            }
            let holds = score.value >= least;
            let why = format!("{} is {}{least}", score.value, if holds { "at least " } else { "below " });
            Score::because(f64::from(u8::from(holds)), with_reason(why, score.why.as_deref()))
        },
    }
}

/// The scorer's score, moved to the nearest end when it lies outside of the bounds. What is not finite stays so and
/// fails. Bounds the wrong way round change nothing.
pub fn clamp(bounds: RangeInclusive<f64>, scorer: impl Scorer) -> impl Scorer {
    Changed {
        scorer,
        change: move |mut score: Score| {
            if score.value.is_finite() && bounds.start() <= bounds.end() {
                score.value = score.value.clamp(*bounds.start(), *bounds.end());
            }
            score
        },
    }
}

/// 1 less the scorer's score: full where it gives nothing.
pub fn inverted(scorer: impl Scorer) -> impl Scorer {
    Changed { scorer, change: |score: Score| Score { value: 1.0 - score.value, ..score } }
}

/// The lowest score of several scorers: full only when all are. Fails when one of them fails, or there are none.
pub fn all_of(scorers: Vec<Arc<dyn Scorer>>) -> impl Scorer {
    Chosen { scorers, better: |new, old| new < old }
}

/// The highest score of several scorers. Fails when one of them fails, or there are none.
pub fn any_of(scorers: Vec<Arc<dyn Scorer>>) -> impl Scorer {
    Chosen { scorers, better: |new, old| new > old }
}

struct Chosen {
    scorers: Vec<Arc<dyn Scorer>>,
    better: fn(f64, f64) -> bool,
}

impl Scorer for Chosen {
    fn score<'a>(&'a self, context: ScoreContext<'a>) -> BoxFuture<'a, Result<Score, Fault>> {
        async move {
            let scores = join_all(self.scorers.iter().map(|scorer| async move {
                match scorer.score_now(context) {
                    Some(result) => result,
                    None => scorer.score(context).await,
                }
            }))
            .await;
            let mut chosen: Option<Score> = None;
            for score in scores {
                let score = score?;
                // What is not finite wins, so that it is seen and fails.
                if !score.value.is_finite() {
                    return Ok(score);
                }
                if chosen.as_ref().is_none_or(|chosen| (self.better)(score.value, chosen.value)) {
                    chosen = Some(score);
                }
            }
            chosen.ok_or_else(|| unusable("there is no scorer to choose from".to_owned()))
        }
        .boxed()
    }

    fn waits(&self) -> bool {
        self.scorers.iter().any(|scorer| scorer.waits())
    }
}

fn with_reason(what: String, why: Option<&str>) -> String {
    match why {
        Some(why) => format!("{what}: {why}"),
        None => what,
    }
}
