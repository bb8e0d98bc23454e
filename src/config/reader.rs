//! The state of reading a document: known keys, faults, warnings, and the resolved configuration that results.

use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexMap;
use serde_json::{Map, Value};

use super::{
    fault::{Fault, Faults, Origin},
    layer::{Document, joined},
    nearest,
    node::{Content, Node, Table},
    section::Section,
    value::Shape,
};

/// Reads one document through sections and ends in all faults or a resolved configuration.
#[derive(Debug)]
pub struct Reader {
    root: Node,
    record: Record,
}

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

/// What a document came to: every known key with its final value.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The keys in the order of reading.
    pub keys: Vec<Key>,
    /// What was accepted and has no effect.
    pub warnings: Vec<Fault>,
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

impl Reader {
    /// Starts on a document.
    #[must_use]
    pub fn new(document: Document) -> Self {
        Self { root: document.root, record: Record::default() }
    }

    /// The whole document as a block.
    pub fn root(&mut self) -> Section<'_> {
        let table = if let Content::Table(table) = &self.root.content { Some(table) } else { None };
        Section {
            record: &mut self.record,
            table,
            path: String::new(),
            at: Origin::Default,
            steps: Vec::new(),
            doc: "",
        }
    }

    /// Ends the reading: keys that nobody read are faults too.
    ///
    /// # Errors
    /// All faults.
    pub fn finish(mut self) -> Result<Resolved, Faults> {
        let mut unknown = Vec::new();
        if let Content::Table(table) = &self.root.content {
            self.record.find_unknown(table, "", &mut unknown);
        }
        self.record.faults.append(&mut unknown);
        let Record { faults, warnings, keys, .. } = self.record;
        let mut warnings = warnings;
        warnings.sort();
        warnings.dedup();
        Faults::new(faults).or(Resolved { keys: keys.into_values().collect(), warnings })
    }

    /// The keys that were read so far, faults or not: what a command line may set.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.record.keys.values()
    }
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

    fn find_unknown(&self, table: &Table, path: &str, unknown: &mut Vec<Fault>) {
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
        let (parents, name) = (path.split('[').next().unwrap_or_default(), key.replace('-', "_"));
        // The same name in another block first, then a slip in this block, then a slip in another one.
        let elsewhere: Vec<&String> = known().filter(|known| last(known) == name).collect();
        let beside = nearest(
            key,
            self.keys
                .keys()
                .chain(&self.blocks)
                .filter(|known| parent(known) == path || parent(known) == parents)
                .map(|known| last(known)),
        );
        let near: Vec<String> = if !elsewhere.is_empty() {
            elsewhere.iter().take(3).map(|known| spelled(known)).collect()
        } else if let Some(near) = beside.first() {
            vec![spelled(&joined(path, near))]
        } else {
            let far = nearest(key, known().map(|known| last(known)));
            let found = far.first().and_then(|near| known().find(|known| last(known) == *near));
            found.map(|known| spelled(known)).into_iter().collect()
        };
        if near.is_empty() {
            let mut beside: Vec<&str> =
                known().filter(|known| parent(known) == path).map(|known| last(known)).collect();
            beside.sort_unstable();
            return if beside.is_empty() { fault } else { fault.expected(format!("one of {}", beside.join(", "))) };
        }
        fault.hint(format!("did you mean `{}`?", near.join("` or `")))
    }
}

fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

fn parent(path: &str) -> &str {
    path.rsplit_once('.').map_or("", |(parent, _)| parent)
}

impl Resolved {
    /// The resolved configuration as nested JSON, nulls included, in the order of reading.
    #[must_use]
    pub fn dump(&self) -> Value {
        let mut root = Value::Object(Map::new());
        for key in self.keys.iter().filter(|key| !key.hidden) {
            place(&mut root, &key.steps, key.value.clone());
        }
        root
    }

    /// The key of this dotted name.
    #[must_use]
    pub fn key(&self, path: &str) -> Option<&Key> {
        self.keys.iter().find(|key| key.path == path)
    }

