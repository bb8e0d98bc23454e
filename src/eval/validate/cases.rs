//! The taskset's own test: `cases.jsonl` beside it, a reply and what it must earn a line.
//!
//! ```text
//! {"task": 0, "reply": "#### 4", "rewards": {"correct": 1.0}}
//! {"task": "row-7", "replies": ["one", "two"], "reward": 0.5, "metrics": {"turns": 2}}
//! {"task": {"prompt": "1 + 1?", "answer": "2"}, "messages": [{"role": "assistant", "content": "2"}], "reward": 1}
//! ```
//!
//! `task` is a position, an id, or a whole row. `reply` and `replies` are played through the taskset's user and hooks;
//! `messages` are the whole conversation after the prompt, and the user is not asked.

use std::{fs, io::ErrorKind, path::Path, sync::Arc};

use futures::{StreamExt as _, stream};
use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::{
    Check,
    check::{Checking, Row},
    load::Loaded,
    marks::{line, lines, side_by_side},
    play::{Play, Player, Scored, Stage},
};
use crate::{
    taskset::Task,
    trace::{Message, TaskData, TraceTask},
};

/// The name of the file.
const CASES: &str = "cases.jsonl";
/// Differences of scores that mean nothing.
const TOLERANCE: f64 = 1e-6;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    task: Box<RawValue>,
    reply: Option<String>,
    replies: Option<Vec<String>>,
    messages: Option<Vec<Message>>,
    reward: Option<f64>,
    #[serde(default)]
    rewards: IndexMap<String, f64>,
    #[serde(default)]
    metrics: IndexMap<String, f64>,
}

/// How a case names its task.
enum Named {
    Position(u64),
    Id(String),
    Row(Box<TaskData>),
}

impl Named {
    fn read(text: &RawValue) -> Result<Self, String> {
        let text = text.get();
        if text.starts_with('{') {
            let row = serde_json::from_str(text).map_err(|error| format!("`task` is no row: {}", said(&error)))?;
            return Ok(Self::Row(row));
        }
        let position = serde_json::from_str(text).map(Self::Position);
        let named = position.or_else(|_| serde_json::from_str(text).map(Self::Id));
        named.map_err(|_| "`task` must be a position, an id, or a whole row".to_owned())
    }
}

/// Plays every case of the folder's file.
pub(super) async fn run(stage: &Stage, folder: Option<&Path>, loaded: &Loaded) -> Check {
    let mut check = Checking::new("cases", "the cases in cases.jsonl come out as they say");
    let text = match folder.map(|folder| fs::read_to_string(folder.join(CASES))) {
        Some(Ok(text)) => text,
        Some(Err(error)) if error.kind() != ErrorKind::NotFound => {
            check.fail(Row::NONE, format!("cannot read {CASES}: {error}"));
            return check.done();
        }
        Some(Err(_)) | None => {
            check.note(format!("there is no {CASES} beside it"));
            return check.done();
        }
    };
    if !stage.silent.is_empty() {
        check.note(format!("not checked: totals, and what the judges give ({})", stage.silent.join(", ")));
    }
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let cases: Vec<(usize, &str)> = lines.map(|(number, line)| (number + 1, line)).collect();
    let played = stream::iter(cases).map(|(number, line)| async move { (number, play(stage, loaded, line).await) });
    let mut played = played.buffered(side_by_side());
    while let Some((number, problems)) = played.next().await {
        check.look();
        if let Err(problem) = problems {
            check.fail(Row::NONE, format!("{CASES}:{number}: {problem}"));
        }
    }
    check.done()
}

/// Plays one case; the error says what is not as it says.
async fn play(stage: &Stage, loaded: &Loaded, line: &str) -> Result<(), String> {
    if !line.trim_start().starts_with('{') {
        return Err("is no JSON object, one for each line".to_owned());
    }
    let case: Case = serde_json::from_str(line).map_err(|error| said(&error))?;
    let named = Named::read(&case.task)?;
    if case.reward.is_none() && case.rewards.is_empty() && case.metrics.is_empty() {
        return Err("expects nothing; give `rewards`, `metrics` or `reward`".to_owned());
    }
    let player = match (&case.reply, &case.replies, &case.messages) {
        (Some(reply), None, None) => Player::Says(vec![reply.clone()]),
        (None, Some(replies), None) if !replies.is_empty() => Player::Says(replies.clone()),
        (None, None, Some(messages)) if messages.iter().any(|message| matches!(message, Message::Assistant(_))) => {
            Player::Given(messages.clone())
        }
        (None, None, Some(_)) => return Err("`messages` has no message of the assistant".to_owned()),
        _ => return Err("give one of `reply`, `replies` and `messages`, with something in it".to_owned()),
    };
    let task = task_of(stage, loaded, &named).await?;
    match stage.play(&task, player).await {
        Play::Scored(scored) => compare(&case, &scored, &stage.silent),
        Play::Failed(fault) => Err(fault.message),
        Play::Speechless => Err("the user closed the conversation before the first reply".to_owned()),
        Play::GivenUp => Err("not played: too much before it did not end in time".to_owned()),
    }
}

