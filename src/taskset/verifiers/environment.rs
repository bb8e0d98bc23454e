//! A package opened with an env block: its rows, and the program that serves it.

use std::{env, path::PathBuf, sync::Arc};

use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    BridgeError, Package,
    bridge::{ask, server_program},
    find::IMPORT,
    rows,
};
use crate::{
    config::nearest,
    rubric::Rubric,
    runtime::Program,
    taskset::{TaskStream, Taskset, TasksetSize},
    trace::{Fault, Message, TraceTask},
};

/// The longest block that can be served: it travels in the server's environment.
const LONGEST_BLOCK: usize = 1 << 20;

/// One fault of an env block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockFault {
    /// Where: keys from the `env` table down, items of lists by their numbers. Empty for the block as a whole.
    pub path: Vec<String>,
    /// What is wrong and what to change.
    pub problem: String,
}

/// Why a package does not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Its block is wrong.
    #[error("{}", in_words(.0))]
    Faults(Vec<BlockFault>),
    /// It cannot be imported, or raises when it is made.
    #[error("{0}")]
    Bridge(#[from] BridgeError),
}

fn in_words(faults: &[BlockFault]) -> String {
    let line = |fault: &BlockFault| {
        let path: String = fault.path.iter().map(|key| format!(".{key}")).collect();
        format!("env{path}: {}", fault.problem)
    };
    faults.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A package opened with an env block. As a taskset it has no rewards: the server scores.
pub struct Environment {
    package: Package,
    checked: Arc<Checked>,
    rubric: Rubric,
}

/// What a block comes to.
#[derive(Debug, Deserialize)]
struct Checked {
    resolved: Value,
    label: String,
    task: String,
    infinite: bool,
    seats: Vec<String>,
    warnings: Vec<String>,
    paths: Vec<PathBuf>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Verdict {
    Faulty { faults: Vec<Faulty> },
    Sound(Box<Checked>),
}

#[derive(Deserialize)]
struct Faulty {
    path: Vec<Value>,
    problem: String,
    /// The keys that are known there.
    known: Vec<String>,
}

impl Package {
    /// Opens it with the whole `env` block, whose `taskset.id` is this package's if the block says nothing. The package's own
    /// classes read the block; only an agent's `runtime` has another default than in verifiers, where it is a remote one
    /// that costs money: here it is `{type = "subprocess"}`, unless the author of the env chose one.
    ///
    /// # Errors
    /// All faults of the block; a package that cannot be imported or made.
    pub fn open(&self, env: &Value) -> Result<Environment, OpenError> {
        let mut block = env.clone();
        let Some(taskset) = as_table(&mut block).and_then(|env| as_table(env.entry("taskset").or_insert(json!({}))))
        else {
            let problem = "expected a table of keys".to_owned();
            let path = if env.is_object() { vec!["taskset".to_owned()] } else { Vec::new() };
            return Err(OpenError::Faults(vec![BlockFault { path, problem }]));
        };
        // The spelling that was asked for stays in the resolved block; which module it means is the same for both.
        if !taskset.get("id").is_some_and(Value::is_string) {
            taskset.insert("id".to_owned(), self.id.as_str().into());
        }
        let request = json!({"op": "check", "env": block});
        match ask(&self.kept, &self.interpreter, &self.id, request, IMPORT)? {
            Verdict::Faulty { faults } => Err(OpenError::Faults(faults.into_iter().map(BlockFault::from).collect())),
            Verdict::Sound(checked) if checked.resolved.to_string().len() > LONGEST_BLOCK => {
                let problem = format!("is longer than {LONGEST_BLOCK} bytes; keep long texts in files");
                Err(OpenError::Faults(vec![BlockFault { path: Vec::new(), problem }]))
            }
            Verdict::Sound(checked) => {
                for warning in &checked.warnings {
                    tracing::warn!(env = checked.label, "{warning}");
                }
                Ok(Environment { package: self.clone(), checked: Arc::new(*checked), rubric: Rubric::default() })
            }
        }
    }
}

impl From<Faulty> for BlockFault {
    fn from(fault: Faulty) -> Self {
        let path: Vec<String> =
            fault.path.iter().map(|step| step.as_str().map_or_else(|| step.to_string(), str::to_owned)).collect();
        let wrong = path.last().map(String::as_str).unwrap_or_default();
        let near = nearest(wrong, fault.known.iter().map(String::as_str));
        let hint = near.first().map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        Self { problem: fault.problem + &hint, path }
    }
}

impl Environment {
    /// The whole env block as the package's classes read it, which reads to the same again: for the dump of the
    /// configuration.
    pub fn resolved(&self) -> &Value {
        &self.checked.resolved
    }

    /// What verifiers calls it in records: the taskset's id, with that of a paired env before it.
    pub fn label(&self) -> &str {
        &self.checked.label
    }

    /// The class of its tasks.
    pub fn class(&self) -> &str {
        &self.checked.task
    }

    /// The names of its agents.
    pub fn seats(&self) -> &[String] {
        &self.checked.seats
    }

    /// What works, but not as it should; also logged.
    pub fn warnings(&self) -> &[String] {
        &self.checked.warnings
    }

    /// The package.
    pub fn package(&self) -> &Package {
        &self.package
    }

    /// The folders that its server reads code from: what must be visible in a box.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.checked.paths.clone()
    }

    /// A program that serves this env at an address (`ipc://…`, `tcp://…`) until SIGTERM or the death of its parent. Its
    /// standard error is its log, and whatever the package prints; nothing is read from its input. Of our environment it
    /// sees the usual variables, those that the search passed on, and those named here: keys of endpoints above all.
    pub fn server(&self, address: &str, max_concurrent: Option<u32>, pass_env: &[String]) -> Program {
        let mut interpreter = self.package.interpreter.clone();
        for name in pass_env {
            if let Some(value) = env::var_os(name)
                && !interpreter.environment.iter().any(|(known, _)| known == name.as_str())
            {
                interpreter.environment.push((name.into(), value));
            }
        }
        server_program(&interpreter, &self.checked.resolved, address, max_concurrent)
    }
}

impl Taskset for Environment {
    fn tasks(&self) -> TaskStream {
        self.tasks_from(0)
    }

    fn tasks_from(&self, position: u64) -> TaskStream {
        rows::tasks(&self.package, &self.checked.resolved, position)
    }

    fn size(&self) -> TasksetSize {
        if self.checked.infinite { TasksetSize::Infinite } else { TasksetSize::Unknown }
    }

    fn rubric(&self) -> &Rubric {
        &self.rubric
    }

    /// The row's `answer`, where it has one: the best that can be guessed of what the package rewards.
    fn reference<'a>(
        &'a self,
        task: &'a TraceTask,
        _conversation: &'a [Message],
    ) -> BoxFuture<'a, Result<Option<String>, Fault>> {
        let answer = task.data.text("answer").map(str::to_owned);
        Box::pin(std::future::ready(Ok(answer)))
    }
}

fn as_table(value: &mut Value) -> Option<&mut serde_json::Map<String, Value>> {
    value.as_object_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_says_where_and_what_is_near() {
        let fault = Faulty {
            path: vec!["taskset".into(), "judges".into(), 0.into(), "cuont".into()],
            problem: "unknown key".to_owned(),
            known: vec!["count".to_owned(), "id".to_owned()],
        };
        let error = OpenError::Faults(vec![fault.into()]);
        assert_eq!(error.to_string(), "env.taskset.judges.0.cuont: unknown key; did you mean `count`?");
    }
}
