//! Reading a block of configuration: typed getters that collect every fault instead of stopping at the first.

use std::{
    collections::BTreeMap,
    fmt::Display,
    ops::{Bound, RangeBounds},
    time::Duration,
};

use serde_json::{Map, Value};

use super::{
    fault::{Fault, Origin},
    layer::joined,
    nearest::{did_you_mean, nearest},
    node::{Content, Node, Table},
    record::{Record, Step},
    value::{FromValue, Shape, described, expected},
};

/// One block of a layered configuration while it is read. Each getter marks its key as known, checks type and bounds,
/// records faults with file, line and key, and falls back to the default, so that reading goes on.
///
/// A null, which the string "None" also is, unsets a key: the default applies, or nothing where nothing is allowed.
pub struct Section<'a> {
    pub(super) record: &'a mut Record,
    /// `None` where the block is absent.
    pub(super) table: Option<&'a Table>,
    /// Dotted key of the block; empty for the root.
    pub(super) path: String,
    /// Where the block stands.
    pub(super) at: Origin,
    pub(super) steps: Vec<Step>,
    pub(super) doc: &'static str,
}

/// What stands at a key.
enum Found<T> {
    Absent,
    Unset,
    /// Of a wrong type; the fault is recorded.
    Wrong,
    Is(T, Value),
}

impl<'a> Section<'a> {
    /// Describes the next key that is read, for `--help`.
    pub fn doc(&mut self, text: &'static str) -> &mut Self {
        self.doc = text;
        self
    }

    /// The key's value; `None` when absent or unset with "None".
    pub fn get<T: FromValue>(&mut self, key: &str) -> Option<T> {
        let found = self.find::<T>(key);
        self.settle(key, found, None, expected::<T>())
    }

    /// The key's value or the default.
    pub fn get_or<T: FromValue>(&mut self, key: &str, default: T) -> T {
        match self.find::<T>(key) {
            Found::Is(value, raw) => {
                self.keep::<T>(key, raw, Some(&default), expected::<T>());
                value
            }
            _ => {
                self.keep::<T>(key, default.to_value(), Some(&default), expected::<T>());
                default
            }
        }
    }

    /// The key's value, which must lie in the range, or the default.
    pub fn get_in<T: FromValue + PartialOrd + Display>(
        &mut self,
        key: &str,
        range: impl RangeBounds<T>,
        default: T,
    ) -> T {
        let allowed = bounded::<T>(&range);
        let found = self.find::<T>(key);
        match self.within(key, found, &range) {
            Found::Is(value, raw) => {
                self.keep(key, raw, Some(&default), allowed);
                value
            }
            _ => {
                self.keep(key, default.to_value(), Some(&default), allowed);
                default
            }
        }
    }

    /// The key's value, which must lie in the range; the default when absent, nothing when unset with "None".
    pub fn limit_in<T: FromValue + PartialOrd + Display>(
        &mut self,
        key: &str,
        range: impl RangeBounds<T>,
        default: Option<T>,
    ) -> Option<T> {
        let allowed = format!("{} or \"None\"", bounded::<T>(&range));
        let found = self.find::<T>(key);
        let found = self.within(key, found, &range);
        self.settle(key, found, default, allowed)
    }

    /// The key's value; a fault when it is absent.
    pub fn required<T: FromValue>(&mut self, key: &str) -> Option<T> {
        let found = self.find::<T>(key);
        if matches!(found, Found::Absent | Found::Unset) {
            let fault = Fault::new(self.nearby(key), self.dotted(key), "missing").expected(expected::<T>());
            self.record.faults.push(fault);
        }
        self.settle(key, found, None, expected::<T>())
    }

    /// Seconds above 0, whole or not; the default when absent, `None` when unset with "None".
    pub fn duration(&mut self, key: &str, default: Option<Duration>) -> Option<Duration> {
        let allowed = "seconds above 0";
        let found = match self.find::<f64>(key) {
            Found::Is(seconds, raw) => match Duration::try_from_secs_f64(seconds) {
                Ok(duration) if !duration.is_zero() => Found::Is(duration.as_secs_f64(), raw),
                _ => {
                    self.wrong(key, format!("out of bounds: {raw}"), allowed.to_owned());
                    Found::Wrong
                }
            },
            other => other,
        };
        let seconds =
            self.settle(key, found, default.map(|duration| duration.as_secs_f64()), format!("{allowed} or \"None\""));
        seconds.map(Duration::from_secs_f64)
    }

