//! The record of a task inside episodes and traces.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::message::Message;

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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskData {
    /// Position in the taskset's unfiltered stream, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idx: Option<u64>,
    /// Durable id from the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Readable name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Readable description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// What opens the conversation; absent when the user does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Prompt>,
    /// Instructions that stand before the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// Container image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Working directory in the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// User the harness runs as in the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_user: Option<String>,
    /// Skills to install: a path or `{"runtime": path}`.
    #[serde(default)]
    pub skills: Vec<Value>,
    /// Destinations the task may reach; `*` is everything.
    #[serde(default = "everywhere")]
    pub network_allow: Vec<String>,
    /// Destinations the task may not reach.
    #[serde(default)]
    pub network_block: Vec<String>,
    /// Paths carried from one runtime to another.
    #[serde(default)]
    pub artifacts: Vec<Value>,
    /// Bound on the artifacts, in bytes.
    #[serde(default = "artifact_max_bytes")]
    pub artifact_max_bytes: u64,
    /// Stage deadlines of the task's own, in seconds.
    #[serde(default)]
    pub timeout: TaskTimeout,
    /// What a container needs.
    #[serde(default)]
    pub resources: TaskResources,
    /// The taskset's own fields.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
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
        String::new()
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

fn everywhere() -> Vec<String> {
    vec!["*".to_owned()]
}

fn artifact_max_bytes() -> u64 {
    32 << 20
}
