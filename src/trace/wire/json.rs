//! Free JSON that comes as msgpack: agents' configs, task rows, notes.
//!
//! It goes through text, so that one rule holds for all that Python's msgpack has and JSON has not: keys that are no text
//! become text, what is not finite becomes null, binary data becomes base64 up to [`LONGEST_BINARY`] bytes and beyond that
//! a note of its length. That is also what is left of a tensor: its dtype and shape stay, large data goes.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, DeserializeOwned, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

/// Containers inside one another; what reads the text back allows a few more.
pub(super) const MAX_DEPTH: usize = 120;

/// Values of one piece of free JSON: a null takes a byte there and some forty here.
const MAX_VALUES: usize = 1 << 22;

/// Bytes of binary data that free JSON keeps.
const LONGEST_BINARY: usize = 4096;

/// A value that is read by way of JSON text.
#[derive(Clone, Debug, Default)]
pub struct Json<T>(pub T);

impl<'de, T: DeserializeOwned> Deserialize<'de> for Json<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = transcribe(deserializer, Nulls::Kept)?;
        serde_json::from_slice(&text).map(Self).map_err(de::Error::custom)
    }
}

/// Which nulls of a map are left out, for the wire has those of declared fields and the file has not.
#[derive(Clone, Copy)]
pub(super) enum Nulls {
    /// None: it is a plain map.
    Kept,
    /// Those of its own entries.
    Declared,
    /// Those of a seat's or runtime's config: all but what lies inside its plain maps.
    Config,
}

impl Nulls {
    fn of_entry(self, key: &[u8]) -> Self {
        match (self, key) {
            (Self::Kept | Self::Declared, _) | (Self::Config, b"\"sampling\"") => Self::Kept,
            (Self::Config, b"\"harness\"") => Self::Declared,
            (Self::Config, _) => Self::Config,
        }
    }
}

/// JSON text of the next value.
pub(super) fn transcribe<'de, D: Deserializer<'de>>(deserializer: D, nulls: Nulls) -> Result<Vec<u8>, D::Error> {
    let (mut out, mut left) = (Vec::new(), MAX_VALUES);
    Transcriber { out: &mut out, nulls, depth: 0, left: &mut left }.deserialize(deserializer)?;
    Ok(out)
}

/// The same as a raw value.
pub(super) fn raw<'de, D: Deserializer<'de>>(deserializer: D, nulls: Nulls) -> Result<Box<RawValue>, D::Error> {
    let text = String::from_utf8(transcribe(deserializer, nulls)?).map_err(de::Error::custom)?;
    RawValue::from_string(text).map_err(de::Error::custom)
}

struct Transcriber<'a> {
    out: &'a mut Vec<u8>,
    nulls: Nulls,
    depth: usize,
    left: &'a mut usize,
}

impl Transcriber<'_> {
    fn put<E: de::Error>(&mut self, value: &(impl Serialize + ?Sized)) -> Result<(), E> {
        serde_json::to_writer(&mut *self.out, value).map_err(E::custom)
    }

    /// One container deeper.
    fn inner<E: de::Error>(&mut self, nulls: Nulls) -> Result<Transcriber<'_>, E> {
        if self.depth == MAX_DEPTH {
            return Err(E::custom("it nests too deep"));
        }
        Ok(Transcriber { out: &mut *self.out, nulls, depth: self.depth + 1, left: &mut *self.left })
    }
}

impl<'de> DeserializeSeed<'de> for Transcriber<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let left = self.left.checked_sub(1);
        *self.left = left.ok_or_else(|| de::Error::custom(format!("it has more than {MAX_VALUES} values")))?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Transcriber<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E: de::Error>(mut self) -> Result<(), E> {
        self.put(&())
    }

    fn visit_none<E: de::Error>(self) -> Result<(), E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E: de::Error>(mut self, value: bool) -> Result<(), E> {
        self.put(&value)
    }

    fn visit_i64<E: de::Error>(mut self, value: i64) -> Result<(), E> {
        self.put(&value)
    }

    fn visit_u64<E: de::Error>(mut self, value: u64) -> Result<(), E> {
        self.put(&value)
    }

    fn visit_f64<E: de::Error>(mut self, value: f64) -> Result<(), E> {
        self.put(&value)
    }

    fn visit_str<E: de::Error>(mut self, text: &str) -> Result<(), E> {
        self.put(text)
    }

    fn visit_bytes<E: de::Error>(mut self, bytes: &[u8]) -> Result<(), E> {
        if bytes.len() > LONGEST_BINARY {
            return self.put(&format!("<{} bytes left out>", bytes.len()));
        }
        self.put(&STANDARD.encode(bytes))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(mut self, deserializer: D) -> Result<(), D::Error> {
        // An extension, of which nothing is known.
        IgnoredAny::deserialize(deserializer)?;
        self.put(&())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<(), A::Error> {
        let nulls = match self.nulls {
            Nulls::Declared => Nulls::Kept,
            nulls => nulls,
        };
        self.out.push(b'[');
        loop {
            let before = self.out.len();
            if self.out.last() != Some(&b'[') {
                self.out.push(b',');
            }
            if items.next_element_seed(self.inner(nulls)?)?.is_none() {
                self.out.truncate(before);
                self.out.push(b']');
                return Ok(());
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<(), A::Error> {
        let mut is_first = true;
        self.out.push(b'{');
        loop {
            let before = self.out.len();
            if !is_first {
                self.out.push(b',');
            }
            let key = self.out.len();
            if entries.next_key_seed(Key(&mut *self.out))?.is_none() {
                self.out.truncate(before);
                self.out.push(b'}');
                return Ok(());
            }
            let nulls = self.nulls.of_entry(&self.out[key..]);
            self.out.push(b':');
            let value = self.out.len();
            entries.next_value_seed(self.inner(nulls)?)?;
            if !matches!(self.nulls, Nulls::Kept) && self.out[value..] == *b"null" {
                self.out.truncate(before);
            } else {
                is_first = false;
            }
        }
    }
}

/// A key of a map, as text.
struct Key<'a>(&'a mut Vec<u8>);

impl Key<'_> {
    fn put<E: de::Error>(self, text: &str) -> Result<(), E> {
        serde_json::to_writer(self.0, text).map_err(E::custom)
    }
}

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Key<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key that is a text or a number")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<(), E> {
        self.put(text)
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<(), E> {
        self.put(&String::from_utf8_lossy(bytes))
    }

    fn visit_i64<E: de::Error>(self, key: i64) -> Result<(), E> {
        self.put(&key.to_string())
    }

    fn visit_u64<E: de::Error>(self, key: u64) -> Result<(), E> {
        self.put(&key.to_string())
    }

    // As Python's JSON writer has them.
    fn visit_f64<E: de::Error>(self, key: f64) -> Result<(), E> {
        self.put(&format!("{key:?}"))
    }

    fn visit_bool<E: de::Error>(self, key: bool) -> Result<(), E> {
        self.put(if key { "true" } else { "false" })
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        self.put("null")
    }
}
