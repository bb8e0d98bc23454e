//! Running a rubric over a finished trace.

use std::{any::Any, panic::AssertUnwindSafe, sync::Arc, time::Instant};

use futures::{
    FutureExt,
    future::{BoxFuture, Either, join_all, ready},
};
use serde_json::{Map, Value};
use tokio::{runtime::Handle, task::spawn_blocking};

use super::{Ledger, RewardLine, Rubric, Score, ScoreContext, Scorer, Seat, Source};
use crate::{
    telemetry::aside,
    trace::{Fault, FaultClass, Message, RewardScore, TaskData, Trace},
};

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
        let ledger = Ledger::default();
        let scored = self.score_into(trace, &ledger).await;
        ledger.settle(trace);
        scored
    }

    /// [`Self::score`] with the caller's ledger, which still has the expenses when the future is dropped.
    pub async fn score_into(&self, trace: &mut Trace, ledger: &Ledger) -> Result<(), Fault> {
        self.mark_due(trace);
        if let Some(fault) = &self.fault {
            return Err(Fault::new(FaultClass::Scoring, fault.to_string()));
        }

        let measured = run("metric", &self.metrics, trace, ledger).await;
        for (line, result) in lines(&self.metrics).zip(&measured) {
            trace.metrics.insert(line.name.clone(), result.as_ref().ok().map(|score| score.value));
        }
        keep_reasons(trace, lines(&self.metrics), &measured);
        first_fault(measured)?;

        let rewarded = run("reward", &self.rewards, trace, ledger).await;
        keep_reasons(trace, lines(&self.rewards), &rewarded);
        let mut scores = first_fault(without_echoes(&self.rewards, rewarded))?.into_iter();
        for seat in &self.rewards {
            for (line, score) in seat.lines.iter().zip(&mut scores) {
                let reward = RewardScore { score: score.value, weight: line.weight };
                trace.rewards.insert(line.name.clone(), Some(reward));
            }
            for (line, score) in seat.details.iter().zip(&mut scores) {
                trace.metrics.insert(line.name.clone(), Some(score.value));
            }
        }
        Ok(())
    }

    /// Whether a trace came through [`Self::score`] and has all of its own rewards and metrics; those of groups do not count.
    pub fn has_scored(&self, trace: &Trace) -> bool {
        trace.ok
            && trace.timing.scoring.end > 0.0
            && lines(&self.rewards).all(|line| matches!(trace.rewards.get(&line.name), Some(Some(_))))
            && lines(&self.metrics).all(|line| matches!(trace.metrics.get(&line.name), Some(Some(_))))
    }

    /// Scores all rollouts of a task with regard to each other, each of them scored by itself before; a single one is a
    /// group, too. All group rewards enter all traces, or none enters any: then they stay `null`, also those that an
    /// earlier, smaller group had.
    ///
    /// # Errors
    /// The first failure in the order of the rubric; a score that is not finite or out of bounds is one.
    pub async fn score_group(&self, task: &TaskData, group: &mut [&mut Trace]) -> Result<(), Fault> {
        for (line, _) in &self.group_rewards {
            for trace in group.iter_mut() {
                trace.rewards.insert(line.name.clone(), None);
            }
        }
        let mut scored = Vec::new();
        for (line, scorer) in &self.group_rewards {
            let members: Vec<&Trace> = group.iter().map(|trace| &**trace).collect();
            let scoring = AssertUnwindSafe(async { scorer.score(task, &members).await }).catch_unwind();
            let scores = scoring.await.unwrap_or_else(|panic| Err(panicked(&*panic)));
            let scores = scores.map_err(|fault| line.named("group reward", fault))?;
            if scores.len() != members.len() {
                let problem = format!("gave {} scores for a group of {}", scores.len(), members.len());
                return Err(line.named("group reward", Fault::new(FaultClass::Scoring, problem)));
            }
            let judged = scores.into_iter().map(|score| line.judge("group reward", Ok(score)));
            scored.push((line, judged.collect::<Result<Vec<_>, _>>()?));
        }
        for (line, scores) in scored {
            for (trace, score) in group.iter_mut().zip(scores) {
                keep_reasons(trace, std::iter::once(line), &[Ok(score.clone())]);
                let reward = RewardScore { score: score.value, weight: line.weight };
                trace.rewards.insert(line.name.clone(), Some(reward));
            }
        }
        Ok(())
    }

    /// Writes down every reward and metric as due but not scored. For rollouts whose scoring was never reached.
    pub fn mark_due(&self, trace: &mut Trace) {
        let rewards = self.rewards.iter().flat_map(|seat| &seat.lines);
        for line in rewards.chain(self.group_rewards.iter().map(|(line, _)| line)) {
            trace.rewards.insert(line.name.clone(), None);
        }
        let details = self.rewards.iter().flat_map(|seat| &seat.details);
        for line in lines(&self.metrics).chain(details) {
            trace.metrics.insert(line.name.clone(), None);
        }
    }
}

/// Everything that the seats fill, in order.
fn lines(seats: &[Seat]) -> impl Iterator<Item = &RewardLine> {
    seats.iter().flat_map(Seat::all)
}

