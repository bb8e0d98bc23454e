//! What chat templates do as Python does it: JSON as `json.dumps(value, ensure_ascii=False)` writes it, and `str.strip`.

use std::borrow::Cow;

use indexmap::IndexMap;
use serde_json::{Value, value::RawValue};

use crate::trace::write_python_float;

/// Separators `", "` and `": "`, keys in their order, nothing escaped that need not be.
pub(super) fn dumps(value: &Value) -> String {
    let mut text = String::new();
    write(&mut text, value);
    text
}

/// The same with every entry on a line of its own, `indent` spaces deeper.
pub(super) fn dumps_indented(value: &Value, indent: usize) -> String {
    let mut text = String::new();
    write_indented(&mut text, value, indent, 0);
    text
}

/// With these separators between items and behind keys.
pub(super) fn dumps_with(value: &Value, separators: [&str; 2]) -> String {
    let mut text = String::new();
    write_with(&mut text, value, separators);
    text
}

/// JSON text with every character outside of ASCII escaped.
pub(super) fn ascii(json: &str) -> String {
    let mut text = String::new();
    for c in json.chars() {
        match c.is_ascii() {
            true => text.push(c),
            false => text.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}"))),
        }
    }
    text
}

/// Without spaces, and with the keys of every object in their order by code point.
pub(super) fn dumps_sorted(mut value: Value) -> String {
    value.sort_all_objects();
    dumps_with(&value, [",", ":"])
}

/// JSON text read and written again. Integers keep all their digits, which [`Value`] would round beyond 64 bits. `None` where
/// it is no JSON, or has numbers or characters that no JSON can be written of.
pub(super) fn reread(json: &str) -> Option<String> {
    let mut text = String::new();
    rewrite(&mut text, serde_json::from_str::<&RawValue>(json).ok()?, 0)?;
    Some(text)
}

/// The members of a JSON object, written again; nothing where it is no object. Of two with one name the later counts, at the
/// place of the first.
pub(super) fn members(json: &str) -> Vec<(String, String)> {
    let Ok(members) = serde_json::from_str::<IndexMap<String, &RawValue>>(json) else { return Vec::new() };
    let reread = |(name, value): (String, &RawValue)| Some((name, reread(value.get())?));
    members.into_iter().map(reread).collect::<Option<_>>().unwrap_or_default()
}

/// A JSON object of members that are JSON text.
pub(super) fn object(members: &IndexMap<String, String>) -> String {
    let mut text = "{".to_owned();
    for (position, (name, value)) in members.iter().enumerate() {
        text.push_str(if position > 0 { ", " } else { "" });
        string(&mut text, name);
        text.extend([": ", value]);
    }
    text.push('}');
    text
}

/// JSON text as templates show it beside other text: that of a string without quotes and escapes.
pub(super) fn bare(json: &str) -> Cow<'_, str> {
    if json.starts_with('"') { serde_json::from_str::<String>(json).unwrap_or_default().into() } else { json.into() }
}

/// `str(value)` of what JSON text says.
pub(super) fn repr(json: &str) -> Cow<'_, str> {
    match json {
        "null" => "None".into(),
        "true" => "True".into(),
        "false" => "False".into(),
        other => bare(other),
    }
}

/// Whether Python's `str.strip` takes a character away: white space, and the four separators of ASCII.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `str.strip()`.
pub(super) fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

fn write_indented(out: &mut String, value: &Value, indent: usize, level: usize) {
    let line = |out: &mut String, level: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', indent * level));
    };
    match value {
        Value::Array(items) if !items.is_empty() => {
            out.push('[');
            for (position, item) in items.iter().enumerate() {
                out.push_str(if position > 0 { "," } else { "" });
                line(out, level + 1);
                write_indented(out, item, indent, level + 1);
            }
            line(out, level);
            out.push(']');
        }
        Value::Object(map) if !map.is_empty() => {
            out.push('{');
            for (position, (key, item)) in map.iter().enumerate() {
                out.push_str(if position > 0 { "," } else { "" });
                line(out, level + 1);
                string(out, key);
                out.push_str(": ");
                write_indented(out, item, indent, level + 1);
            }
            line(out, level);
            out.push('}');
        }
        plain => write(out, plain),
    }
}

