//! Canonical JSON forms of Python, for the hashes that verifiers 0.4.0 computes.
//!
//! Python's reader and printer differ from Rust's: whole numbers have any length, `NaN` and `Infinity` are words,
//! strings may hold half of a surrogate pair, and doubles print in Python's own notation. Tool arguments come from
//! models as text, so they are read here with those rules; nothing else is.

use std::fmt::Write;

use serde_json::{Number, Value};

/// Separators of a canonical form. Keys are sorted by code point and everything outside ASCII is escaped in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spacing {
    /// `,` and `:`, for tool arguments and tool lists.
    Compact,
    /// `, ` and `: `, for task rows and provider items.
    Spaced,
}

impl Spacing {
    fn comma(self) -> &'static str {
        match self {
            Self::Compact => ",",
            Self::Spaced => ", ",
        }
    }

    fn colon(self) -> &'static str {
        match self {
            Self::Compact => ":",
            Self::Spaced => ": ",
        }
    }
}

/// A JSON value as Python reads it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PythonJson {
    Null,
    Bool(bool),
    /// Digits with an optional minus; any length.
    Integer(String),
    Float(f64),
    /// UTF-8, but a lone surrogate stands as its three generalised bytes; the order of bytes is that of code points.
    Text(Vec<u8>),
    List(Vec<PythonJson>),
    /// Sorted by key, no key twice.
    Map(Vec<(Vec<u8>, PythonJson)>),
}

/// Python refuses whole numbers with more digits than this (`sys.int_info.default_max_str_digits`).
const MAX_DIGITS: usize = 4300;

/// Far more than any real argument nests, and well inside the stack.
const MAX_DEPTH: usize = 200;

impl PythonJson {
    /// Reads a whole text with the rules of Python's `json.loads`; `None` where Python would refuse it.
    pub(super) fn read(text: &str) -> Option<Self> {
        let mut reader = Reader { bytes: text.as_bytes(), at: 0 };
        let value = reader.value(0)?;
        reader.space();
        (reader.at == reader.bytes.len()).then_some(value)
    }

