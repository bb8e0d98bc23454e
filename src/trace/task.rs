//! The record of a task inside episodes and traces.

use std::{collections::BTreeMap, sync::Arc};

use indexmap::IndexMap;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, DeserializeOwned},
    ser::{self, SerializeMap},
};
use serde_json::{Map, Value, json, value::RawValue};
use sha2::{Digest, Sha256};

use super::{
    hash::hex,
    json::{PythonJson, Spacing, write_python_float, write_text, write_value},
    message::Message,
};

/// A task as an episode carries it: the row, its class name and its identity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TraceTask {
    /// Class name of the task, for example `ReverseTextTask`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The row.
    pub data: TaskData,
    /// Durable id; the hash unless the taskset has a better one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// SHA-256 of the row's canonical JSON, 64 lowercase hex digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
}

/// One row of a taskset. Fields of the taskset's own ride along in `extra` and are never dropped.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskData {
    /// Position in the taskset's unfiltered stream, from 0.
    pub idx: Option<u64>,
    /// Durable id from the source.
    pub id: Option<String>,
    /// Readable name.
    pub name: Option<String>,
    /// Readable description.
    pub description: Option<String>,
    /// What opens the conversation; absent when the user does.
    pub prompt: Option<Prompt>,
    /// Instructions that stand before the prompt.
    pub system_prompt: Option<String>,
    /// Container image.
    pub image: Option<String>,
    /// Working directory in the container.
    pub workdir: Option<String>,
    /// User the harness runs as in the container.
    pub agent_user: Option<String>,
    /// Skills to install: a path or `{"runtime": path}`.
    pub skills: Vec<Value>,
    /// Destinations the task may reach; `*` is everything.
    pub network_allow: Vec<String>,
    /// Destinations the task may not reach.
    pub network_block: Vec<String>,
    /// Paths carried from one runtime to another.
    pub artifacts: Vec<Artifact>,
    /// Bound on the artifacts, in bytes.
    pub artifact_max_bytes: u64,
    /// Stage deadlines of the task's own, in seconds.
    pub timeout: TaskTimeout,
    /// What a container needs.
    pub resources: TaskResources,
    /// The taskset's own fields. A null one counts as absent when the row is written or hashed.
    pub extra: Map<String, Value>,
    /// JSON text of those extra fields that hold a whole number too long for a [`Value`]: it is written and hashed in
    /// place of the rounded value.
    pub exact: IndexMap<String, Arc<str>>,
}

/// A path carried from one runtime to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Artifact {
    /// Where it is.
    pub source: String,
    /// Patterns that are left out.
    #[serde(default)]
    pub exclude: Vec<String>,
    /// Whether its absence is a failure.
    #[serde(default = "yes")]
    pub required: bool,
}

/// Stage deadlines of one task, in seconds; absent means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskTimeout {
    /// Task and harness setup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup: Option<f64>,
    /// The harness.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<f64>,
    /// Collecting results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finalize: Option<f64>,
    /// Rewards and metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scoring: Option<f64>,
}

/// What a container of the task needs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskResources {
    /// Cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// Memory in GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<f64>,
    /// GPU kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// Disk in GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<f64>,
}

/// What opens a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Prompt {
    /// One user message of plain text.
    Text(String),
    /// Whole messages.
    Messages(Vec<Message>),
}

impl Default for TaskData {
    fn default() -> Self {
        Self {
            idx: None,
            id: None,
            name: None,
            description: None,
            prompt: None,
            system_prompt: None,
            image: None,
            workdir: None,
            agent_user: None,
            skills: Vec::new(),
            network_allow: everywhere(),
            network_block: Vec::new(),
            artifacts: Vec::new(),
            artifact_max_bytes: artifact_max_bytes(),
            timeout: TaskTimeout::default(),
            resources: TaskResources::default(),
            extra: Map::new(),
            exact: IndexMap::new(),
        }
    }
}

impl TraceTask {
    /// The record of a row: its hash, and the hash as its key.
    pub fn new(kind: impl Into<String>, data: TaskData) -> Self {
        let hash = data.hash();
        Self { kind: kind.into(), data, key: Some(hash.clone()), hash: Some(hash) }
    }
}

