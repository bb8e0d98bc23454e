//! The types that a key may hold.

use std::path::PathBuf;

use serde_json::Value;

/// How a key takes words from the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `true` when the flag stands alone.
    Bool,
    /// One word.
    One,
    /// One word, or `true` when the flag stands alone.
    Any,
    /// Several words, or the flag repeated.
    List,
    /// Keys of the user's own below it, taken as fields (`top-k` is `top_k`).
    Open,
    /// Keys of the user's own below it, taken letter by letter, such as header names.
    Map,
}

/// A type that a key may hold: `bool`, `i64`, `u32`, `u64`, `usize`, `f64`, `String`, `PathBuf`, lists of them.
pub trait FromValue: Sized {
    /// What is allowed, in words, for messages: "a whole number", "a list of strings".
    const EXPECTED: &'static str;

    /// The same for several of them, without "a list of".
    const EXPECTED_MANY: &'static str;

    /// How the command line gives it.
    const SHAPE: Shape = Shape::One;

    /// Reads the value; `None` if it has another type.
    fn from_value(value: &Value) -> Option<Self>;

    /// The value as it stands in a resolved configuration.
    fn to_value(&self) -> Value;
}

impl FromValue for bool {
    const EXPECTED: &'static str = "true or false";
    const EXPECTED_MANY: &'static str = "booleans";
    const SHAPE: Shape = Shape::Bool;

    fn from_value(value: &Value) -> Option<Self> {
        value.as_bool()
    }

    fn to_value(&self) -> Value {
        Value::from(*self)
    }
}

impl FromValue for i64 {
    const EXPECTED: &'static str = "a whole number";
    const EXPECTED_MANY: &'static str = "whole numbers";

    fn from_value(value: &Value) -> Option<Self> {
        value.as_i64()
    }

    fn to_value(&self) -> Value {
        Value::from(*self)
    }
}

impl FromValue for u64 {
    const EXPECTED: &'static str = "a whole number from 0";
    const EXPECTED_MANY: &'static str = "whole numbers from 0";

    fn from_value(value: &Value) -> Option<Self> {
        value.as_u64()
    }

    fn to_value(&self) -> Value {
        Value::from(*self)
    }
}

impl FromValue for u32 {
    const EXPECTED: &'static str = "a whole number from 0 to 4294967295";
    const EXPECTED_MANY: &'static str = "whole numbers from 0 to 4294967295";

    fn from_value(value: &Value) -> Option<Self> {
        value.as_u64().and_then(|number| Self::try_from(number).ok())
    }

    fn to_value(&self) -> Value {
        Value::from(*self)
    }
}

impl FromValue for usize {
    const EXPECTED: &'static str = "a whole number from 0";
    const EXPECTED_MANY: &'static str = "whole numbers from 0";

    fn from_value(value: &Value) -> Option<Self> {
        value.as_u64().and_then(|number| Self::try_from(number).ok())
    }

    fn to_value(&self) -> Value {
        Value::from(*self)
    }
}

impl FromValue for f64 {
    const EXPECTED: &'static str = "a number";
    const EXPECTED_MANY: &'static str = "numbers";

    fn from_value(value: &Value) -> Option<Self> {
        value.as_f64()
    }

    fn to_value(&self) -> Value {
        Value::from(*self)
    }
}

impl FromValue for String {
    const EXPECTED: &'static str = "a string";
    const EXPECTED_MANY: &'static str = "strings";

    fn from_value(value: &Value) -> Option<Self> {
        value.as_str().map(str::to_owned)
    }

    fn to_value(&self) -> Value {
        Value::from(self.as_str())
    }
}

impl FromValue for PathBuf {
    const EXPECTED: &'static str = "a path";
    const EXPECTED_MANY: &'static str = "paths";

    fn from_value(value: &Value) -> Option<Self> {
        value.as_str().filter(|text| !text.is_empty()).map(Self::from)
    }

    fn to_value(&self) -> Value {
        Value::from(self.to_string_lossy())
    }
}

impl<T: FromValue> FromValue for Vec<T> {
    // A constant cannot join strings of another constant; the face of messages is `expected` in the section.
    const EXPECTED: &'static str = T::EXPECTED_MANY;
    const EXPECTED_MANY: &'static str = "lists";
    const SHAPE: Shape = Shape::List;

    fn from_value(value: &Value) -> Option<Self> {
        value.as_array()?.iter().map(T::from_value).collect()
    }

    fn to_value(&self) -> Value {
        Value::Array(self.iter().map(T::to_value).collect())
    }
}

/// What a type allows, in words.
pub(super) fn expected<T: FromValue>() -> String {
    if T::SHAPE == Shape::List { format!("a list of {}", T::EXPECTED) } else { T::EXPECTED.to_owned() }
}

/// The type of a value in words. Strings are not repeated, they might be secret.
pub(super) fn described(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(_) => "a string".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a table".to_owned(),
    }
}
