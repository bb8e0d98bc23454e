//! From the words of the command line to an evaluation: configuration, taskset and selection, all checked before anything
//! starts.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    cli::{
        env_block::{EnvBlocks, Opened},
        exit::Failure,
        output,
        taskset::adapted,
    },
    config::{EVAL_ALIASES, EvalConfig, Layer, Parsed, Resolved, flag_help, parse_args},
    report,
    store::{Opening, RunState, resolved_config_of, state_of, traces_of},
    taskset::{TaskStream, Taskset, select, verifiers::Environment},
};

/// Where runs are looked for by name, unless the words say otherwise.
const OUTPUTS: &str = "outputs";

/// What the words ask for.
pub(super) enum Asked {
    /// Something to print: the help, or the resolved configuration.
    Text(String),
    /// An evaluation.
    Run(Box<Request>),
}

/// An evaluation that is asked for, with everything read and checked.
pub(super) struct Request {
    pub(super) config: EvalConfig,
    pub(super) resolved: Resolved,
    pub(super) taskset: Arc<dyn Taskset>,
    pub(super) python: Option<Arc<Environment>>,
    pub(super) tasks: TaskStream,
    pub(super) files: Vec<PathBuf>,
    pub(super) resume: Option<PathBuf>,
    pub(super) opening: Opening,
    pub(super) json: bool,
}

/// Reads the words after `eval`.
pub(super) fn read(words: &[String]) -> Result<Asked, Failure> {
    let asked = parse_args(words, &EvalConfig::grammar("", &mut EnvBlocks::default())).map_err(Failure::usage)?;
    let switches = asked.switches.clone();
    let given = |switch: &str| switches.contains_key(switch);
    let mut blocks = EnvBlocks::default();
    if given("help") {
        return Ok(Asked::Text(help(&asked)));
    }
    let folder = asked.layers.iter().rev().find_map(|layer| layer.to_value()["output_dir"].as_str().map(PathBuf::from));
    let outputs = folder.unwrap_or_else(|| PathBuf::from(OUTPUTS));
    let resume = switches.get("resume").cloned().flatten().map(|name| run_named(&name, &outputs));
    if given("resume") && given("clean") {
        let problem = "`--resume` goes on with a run and `--clean` deletes it; leave one of them out";
        return Err(Failure::usage(anyhow::anyhow!(problem)));
    }
    if given("resume") && words.len() == 1 {
        return Err(Failure::usage(anyhow::anyhow!("name the run to go on with: `--resume RUN_DIR`")));
    }
    let base = resume.as_deref().map(saved_config).transpose()?;
    let (config, resolved, parsed) = EvalConfig::from_args(words, base, &mut blocks).map_err(Failure::usage)?;
    let Opened { taskset, python } = blocks.into_opened()?;
    let taskset = adapted(taskset, &config)?;
    output::warn(&resolved.warnings);
    if config.num_rollouts > 1 && config.sampling.get("seed").is_some_and(|seed| !seed.is_null()) {
        output::note("warning: sampling.seed: every rollout of a task is sent the same seed; they may all be alike");
    }
    // What cannot run fails a dry run too.
    let tasks = select(taskset.as_ref(), &config.select).map_err(Failure::usage)?;
    if given("dry-run") {
        return Ok(Asked::Text(resolved.explain()));
    }
    let opening = match (&resume, given("resume"), given("clean")) {
        (Some(_), ..) | (None, true, _) => Opening::Resume,
        (None, false, true) => Opening::Clean,
        (None, false, false) => Opening::Fresh,
    };
    let files = parsed.files;
    Ok(Asked::Run(Box::new(Request {
        config,
        resolved,
        taskset,
        python,
        tasks,
        files,
        resume,
        opening,
        json: given("json"),
    })))
}

/// The directory of a run, which may be given by its name below the output folder, as for `rollhouse why`.
fn run_named(name: &str, outputs: &Path) -> PathBuf {
    let directory = PathBuf::from(name);
    if directory.exists() { directory } else { report::find_run(name, outputs).unwrap_or(directory) }
}

/// The resolved config of the run in a directory.
pub(super) fn saved_config(directory: &Path) -> Result<Layer, Failure> {
    let saved = resolved_config_of(directory);
    if saved.is_file() {
        return Layer::read(&saved).map_err(Failure::usage);
    }
    if let Ok(Some(RunState { source: Some(source), .. })) = state_of(directory) {
        let problem = format!(
            "`{}` is a replay, and a replay begins anew: rollhouse replay {}",
            directory.display(),
            source.run_dir
        );
        return Err(Failure::usage(anyhow::anyhow!(problem)));
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

/// The help of the command, with the keys of a taskset if one is named.
fn help(asked: &Parsed) -> String {
    let keys = EvalConfig::keys_of(asked, &mut EnvBlocks::describing());
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
