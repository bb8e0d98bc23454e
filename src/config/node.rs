//! A tree of values in which every value knows where it came from.

use indexmap::IndexMap;
use serde_json::{Map, Value};

use super::fault::Origin;

/// A table's entries in the order of the source.
pub(crate) type Table = IndexMap<String, Node>;

/// A value and its place.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Where the key stands: for faults about the key itself.
    pub key_at: Origin,
    /// Where the value stands.
    pub at: Origin,
    pub content: Content,
}

#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Null, boolean, number or string.
    Scalar(Value),
    List(Vec<Node>),
    Table(Table),
    /// What stood behind a flag; whether it is a list or one value is for the reader of the key to say.
    Words(Vec<Word>),
}

/// One word of the command line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Word {
    /// As typed.
    pub text: String,
    /// Typed as JSON or TOML where it parses, else a string.
    pub value: Value,
    /// Which use of the flag it belongs to.
    pub turn: usize,
}

impl Node {
    pub(crate) fn new(at: Origin, content: Content) -> Self {
        Self { key_at: at.clone(), at, content }
    }

    /// A tree that stands in one place as a whole, such as the JSON of a flag.
    pub(crate) fn from_value(value: Value, at: &Origin) -> Self {
        let content = match value {
            Value::Array(items) => Content::List(items.into_iter().map(|item| Self::from_value(item, at)).collect()),
            Value::Object(entries) => Content::Table(
                entries.into_iter().map(|(key, value)| (key, Self::from_value(unset(value), at))).collect(),
            ),
            scalar => Content::Scalar(scalar),
        };
        Self::new(at.clone(), content)
    }

    /// The plain value; several words are the last one.
    pub(crate) fn to_value(&self) -> Value {
        match &self.content {
            Content::Scalar(value) => value.clone(),
            Content::List(items) => Value::Array(items.iter().map(Self::to_value).collect()),
            Content::Table(table) => {
                Value::Object(table.iter().map(|(key, node)| (key.clone(), node.to_value())).collect::<Map<_, _>>())
            }
            Content::Words(words) => words.last().map_or(Value::Null, |word| word.value.clone()),
        }
    }

    /// The plain value as a reader takes it that does not know its types: several words are a list.
    pub(crate) fn to_whole(&self) -> Value {
        match &self.content {
            Content::Table(table) => {
                Value::Object(table.iter().map(|(key, node)| (key.clone(), node.to_whole())).collect::<Map<_, _>>())
            }
            Content::Words(words) => {
                // "None" unsets what stands before it; "null" may be a name, as that of a harness is.
                let from = words.iter().rposition(|word| word.text == "None").map_or(0, |none| none + 1);
                let value = |word: &Word| match &word.value {
                    Value::Null => Value::String(word.text.clone()),
                    value => value.clone(),
                };
                match &words[from..] {
                    [] => Value::Null,
                    [word] => value(word),
                    several => several.iter().map(value).collect(),
                }
            }
            Content::Scalar(_) | Content::List(_) => self.to_value(),
        }
    }

    pub(crate) fn is_null(&self) -> bool {
        match &self.content {
            Content::Scalar(value) => value.is_null(),
            Content::Words(words) => words.last().is_some_and(|word| word.value.is_null()),
            Content::List(_) | Content::Table(_) => false,
        }
    }

    /// Lays `over` on this tree: tables merge, everything else is replaced.
    pub(crate) fn merge(&mut self, over: Self) {
        match (&mut self.content, over.content) {
            (Content::Table(below), Content::Table(above)) => {
                for (key, node) in above {
                    match below.get_mut(&key) {
                        Some(known) => known.merge(node),
                        None => {
                            below.insert(key, node);
                        }
                    }
                }
            }
            (content, above) => *content = above,
        }
        self.key_at = over.key_at;
        self.at = over.at;
    }
}

/// The string "None" is null: TOML has no word for it.
pub(crate) fn unset(value: Value) -> Value {
    if value.as_str() == Some("None") { Value::Null } else { value }
}
