//! `rollhouse validate`: proves a taskset without a model.

use std::{
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use super::{
    env::not_ours,
    exit::{self, Failure},
    judges::JudgeArgs,
    output,
    package::find,
    taskset,
};
use crate::{
    config::Layer,
    eval::validate::{Check, Finding, Level, Options, Outcome, Validation, validate},
    rubric::judge::Host,
    taskset::Found,
};

/// Findings of a check that are shown; `--json` has them all.
const SHOWN: usize = 10;

/// What to validate.
#[derive(Debug, clap::Args)]
pub(super) struct ValidateArgs {
    /// Name of the taskset, or the folder or file it is in
    id: String,
    /// How many rows to look at [default: 1000, of an endless taskset 100]
    #[arg(short = 'n', long = "num-tasks", value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Configuration of the taskset, as JSON
    #[arg(short = 'a', long = "env-args", default_value = "{}", value_name = "JSON")]
    arguments: String,
    /// How many seconds each of these may take: the next row, the conversation of a task, its scoring
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    #[command(flatten)]
    judges: JudgeArgs,
    /// Print what was found as JSON, every row of it
    #[arg(long)]
    json: bool,
}

/// Runs the command: all is well or doubtful at most (0), something is wrong (1).
///
/// # Errors
/// An unknown taskset or a faulty configuration.
pub(super) fn run(args: ValidateArgs) -> Result<ExitCode, Failure> {
    let found = find(&args.id).map_err(|error| Failure::usage(not_ours(error, &args.id)))?;
    let layer = Layer::from_json("--env-args", &args.arguments).map_err(Failure::usage)?;
    check_config(&found, &layer)?;
    let open = || taskset::read(&found, &layer).0;
    let options = Options { rows: args.count, patience: Duration::from_secs(args.timeout), judges: host(&args)? };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::failed)?;
    let validation = runtime.block_on(validate(&found.id, found.folder.as_deref(), open, options));
    // A function that never returns must not hold the program.
    runtime.shutdown_background();
    let mut text = Vec::new();
    let written = if args.json { write_json(&validation, &mut text) } else { write(&validation, &mut text) };
    written.map_err(Failure::failed)?;
    output::print(text)?;
    Ok(if validation.outcome == Outcome::Failed { exit::FAILED } else { exit::DONE }.into())
}

/// What judges ask, if they are to be asked.
fn host(args: &ValidateArgs) -> Result<Option<Host>, Failure> {
    let Some((pool, _)) = args.judges.pool()? else { return Ok(None) };
    let model = args.judges.model.clone().unwrap_or_default();
    Ok(Some(Host { pool: Some(pool), model, ..Host::default() }))
}

/// Faults of the taskset's keys are told before anything is looked at.
fn check_config(found: &Found, layer: &Layer) -> Result<(), Failure> {
    let (_, reader) = taskset::read(found, layer);
    reader.finish().map(drop).map_err(Failure::usage)
}

fn write_json(validation: &Validation, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, validation)?;
    writeln!(out)
}

fn write(validation: &Validation, out: &mut dyn Write) -> io::Result<()> {
    let rows = match (validation.rows, validation.all_rows) {
        (1, true) => "its only row".to_owned(),
        (rows, true) => format!("all {rows} rows"),
        (0, false) if validation.cut_short => "no rows".to_owned(),
        (1, false) if validation.cut_short => "the first row".to_owned(),
        (rows, false) if validation.cut_short => format!("the first {rows} rows"),
        (rows, false) => format!("the first {rows} rows; -n looks at more"),
    };
    writeln!(out, "{}: {rows}\n", validation.taskset)?;
    for check in &validation.checks {
        write_check(check, out)?;
    }
    if !validation.times.is_empty() {
        writeln!(out, "\nscoring time, on average and at most")?;
    }
    let width = validation.times.iter().map(|time| time.name.chars().count()).max().unwrap_or(0);
    for time in &validation.times {
        let slowest = time.slowest_task.map(|task| format!(" (task {task})")).unwrap_or_default();
        writeln!(out, "  {:width$}  {:.3} ms  {:.3} ms{slowest}", time.name, time.mean_ms, time.slowest_ms)?;
    }
    let count = |outcome| validation.checks.iter().filter(|check| check.outcome == outcome).count();
    let (passed, failed) = (count(Outcome::Passed), count(Outcome::Failed));
    let (warned, skipped) = (count(Outcome::Warned), count(Outcome::NotApplicable));
    writeln!(out, "\n{passed} passed, {failed} failed, {warned} with warnings, {skipped} not applicable")
}

fn write_check(check: &Check, out: &mut dyn Write) -> io::Result<()> {
    let word = match check.outcome {
        Outcome::Passed => "passed",
        Outcome::Failed => "FAILED",
        Outcome::Warned => "warning",
        Outcome::NotApplicable => "n/a",
    };
    let figures = match (check.outcome, check.failed, check.looked_at) {
        (_, 0, 0) => String::new(),
        (Outcome::Failed, _, 0) => String::new(),
        (Outcome::Failed, failed, looked_at) => format!("  {failed} of {looked_at}"),
        (.., looked_at) => format!("  {looked_at}"),
    };
    let note = check.note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default();
    writeln!(out, "{word:8} {:10} {}{figures}{note}", check.name, check.promise)?;
    // What is wrong before what is doubtful.
    let of_level = |level| check.findings.iter().filter(move |finding| finding.level == level);
    for finding in of_level(Level::Failure).chain(of_level(Level::Warning)).take(SHOWN) {
        writeln!(out, "           {}", sentence(finding))?;
    }
    match check.findings.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        rest => writeln!(out, "           … and {rest} more; --json lists them all"),
    }
}

/// Further lines of a finding that are shown, such as those of a traceback.
const LINES: usize = 6;

/// A finding with the name of its row; further lines, such as those of a traceback, below.
fn sentence(finding: &Finding) -> String {
    let names = finding.id.as_ref().map(|id| format!("id {id}")).into_iter();
    let names: Vec<String> = names.chain(finding.prompt.as_ref().map(|prompt| format!("\"{prompt}\""))).collect();
    let names = if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) };
    let plain = |line: &str| line.chars().filter(|character| !character.is_control()).collect::<String>();
    let mut lines = finding.problem.lines().filter(|line| !line.trim().is_empty()).map(plain);
    let first = lines.next().unwrap_or_default();
    let rest: String = lines.take(LINES).map(|line| format!("\n             {line}")).collect();
    match finding.task {
        Some(task) => format!("task {task}{}: {first}{rest}", plain(&names)),
        None => first + &rest,
    }
}
