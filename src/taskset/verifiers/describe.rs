//! What packages say of themselves.

use serde::Deserialize;
use serde_json::Value;

/// What one says when it is imported.
#[derive(Clone, Debug, Deserialize)]
pub struct Description {
    /// Its id, in kebab case.
    pub id: String,
    /// One line.
    pub summary: String,
    /// What stands at the head of its module.
    pub text: String,
    /// Its README, in Markdown.
    pub card: Option<String>,
    /// The distribution it comes from.
    pub distribution: Option<String>,
    /// The version of that.
    pub version: Option<String>,
    /// The class of its taskset.
    pub taskset: String,
    /// The class of its tasks.
    pub task: String,
    /// The class of its env.
    pub env: String,
    /// Whether its tasks never end.
    pub infinite: bool,
    /// The agents of its env.
    pub seats: Vec<Seat>,
    /// The keys of `env.taskset`.
    pub keys: Vec<Key>,
    /// The keys of `env` that only this env has.
    pub env_keys: Vec<Key>,
}

/// An agent of an env, with what its author set.
#[derive(Clone, Debug, Deserialize)]
pub struct Seat {
    /// Its name: its block is `env.NAME`.
    pub name: String,
    /// The harness that plays unless another is given.
    pub harness: String,
    /// The runtime that the author chose.
    pub runtime: Option<String>,
    /// Whether harness or task need a container.
    pub needs_container: bool,
    /// The bound on its turns.
    pub max_turns: Option<u64>,
    /// What it is for.
    pub doc: String,
}

/// A key of a configuration.
#[derive(Clone, Debug, Deserialize)]
pub struct Key {
    /// Its dotted name.
    pub name: String,
    /// Its type, as Python writes it.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether it must be given.
    pub required: bool,
    /// Its default.
    pub default: Value,
    /// What it is for.
    pub doc: String,
}

/// A taskset that is installed, told without importing it.
#[derive(Clone, Debug, Deserialize)]
pub struct Installed {
    /// Its id, in kebab case.
    pub id: String,
    /// One line.
    pub summary: String,
    /// The version of its distribution.
    pub version: Option<String>,
    /// Whether it ships with verifiers.
    pub ships: bool,
}
