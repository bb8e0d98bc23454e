//! What makes two runs the same, so that one may go on with the rows of the other.

use std::fmt;

use serde_json::{Map, Value};

/// Keys that may differ between a run and its resumption: they change neither which rollouts are planned nor what a
/// rollout comes to.
///
/// The name and place of the run, how much runs at once, what is displayed, when the run counts as failed, and how the
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
];

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
    } else if !same(saved, now) {
        found.push(Difference { key: path, saved: saved.clone(), now: now.clone() });
    }
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

fn address(resolved: &Value) -> Value {
    let seat = &resolved["env"]["agent"]["client"]["base_url"];
    if seat.is_null() { resolved["client"]["base_url"].clone() } else { seat.clone() }
}

fn simulated(resolved: &Value) -> bool {
    address(resolved).is_null()
}