    /// Replaces the value of a known key, such as a name that is generated when the run starts.
    pub fn set(&mut self, path: &str, value: Value) {
        if let Some(key) = self.keys.iter_mut().find(|key| key.path == path) {
            key.value = value;
        }
    }
}

fn place(target: &mut Value, steps: &[Step], value: Value) {
    let Some((step, rest)) = steps.split_first() else {
        *target = value;
        return;
    };
    match step {
        Step::Key(key) => {
            if !target.is_object() {
                *target = Value::Object(Map::new());
            }
            if let Value::Object(map) = target {
                place(map.entry(key.clone()).or_insert(Value::Null), rest, value);
            }
        }
        Step::Item(index) => {
            if !target.is_array() {
                *target = Value::Array(Vec::new());
            }
            if let Value::Array(items) = target {
                if items.len() <= *index {
                    items.resize(index + 1, Value::Null);
                }
                place(&mut items[*index], rest, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::Layer;

    fn read(text: &str) -> Result<Value, String> {
        let layer = Layer::from_toml("a.toml", text).map_err(|faults| faults.to_string())?;
        let mut reader = Reader::new(Document::new([layer]));
        let mut root = reader.root();
        root.doc("model turns").get_in("turns", 1..=5_u64, 2);
        root.limit_in("tokens", 1.., None::<u64>);
        root.choose("mode", &[("fast", 1), ("slow", 2)], 1);
        let mut inner = root.child("inner");
        inner.get_or("names", vec!["a".to_owned()]);
        inner.duration("wait", Some(Duration::from_secs(3)));
        inner.strings("headers");
        inner.list("rules", |rule| rule.get::<u32>("budget"));
        reader.finish().map(|resolved| resolved.dump()).map_err(|faults| faults.to_string())
    }

    #[test]
    fn all_faults_of_a_file_come_at_once_in_order_with_their_places() {
        let text = "turns = 9\nmode = \"fsat\"\nturn = 1\n[inner]\nnames = [1]\nwait = -1\nhedaers = {}\ntokens = 3\n\
                    rules = [{ budget = \"x\", bugdet = 1 }]\n";
        let expected = [
            "a.toml:1:9: turns: out of bounds: 9; expected a whole number from 1 to 5",
            "a.toml:2:8: mode: unknown choice `fsat`; expected one of fast, slow; did you mean `fast`?",
            "a.toml:3:1: turn: unknown key; did you mean `turns`?",
            "a.toml:5:10: inner.names[0]: not allowed: 1; expected a list of strings",
            "a.toml:6:8: inner.wait: out of bounds: -1; expected seconds above 0",
            "a.toml:7:1: inner.hedaers: unknown key; did you mean `inner.headers`?",
            "a.toml:8:1: inner.tokens: unknown key; did you mean `tokens`?",
            "a.toml:9:21: inner.rules[0].budget: wrong type: a string; expected a whole number from 0 to 4294967295",
            "a.toml:9:26: inner.rules[0].bugdet: unknown key; did you mean `inner.rules[0].budget`?",
        ];
        assert_eq!(read(text).unwrap_err(), expected.join("\n"));
    }

    #[test]
    fn the_dump_holds_every_key_with_defaults_and_nulls() {
        let dump =
            read("turns = \"None\"\n[inner]\nwait = 2\nheaders = { \"X-Team.a\" = \"b\" }\nrules = [{}]").unwrap();
        let expected = serde_json::json!({
            "turns": 2, "tokens": null, "mode": "fast",
            "inner": {"names": ["a"], "wait": 2, "headers": {"X-Team.a": "b"}, "rules": [{"budget": null}]},
        });
        assert_eq!(dump, expected);
    }

    #[test]
    fn every_syntax_fault_of_a_file_is_located() {
        let faults = Layer::from_toml("b.toml", "a = \n[x\nc = 1 2\n").unwrap_err();
        assert!(faults.len() >= 2, "{faults}");
        assert!(faults.to_string().starts_with("b.toml:1:"), "{faults}");
        let fault = Layer::from_json("b.json", "{\n  \"a\": 1,\n  \"a\": 2\n}").unwrap_err().to_string();
        assert_eq!(fault, "b.json:3:3: invalid JSON: the key `a` is given twice");
    }
}
