//! What a run is called, where it lies, and whether it is the same run.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::request::saved_config;
use crate::{
    cli::{env_block::EnvBlocks, exit::Failure},
    config::{Document, EvalConfig, Origin, Resolved, differences},
    tasksets,
};

/// The run's name and place.
pub(super) struct Identity {
    pub(super) name: String,
    pub(super) dir: PathBuf,
}

impl Identity {
    /// As configured; else `<env>--<model>--<harness>/<8 hex digits>`, lowercased.
    pub(super) fn of(config: &EvalConfig, resolved: &Resolved, resume: Option<&Path>) -> Self {
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

/// Refuses to go on with a run under a configuration that would change what its rollouts come to.
pub(super) fn check_same_run(directory: &Path, dump: &Value) -> Result<(), Failure> {
    let saved = saved_config(directory)?;
    // Resolved again, so that a key which is younger than the run has its default on both sides.
    let (_, saved) =
        EvalConfig::from_document(Document::new([saved]), &mut EnvBlocks::default()).map_err(Failure::usage)?;
    let saved = saved.dump();
    let mut now = dump.clone();
    const TASKSET: &str = "/env/taskset/id";
    if let (Some(Value::String(was)), Some(Value::String(is))) = (saved.pointer(TASKSET), now.pointer_mut(TASKSET))
        && tasksets::same(was, is)
    {
        was.clone_into(is);
    }
    let differing = differences(&saved, &now);
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
