//! Why a rollout scored or failed as it did, from the journal alone.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::number::{count, excerpt, seconds};
use crate::{
    store::{Row, StoreError, pending_of, read_line, scan, traces_of},
    trace::{Episode, Fault, ModelCall, RecordError, Trace, Usage},
};

/// Replies and reasons are cut to this many characters.
const EXCERPT: usize = 200;

/// So many matches are named when a rollout is not unique.
const MATCHES: usize = 5;

/// Digits alone are a line number unless there are at least this many.
const ID_DIGITS: usize = 8;

/// Why there is nothing to explain.
#[derive(Debug, thiserror::Error)]
pub enum WhyError {
    /// No such run.
    #[error("there is no run `{run}`, neither as a folder nor below {}", output_dir.display())]
    NoRun {
        /// What was asked for.
        run: String,
        /// Where runs lie.
        output_dir: PathBuf,
    },
    /// More than one run of that name.
    #[error("`{run}` names several runs: {matches}")]
    ManyRuns {
        /// What was asked for.
        run: String,
        /// Some of them.
        matches: String,
    },
    /// No such rollout.
    #[error(
        "no rollout `{rollout}` in {}; give the beginning of an episode id, a line number from 0, or `<task>:<n>` for the \
         n-th rollout of a task, by its position or key",
        run.display()
    )]
    NoRollout {
        /// What was asked for.
        rollout: String,
        /// The run.
        run: PathBuf,
    },
    /// It is not in the journal yet.
    #[error(
        "rollout `{rollout}` only lacks its scores and waits in {}; `rollhouse eval --resume {}` gives it these",
        pending_of(run).display(),
        run.display()
    )]
    Pending {
        /// What was asked for.
        rollout: String,
        /// The run.
        run: PathBuf,
    },
    /// More than one.
    #[error("`{rollout}` names several rollouts: {matches}; give more of the id")]
    ManyRollouts {
        /// What was asked for.
        rollout: String,
        /// Some of them.
        matches: String,
    },
    /// The line is an episode that this build cannot read in full.
    #[error("cannot read line {line} of {}: {source}", run.display())]
    Line {
        /// Its number, from 0.
        line: u64,
        /// The run.
        run: PathBuf,
        /// Why not.
        source: RecordError,
    },
    /// The run cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The explanation cannot be written.
    #[error("cannot write the explanation: {0}")]
    Write(#[from] io::Error),
}

/// Finds a run: a folder, or the name of one at most two levels below the output folder; a unique end of the name will do.
pub fn find_run(run: &str, output_dir: &Path) -> Result<PathBuf, WhyError> {
    let is_run = |path: &Path| traces_of(path).is_file();
    let direct = [PathBuf::from(run), output_dir.join(run)];
    if let Some(found) = direct.into_iter().find(|path| is_run(path)) {
        return Ok(found);
    }
    let folders = |path: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    };
    let groups = folders(output_dir);
    let mut found: Vec<PathBuf> = groups.iter().flat_map(|group| folders(group)).chain(groups.clone()).collect();
    found.retain(|path| {
        let part = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let (name, group) = (part(path), path.parent().map(part).unwrap_or_default());
        let named = name.ends_with(run) || name.starts_with(run) || format!("{group}--{name}") == run;
        !run.is_empty() && is_run(path) && named
    });
    found.sort();
    match found.as_slice() {
        [] => Err(WhyError::NoRun { run: run.to_owned(), output_dir: output_dir.to_owned() }),
        [one] => Ok(one.clone()),
        many => {
            let names: Vec<String> = many.iter().take(MATCHES).map(|path| path.display().to_string()).collect();
            Err(WhyError::ManyRuns { run: run.to_owned(), matches: names.join(", ") })
        }
    }
}

/// Writes why a rollout of a run ended as it did: first the outcome, then the evidence. The rollout is named by the
/// beginning of its episode id, by its line number from 0, or as `<task>:<n>`, where the task is named by its position or
/// the beginning of its key and n counts its rollouts in the journal from 0.
pub fn explain(run: &Path, rollout: &str, out: &mut impl Write) -> Result<(), WhyError> {
    let row = find(run, rollout)?;
    let text = read_line(&traces_of(run), row.span)?;
    let episode = Episode::from_line(text.as_bytes()).map_err(|source| WhyError::Line {
        line: row.line,
        run: run.to_owned(),
        source,
    })?;
    let id: String = row.id.chars().take(8).collect();
    let task = row.task_idx.map_or_else(|| excerpt(&row.task_key, 16), |index| index.to_string());
    writeln!(out, "rollout {id} (line {}, task {task}): {}", row.line, outcome(&row, &episode))?;
    let several = episode.traces.len() > 1;
    for trace in &episode.traces {
        if several {
            writeln!(out, "  agent {}, reward {:.3}", trace.agent.name, trace.reward())?;
        }
        evidence(out, trace)?;
    }
    let earlier = episode.errors.len().saturating_sub(usize::from(!row.finished));
    for fault in episode.errors.iter().take(earlier) {
        writeln!(out, "  an earlier attempt failed: {}", named(fault))?;
    }
    Ok(())
}

