//! `rollhouse eval`: runs a taskset against a model.

mod identity;
mod request;
mod served;

use std::{collections::BTreeMap, path::Path, pin::Pin, process::ExitCode, sync::Arc, time::Duration};

use futures::StreamExt as _;
use serde_json::Value;
use tokio::sync::mpsc;

use self::{
    identity::{Identity, check_same_run},
    request::{Asked, Request},
    served::{Kept, Served},
};
use super::{
    endpoint::Endpoint,
    exit::{self, Failure},
    output,
    signals::Signals,
};
use crate::{
    agent::{Agent, TokenIn, seat},
    config::{EvalConfig, RetryRules, TokenRoute},
    envs::{self, Env, Episodes, Scoring},
    eval::{Ended, Launch, RunEnd, Stops},
    harness::Null,
    render,
    report::{self, Progress},
    store::{Event, Opening, RunDir, RunState, STATE_VERSION},
    taskset::{TaskStream, Taskset},
    tasksets, telemetry,
    trace::{EnvInfo, Fault, FaultClass, RunInfo},
};

/// Events waiting for the display; a full queue holds the run back for the moment it takes to draw.
const EVENTS: usize = 4096;

/// How long the display may take to draw its last line.
const LAST_FRAME: Duration = Duration::from_secs(2);

/// What is known of the tokens of a run in which nothing was sampled.
const NO_TURN: &str = "not available (no turn was taken)";

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
    let Request { config, mut resolved, taskset, python, tasks, files, resume, opening, json } = request;
    let tasks = first_read(tasks).await?;
    let (events, received) = mpsc::channel::<Event>(EVENTS);
    let (endpoint, tasks) = Endpoint::open(&config, &taskset, tasks, events.clone()).await?;
    // What cannot speak leaves no run behind.
    let tokens = speech(&config, python.is_some()).await?;
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
    if let Some(choice) = tokens.as_ref().map(|tokens| tokens.choice()) {
        tracing::info!(renderer = choice.renderer.name(), reason = choice.reason, "tokens are kept");
    }
    let id = dump.pointer("/env/taskset/id").and_then(Value::as_str).filter(|_| python.is_none());
    let files_now = id.map(tasksets::fingerprint).unwrap_or_default();
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

    let stops = Stops::default();
    let signals = Signals::listen(stops.clone()).map_err(Failure::failed)?;
    let asked = served::Asked {
        config: &config,
        resolved: &resolved,
        dump: &dump,
        taskset: &taskset,
        python: python.as_ref(),
        endpoint: &endpoint,
        logs: &run_dir.logs_of(attempt),
        redactor: &redactor,
        events: &events,
    };
    let served = if asked.is_served() {
        tokio::select! {
            served = asked.serve() => Some(served?),
            () = stops.stop.cancelled() => return Ok(exit::INTERRUPTED.into()),
        }
    } else {
        None
    };
    let kept = served.as_ref().map(|served| Arc::clone(&served.kept));
    let env = match &served {
        Some(served) => Arc::clone(&served.env),
        None => in_process(&config, &dump, &taskset, &endpoint, (&events, tokens.clone()))?,
    };
    // What is served is retried and bounded by whoever serves it.
    let here = served.is_none();
    let retries = if here { config.retries.clone() } else { RetryRules::default() };
    let episodes = Episodes {
        scoring: Scoring {
            taskset: Arc::clone(&taskset),
            deadline: config.agent.deadlines.scoring,
            retries: [config.agent.retries.clone(), config.retries.clone()],
        },
        env,
        info: EnvInfo { id: state.taskset.clone(), name: None },
        run: Some(RunInfo::Eval { id: state.id.clone(), name: Some(state.name.clone()) }),
        deadline: config.episode_deadline.filter(|_| here),
        retries,
        watch: None,
    };
    let directory = run_dir.path().to_owned();
    let launch = Launch {
        title: format!("{} with {} at {}", config.taskset, config.model, endpoint.label),
        run_dir,
        state,
        tasks,
        select: config.select.clone(),
        episodes,
        max_concurrent: config.max_concurrent.unwrap_or(usize::MAX),
        max_error_rate: config.max_error_rate,
        redactor,
        attempt,
    };
    let display = tokio::spawn(Progress::new().follow(received));
    let run = async {
        let watch = telemetry::DelayWatch::start();
        let (ended, given_up) = until_given_up(launch.run(events, stops.clone()), served.as_ref(), &stops).await;
        tell(&watch.delays());
        drop(watch);
        signals.run_is_over();
        if let Some(served) = served {
            served.close().await;
        }
        endpoint.close().await;
        // Someone may have stopped reading; the results are for others too.
        let _ = tokio::time::timeout(LAST_FRAME, display).await;
        let mut ended = ended.map_err(Failure::failed)?;
        let identity = token_identity(&config, tokens.as_deref(), kept.as_deref());
        if let Some(reason) = given_up {
            ended.early = Some(RunEnd::Hopeless(Fault::new(FaultClass::Infrastructure, reason)));
        }
        // Off this thread, which must hear a signal while a terminal takes no output.
        tokio::task::spawn_blocking(move || conclude(&ended, &directory, &identity, json))
            .await
            .map_err(Failure::failed)?
    };
    tokio::select! {
        concluded = run => concluded,
        () = signals.leave() => Ok(exit::INTERRUPTED.into()),
    }
}

