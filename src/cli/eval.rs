//! `rollhouse eval`: runs a taskset against a model.

use std::{
    path::{Path, PathBuf},
    pin::Pin,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use futures::StreamExt as _;
use serde_json::Value;
use tokio::sync::mpsc;

use super::{
    endpoint::Endpoint,
    exit::{self, Failure},
    output,
    signals::Signals,
};
use crate::{
    agent::{Agent, seat},
    config::{
        Document, EVAL_ALIASES, EvalConfig, Faults, Layer, Origin, Resolved, Section, differences, flag_help,
        parse_args,
    },
    eval::{Ended, Launch, RunEnd, Stops},
    harness::Null,
    report::{self, Progress},
    store::{Event, Opening, RunDir, RunState, STATE_VERSION, resolved_config_of, traces_of},
    taskset::{Instructed, TaskStream, Taskset, TasksetError, select},
    tasksets, telemetry,
};

/// Events waiting for the display; a full queue holds the run back for the moment it takes to draw.
const EVENTS: usize = 4096;

/// Where runs are looked for by name.
const OUTPUTS: &str = "outputs";

/// How long the display may take to draw its last line.
const LAST_FRAME: Duration = Duration::from_secs(2);

/// What the command line asks for.
struct Request {
    config: EvalConfig,
    resolved: Resolved,
    taskset: Arc<dyn Taskset>,
    tasks: TaskStream,
    files: Vec<PathBuf>,
    resume: Option<PathBuf>,
    opening: Opening,
    json: bool,
}

/// Runs the command with the words after `eval`.
pub(super) fn run(words: &[String]) -> Result<ExitCode, Failure> {
    let asked = parse_args(words, &EvalConfig::grammar("", |_, _| {})).map_err(usage)?;
    let switches = asked.switches;
    let given = |switch: &str| switches.contains_key(switch);
    let mut opened = None;
    let mut open = |id: &str, block: &mut Section<'_>| opened = open_taskset(id, block);
    if given("help") {
        output::print(help(asked.positional.first().map_or("", String::as_str)))?;
        return Ok(exit::DONE.into());
    }
    let resume = switches.get("resume").cloned().flatten().map(run_named);
    if given("resume") && given("clean") {
        let problem = "`--resume` goes on with a run and `--clean` deletes it; leave one of them out";
        return Err(Failure::usage(anyhow::anyhow!(problem)));
    }
    if given("resume") && words.len() == 1 {
        return Err(Failure::usage(anyhow::anyhow!("name the run to go on with: `--resume RUN_DIR`")));
    }
    let base = resume.as_deref().map(saved_config).transpose()?;
    let (config, resolved, parsed) = EvalConfig::from_args(words, base, &mut open).map_err(usage)?;
    let taskset = match opened {
        Some(Ok(taskset)) => taskset,
        Some(Err(error)) => return Err(Failure::usage(error)),
        None => return Err(Failure::usage(anyhow::anyhow!("no taskset given"))),
    };
    let taskset = match &config.system_prompt {
        Some(file) => instructed(taskset, file)?,
        None => taskset,
    };
    for warning in &resolved.warnings {
        output::note(&format!("warning: {warning}"));
    }
    // What cannot run fails a dry run too.
    let tasks = select(taskset.as_ref(), &config.select).map_err(Failure::usage)?;
    if given("dry-run") {
        output::print(resolved.explain())?;
        return Ok(exit::DONE.into());
    }
    let opening = match (&resume, given("resume"), given("clean")) {
        (Some(_), ..) | (None, true, _) => Opening::Resume,
        (None, false, true) => Opening::Clean,
        (None, false, false) => Opening::Fresh,
    };
    let request =
        Request { config, resolved, taskset, tasks, files: parsed.files, resume, opening, json: given("json") };
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

/// The taskset under the system prompt of a file.
fn instructed(taskset: Arc<dyn Taskset>, file: &Path) -> Result<Arc<dyn Taskset>, Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        Failure::usage(anyhow::anyhow!("env.taskset.system_prompt: cannot read `{}`: {error}", file.display()))
    })?;
    Ok(Arc::new(Instructed::new(taskset, &text)))
}

/// The directory of a run, which may be given by its name below the usual output folder, as for `rollhouse why`.
fn run_named(name: String) -> PathBuf {
    let directory = PathBuf::from(&name);
    if directory.exists() { directory } else { report::find_run(&name, Path::new(OUTPUTS)).unwrap_or(directory) }
}

/// The resolved config of the run in a directory.
fn saved_config(directory: &Path) -> Result<Layer, Failure> {
    let saved = resolved_config_of(directory);
    if saved.is_file() {
        return Layer::read(&saved).map_err(usage);
    }
    let problem = match (directory.is_dir(), traces_of(directory).exists()) {
        (false, _) => "there is no such folder",
        (true, false) => "it holds no run",
        (true, true) => {
            "it has no configs/resolved/eval.json; a run that was ended before it began is started anew, with its own command"
        }
    };
    let problem = format!("cannot resume `{}`: {problem}", directory.display());
    Err(Failure::usage(anyhow::anyhow!(problem)))
}

fn usage(faults: Faults) -> Failure {
    Failure::usage(anyhow::anyhow!(faults))
}