    /// Appends the canonical form.
    pub(super) fn write(&self, out: &mut String, spacing: Spacing) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Self::Integer(digits) => out.push_str(digits),
            Self::Float(value) => write_python_float(out, *value),
            Self::Text(text) => write_wide_text(out, text),
            Self::List(items) => {
                out.push('[');
                for (position, item) in items.iter().enumerate() {
                    if position > 0 {
                        out.push_str(spacing.comma());
                    }
                    item.write(out, spacing);
                }
                out.push(']');
            }
            Self::Map(entries) => {
                out.push('{');
                for (position, (key, value)) in entries.iter().enumerate() {
                    if position > 0 {
                        out.push_str(spacing.comma());
                    }
                    write_wide_text(out, key);
                    out.push_str(spacing.colon());
                    value.write(out, spacing);
                }
                out.push('}');
            }
        }
    }

    /// Whether a `serde_json::Value` would lose digits of it.
    pub(super) fn exceeds_value(&self) -> bool {
        match self {
            Self::Integer(digits) => digits.parse::<u64>().is_err() && digits.parse::<i64>().is_err(),
            Self::List(items) => items.iter().any(Self::exceeds_value),
            Self::Map(entries) => entries.iter().any(|(_, value)| value.exceeds_value()),
            Self::Null | Self::Bool(_) | Self::Float(_) | Self::Text(_) => false,
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn space(&mut self) {
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn eat(&mut self, word: &str) -> Option<()> {
        self.bytes[self.at..].starts_with(word.as_bytes()).then(|| self.at += word.len())
    }

    fn value(&mut self, depth: usize) -> Option<PythonJson> {
        if depth > MAX_DEPTH {
            return None;
        }
        self.space();
        match *self.bytes.get(self.at)? {
            b'"' => self.text().map(PythonJson::Text),
            b'{' => self.map(depth),
            b'[' => self.list(depth),
            b'n' => self.eat("null").map(|()| PythonJson::Null),
            b't' => self.eat("true").map(|()| PythonJson::Bool(true)),
            b'f' => self.eat("false").map(|()| PythonJson::Bool(false)),
            b'N' => self.eat("NaN").map(|()| PythonJson::Float(f64::NAN)),
            b'I' => self.eat("Infinity").map(|()| PythonJson::Float(f64::INFINITY)),
            _ if self.eat("-Infinity").is_some() => Some(PythonJson::Float(f64::NEG_INFINITY)),
            _ => self.number(),
        }
    }

    fn list(&mut self, depth: usize) -> Option<PythonJson> {
        self.eat("[")?;
        let mut items = Vec::new();
        self.space();
        if self.eat("]").is_some() {
            return Some(PythonJson::List(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            self.space();
            if self.eat("]").is_some() {
                return Some(PythonJson::List(items));
            }
            self.eat(",")?;
        }
    }

    fn map(&mut self, depth: usize) -> Option<PythonJson> {
        self.eat("{")?;
        let mut entries: Vec<(Vec<u8>, PythonJson)> = Vec::new();
        self.space();
        if self.eat("}").is_none() {
            loop {
                self.space();
                let key = self.text()?;
                self.space();
                self.eat(":")?;
                entries.push((key, self.value(depth + 1)?));
                self.space();
                if self.eat("}").is_some() {
                    break;
                }
                self.eat(",")?;
            }
        }
        // The last of equal keys wins: reversed, it is the first of a stable sort, and the rest are dropped.
        entries.reverse();
        entries.sort_by(|left, right| left.0.cmp(&right.0));
        entries.dedup_by(|later, kept| later.0 == kept.0);
        Some(PythonJson::Map(entries))
    }

    fn number(&mut self) -> Option<PythonJson> {
        let begin = self.at;
        let minus = usize::from(self.eat("-").is_some());
        if self.eat("0").is_none() {
            matches!(self.bytes.get(self.at), Some(b'1'..=b'9')).then_some(())?;
            self.digits();
        }
        let whole = self.at;
        if self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            if self.digits() == 0 {
                self.at = whole;
            }
        }
        let mantissa = self.at;
        if matches!(self.bytes.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.bytes.get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if self.digits() == 0 {
                self.at = mantissa;
            }
        }
        let text = std::str::from_utf8(&self.bytes[begin..self.at]).ok()?;
        if self.at > whole {
            return text.parse().ok().map(PythonJson::Float);
        }
        if text.len() - minus > MAX_DIGITS {
            return None;
        }
        Some(PythonJson::Integer(if text == "-0" { "0".to_owned() } else { text.to_owned() }))
    }

    fn digits(&mut self) -> usize {
        let begin = self.at;
        while matches!(self.bytes.get(self.at), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        self.at - begin
    }

    fn text(&mut self) -> Option<Vec<u8>> {
        self.eat("\"")?;
        let mut text = Vec::new();
        loop {
            let begin = self.at;
            while !matches!(self.bytes.get(self.at)?, b'"' | b'\\' | 0..=0x1f) {
                self.at += 1;
            }
            text.extend_from_slice(&self.bytes[begin..self.at]);
            match self.bytes[self.at] {
                b'"' => {
                    self.at += 1;
                    return Some(text);
                }
                b'\\' => {
                    let escape = *self.bytes.get(self.at + 1)?;
                    self.at += 2;
                    match escape {
                        b'"' | b'\\' | b'/' => text.push(escape),
                        b'b' => text.push(8),
                        b'f' => text.push(12),
                        b'n' => text.push(b'\n'),
                        b'r' => text.push(b'\r'),
                        b't' => text.push(b'\t'),
                        b'u' => {
                            let unit = self.hex()?;
                            let point = self.pair(unit);
                            push_point(&mut text, point);
                        }
                        _ => return None,
                    }
                }
                _ => return None,
            }
        }
    }

    /// Joins a high half with the low half that follows it, if one does.
    fn pair(&mut self, high: u32) -> u32 {
        let begin = self.at;
        if (0xd800..0xdc00).contains(&high) && self.eat("\\u").is_some() {
            match self.hex() {
                Some(low) if (0xdc00..0xe000).contains(&low) => {
                    return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
                }
                _ => self.at = begin,
            }
        }
        high
    }

    fn hex(&mut self) -> Option<u32> {
        let unit = hex_unit(self.bytes.get(self.at..self.at + 4)?)?;
        self.at += 4;
        Some(unit)
    }
}

/// The code unit of four hex digits.
pub(super) fn hex_unit(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |unit, digit| Some(unit * 16 + char::from(*digit).to_digit(16)?))
}

/// Appends a code point, a surrogate as its three generalised bytes.
fn push_point(text: &mut Vec<u8>, point: u32) {
    match char::from_u32(point) {
        Some(character) => text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        None => text.extend_from_slice(&[
            0xe0 | (point >> 12) as u8,
            0x80 | (point >> 6 & 0x3f) as u8,
            0x80 | (point & 0x3f) as u8,
        ]),
    }
}

/// Appends generalised UTF-8 as an ASCII string.
fn write_wide_text(out: &mut String, text: &[u8]) {
    out.push('"');
    let mut rest = text;
    while !rest.is_empty() {
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                write_escaped(out, valid);
                break;
            }
            // Only surrogates are invalid here, and each has three bytes.
            Err(error) => {
                let (valid, surrogate) = rest.split_at(error.valid_up_to());
                write_escaped(out, std::str::from_utf8(valid).unwrap_or_default());
                let unit = surrogate.iter().take(3).fold(0_u32, |unit, byte| unit << 6 | u32::from(byte & 0x3f));
                write_unit(out, (0xd000 | unit & 0xfff) as u16);
                rest = surrogate.get(3..).unwrap_or_default();
            }
        }
    }
    out.push('"');
}

/// Appends text as a quoted ASCII string.
pub(super) fn write_text(out: &mut String, text: &str) {
    out.push('"');
    write_escaped(out, text);
    out.push('"');
}

fn write_escaped(out: &mut String, text: &str) {
    let mut plain = 0;
    for (position, character) in text.char_indices() {
        if matches!(character, ' '..='~') && character != '"' && character != '\\' {
            continue;
        }
        out.push_str(&text[plain..position]);
        plain = position + character.len_utf8();
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            _ => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    write_unit(out, *unit);
                }
            }
        }
    }
    out.push_str(&text[plain..]);
}

