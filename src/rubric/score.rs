//! Running a rubric over a finished trace.

use std::{any::Any, panic::AssertUnwindSafe, sync::Arc};

use futures::{
    FutureExt,
    future::{BoxFuture, Either, join_all, ready},
};
use serde_json::{Map, Value};
use tokio::{runtime::Handle, task::spawn_blocking};

use super::{Named, Rubric, Score, ScoreContext, Scorer};
use crate::{
    telemetry::aside,
    trace::{Fault, FaultClass, Message, RewardScore, Trace},
};

/// The key under which the reasons stand in a trace's `info`.
const REASONS: &str = "scoring";
/// Bytes of replies above which plain functions score where no other rollout waits for them.
const LONG: usize = 16 << 10;

impl Rubric {
    /// Scores a finished trace: all metrics, then all rewards, the waiting ones of each at the same time.
    ///
    /// Every name is first written down as due (`null`). Metrics enter the trace as soon as all of them are measured;
    /// rewards enter all together or, when any scorer fails, panics, or gives a value that is not finite or lies
    /// outside its bounds, not at all: they stay `null`. Reasons go to `info.scoring.<name>`, those of failures too.
    /// The future may be dropped at any time: what it leaves is the same as after a failure.
    ///
    /// # Errors
    /// The first failure in the order of the rubric, naming the reward and its value; its class is `scoring`, or
    /// whatever class the scorer itself gave (a judge's is `judge`).
    pub async fn score(&self, trace: &mut Trace) -> Result<(), Fault> {
        self.mark_due(trace);
        if let Some(fault) = &self.fault {
            return Err(Fault::new(FaultClass::Scoring, fault.to_string()));
        }

        let measured = run("metric", &self.metrics, trace).await;
        for (named, result) in self.metrics.iter().zip(&measured) {
            trace.metrics.insert(named.name.clone(), result.as_ref().ok().map(|score| score.value));
        }
        keep_reasons(trace, &self.metrics, &measured);
        first_fault(measured)?;

        let rewarded = run("reward", &self.rewards, trace).await;
        keep_reasons(trace, &self.rewards, &rewarded);
        let scores = first_fault(rewarded)?;
        for (named, score) in self.rewards.iter().zip(scores) {
            let reward = RewardScore { score: score.value, weight: named.weight };
            trace.rewards.insert(named.name.clone(), Some(reward));
        }
        Ok(())
    }

    /// Writes down every reward and metric as due but not scored. For rollouts whose scoring was never reached.
    pub fn mark_due(&self, trace: &mut Trace) {
        for named in &self.rewards {
            trace.rewards.insert(named.name.clone(), None);
        }
        for named in &self.metrics {
            trace.metrics.insert(named.name.clone(), None);
        }
    }
}

async fn run(role: &str, scorers: &[Named], trace: &Trace) -> Vec<Result<Score, Fault>> {
    let context = ScoreContext { task: &trace.task.data, trace };
    let long = is_long(trace);
    join_all(scorers.iter().map(|named| {
        // A scorer is only shared state behind `&self`; one that broke its own invariants breaks its later scores, and
        // each of these is caught the same way.
        match std::panic::catch_unwind(AssertUnwindSafe(|| aside(long, || named.scorer.score_now(context)))) {
            Ok(Some(result)) => Either::Left(ready(named.judge(role, result))),
            Ok(None) => Either::Right(named.wait(role, context)),
            Err(panic) => Either::Left(ready(named.judge(role, Err(panicked(&*panic))))),
        }
    }))
    .await
}

fn is_long(trace: &Trace) -> bool {
    let size = |message: &Message| match message {
        Message::Assistant(reply) => reply.content.as_ref().map_or(0, String::len),
        _ => 0,
    };
    trace.graph.nodes().iter().map(|node| size(&node.message)).sum::<usize>() > LONG
}

impl Named {
    async fn wait(&self, role: &str, context: ScoreContext<'_>) -> Result<Score, Fault> {
        let scoring = AssertUnwindSafe(async { self.scorer.score(context).await }).catch_unwind();
        self.judge(role, scoring.await.unwrap_or_else(|panic| Err(panicked(&*panic))))
    }

    /// Lets only finite scores within bounds pass.
    fn judge(&self, role: &str, result: Result<Score, Fault>) -> Result<Score, Fault> {
        let name = &self.name;
        let score = result.map_err(|mut fault| {
            fault.message = format!("{role} `{name}`: {}", fault.message);
            fault
        })?;
        let problem = match &self.bounds {
            _ if !score.value.is_finite() => "is not a finite number".to_owned(),
            Some(bounds) if !bounds.contains(&score.value) => {
                format!("lies outside its declared bounds, {} to {}", bounds.start(), bounds.end())
            }
            _ => return Ok(score),
        };
        Err(Fault::new(FaultClass::Scoring, format!("{role} `{name}`: its score of {} {problem}", score.value)))
    }
}