fn find(run: &Path, rollout: &str) -> Result<Row, WhyError> {
    let wanted = Wanted::parse(rollout);
    let mut matches: Vec<Row> = Vec::new();
    let mut more = 0;
    let mut seen_of_task = 0;
    scan(&traces_of(run), |row| {
        if wanted.is(&row, &mut seen_of_task) {
            if matches.len() < MATCHES { matches.push(row) } else { more += 1 }
        }
    })?;
    // A whole id wins over those that begin with it.
    let exact = |row: &Row| row.id == rollout || matches.iter().all(|other| other.id == row.id);
    // Of several lines of one episode, the one that a resumed run would keep.
    let of_it = || matches.iter().enumerate().rev().filter(|(_, row)| exact(row));
    if let Some((at, _)) = of_it().find(|(_, row)| row.finished).or_else(|| of_it().next()) {
        return Ok(matches.swap_remove(at));
    }
    match matches.len() {
        0 if waits(run, rollout)? => Err(WhyError::Pending { rollout: rollout.to_owned(), run: run.to_owned() }),
        0 => Err(WhyError::NoRollout { rollout: rollout.to_owned(), run: run.to_owned() }),
        1 => Ok(matches.swap_remove(0)),
        _ => {
            let mut names: Vec<String> = matches.into_iter().map(|row| row.id).collect();
            if more > 0 {
                names.push(format!("and {more} more"));
            }
            Err(WhyError::ManyRollouts { rollout: rollout.to_owned(), matches: names.join(", ") })
        }
    }
}

/// Whether a rollout of this id only lacks its scores.
fn waits(run: &Path, rollout: &str) -> Result<bool, StoreError> {
    let mut found = false;
    scan(&pending_of(run), |row| found |= !rollout.is_empty() && row.id.starts_with(rollout))?;
    Ok(found)
}

