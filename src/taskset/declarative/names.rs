//! The names that templates and expressions of a taskset may use.

use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Map, Value};

use crate::trace::TaskData;

/// The name of the taskset's own keys.
pub(super) const CONFIG: &str = "config";

/// What is known where a template is filled: what is given there, the taskset's keys as `config`, the columns of the row.
/// Where two have one name, the first of these counts.
#[derive(Clone, Copy)]
pub(super) struct Names<'a> {
    pub columns: &'a Map<String, Value>,
    pub config: &'a Map<String, Value>,
    pub given: &'a [(&'a str, Value)],
}

impl<'a> Names<'a> {
    /// The columns of a row and the taskset's keys.
    pub(super) fn of(columns: &'a Map<String, Value>, config: &'a Map<String, Value>) -> Self {
        Self { columns, config, given: &[] }
    }
}

impl Serialize for Names<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let given = |name: &str| self.given.iter().any(|(given, _)| *given == name);
        for (name, value) in self.columns.iter().filter(|(name, _)| *name != CONFIG && !given(name)) {
            map.serialize_entry(name, value)?;
        }
        if !given(CONFIG) {
            map.serialize_entry(CONFIG, self.config)?;
        }
        for (name, value) in self.given {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// The columns of a task: its own fields, and the known ones that came from columns.
pub(super) fn columns(task: &TaskData) -> Map<String, Value> {
    let mut columns = task.extra.clone();
    let texts = [
        ("id", &task.id),
        ("name", &task.name),
        ("description", &task.description),
        ("system_prompt", &task.system_prompt),
    ];
    for (name, text) in texts {
        if let Some(text) = text {
            columns.insert(name.to_owned(), text.as_str().into());
        }
    }
    if let Some(prompt) = &task.prompt {
        columns.insert("prompt".to_owned(), serde_json::to_value(prompt).unwrap_or_default());
    }
    columns
}
