//! From the words of the command line to an env that is to be served.

use std::sync::Arc;

use serde_json::Value;

use crate::{
    cli::{
        env_block::{EnvBlocks, Opened},
        exit::Failure,
        output,
        taskset::adapted,
    },
    config::{EvalConfig, Parsed, flag_help, parse_args},
    taskset::{Taskset, verifiers::Environment},
};

/// What the words ask for.
pub(super) enum Asked {
    /// Something to print: the help, or the resolved configuration.
    Text(String),
    /// An env to serve.
    Serve(Box<Request>),
}

/// An env that is to be served, with everything read and checked.
pub(super) struct Request {
    pub(super) config: EvalConfig,
    /// The resolved configuration.
    pub(super) dump: Value,
    pub(super) taskset: Arc<dyn Taskset>,
    pub(super) python: Option<Arc<Environment>>,
}

/// Switches of `rollhouse eval` that belong to a run, which a server is not.
const OF_RUNS: &[&str] = &["resume", "clean", "json", "save"];

/// Reads the words after `env-server`.
pub(super) fn read(words: &[String]) -> Result<Asked, Failure> {
    let asked = parse_args(words, &EvalConfig::grammar("", &mut EnvBlocks::default())).map_err(Failure::usage)?;
    let given = |switch: &str| asked.switches.contains_key(switch);
    if given("help") {
        return Ok(Asked::Text(help(&asked)));
    }
    if let Some(switch) = OF_RUNS.iter().find(|switch| given(switch)) {
        let problem = format!("`--{switch}` belongs to `rollhouse eval`: a server writes no run; leave it out");
        return Err(Failure::usage(anyhow::anyhow!(problem)));
    }
    let mut blocks = EnvBlocks::default();
    let (config, resolved, _) = EvalConfig::from_env_args(words, &mut blocks).map_err(Failure::usage)?;
    let Opened { taskset, python } = blocks.into_opened()?;
    let taskset = adapted(taskset, &config)?;
    output::warn(&resolved.warnings);
    if given("dry-run") {
        return Ok(Asked::Text(resolved.explain()));
    }
    let dump = resolved.dump();
    Ok(Asked::Serve(Box::new(Request { config, dump, taskset, python })))
}

/// The help of the command: the keys of the env and of the block `serve`.
fn help(asked: &Parsed) -> String {
    let keys = EvalConfig::keys_of(asked, &mut EnvBlocks::describing());
    let keys = keys.iter().filter(|key| ["env.", "serve.", "verbose"].iter().any(|part| key.path.starts_with(part)));
    let mut text = String::from(
        "Serve an env to verifiers' clients and to rollhouse.\n\n\
         Usage: rollhouse env-server TASKSET [FLAGS] [@ FILE]...\n\n\
         It prints its address on stdout once it takes runs, and serves until Ctrl-C or SIGTERM: then the runs in flight may\n\
         finish; a second signal drops them. A FILE may be the configuration of an evaluation, or an env block alone. Models\n\
         and endpoints come with each run; `client` and `model` are those of judges that name none.\n\n\
         Every key of these blocks is a flag:\n",
    );
    text.push_str(&flag_help(keys));
    text
}