fn write_unit(out: &mut String, unit: u16) {
    out.push_str("\\u");
    for shift in [12, 8, 4, 0] {
        out.push(char::from_digit(u32::from(unit >> shift & 15), 16).unwrap_or('0'));
    }
}

/// Appends a double as Python's `repr` prints it, with the words that Python's JSON has for what is not finite.
pub fn write_python_float(out: &mut String, value: f64) {
    if value.is_nan() {
        out.push_str("NaN");
        return;
    }
    if value.is_infinite() {
        out.push_str(if value > 0.0 { "Infinity" } else { "-Infinity" });
        return;
    }
    // The shortest digits that read back as the same double, the even one of two equally near: serde_json's printer
    // chooses as Python does, the standard library's rounds such ties up. Only the notation is Python's own.
    let text = Number::from_f64(value).map(|number| number.to_string()).unwrap_or_default();
    let (sign, text) = text.strip_prefix('-').map_or(("", text.as_str()), |rest| ("-", rest));
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    // value = 0.DIGITS * 10^point, without zeros at either end.
    let digits = format!("{whole}{fraction}");
    let point = whole.len() as i32 + exponent - (digits.len() - digits.trim_start_matches('0').len()) as i32;
    let digits = digits.trim_matches('0');
    out.push_str(sign);
    if digits.is_empty() {
        out.push_str("0.0");
    } else if !(-3..=16).contains(&point) {
        let (first, rest) = digits.split_at(1);
        let dot = if rest.is_empty() { "" } else { "." };
        let sign = if point > 0 { '+' } else { '-' };
        // Writing to a string cannot fail.
        let _ = write!(out, "{first}{dot}{rest}e{sign}{:02}", (point - 1).unsigned_abs());
    } else if point <= 0 {
        let _ = write!(out, "0.{:0>width$}", digits, width = digits.len() + point.unsigned_abs() as usize);
    } else if digits.len() <= point as usize {
        let _ = write!(out, "{digits:0<width$}.0", width = point as usize);
    } else {
        let (whole, fraction) = digits.split_at(point as usize);
        let _ = write!(out, "{whole}.{fraction}");
    }
}