/// A rollout as it was asked for.
enum Wanted<'a> {
    Line(u64),
    OfTask { task: &'a str, number: u64 },
    Id(&'a str),
}

impl<'a> Wanted<'a> {
    fn parse(rollout: &'a str) -> Self {
        if let Some((task, number)) = rollout.rsplit_once(':')
            && let Ok(number) = number.parse()
        {
            return Self::OfTask { task, number };
        }
        match rollout.parse() {
            Ok(line) if rollout.len() < ID_DIGITS => Self::Line(line),
            _ => Self::Id(rollout),
        }
    }

    fn is(&self, row: &Row, seen_of_task: &mut u64) -> bool {
        match self {
            Self::Line(line) => row.line == *line,
            Self::Id(prefix) => !prefix.is_empty() && row.id.starts_with(prefix),
            Self::OfTask { task, number } => {
                let of_task = match task.parse::<u64>() {
                    Ok(index) if task.len() < ID_DIGITS => row.task_idx == Some(index),
                    _ => !task.is_empty() && row.task_key.starts_with(task),
                };
                *seen_of_task += u64::from(of_task);
                of_task && *seen_of_task == number + 1
            }
        }
    }
}

fn outcome(row: &Row, episode: &Episode) -> String {
    match (&row.fault, episode.fault()) {
        (None, _) => format!("scored {:.3} of {:.3}", row.reward, row.full_reward),
        (Some(_), Some(fault)) => {
            let again = if fault.retryable { "may pass when tried again" } else { "trying again will not help" };
            let again =
                if row.rescorable { "a resume, or `rollhouse replay`, does only the scoring again" } else { again };
            format!("failed, {} ({again})", named(fault))
        }
        (Some(fault), None) => format!("failed, {}: {}", fault.class, excerpt(&fault.message, EXCERPT)),
    }
}

fn evidence(out: &mut impl Write, trace: &Trace) -> io::Result<()> {
    let reasons = trace.reasons();
    let reason = |name: &str| -> String {
        let text = match reasons.and_then(|reasons| reasons.get(name)) {
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => return String::new(),
        };
        format!(": {}", excerpt(&text, EXCERPT))
    };
    for (name, reward) in &trace.rewards {
        match reward {
            Some(reward) => {
                writeln!(out, "  {name} scored {:.3}, weight {}{}", reward.score, reward.weight, reason(name))?;
            }
            None => writeln!(out, "  {name} was due but not scored{}", reason(name))?,
        }
    }
    for (name, _) in trace.metrics.iter().filter(|(_, value)| value.is_none()) {
        writeln!(out, "  metric {name} was due but not measured{}", reason(name))?;
    }
    for exchange in trace.judge_calls() {
        writeln!(out, "  {}", judged(exchange))?;
    }
    writeln!(out, "  {}", course(trace))?;
    // The newest failure stands in the first line; here are its causes and what failed before it.
    if let Some((newest, earlier)) = trace.errors.split_last() {
        for cause in &newest.causes {
            writeln!(out, "  caused by: {}", excerpt(cause, EXCERPT))?;
        }
        for fault in earlier {
            writeln!(out, "  before that: {}", named(fault))?;
        }
    }
    let calls = trace.calls.len();
    for (number, call) in trace.calls.iter().enumerate() {
        if let Some(fault) = &call.error {
            writeln!(out, "  call {} of {calls} {} failed: {}", number + 1, route(call), named(fault))?;
        }
    }
    match excerpt(trace.last_reply(), EXCERPT).as_str() {
        "" => writeln!(out, "  there is no reply"),
        reply => writeln!(out, "  last reply: {reply}"),
    }
}

/// What a judge was asked and said, in a line; verdict and reason are rollhouse's, the rest is in traces of verifiers too.
fn judged(exchange: &Value) -> String {
    let text = |pointer: &str| exchange.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let mut line = format!("judge {}", if text("/name").is_empty() { "without a name" } else { text("/name") });
    if !text("/request/model").is_empty() {
        line += &format!(" ({})", text("/request/model"));
    }
    let usage: Option<Usage> =
        exchange.pointer("/response/usage").and_then(|usage| serde_json::from_value(usage.clone()).ok());
    if exchange["cached"] == true {
        line += ", from cache";
    } else if let Some(usage) = usage {
        line += &format!(", {} tokens in and {} out", count(usage.input_tokens()), count(usage.completion_tokens));
    }
    let said = excerpt(text("/response/message/content"), EXCERPT);
    match (exchange.pointer("/verdict/score").and_then(Value::as_f64), text("/problem")) {
        (Some(score), _) => format!("{line}: {score:.3}, {}", excerpt(text("/verdict/why"), EXCERPT)),
        (None, "") => format!("{line}: {said}"),
        (None, problem) if said.is_empty() => format!("{line} failed: {}", excerpt(problem, EXCERPT)),
        (None, problem) => format!("{line} gave no verdict: {}; it said: {said}", excerpt(problem, EXCERPT)),
    }
}

/// How the rollout went, in a line.
fn course(trace: &Trace) -> String {
    let stop = match trace.stop_condition.as_deref() {
        Some(_) if trace.has_overflowed() => "context_overflow (the conversation no longer fits the model's window)",
        stop => stop.unwrap_or("nothing recorded"),
    };
    let turns = trace.graph.nodes().iter().filter(|node| node.sampled).count();
    let mut text = format!("stopped by {stop} after {turns} turn{}", if turns == 1 { "" } else { "s" });
    let last = trace.calls.iter().rev().find(|call| call.error.is_none());
    if let Some(usage) = last.and_then(|call| call.usage.as_ref()) {
        let (input, output) = (count(usage.input_tokens()), count(usage.completion_tokens));
        text += &format!(", last call {input} tokens in and {output} out");
    }
    if trace.is_truncated() {
        text += ", truncated";
    }
    if trace.is_timeout {
        text += ", timed out";
    }
    let agent = &trace.timing.agent;
    if agent.end > agent.start {
        text += &format!(", in {}", seconds(agent.end - agent.start));
    }
    text
}

fn route(call: &ModelCall) -> &str {
    call.endpoint.as_deref().unwrap_or("to the endpoint")
}

fn named(fault: &Fault) -> String {
    let message = excerpt(&fault.message, EXCERPT);
    match fault.status_code {
        // Most messages name the status themselves.
        Some(status) if !message.contains(&status.to_string()) => {
            format!("{}: {message} (status {status})", fault.class)
        }
        _ => format!("{}: {message}", fault.class),
    }
}
