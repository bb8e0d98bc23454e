//! Scoring is a stage of its own: it is done again without the agents, alone or over a group, and loses nothing.
#![allow(clippy::disallowed_methods, reason = "tests look at files of their own")]

mod launch;

use std::{
    collections::BTreeSet,
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use launch::{Sayings, Setup};
use rollhouse::{
    config::{RetryRule, RetryRules, StageDeadlines},
    eval::{RunEnd, Stops},
    rubric::{Expense, GroupScorer, RewardLine, Rubric, Score, ScoreContext, Scorer, asynchronous},
    sim::{Settings, Simulator},
    taskset::{Hooks, State},
    trace::{Episode, Fault, FaultClass, TaskData, Trace, TraceTask, Usage},
};
use serde_json::json;

fn judge_fault() -> Fault {
    Fault::new(FaultClass::Judge, "the judge is out")
}

/// A judge that is out as often as it is told, then gives 1. Each asking costs a token.
#[derive(Clone, Default)]
struct Judge {
    out: Arc<AtomicU32>,
    asked: Arc<AtomicU32>,
}

impl Judge {
    fn out(times: u32) -> Self {
        Self { out: Arc::new(AtomicU32::new(times)), ..Self::default() }
    }

    fn rubric(&self) -> Rubric {
        Rubric::new().reward("judged", 1.0, self.clone()).build().unwrap()
    }
}

impl Scorer for Judge {
    fn score<'a>(&'a self, context: ScoreContext<'a>) -> BoxFuture<'a, Result<Score, Fault>> {
        Box::pin(async move {
            self.asked.fetch_add(1, SeqCst);
            let usage = Some(Usage { completion_tokens: 1, ..Usage::default() });
            context.ledger.note(Expense { usage, exchange: json!({ "judge": "judged" }) });
            let is_out = self.out.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
            if is_out { Err(judge_fault()) } else { Ok(Score::from(1.0)) }
        })
    }
}

async fn simulator() -> Simulator {
    Simulator::start(Settings::default(), None).await.unwrap()
}

fn of(rubric: Rubric) -> Sayings {
    Sayings { rubric, ..Sayings::default() }
}

fn ids(episodes: &[Episode]) -> BTreeSet<String> {
    episodes.iter().map(|episode| episode.id.clone()).collect()
}

#[tokio::test]
async fn a_retried_scoring_asks_the_model_nothing() {
    let rules = |kind: &str, max_retries| RetryRules {
        max_retries: 0,
        rules: vec![RetryRule { kind: Some(kind.to_owned()), status: Vec::new(), message: None, max_retries }],
    };
    for (agent_retries, retries, scored) in [
        (rules("JudgeError", 1), RetryRules::default(), true),
        (RetryRules::default(), rules("JudgeError", 1), true),
        (rules("ProviderError", 1), rules("TaskError", 1), false),
    ] {
        let (simulator, judge) = (simulator().await, Judge::out(1));
        let setup = Setup { agent_retries, retries, ..Setup::new(simulator.base_url(), 1, 1) };
        let ended = setup.launch(of(judge.rubric())).await;
        assert_eq!((ended.results.scored == 1, simulator.stats().completed), (scored, 1));
        assert_eq!(judge.asked.load(SeqCst), 1 + u32::from(scored));
        let trace = &setup.episodes()[0].traces[0];
        assert_eq!(trace.errors.len(), 1, "the failed scoring stays in the record");
        assert_eq!(trace.extra_usage.len() as u32, judge.asked.load(SeqCst), "and so does what it spent");
    }
}

#[tokio::test]
async fn a_failed_scoring_is_all_that_a_resume_does_again() {
    let (simulator, judge) = (simulator().await, Judge::out(3));
    let setup = Setup::new(simulator.base_url(), 4, 2);
    let first = setup.launch(of(judge.rubric())).await;
    assert_eq!((first.results.scored, first.results.failed, setup.has_pending()), (5, 3, false));
    let (before, answered) = (ids(&setup.episodes()), simulator.stats().completed);
    let second = setup.launch(of(judge.rubric())).await;
    assert_eq!((second.results.scored, second.results.failed, second.results.not_run), (8, 0, 0));
    assert_eq!((ids(&setup.episodes()), simulator.stats().completed), (before, answered));
    assert_eq!((judge.asked.load(SeqCst), setup.has_pending()), (11, false));
}

#[tokio::test]
async fn a_scoring_that_is_too_slow_keeps_how_the_agent_ended_and_what_was_spent() {
    let simulator = simulator().await;
    let deadlines = StageDeadlines { scoring: Some(Duration::from_millis(50)), ..StageDeadlines::default() };
    let setup = Setup { deadlines, ..Setup::new(simulator.base_url(), 1, 1) };
    let slow = asynchronous(|context: ScoreContext<'_>| {
        context.ledger.note(Expense { usage: Some(Usage::default()), exchange: json!({}) });
        Box::pin(pending())
    });
    let ended = setup.launch(of(Rubric::new().reward("judged", 1.0, slow))).await;
    assert_eq!((ended.results.failed, ended.results.timed_out), (1, 0));
    let trace = setup.episodes()[0].traces[0].clone();
    assert_eq!((trace.stop_condition.as_deref(), trace.is_timeout), (Some("scoring_timeout"), true));
    assert_eq!((trace.extra_usage.len(), trace.errors[0].class), (1, FaultClass::Scoring));
    setup.launch(of(Judge::default().rubric())).await;
    let trace = setup.episodes()[0].traces[0].clone();
    assert_eq!((trace.stop_condition.as_deref(), trace.is_timeout), (Some("agent_completed"), false));
    assert_eq!((trace.ok, trace.reward(), simulator.stats().completed), (true, 1.0, 1));
}

