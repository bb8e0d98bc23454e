//! Rows of data files, read as they are asked for.
//!
//! Files are read on blocking threads, some rows at a time, so that no async worker waits for a disk. Nothing is held
//! but the rows of one such bite, and nothing is opened before the stream is polled.

pub mod hub;
pub mod jsonl;
pub mod parquet;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream};
use serde_json::{Map, Value};

use super::{TaskStream, TasksetError};
use crate::trace::{TaskData, TraceTask};

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

/// Where rows come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A JSONL (`.jsonl`, `.ndjson`, `.json`) or Parquet (`.parquet`) file.
    File(PathBuf),
    /// JSONL that ships inside the program.
    Shipped {
        /// What messages call it.
        name: &'static str,
        /// Its lines.
        text: &'static str,
    },
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

impl Source {
    /// What messages call it.
    pub fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Shipped { name, .. } => (*name).to_owned(),
        }
    }

    /// Opens it; the format is told by the file's extension.
    ///
    /// # Errors
    /// When the file cannot be opened or has another format.
    pub fn rows(&self) -> Result<Rows, TasksetError> {
        let path = match self {
            Self::Shipped { name, text } => return Ok(jsonl::rows(name, text.as_bytes())),
            Self::File(path) => path,
        };
        // Opening a pipe would wait for its writer, and a pipe cannot be read twice.
        if let Ok(metadata) = std::fs::metadata(path)
            && !metadata.is_file()
        {
            let what = if metadata.is_dir() { "a directory" } else { "not a regular file" };
            return Err(TasksetError::Source(format!(
                "cannot read {}: it is {what}; name a data file",
                path.display()
            )));
        }
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        match extension.to_ascii_lowercase().as_str() {
            "gz" | "zst" | "bz2" | "xz" | "zip" => {
                Err(TasksetError::Source(format!("cannot read {}: it is compressed; unpack it first", path.display())))
            }
            "jsonl" | "ndjson" | "json" => jsonl::open(path),
            "parquet" => parquet::open(path),
            _ => Err(TasksetError::Source(format!(
                "cannot read {}: expected a file that ends in .jsonl, .ndjson, .json or .parquet",
                path.display()
            ))),
        }
    }
}

/// Most rows read in one bite.
const BITE_ROWS: usize = 256;
/// A bite ends after this long, so that large rows do not pile up.
const BITE_TIME: Duration = Duration::from_millis(5);

/// The tasks of a taskset of class `kind` whose rows come from files, one after the other. `locate` finds them when the
/// stream is first polled, on a blocking thread; `convert` makes the row of the taskset or says what is wrong with it.
/// The position (`idx`) and the identity are set here. Ends after the first error; files without a row are one.
pub fn tasks(
    kind: &'static str,
    locate: impl FnOnce() -> Result<Vec<Source>, TasksetError> + Send + 'static,
    convert: impl Fn(&Row) -> Result<TaskData, String> + Send + Sync + 'static,
) -> TaskStream {
    let convert = Arc::new(convert);
    let sources = stream::once(async move { blocking(locate).await.and_then(|located| located) });
    sources
        .flat_map(move |located| match located {
            Ok(sources) => bites(kind, sources, Arc::clone(&convert)),
            Err(error) => stream::iter([Err(error)]).boxed(),
        })
        .boxed()
}

fn bites(
    kind: &'static str,
    sources: Vec<Source>,
    convert: Arc<impl Fn(&Row) -> Result<TaskData, String> + Send + Sync + 'static>,
) -> TaskStream {
    let names = sources.iter().map(Source::name).collect::<Vec<_>>().join(", ");
    let reader = Reader { kind, names, sources: sources.into_iter(), current: None, convert, position: 0, bite: 1 };
    stream::unfold(Some(reader), |reader| async move {
        let mut reader = reader?;
        match blocking(move || (reader.bite(), reader)).await {
            Ok((Bite { tasks, done }, reader)) => Some((stream::iter(tasks), (!done).then_some(reader))),
            Err(error) => Some((stream::iter(vec![Err(error)]), None)),
        }
    })
    .flatten()
    .boxed()
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, TasksetError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| TasksetError::Source(format!("reading the data was cut short: {error}")))
}

struct Reader<F> {
    kind: &'static str,
    /// What messages call all sources together.
    names: String,
    sources: std::vec::IntoIter<Source>,
    current: Option<(String, Rows)>,
    convert: Arc<F>,
    position: u64,
    /// Rows of the next bite: few at first, so that the first task comes at once.
    bite: usize,
}

struct Bite {
    tasks: Vec<Result<Arc<TraceTask>, TasksetError>>,
    done: bool,
}

impl<F: Fn(&Row) -> Result<TaskData, String>> Reader<F> {
    fn bite(&mut self) -> Bite {
        let begun = Instant::now();
        let mut tasks = Vec::with_capacity(self.bite);
        while tasks.len() < self.bite && (tasks.is_empty() || begun.elapsed() < BITE_TIME) {
            match self.next() {
                None => {
                    if self.position == 0 {
                        tasks.push(Err(TasksetError::Source(format!("there are no rows in {}", self.names))));
                    }
                    return Bite { tasks, done: true };
                }
                Some(Err(error)) => {
                    tasks.push(Err(error));
                    return Bite { tasks, done: true };
                }
                Some(Ok(task)) => tasks.push(Ok(Arc::new(task))),
            }
        }
        self.bite = (self.bite * 2).min(BITE_ROWS);
        Bite { tasks, done: false }
    }

    fn next(&mut self) -> Option<Result<TraceTask, TasksetError>> {
        loop {
            let Some((name, rows)) = &mut self.current else {
                let source = self.sources.next()?;
                match source.rows() {
                    Ok(rows) => self.current = Some((source.name(), rows)),
                    Err(error) => return Some(Err(error)),
                }
                continue;
            };
            let row = match rows.next() {
                Some(Ok(row)) => row,
                Some(Err(error)) => return Some(Err(error)),
                None => {
                    self.current = None;
                    continue;
                }
            };
            return Some(match (self.convert)(&row) {
                Ok(mut data) => {
                    data.idx = Some(self.position);
                    self.position += 1;
                    Ok(TraceTask::new(self.kind, data))
                }
                Err(problem) => Err(TasksetError::Row { file: name.clone(), row: row.number, problem }),
            });
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
