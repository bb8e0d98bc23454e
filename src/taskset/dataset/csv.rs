//! Tables of text: comma or tab between the cells, the first row names the columns.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Seek},
    path::Path,
};

use serde_json::{Map, Value};

use super::{
    Places, Row, Rows, TasksetError, cannot_open,
    jsonl::{BYTE_ORDER_MARK, LINE_LIMIT},
    text::Text,
};

/// Opens a file whose cells have this character between them. Cells may be quoted with `"`, hold line ends then, and are
/// text, also where they look like numbers; lines end in LF, CR LF or CR; a byte order mark is dropped; blank lines are
/// passed over. Where a comma is expected and the header has none but semicolons or tabs, as some spreadsheets write it,
/// those stand between the cells. A row with more or fewer cells than the header is an error, and so is a quote that is
/// never closed.
///
/// # Errors
/// When it cannot be opened or its header cannot be used.
pub fn open(path: &Path, delimiter: u8) -> Result<Rows, TasksetError> {
    Ok(Box::new(table(path, delimiter)?))
}

pub(super) fn table(path: &Path, delimiter: u8) -> Result<Records<BufReader<File>>, TasksetError> {
    let file = File::open(path).map_err(|error| cannot_open(path, &error))?;
    Records::new(&path.display().to_string(), delimiter, BufReader::with_capacity(64 << 10, file))
}

/// The rows of a table.
pub(super) struct Records<R> {
    name: String,
    columns: Vec<String>,
    text: Text<R>,
    delimiter: u8,
    cells: Cells,
    failed: bool,
}

/// One row as it was read.
#[derive(Default)]
struct Cells {
    bytes: Vec<u8>,
    /// Where each cell ends.
    ends: Vec<usize>,
    /// Where the row begins: byte and line.
    place: u64,
    line: u64,
}

/// A problem, with its line.
type Problem = (u64, String);

impl<R: BufRead> Records<R> {
    fn new(name: &str, delimiter: u8, text: R) -> Result<Self, TasksetError> {
        let fault = |(row, problem)| TasksetError::Row { file: name.to_owned(), row, problem };
        let mut text = Text::new(text);
        let start = text.buffer().map_err(|error| fault((1, unread(&error))))?;
        let mark = if start.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
        let delimiter = if delimiter == b',' { separator(&start[mark..]) } else { delimiter };
        text.pass(mark);
        let mut cells = Cells::default();
        cells.read(&mut text, delimiter).map_err(fault)?;
        let mut columns: Vec<String> = Vec::with_capacity(cells.ends.len());
        for (index, cell) in cells.iter().enumerate() {
            let at = |problem| fault((cells.line, format!("column {}: {problem}", index + 1)));
            let column = text_of(cell).map_err(at)?;
            // As pandas calls the column of an index that was written along.
            let column = if column.is_empty() { format!("Unnamed: {index}") } else { column.to_owned() };
            if columns.contains(&column) {
                return Err(at(format!("the header names `{column}` twice")));
            }
            columns.push(column);
        }
        Ok(Self { name: name.to_owned(), columns, text, delimiter, cells, failed: false })
    }

    fn read(&mut self) -> Result<Option<Row>, Problem> {
        if !self.cells.read(&mut self.text, self.delimiter)? {
            return Ok(None);
        }
        let number = self.cells.line;
        let (cells, columns) = (self.cells.ends.len(), self.columns.len());
        if cells != columns {
            let at = cells.min(columns);
            let what = match self.columns.get(at) {
                Some(column) => format!("column {} (`{column}`) is missing", at + 1),
                None => format!("column {} has no name in the header", at + 1),
            };
            let problem = format!("{what}: the row has {cells} cells, the header {columns}; is a cell not quoted?");
            return Err((number, problem));
        }
        let mut values = Map::with_capacity(columns);
        for (index, (column, cell)) in self.columns.iter().zip(self.cells.iter()).enumerate() {
            let text =
                text_of(cell).map_err(|problem| (number, format!("column {} (`{column}`): {problem}", index + 1)))?;
            values.insert(column.clone(), Value::String(text.to_owned()));
        }
        Ok(Some(Row { number, values }))
    }
}

impl<R: BufRead> Iterator for Records<R> {
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

impl<R: BufRead + Seek + Send> Places for Records<R> {
    fn place(&self) -> u64 {
        self.cells.place
    }

