//! Text of answers, with one rule for what JSON allows and Rust strings do not.
//!
//! JSON may hold one half of a surrogate pair (`"\ud835"`), for example when a server cuts a stream inside a character.
//! The bytes are kept as they are until the answer is complete; then halves that meet become their character, and a half
//! that stays alone becomes U+FFFD. An answer is never refused for it.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

/// A string of the answer, or a list of text parts joined, in UTF-8 with surrogate halves as three bytes each (WTF-8).
#[derive(Debug, Default)]
pub(super) struct Text(pub(super) Vec<u8>);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Asking for bytes is how serde_json hands out surrogate halves instead of refusing them.
        deserializer.deserialize_bytes(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text or a list of text parts")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Text, E> {
        Ok(Text(bytes.to_vec()))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Text, E> {
        Ok(Text(text.as_bytes().to_vec()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Text, A::Error> {
        let mut whole = Vec::new();
        while let Some(part) = parts.next_element::<Part>()? {
            whole.extend(part.0);
        }
        Ok(Text(whole))
    }
}

/// One part: an object with its text, or the text itself.
struct Part(Vec<u8>);

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Object {
            #[serde(default)]
            text: Option<Text>,
        }
        let raw = <&RawValue>::deserialize(deserializer)?.get();
        let text = if raw.starts_with('"') {
            serde_json::from_str::<Text>(raw).map(Some)
        } else {
            serde_json::from_str::<Object>(raw).map(|object| object.text)
        };
        text.map(|text| Self(text.unwrap_or_default().0)).map_err(D::Error::custom)
    }
}

/// Completed text as a string; see the rule above.
pub(super) fn into_string(bytes: Vec<u8>) -> String {
    let bytes = match String::from_utf8(bytes) {
        Ok(text) => return text,
        Err(error) => error.into_bytes(),
    };
    let mut joined = Vec::with_capacity(bytes.len());
    let mut rest = bytes.as_slice();
    while let Some(&byte) = rest.first() {
        match (surrogate(rest), rest.get(3..).and_then(surrogate)) {
            (Some(high @ 0xD800..=0xDBFF), Some(low @ 0xDC00..=0xDFFF)) => {
                let code = 0x1_0000 + ((u32::from(high) - 0xD800) << 10) + (u32::from(low) - 0xDC00);
                let character = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
                joined.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                rest = &rest[6..];
            }
            (Some(_), _) => {
                joined.extend_from_slice("\u{fffd}".as_bytes());
                rest = &rest[3..];
            }
            (None, _) => {
                joined.push(byte);
                rest = &rest[1..];
            }
        }
    }
    String::from_utf8(joined).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// The surrogate half that the bytes begin with.
fn surrogate(bytes: &[u8]) -> Option<u16> {
    match bytes {
        [0xED, second @ 0xA0..=0xBF, third @ 0x80..=0xBF, ..] => {
            Some(0xD000 | (u16::from(second & 0x3F) << 6) | u16::from(third & 0x3F))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> String {
        into_string(serde_json::from_str::<Text>(json).unwrap().0)
    }

    #[test]
    fn surrogate_halves_never_refuse_an_answer() {
        assert_eq!(read(r#""\ud835\udc00""#), "\u{1d400}");
        assert_eq!(read(r#""a\ud835b""#), "a\u{fffd}b");
        assert_eq!(read(r#""\udc00\ud835""#), "\u{fffd}\u{fffd}");
        assert_eq!(read(r#""\ud83d\ud83d\ude00""#), "\u{fffd}\u{1f600}");
    }

    #[test]
    fn halves_from_two_pieces_of_a_stream_meet() {
        let mut bytes = serde_json::from_str::<Text>(r#""x\ud83d""#).unwrap().0;
        bytes.extend(serde_json::from_str::<Text>(r#""\ude00y""#).unwrap().0);
        assert_eq!(into_string(bytes), "x\u{1f600}y");
    }

    #[test]
    fn parts_are_joined_and_other_types_refused() {
        assert_eq!(read(r#"[{"type":"text","text":"a"},{"type":"other"},{"text":"b"},"c"]"#), "abc");
        assert!(serde_json::from_str::<Text>("5").is_err());
        assert!(serde_json::from_str::<Text>("{}").is_err());
    }
}
