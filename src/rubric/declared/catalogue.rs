//! What there is to declare, for documentation: told by reading a table of each scorer.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{
    parse::{STEPS, Takes},
    scorer::KINDS,
};
use crate::config::{Document, Key, Layer, Reader};

/// A scorer with what it takes.
#[derive(Clone, Debug, PartialEq)]
pub struct ScorerEntry {
    /// Its name, as `scorer` gives it.
    pub name: &'static str,
    /// One line: what it scores.
    pub summary: &'static str,
    /// Its own keys.
    pub options: Vec<ScorerOption>,
}

/// A key of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct ScorerOption {
    /// Its name.
    pub key: String,
    /// What is allowed, in words.
    pub allowed: String,
    /// The default; null where there is none.
    pub default: Value,
    /// One line: what it means.
    pub meaning: &'static str,
}

/// A step of a parser.
#[derive(Clone, Debug, PartialEq)]
pub struct StepEntry {
    /// Its name.
    pub name: &'static str,
    /// How it is written, for example `{ tag = "name" }`.
    pub written: String,
    /// One line: what it gives.
    pub summary: &'static str,
}

/// The keys that every `[[reward]]` has, then every scorer with the keys of its own.
pub fn catalogue() -> (Vec<ScorerOption>, Vec<ScorerEntry>) {
    let keys: Vec<Vec<ScorerOption>> = KINDS.iter().map(|kind| options(kind.name)).collect();
    let everywhere = |option: &&ScorerOption| keys.iter().all(|other| other.contains(option));
    let common: Vec<ScorerOption> = keys.first().into_iter().flatten().filter(everywhere).cloned().collect();
    let entries = KINDS.iter().zip(keys).map(|(kind, options)| ScorerEntry {
        name: kind.name,
        summary: kind.summary,
        options: options.into_iter().filter(|option| !common.contains(option)).collect(),
    });
    let entries = entries.collect();
    (common, entries)
}

/// Every step of a parser.
pub fn parser_steps() -> Vec<StepEntry> {
    let written = |name: &str, takes| match takes {
        Takes::Nothing => format!("\"{name}\""),
        Takes::Text(what) => format!("{{ {name} = \"{what}\" }}"),
        Takes::MaybeText(what) => format!("\"{name}\" or {{ {name} = \"{what}\" }}"),
        Takes::Ways => format!("{{ {name} = [parser, …] }}"),
    };
    let entries = STEPS.iter().map(|kind| StepEntry {
        name: kind.name,
        written: written(kind.name, kind.takes),
        summary: kind.summary,
    });
    entries.collect()
}

/// The whole catalogue as Markdown.
pub fn catalogue_text() -> String {
    let (common, entries) = catalogue();
    let mut text =
        String::from("# Scorers\n\nKeys of every `[[reward]]`; a `[[metric]]` has all but `weight` and `bounds`:\n\n");
    list(&mut text, &common);
    for entry in &entries {
        text += &format!("\n## {}\n\n{}\n", entry.name, sentence(entry.summary));
        if !entry.options.is_empty() {
            text.push('\n');
            list(&mut text, &entry.options);
        }
    }
    text += "\n# Steps of `parse`\n\n";
    for step in parser_steps() {
        text += &format!("- {}: {}\n", step.written, step.summary);
    }
    text
}

fn list(text: &mut String, options: &[ScorerOption]) {
    for ScorerOption { key, allowed, default, meaning } in options {
        let default = if default.is_null() { String::new() } else { format!(", default {default}") };
        writeln!(text, "- `{key}` ({allowed}{default}): {meaning}").expect("writing to a string does not fail");
    }
}

fn sentence(summary: &str) -> String {
    let mut characters = summary.chars();
    let first: String = characters.next().into_iter().flat_map(char::to_uppercase).collect();
    format!("{first}{}.", characters.as_str())
}

/// The keys that a table of this scorer has.
fn options(scorer: &str) -> Vec<ScorerOption> {
    const TABLE: &str = "reward[0].";
    // `of` has tables of its own; what stands in them is not a key of this one.
    let layer = Layer::from_value(&json!({"reward": [{"scorer": scorer}]}));
    let mut reader = Reader::new(Document::new([layer]));
    super::read(&mut reader.root());
    let option = |key: &Key| {
        let name = key.path.strip_prefix(TABLE)?;
        Some(ScorerOption {
            key: name.to_owned(),
            allowed: key.allowed.clone(),
            default: key.default.clone(),
            meaning: key.doc,
        })
    };
    reader.keys().filter_map(option).collect()
}
