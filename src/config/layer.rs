//! Layers: TOML and JSON files with the place of every value, and their merge.

use std::{fs, path::Path, sync::Arc};

use serde_json::Value;
use toml::{Spanned, de::DeTable, de::DeValue};

use super::{
    fault::{Fault, Faults, Origin},
    json,
    node::{Content, Node, Table, unset},
    places::Places,
};

/// One source of configuration: a file, or the flags of a command line.
#[derive(Clone, Debug)]
pub struct Layer {
    pub(super) root: Node,
}

/// Layers merged into one tree; empty by default.
#[derive(Clone, Debug)]
pub struct Document {
    pub(super) root: Node,
}

impl Layer {
    /// Reads a `.toml` or `.json` file.
    ///
    /// # Errors
    /// All syntax faults of the file with their places, or one fault that says why it cannot be read.
    pub fn read(path: &Path) -> Result<Self, Faults> {
        let name = path.display().to_string();
        let start = Origin::File { file: Arc::from(name.as_str()), line: 1, column: 1 };
        let refused = |problem: String| Faults::from(Fault::new(start.clone(), "", problem));
        let bytes = fs::read(path).map_err(|error| refused(format!("cannot read the file: {error}")))?;
        let text = String::from_utf8(bytes).map_err(|_| refused("the file is not UTF-8 text".to_owned()))?;
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("toml") => Self::from_toml(&name, &text),
            Some("json") => Self::from_json(&name, &text),
            _ => Err(Fault::new(start, "", "unknown kind of file").expected("a name ending in .toml or .json").into()),
        }
    }

    /// Parses TOML; `name` stands for the file in faults and provenance.
    ///
    /// # Errors
    /// All syntax faults with their places.
    pub fn from_toml(name: &str, text: &str) -> Result<Self, Faults> {
        let places = Places::new(name, text);
        let (table, errors) = DeTable::parse_recoverable(text);
        let mut faults: Vec<Fault> = errors
            .iter()
            .map(|error| {
                let offset = error.span().map_or(0, |span| span.start);
                Fault::new(places.at(offset), "", format!("invalid TOML: {}", error.message()))
            })
            .collect();
        let root = if faults.is_empty() {
            let content = toml_table(table.get_ref(), "", &places, &mut faults);
            Node::new(places.at(0), content)
        } else {
            Node::new(Origin::Default, Content::Table(Table::new()))
        };
        Faults::new(faults).or(Self { root })
    }

    /// Parses JSON; `name` stands for the file in faults and provenance.
    ///
    /// # Errors
    /// The first syntax fault with its place, or that the file is not an object.
    pub fn from_json(name: &str, text: &str) -> Result<Self, Faults> {
        let places = Places::new(name, text);
        let root = json::parse(text, &places)?;
        match root.content {
            Content::Table(_) => Ok(Self { root }),
            _ => Err(Fault::new(root.at, "", "the file holds no JSON object").expected("an object of keys").into()),
        }
    }

    /// A layer that stands in no file and on no command line, such as a taskset's own preset; its values show as defaults.
    #[must_use]
    pub fn from_value(value: &Value) -> Self {
        Self { root: Node::from_value(value.clone(), &Origin::Default) }
    }

    /// Puts the whole layer below a dotted key.
    #[must_use]
    pub fn under(mut self, dotted: &str) -> Self {
        for key in dotted.rsplit('.').filter(|key| !key.is_empty()) {
            let at = self.root.at.clone();
            self.root = Node::new(at, Content::Table(Table::from_iter([(key.to_owned(), self.root)])));
        }
        self
    }

    /// Where the layer is the block of an env alone, which has a `taskset` of its own or names one with `id`, its keys beside
    /// `serve` stand below `env`.
    #[must_use]
    pub(super) fn env_in_place(mut self) -> Self {
        let Content::Table(table) = &mut self.root.content else { return self };
        let bare = |key: &str| table.contains_key(key) && !table.contains_key("env");
        let (has_taskset, has_id) = (bare("taskset"), bare("id"));
        if !has_taskset && !has_id {
            return self;
        }
        let serve = table.shift_remove("serve");
        if let Some(id) = table.shift_remove("id").filter(|_| !has_taskset) {
            // As older files have it: the env is called as its taskset.
            let taskset = Content::Table(Table::from_iter([("id".to_owned(), id.clone())]));
            table.insert("taskset".to_owned(), Node::new(id.key_at, taskset));
        }
        let mut layer = self.under("env");
        if let (Content::Table(table), Some(serve)) = (&mut layer.root.content, serve) {
            table.insert("serve".to_owned(), serve);
        }
        layer
    }

    /// Lays another layer on this one: tables merge, everything else is replaced.
    #[must_use]
    pub fn merge(mut self, over: Self) -> Self {
        self.root.merge(over.root);
        self
    }

    /// The plain values, "None" as null.
    #[must_use]
    pub fn to_value(&self) -> Value {
        self.root.to_value()
    }
}