    /// The choice that the key names, or the default, which must be one of the choices.
    pub fn choose<T: Copy + PartialEq>(&mut self, key: &str, choices: &[(&str, T)], default: T) -> T {
        let names: Vec<&str> = choices.iter().map(|choice| choice.0).collect();
        let allowed = format!("one of {}", names.join(", "));
        let default_name = choices.iter().find(|choice| choice.1 == default).map(|choice| choice.0.to_owned());
        let found = match self.find::<String>(key) {
            Found::Is(name, raw) => match choices.iter().find(|choice| choice.0 == name) {
                Some(choice) => {
                    self.keep(key, raw, default_name.as_ref(), allowed);
                    return choice.1;
                }
                None => {
                    let fault = Fault::new(self.origin(key), self.dotted(key), format!("unknown choice `{name}`"))
                        .expected(allowed.clone());
                    let near: Vec<String> = nearest(&name, names).into_iter().take(1).map(str::to_owned).collect();
                    self.record.faults.push(Fault { hint: did_you_mean(&near), ..fault });
                    Found::Wrong
                }
            },
            other => other,
        };
        self.settle(key, found, default_name, allowed);
        default
    }

    /// The block below a key; an empty one where it is absent or null.
    pub fn child(&mut self, key: &str) -> Section<'_> {
        let path = self.dotted(key);
        self.record.blocks.insert(path.clone());
        let mut steps = self.steps.clone();
        steps.push(Step::Key(key.to_owned()));
        let at = self.origin(key);
        let table = match self.table.and_then(|table| table.get(key)) {
            Some(Node { content: Content::Table(table), .. }) => Some(table),
            Some(node) if !node.is_null() => {
                let fault = Fault::new(node.at.clone(), path.clone(), format!("not {}", described(&node.to_value())));
                self.record.faults.push(fault.expected("a table of keys"));
                None
            }
            _ => None,
        };
        Section { record: self.record, table, path, at, steps, doc: "" }
    }

    /// Keys of the user's own: everything below the key, as it is. Nulls stay.
    pub fn open(&mut self, key: &str) -> Map<String, Value> {
        match self.free(key, Shape::Open) {
            Some(Value::Object(map)) => map,
            _ => Map::new(),
        }
    }

    /// A map of strings with keys of the user's own, such as headers.
    pub fn strings(&mut self, key: &str) -> BTreeMap<String, String> {
        let mut strings = BTreeMap::new();
        if let Some(Value::Object(map)) = self.free(key, Shape::Map) {
            for (name, value) in map {
                match value {
                    Value::String(text) => {
                        strings.insert(name, text);
                    }
                    Value::Null => {}
                    other => {
                        let at = self.place(&[key, &name]);
                        let path = joined(&self.dotted(key), &name);
                        let fault = Fault::new(at, path, format!("wrong type: {}", described(&other)));
                        self.record.faults.push(fault.expected("a string"));
                    }
                }
            }
        }
        strings
    }

    /// Any value, checked by the caller with `fault`; the default when absent. Several words of a flag are a list.
    pub fn value(&mut self, key: &str, default: Value, allowed: &str) -> Value {
        let value = match self.node(key) {
            Some(node) => node.to_whole(),
            None => default.clone(),
        };
        let (path, at) = (self.dotted(key), self.origin(key));
        let doc = std::mem::take(&mut self.doc);
        self.record.keep(&path, &self.steps, key, Shape::Any, allowed.to_owned(), doc, default, value.clone(), at);
        value
    }

    /// All keys of this block that were not read yet, with their values: for a block that is partly the user's own.
    pub fn rest(&mut self) -> Map<String, Value> {
        let (path, steps) = (self.path.clone(), self.steps.clone());
        let unread: Vec<(String, Value)> = self
            .table
            .into_iter()
            .flatten()
            .filter(|(key, _)| !self.record.is_known(&joined(&path, key)))
            .map(|(key, node)| (key.clone(), node.to_value()))
            .collect();
        if let Some((_, parents)) = steps.split_last() {
            let last = path.rsplit('.').next().unwrap_or_default();
            let empty = Value::Object(Map::new());
            let (allowed, doc) = ("any key".to_owned(), std::mem::take(&mut self.doc));
            self.record.keep(&path, parents, last, Shape::Open, allowed, doc, empty.clone(), empty, Origin::Default);
            self.record.hide(&path);
        }
        for (key, value) in &unread {
            let (at, allowed) = (self.origin(key), "anything".to_owned());
            self.record.keep(&self.dotted(key), &steps, key, Shape::Any, allowed, "", Value::Null, value.clone(), at);
        }
        unread.into_iter().collect()
    }

    /// The text at a path below this block, if it is one; nothing is marked as known.
    #[must_use]
    pub fn text_at(&self, path: &[&str]) -> Option<String> {
        let (last, parents) = path.split_last()?;
        let mut table = self.table?;
        for key in parents {
            let Content::Table(inner) = &table.get(*key)?.content else { return None };
            table = inner;
        }
        table.get(*last)?.to_value().as_str().map(str::to_owned)
    }

    /// This whole block as it is, for a reader of another house: nulls stay, and several words of a flag are a list.
    pub fn whole(&mut self) -> Map<String, Value> {
        if let Some((_, parents)) = self.steps.clone().split_last() {
            let last = self.path.rsplit('.').next().unwrap_or_default();
            let empty = Value::Object(Map::new());
            let (allowed, doc) = ("any key".to_owned(), std::mem::take(&mut self.doc));
            let at = Origin::Default;
            self.record.keep(&self.path, parents, last, Shape::Open, allowed, doc, empty.clone(), empty, at);
            self.record.hide(&self.path);
        }
        self.accept_rest();
        self.table.into_iter().flatten().map(|(key, node)| (key.clone(), node.to_whole())).collect()
    }

    /// Shows what a whole block came to, key by key; tables without keys are shown as they are.
    pub fn resolve_whole(&mut self, value: &Value) {
        let steps = self.steps.clone();
        self.resolve_below(value, &mut Vec::new(), &steps);
    }

    fn resolve_below(&mut self, value: &Value, below: &mut Vec<String>, steps: &[Step]) {
        if let Value::Object(map) = value
            && !map.is_empty()
        {
            for (key, value) in map {
                below.push(key.clone());
                self.resolve_below(value, below, steps);
                below.pop();
            }
            return;
        }
        let Some((last, parents)) = below.split_last() else { return };
        let path = below.iter().fold(self.path.clone(), |path, key| joined(&path, key));
        let mut steps = steps.to_vec();
        steps.extend(parents.iter().cloned().map(Step::Key));
        let shape = match value {
            Value::Bool(_) => Shape::Bool,
            Value::Array(_) => Shape::List,
            Value::Object(_) => Shape::Open,
            Value::Null => Shape::Any,
            Value::Number(_) | Value::String(_) => Shape::One,
        };
        let keys: Vec<&str> = below.iter().map(String::as_str).collect();
        // A place that a table was merged into says nothing of the keys that were not given.
        let at = self.exact(&keys).map_or(Origin::Default, |node| node.at.clone());
        let (allowed, default) = ("anything".to_owned(), Value::Null);
        self.record.keep(&path, &steps, last, shape, allowed, "", default, value.clone(), at);
    }

    /// Records a fault at a path below this block, whose steps are keys and positions of lists; where nothing stands, at the
    /// nearest block above.
    pub fn fault_within(&mut self, path: &[String], problem: impl Into<String>) {
        let mut at = self.at.clone();
        let mut table = self.table;
        let mut list: Option<&[Node]> = None;
        let mut dotted = self.path.clone();
        for step in path {
            let position = step.parse::<usize>().ok().filter(|_| list.is_some());
            dotted = match position {
                Some(position) => format!("{dotted}[{position}]"),
                None => joined(&dotted, step),
            };
            let found = match (position, list, table) {
                (Some(position), Some(items), _) => items.get(position),
                (_, _, Some(table)) => table.get(step),
                _ => None,
            };
            (table, list) = (None, None);
            if let Some(node) = found {
                at = node.at.clone();
                match &node.content {
                    Content::Table(inner) => table = Some(inner),
                    Content::List(items) => list = Some(items),
                    Content::Scalar(_) | Content::Words(_) => {}
                }
            }
        }
        self.record.faults.push(Fault::new(at, dotted, problem));
    }

    /// What was typed for a flag at a path below this block, where that was read as something else than a text.
    #[must_use]
    pub fn typed_at(&self, path: &[String]) -> Option<String> {
        let keys: Vec<&str> = path.iter().map(String::as_str).collect();
        let Content::Words(words) = &self.exact(&keys)?.content else { return None };
        words.last().filter(|word| !word.value.is_string()).map(|word| word.text.clone())
    }

    /// Names a key below this block, as dotted, that another house reads: for `--help`.
    pub fn foresee(&mut self, dotted: &str, allowed: String, default: Value) {
        let path = format!("{}.{dotted}", self.path);
        let (parents, last) = dotted.rsplit_once('.').map_or(("", dotted), |(parents, last)| (parents, last));
        let mut steps = self.steps.clone();
        steps.extend(parents.split('.').filter(|key| !key.is_empty()).map(|key| Step::Key(key.to_owned())));
        let at = Origin::Default;
        self.record.keep(&path, &steps, last, Shape::Any, allowed, "", default.clone(), default, at);
    }

    fn exact(&self, keys: &[&str]) -> Option<&'a Node> {
        let (first, rest) = keys.split_first()?;
        rest.iter().try_fold(self.node(first)?, |node, key| match &node.content {
            Content::Table(table) => table.get(*key),
            _ => None,
        })
    }

    /// A list of blocks; `read` is called for each of them in order.
    pub fn list<T>(&mut self, key: &str, mut read: impl FnMut(&mut Section<'_>) -> T) -> Vec<T> {
        let path = self.dotted(key);
        let doc = std::mem::take(&mut self.doc);
        let node = self.node(key);
        let items: &[Node] = match node.map(|node| &node.content) {
            Some(Content::List(items)) => items,
            Some(_) if node.is_some_and(|node| !node.is_null()) => {
                let found = node.map(Node::to_value).unwrap_or_default();
                self.wrong(key, format!("wrong type: {}", described(&found)), "a list of tables".to_owned());
                &[]
            }
            _ => &[],
        };
        let (steps, at) = (self.steps.clone(), self.origin(key));
        let empty = Value::Array(Vec::new());
        self.record.keep(&path, &steps, key, Shape::List, "a list of tables".into(), doc, empty.clone(), empty, at);
        self.record.lists.insert(path.clone());
        let mut results = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let path = format!("{path}[{index}]");
            let table = if let Content::Table(table) = &item.content {
                Some(table)
            } else {
                let fault = Fault::new(item.at.clone(), path.clone(), "wrong type");
                self.record.faults.push(fault.expected("a table of keys"));
                None
            };
            self.record.blocks.insert(path.clone());
            let mut steps = steps.clone();
            steps.extend([Step::Key(key.to_owned()), Step::Item(index)]);
            let at = item.at.clone();
            results.push(read(&mut Section { record: self.record, table, path, at, steps, doc: "" }));
        }
        results
    }

    /// Records a fault at a key: what is wrong and what to change.
    pub fn fault(&mut self, key: &str, problem: impl Into<String>) {
        let fault = Fault::new(self.nearby(key), self.dotted(key), problem);
        self.record.faults.push(fault);
    }

    /// Records a fault at a key, with a hint such as "did you mean `a`?".
    pub fn fault_hint(&mut self, key: &str, problem: impl Into<String>, hint: impl Into<String>) {
        let fault = Fault::new(self.nearby(key), self.dotted(key), problem).hint(hint);
        self.record.faults.push(fault);
    }

    /// Records a fault at a key of the user's own below `key`, such as the name of a header.
    pub fn fault_below(&mut self, key: &str, name: &str, problem: impl Into<String>, hint: impl Into<String>) {
        let fault = Fault::new(self.place(&[key, name]), joined(&self.dotted(key), name), problem).hint(hint);
        self.record.faults.push(fault);
    }

    /// Records a warning at a key: what has no effect and why.
    pub fn warn(&mut self, key: &str, problem: impl Into<String>) {
        let fault = Fault::new(self.nearby(key), self.dotted(key), problem);
        self.record.warnings.push(fault);
    }

    /// Says where a key of another generation or tool went; given, it is a fault with this hint.
    pub fn moved(&mut self, key: &str, hint: &'static str) {
        let path = self.dotted(key);
        self.record.moved.insert(path, hint);
    }

    /// Accepts all keys of this block that are not read: for a block whose reader is not known.
    pub fn accept_rest(&mut self) {
        self.record.accepted.insert(self.path.clone());
    }

    /// Whether the key is given, be it with null.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.node(key).is_some()
    }

    /// Whether the key holds a list, or is given by a flag that takes one.
    #[must_use]
    pub fn is_list(&self, key: &str) -> bool {
        self.node(key).is_some_and(|node| match &node.content {
            Content::List(_) => true,
            Content::Words(words) => words.len() > 1,
            Content::Scalar(_) | Content::Table(_) => false,
        })
    }

    /// Whether the key is given with null or "None".
    #[must_use]
    pub fn is_unset(&self, key: &str) -> bool {
        self.node(key).is_some_and(Node::is_null)
    }

    /// Where the key's value stands.
    #[must_use]
    pub fn origin(&self, key: &str) -> Origin {
        self.node(key).map_or(Origin::Default, |node| node.at.clone())
    }

    /// The full dotted name of a key of this block.
    #[must_use]
    pub fn dotted(&self, key: &str) -> String {
        joined(&self.path, key)
    }

    /// Replaces what the resolved configuration shows for a key that was read.
    pub fn resolve(&mut self, key: &str, value: Value) {
        let path = self.dotted(key);
        self.record.resolve(&path, value);
    }

    /// Where the key stands, or else its block in a file: a place to add it.
    fn nearby(&self, key: &str) -> Origin {
        match (self.node(key), &self.at) {
            (Some(node), _) => node.at.clone(),
            (None, at @ Origin::File { .. }) => at.clone(),
            _ => Origin::Default,
        }
    }

    fn node(&self, key: &str) -> Option<&'a Node> {
        self.table.and_then(|table| table.get(key))
    }

    fn place(&self, keys: &[&str]) -> Origin {
        let mut table = self.table;
        let mut at = Origin::Default;
        for key in keys {
            let Some(node) = table.and_then(|table| table.get(*key)) else { break };
            at = node.at.clone();
            table = if let Content::Table(inner) = &node.content { Some(inner) } else { None };
        }
        at
    }

    fn wrong(&mut self, key: &str, problem: String, allowed: String) {
        let fault = Fault::new(self.origin(key), self.dotted(key), problem).expected(allowed);
        self.record.faults.push(fault);
    }

    /// Finds and types a value; a wrong type is recorded here.
    fn find<T: FromValue>(&mut self, key: &str) -> Found<T> {
        let Some(node) = self.node(key) else { return Found::Absent };
        if node.is_null() {
            return Found::Unset;
        }
        let mut candidates = vec![node.to_value()];
        if let Content::Words(words) = &node.content {
            let last_turn = words.last().map_or(0, |word| word.turn);
            if T::SHAPE == Shape::List {
                let typed = words.iter().map(|word| word.value.clone()).collect();
                let texts = words.iter().map(|word| Value::String(word.text.clone())).collect();
                candidates = vec![Value::Array(typed), Value::Array(texts)];
            } else if words.iter().filter(|word| word.turn == last_turn).count() > 1 {
                self.wrong(key, "more than one value".to_owned(), expected::<T>());
                return Found::Wrong;
            } else {
                candidates.extend(words.last().map(|word| Value::String(word.text.clone())));
            }
        }
        if let Some((value, raw)) = candidates.iter().find_map(|raw| Some((T::from_value(raw)?, raw.clone()))) {
            return Found::Is(value, raw);
        }
        match (T::SHAPE, &candidates[0]) {
            (Shape::List, Value::Array(items)) => self.wrong_items::<T>(key, node, items),
            (_, value) => self.wrong(key, format!("wrong type: {}", described(value)), expected::<T>()),
        }
        Found::Wrong
    }

    /// Records every item of a list that its type does not allow.
    fn wrong_items<T: FromValue>(&mut self, key: &str, node: &Node, items: &[Value]) {
        for (index, item) in items.iter().enumerate() {
            if T::from_value(&Value::Array(vec![item.clone()])).is_some() {
                continue;
            }
            let at = match &node.content {
                Content::List(nodes) => nodes.get(index).unwrap_or(node).at.clone(),
                _ => node.at.clone(),
            };
            let fault = Fault::new(at, format!("{}[{index}]", self.dotted(key)), format!("not allowed: {item}"));
            self.record.faults.push(fault.expected(expected::<T>()));
        }
    }

    fn within<T: FromValue + PartialOrd + Display>(
        &mut self,
        key: &str,
        found: Found<T>,
        range: &impl RangeBounds<T>,
    ) -> Found<T> {
        match found {
            Found::Is(value, _) if !range.contains(&value) => {
                self.wrong(key, format!("out of bounds: {value}"), bounded::<T>(range));
                Found::Wrong
            }
            other => other,
        }
    }

    /// Ends a getter for a value that may be absent: null unsets the default too.
    fn settle<T: FromValue>(&mut self, key: &str, found: Found<T>, default: Option<T>, allowed: String) -> Option<T> {
        let (value, raw) = match found {
            Found::Is(value, raw) => (Some(value), raw),
            Found::Unset => (None, Value::Null),
            Found::Absent | Found::Wrong => {
                let raw = default.as_ref().map_or(Value::Null, T::to_value);
                self.keep(key, raw, default.as_ref(), allowed);
                return default;
            }
        };
        self.keep(key, raw, default.as_ref(), allowed);
        value
    }

    fn keep<T: FromValue>(&mut self, key: &str, value: Value, default: Option<&T>, allowed: String) {
        let default = default.map_or(Value::Null, T::to_value);
        let (path, at) = (self.dotted(key), self.origin(key));
        let doc = std::mem::take(&mut self.doc);
        self.record.keep(&path, &self.steps, key, T::SHAPE, allowed, doc, default, value, at);
    }

    fn free(&mut self, key: &str, shape: Shape) -> Option<Value> {
        let node = self.node(key);
        let value = match node.map(|node| &node.content) {
            Some(Content::Table(_)) => node.map(Node::to_value),
            Some(_) if node.is_some_and(|node| !node.is_null()) => {
                let found = node.map(Node::to_value).unwrap_or_default();
                self.wrong(key, format!("wrong type: {}", described(&found)), "a table of keys".to_owned());
                None
            }
            _ => None,
        };
        let empty = Value::Object(Map::new());
        let (path, at) = (self.dotted(key), self.origin(key));
        let doc = std::mem::take(&mut self.doc);
        let kept = value.clone().unwrap_or_else(|| empty.clone());
        self.record.keep(&path, &self.steps, key, shape, "a table of keys".into(), doc, empty, kept, at);
        value
    }
}

/// Type and bounds in words.
fn bounded<T: FromValue + Display>(range: &impl RangeBounds<T>) -> String {
    let from = match range.start_bound() {
        Bound::Included(from) => format!(" from {from}"),
        Bound::Excluded(from) => format!(" above {from}"),
        Bound::Unbounded => String::new(),
    };
    let to = match range.end_bound() {
        Bound::Included(to) => format!(" to {to}"),
        Bound::Excluded(to) => format!(" below {to}"),
        Bound::Unbounded => String::new(),
    };
    // The bounds of the type give way to those of the key.
    let kind = if from.is_empty() && to.is_empty() {
        T::EXPECTED
    } else {
        T::EXPECTED.split(" from ").next().unwrap_or_default()
    };
    format!("{kind}{from}{to}")
}