async fn task_of(stage: &Stage, loaded: &Loaded, named: &Named) -> Result<Task, String> {
    let known = |task: &&Task| match named {
        Named::Position(position) => task.data.idx == Some(*position),
        Named::Id(id) => task.data.id.as_ref() == Some(id) || task.key.as_ref() == Some(id),
        Named::Row(_) => false,
    };
    if let Some(task) = loaded.tasks.iter().find(known) {
        return Ok(Arc::clone(task));
    }
    let count = loaded.tasks.len();
    match named {
        Named::Row(row) => {
            let kind = loaded.tasks.first().map_or("Task", |task| task.kind.as_str());
            Ok(Arc::new(TraceTask::new(kind, (**row).clone())))
        }
        Named::Id(id) => Err(format!("no row among the {count} that were read has the id `{id}`")),
        Named::Position(position) if loaded.all => {
            Err(format!("there is no task {position}: the taskset has {count} rows, the first is 0"))
        }
        Named::Position(position) => {
            let mut rest = stage.taskset.tasks_from(*position);
            match timeout(stage.patience, rest.next()).await {
                Ok(Some(Ok(task))) => Ok(task),
                Ok(Some(Err(error))) => Err(error.to_string()),
                Ok(None) => Err(format!("there is no task {position}")),
                Err(_) => Err(format!("task {position} did not come within {:?}", stage.patience)),
            }
        }
    }
}

/// Compares what a reply earned with what the case expects. Of judges that are not asked nothing is known, and with them
/// nothing of the total.
fn compare(case: &Case, scored: &Scored, silent: &[String]) -> Result<(), String> {
    let unknown = |name: &str| silent.iter().any(|judge| name == judge || name.starts_with(&format!("{judge}/")));
    let trace = &scored.trace;
    let mut problems = Vec::new();
    let reward = |name: &str| trace.rewards.get(name).map(|reward| reward.map(|reward| reward.score));
    let metric = |name: &str| trace.metrics.get(name).copied();
    let names = |names: Vec<&String>| match names.as_slice() {
        [] => "there is none".to_owned(),
        names => format!("there is {}", names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")),
    };
    for (name, expected) in &case.rewards {
        match reward(name) {
            None if unknown(name) => {}
            None => problems.push(format!("no reward `{name}`: {}", names(trace.rewards.keys().collect()))),
            Some(None) => problems.push(format!("reward `{name}` compares rollouts and scores none alone")),
            Some(Some(score)) if differs(score, *expected) => {
                problems.push(format!("expected reward `{name}` {expected}, got {}", line(trace, name, score)));
            }
            Some(Some(_)) => {}
        }
    }
    for (name, expected) in &case.metrics {
        match metric(name) {
            None if unknown(name) => {}
            None => problems.push(format!("no metric `{name}`: {}", names(trace.metrics.keys().collect()))),
            Some(Some(value)) if !differs(value, *expected) => {}
            Some(value) => {
                let got = value.map_or_else(|| "nothing".to_owned(), |value| line(trace, name, value));
                problems.push(format!("expected metric `{name}` {expected}, got {got}"));
            }
        }
    }
    let total = case.reward.filter(|expected| silent.is_empty() && differs(trace.reward(), *expected));
    if let Some(expected) = total {
        problems.push(format!("expected a reward of {expected}, got {}: {}", trace.reward(), lines(trace)));
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
}

/// What a reader of JSON says, without the number of the line, which is always its first, and in an author's words.
fn said(error: &serde_json::Error) -> String {
    let text = error.to_string().replace("f64", "a number").replace(" at line 1 column ", " at column ");
    if error.is_data() { text } else { format!("not valid JSON: {text}") }
}

fn differs(one: f64, other: f64) -> bool {
    (one - other).abs() > TOLERANCE
}
