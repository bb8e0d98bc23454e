//! From a row of data to a task: templates filled, known columns put in their places.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::names::Names;
use crate::{
    taskset::dataset::Row,
    template::Template,
    trace::{Message, Prompt, TaskData, TaskTimeout},
};

/// Columns that are fields of every task, beside those that templates make.
const KNOWN: &[&str] = &[
    "description",
    "image",
    "workdir",
    "agent_user",
    "skills",
    "network_allow",
    "network_block",
    "artifacts",
    "artifact_max_bytes",
    "timeout",
    "resources",
];

/// A question with its answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Example {
    pub user: String,
    pub assistant: String,
}

/// Who says something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    System,
    User,
    Assistant,
}

/// What opens the conversation of each task.
pub(super) enum Opening {
    /// The column `prompt`, else `question`; where there is a scripted user, it may be neither.
    Columns,
    /// One message of the user.
    Text(Template),
    /// Several messages.
    Messages(Vec<(Role, Template)>),
}

/// How a row becomes a task.
pub(super) struct Mould {
    pub opening: Opening,
    pub system_prompt: Option<Template>,
    pub answer: Option<Template>,
    pub id: Option<Template>,
    pub name: Option<Template>,
    pub timeout: TaskTimeout,
    /// A task without a prompt is opened by its user.
    pub user_opens: bool,
    pub config: Arc<Map<String, Value>>,
}

impl Mould {
    /// The task of a row, with worked examples before its prompt.
    ///
    /// # Errors
    /// What is wrong with the row, in words that follow its place.
    pub(super) fn task(&self, row: &Row, examples: &[Example], count: usize) -> Result<TaskData, String> {
        let columns = &row.values;
        let filled =
            |template: &Option<Template>| template.as_ref().map(|template| self.fill(template, columns)).transpose();
        let mut data = self.known(columns)?;
        let prompt = self.prompt(columns)?;
        data.id = filled(&self.id)?.map_or_else(|| label(columns, "id"), |id| Ok(Some(id)))?;
        if data.id.as_ref().is_some_and(String::is_empty) {
            return Err("`id` is empty; leave it out where there is none".to_owned());
        }
        data.name = filled(&self.name)?.map_or_else(|| label(columns, "name"), |name| Ok(Some(name)))?;
        data.system_prompt =
            filled(&self.system_prompt)?.map_or_else(|| text(columns, "system_prompt"), |text| Ok(Some(text)))?;
        let left_out = ["id", "name", "system_prompt", "prompt", "idx"];
        let own =
            columns.iter().filter(|(name, _)| !left_out.contains(&name.as_str()) && !KNOWN.contains(&name.as_str()));
        data.extra = own.map(|(name, value)| (name.clone(), value.clone())).collect();
        if let Some(answer) = self.answer(columns)? {
            data.extra.insert("answer".to_owned(), answer.into());
        }
        data.prompt = with_examples(prompt, examples, count)?;
        Ok(data)
    }

    /// The answer that the taskset makes of a row's columns, where it makes one.
    pub(super) fn answer(&self, columns: &Map<String, Value>) -> Result<Option<String>, String> {
        self.answer.as_ref().map(|template| self.fill(template, columns)).transpose()
    }

    fn fill(&self, template: &Template, columns: &Map<String, Value>) -> Result<String, String> {
        template.render(Names::of(columns, &self.config)).map_err(|error| error.to_string())
    }

    /// What opens the conversation; also what an example's question is when nothing else is said.
    pub(super) fn prompt(&self, columns: &Map<String, Value>) -> Result<Option<Prompt>, String> {
        match &self.opening {
            Opening::Text(template) => Ok(Some(Prompt::Text(self.fill(template, columns)?))),
            Opening::Messages(messages) => {
                let messages = messages.iter().map(|(role, template)| {
                    let text = self.fill(template, columns)?;
                    Ok(match role {
                        Role::System => Message::system(text),
                        Role::User => Message::user(text),
                        Role::Assistant => Message::assistant(text),
                    })
                });
                Ok(Some(Prompt::Messages(messages.collect::<Result<_, String>>()?)))
            }
            Opening::Columns => self.prompt_of(columns),
        }
    }

    fn prompt_of(&self, columns: &Map<String, Value>) -> Result<Option<Prompt>, String> {
        let given = |name: &'static str| columns.get(name).filter(|value| !value.is_null()).map(|value| (name, value));
        match given("prompt").or_else(|| given("question")) {
            None if self.user_opens => Ok(None),
            None => {
                let there: Vec<&str> = columns.keys().map(String::as_str).collect();
                Err(format!(
                    "there is no column `prompt` or `question`; the row has {}; say with `prompt = \"…\"` or `data.rename` \
                     what the model is asked",
                    there.join(", ")
                ))
            }
            Some((_, Value::String(text))) => Ok(Some(Prompt::Text(text.clone()))),
            Some((name, Value::Array(messages))) if messages.is_empty() => {
                Err(format!("`{name}` is a list without a message"))
            }
            Some((name, value)) => serde_json::from_value(value.clone())
                .map(|messages| Some(Prompt::Messages(messages)))
                .map_err(|error| format!("`{name}` is neither text nor a list of messages: {error}")),
        }
    }

    /// A task with the columns that are fields of every task, and the taskset's own deadlines where the row has none.
    fn known(&self, columns: &Map<String, Value>) -> Result<TaskData, String> {
        let mut known = Map::new();
        for name in KNOWN {
            if let Some(value) = columns.get(*name).filter(|value| !value.is_null()) {
                known.insert((*name).to_owned(), value.clone());
            }
        }
        let mut data = TaskData::default();
        if !known.is_empty() {
            data = serde_json::from_value(Value::Object(known)).map_err(|error| error.to_string())?;
        }
        let own = &mut data.timeout;
        own.setup = own.setup.or(self.timeout.setup);
        own.agent = own.agent.or(self.timeout.agent);
        own.finalize = own.finalize.or(self.timeout.finalize);
        own.scoring = own.scoring.or(self.timeout.scoring);
        Ok(data)
    }
}

/// The prompt with worked examples before its first message that is no instruction. An example that asks what the prompt
/// asks is passed over.
fn with_examples(prompt: Option<Prompt>, examples: &[Example], count: usize) -> Result<Option<Prompt>, String> {
    if examples.is_empty() {
        return Ok(prompt);
    }
    let mut messages = match prompt {
        None => return Err("few-shot examples stand before a prompt, and this task has none".to_owned()),
        Some(Prompt::Text(text)) => vec![Message::user(text)],
        Some(Prompt::Messages(messages)) => messages,
    };
    let asked: Vec<String> =
        messages.iter().filter(|message| matches!(message, Message::User(_))).map(Message::text).collect();
    let shown = examples.iter().filter(|example| !asked.contains(&example.user)).take(count);
    let shown: Vec<Message> =
        shown.flat_map(|shot| [Message::user(&shot.user), Message::assistant(&shot.assistant)]).collect();
    let at = messages.iter().take_while(|message| matches!(message, Message::System(_))).count();
    messages.splice(at..at, shown);
    Ok(Some(Prompt::Messages(messages)))
}

/// A column that names a task: text, or a whole number in words.
fn label(columns: &Map<String, Value>, name: &str) -> Result<Option<String>, String> {
    match columns.get(name) {
        Some(Value::Number(number)) if !number.is_f64() => Ok(Some(number.to_string())),
        _ => text(columns, name),
    }
}

fn text(columns: &Map<String, Value>, name: &str) -> Result<Option<String>, String> {
    match columns.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(format!("`{name}` is a field of every task and must be text")),
    }
}
