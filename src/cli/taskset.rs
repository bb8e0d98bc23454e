//! Opening a taskset: for a run, as its configuration wants it, or alone.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use super::{env::not_ours, exit::Failure, package};
use crate::{
    config::{Document, EvalConfig, Layer, Reader, Resolved, Section, nearest},
    rubric::judge::{JudgeSpec, read_all},
    taskset::{Adapted, Found, Taskset, TasksetError},
};

/// Opens a taskset with keys of its own block; what is wrong with these stands in the reader.
pub(super) fn read(found: &Found, keys: &Layer) -> (Result<Arc<dyn Taskset>, TasksetError>, Reader) {
    let mut reader = Reader::new(Document::new([keys.clone()]));
    ((found.open)(&mut reader.root()), reader)
}

/// Opens a taskset with keys of its own block, as JSON; returns the keys that it read, too.
///
/// # Errors
/// What is wrong with the keys or, where they are right, with the taskset.
pub(super) fn open(found: &Found, keys: &str) -> Result<(Arc<dyn Taskset>, Resolved), Failure> {
    let keys = Layer::from_json("--env-args", keys).map_err(Failure::usage)?;
    let (opened, reader) = read(found, &keys);
    let resolved = reader.finish().map_err(Failure::usage)?;
    Ok((opened.map_err(Failure::usage)?, resolved))
}

/// Opens a taskset from its block, with the judges in its `task.judges`; an unknown name is a fault at `id`.
pub(super) fn open_taskset(id: &str, block: &mut Section<'_>) -> Option<Result<Arc<dyn Taskset>, TasksetError>> {
    if id.is_empty() {
        return None;
    }
    match package::find(id) {
        Ok(found) => {
            let opened = (found.open)(block);
            let judges = read_all(block);
            let mut task = block.child("task");
            let judged = opened.and_then(|taskset| judged(taskset, judges, &mut task));
            if let Ok(taskset) = &judged {
                check_weights(taskset, &mut task);
            }
            Some(judged)
        }
        Err(error) => {
            block.fault("id", not_ours(error, id).to_string());
            block.accept_rest();
            None
        }
    }
}

/// The taskset under judges, if there are any.
fn judged(
    taskset: Arc<dyn Taskset>,
    judges: Vec<JudgeSpec>,
    task: &mut Section<'_>,
) -> Result<Arc<dyn Taskset>, TasksetError> {
    if judges.is_empty() {
        return Ok(taskset);
    }
    match Adapted::with_judges(Arc::clone(&taskset), judges) {
        Ok(judged) => Ok(Arc::new(judged)),
        Err(error) => {
            task.fault("judges", error.to_string());
            Ok(taskset)
        }
    }
}

/// Records each weight that is given to a reward which is not there.
fn check_weights(taskset: &Arc<dyn Taskset>, task: &mut Section<'_>) {
    task.doc("Other weights for rewards of the taskset: `rewards.NAME.weight`");
    for name in task.open("rewards").keys() {
        let weights = [(name.clone(), 0.0)].into();
        if let Err(error) = Adapted::with_weights(Arc::clone(taskset), &weights) {
            let near = nearest(name, taskset.rubric().names()).first().map(|near| format!("did you mean `{near}`?"));
            let hint = near.unwrap_or_else(|| "leave it out".to_owned());
            task.fault_below("rewards", name, error.to_string(), hint);
        }
    }
}

/// The taskset under the weights and the system prompt of a configuration.
pub(super) fn adapted(taskset: Arc<dyn Taskset>, config: &EvalConfig) -> Result<Arc<dyn Taskset>, Failure> {
    let taskset = weighed(taskset, &config.weights)?;
    match &config.system_prompt {
        Some(file) => instructed(taskset, file),
        None => Ok(taskset),
    }
}

/// The taskset with other weights for its rewards, if there are any.
pub(super) fn weighed(taskset: Arc<dyn Taskset>, weights: &BTreeMap<String, f64>) -> Result<Arc<dyn Taskset>, Failure> {
    if weights.is_empty() {
        return Ok(taskset);
    }
    Ok(Arc::new(Adapted::with_weights(taskset, weights).map_err(Failure::usage)?))
}

/// The taskset under the system prompt of a file.
pub(super) fn instructed(taskset: Arc<dyn Taskset>, file: &Path) -> Result<Arc<dyn Taskset>, Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        Failure::usage(anyhow::anyhow!("env.taskset.system_prompt: cannot read `{}`: {error}", file.display()))
    })?;
    Ok(Arc::new(Adapted::with_system_prompt(taskset, &text)))
}
