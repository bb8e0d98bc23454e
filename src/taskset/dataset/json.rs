//! JSON files: one list of objects, or objects one after the other.

use std::{
    fs::File,
    io::{BufRead, BufReader, Seek},
    path::Path,
};

use serde_json::Value;

use super::{
    Places, Row, Rows, TasksetError, cannot_open,
    jsonl::{BYTE_ORDER_MARK, LINE_LIMIT, hint, plain},
    kind_of,
    text::Text,
};

/// Opens a file that holds a list of objects, or objects one after the other, however they are broken into lines. A row's
/// number is the line where its object begins; only one object is in memory.
///
/// # Errors
/// When it cannot be opened.
pub fn open(path: &Path) -> Result<Rows, TasksetError> {
    Ok(Box::new(objects_of(path)?))
}

pub(super) fn objects_of(path: &Path) -> Result<Objects<BufReader<File>>, TasksetError> {
    let file = File::open(path).map_err(|error| cannot_open(path, &error))?;
    Ok(Objects::new(&path.display().to_string(), BufReader::with_capacity(64 << 10, file)))
}

/// The objects of a text.
pub(super) struct Objects<R> {
    name: String,
    text: Text<R>,
    stage: Stage,
    /// The value that was read last, and where it begins.
    value: Vec<u8>,
    place: u64,
    failed: bool,
}

/// Where in the file the reading is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Start,
    /// Before an object of a list, or its end.
    List,
    /// Behind an object of a list.
    Comma,
    /// Between objects of a file that is no list.
    Bare,
    /// Behind a list.
    End,
}

/// A problem, with its line.
type Problem = (u64, String);

impl<R: BufRead> Objects<R> {
    fn new(name: &str, text: R) -> Self {
        let (name, text) = (name.to_owned(), Text::new(text));
        Self { name, text, stage: Stage::Start, value: Vec::new(), place: 0, failed: false }
    }

    fn read(&mut self) -> Result<Option<Row>, Problem> {
        loop {
            let Some(byte) = self.visible()? else {
                let open = matches!(self.stage, Stage::List | Stage::Comma);
                return if open { Err(self.here("the list has no end; is the file whole?")) } else { Ok(None) };
            };
            match (self.stage, byte) {
                (Stage::Start, b'[') => self.go_on(Stage::List)?,
                (Stage::Start, _) => self.stage = Stage::Bare,
                (Stage::List | Stage::Comma, b']') => self.go_on(Stage::End)?,
                (Stage::Comma, b',') => self.go_on(Stage::List)?,
                (Stage::Comma, _) => return Err(self.here("there is no comma before this object of the list")),
                (Stage::End, _) => return Err(self.here("more follows the list")),
                (Stage::List | Stage::Bare, _) => return self.row().map(Some),
            }
        }
    }

    /// The row whose value begins here.
    fn row(&mut self) -> Result<Row, Problem> {
        self.place = self.text.byte;
        let number = self.text.line;
        self.take()?;
        if self.stage == Stage::List {
            self.stage = Stage::Comma;
        }
        let value: Value = serde_json::from_slice(&self.value).map_err(|error| {
            let line = number + (error.line().max(1) as u64 - 1);
            let problem =
                format!("not valid JSON at column {}: {}{}", error.column(), plain(&error), hint(&self.value));
            (line, problem)
        })?;
        match value {
            Value::Object(values) => Ok(Row { number, values }),
            other => Err((number, format!("expected a JSON object, found {}", kind_of(&other)))),
        }
    }

