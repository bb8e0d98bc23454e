//! `rollhouse eval`: runs a taskset against a model.

mod identity;
mod request;

use std::{collections::BTreeMap, path::Path, pin::Pin, process::ExitCode, sync::Arc, time::Duration};

use futures::StreamExt as _;
use serde_json::Value;
use tokio::sync::mpsc;

use self::{
    identity::{Identity, check_same_run},
    request::{Asked, Request},
};
use super::{
    endpoint::Endpoint,
    exit::{self, Failure},
    output,
    signals::Signals,
};
use crate::{
    agent::{Agent, seat},
    eval::{Ended, Launch, RunEnd, Stops},
    harness::Null,
    report::{self, Progress},
    store::{Event, Opening, RunDir, RunState, STATE_VERSION},
    taskset::TaskStream,
    tasksets, telemetry,
};

/// Events waiting for the display; a full queue holds the run back for the moment it takes to draw.
const EVENTS: usize = 4096;

/// How long the display may take to draw its last line.
const LAST_FRAME: Duration = Duration::from_secs(2);

/// Runs the command with the words after `eval`.
pub(super) fn run(words: &[String]) -> Result<ExitCode, Failure> {
    let request = match request::read(words)? {
        Asked::Text(text) => {
            output::print(text)?;
            return Ok(exit::DONE.into());
        }
        Asked::Run(request) => *request,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::failed)?;
    // On a worker of the runtime, whose spawns need no waking of other threads.
    let code = match runtime.block_on(runtime.spawn(evaluate(request))) {
        Ok(code) => code,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    // A blocking read that hangs must not hold the program.
    runtime.shutdown_background();
    code
}

async fn evaluate(request: Request) -> Result<ExitCode, Failure> {
    let Request { config, mut resolved, taskset, tasks, files, resume, opening, json } = request;
    let tasks = first_read(tasks).await?;
    let (events, received) = mpsc::channel::<Event>(EVENTS);
    let (endpoint, tasks) = Endpoint::open(&config, &taskset, tasks, events.clone()).await?;
    let identity = Identity::of(&config, &resolved, resume.as_deref());
    resolved.set("run.name", identity.name.clone().into());
    resolved.set("run.dir", identity.dir.to_string_lossy().into_owned().into());
    let dump = resolved.dump();

    let run_dir = match &resume {
        Some(directory) => RunDir::resume(directory),
        None => RunDir::open(&config.output_dir, &identity.dir, opening),
    };
    let run_dir = run_dir.map_err(Failure::failed)?;
    if opening == Opening::Resume {
        check_same_run(run_dir.path(), &dump)?;
    } else {
        run_dir.save_launch_files(&files).map_err(Failure::failed)?;
        run_dir.save_resolved(&dump).map_err(Failure::failed)?;
    }
    let (attempt, log) = run_dir.begin_attempt("eval").map_err(Failure::failed)?;
    let filter = std::env::var(telemetry::names::env::LOG).ok();
    let redactor = endpoint.redactor();
    telemetry::start_logging(Box::new(log), config.verbose, filter.as_deref(), redactor.clone())
        .map_err(Failure::failed)?;
    let files_now = resolved.key("env.taskset.id").and_then(|key| key.value.as_str()).map(tasksets::fingerprint);
    let files_now = files_now.unwrap_or_default();
    let state = match run_dir.load_state().map_err(Failure::failed)? {
        Some(state) if opening == Opening::Resume => state,
        _ => RunState {
            version: STATE_VERSION,
            id: uuid::Uuid::new_v4().simple().to_string(),
            name: identity.name,
            taskset: config.taskset.clone(),
            model: config.model.clone(),
            simulated: endpoint.simulated(),
            num_rollouts: config.num_rollouts,
            tasks: None,
            taskset_files: files_now.clone(),
            attempts: Vec::new(),
            source: None,
        },
    };
    tell_changes(&state, &files_now);

    let block = |path: &str| dump.pointer(path).cloned().unwrap_or(Value::Null);
    // What the seat gives for itself stands over what the run gives.
    let client = Some(block("/env/agent/client")).filter(Value::is_object).unwrap_or_else(|| block("/client"));
    let mut sampling = block("/sampling");
    if let Some(fields) = sampling.as_object_mut() {
        fields.extend(config.sampling.clone());
    }
    let agent = Agent {
        harness: Arc::new(Null),
        pool: endpoint.pool.clone(),
        model: config.model.clone(),
        sampling: Arc::new(config.sampling.clone()),
        tokens: false,
        limits: config.agent.limits,
        deadlines: config.agent.deadlines,
        retries: config.agent.retries.clone(),
        info: seat(&block("/env/agent"), &config.model, &client, &sampling).map_err(Failure::failed)?,
        events: events.clone(),
    };
    let directory = run_dir.path().to_owned();
    let launch = Launch {
        title: format!("{} with {} at {}", config.taskset, config.model, endpoint.label),
        run_dir,
        state,
        tasks,
        taskset,
        select: config.select.clone(),
        agent: Arc::new(agent),
        episode_deadline: config.episode_deadline,
        retries: config.retries.clone(),
        max_concurrent: config.max_concurrent.unwrap_or(usize::MAX),
        max_error_rate: config.max_error_rate,
        redactor,
        attempt,
    };
    let stops = Stops::default();
    let signals = Signals::listen(stops.clone()).map_err(Failure::failed)?;
    let display = tokio::spawn(Progress::new().follow(received));
    let run = async {
        let watch = telemetry::DelayWatch::start();
        let ended = launch.run(events, stops).await;
        tell(&watch.delays());
        drop(watch);
        signals.run_is_over();
        endpoint.close().await;
        // Someone may have stopped reading; the results are for others too.
        let _ = tokio::time::timeout(LAST_FRAME, display).await;
        let ended = ended.map_err(Failure::failed)?;
        // Off this thread, which must hear a signal while a terminal takes no output.
        tokio::task::spawn_blocking(move || conclude(&ended, &directory, json)).await.map_err(Failure::failed)?
    };
    tokio::select! {
        concluded = run => concluded,
        () = signals.leave() => Ok(exit::INTERRUPTED.into()),
    }
}

/// The same tasks, once the first one is there: a run that has none leaves nothing behind.
async fn first_read(tasks: TaskStream) -> Result<TaskStream, Failure> {
    let mut tasks = tasks.peekable();
    match Pin::new(&mut tasks).peek().await {
        Some(Ok(_)) => Ok(tasks.boxed()),
        Some(Err(error)) => Err(Failure::failed(error.clone())),
        None => {
            Err(Failure::usage(anyhow::anyhow!("no task is selected; look at `select` and the taskset's own keys")))
        }
    }
}

/// Says that a taskset is not what it was when the run began.
fn tell_changes(state: &RunState, files_now: &BTreeMap<String, String>) {
    let changed = state.changed_files(files_now);
    if !changed.is_empty() {
        output::note(&format!(
            "warning: the taskset has changed since the run began: {}; rewards of the rollouts that are kept come from what it \
             was",
            changed.join(", ")
        ));
    }
}

/// Logs how busy the event loop was.
fn tell(delays: &telemetry::Delays) {
    let milliseconds = |delay: Duration| (delay.as_secs_f64() * 1e4).round() / 10.0;
    let (p50, p99) = (milliseconds(delays.quantile(0.5)), milliseconds(delays.quantile(0.99)));
    tracing::info!(p50, p99, most = milliseconds(delays.longest()), "event loop delay in milliseconds");
}

/// Prints what the run came to.
fn conclude(ended: &Ended, directory: &Path, json: bool) -> Result<ExitCode, Failure> {
    if json {
        let text = serde_json::to_string_pretty(&ended.results).map_err(Failure::failed)?;
        output::print(format!("{text}\n"))?;
    } else {
        let mut text = Vec::new();
        report::write_summary(&mut text, &ended.results).map_err(Failure::failed)?;
        output::print(text)?;
    }
    let resume = format!("go on with: rollhouse eval --resume {}", directory.display());
    let mended = format!("when the cause is mended, {resume}; a setting that has to change takes a new run");
    match &ended.early {
        None => Ok(exit::DONE.into()),
        Some(RunEnd::Interrupted) => {
            output::note(&format!("stopped on request; {resume}"));
            Ok(exit::INTERRUPTED.into())
        }
        Some(reason) => Err(Failure::failed(anyhow::anyhow!("{reason}\n{mended}"))),
    }
}