    fn go(&mut self, place: u64, number: u64) -> Result<(), TasksetError> {
        self.text.go(place, number).map_err(|error| TasksetError::Row {
            file: self.name.clone(),
            row: number,
            problem: unread(&error),
        })
    }
}

impl Cells {
    /// Reads the next row; whether there was one.
    fn read(&mut self, text: &mut Text<impl BufRead>, delimiter: u8) -> Result<bool, Problem> {
        self.bytes.clear();
        self.ends.clear();
        let failed = |line| move |error| (line, unread(&error));
        loop {
            (self.place, self.line) = (text.byte, text.line);
            match text.peek().map_err(failed(self.line))? {
                None => return Ok(false),
                Some(b'\n' | b'\r') => drop(text.next().map_err(failed(self.line))?),
                Some(_) => break,
            }
        }
        let mut starts = true;
        loop {
            let line = text.line;
            let next = text.next().map_err(failed(line))?;
            match next {
                Some(b'"') if starts => {
                    self.quoted(text)?;
                    let ends = |byte: u8| byte == delimiter || b"\r\n".contains(&byte);
                    if !text.peek().map_err(failed(line))?.is_none_or(ends) {
                        let problem = "a quoted cell begins here, and more follows the quote that ends it; write a quote within a \
                                       cell twice";
                        return Err((line, problem.to_owned()));
                    }
                    starts = false;
                }
                None | Some(b'\n' | b'\r') => {
                    self.ends.push(self.bytes.len());
                    return Ok(true);
                }
                Some(byte) if byte == delimiter => {
                    self.ends.push(self.bytes.len());
                    starts = true;
                }
                Some(byte) => {
                    self.bytes.push(byte);
                    starts = false;
                    let plain = |byte| byte != delimiter && !b"\r\n".contains(&byte);
                    text.take_while(&mut self.bytes, plain).map_err(failed(line))?;
                }
            }
            self.check()?;
        }
    }

    /// The rest of a quoted cell, up to the quote that ends it.
    fn quoted(&mut self, text: &mut Text<impl BufRead>) -> Result<(), Problem> {
        let opened = text.line;
        let failed = |error| (opened, unread(&error));
        loop {
            text.take_while(&mut self.bytes, |byte| !b"\"\r\n".contains(&byte)).map_err(failed)?;
            match text.next().map_err(failed)? {
                None => {
                    let problem =
                        "a quoted cell begins here and never ends; close it, or write a quote within a cell twice";
                    return Err((opened, problem.to_owned()));
                }
                Some(b'"') if text.peek().map_err(failed)? == Some(b'"') => {
                    self.bytes.push(b'"');
                    text.next().map_err(failed)?;
                }
                Some(b'"') => return Ok(()),
                Some(byte) => self.bytes.push(byte),
            }
            self.check()?;
        }
    }

    /// A quote that is left open must not fill the memory.
    fn check(&self) -> Result<(), Problem> {
        if self.bytes.len() as u64 <= LINE_LIMIT {
            return Ok(());
        }
        let problem = format!("the row is longer than {} MiB; is a quote left open?", LINE_LIMIT >> 20);
        Err((self.line, problem))
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end])
    }
}

/// What stands between the cells of a table that ought to have commas there, by its first line.
fn separator(start: &[u8]) -> u8 {
    let mut quoted = false;
    let mut found = b',';
    for &byte in start {
        match byte {
            b'"' => quoted = !quoted,
            b'\n' | b'\r' if !quoted => break,
            b',' if !quoted => return b',',
            b';' | b'\t' if !quoted && found == b',' => found = byte,
            _ => {}
        }
    }
    found
}

fn text_of(cell: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(cell).map_err(|_| "not UTF-8; save the file as UTF-8".to_owned())
}