impl TaskData {
    /// SHA-256 of [`Self::canonical`], 64 lowercase hex digits: the row's identity as verifiers 0.4.0 computes it.
    pub fn hash(&self) -> String {
        hex(&Sha256::digest(self.canonical()))
    }

    /// The text that is hashed: JSON with sorted keys, `, ` and `: ` between, ASCII only, numbers as Python prints
    /// them, absent fields left out and defaults written (verifiers 0.4.0, `Task.hash`).
    pub fn canonical(&self) -> String {
        let mut fields: BTreeMap<&str, String> = BTreeMap::new();
        let mut put = |key, value: Value| {
            let mut text = String::new();
            write_value(&mut text, &value, Spacing::Spaced);
            fields.insert(key, text);
        };
        for (key, value) in self.texts() {
            if let Some(value) = value {
                put(key, value.as_str().into());
            }
        }
        if let Some(idx) = self.idx {
            put("idx", idx.into());
        }
        if let Some(prompt) = &self.prompt {
            put("prompt", json!(prompt));
        }
        put("skills", json!(self.skills));
        put("network_allow", json!(self.network_allow));
        put("network_block", json!(self.network_block));
        put("artifacts", json!(self.artifacts));
        put("artifact_max_bytes", self.artifact_max_bytes.into());
        for (key, value) in &self.extra {
            match self.exact.get(key).and_then(|text| PythonJson::read(text)) {
                Some(exact) => {
                    let mut text = String::new();
                    exact.write(&mut text, Spacing::Spaced);
                    fields.insert(key, text);
                }
                None if value.is_null() => {}
                None => {
                    let mut text = String::new();
                    write_value(&mut text, value, Spacing::Spaced);
                    fields.insert(key, text);
                }
            }
        }
        fields.insert("timeout", self.timeout.canonical());
        fields.insert("resources", self.resources.canonical());
        let mut text = String::from("{");
        for (position, (key, value)) in fields.iter().enumerate() {
            if position > 0 {
                text.push_str(", ");
            }
            write_text(&mut text, key);
            text.push_str(": ");
            text.push_str(value);
        }
        text.push('}');
        text
    }

    /// The fields that are a text or absent.
    fn texts(&self) -> [(&'static str, &Option<String>); 7] {
        [
            ("id", &self.id),
            ("name", &self.name),
            ("description", &self.description),
            ("system_prompt", &self.system_prompt),
            ("image", &self.image),
            ("workdir", &self.workdir),
            ("agent_user", &self.agent_user),
        ]
    }

    /// The messages that open the conversation: the system prompt, if any, then the prompt.
    pub fn opening(&self) -> Vec<Message> {
        let mut messages: Vec<Message> = self.system_prompt.iter().map(Message::system).collect();
        match &self.prompt {
            Some(Prompt::Text(text)) => messages.push(Message::user(text)),
            Some(Prompt::Messages(prompt)) => messages.extend(prompt.iter().cloned()),
            None => {}
        }
        messages
    }

    /// A field of the taskset's own, as text.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.extra.get(key).and_then(Value::as_str)
    }
}

impl TaskTimeout {
    fn canonical(&self) -> String {
        let Self { setup, agent, finalize, scoring } = *self;
        canonical_numbers(&[("agent", agent), ("finalize", finalize), ("scoring", scoring), ("setup", setup)], None)
    }
}

impl TaskResources {
    fn canonical(&self) -> String {
        let Self { cpu, memory, ref gpu, disk } = *self;
        canonical_numbers(&[("cpu", cpu), ("disk", disk), ("memory", memory)], gpu.as_deref())
    }
}

/// A map of doubles in the order given, with `gpu` at its place among them. These fields are doubles by type, so they
/// keep their `.0`, and what is not finite stays a word.
fn canonical_numbers(numbers: &[(&str, Option<f64>)], gpu: Option<&str>) -> String {
    let mut fields: Vec<(&str, String)> = Vec::new();
    for (key, number) in numbers {
        if let Some(number) = number {
            let mut text = String::new();
            write_python_float(&mut text, *number);
            fields.push((key, text));
        }
    }
    if let Some(gpu) = gpu {
        let mut text = String::new();
        write_text(&mut text, gpu);
        fields.push(("gpu", text));
    }
    fields.sort_unstable();
    let fields: Vec<String> = fields.into_iter().map(|(key, value)| format!("\"{key}\": {value}")).collect();
    format!("{{{}}}", fields.join(", "))
}