/// A result for each line of the seats, in order.
async fn run(role: &str, seats: &[Seat], trace: &Trace, ledger: &Ledger) -> Vec<Result<Score, Fault>> {
    let context = ScoreContext { task: &trace.task.data, trace, ledger };
    let long = is_long(trace);
    let scored = join_all(seats.iter().map(|seat| {
        let begun = Instant::now();
        // A scorer is only shared state behind `&self`; one that broke its own invariants breaks its later scores, and
        // each of these is caught the same way.
        let now = match &seat.scorer {
            Source::One(scorer) => {
                std::panic::catch_unwind(AssertUnwindSafe(|| aside(long, || scorer.score_now(context))))
            }
            Source::Panel(_) => Ok(None),
        };
        let done = move |results| {
            ledger.clock(seat.lines.iter().map(|line| line.name.as_str()), begun.elapsed());
            results
        };
        match now {
            Ok(Some(result)) => Either::Left(ready(done(seat.judge(role, vec![result])))),
            Ok(None) => Either::Right(seat.wait(role, context).map(done)),
            Err(panic) => Either::Left(ready(done(seat.judge(role, vec![Err(panicked(&*panic))])))),
        }
    }))
    .await;
    scored.into_iter().flatten().collect()
}

fn is_long(trace: &Trace) -> bool {
    let size = |message: &Message| match message {
        Message::Assistant(reply) => reply.content.as_ref().map_or(0, String::len),
        _ => 0,
    };
    trace.graph.nodes().iter().map(|node| size(&node.message)).sum::<usize>() > LONG
}

impl Seat {
    fn all(&self) -> impl Iterator<Item = &RewardLine> {
        self.lines.iter().chain(&self.details)
    }

    async fn wait(&self, role: &str, context: ScoreContext<'_>) -> Vec<Result<Score, Fault>> {
        let scoring = AssertUnwindSafe(async {
            match &self.scorer {
                Source::One(scorer) => vec![scorer.score(context).await],
                Source::Panel(panel) => panel.score(context).await,
            }
        });
        let results = scoring.catch_unwind().await;
        self.judge(role, results.unwrap_or_else(|panic| vec![Err(panicked(&*panic)); self.all().count()]))
    }

    /// Lets only finite scores within bounds pass, one for each line.
    fn judge(&self, role: &str, results: Vec<Result<Score, Fault>>) -> Vec<Result<Score, Fault>> {
        let names = self.all().count();
        let results = if results.len() == names {
            results
        } else {
            let problem = format!("its scorer gave {} scores for {names} names", results.len());
            vec![Err(Fault::new(FaultClass::Scoring, problem)); names]
        };
        self.all().zip(results).map(|(line, result)| line.judge(role, result)).collect()
    }
}

impl RewardLine {
    fn judge(&self, role: &str, result: Result<Score, Fault>) -> Result<Score, Fault> {
        let name = &self.name;
        let score = result.map_err(|fault| self.named(role, fault))?;
        let problem = match &self.bounds {
            _ if !score.value.is_finite() => "is not a finite number".to_owned(),
            Some(bounds) if !bounds.contains(&score.value) => {
                format!("lies outside its declared bounds, {} to {}", bounds.start(), bounds.end())
            }
            _ => return Ok(score),
        };
        Err(Fault::new(FaultClass::Scoring, format!("{role} `{name}`: its score of {} {problem}", score.value)))
    }

    fn named(&self, role: &str, mut fault: Fault) -> Fault {
        fault.message = format!("{role} `{}`: {}", self.name, fault.message);
        fault
    }
}

fn keep_reasons<'a>(trace: &mut Trace, lines: impl Iterator<Item = &'a RewardLine>, results: &[Result<Score, Fault>]) {
    let reasons: Vec<(String, Value)> = lines
        .zip(results)
        .filter_map(|(line, result)| {
            let why = match result {
                Ok(score) => score.why.clone()?,
                Err(fault) => format!("failed: {}", fault.message),
            };
            Some((line.name.clone(), Value::String(why)))
        })
        .collect();
    if reasons.is_empty() {
        return;
    }
    let kept = trace.info.entry(Trace::REASONS).or_insert_with(|| Value::Object(Map::new()));
    if !kept.is_object() {
        *kept = Value::Object(Map::new());
    }
    if let Value::Object(kept) = kept {
        kept.extend(reasons);
    }
}

/// The results without those of details that failed together with their reward: they say the same once more.
fn without_echoes(seats: &[Seat], results: Vec<Result<Score, Fault>>) -> Vec<Result<Score, Fault>> {
    let (mut kept, mut results) = (Vec::with_capacity(results.len()), results.into_iter());
    for seat in seats {
        let own = kept.len();
        kept.extend(results.by_ref().take(seat.lines.len()));
        let failed = kept[own..].iter().any(Result::is_err);
        kept.extend(results.by_ref().take(seat.details.len()).filter(|result| !(failed && result.is_err())));
    }
    kept
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

    fn waits(&self) -> bool {
        false
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