/// Values may nest as deep as `serde_json` lets them.
fn rewrite(out: &mut String, json: &RawValue, depth: usize) -> Option<()> {
    let json = json.get();
    match json.as_bytes()[0] {
        b'{' | b'[' if depth == 127 => return None,
        b'{' => {
            out.push('{');
            let members = serde_json::from_str::<IndexMap<String, &RawValue>>(json).ok()?;
            for (position, (name, value)) in members.into_iter().enumerate() {
                out.push_str(if position > 0 { ", " } else { "" });
                string(out, &name);
                out.push_str(": ");
                rewrite(out, value, depth + 1)?;
            }
            out.push('}');
        }
        b'[' => {
            out.push('[');
            for (position, item) in serde_json::from_str::<Vec<&RawValue>>(json).ok()?.into_iter().enumerate() {
                out.push_str(if position > 0 { ", " } else { "" });
                rewrite(out, item, depth + 1)?;
            }
            out.push(']');
        }
        b'"' => string(out, &serde_json::from_str::<String>(json).ok()?),
        b'-' | b'0'..=b'9' if json.contains(['.', 'e', 'E']) => {
            write_python_float(out, serde_json::from_str(json).ok()?);
        }
        b'-' if json == "-0" => out.push('0'),
        _ => out.push_str(json),
    }
    Some(())
}

fn write(out: &mut String, value: &Value) {
    write_with(out, value, [", ", ": "]);
}

fn write_with(out: &mut String, value: &Value, separators: [&str; 2]) {
    match value {
        Value::Array(items) => {
            out.push('[');
            for (position, item) in items.iter().enumerate() {
                out.push_str(if position > 0 { separators[0] } else { "" });
                write_with(out, item, separators);
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push('{');
            for (position, (key, item)) in map.iter().enumerate() {
                out.push_str(if position > 0 { separators[0] } else { "" });
                string(out, key);
                out.push_str(separators[1]);
                write_with(out, item, separators);
            }
            out.push('}');
        }
        Value::String(text) => string(out, text),
        Value::Number(number) if number.is_f64() => {
            write_python_float(out, number.as_f64().unwrap_or_default());
        }
        plain => out.push_str(&plain.to_string()),
    }
}

fn string(out: &mut String, text: &str) {
    // Both escape the same characters in the same way, but for U+007F, which neither does.
    out.push_str(&Value::from(text).to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_writes_the_same() {
        let value: Value =
            serde_json::from_str(r#"{"a": [1, -2.5, 1e20, 1.0, null, true], "b": {}, "ü\u0001\n\"/": "日\u007f"}"#)
                .unwrap();
        assert_eq!(
            dumps(&value),
            "{\"a\": [1, -2.5, 1e+20, 1.0, null, true], \"b\": {}, \"ü\\u0001\\n\\\"/\": \"日\u{7f}\"}"
        );
    }

    #[test]
    fn what_is_read_and_written_again_keeps_its_digits() {
        let long = "123456789012345678901234567890";
        for (json, again) in [
            (long, long),
            (
                " [18446744073709551616,-0 , -0.0,1e5,0.1e-6,2.50] ",
                "[18446744073709551616, 0, -0.0, 100000.0, 1e-07, 2.5]",
            ),
            (r#"{"a":1,"b":[{}],"a":{"\u00fc":"\/"}}"#, r#"{"a": {"ü": "/"}, "b": [{}]}"#),
            ("true", "true"),
        ] {
            assert_eq!(reread(json).as_deref(), Some(again));
        }
        let deep = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert_eq!(reread(&deep(127)), Some(deep(127)));
        for none in ["", "01", "NaN", "1e400", r#"["\ud83d"]"#, "1 2", &deep(128), &deep(1 << 20)] {
            assert_eq!(reread(none), None);
        }
        assert_eq!(members(r#"{"n": 18446744073709551616, "s": "x"}"#)[0].1, "18446744073709551616");
        assert!(members("[1]").is_empty() && members("{").is_empty());
        assert_eq!([repr("null"), repr("false"), repr(r#""a\"b""#), bare("null")], ["None", "False", "a\"b", "null"]);
    }
}
