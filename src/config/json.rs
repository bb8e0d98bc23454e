//! A JSON reader that keeps the place of every key and value. Scalars are left to `serde_json`.

use serde_json::Value;

use super::{
    fault::{Fault, Faults},
    node::{Content, Node, Table, unset},
    places::Places,
};

/// Deeper nesting is refused, so that the recursion stays bounded.
const MAX_DEPTH: usize = 128;

/// Parses one document.
pub(super) fn parse(text: &str, places: &Places<'_>) -> Result<Node, Faults> {
    let mut reader = Reader { text, offset: 0, places };
    let node = reader.value(0)?;
    reader.skip_space();
    if reader.offset < text.len() { Err(reader.fault("more text after the end of the document")) } else { Ok(node) }
}

struct Reader<'a, 'p> {
    text: &'a str,
    offset: usize,
    places: &'p Places<'a>,
}

impl Reader<'_, '_> {
    fn value(&mut self, depth: usize) -> Result<Node, Faults> {
        self.skip_space();
        if depth > MAX_DEPTH {
            return Err(self.fault("nested too deeply"));
        }
        let at = self.places.at(self.offset);
        let content = match self.peek() {
            Some(b'{') => self.object(depth)?,
            Some(b'[') => self.array(depth)?,
            Some(b'"') => Content::Scalar(Value::String(self.string()?)),
            Some(_) => Content::Scalar(self.word()?),
            None => return Err(self.fault("the text ends where a value should stand")),
        };
        Ok(Node::new(at, content))
    }

    fn object(&mut self, depth: usize) -> Result<Content, Faults> {
        self.offset += 1;
        let mut table = Table::new();
        self.skip_space();
        if self.take(b'}') {
            return Ok(Content::Table(table));
        }
        loop {
            self.skip_space();
            let key_offset = self.offset;
            if self.peek() != Some(b'"') {
                return Err(self.fault("expected a key in double quotes"));
            }
            let key = self.string()?;
            self.skip_space();
            if !self.take(b':') {
                return Err(self.fault("expected `:` after the key"));
            }
            let mut node = self.value(depth + 1)?;
            node.key_at = self.places.at(key_offset);
            if let Content::Scalar(value) = node.content {
                node.content = Content::Scalar(unset(value));
            }
            if table.contains_key(&key) {
                self.offset = key_offset;
                return Err(self.fault(&format!("the key `{key}` is given twice")));
            }
            table.insert(key, node);
            self.skip_space();
            if self.take(b'}') {
                return Ok(Content::Table(table));
            }
            if !self.take(b',') {
                return Err(self.fault("expected `,` or `}`"));
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Content, Faults> {
        self.offset += 1;
        let mut items = Vec::new();
        self.skip_space();
        if self.take(b']') {
            return Ok(Content::List(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            self.skip_space();
            if self.take(b']') {
                return Ok(Content::List(items));
            }
            if !self.take(b',') {
                return Err(self.fault("expected `,` or `]`"));
            }
        }
    }

    fn string(&mut self) -> Result<String, Faults> {
        let start = self.offset;
        let bytes = self.text.as_bytes();
        let mut end = start + 1;
        while let Some(byte) = bytes.get(end) {
            match byte {
                b'"' => {
                    self.offset = end + 1;
                    return serde_json::from_str(&self.text[start..=end]).map_err(|error| {
                        self.offset = start;
                        self.fault(&format!("bad string: {}", reason(&error)))
                    });
                }
                b'\\' => end += 2,
                _ => end += 1,
            }
        }
        Err(self.fault("the string has no closing quote"))
    }

    /// A number or one of `true`, `false`, `null`.
    fn word(&mut self) -> Result<Value, Faults> {
        let rest = &self.text[self.offset..];
        let length =
            rest.find(|letter: char| letter.is_ascii_whitespace() || ",:{}[]\"".contains(letter)).unwrap_or(rest.len());
        let value = serde_json::from_str(&rest[..length]).map_err(|_| self.fault("expected a value"))?;
        self.offset += length;
        Ok(value)
    }

    fn skip_space(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.offset += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.offset).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.offset += usize::from(found);
        found
    }

    fn fault(&self, problem: &str) -> Faults {
        Fault::new(self.places.at(self.offset), "", format!("invalid JSON: {problem}")).into()
    }
}

/// The parser's reason without its own line and column, which count from the start of the string.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or_default().to_owned()
}
