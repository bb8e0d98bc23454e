//! Payloads of requests as the protocol has them: one value of msgpack, whose maps have texts as keys.

use std::{cell::Cell, fmt};

use serde::{
    Deserializer as _,
    de::{self, DeserializeSeed, Visitor},
};
use serde_json::{Map, Number, Value};

use super::message::Refused;

/// Deep enough for any task, and shallow enough for the stack.
const MAX_DEPTH: usize = 128;
/// More values than any task has: one takes a byte there and some forty here.
const MAX_VALUES: usize = 1 << 22;

/// Reads a payload; what is wrong with it is said in the words of the peer's own decoder.
///
/// # Errors
/// The payload is no msgpack, not all of it, or has keys that are no texts.
pub(super) fn read(payload: &[u8]) -> Result<Value, Refused> {
    let mut rest = payload;
    let mut deserializer = rmp_serde::Deserializer::new(&mut rest);
    deserializer.set_max_depth(MAX_DEPTH);
    let left = Cell::new(MAX_VALUES);
    let value = Plain(&left).deserialize(&mut deserializer).map_err(refusal)?;
    if rest.is_empty() { Ok(value) } else { Err(Refused::new("ExtraData", "unpack(b) received extra data.")) }
}

fn refusal(error: rmp_serde::decode::Error) -> Refused {
    use rmp_serde::decode::Error;
    match error {
        Error::InvalidMarkerRead(_) | Error::InvalidDataRead(_) => {
            Refused::new("ValueError", "Unpack failed: incomplete input")
        }
        Error::TypeMismatch(_) => Refused::new("FormatError", ""),
        Error::Utf8Error(error) => Refused::new("UnicodeDecodeError", error.to_string()),
        Error::DepthLimitExceeded => Refused::new("StackError", format!("more than {MAX_DEPTH} levels")),
        error => Refused::new("ValueError", error.to_string()),
    }
}

/// Any value that JSON has, too, as long as so many are left.
#[derive(Clone, Copy)]
struct Plain<'a>(&'a Cell<usize>);

impl<'de> DeserializeSeed<'de> for Plain<'_> {
    type Value = Value;

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let left = self.0.get().checked_sub(1);
        self.0.set(left.ok_or_else(|| de::Error::custom(format!("more than {MAX_VALUES} values")))?);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Plain<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value that JSON has, too")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = items.next_element_seed(self)? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key_seed(TextKey)? {
            map.insert(key, entries.next_value_seed(self)?);
        }
        Ok(map.into())
    }
}

/// A key that is a text.
struct TextKey;

impl<'de> DeserializeSeed<'de> for TextKey {
    type Value = String;

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for TextKey {
    type Value = String;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a key that is a text")
    }

    fn visit_str<E>(self, key: &str) -> Result<String, E> {
        Ok(key.to_owned())
    }

    fn visit_u64<E: de::Error>(self, _key: u64) -> Result<String, E> {
        Err(E::custom("int is not allowed for map key when strict_map_key=True"))
    }

    fn visit_i64<E: de::Error>(self, _key: i64) -> Result<String, E> {
        Err(E::custom("int is not allowed for map key when strict_map_key=True"))
    }
}

/// The id that a `cancel` names, which may be any bytes; `None` where the payload is none.
pub(super) fn named_id(payload: &[u8]) -> Option<Vec<u8>> {
    struct Id;

    impl Visitor<'_> for Id {
        type Value = Vec<u8>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("the id of a request")
        }

        fn visit_str<E>(self, id: &str) -> Result<Vec<u8>, E> {
            Ok(id.as_bytes().to_vec())
        }

        fn visit_bytes<E>(self, id: &[u8]) -> Result<Vec<u8>, E> {
            Ok(id.to_vec())
        }
    }

    impl<'de> DeserializeSeed<'de> for Id {
        type Value = Vec<u8>;

        fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<Vec<u8>, D::Error> {
            deserializer.deserialize_any(Self)
        }
    }

    struct Request;

    impl<'de> Visitor<'de> for Request {
        type Value = Option<Vec<u8>>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("a map that names a request")
        }

        fn visit_map<A: de::MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
            let mut named = None;
            while let Some(key) = entries.next_key_seed(TextKey)? {
                if key == "request_id" {
                    named = Some(entries.next_value_seed(Id)?);
                } else {
                    entries.next_value::<de::IgnoredAny>()?;
                }
            }
            Ok(named)
        }
    }

    let mut rest = payload;
    let mut deserializer = rmp_serde::Deserializer::new(&mut rest);
    deserializer.set_max_depth(MAX_DEPTH);
    let named = deserializer.deserialize_any(Request).ok().flatten()?;
    rest.is_empty().then_some(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_have_the_words_of_the_peer() {
        for (payload, error) in [
            (&b"\xc1"[..], "FormatError: "),
            (b"", "ValueError: Unpack failed: incomplete input"),
            (b"\x81\xa1a", "ValueError: Unpack failed: incomplete input"),
            (b"\x80\x00", "ExtraData: unpack(b) received extra data."),
            (b"\x81\x01\x02", "ValueError: int is not allowed for map key when strict_map_key=True"),
            (b"\x81\xa1a\x81\xff\x02", "ValueError: int is not allowed for map key when strict_map_key=True"),
        ] {
            assert_eq!(read(payload).unwrap_err().to_string(), error, "{payload:?}");
        }
        assert!(read(b"\xa2\xff\xfe").unwrap_err().to_string().starts_with("UnicodeDecodeError: "));
        assert!(read(&vec![0x91; 100_000]).unwrap_err().to_string().starts_with("StackError: "));
        let many = [&[0xdd, 0, 0x40, 0, 0][..], &[0xc0; 1 << 22]].concat();
        assert_eq!(read(&many).unwrap_err().to_string(), "ValueError: more than 4194304 values");
        // A length that is not there asks for no memory.
        assert!(read(b"\xdd\xff\xff\xff\xff").unwrap_err().to_string().starts_with("ValueError: "));
    }

    #[test]
    fn a_cancel_names_any_bytes() {
        let text = rmp_serde::to_vec_named(&serde_json::json!({"x": {"y": 1}, "request_id": "abc"})).unwrap();
        assert_eq!(named_id(&text).unwrap(), b"abc");
        assert_eq!(named_id(b"\x81\xaarequest_id\xc4\x02\xff\x00").unwrap(), b"\xff\x00");
        assert_eq!(named_id(b"\x81\xaarequest_id\xa2\xff\x00").unwrap(), b"\xff\x00");
        for none in [&b"\x80"[..], b"\x90", b"\x81\xaarequest_id\x01", b"\x81\xaarequest_id\xa1a\x00"] {
            assert_eq!(named_id(none), None);
        }
    }
}