/// Opens a taskset from its block; an unknown name is a fault at `id`.
fn open_taskset(id: &str, block: &mut Section<'_>) -> Option<Result<Arc<dyn Taskset>, TasksetError>> {
    if id.is_empty() {
        return None;
    }
    match tasksets::find(id) {
        Ok(shipped) => Some((shipped.open)(block)),
        Err(error) => {
            block.fault("id", error.to_string());
            block.accept_rest();
            None
        }
    }
}

async fn evaluate(request: Request) -> Result<ExitCode, Failure> {
    let Request { config, mut resolved, taskset, tasks, files, resume, opening, json } = request;
    let tasks = first_read(tasks).await?;
    let (events, received) = mpsc::channel::<Event>(EVENTS);
    let endpoint = Endpoint::open(&config, &taskset, events.clone()).await?;
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
    let (attempt, log) = run_dir.begin_attempt().map_err(Failure::failed)?;
    let filter = std::env::var(telemetry::names::env::LOG).ok();
    let redactor = endpoint.redactor();
    telemetry::start_logging(Box::new(log), config.verbose, filter.as_deref(), redactor.clone())
        .map_err(Failure::failed)?;
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
            attempts: Vec::new(),
        },
    };

    let block = |path: &str| dump.pointer(path).cloned().unwrap_or(Value::Null);
    let agent = Agent {
        harness: Arc::new(Null),
        pool: endpoint.pool.clone(),
        model: config.model.clone(),
        sampling: Arc::new(config.sampling.clone()),
        tokens: false,
        limits: config.agent.limits,
        deadlines: config.agent.deadlines,
        retries: config.agent.retries.clone(),
        info: seat(&block("/env/agent"), &config.model, &block("/client"), &block("/sampling"))
            .map_err(Failure::failed)?,
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

fn check_same_run(directory: &Path, dump: &Value) -> Result<(), Failure> {
    let saved = Layer::read(&resolved_config_of(directory)).map_err(usage)?;
    // Resolved again, so that a key which is younger than the run has its default on both sides.
    let open = |id: &str, block: &mut Section<'_>| drop(open_taskset(id, block));
    let (_, saved) = EvalConfig::from_document(Document::new([saved]), open).map_err(usage)?;
    let differing = differences(&saved.dump(), dump);
    if differing.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = differing.iter().map(|difference| format!("  {difference}")).collect();
    let problem = format!(
        "cannot resume {} with another configuration:\n{}\nleave these out, or start a new run",
        directory.display(),
        lines.join("\n")
    );
    Err(Failure::usage(anyhow::anyhow!(problem)))
}

/// The run's name and place.
struct Identity {
    name: String,
    dir: PathBuf,
}

impl Identity {
    /// As configured; else `<env>--<model>--<harness>/<8 hex digits>`, lowercased.
    fn of(config: &EvalConfig, resolved: &Resolved, resume: Option<&Path>) -> Self {
        let saved = |key: &str| resolved.key(key).and_then(|key| key.value.as_str().map(str::to_owned));
        if resume.is_some() {
            return Self {
                name: saved("run.name").unwrap_or_default(),
                dir: saved("run.dir").map(PathBuf::from).unwrap_or_default(),
            };
        }
        let part = |text: &str| text.to_lowercase().replace(['/', ' '], "--");
        let group = format!("{}--{}--{}", part(&config.taskset), part(&config.model), part(&config.agent.harness));
        let id = &uuid::Uuid::new_v4().simple().to_string()[..8];
        let name = config.run_name.clone().unwrap_or_else(|| format!("{group}--{id}"));
        // A name given on the command line is meant to be the place too, whatever place a file names.
        let typed = |key: &str| resolved.key(key).is_some_and(|key| matches!(key.origin, Origin::Flag { .. }));
        let renamed = typed("run.name") && !typed("run.dir");
        let dir = match (config.run_dir.as_ref().filter(|_| !renamed), &config.run_name) {
            (Some(dir), _) => dir.clone(),
            (None, Some(name)) => PathBuf::from(name),
            (None, None) => Path::new(&group).join(id),
        };
        Self { name, dir }
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
    match &ended.early {
        None => Ok(exit::DONE.into()),
        Some(RunEnd::Interrupted) => {
            output::note(&format!("stopped on request; {resume}"));
            Ok(exit::INTERRUPTED.into())
        }
        Some(reason) => Err(Failure::failed(anyhow::anyhow!("{reason}\n{resume}"))),
    }
}

/// The help of the command, with the keys of a taskset if one is named.
fn help(id: &str) -> String {
    let keys = EvalConfig::keys(id, |id, block| drop(open_taskset(id, block)));
    let mut text = String::from(
        "Run a taskset against a model and score it.\n\n\
         Usage: rollhouse eval TASKSET [FLAGS] [@ FILE]...\n       rollhouse eval --resume RUN_DIR\n\n\
         Without a base URL the model is simulated. `rollhouse tasksets` names the tasksets;\n\
         with a TASKSET this help lists its keys too.\n\nShort flags:\n",
    );
    for alias in EVAL_ALIASES {
        let names: Vec<String> = (alias.short.iter().map(|letter| format!("-{letter}")))
            .chain(alias.long.iter().map(|name| format!("--{name}")))
            .collect();
        text.push_str(&format!("  {:<40} {}\n", names.join(", "), alias.doc));
    }
    text.push_str("\nEvery key of a configuration file is a flag:\n");
    text.push_str(&flag_help(&keys));
    text
}
