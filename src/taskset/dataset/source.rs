//! Where rows come from, and in which format.

use std::{
    io::Cursor,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::{Map, Value};

use super::{Places, Row, Rows, TasksetError, csv, json, jsonl, parquet};

/// Where rows come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file of JSON lines (`.jsonl`, `.ndjson`), JSON (`.json`: a list of objects, or objects one after the other), a table
    /// (`.csv`, `.tsv`) or Parquet (`.parquet`).
    File(PathBuf),
    /// JSONL that ships inside the program.
    Shipped {
        /// What messages call it.
        name: &'static str,
        /// Its lines.
        text: &'static str,
    },
    /// Rows that stand in a declaration.
    Rows {
        /// What messages call them.
        name: Arc<str>,
        /// The rows.
        rows: Arc<[Map<String, Value>]>,
    },
}

impl Source {
    /// What messages call it.
    pub fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Shipped { name, .. } => (*name).to_owned(),
            Self::Rows { name, .. } => name.to_string(),
        }
    }

    /// Opens it; the format is told by the file's extension.
    ///
    /// # Errors
    /// When the file cannot be opened or has another format.
    pub fn rows(&self) -> Result<Rows, TasksetError> {
        Ok(match self {
            Self::Shipped { name, text } => jsonl::rows(name, text.as_bytes()),
            Self::Rows { rows, .. } => Box::new(Inline { rows: Arc::clone(rows), next: 0 }),
            Self::File(path) => match Format::of(path)? {
                Format::Lines => jsonl::open(path)?,
                Format::Json => json::open(path)?,
                Format::Table(delimiter) => csv::open(path, delimiter)?,
                Format::Parquet => parquet::open(path)?,
            },
        })
    }

    /// Opens it for rows that are found again; `None` for a format that can only be read from its beginning.
    pub(super) fn places(&self) -> Result<Option<Box<dyn Places>>, TasksetError> {
        Ok(Some(match self {
            Self::Shipped { name, text } => Box::new(jsonl::Lines::new(name, Cursor::new(text.as_bytes()))),
            Self::Rows { rows, .. } => Box::new(Inline { rows: Arc::clone(rows), next: 0 }),
            Self::File(path) => match Format::of(path)? {
                Format::Lines => Box::new(jsonl::lines_of(path)?),
                Format::Json => Box::new(json::objects_of(path)?),
                Format::Table(delimiter) => Box::new(csv::table(path, delimiter)?),
                Format::Parquet => return Ok(None),
            },
        }))
    }
}

/// The format of a file.
#[derive(Clone, Copy)]
enum Format {
    /// JSON lines.
    Lines,
    /// JSON objects, in a list or not.
    Json,
    /// A table with this character between the cells.
    Table(u8),
    Parquet,
}

impl Format {
    /// Told by the extension, of a file that can be read.
    fn of(path: &Path) -> Result<Self, TasksetError> {
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
        Ok(match extension.to_ascii_lowercase().as_str() {
            "jsonl" | "ndjson" => Self::Lines,
            "json" => Self::Json,
            "csv" => Self::Table(b','),
            "tsv" => Self::Table(b'\t'),
            "parquet" => Self::Parquet,
            "gz" | "zst" | "bz2" | "xz" | "zip" => {
                return Err(TasksetError::Source(format!(
                    "cannot read {}: it is compressed; unpack it first",
                    path.display()
                )));
            }
            _ => {
                return Err(TasksetError::Source(format!(
                    "cannot read {}: expected a file that ends in .jsonl, .ndjson, .json, .csv, .tsv or .parquet",
                    path.display()
                )));
            }
        })
    }
}

/// Rows that are there already.
struct Inline {
    rows: Arc<[Map<String, Value>]>,
    next: usize,
}

impl Iterator for Inline {
    type Item = Result<Row, TasksetError>;

    fn next(&mut self) -> Option<Self::Item> {
        let values = self.rows.get(self.next)?.clone();
        self.next += 1;
        Some(Ok(Row { number: self.next as u64, values }))
    }
}

impl Places for Inline {
    fn place(&self) -> u64 {
        self.next as u64
    }

    fn go(&mut self, place: u64, _: u64) -> Result<(), TasksetError> {
        self.next = usize::try_from(place - 1).unwrap_or(usize::MAX);
        Ok(())
    }
}
