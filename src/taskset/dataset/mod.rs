//! Rows of data files, read as they are asked for.
//!
//! Files are read on blocking threads, some rows at a time, so that no async worker waits for a disk. Nothing is held
//! but the rows of one such bite, and nothing is opened before the stream is polled.

pub mod csv;
pub mod hub;
pub mod json;
pub mod jsonl;
mod order;
pub mod parquet;
mod source;
mod stream;
mod text;

use std::{path::Path, sync::Arc};

use serde_json::{Map, Value};

pub use order::{Look, Order};
pub use source::Source;
pub use stream::{tasks, tasks_of};

use super::TasksetError;

/// One row of a data file.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its number, from 1; in a text file the line.
    pub number: u64,
    /// Its columns.
    pub values: Map<String, Value>,
}

/// Rows as they are read, blocking; ends after the first error.
pub type Rows = Box<dyn Iterator<Item = Result<Row, TasksetError>> + Send>;

/// Rows that can be found again.
trait Places: Iterator<Item = Result<Row, TasksetError>> + Send {
    /// Where the row is that came last.
    fn place(&self) -> u64;

    /// Makes the row of this place and number the next one.
    fn go(&mut self, place: u64, number: u64) -> Result<(), TasksetError>;
}

/// Rows of one or more sources, blocking; ends after the first error.
pub struct Table {
    /// What messages call all of it.
    pub name: String,
    /// The rows, each with the name of its own source.
    pub rows: NamedRows,
}

/// Rows with the names of their sources.
pub type NamedRows = Box<dyn Iterator<Item = Result<(Arc<str>, Row), TasksetError>> + Send>;

impl Table {
    /// The rows of several sources, one after the other. Each is opened when its first row is asked for.
    pub fn of(sources: Vec<Source>) -> Self {
        Self::ordered(sources, Order::default())
    }

    /// A selection of the rows of several sources. Nothing is opened before the first row is asked for.
    pub fn ordered(sources: Vec<Source>, order: Order) -> Self {
        let name = sources.iter().map(Source::name).collect::<Vec<_>>().join(", ");
        Self { name, rows: order.rows(sources) }
    }
}

impl Row {
    /// A text column.
    ///
    /// # Errors
    /// When it is missing or not text, in words that follow the file and row.
    pub fn text(&self, column: &str) -> Result<&str, String> {
        match self.values.get(column) {
            Some(Value::String(text)) => Ok(text),
            Some(other) => Err(format!("`{column}` must be text, found {}", kind_of(other))),
            None => {
                let found: Vec<&str> = self.values.keys().map(String::as_str).collect();
                Err(format!("`{column}` is missing; the row has {}", found.join(", ")))
            }
        }
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn cannot_open(path: &Path, error: &std::io::Error) -> TasksetError {
    TasksetError::Source(format!("cannot open {}: {error}; check the path", path.display()))
}