    /// Takes the bytes of one value: of an object up to the brace that closes it, of anything else up to a space, comma or
    /// bracket.
    fn take(&mut self) -> Result<(), Problem> {
        let begun = self.text.line;
        self.value.clear();
        let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
        loop {
            if quoted && !escaped {
                let plain = |byte| !b"\"\\\r\n".contains(&byte);
                self.text
                    .take_while(&mut self.value, plain)
                    .map_err(|error| (begun, format!("cannot be read: {error}")))?;
            }
            let Some(byte) = self.peek()? else { return Ok(()) };
            let between = byte.is_ascii_whitespace() || byte == b',' || byte == b']';
            if !quoted && depth == 0 && between && !self.value.is_empty() {
                return Ok(());
            }
            self.value.push(byte);
            self.step()?;
            match byte {
                _ if escaped => escaped = false,
                b'\\' if quoted => escaped = true,
                b'"' => quoted = !quoted,
                _ if quoted => {}
                b'{' | b'[' => depth += 1,
                b'}' | b']' => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        return Ok(());
                    }
                }
                _ => {}
            }
            if self.value.len() as u64 > LINE_LIMIT {
                return Err((begun, format!("the object that begins here is longer than {} MiB", LINE_LIMIT >> 20)));
            }
        }
    }

    /// The next byte that is no white space.
    fn visible(&mut self) -> Result<Option<u8>, Problem> {
        if self.stage == Stage::Start && self.text.byte == 0 {
            let start = self.text.buffer().map_err(|error| (1, format!("cannot be read: {error}")))?;
            if start.starts_with(BYTE_ORDER_MARK) {
                self.text.pass(BYTE_ORDER_MARK.len());
            }
        }
        loop {
            match self.peek()? {
                Some(byte) if byte.is_ascii_whitespace() => self.step()?,
                other => return Ok(other),
            }
        }
    }

    fn go_on(&mut self, stage: Stage) -> Result<(), Problem> {
        self.stage = stage;
        self.step()
    }

    fn peek(&mut self) -> Result<Option<u8>, Problem> {
        let line = self.text.line;
        self.text.peek().map_err(|error| (line, format!("cannot be read: {error}")))
    }

    fn step(&mut self) -> Result<(), Problem> {
        let line = self.text.line;
        self.text.next().map(drop).map_err(|error| (line, format!("cannot be read: {error}")))
    }

    fn here(&self, problem: &str) -> Problem {
        (self.text.line, problem.to_owned())
    }
}

impl<R: BufRead> Iterator for Objects<R> {
    type Item = Result<Row, TasksetError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let row = self.read().map_err(|(row, problem)| TasksetError::Row { file: self.name.clone(), row, problem });
        self.failed = row.is_err();
        row.transpose()
    }
}

impl<R: BufRead + Seek + Send> Places for Objects<R> {
    fn place(&self) -> u64 {
        self.place
    }

    fn go(&mut self, place: u64, number: u64) -> Result<(), TasksetError> {
        // What stands before the row does not matter any more.
        self.stage = Stage::Bare;
        self.text.go(place, number).map_err(|error| TasksetError::Row {
            file: self.name.clone(),
            row: number,
            problem: format!("cannot be read: {error}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Vec<Result<(u64, Value), String>> {
        Objects::new("rows.json", text.as_bytes())
            .map(|row| row.map(|row| (row.number, Value::Object(row.values))).map_err(|error| error.to_string()))
            .collect()
    }

    #[track_caller]
    fn fails(text: &str, expected: &str) {
        let last = read(text).pop().and_then(Result::err).unwrap_or_default();
        assert!(last.contains(expected), "{last}");
    }

    #[test]
    fn a_list_and_objects_in_any_lines_are_read() {
        let rows = [Ok((2, json!({"a": "}]\"{", "b": [{}]}))), Ok((4, json!({"a": 2})))];
        assert_eq!(read("\u{feff}[\r\n {\"a\": \"}]\\\"{\",\n\"b\": [{}]},\n{\"a\": 2}\n]\n"), rows);
        assert_eq!(read("\n{\"a\": \"}]\\\"{\",\n\"b\": [{}]}\n{\"a\": 2}"), rows);
        assert_eq!(read("[]"), []);
        assert_eq!(read(""), []);
        assert_eq!(read("[{}]").len(), 1);
    }

    #[test]
    fn what_is_broken_is_named_with_its_line() {
        fails("[\n{\"a\": 1},\n{\"a\":\n x}]", "rows.json:4: not valid JSON at column 2");
        fails("[{}\n{}]", "rows.json:2: there is no comma before this object of the list");
        fails("[{},\n", "rows.json:2: the list has no end; is the file whole?");
        fails("[{}]\n{}", "rows.json:2: more follows the list");
        fails("[1, {}]", "rows.json:1: expected a JSON object, found a number");
        fails("{\"a\": 1", "rows.json:1: not valid JSON at column 7: EOF while parsing an object");
        fails("\u{1f}\u{8b}", "rows.json:1: not valid JSON");
    }

    #[test]
    fn rows_are_found_again_by_their_places() {
        for text in ["[{\"a\": 1},\n {\"a\": 2}]", "{\"a\": 1}\n {\"a\": 2}"] {
            let mut rows = Objects::new("rows.json", Cursor::new(text));
            rows.next();
            let second = rows.next().map(|row| row.map(|row| (row.number, row.values)));
            let place = rows.place();
            let mut again = Objects::new("rows.json", Cursor::new(text));
            again.go(place, 2).expect("a place");
            assert_eq!(again.next().map(|row| row.map(|row| (row.number, row.values))), second);
        }
    }
}
