//! `rollhouse replay`: scores the rollouts of a finished run anew, without asking their model.

mod request;
mod text;

use std::{path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use tokio::sync::mpsc;

use self::request::Request;
use super::{
    endpoint::passed_secrets,
    exit::{self, Failure},
    judges::JudgeArgs,
    output,
    signals::Signals,
};
use crate::{
    config::Redactor,
    eval::{Replay, ReplayError, Replayed, Stops},
    report::Progress,
    rubric::judge::{Asking, Host},
    store::{Attempt, Event},
    taskset::Taskset,
    telemetry,
    trace::now,
};

/// Rollouts scored at once, as in an evaluation.
const MAX_CONCURRENT: usize = 128;
/// Tasks that the table names unless all are asked for.
const TASKS: usize = 10;
/// Share of the rollouts to be scored whose scoring may fail, as in an evaluation.
const MAX_ERROR_RATE: f64 = 0.5;
/// Events waiting for the display.
const EVENTS: usize = 4096;
/// How long the display may take to draw its last line.
const LAST_FRAME: Duration = Duration::from_secs(2);

/// What to score anew, and how.
#[derive(Debug, clap::Args)]
pub(super) struct ReplayArgs {
    /// The run: its folder, its name below `outputs`, or a traces.jsonl of rollhouse or verifiers.
    pub run: String,

    /// Taskset that scores, by id or path, with its defaults; without it the run's own with the run's settings.
    #[arg(long, value_name = "TASKSET")]
    pub taskset: Option<String>,

    /// Keys of the taskset as JSON, over those of the run.
    #[arg(short = 'a', long = "env-args", value_name = "JSON", default_value = "{}")]
    pub arguments: String,

    /// Ask judges for verdicts that are not recorded, those with an endpoint of their own there; `-b` implies it. Else nobody
    /// is asked.
    #[arg(long = "judges")]
    pub ask: bool,

    #[command(flatten)]
    pub judges: JudgeArgs,

    /// Rollouts scored at once.
    #[arg(short = 'c', long, value_name = "COUNT", default_value_t = MAX_CONCURRENT, value_parser = at_least_one)]
    pub max_concurrent: usize,

    /// Folder of the replay, which must not hold a run; `outputs/<taskset>--replay/<id>` without it.
    #[arg(short, long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,

    /// Score with the rows that stand in the rollouts, not with those of the taskset.
    #[arg(long)]
    pub stored_rows: bool,

    /// Print what changes and write nothing.
    #[arg(long, conflicts_with = "output_dir")]
    pub no_save: bool,

    /// Name every task that changed, not only those that changed most.
    #[arg(long)]
    pub all: bool,

    /// Print everything as JSON, and nothing else, on standard output.
    #[arg(long)]
    pub json: bool,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "give a whole number from 1".to_owned())
}

/// Runs the command.
///
/// # Errors
/// There is no such run or taskset, the configuration is wrong (usage), or the run cannot be read, scored or written.
pub(super) fn run(args: ReplayArgs) -> Result<ExitCode, Failure> {
    let request = request::read(&args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::failed)?;
    let code = match runtime.block_on(runtime.spawn(replay(request, args))) {
        Ok(code) => code,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    runtime.shutdown_background();
    code
}

async fn replay(request: Request, args: ReplayArgs) -> Result<ExitCode, Failure> {
    let Request { source, taskset, mut state, place, config, scoring_deadline } = request;
    let redactor = bind_judges(&taskset, &args, &state.model).await?;
    let run_dir = place.map(|place| place.open()).transpose()?;
    let mut number = 1;
    if let Some(run_dir) = &run_dir {
        run_dir.save_replay_config(&config).map_err(Failure::failed)?;
        let (attempt, log) = run_dir.begin_attempt("replay").map_err(Failure::failed)?;
        number = attempt;
        let filter = std::env::var(telemetry::names::env::LOG).ok();
        telemetry::start_logging(Box::new(log), false, filter.as_deref(), redactor.clone()).map_err(Failure::failed)?;
    }
    state.attempts.push(Attempt { number, started: now(), ..Attempt::default() });
    let replay = Replay {
        source,
        taskset,
        stored_rows: args.stored_rows,
        state,
        run_dir,
        scoring_deadline,
        max_concurrent: args.max_concurrent,
        most_tasks: if args.all || args.json { usize::MAX } else { TASKS },
        redactor,
    };
    let (events, received) = mpsc::channel::<Event>(EVENTS);
    let stops = Stops::default();
    let signals = Signals::listen(stops.clone()).map_err(Failure::failed)?;
    let display = tokio::spawn(Progress::new().follow(received));
    let work = async {
        let replayed = replay.run(events, stops).await;
        signals.run_is_over();
        let _ = tokio::time::timeout(LAST_FRAME, display).await;
        let replayed = replayed.map_err(|error| match error {
            ReplayError::Empty(_) => Failure::usage(error),
            error => Failure::failed(error),
        })?;
        // Off this thread, which must hear a signal while a terminal takes no output.
        tokio::task::spawn_blocking(move || conclude(&replayed, args.json)).await.map_err(Failure::failed)?
    };
    tokio::select! {
        concluded = work => concluded,
        () = signals.leave() => Ok(exit::INTERRUPTED.into()),
    }
}

/// Gives judges what they may ask, and sees that it is there; what comes back knows the secrets that are sent there.
async fn bind_judges(taskset: &Arc<dyn Taskset>, args: &ReplayArgs, model: &str) -> Result<Redactor, Failure> {
    let (pool, mut secrets) = args.judges.pool()?.map_or((None, Vec::new()), |(pool, secrets)| (Some(pool), secrets));
    let asking = if pool.is_some() || args.ask { Asking::Possible } else { Asking::Nobody };
    let model = args.judges.model.clone().unwrap_or_else(|| model.to_owned());
    let host = Host { pool, asking, model, observer: None };
    secrets.extend(taskset.rubric().bind(&host).map_err(Failure::usage)?);
    secrets.extend(passed_secrets(taskset.as_ref(), &secrets)?);
    taskset.rubric().check_judges(true).await.map_err(Failure::failed)?;
    Ok(Redactor::new(&secrets))
}

fn conclude(replayed: &Replayed, json: bool) -> Result<ExitCode, Failure> {
    let report = &replayed.report;
    if json {
        let text = serde_json::to_string_pretty(report).map_err(Failure::failed)?;
        output::print(format!("{text}\n"))?;
    } else {
        let mut text = Vec::new();
        text::write(&mut text, report).map_err(Failure::failed)?;
        output::print(text)?;
    }
    if replayed.interrupted {
        output::note("stopped on request before all rollouts were scored; a replay begins anew");
        return Ok(exit::INTERRUPTED.into());
    }
    let failed: u64 = report.failures.values().map(|failures| failures.count).sum();
    let tried = report.after.scored + failed;
    if failed as f64 > tried as f64 * MAX_ERROR_RATE {
        let example = report.failures.values().next().map_or("", |failures| &failures.message);
        let problem = format!("the scoring of {failed} of {tried} rollouts failed; one of them: {example}");
        return Err(Failure::failed(anyhow::anyhow!(problem)));
    }
    Ok(exit::DONE.into())
}