fn keep_reasons(trace: &mut Trace, scorers: &[Named], results: &[Result<Score, Fault>]) {
    let reasons: Vec<(String, Value)> = scorers
        .iter()
        .zip(results)
        .filter_map(|(named, result)| {
            let why = match result {
                Ok(score) => score.why.clone()?,
                Err(fault) => format!("failed: {}", fault.message),
            };
            Some((named.name.clone(), Value::String(why)))
        })
        .collect();
    if reasons.is_empty() {
        return;
    }
    let kept = trace.info.entry(REASONS).or_insert_with(|| Value::Object(Map::new()));
    if !kept.is_object() {
        *kept = Value::Object(Map::new());
    }
    if let Value::Object(kept) = kept {
        kept.extend(reasons);
    }
}

/// All scores, or the first fault with the others among its causes.
fn first_fault(results: Vec<Result<Score, Fault>>) -> Result<Vec<Score>, Fault> {
    let (mut scores, mut first) = (Vec::with_capacity(results.len()), None::<Fault>);
    for result in results {
        match (result, &mut first) {
            (Ok(score), _) => scores.push(score),
            (Err(fault), None) => first = Some(fault),
            (Err(fault), Some(first)) => first.causes.push(format!("also failed: {}", fault.message)),
        }
    }
    first.map_or(Ok(scores), Err)
}

fn panicked(panic: &(dyn Any + Send)) -> Fault {
    Fault::from_panic(FaultClass::Scoring, "the scorer", panic)
}

/// A scorer that waits for something, from a function that returns a boxed future.
pub fn asynchronous<F>(score: F) -> impl Scorer
where
    F: for<'a> Fn(ScoreContext<'a>) -> BoxFuture<'a, Result<Score, Fault>> + Send + Sync,
{
    Asynchronous(score)
}

struct Asynchronous<F>(F);

impl<F> Scorer for Asynchronous<F>
where
    F: for<'a> Fn(ScoreContext<'a>) -> BoxFuture<'a, Result<Score, Fault>> + Send + Sync,
{
    fn score<'a>(&'a self, context: ScoreContext<'a>) -> BoxFuture<'a, Result<Score, Fault>> {
        (self.0)(context)
    }
}

/// A scorer whose work takes more than a few milliseconds of a core: `pick` takes what the work needs out of the
/// context, `work` scores it on a thread for blocking work, so that other rollouts go on meanwhile.
///
/// A thread cannot be stopped: when the scoring is given up, work that has begun runs to its end unseen. Bound it.
pub fn heavy<T, P, W>(pick: P, work: W) -> impl Scorer
where
    T: Send + 'static,
    P: Fn(ScoreContext<'_>) -> Result<T, Fault> + Send + Sync,
    W: Fn(T) -> Result<Score, Fault> + Send + Sync + 'static,
{
    Heavy { pick, work: Arc::new(work), input: std::marker::PhantomData::<fn() -> T> }
}

struct Heavy<T, P, W> {
    pick: P,
    work: Arc<W>,
    input: std::marker::PhantomData<fn() -> T>,
}

impl<T, P, W> Scorer for Heavy<T, P, W>
where
    T: Send + 'static,
    P: Fn(ScoreContext<'_>) -> Result<T, Fault> + Send + Sync,
    W: Fn(T) -> Result<Score, Fault> + Send + Sync + 'static,
{
    fn score<'a>(&'a self, context: ScoreContext<'a>) -> BoxFuture<'a, Result<Score, Fault>> {
        let input = (self.pick)(context);
        let work = Arc::clone(&self.work);
        Box::pin(async move { on_blocking_thread(input?, move |input| work(input)).await })
    }
}

/// Runs work on a thread for blocking work, or in place where no such threads are.
pub(super) async fn on_blocking_thread<T: Send + 'static>(
    input: T,
    work: impl FnOnce(T) -> Result<Score, Fault> + Send + 'static,
) -> Result<Score, Fault> {
    if Handle::try_current().is_err() {
        return work(input);
    }
    match spawn_blocking(move || work(input)).await {
        Ok(result) => result,
        Err(error) => Err(match error.try_into_panic() {
            Ok(panic) => panicked(&*panic),
            Err(_) => Fault::new(FaultClass::Cancelled, "the scoring was cut off because the program is ending"),
        }),
    }
}
