//! What makes two runs the same, so that one may go on with the rows of the other.

use std::fmt;

use serde_json::{Map, Value};

/// Keys that may differ between a run and its resumption: they change neither which rollouts are planned nor what a
/// rollout comes to.
///
/// The name and place of the run, how much runs at once, what is displayed, when the run counts as failed, and how the
/// env is served, and how the
/// endpoint is reached (the same model may have moved, and patience with it may have grown). Deadlines of episodes and
/// stages are not among them: they decide how a rollout ends. Nor is whether an endpoint is used at all.
const FREE: &[&str] = &[
    "run",
    "output_dir",
    "max_concurrent",
    "max_error_rate",
    "verbose",
    "push",
    "rich",
    "client",
    "env.agent.client",
    "env.max_concurrent_agents",
    "env.interception",
    "serve",
];

/// Keys of an endpoint that may not differ: whether rollouts are made of exact tokens, and by which renderer.
const SPEECH: &[&str] = &["type", "route", "renderer", "renderer_model_name"];

/// The judges of the run's own, which are told apart by their place in the list.
const JUDGES: &str = "env.taskset.task.judges";

/// Keys of one of them that may differ likewise, as long as it keeps an endpoint of its own, or none: how it is reached.
const FREE_OF_JUDGES: &[&str] =
    &["base_url", "api_key_var", "headers", "headers_from_env", "timeout", "stream", "max_retries", "max_concurrent"];

/// Free keys of a taskset in Python: where its functions run, not what they do. Another taskset may have keys of its own
/// by these names.
const FREE_IN_PYTHON: &[&str] = &["env.taskset.python", "env.taskset.workers", "env.taskset.memory_mb"];

/// A key in which two resolved configurations differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Dotted key.
    pub key: String,
    /// Value of the saved run; null where it has none.
    pub saved: Value,
    /// Value of the run to be started.
    pub now: Value,
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {} in the saved run, {} now", self.key, self.saved, self.now)
    }
}

/// The keys that keep `now` from being a resumption of `saved`, both resolved configurations of this version; empty if it
/// is one. A key that one side lacks counts as null, 2 and 2.0 are equal, and so are an empty table and none.
#[must_use]
pub fn differences(saved: &Value, now: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    compare(saved, now, String::new(), &mut found);
    if [saved, now].into_iter().all(is_python) {
        found.retain(|difference| !FREE_IN_PYTHON.contains(&difference.key.as_str()));
    }
    for key in SPEECH {
        // A run of before there was a choice spoke in text, as one does that names nothing.
        let told = |resolved: &Value| match (&endpoint(resolved)[*key], *key) {
            (Value::Null, "type") => "eval".into(),
            (value, _) => value.clone(),
        };
        compare(&told(saved), &told(now), format!("client.{key}"), &mut found);
    }
    let (was, is) = (simulated(saved), simulated(now));
    if was != is {
        found.push(Difference { key: "client.base_url".to_owned(), saved: address(saved), now: address(now) });
    }
    found
}

fn compare(saved: &Value, now: &Value, path: String, found: &mut Vec<Difference>) {
    if FREE.contains(&path.as_str()) {
        return;
    }
    let empty = Map::new();
    let table = |value: &Value| value.is_object() || value.is_null();
    if table(saved) && table(now) {
        let (saved, now) = (saved.as_object().unwrap_or(&empty), now.as_object().unwrap_or(&empty));
        for key in saved.keys().chain(now.keys().filter(|key| !saved.contains_key(*key))) {
            let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            compare(saved.get(key).unwrap_or(&Value::Null), now.get(key).unwrap_or(&Value::Null), below, found);
        }
    } else if let (JUDGES, Some(saved), Some(now)) = (path.as_str(), saved.as_array(), now.as_array())
        && saved.len() == now.len()
    {
        for (index, (saved, now)) in saved.iter().zip(now).enumerate() {
            compare(&told(saved), &told(now), format!("{JUDGES}[{index}]"), found);
        }
    } else if !same(saved, now) {
        found.push(Difference { key: path, saved: saved.clone(), now: now.clone() });
    }
}

/// What of a judge must be the same.
fn told(judge: &Value) -> Value {
    let mut judge = judge.clone();
    if let Some(keys) = judge.as_object_mut() {
        let own = keys.get("base_url").is_some_and(|url| !url.is_null());
        keys.retain(|key, _| !FREE_OF_JUDGES.contains(&key.as_str()));
        keys.insert("an endpoint of its own".to_owned(), own.into());
    }
    judge
}

/// Whether the taskset has the keys that all those in Python have.
fn is_python(resolved: &Value) -> bool {
    ["python", "workers", "memory_mb", "pass_env"].iter().all(|key| resolved["env"]["taskset"].get(key).is_some())
}

fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => left == right || left.as_f64() == right.as_f64(),
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| same(left, right))
        }
        _ => left == right,
    }
}

/// The endpoint's block: that of the seat, if it has one.
fn endpoint(resolved: &Value) -> &Value {
    let seat = &resolved["env"]["agent"]["client"];
    if seat["base_url"].is_null() { &resolved["client"] } else { seat }
}

fn address(resolved: &Value) -> Value {
    endpoint(resolved)["base_url"].clone()
}

fn simulated(resolved: &Value) -> bool {
    address(resolved).is_null()
}
