//! What the rubric gives: full marks to the reference answer, and to nothing else that is tried.

use std::{thread, time::Duration};

use futures::{StreamExt as _, stream};
use indexmap::IndexMap;

use super::{
    Check, ScorerTime,
    check::{Checking, Row},
    play::{MOST_TURNS, Play, Player, Scored, Stage, same_scores},
};
use crate::{
    rubric::text::excerpt,
    taskset::Task,
    trace::{Fault, Trace},
};

/// A mean above this is worth a warning: with thousands of rollouts in flight, scoring would hold them up.
const SLOW: Duration = Duration::from_millis(100);
/// Differences of sums of weights that mean nothing.
const TOLERANCE: f64 = 1e-9;

/// What the check of the reference answers says where there are none.
const NO_REFERENCE: &str = "there is no reference answer; `reference` or a column `answer` in taskset.toml, `@reference` in \
                            Python and `Taskset::reference` in Rust give one";
const NOT_SCORED: &str = "not scored, see `scores`";
const ONLY_GROUPS: &str = "every reward compares rollouts";
const MISTAKE: &str = "the reference answer with a mistake in it";
const GIVEN_UP: &str = "given up: too many replies were not answered in time";

/// What every play adds to.
pub(super) struct Report<'a> {
    /// Replies that got no score.
    pub(super) faults: &'a mut Checking,
    /// Replies that got another score the second time.
    pub(super) again: &'a mut Checking,
    pub(super) times: &'a mut Times,
}

impl Report<'_> {
    fn scored(&mut self, task: &Task, what: &str, scored: &Scored) {
        self.faults.look();
        self.times.add(task, scored);
        if scored.endless {
            let problem = format!(
                "{what}: the conversation did not end in {MOST_TURNS} turns; let its user close, or a stop condition end it"
            );
            self.faults.warn(task.into(), problem);
        }
        if let Some(again) = &scored.again {
            self.again.look();
            if let Err(problem) = again {
                self.again.fail(task.into(), format!("{what}: {problem}"));
            }
        }
    }

    fn failed(&mut self, task: &Task, what: &str, fault: &Fault) {
        self.faults.look();
        self.faults.fail(task.into(), format!("{what}: {}", fault.message));
    }
}

/// Plays the reference answer of each task.
pub(super) async fn play_references(stage: &Stage, tasks: &[Task]) -> Vec<Play> {
    let plays = stream::iter(tasks).map(|task| stage.play(task, Player::Reference));
    plays.buffered(side_by_side()).collect().await
}

/// Every reference answer earns full marks. `unchecked` says which rewards were left out.
pub(super) fn full_marks(
    references: &[Play],
    tasks: &[Task],
    unchecked: Option<&str>,
    report: &mut Report<'_>,
) -> Check {
    let mut check = Checking::new("reference", "the reference answer earns full marks");
    for (task, play) in tasks.iter().zip(references) {
        match play {
            Play::Scored(scored) => {
                report.scored(task, "the reference answer", scored);
                let (earned, full) = marks(&scored.trace);
                if full == 0.0 {
                    let due = scored.trace.rewards.values().any(Option::is_none);
                    let none = if due { ONLY_GROUPS } else { "no reward has a positive weight" };
                    check.note(unchecked.unwrap_or(none));
                    continue;
                }
                check.look();
                if earned < full - TOLERANCE {
                    let reply = excerpt(scored.replies.last().map_or("", String::as_str));
                    let problem =
                        format!("the reference answer `{reply}` earns {earned} of {full}: {}", lines(&scored.trace));
                    check.fail(task.into(), problem);
                }
            }
            Play::Failed(fault) => {
                report.failed(task, "the reference answer", fault);
                check.note(NOT_SCORED);
            }
            Play::Speechless => check.note(NO_REFERENCE),
            Play::GivenUp => check.note(GIVEN_UP),
        }
    }
    check.done()
}

/// An empty reply earns less than full marks, and so does a wrong one: the reference answer with something wrong in it, or
/// the one of another task.
pub(super) async fn no_full_marks(
    stage: &Stage,
    references: &[Play],
    tasks: &[Task],
    report: &mut Report<'_>,
) -> [Check; 2] {
    let mut empty = Checking::new("empty", "an empty reply earns less");
    let mut wrong = Checking::new("wrong", "a wrong reply earns less");
    let tried = stream::iter(tasks.iter().enumerate()).map(|(position, task)| async move {
        let silence = stage.play(task, Player::Always(String::new())).await;
        let mut mistakes = Vec::new();
        if let Some(Play::Scored(reference)) = references.get(position) {
            mistakes.push((MISTAKE, stage.play(task, Player::Corrupted).await));
            if let Some(replies) = replies_of_another(references, position, &reference.replies) {
                mistakes.push(("the reference answer of another task", stage.play(task, Player::Says(replies)).await));
            }
        }
        (position, task, silence, mistakes)
    });
    let mut tried = tried.buffered(side_by_side());
    while let Some((position, task, silence, mistakes)) = tried.next().await {
        let mut group: Vec<Trace> = Vec::new();
        let mut best = 0.0;
        match references.get(position) {
            Some(Play::Scored(reference)) => {
                best = marks(&reference.trace).0;
                group.push(reference.trace.clone());
            }
            Some(Play::Speechless) => wrong.note(NO_REFERENCE),
            _ => wrong.note(NOT_SCORED),
        }
        let mut note = |what: &str, play: Play, check: &mut Checking| match play {
            Play::Scored(scored) => {
                report.scored(task, what, &scored);
                let (earned, full) = marks(&scored.trace);
                let reply = excerpt(scored.replies.last().map_or("", String::as_str));
                group.push(scored.trace);
                if full == 0.0 {
                    check.note("see `reference`");
                }
                // A reference answer may earn more, where a reward has bounds above 1.
                (full > 0.0).then_some((earned >= full.max(best) - TOLERANCE, reply))
            }
            Play::Failed(fault) => {
                report.failed(task, what, &fault);
                check.note(NOT_SCORED);
                None
            }
            Play::Speechless => None,
            Play::GivenUp => {
                check.note(GIVEN_UP);
                None
            }
        };
        if let Some((passed, _)) = note("an empty reply", silence, &mut empty) {
            empty.look();
            if passed {
                empty.fail(task.into(), "an empty reply earns full marks");
            }
        }
        let mut outcomes = Vec::new();
        for (what, play) in mistakes {
            outcomes.extend(note(what, play, &mut wrong).map(|(passed, reply)| (what, passed, reply)));
        }
        if !outcomes.is_empty() {
            judge_mistakes(task, &outcomes, &mut wrong);
        }
        if stage.compares_groups() && group.len() > 1 {
            compare(stage, task, group, report).await;
        }
    }
    [empty.done(), wrong.done()]
}

