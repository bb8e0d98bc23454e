//! What a script says of itself before anything of it runs: its functions, its keys, its judges.

use serde::Deserialize;
use serde_json::Value;

/// A script as its bridge describes it.
#[derive(Debug, Deserialize)]
pub(super) struct Description {
    pub(super) load: Load,
    /// All functions but `load`, in the order of the script.
    pub(super) functions: Vec<Function>,
    /// The declared judges, each with the keys of a `[[judge]]` table.
    pub(super) judges: Vec<Value>,
}

/// The function that gives the rows.
#[derive(Debug, Deserialize)]
pub(super) struct Load {
    pub(super) parameters: Vec<Parameter>,
    pub(super) infinite: bool,
    /// A count, or the name of the parameter that says it.
    pub(super) size: Option<Value>,
    /// Seconds for a batch of rows.
    pub(super) timeout: Option<f64>,
}

/// A parameter of `load`: a key of the taskset.
#[derive(Debug, Deserialize)]
pub(super) struct Parameter {
    pub(super) name: String,
    /// Whether it has no default.
    pub(super) required: bool,
    pub(super) default: Value,
    pub(super) kind: Kind,
    /// Whether it may be None.
    pub(super) optional: bool,
    /// The only texts that it may be.
    pub(super) choices: Option<Vec<String>>,
}

/// The type of a parameter, by its annotation or else its default.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Bool,
    Int,
    Float,
    Str,
    List,
    Dict,
    Any,
}

/// A function in its role.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Function {
    pub(super) role: Role,
    pub(super) name: String,
    /// Seconds for a call, where it has its own.
    pub(super) timeout: Option<f64>,
    #[serde(rename = "async")]
    pub(super) is_async: bool,
    /// What it asks for besides columns.
    pub(super) asks: Vec<Field>,
    /// The columns of the row that it asks for.
    pub(super) columns: Vec<String>,
    #[serde(default)]
    pub(super) weight: f64,
    #[serde(default)]
    pub(super) bounds: Option<(f64, f64)>,
    /// Whether the members of its group carry their traces.
    #[serde(default)]
    pub(super) trace: bool,
}

/// What a function is for.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum Role {
    Setup,
    User,
    Stop,
    Finalize,
    Metric,
    Reward,
    GroupReward,
    Reference,
}

/// What a function may ask for besides columns.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum Field {
    Task,
    Messages,
    Reply,
    Replies,
    State,
    Trace,
    Metrics,
    Group,
}

impl Description {
    /// The functions of a role, in the order of the script.
    pub(super) fn of(&self, role: Role) -> Vec<Function> {
        self.functions.iter().filter(|function| function.role == role).cloned().collect()
    }
}

/// The first line of a script's docstring; empty without one.
pub(super) fn docstring_line(script: &str) -> &str {
    let code = script.trim_start_matches('\u{feff}');
    let mut lines = code.lines().map(str::trim).skip_while(|line| line.is_empty() || line.starts_with('#'));
    let first = lines.next().unwrap_or_default();
    let opened = first.trim_start_matches(['r', 'R', 'u', 'U']);
    let Some(quotes) = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|quotes| opened.starts_with(quotes)) else {
        return "";
    };
    let text = &opened[quotes.len()..];
    let text = text.split(quotes).next().unwrap_or_default().trim();
    // The summary may stand below the quotes.
    if text.is_empty() && quotes.len() == 3 { lines.next().unwrap_or_default() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_a_docstring_is_the_summary() {
        for (script, expected) in [
            ("\"\"\"Add two numbers.\"\"\"\nimport x", "Add two numbers."),
            ("#!/usr/bin/env python3\n# note\n\n\"\"\"\nAdd.\n\nMore.\n\"\"\"", "Add."),
            ("r'''Add.\n'''", "Add."),
            ("'Add.'", "Add."),
            ("import x\n\"\"\"no docstring\"\"\"", ""),
            ("", ""),
        ] {
            assert_eq!(docstring_line(script), expected, "{script}");
        }
    }
}