fn unread(error: &io::Error) -> String {
    format!("cannot be read: {error}")
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read(text: &str, delimiter: u8) -> Vec<Result<(u64, Value), String>> {
        match Records::new("rows.csv", delimiter, text.as_bytes()) {
            Ok(rows) => rows
                .map(|row| row.map(|row| (row.number, Value::Object(row.values))).map_err(|error| error.to_string()))
                .collect(),
            Err(error) => vec![Err(error.to_string())],
        }
    }

    #[track_caller]
    fn fails(text: &str, expected: &str) {
        let last = read(text, b',').pop().and_then(Result::err).unwrap_or_default();
        assert!(last.contains(expected), "{last}");
    }

    #[test]
    fn cells_are_text_however_they_are_quoted() {
        let text = "\u{feff}question,answer\r\n\"What is 1, 2?\",012\r\n\r\n\"a \"\"b\"\"\nc\", \r\nlast,é";
        let expected = [
            (2, json!({"question": "What is 1, 2?", "answer": "012"})),
            (4, json!({"question": "a \"b\"\nc", "answer": " "})),
            (6, json!({"question": "last", "answer": "é"})),
        ];
        assert_eq!(read(text, b','), expected.map(Ok));
        let tabs = read("a\tb\n1\t2,3\n", b'\t');
        assert_eq!(tabs, [Ok((2, json!({"a": "1", "b": "2,3"})))]);
        assert_eq!(read(",a\n0,x\n", b','), [Ok((2, json!({"Unnamed: 0": "0", "a": "x"})))]);
    }

    #[test]
    fn a_ragged_row_is_named_with_its_column() {
        let missing = "rows.csv:3: column 2 (`b`) is missing: the row has 1 cells, the header 2";
        fails("a,b\n1,2\n3\n4,5\n", missing);
        fails("a,b\n1,2,3\n", "rows.csv:2: column 3 has no name in the header: the row has 3 cells, the header 2");
        assert_eq!(read("a,b\n1\n3,4\n", b',').len(), 1, "it ends after the first error");
    }

    #[test]
    fn a_header_that_cannot_be_used_is_named() {
        fails("a,b,a\n1,2,3\n", "rows.csv:1: column 3: the header names `a` twice");
        let rows = Records::new("rows.csv", b',', &b"a\n\xff\n"[..]);
        let error = rows.ok().and_then(|mut rows| rows.next()).and_then(Result::err).map(|error| error.to_string());
        assert_eq!(error.as_deref(), Some("rows.csv:2: column 1 (`a`): not UTF-8; save the file as UTF-8"));
        assert_eq!(read("", b','), []);
        assert_eq!(read("\n\n", b','), []);
    }

    #[test]
    fn a_quote_that_is_left_open_is_named_where_it_opens() {
        fails("a,b\n1,2\n3,\"4\n5,6\n7,8\n", "rows.csv:3: a quoted cell begins here and never ends");
        fails("a,b\n\"1\n\n\",\"2\n", "rows.csv:4: a quoted cell begins here and never ends");
        fails("a,\"b\n1,2\n", "rows.csv:1: a quoted cell begins here and never ends");
        fails("a,b\n1,\"2\n3,\"4\"\n", "rows.csv:2: a quoted cell begins here, and more follows");
        assert_eq!(read("a\n\"\"\nb\"c\n", b','), [Ok((2, json!({"a": ""}))), Ok((3, json!({"a": "b\"c"})))]);
    }

    #[test]
    fn what_a_spreadsheet_puts_between_cells_is_told_by_the_header() {
        assert_eq!(read("a;b\n1,5;x\n", b','), [Ok((2, json!({"a": "1,5", "b": "x"})))]);
        assert_eq!(read("\u{feff}\"a, b\"\tc\r1\t2", b','), [Ok((2, json!({"a, b": "1", "c": "2"})))]);
        assert_eq!(read("a;b,c\n1,2\n", b','), [Ok((2, json!({"a;b": "1", "c": "2"})))]);
    }

    proptest! {
        #[test]
        fn a_rows_number_is_the_line_where_it_begins(
            rows in prop::collection::vec(("[ab ,;é\n\r]{0,6}", "[ab\n\r\"]{0,6}", "(\n|\r\n|\r){1,3}"), 0..8),
            mark in any::<bool>(),
        ) {
            let mut text = format!("{}a,b\r\n", if mark { "\u{feff}" } else { "" });
            let mut expected = Vec::new();
            for (first, second, end) in &rows {
                expected.push((lines_before(&text), json!({"a": first, "b": second})));
                text += &format!("\"{first}\",\"{}\"{end}", second.replace('"', "\"\""));
            }
            let found: Vec<_> = read(&text, b',').into_iter().map(|row| row.expect("a row")).collect();
            prop_assert_eq!(&found, &expected);
            // Found again by their places, from the last to the first.
            let mut table = Records::new("rows.csv", b',', Cursor::new(text.as_bytes())).expect("a table");
            let mut places = Vec::new();
            while let Some(row) = table.next() {
                places.push((table.place(), row.expect("a row").number));
            }
            for ((place, number), expected) in places.into_iter().zip(expected).rev() {
                table.go(place, number).expect("a place");
                let row = table.next().expect("a row").expect("a row");
                prop_assert_eq!((row.number, Value::Object(row.values)), expected);
            }
        }
    }

    /// The line that the next character is on, counted naively.
    fn lines_before(text: &str) -> u64 {
        text.replace("\r\n", "\n").matches(['\n', '\r']).count() as u64 + 1
    }
}
