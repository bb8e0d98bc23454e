//! Configuration for the eye: every key with its value and origin, and every key with what it means.

use std::fmt::Write;

use serde_json::Value;

use super::{reader::Resolved, record::Key};

/// Values longer than this do not move the column of origins.
const WIDEST: usize = 64;

impl Resolved {
    /// One line a key: `env.agent.max_turns = 3    # exp.toml:4:13`; the origin is `default`, a place or a flag.
    #[must_use]
    pub fn explain(&self) -> String {
        let lines: Vec<(String, String)> = self
            .keys
            .iter()
            .filter(|key| !key.hidden)
            .map(|key| (format!("{} = {}", key.path, shown(&key.value)), key.origin.to_string()))
            .collect();
        let width = lines.iter().map(|(line, _)| line.chars().count()).filter(|width| *width <= WIDEST).max();
        let width = width.unwrap_or_default();
        let mut text = String::new();
        for (line, origin) in lines {
            writeln!(text, "{line:width$}  # {origin}").expect("writing to a string does not fail");
        }
        text
    }
}

/// The flags of known keys for `--help`: flag, what it allows, default, meaning.
#[must_use]
pub fn flag_help<'a>(keys: impl IntoIterator<Item = &'a Key>) -> String {
    let mut text = String::new();
    for key in keys.into_iter().filter(|key| !key.hidden) {
        let flag = format!("--{}", key.path.replace('_', "-"));
        let default = if key.default.is_null() { String::new() } else { format!(", default {}", shown(&key.default)) };
        writeln!(text, "  {flag:<36} {} ({}{default})", key.doc, key.allowed)
            .expect("writing to a string does not fail");
    }
    text
}

fn shown(value: &Value) -> String {
    if value.is_null() { "None".to_owned() } else { value.to_string() }
}