impl Serialize for TaskData {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let [id, name, description, system_prompt, image, workdir, agent_user] = self.texts();
        let text = |map: &mut S::SerializeMap, (key, value): (&str, &Option<String>)| match value {
            Some(value) => map.serialize_entry(key, value),
            None => Ok(()),
        };
        if let Some(idx) = self.idx {
            map.serialize_entry("idx", &idx)?;
        }
        text(&mut map, id)?;
        text(&mut map, name)?;
        text(&mut map, description)?;
        if let Some(prompt) = &self.prompt {
            map.serialize_entry("prompt", prompt)?;
        }
        for field in [system_prompt, image, workdir, agent_user] {
            text(&mut map, field)?;
        }
        map.serialize_entry("skills", &self.skills)?;
        map.serialize_entry("network_allow", &self.network_allow)?;
        map.serialize_entry("network_block", &self.network_block)?;
        map.serialize_entry("artifacts", &self.artifacts)?;
        map.serialize_entry("artifact_max_bytes", &self.artifact_max_bytes)?;
        map.serialize_entry("timeout", &self.timeout)?;
        map.serialize_entry("resources", &self.resources)?;
        for (key, value) in &self.extra {
            match self.exact.get(key) {
                Some(exact) => {
                    let raw: &RawValue = serde_json::from_str(exact).map_err(ser::Error::custom)?;
                    map.serialize_entry(key, raw)?;
                }
                None if value.is_null() => {}
                None => map.serialize_entry(key, value)?,
            }
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for TaskData {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        fn read<T: DeserializeOwned, E: de::Error>(key: &str, value: &RawValue) -> Result<T, E> {
            serde_json::from_str(value.get()).map_err(|error| E::custom(format!("{key}: {error}")))
        }
        // The text of each field, because a value cannot hold every number.
        let fields = IndexMap::<String, Box<RawValue>>::deserialize(deserializer)?;
        let mut data = Self::default();
        for (key, value) in fields {
            match key.as_str() {
                "idx" => data.idx = read(&key, &value)?,
                "id" => data.id = read(&key, &value)?,
                "name" => data.name = read(&key, &value)?,
                "description" => data.description = read(&key, &value)?,
                "prompt" => data.prompt = read(&key, &value)?,
                "system_prompt" => data.system_prompt = read(&key, &value)?,
                "image" => data.image = read(&key, &value)?,
                "workdir" => data.workdir = read(&key, &value)?,
                "agent_user" => data.agent_user = read(&key, &value)?,
                "skills" => data.skills = read(&key, &value)?,
                "network_allow" => data.network_allow = read(&key, &value)?,
                "network_block" => data.network_block = read(&key, &value)?,
                "artifacts" => data.artifacts = read(&key, &value)?,
                "artifact_max_bytes" => data.artifact_max_bytes = read(&key, &value)?,
                "timeout" => data.timeout = read(&key, &value)?,
                "resources" => data.resources = read(&key, &value)?,
                _ => {
                    if has_long_number(value.get())
                        && PythonJson::read(value.get()).is_some_and(|value| value.exceeds_value())
                    {
                        data.exact.insert(key.clone(), value.get().into());
                    }
                    let value = read(&key, &value)?;
                    data.extra.insert(key, value);
                }
            }
        }
        Ok(data)
    }
}

/// Whether a text has 19 digits in a row, the fewest that may be too many for 64 bits.
fn has_long_number(text: &str) -> bool {
    let mut run = 0;
    text.bytes().any(|byte| {
        run = if byte.is_ascii_digit() { run + 1 } else { 0 };
        run >= 19
    })
}

fn yes() -> bool {
    true
}

fn everywhere() -> Vec<String> {
    vec!["*".to_owned()]
}

fn artifact_max_bytes() -> u64 {
    32 << 20
}