/// Scores the replies to a task against each other, twice.
async fn compare(stage: &Stage, task: &Task, group: Vec<Trace>, report: &mut Report<'_>) {
    let what = "its replies as a group";
    let first = match stage.score_group(task, group.clone()).await {
        Ok(first) => first,
        Err(fault) => return report.failed(task, what, &fault),
    };
    report.faults.look();
    report.again.look();
    let problem = match stage.score_group(task, group).await {
        Ok(second) => first.iter().zip(&second).find_map(|(first, second)| same_scores(first, second).err()),
        Err(fault) => Some(format!("were scored once, and then failed: {}", fault.message)),
    };
    if let Some(problem) = problem {
        report.again.fail(task.into(), format!("{what}: {problem}"));
    }
}

/// A row fails when all its wrong replies pass. The one of another task alone may be right here, too; and a mistake alone
/// may be none, as in a number within tolerance.
fn judge_mistakes(task: &Task, outcomes: &[(&str, bool, String)], check: &mut Checking) {
    check.look();
    let passed: Vec<String> = outcomes
        .iter()
        .filter(|(_, passed, _)| *passed)
        .map(|(what, _, reply)| format!("{what} (`{reply}`)"))
        .collect();
    let mistaken = outcomes.iter().any(|(what, passed, _)| *passed && *what == MISTAKE);
    if mistaken && passed.len() == outcomes.len() {
        check.fail(task.into(), format!("full marks for {}", passed.join(" and for ")));
    } else if mistaken {
        check.warn(task.into(), format!("full marks for {}; is it right in another way?", passed.join(" and for ")));
    }
}

/// The replies of the nearest task behind it, round the end, whose replies are different.
fn replies_of_another(references: &[Play], position: usize, own: &[String]) -> Option<Vec<String>> {
    let others = references.iter().cycle().skip(position + 1).take(references.len().min(64));
    others
        .filter_map(|play| match play {
            Play::Scored(scored) => Some(&scored.replies),
            _ => None,
        })
        .find(|replies| replies.as_slice() != own)
        .cloned()
}

/// What a conversation earned, and what it could have: the sum of the positive weights of what was scored.
pub(super) fn marks(trace: &Trace) -> (f64, f64) {
    (trace.reward(), trace.rewards.values().flatten().map(|reward| reward.weight.max(0.0)).sum())
}

/// Each reward with its reason, in a line.
pub(super) fn lines(trace: &Trace) -> String {
    let told = trace.rewards.iter().filter_map(|(name, reward)| Some((name, (*reward)?)));
    let weight = |weight: f64| if weight == 1.0 { String::new() } else { format!(", weight {weight}") };
    let told = told.map(|(name, reward)| line(trace, name, reward.score) + &weight(reward.weight));
    let told: Vec<String> = told.collect();
    told.join("; ")
}

/// A score with its reason.
pub(super) fn line(trace: &Trace, name: &str, score: f64) -> String {
    let why = trace.reasons().and_then(|reasons| reasons.get(name)?.as_str());
    format!("{name} {score}{}", why.map(|why| format!(" ({why})")).unwrap_or_default())
}

/// How many tasks are played at the same time.
pub(super) fn side_by_side() -> usize {
    thread::available_parallelism().map_or(2, usize::from)
}

/// How long scorers took.
#[derive(Default)]
pub(super) struct Times(IndexMap<String, Took>);

#[derive(Default)]
struct Took {
    replies: u32,
    all: Duration,
    slowest: (Duration, Option<u64>),
}

impl Times {
    fn add(&mut self, task: &Task, scored: &Scored) {
        for (name, time) in &scored.times {
            let took = self.0.entry(name.clone()).or_default();
            took.replies += 1;
            took.all += *time;
            if *time >= took.slowest.0 {
                took.slowest = (*time, task.data.idx);
            }
        }
    }

    /// The check of them, and the figures.
    pub(super) fn done(self) -> (Check, Vec<ScorerTime>) {
        let mut check = Checking::new("speed", "scoring takes below 100 ms on average");
        let milliseconds = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        let mut times = Vec::new();
        for (name, took) in self.0 {
            check.look();
            let mean = took.all / took.replies.max(1);
            let (slowest, task) = took.slowest;
            if mean > SLOW {
                let problem = format!("`{name}` takes {mean:.0?} on average, {slowest:.0?} at most");
                check.warn(Row::NONE, problem);
            }
            times.push(ScorerTime {
                name,
                mean_ms: milliseconds(mean),
                slowest_ms: milliseconds(slowest),
                slowest_task: task,
            });
        }
        (check.done(), times)
    }
}
