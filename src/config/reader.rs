//! Reading a document from its root to the resolved configuration that results.

use serde_json::{Map, Value};

use super::{
    fault::{Fault, Faults, Origin},
    layer::Document,
    node::{Content, Node},
    record::{Key, Record, Step},
    section::Section,
};

/// Reads one document through sections and ends in all faults or a resolved configuration.
#[derive(Debug)]
pub struct Reader {
    root: Node,
    record: Record,
}

/// What a document came to: every known key with its final value.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The keys in the order of reading.
    pub keys: Vec<Key>,
    /// What was accepted and has no effect.
    pub warnings: Vec<Fault>,
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
