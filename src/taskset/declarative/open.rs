//! A declared taskset: found by its file, opened with its keys.

use std::{
    borrow::Cow,
    fs,
    path::Path,
    sync::{Arc, OnceLock},
};

use futures::future::BoxFuture;
use serde_json::{Map, Value};

use super::{
    data::Data,
    few_shot::FewShot,
    keys::own_keys,
    read::Declaration,
    row::{Example, Mould},
    user::{MaxTurns, Reference, Script, ScriptedUser},
};
use crate::{
    config::{self, Section},
    rubric::Rubric,
    taskset::{Found, Hooks, TaskStream, Taskset, TasksetError, TasksetSize, User, class::task_class, dataset},
    trace::{Fault, Message, TraceTask},
};

/// The taskset that a TOML file declares. A file with faults is found, too: opening it tells them.
pub(in crate::taskset) fn found(file: &Path) -> Found {
    let id = config::taskset_label(&file.to_string_lossy());
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned();
    let summary = Declaration::read(file).map(|declaration| declaration.summary).unwrap_or_default();
    let card = fs::read_to_string(folder.join("README.md")).unwrap_or_default();
    let (file, kind) = (file.to_owned(), task_class(&id));
    Found {
        id,
        summary,
        card: Cow::Owned(card),
        folder: Some(folder),
        open: Arc::new(move |block| open(&file, &kind, block)),
    }
}

fn open(file: &Path, kind: &str, block: &mut Section<'_>) -> Result<Arc<dyn Taskset>, TasksetError> {
    let declaration = Declaration::read(file).map_err(|faults| {
        // The keys of a taskset that cannot be read cannot be judged.
        block.accept_rest();
        TasksetError::Declaration(faults)
    })?;
    let Declaration { mut mould, data, few_shot, max_turns, script, reference, rubric, .. } = declaration;
    mould.config = Arc::new(own_keys(block, &mould.config));
    let rubric = rubric.build().map_err(|error| TasksetError::Source(format!("{}: {error}", file.display())))?;
    Ok(Arc::new(Declared {
        kind: kind.to_owned(),
        rows: Arc::new(Rows { mould, data, few_shot, examples: OnceLock::new() }),
        hooks: max_turns.map(|turns| Arc::new(MaxTurns(turns)) as Arc<dyn Hooks>),
        script,
        reference,
        rubric,
    }))
}

/// A declared taskset, open.
struct Declared {
    kind: String,
    rows: Arc<Rows>,
    hooks: Option<Arc<dyn Hooks>>,
    script: Option<Arc<Script>>,
    reference: Reference,
    rubric: Rubric,
}

/// What tasks are made of.
struct Rows {
    mould: Mould,
    data: Data,
    few_shot: Option<FewShot>,
    /// Read once, when the first task is.
    examples: OnceLock<Vec<Example>>,
}

impl Declared {
    fn config(&self) -> &Arc<Map<String, Value>> {
        &self.rows.mould.config
    }
}

impl Taskset for Declared {
    fn tasks(&self) -> TaskStream {
        let (reading, making) = (Arc::clone(&self.rows), Arc::clone(&self.rows));
        let open = move || {
            if let Some(few_shot) = &reading.few_shot
                && reading.examples.get().is_none()
            {
                let examples = few_shot.examples(&reading.mould)?;
                reading.examples.get_or_init(|| examples);
            }
            reading.data.rows(&reading.mould.config)
        };
        dataset::tasks_of(&self.kind, open, move |row| {
            let examples = making.examples.get().map_or(&[][..], Vec::as_slice);
            let count = making.few_shot.as_ref().map_or(0, |few_shot| few_shot.count);
            making.mould.task(row, examples, count)
        })
    }

    fn size(&self) -> TasksetSize {
        self.rows.data.size().map_or(TasksetSize::Unknown, TasksetSize::Finite)
    }

    fn rubric(&self) -> &Rubric {
        &self.rubric
    }

    fn user(&self, task: &TraceTask) -> Option<Box<dyn User>> {
        let script = Arc::clone(self.script.as_ref()?);
        Some(Box::new(ScriptedUser::new(script, Arc::clone(self.config()), &task.data)))
    }

    fn hooks(&self) -> Option<Arc<dyn Hooks>> {
        self.hooks.clone()
    }

    fn reference<'a>(
        &'a self,
        task: &'a TraceTask,
        conversation: &'a [Message],
    ) -> BoxFuture<'a, Result<Option<String>, Fault>> {
        Box::pin(std::future::ready(self.reference.reply(self.config(), &task.data, conversation)))
    }
}