#[tokio::test]
async fn only_scores_that_may_be_lost_are_written_for_twice() {
    let simulator = simulator().await;
    let setup = Arc::new(Setup::new(simulator.base_url(), 2, 1));
    let seen = Arc::new(AtomicBool::new(false));
    let look = |waits: bool| {
        let (run, seen) = (setup.run_path(), Arc::clone(&seen));
        let look = move |_: &Trace| seen.fetch_or(run.join("pending.jsonl").exists(), SeqCst);
        match waits {
            false => Rubric::new().reward("plain", 1.0, move |context: ScoreContext<'_>| {
                look(context.trace);
                Ok(Score::from(1.0))
            }),
            true => Rubric::new().reward(
                "judged",
                1.0,
                asynchronous(move |context: ScoreContext<'_>| {
                    look(context.trace);
                    Box::pin(async { Ok(Score::from(1.0)) })
                }),
            ),
        }
    };
    setup.launch(of(look(false))).await;
    assert!(!seen.load(SeqCst));
    std::fs::remove_dir_all(setup.run_path()).unwrap();
    setup.launch(of(look(true))).await;
    assert!(seen.load(SeqCst) && !setup.has_pending());
}

/// Two signals in the middle of the judging: nothing is lost but the judging.
#[tokio::test]
async fn a_run_dropped_while_it_is_judged_plays_nothing_again() {
    let simulator = simulator().await;
    let setup = Setup::new(simulator.base_url(), 3, 2);
    let stops = Stops::default();
    let judging = {
        let (left, kill) = (AtomicU32::new(6), stops.kill.clone());
        asynchronous(move |_: ScoreContext<'_>| {
            if left.fetch_sub(1, SeqCst) == 1 {
                kill.cancel();
            }
            Box::pin(pending())
        })
    };
    let ended = setup.launch_with(of(Rubric::new().reward("judged", 1.0, judging)), stops).await;
    assert!(matches!(ended.early, Some(RunEnd::Interrupted)) && setup.has_pending());
    assert_eq!((ended.results.not_run, simulator.stats().completed), (6, 6));
    let ended = setup.launch(of(Judge::default().rubric())).await;
    assert_eq!((ended.results.scored, simulator.stats().completed, setup.has_pending()), (6, 6, false));
}

/// Scores a group by its size, and keeps the sizes it met; fails while told to.
#[derive(Clone, Default)]
struct Size {
    met: Arc<Mutex<Vec<usize>>>,
    fails: Arc<AtomicBool>,
}

impl GroupScorer for Size {
    fn score<'a>(&'a self, _: &'a TaskData, group: &'a [&'a Trace]) -> BoxFuture<'a, Result<Vec<Score>, Fault>> {
        Box::pin(async move {
            self.met.lock().unwrap().push(group.len());
            if self.fails.load(SeqCst) {
                return Err(Fault::new(FaultClass::Scoring, "cannot compare"));
            }
            Ok(vec![Score::from(group.len() as f64); group.len()])
        })
    }
}

impl Size {
    fn with(&self, rubric: Rubric) -> Rubric {
        rubric.group_reward(RewardLine::new("size", 1.0), Arc::new(self.clone())).build().unwrap()
    }

