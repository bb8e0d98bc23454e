//! What an answer is held against.

use serde_json::{Map, Value};

use crate::{
    template::Template,
    trace::{Fault, FaultClass, TaskData},
};

/// Where the expected answer comes from.
#[derive(Clone, Debug)]
pub enum Expected {
    /// A field of the row, for example `answer`: text as it stands, a number or truth value as JSON writes it, or a list
    /// of such, of which any counts. A row without it cannot be scored.
    Field(String),
    /// The same text for every row.
    Text(String),
    /// A text made of the row's fields.
    Made(Template),
}

impl Expected {
    /// A field of the row.
    pub fn field(name: &str) -> Self {
        Self::Field(name.to_owned())
    }

    /// The expected answers for a row, at least one; any of them counts.
    ///
    /// # Errors
    /// When the row has no such field or one that is no answer, or the template needs what the row does not have.
    pub fn of(&self, task: &TaskData) -> Result<Vec<String>, Fault> {
        let name = match self {
            Self::Text(text) => return Ok(vec![text.clone()]),
            Self::Made(template) => {
                let made = template.render(fields(task, &template.names()));
                return made.map(|text| vec![text]).map_err(|error| unusable(error.to_string()));
            }
            Self::Field(name) => name,
        };
        let found = task.extra.get(name);
        let answers = match found {
            Some(Value::Array(several)) => several.iter().map(plain).collect(),
            Some(one) => plain(one).map(|text| vec![text]),
            None => return Err(unusable(format!("the row has no field `{name}` to compare the answer with"))),
        };
        answers.filter(|answers| !answers.is_empty()).ok_or_else(|| {
            unusable(format!(
                "the row's field `{name}` is neither text nor a number, nor a list of such with one in it"
            ))
        })
    }

    /// The expected answer as JSON: a field as it stands, of which text that is JSON is read; else the text, read.
    ///
    /// # Errors
    /// As [`Self::of`], and when a text of the author's is not JSON.
    pub fn json(&self, task: &TaskData) -> Result<Value, Fault> {
        if let Self::Field(name) = self {
            return match task.extra.get(name) {
                Some(Value::String(text)) => Ok(serde_json::from_str(text).unwrap_or_else(|_| text.clone().into())),
                Some(value) => Ok(value.clone()),
                None => Err(unusable(format!("the row has no field `{name}` to compare the answer with"))),
            };
        }
        let texts = self.of(task)?;
        let text = texts.first().map_or("", String::as_str);
        serde_json::from_str(text).map_err(|error| unusable(format!("the expected answer is not JSON: {error}")))
    }
}

/// The named fields of a row, those that it has: its own columns, then `id`, `name`, `description`, `system_prompt`,
/// `prompt` and `idx`.
pub(super) fn fields(task: &TaskData, names: &[String]) -> Map<String, Value> {
    let text = |text: &Option<String>| text.clone().map(Value::from);
    let known = |name: &str| match name {
        "id" => text(&task.id),
        "name" => text(&task.name),
        "description" => text(&task.description),
        "system_prompt" => text(&task.system_prompt),
        "prompt" => serde_json::to_value(task.prompt.as_ref()?).ok(),
        "idx" => task.idx.map(Value::from),
        _ => None,
    };
    let found = |name: &String| Some((name.clone(), task.extra.get(name).cloned().or_else(|| known(name))?));
    names.iter().filter_map(found).collect()
}

fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}

pub(super) fn unusable(message: String) -> Fault {
    Fault::new(FaultClass::Scoring, message)
}