impl Document {
    /// Merges layers, the later over the earlier.
    #[must_use]
    pub fn new(layers: impl IntoIterator<Item = Layer>) -> Self {
        let mut root = Node::new(Origin::Default, Content::Table(Table::new()));
        for layer in layers {
            root.merge(layer.root);
        }
        Self { root }
    }

    /// Only what stands at these dotted keys.
    pub(super) fn keep(&self, dotted: &[&str]) -> Self {
        let mut kept = Self::default();
        for path in dotted {
            let found = path.split('.').try_fold(&self.root, |node, key| match &node.content {
                Content::Table(table) => table.get(key),
                _ => None,
            });
            if let Some(node) = found {
                kept.root.merge(Layer { root: node.clone() }.under(path).root);
            }
        }
        kept
    }
}

impl Default for Document {
    fn default() -> Self {
        Self::new([])
    }
}

fn toml_table(table: &DeTable<'_>, path: &str, places: &Places<'_>, faults: &mut Vec<Fault>) -> Content {
    let mut entries: Vec<_> = table.iter().collect();
    // The parser sorts keys by name; open maps keep the user's order.
    entries.sort_by_key(|(key, _)| key.span().start);
    let nodes = entries.into_iter().map(|(key, value)| {
        let name = key.get_ref().to_string();
        let mut node = toml_value(value, &joined(path, &name), places, faults);
        node.key_at = places.at(key.span().start);
        if let Content::Scalar(value) = node.content {
            node.content = Content::Scalar(unset(value));
        }
        (name, node)
    });
    Content::Table(nodes.collect())
}

fn toml_value(value: &Spanned<DeValue<'_>>, path: &str, places: &Places<'_>, faults: &mut Vec<Fault>) -> Node {
    let at = places.at(value.span().start);
    let content = match value.get_ref() {
        DeValue::String(text) => Content::Scalar(Value::String(text.to_string())),
        DeValue::Boolean(flag) => Content::Scalar(Value::Bool(*flag)),
        DeValue::Datetime(datetime) => Content::Scalar(Value::String(datetime.to_string())),
        DeValue::Integer(integer) => {
            let number = i128::from_str_radix(integer.as_str(), integer.radix()).ok().and_then(|whole| {
                u64::try_from(whole).map(Value::from).or_else(|_| i64::try_from(whole).map(Value::from)).ok()
            });
            Content::Scalar(number.unwrap_or_else(|| {
                faults.push(Fault::new(at.clone(), path, "the number is too large").expected("at most 64 bits"));
                Value::Null
            }))
        }
        DeValue::Float(float) => {
            let number = float.as_str().parse().ok().and_then(serde_json::Number::from_f64);
            Content::Scalar(number.map_or_else(
                || {
                    faults.push(Fault::new(at.clone(), path, "not a finite number").expected("a finite number"));
                    Value::Null
                },
                Value::Number,
            ))
        }
        DeValue::Array(items) => Content::List(
            items
                .iter()
                .enumerate()
                .map(|(index, item)| toml_value(item, &format!("{path}[{index}]"), places, faults))
                .collect(),
        ),
        DeValue::Table(table) => toml_table(table, path, places, faults),
    };
    Node::new(at, content)
}

/// `path.key`, the key quoted where it is not a bare one.
pub(super) fn joined(path: &str, key: &str) -> String {
    let bare = !key.is_empty() && key.chars().all(|letter| letter.is_alphanumeric() || letter == '_' || letter == '-');
    let key = if bare { key.to_owned() } else { format!("{key:?}") };
    if path.is_empty() { key } else { format!("{path}.{key}") }
}