    fn sizes(&self) -> Vec<usize> {
        let mut sizes = std::mem::take(&mut *self.met.lock().unwrap());
        sizes.sort_unstable();
        sizes
    }
}

fn size_of(episode: &Episode) -> f64 {
    episode.traces[0].rewards["size"].unwrap().score
}

#[tokio::test]
async fn a_group_reward_compares_all_rollouts_of_a_task() {
    for rollouts in [1, 3] {
        let (simulator, size) = (simulator().await, Size::default());
        let setup = Setup { concurrent: 2, ..Setup::new(simulator.base_url(), 4, rollouts) };
        let ended = setup.launch(of(size.with(Judge::default().rubric()))).await;
        assert_eq!((ended.results.scored, setup.has_pending()), (4 * u64::from(rollouts), false));
        assert_eq!(size.sizes(), vec![rollouts as usize; 4]);
        let episodes = setup.episodes();
        assert!(episodes.iter().all(|episode| size_of(episode) == f64::from(rollouts)));
        let groups: BTreeSet<_> = episodes.iter().map(|episode| episode.group.clone().unwrap().id).collect();
        assert_eq!(groups.len(), 4);
    }
}

#[tokio::test]
async fn a_group_that_grows_on_resume_is_scored_as_a_whole() {
    let (simulator, size) = (simulator().await, Size::default());
    let setup = Setup { concurrent: 1, ..Setup::new(simulator.base_url(), 1, 4) };
    let judge = Judge::out(1);
    let ended = setup.launch(of(size.with(judge.rubric()))).await;
    // One judgement failed: the other three are a group.
    assert_eq!((ended.results.scored, ended.results.failed, size.sizes()), (3, 1, vec![3]));
    let before = setup.episodes();
    let ended = setup.launch(of(size.with(judge.rubric()))).await;
    assert_eq!((ended.results.scored, ended.results.failed, size.sizes()), (4, 0, vec![4]));
    let after = setup.episodes();
    assert_eq!((after.len(), ids(&before), setup.has_pending()), (4, ids(&after), false));
    assert!(after.iter().all(|episode| size_of(episode) == 4.0), "those of before too");
    assert_eq!((simulator.stats().completed, judge.asked.load(SeqCst)), (4, 5));
    let group = after[0].group.clone();
    assert!(after.iter().all(|episode| episode.group == group));
}

#[tokio::test]
async fn members_that_failed_are_in_no_group_and_those_of_a_failed_group_are_only_scored_again() {
    let (simulator, size) = (simulator().await, Size::default());
    let setup = Setup { concurrent: 1, ..Setup::new(simulator.base_url(), 2, 2) };
    size.fails.store(true, SeqCst);
    let ended = setup.launch(of(size.with(Judge::default().rubric()))).await;
    assert_eq!((ended.results.scored, ended.results.failed, size.sizes()), (0, 4, vec![2, 2]));
    assert_eq!(ended.results.errors["scoring"], 4);
    let judge = Judge::default();
    let ended = setup.launch(of(size.with(judge.rubric()))).await;
    assert_eq!((ended.results.failed, judge.asked.load(SeqCst), size.sizes()), (4, 0, vec![2, 2]));
    size.fails.store(false, SeqCst);
    let ended = setup.launch(of(size.with(judge.rubric()))).await;
    assert_eq!((ended.results.scored, simulator.stats().completed, judge.asked.load(SeqCst)), (4, 4, 0));
    assert_eq!((size.sizes(), setup.has_pending()), (vec![2, 2], false));

    // An agent that fails is redone; none at all is no group.
    let setup = Setup::new(simulator.base_url(), 1, 2);
    let broken = Sayings { hooks: Some(Arc::new(Broken)), ..of(size.with(Rubric::new())) };
    let ended = setup.launch(broken).await;
    assert_eq!((ended.results.failed, size.sizes(), setup.has_pending()), (2, Vec::new(), false));
    let ended = setup.launch(of(size.with(Rubric::new()))).await;
    assert_eq!((ended.results.scored, size.sizes()), (2, vec![2]));
}

/// No agent can begin.
struct Broken;

impl Hooks for Broken {
    fn setup<'a>(&'a self, _: &'a TraceTask, _: &'a mut State) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(std::future::ready(Err(Fault::new(FaultClass::Task, "no world"))))
    }
}

/// The first signal lets what is in flight finish; a group that lacks members waits for the next launch.
#[tokio::test]
async fn a_stopped_run_keeps_the_members_of_an_open_group() {
    let (simulator, size) = (simulator().await, Size::default());
    let setup = Setup { concurrent: 1, ..Setup::new(simulator.base_url(), 2, 3) };
    let stops = Stops::default();
    let (left, stop) = (AtomicU32::new(4), stops.stop.clone());
    let stopping = asynchronous(move |_: ScoreContext<'_>| {
        if left.fetch_sub(1, SeqCst) == 1 {
            stop.cancel();
        }
        Box::pin(async { Ok(Score::from(1.0)) })
    });
    let ended = setup.launch_with(of(size.with(Rubric::new().reward("judged", 1.0, stopping))), stops).await;
    let results = &ended.results;
    assert_eq!((results.scored, results.not_run, size.sizes(), setup.has_pending()), (3, 3, vec![3], true));
    let judge = Judge::default();
    let ended = setup.launch(of(size.with(judge.rubric()))).await;
    assert_eq!((ended.results.scored, size.sizes(), setup.has_pending()), (6, vec![3], false));
    assert_eq!((simulator.stats().completed, judge.asked.load(SeqCst)), (6, 2), "the held one kept its score");
}
