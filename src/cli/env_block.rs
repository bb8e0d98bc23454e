//! Whose env a run is about: rollhouse's own, whose block is read here key by key, or a Python package's, which reads its
//! block itself.

use std::{path::PathBuf, sync::Arc};

use serde_json::Value;

use super::{exit::Failure, package, taskset::open_taskset};
use crate::{
    config::{EnvReader, Section, ServeConfig},
    taskset::{
        Taskset, TasksetError, local,
        verifiers::{Description, Environment, OpenError, Package, Search},
    },
};

/// Reads the block `env` of a configuration, and keeps what it opened.
#[derive(Default)]
pub(super) struct EnvBlocks {
    own: Option<Result<Arc<dyn Taskset>, TasksetError>>,
    python: Option<Arc<Environment>>,
    /// The last answer, as Python takes a moment to give one.
    looked: Option<(Question, Result<Package, String>)>,
    /// Ask packages for their keys, which takes Python a moment more.
    describes: bool,
}

/// What is asked of interpreters: an id, which of them, and what they see of the environment.
type Question = (String, Option<PathBuf>, Vec<String>);

/// An env that is open.
pub(super) struct Opened {
    /// Its tasks; those of rollhouse's own are scored by it, too.
    pub(super) taskset: Arc<dyn Taskset>,
    /// The package, if it is one of Python.
    pub(super) python: Option<Arc<Environment>>,
}

impl EnvBlocks {
    /// For `--help`: names the keys of a package, too.
    pub(super) fn describing() -> Self {
        Self { describes: true, ..Self::default() }
    }

    /// What was opened.
    ///
    /// # Errors
    /// Nothing was, or what there is cannot be.
    pub(super) fn into_opened(self) -> Result<Opened, Failure> {
        match (self.python, self.own) {
            (Some(python), _) => Ok(Opened { taskset: Arc::clone(&python) as Arc<dyn Taskset>, python: Some(python) }),
            (None, Some(Ok(taskset))) => Ok(Opened { taskset, python: None }),
            (None, Some(Err(error))) => Err(Failure::usage(error)),
            (None, None) => Err(Failure::usage(anyhow::anyhow!("no taskset given"))),
        }
    }

    /// The package with an id, or why there is none.
    fn package(&mut self, id: &str, serve: &ServeConfig) -> &Result<Package, String> {
        let asked = (id.to_owned(), serve.python.clone(), serve.pass_env.clone());
        if self.looked.as_ref().is_none_or(|(known, _)| *known != asked) {
            self.looked = None;
        }
        let (_, found) = self.looked.get_or_insert_with(|| {
            let search = Search { python: serve.python.clone(), pass_env: serve.pass_env.clone() };
            (asked, search.find(id).map_err(|error| error.to_string()))
        });
        found
    }
}

impl EnvReader for EnvBlocks {
    fn taskset(&mut self, id: &str, block: &mut Section<'_>) {
        let looked = self.looked.as_ref().filter(|((known, ..), _)| known == id);
        let missing = looked.and_then(|(_, found)| found.as_ref().err()).cloned();
        match missing {
            // Neither house has it.
            Some(missing) if package::find(id).is_err() => {
                if let Err(error) = package::find(id) {
                    block.fault_hint("id", error.to_string(), missing);
                }
                block.accept_rest();
            }
            _ => self.own = open_taskset(id, block),
        }
    }

    fn is_foreign(&mut self, id: &str, serve: &ServeConfig) -> bool {
        // A name that both houses have is rollhouse's own, unless an interpreter is named that has it.
        let own = local::is_path(id) || package::find(id).is_ok();
        let may_be = !local::is_path(id) && (!own || serve.python.is_some());
        may_be && self.package(id, serve).is_ok()
    }

    fn foreign(&mut self, id: &str, serve: &ServeConfig, env: &mut Section<'_>) -> Value {
        let mut block = Value::Object(env.whole());
        let Ok(package) = self.package(id, serve).clone() else { return block };
        let mut opened = package.open(&block);
        if let Err(OpenError::Faults(faults)) = &opened {
            // A flag such as `--env.taskset.label 5` may mean the text.
            let meant = faults.iter().filter_map(|fault| Some((&fault.path, env.typed_at(&fault.path)?)));
            if meant.fold(false, |any, (path, text)| set(&mut block, path, text) || any) {
                opened = package.open(&block);
            }
        }
        match opened {
            Ok(environment) => {
                block = environment.resolved().clone();
                env.resolve_whole(&block);
                self.python = Some(Arc::new(environment));
            }
            Err(OpenError::Faults(faults)) => {
                for fault in faults {
                    env.fault_within(&fault.path, fault.problem);
                }
            }
            Err(OpenError::Bridge(error)) => {
                env.fault_within(&["taskset".to_owned(), "id".to_owned()], error.to_string());
            }
        }
        block
    }

    fn foreign_keys(&mut self, id: &str, serve: &ServeConfig, env: &mut Section<'_>) {
        env.whole();
        let describes = self.describes;
        if let (true, Ok(package)) = (describes, self.package(id, serve)) {
            let keys = package.describe().map(|Description { keys, .. }| keys).unwrap_or_default();
            for key in keys {
                let meaning = if key.doc.is_empty() {
                    key.kind
                } else {
                    format!("{}; {}", key.doc.trim_end_matches('.'), key.kind)
                };
                env.foresee(&format!("taskset.{}", key.name), meaning, key.default);
            }
        }
    }
}

/// Puts a text at a place in a block; whether there was such a place.
fn set(block: &mut Value, path: &[String], text: String) -> bool {
    let place = path.iter().try_fold(block, |value, key| value.get_mut(key));
    place.map(|value| *value = Value::String(text)).is_some()
}
