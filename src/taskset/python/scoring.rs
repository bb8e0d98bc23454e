//! Rewards and metrics in Python.

use std::{ops::RangeInclusive, sync::Arc};

use futures::future::BoxFuture;
use serde::Deserialize;

use super::{
    body::{Asked, Body, Member},
    description::{Function, Role},
    script::{Answer, Script},
};
use crate::{
    rubric::{GroupScorer, Panel, RewardLine, Rubric, Score, ScoreContext},
    taskset::State,
    trace::{Fault, FaultClass, TaskData, Trace},
};

/// The rubric of a script: all functions of a kind are asked in one call, but for those with a time of their own.
pub(super) fn rubric(script: &Arc<Script>) -> Rubric {
    let mut rubric = Rubric::new();
    for functions in seats(script.description.of(Role::Metric)) {
        let names: Vec<String> = functions.iter().map(|function| function.name.clone()).collect();
        rubric = rubric.metric_panel(&names, Arc::new(Functions::new(script, "metric", functions)));
    }
    for functions in seats(script.description.of(Role::Reward)) {
        let lines = functions.iter().map(line).collect();
        rubric = rubric.panel(lines, Arc::new(Functions::new(script, "reward", functions)));
    }
    for function in script.description.of(Role::GroupReward) {
        let line = line(&function);
        rubric = rubric.group_reward(line, Arc::new(Group { script: Arc::clone(script), function: [function] }));
    }
    rubric
}

/// The functions that are asked together: a slow one with its own time must not hold up the others, nor an `async` one
/// wait for a process of its own because a plain one does.
fn seats(functions: Vec<Function>) -> Vec<Vec<Function>> {
    let (own, shared): (Vec<_>, Vec<_>) = functions.into_iter().partition(|function| function.timeout.is_some());
    let (waiting, plain): (Vec<_>, Vec<_>) = shared.into_iter().partition(|function| function.is_async);
    let mut seats: Vec<Vec<Function>> = [plain, waiting].into_iter().filter(|seat| !seat.is_empty()).collect();
    seats.extend(own.into_iter().map(|function| vec![function]));
    seats
}

fn line(function: &Function) -> RewardLine {
    let bounds = function.bounds.map(|(low, high)| RangeInclusive::new(low, high));
    RewardLine { bounds, ..RewardLine::new(&function.name, function.weight) }
}

/// Functions of one kind that are asked in one call.
struct Functions {
    script: Arc<Script>,
    role: &'static str,
    functions: Vec<Function>,
    asked: Asked,
}

impl Functions {
    fn new(script: &Arc<Script>, role: &'static str, functions: Vec<Function>) -> Self {
        Self { script: Arc::clone(script), role, asked: Asked::by(&functions), functions }
    }

    async fn ask(&self, context: ScoreContext<'_>) -> Result<Vec<Answer<Scored>>, Fault> {
        let mut body = self.asked.of_task(context.task)?;
        self.asked.add_trace(&mut body, context.trace)?;
        self.asked.add_state(&mut body, context.trace.state().unwrap_or(&State::new()))?;
        name(&mut body, self.role, &self.functions)?;
        self.script.ask("score", &self.functions, &body, FaultClass::Scoring).await
    }
}

impl Panel for Functions {
    fn score<'a>(&'a self, context: ScoreContext<'a>) -> BoxFuture<'a, Vec<Result<Score, Fault>>> {
        Box::pin(async move {
            match self.ask(context).await {
                Ok(answers) => answers
                    .into_iter()
                    .map(|answer| match answer {
                        Answer::Value(scored) => scored.read(),
                        Answer::Error(error) => Err(error.into_fault(FaultClass::Scoring)),
                    })
                    .collect(),
                Err(fault) => vec![Err(fault); self.functions.len()],
            }
        })
    }

    /// A plain function is done before the disk is. Those that wait for something, or take their time, say so.
    fn waits(&self) -> bool {
        self.functions.iter().any(|function| function.is_async || function.timeout.is_some())
    }
}

/// A reward of a whole group.
struct Group {
    script: Arc<Script>,
    function: [Function; 1],
}

impl Group {
    async fn ask(&self, task: &TaskData, group: &[&Trace]) -> Result<Vec<Score>, Fault> {
        let mut body = Asked::by(&self.function).of_task(task)?;
        let nothing = State::new();
        let members: Vec<Member<'_>> =
            group.iter().map(|trace| Member::of(trace, &nothing, self.function[0].trace)).collect();
        body.put("group", &members)?;
        name(&mut body, "group_reward", &self.function)?;
        let scores: Vec<Scored> = self.script.ask("group", &self.function, &body, FaultClass::Scoring).await?;
        scores.into_iter().map(Scored::read).collect()
    }
}

impl GroupScorer for Group {
    fn score<'a>(&'a self, task: &'a TaskData, group: &'a [&'a Trace]) -> BoxFuture<'a, Result<Vec<Score>, Fault>> {
        Box::pin(self.ask(task, group))
    }
}

fn name(body: &mut Body, role: &'static str, functions: &[Function]) -> Result<(), Fault> {
    let names: Vec<&str> = functions.iter().map(|function| function.name.as_str()).collect();
    body.put("role", role)?;
    body.put("names", &names)
}

/// A score as the bridge writes it.
#[derive(Deserialize)]
struct Scored {
    value: Number,
    why: Option<String>,
}

/// A number, or the word for one that JSON has none for.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Finite(f64),
    Word(String),
}

impl Scored {
    /// The score; what is not finite goes on to the rubric, which refuses it by name.
    fn read(self) -> Result<Score, Fault> {
        let value = match self.value {
            Number::Finite(value) => value,
            Number::Word(word) => word
                .parse()
                .map_err(|_| Fault::new(FaultClass::Scoring, format!("its function gave the score `{word}`")))?,
        };
        Ok(Score { value, why: self.why })
    }
}
