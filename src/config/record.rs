//! What the reading of a document has met so far: keys, faults, warnings; and which keys nobody knows.

use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexMap;
use serde_json::Value;

use super::{
    fault::{Fault, Origin},
    layer::joined,
    nearest::{did_you_mean, last, meant},
    node::{Content, Node, Table},
    value::Shape,
};

/// A key that was read: its documentation, its value and where that came from.
#[derive(Clone, Debug)]
pub struct Key {
    /// Dotted name.
    pub path: String,
    /// How the command line gives it.
    pub shape: Shape,
    /// What is allowed, in words.
    pub allowed: String,
    /// One line for `--help`; may be empty.
    pub doc: &'static str,
    /// The default; null where there is none.
    pub default: Value,
    /// The final value.
    pub value: Value,
    /// Where the final value came from.
    pub origin: Origin,
    pub(super) steps: Vec<Step>,
    /// Left out of the dump: another spelling of a key that is in it.
    pub(super) hidden: bool,
}

/// A step from the root to a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Key(String),
    Item(usize),
}

#[derive(Debug, Default)]
pub(super) struct Record {
    pub faults: Vec<Fault>,
    pub warnings: Vec<Fault>,
    pub keys: IndexMap<String, Key>,
    pub blocks: BTreeSet<String>,
    pub lists: BTreeSet<String>,
    pub accepted: BTreeSet<String>,
    pub moved: BTreeMap<String, &'static str>,
}

impl Record {
    #[expect(clippy::too_many_arguments, reason = "one call per getter; the fields of one record")]
    pub(super) fn keep(
        &mut self,
        path: &str,
        parents: &[Step],
        key: &str,
        shape: Shape,
        allowed: String,
        doc: &'static str,
        default: Value,
        value: Value,
        origin: Origin,
    ) {
        let mut steps = parents.to_vec();
        steps.push(Step::Key(key.to_owned()));
        let entry = Key { path: path.to_owned(), shape, allowed, doc, default, value, origin, steps, hidden: false };
        self.keys.insert(path.to_owned(), entry);
    }

    pub(super) fn resolve(&mut self, path: &str, value: Value) {
        if let Some(key) = self.keys.get_mut(path) {
            key.value = value;
        }
    }

    pub(super) fn hide(&mut self, path: &str) {
        if let Some(key) = self.keys.get_mut(path) {
            key.hidden = true;
        }
    }

    pub(super) fn is_known(&self, path: &str) -> bool {
        self.keys.contains_key(path) || self.blocks.contains(path) || self.lists.contains(path)
    }

    /// Faults for the keys of a table that nobody read.
    pub(super) fn find_unknown(&self, table: &Table, path: &str, unknown: &mut Vec<Fault>) {
        if self.accepted.contains(path) {
            return;
        }
        for (key, node) in table {
            let dotted = joined(path, key);
            if self.lists.contains(&dotted) {
                if let Content::List(items) = &node.content {
                    for (index, item) in items.iter().enumerate() {
                        if let Content::Table(table) = &item.content {
                            self.find_unknown(table, &format!("{dotted}[{index}]"), unknown);
                        }
                    }
                }
            } else if self.blocks.contains(&dotted) {
                if let Content::Table(table) = &node.content {
                    self.find_unknown(table, &dotted, unknown);
                }
            } else if !self.keys.contains_key(&dotted) {
                unknown.push(self.unknown_key(path, key, dotted, node));
            }
        }
    }

    fn unknown_key(&self, path: &str, key: &str, dotted: String, node: &Node) -> Fault {
        let spelled = |key: &str| match node.key_at {
            Origin::Flag { .. } => format!("--{}", key.replace('_', "-")),
            _ => key.to_owned(),
        };
        let moved = self.moved.get(&dotted).map(|hint| (*hint).to_owned());
        let fault = Fault::new(node.key_at.clone(), dotted, "unknown key");
        if moved.is_some() {
            return Fault { hint: moved, ..fault };
        }
        let known = || self.keys.keys().chain(&self.blocks).filter(|known| !known.contains('['));
        let parents = path.split('[').next().unwrap_or_default();
        let names = self.keys.keys().chain(&self.blocks);
        let beside = names.filter(|known| parent(known) == path || parent(known) == parents).map(|known| last(known));
        let near = meant(key, known().map(String::as_str), beside, |near| joined(path, near));
        let near: Vec<String> = near.iter().map(|known| spelled(known)).collect();
        if let hint @ Some(_) = did_you_mean(&near) {
            return Fault { hint, ..fault };
        }
        let names = self.keys.keys().chain(&self.blocks).filter(|known| parent(known) == path);
        // The tables of a list are no keys.
        let mut beside: Vec<&str> = names.map(|known| last(known)).filter(|known| !known.contains('[')).collect();
        beside.sort_unstable();
        beside.dedup();
        if beside.is_empty() { fault } else { fault.expected(format!("one of {}", beside.join(", "))) }
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('.').map_or("", |(parent, _)| parent)
}
