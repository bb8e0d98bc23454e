//! What surrounds the model's turns: setup, stop conditions and finalize of a taskset, its user, and the state they share.
#![allow(clippy::disallowed_methods, reason = "tests look at files of their own")]

mod launch;

use std::{future::pending, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use launch::{Sayings, Setup};
use rollhouse::{
    config::StageDeadlines,
    rubric::{Rubric, Score, ScoreContext},
    sim::{Settings, Simulator},
    taskset::{Exchange, Hooks, State, User, UserTurn},
    trace::{Fault, FaultClass, Message, Outcome, TaskTimeout, Trace, TraceTask},
};
use serde_json::{Value, json};

/// Writes down what it sees; the task at position 1 goes wrong in the way that is asked for.
#[derive(Default)]
struct Watch {
    wrong: Option<(&'static str, Wrong)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Wrong {
    Fails,
    Panics,
    Hangs,
}

impl Watch {
    async fn enter(&self, hook: &str, task: &TraceTask, state: &mut State) -> Result<(), Fault> {
        let seen = state.entry("seen").or_insert_with(|| json!([]));
        seen.as_array_mut().unwrap().push(hook.into());
        match self.wrong.filter(|(wrong, _)| *wrong == hook && task.data.idx == Some(1)) {
            None => Ok(()),
            Some((_, Wrong::Fails)) => Err(Fault::new(FaultClass::Task, "the world is not there")),
            Some((_, Wrong::Panics)) => panic!("the world is gone"),
            Some((_, Wrong::Hangs)) => pending().await,
        }
    }
}

impl Hooks for Watch {
    fn setup<'a>(&'a self, task: &'a TraceTask, state: &'a mut State) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(self.enter("setup", task, state))
    }

    fn stop<'a>(&'a self, task: &'a TraceTask, exchange: Exchange<'a>) -> BoxFuture<'a, Result<Option<String>, Fault>> {
        Box::pin(async move {
            self.enter("stop", task, exchange.state).await?;
            let turns = exchange.conversation.iter().filter(|message| matches!(message, Message::Assistant(_))).count();
            Ok((turns == 2).then(|| "said_enough".to_owned()))
        })
    }

    fn finalize<'a>(&'a self, trace: &'a Trace, state: &'a mut State) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move {
            state.insert("replies".to_owned(), trace.graph.nodes().len().into());
            self.enter("finalize", &trace.task, state).await
        })
    }
}

/// Speaks for ever, and counts in the shared state.
struct Talker;

impl User for Talker {
    fn reply<'a>(&'a mut self, exchange: Exchange<'a>) -> BoxFuture<'a, Result<UserTurn, Fault>> {
        exchange.state["seen"].as_array_mut().unwrap().push("user".into());
        Box::pin(std::future::ready(Ok(UserTurn::Say(vec![Message::user("go on")]))))
    }
}

fn seen(trace: &Trace) -> Vec<String> {
    let seen = trace.state().and_then(|state| state["seen"].as_array()).into_iter().flatten();
    seen.map(|name| name.as_str().unwrap().to_owned()).collect()
}

/// 1 when the scorer finds what the hooks have kept.
fn kept(context: ScoreContext<'_>) -> Result<Score, Fault> {
    let state = context.trace.state().cloned().unwrap_or_default();
    Ok(Score::from(f64::from(u8::from(state.contains_key("seen")))))
}