/// The env in this process, over the run's endpoint.
fn in_process(
    config: &EvalConfig,
    dump: &Value,
    taskset: &Arc<dyn Taskset>,
    endpoint: &Endpoint,
    (events, tokens): (&mpsc::Sender<Event>, Option<Arc<TokenIn>>),
) -> Result<Arc<dyn Env>, Failure> {
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
        tokens,
        limits: config.agent.limits,
        deadlines: config.agent.deadlines,
        retries: config.agent.retries.clone(),
        info: seat(&block("/env/agent"), &config.model, &client, &sampling).map_err(Failure::failed)?,
        events: events.clone(),
        watch: None,
    };
    Ok(envs::for_taskset(Arc::clone(taskset), Arc::new(agent)))
}

/// How a training client speaks; `None` for one that speaks in text, and for one that speaks elsewhere: a package of
/// verifiers, or a server, has tokenizers of its own.
async fn speech(config: &EvalConfig, in_package: bool) -> Result<Option<Arc<TokenIn>>, Failure> {
    let Some(train) = config.client.as_ref().and_then(|client| client.train.clone()) else { return Ok(None) };
    if in_package && train.route == TokenRoute::Chat {
        let told =
            "client.route: packages of verifiers know no route but `generate`; leave it out, or train with a taskset";
        return Err(Failure::usage(anyhow::anyhow!(told)));
    }
    if in_package || config.serve.address.is_some() {
        return Ok(None);
    }
    let (model, sampling) = (config.model.clone(), config.sampling.clone());
    let opened = telemetry::blocking(move || TokenIn::open(&train, &model, &sampling)).await;
    let tokens = opened.map_err(Failure::usage)?;
    let finding = render::check(tokens.choice()).map_err(Failure::usage)?;
    let warning = if tokens.choice().fell_back { "warning: " } else { "" };
    output::note(&format!("{warning}{}", finding.line()));
    Ok(Some(Arc::new(tokens)))
}

/// Runs a launch; workers that are given up meanwhile stop it, and say why.
async fn until_given_up<T>(
    run: impl Future<Output = T>,
    served: Option<&Served>,
    stops: &Stops,
) -> (T, Option<String>) {
    let failed = async {
        match served {
            Some(served) => served.failed().await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(run, failed);
    tokio::select! {
        ended = &mut run => (ended, None),
        reason = &mut failed => {
            stops.stop.cancel();
            (run.await, Some(reason))
        }
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

/// Whether the tokens of the traces are those that the model saw and sampled, in a line. What is said was counted.
fn token_identity(config: &EvalConfig, tokens: Option<&TokenIn>, kept: Option<&Kept>) -> String {
    let trains = config.client.as_ref().is_some_and(|client| client.train.is_some());
    let told = match (tokens, kept) {
        _ if !trains => {
            "not available (the endpoint was asked for text; `client.type = \"train\"` keeps tokens)".to_owned()
        }
        (_, Some(kept)) => match kept.turns() {
            (0, _) => NO_TURN.to_owned(),
            (turns, exact) if turns == exact => format!("exact (kept by who serves the env; {turns} turns)"),
            (turns, exact) => {
                format!("not available ({} of {turns} turns came without their tokens or logprobs)", turns - exact)
            }
        },
        (None, None) => NO_TURN.to_owned(),
        (Some(tokens), None) => {
            let turns = tokens.turns();
            let route =
                if tokens.route() == TokenRoute::Generate { "tokens in, tokens out" } else { "tokens of chats" };
            match turns.turns {
                0 => NO_TURN.to_owned(),
                _ => format!(
                    "exact ({route}; {} turns, {} of them extend the one before, {} drifted; {} malformed tool calls)",
                    turns.turns, turns.extended, turns.drifted, turns.malformed_calls
                ),
            }
        }
    };
    format!("token identity: {told}\n")
}

/// Prints what the run came to.
fn conclude(ended: &Ended, directory: &Path, identity: &str, json: bool) -> Result<ExitCode, Failure> {
    if json {
        let text = serde_json::to_string_pretty(&ended.results).map_err(Failure::failed)?;
        output::print(format!("{text}\n"))?;
    } else {
        let mut text = Vec::new();
        report::write_summary(&mut text, &ended.results).map_err(Failure::failed)?;
        text.extend_from_slice(identity.as_bytes());
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