/// Appends the canonical form of a value.
pub(super) fn write_value(out: &mut String, value: &Value, spacing: Spacing) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() => write_python_float(out, float),
            _ => out.push_str(&number.to_string()),
        },
        Value::String(text) => write_text(out, text),
        Value::Array(items) => {
            out.push('[');
            for (position, item) in items.iter().enumerate() {
                if position > 0 {
                    out.push_str(spacing.comma());
                }
                write_value(out, item, spacing);
            }
            out.push(']');
        }
        Value::Object(map) => write_entries(out, map.iter().map(|(key, value)| (key.as_str(), value)), spacing),
    }
}

/// Appends the canonical form of a map's entries, in any order.
pub(super) fn write_entries<'a>(
    out: &mut String,
    entries: impl IntoIterator<Item = (&'a str, &'a Value)>,
    spacing: Spacing,
) {
    let mut entries: Vec<(&str, &Value)> = entries.into_iter().collect();
    entries.sort_unstable_by_key(|(key, _)| *key);
    out.push('{');
    for (position, (key, value)) in entries.into_iter().enumerate() {
        if position > 0 {
            out.push_str(spacing.comma());
        }
        write_text(out, key);
        out.push_str(spacing.colon());
        write_value(out, value, spacing);
    }
    out.push('}');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> Option<String> {
        let mut out = String::new();
        PythonJson::read(text)?.write(&mut out, Spacing::Compact);
        Some(out)
    }

    #[test]
    fn reads_and_prints_as_python_does() {
        for (text, expected) in [
            (r#" {"b": 1, "a": [1, 2.0, -0, -0.0]} "#, r#"{"a":[1,2.0,0,-0.0],"b":1}"#),
            (r#"{"a":1,"b":2,"a":3}"#, r#"{"a":3,"b":2}"#),
            ("[NaN,Infinity,-Infinity,1e400,-1e400]", "[NaN,Infinity,-Infinity,Infinity,-Infinity]"),
            ("1e16", "1e+16"),
            ("1e15", "1000000000000000.0"),
            ("0.00001", "1e-05"),
            ("0.0001", "0.0001"),
            ("1.5e300", "1.5e+300"),
            ("1.6280623745184953e15", "1628062374518495.2"),
            ("9007199254740993.0", "9007199254740992.0"),
            ("9999999999999998.0", "9999999999999998.0"),
            ("123.456e-6", "0.000123456"),
            ("5e-324", "5e-324"),
            ("-1.7976931348623157e308", "-1.7976931348623157e+308"),
            ("100.0", "100.0"),
            ("0e5", "0.0"),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
            (r#""\ud83d\ude42 \ud835 \udc00x""#, r#""\ud83d\ude42 \ud835 \udc00x""#),
            (r#""\ud835\ud83d\ude42""#, r#""\ud835\ud83d\ude42""#),
            (r#""é\u007f\/""#, r#""\u00e9\u007f/""#),
            (r#"{"🙂":1,"\uffff":2,"\ud800":3}"#, r#"{"\ud800":3,"\uffff":2,"\ud83d\ude42":1}"#),
        ] {
            assert_eq!(canonical(text).as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn refuses_what_python_refuses() {
        let long = "9".repeat(MAX_DIGITS + 1);
        for text in
            ["", "{", "01", "1.", "[1,]", "{\"a\":1,}", "\"\n\"", "\"\\x\"", "-", "-NaN", "\u{feff}1", "nul", &long]
        {
            assert_eq!(canonical(text), None, "{text}");
        }
        assert!(canonical(&long[1..]).is_some());
        assert!(canonical(&"[".repeat(100_000)).is_none());
    }
}
