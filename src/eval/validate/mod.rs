//! Validation: proves a taskset without a model. Its rows load, its prompts are whole, its reference answers earn full marks,
//! silence and wrong answers do not, and its own cases come out as they say.
//!
//! What enters is a taskset that can be opened twice; what leaves is a [`Validation`] with every row that failed. Nothing is
//! written. A reward function that hangs or panics costs its row the check, and never the validation.

mod cases;
mod check;
mod leak;
mod load;
mod marks;
mod play;
mod prompt;

use std::{path::Path, sync::Arc, time::Duration};

use serde::Serialize;

pub use check::{Check, Finding, Level, Outcome};
use check::{Checking, Row};
use load::Loaded;
use play::Stage;

use crate::rubric::judge::Host;
use crate::taskset::{Taskset, TasksetError, TasksetSize};

/// Rows looked at of a taskset that ends, unless more are asked for.
pub const MOST_ROWS: u64 = 1000;
/// Rows looked at of a taskset without end, unless more are asked for.
pub const ROWS_OF_ENDLESS: u64 = 100;

/// What to look at, and how patiently.
#[derive(Clone)]
pub struct Options {
    /// How many rows to look at; [`MOST_ROWS`], or [`ROWS_OF_ENDLESS`], without it.
    pub rows: Option<u64>,
    /// How long each of these may take: the next row, the conversation of a task, the scoring of a conversation.
    pub patience: Duration,
    /// What judges ask. Without it none is asked: the rest of the rubric is validated.
    pub judges: Option<Host>,
}

impl Default for Options {
    fn default() -> Self {
        Self { rows: None, patience: Duration::from_secs(30), judges: None }
    }
}

/// What a validation found.
#[derive(Clone, Debug, Serialize)]
pub struct Validation {
    /// What the taskset is called.
    pub taskset: String,
    /// The worst outcome of its checks.
    pub outcome: Outcome,
    /// Rows looked at.
    pub rows: u64,
    /// Whether that was all of them.
    pub all_rows: bool,
    /// Whether reading them failed before their end, so that those behind were not looked at.
    pub cut_short: bool,
    /// The checks, in the order they were made.
    pub checks: Vec<Check>,
    /// How long each reward and metric took.
    pub times: Vec<ScorerTime>,
}

/// How long a reward or metric took over all replies that were scored.
#[derive(Clone, Debug, Serialize)]
pub struct ScorerTime {
    /// Its name in the rubric.
    pub name: String,
    /// On average, in milliseconds.
    pub mean_ms: f64,
    /// At most, in milliseconds.
    pub slowest_ms: f64,
    /// The task that took it.
    pub slowest_task: Option<u64>,
}

/// Validates a taskset. `open` opens it anew each time; `folder` is where it lies, if anywhere, and may hold `cases.jsonl`.
/// Needs a tokio runtime; functions that never return keep a thread of it.
pub async fn validate(
    name: &str,
    folder: Option<&Path>,
    open: impl Fn() -> Result<Arc<dyn Taskset>, TasksetError>,
    options: Options,
) -> Validation {
    let mut opens = Checking::new("opens", "it opens");
    let taskset = match open() {
        Ok(taskset) => taskset,
        Err(error) => {
            opens.fail(Row::NONE, error.to_string());
            return Validation::of(name, Loaded::default(), vec![opens.done()], Vec::new());
        }
    };
    opens.look();
    let judges_asked = match &options.judges {
        Some(host) => {
            if let Err(error) = taskset.rubric().bind(host) {
                opens.fail(Row::NONE, error.to_string());
                return Validation::of(name, Loaded::default(), vec![opens.done()], Vec::new());
            }
            true
        }
        None => false,
    };
    let limit = options.rows.unwrap_or(match taskset.size() {
        TasksetSize::Infinite => ROWS_OF_ENDLESS,
        TasksetSize::Finite(_) | TasksetSize::Unknown => MOST_ROWS,
    });
    let mut checks = vec![opens.done()];
    let loaded = load::load(&*taskset, limit, options.patience, &mut checks).await;
    load::load_again(&open, &loaded, options.patience, &mut checks).await;
    checks.push(prompt::prompts(&*taskset, &loaded.tasks));

    let (rubric, judges) = match judges_asked {
        true => (taskset.rubric().clone(), Vec::new()),
        false => taskset.rubric().without_judges(),
    };
    let unchecked = (!judges.is_empty()).then(|| format!("not checked: what the judges give ({})", judges.join(", ")));
    let stage = Stage::new(taskset, rubric, judges, options.patience);
    let references = marks::play_references(&stage, &loaded.tasks).await;
    checks.push(leak::answers_in_prompts(&loaded.tasks, &references));
    let mut faults = Checking::new("scores", "every reply gets finite scores within their bounds");
    let mut again = Checking::new("again", "the same reply gets the same scores again");
    let mut times = marks::Times::default();
    let mut report = marks::Report { faults: &mut faults, again: &mut again, times: &mut times };
    checks.push(marks::full_marks(&references, &loaded.tasks, unchecked.as_deref(), &mut report));
    checks.extend(marks::no_full_marks(&stage, &references, &loaded.tasks, &mut report).await);
    if let Some(unchecked) = unchecked {
        faults.note(unchecked);
    }
    checks.extend([faults.done(), again.done()]);
    let (speed, times) = times.done();
    checks.push(speed);
    checks.push(cases::run(&stage, folder, &loaded).await);
    Validation::of(name, loaded, checks, times)
}

impl Validation {
    fn of(name: &str, loaded: Loaded, checks: Vec<Check>, times: Vec<ScorerTime>) -> Self {
        Self {
            taskset: name.to_owned(),
            outcome: checks.iter().map(|check| check.outcome).max().unwrap_or(Outcome::NotApplicable),
            rows: loaded.tasks.len() as u64,
            all_rows: loaded.all,
            cut_short: checks.iter().any(|check| matches!(check.name, "opens" | "loads") && check.failed > 0),
            checks,
            times,
        }
    }
}
