//! The rule for text that JSON of other producers holds and Rust cannot.

use std::borrow::Cow;

use super::json::hex_unit;

/// JSON text from bytes that may hold what JSON in Rust cannot: every invalid byte sequence, and every `\u` escape of
/// half a surrogate pair, becomes U+FFFD. Everything else stays byte for byte, and clean input is not copied.
///
/// Python's strings can hold a lone surrogate and its writers escape it; Rust's cannot. One replaced character is a
/// smaller loss than a line that cannot be read. Use this at every edge where JSON of another producer comes in.
pub fn readable_json(bytes: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(bytes);
    let mut repaired = String::new();
    let mut copied = 0;
    let mut at = 0;
    let bytes = text.as_bytes();
    while let Some(found) = bytes[at..].iter().position(|byte| *byte == b'\\') {
        at += found;
        let Some(unit) = escaped_unit(bytes, at) else {
            // An escape of one character, or a broken one, which the parser will name.
            at = (at + 2).min(bytes.len());
            continue;
        };
        let paired = (0xd800..0xdc00).contains(&unit)
            && escaped_unit(bytes, at + 6).is_some_and(|low| (0xdc00..0xe000).contains(&low));
        if paired {
            at += 12;
        } else {
            if (0xd800..0xe000).contains(&unit) {
                repaired.push_str(&text[copied..at]);
                repaired.push_str("\\ufffd");
                copied = at + 6;
            }
            at += 6;
        }
    }
    if copied == 0 {
        return text;
    }
    repaired.push_str(&text[copied..]);
    Cow::Owned(repaired)
}

/// The code unit of a `\uXXXX` escape at a position.
fn escaped_unit(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 2).filter(|start| *start == b"\\u")?;
    hex_unit(bytes.get(at + 2..at + 6)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repairs_lone_surrogates_and_invalid_bytes_only() {
        assert!(matches!(readable_json(br#"{"a":"\ud83d\ude42 \\ud835 \n"}"#), Cow::Borrowed(_)));
        assert_eq!(
            readable_json(br#"["\ud835","\ude42\ud83d","\\\ud800x"]"#),
            r#"["\ufffd","\ufffd\ufffd","\\\ufffdx"]"#
        );
        assert_eq!(readable_json(b"[\"\xff\"]"), "[\"\u{fffd}\"]");
        assert_eq!(readable_json(b"\"\\"), "\"\\");
    }
}
