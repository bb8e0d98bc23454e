//! JSON lines: one object a line.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read, Seek, SeekFrom},
    path::Path,
};

use serde_json::Value;

use super::{Places, Row, Rows, TasksetError, cannot_open, kind_of};

/// Longest line read, in bytes (64 MiB); a longer one is an error, so that a file without line ends cannot fill the
/// memory.
pub const LINE_LIMIT: u64 = 64 << 20;

pub(super) const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Opens a file of JSON lines.
///
/// # Errors
/// When it cannot be opened.
pub fn open(path: &Path) -> Result<Rows, TasksetError> {
    Ok(Box::new(lines_of(path)?))
}

pub(super) fn lines_of(path: &Path) -> Result<Lines<BufReader<File>>, TasksetError> {
    let file = File::open(path).map_err(|error| cannot_open(path, &error))?;
    Ok(Lines::new(&path.display().to_string(), BufReader::with_capacity(64 << 10, file)))
}

/// The rows of JSON lines; `name` is what messages call them. Blank lines are passed over but count as lines, a byte
/// order mark and carriage returns are dropped, and a missing line end after the last row is no fault.
pub fn rows(name: &str, text: impl BufRead + Send + 'static) -> Rows {
    Box::new(Lines::new(name, text))
}

pub(super) struct Lines<R> {
    name: String,
    text: R,
    line: Vec<u8>,
    number: u64,
    /// Bytes read before the line, and up to its end.
    start: u64,
    end: u64,
    limit: u64,
    failed: bool,
}

impl<R: BufRead> Iterator for Lines<R> {
    type Item = Result<Row, TasksetError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let row =
            self.read().map_err(|problem| TasksetError::Row { file: self.name.clone(), row: self.number, problem });
        self.failed = row.is_err();
        row.transpose()
    }
}

impl<R: BufRead + Seek + Send> Places for Lines<R> {
    fn place(&self) -> u64 {
        self.start
    }

    fn go(&mut self, place: u64, number: u64) -> Result<(), TasksetError> {
        self.text.seek(SeekFrom::Start(place)).map_err(|error| TasksetError::Row {
            file: self.name.clone(),
            row: number,
            problem: format!("cannot be read: {error}"),
        })?;
        (self.number, self.end) = (number - 1, place);
        Ok(())
    }
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(name: &str, text: R) -> Self {
        let (name, line) = (name.to_owned(), Vec::new());
        Self { name, text, line, number: 0, start: 0, end: 0, limit: LINE_LIMIT, failed: false }
    }

    fn read(&mut self) -> Result<Option<Row>, String> {
        loop {
            self.line.clear();
            self.number += 1;
            let read = (&mut self.text)
                .take(self.limit + 1)
                .read_until(b'\n', &mut self.line)
                .map_err(|error| format!("cannot be read: {error}"))?;
            if read == 0 {
                return Ok(None);
            }
            self.start = self.end;
            self.end += read as u64;
            if self.line.len() as u64 > self.limit {
                return Err(format!(
                    "the line is longer than {} MiB; is this a file with one JSON object a line?",
                    self.limit >> 20
                ));
            }
            let mut line = self.line.as_slice();
            if self.number == 1 {
                line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
            }
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            let value: Value = serde_json::from_slice(line).map_err(|error| {
                format!("not valid JSON at column {}: {}{}", error.column(), plain(&error), hint(line))
            })?;
            return match value {
                Value::Object(values) => Ok(Some(Row { number: self.number, values })),
                other => Err(format!("expected a JSON object, found {}", kind_of(&other))),
            };
        }
    }
}

/// What a line is rather than JSON, told by its first bytes.
pub(super) fn hint(line: &[u8]) -> &'static str {
    match line {
        [0x1f, 0x8b, ..] => "; the file is compressed with gzip, unpack it first",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "; the file is compressed with zstd, unpack it first",
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "; the file is in UTF-16, save it as UTF-8",
        [b'P', b'A', b'R', b'1', ..] => "; this is a Parquet file, give it the extension .parquet",
        [b'[', ..] => "; write one object a line, or call the file .json",
        _ => "",
    }
}

/// The parser's words without its own line and column.
pub(super) fn plain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &'static str) -> Vec<Result<(u64, Value), String>> {
        rows("rows.jsonl", text.as_bytes())
            .map(|row| row.map(|row| (row.number, Value::Object(row.values))).map_err(|error| error.to_string()))
            .collect()
    }

    #[track_caller]
    fn fails(text: &'static str, expected: &str) {
        let last = read(text).pop().and_then(Result::err).unwrap_or_default();
        assert!(last.contains(expected), "{last}");
    }

    #[test]
    fn odd_but_readable_files_are_read() {
        let a = |number: u64, value: i64| Ok((number, serde_json::json!({ "a": value })));
        assert_eq!(read("{\"a\":1}\n{\"a\":2}\n"), [a(1, 1), a(2, 2)]);
        assert_eq!(read("\u{feff}{\"a\":1}\r\n\r\n  \n{\"a\":2}"), [a(1, 1), a(4, 2)]);
        assert_eq!(read(""), []);
        assert_eq!(read("\n\n"), []);
    }

    #[test]
    fn a_broken_row_names_file_and_line_and_ends_the_reading() {
        fails("{\"a\":1}\n\n{\"a\":\n{\"a\":2}\n", "rows.jsonl:3: not valid JSON at column ");
        fails("[1]\n", "rows.jsonl:1: expected a JSON object, found a list");
        fails("[\n {\"a\": 1}\n]\n", "; write one object a line, or call the file .json");
        fails("PAR1\u{15}", "; this is a Parquet file, give it the extension .parquet");
        fails("{\"a\":1} {\"a\":2}\n", "rows.jsonl:1: not valid JSON");
        assert_eq!(read("{\"a\":1}\nx\n{\"a\":2}\n").len(), 2);
    }

    #[test]
    fn text_that_is_not_utf8_is_a_fault_of_its_row() {
        let last = rows("rows.jsonl", b"{\"a\":1}\n{\"a\":\"\xff\"}\n".as_slice()).last().and_then(Result::err);
        assert!(last.is_some_and(|error| error.to_string().starts_with("rows.jsonl:2: ")));
    }

    #[test]
    fn a_compressed_file_is_called_one() {
        let last = rows("rows.jsonl", [0x1f, 0x8b, 8, 0, 0].as_slice()).last().and_then(Result::err);
        assert!(last.is_some_and(|error| error.to_string().ends_with("compressed with gzip, unpack it first")));
    }

    #[test]
    fn a_line_without_end_is_given_up_at_the_limit() {
        let endless = BufReader::new(std::io::repeat(b'x'));
        let mut lines = Lines::new("rows.jsonl", endless);
        lines.limit = 1 << 20;
        let error = lines.next().and_then(Result::err).map(|error| error.to_string());
        assert_eq!(
            error.as_deref(),
            Some("rows.jsonl:1: the line is longer than 1 MiB; is this a file with one JSON object a line?")
        );
        assert!(lines.next().is_none());
    }
}