fn sayings(wrong: Option<(&'static str, Wrong)>) -> Sayings {
    Sayings {
        rubric: Rubric::new().reward("kept", 1.0, kept).build().unwrap(),
        hooks: Some(Arc::new(Watch { wrong })),
        ..Sayings::default()
    }
}

async fn run(taskset: Sayings, deadlines: StageDeadlines) -> Vec<Trace> {
    let simulator = Simulator::start(Settings::default(), None).await.unwrap();
    let setup = Setup { deadlines, ..Setup::new(simulator.base_url(), 3, 1) };
    let ended = setup.launch(taskset).await;
    assert!(ended.early.is_none() && !setup.has_pending());
    assert_eq!(ended.results.scored + ended.results.failed, 3);
    simulator.shutdown().await;
    let mut traces: Vec<Trace> = setup
        .episodes()
        .into_iter()
        .flat_map(|episode| {
            assert_eq!(episode.ok, matches!(episode.outcome(), Outcome::Scored(_)));
            episode.traces
        })
        .collect();
    traces.sort_by_key(|trace| trace.task.data.idx);
    traces
}

#[tokio::test]
async fn hooks_and_user_share_a_state_that_scorers_find_in_the_trace() {
    for trace in run(sayings(None), StageDeadlines::default()).await {
        assert_eq!(seen(&trace), ["setup", "stop", "finalize"]);
        assert_eq!((trace.stop_condition.as_deref(), trace.reward()), (Some("agent_completed"), 1.0));
        let timing = trace.timing;
        let stages = [timing.setup.start, timing.setup.end, timing.agent.start, timing.agent.end];
        let later = [timing.finalize.start, timing.finalize.end, timing.scoring.start, timing.scoring.end];
        assert!(stages.iter().chain(&later).is_sorted(), "{timing:?}");
    }
    let talking = Sayings { user: Some(Box::new(|| Box::new(Talker))), ..sayings(None) };
    for trace in run(talking, StageDeadlines::default()).await {
        assert_eq!(seen(&trace), ["setup", "stop", "user", "stop", "finalize"]);
        assert_eq!((trace.stop_condition.as_deref(), trace.ok), (Some("said_enough"), true));
        assert_eq!(trace.state().unwrap()["replies"], Value::from(4));
    }
}

#[tokio::test]
async fn a_hook_that_fails_fails_its_own_rollout_with_the_tasks_class() {
    for hook in ["setup", "stop", "finalize"] {
        for (wrong, message) in [(Wrong::Fails, "the world is not there"), (Wrong::Panics, "the world is gone")] {
            let traces = run(sayings(Some((hook, wrong))), StageDeadlines::default()).await;
            assert!(traces[0].ok && traces[2].ok);
            let failed = &traces[1];
            assert!(!failed.ok && failed.rewards.is_empty() && failed.timing.scoring.start == 0.0, "{hook}");
            let [fault] = failed.errors.as_slice() else { panic!("{hook}: {:?}", failed.errors) };
            assert_eq!(fault.class, FaultClass::Task);
            assert!(fault.message.contains(message), "{fault}");
            // What it came to until then is in the record.
            assert_eq!(seen(failed).last().map(String::as_str), Some(hook));
        }
    }
}

#[tokio::test]
async fn a_hook_that_takes_too_long_is_an_ordinary_ending() {
    let short = Some(Duration::from_millis(50));
    let of_seat = StageDeadlines { setup: short, finalize: short, rollout: short, ..StageDeadlines::default() };
    let of_task = TaskTimeout { setup: Some(0.05), agent: Some(0.05), finalize: Some(0.05), ..TaskTimeout::default() };
    let cases = [("setup", "setup_timeout"), ("stop", "agent_timeout"), ("finalize", "finalize_timeout")];
    for ((hook, condition), by_task) in cases.into_iter().zip([true, false, true]) {
        let timeout = if by_task { of_task } else { TaskTimeout::default() };
        let taskset = Sayings { timeout, ..sayings(Some((hook, Wrong::Hangs))) };
        let traces = run(taskset, if by_task { StageDeadlines::default() } else { of_seat }).await;
        let late = &traces[1];
        assert_eq!((late.stop_condition.as_deref(), late.is_timeout, late.ok), (Some(condition), true, true));
        assert_eq!((late.reward(), seen(late).last().unwrap().as_str()), (1.0, "finalize"));
        assert_eq!(late.calls.is_empty(), hook == "setup", "a slow setup skips the agent");
    }
}

#[tokio::test]
async fn a_user_that_fails_fails_one_rollout() {
    struct Moody;
    impl User for Moody {
        fn reply<'a>(&'a mut self, exchange: Exchange<'a>) -> BoxFuture<'a, Result<UserTurn, Fault>> {
            let first = exchange.conversation.iter().any(|message| message.text() == "say 1");
            Box::pin(async move {
                if first { Err(Fault::new(FaultClass::Task, "no mood to talk")) } else { Ok(UserTurn::Close) }
            })
        }
    }
    let taskset = Sayings { user: Some(Box::new(|| Box::new(Moody))), ..sayings(None) };
    let traces = run(taskset, StageDeadlines::default()).await;
    let ends: Vec<_> = traces.iter().map(|trace| (trace.ok, trace.stop_condition.as_deref())).collect();
    assert_eq!(ends, [(true, Some("user_closed")), (false, Some("task_error")), (true, Some("user_closed"))]);
}
