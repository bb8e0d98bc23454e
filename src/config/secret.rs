//! Secrets that cannot be printed, and a filter that keeps them out of everything that is written.

use std::{borrow::Cow, env, fmt, ops::Range};

use base64::{Engine, alphabet, engine::general_purpose::GeneralPurpose, engine::general_purpose::NO_PAD};
use regex::bytes::Regex;
use thiserror::Error;

/// A secret value, such as an API key. It implements neither `Debug`, `Display` nor `Serialize`:
///
/// ```compile_fail
/// let secret = rollhouse::config::Secret::new("key".to_owned());
/// println!("{secret:?}");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// Why an environment variable holds no usable secret. The value is never part of the message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SecretError {
    /// Not set, or empty.
    #[error("the environment variable `{0}` is not set; export it, or name another one with `client.api_key_var`")]
    Unset(String),
    /// Would break the header that carries it.
    #[error(
        "the environment variable `{0}` holds characters that no header may carry; check it for a stray line break"
    )]
    NotPrintable(String),
}

impl Secret {
    /// Takes a value into custody.
    #[must_use]
    pub fn new(value: String) -> Self {
        Self(value)
    }

    /// Reads an environment variable; spaces and line breaks around the value are dropped.
    ///
    /// # Errors
    /// When the variable is unset or empty, or holds anything but printable ASCII.
    pub fn from_env(name: &str) -> Result<Self, SecretError> {
        let Some(value) = env::var_os(name) else { return Err(SecretError::Unset(name.to_owned())) };
        let value = value.into_string().map_err(|_| SecretError::NotPrintable(name.to_owned()))?;
        let value = value.trim();
        if value.is_empty() {
            return Err(SecretError::Unset(name.to_owned()));
        }
        if !value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return Err(SecretError::NotPrintable(name.to_owned()));
        }
        Ok(Self(value.to_owned()))
    }

    /// The value, for the one place that sends it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// What stands in place of a secret.
const REDACTED: &str = "[redacted]";
/// Shorter values are no secrets but words such as `EMPTY`; hiding them would spoil ordinary text.
const SHORTEST: usize = 6;
/// Shorter pieces of base64 occur by chance.
const SHORTEST_BASE64: usize = 8;

/// Replaces known secrets in text by `[redacted]`: as they are, URL-encoded, JSON-escaped, and in base64 (both alphabets,
/// at any of the three alignments, so that `user:key` in a Basic header is found too).
///
/// Values shorter than 6 bytes are left alone. One search of the text whatever the number of secrets; text without any
/// is handed back borrowed.
#[derive(Clone, Default)]
pub struct Redactor {
    pattern: Option<Regex>,
}

impl fmt::Debug for Redactor {
    /// Whether it knows any, and none of them.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Redactor").field("knows_secrets", &self.pattern.is_some()).finish()
    }
}

impl Redactor {
    /// A filter for these secrets.
    #[must_use]
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Self {
        let mut forms: Vec<String> = Vec::new();
        for secret in secrets.into_iter().filter(|secret| secret.0.len() >= SHORTEST) {
            encodings(&secret.0, &mut forms);
        }
        // The first alternative wins, so a longer form must stand before its own part.
        forms.sort_by(|left, right| right.len().cmp(&left.len()).then(left.cmp(right)));
        forms.dedup();
        if forms.is_empty() {
            return Self::default();
        }
        let escaped: Vec<String> = forms.iter().map(|form| regex::escape(form)).collect();
        let pattern = Regex::new(&escaped.join("|")).expect("escaped literals form a valid pattern");
        Self { pattern: Some(pattern) }
    }

    /// The text without secrets.
    #[must_use]
    pub fn redact<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self.redact_bytes(text.as_bytes()) {
            Cow::Borrowed(_) => Cow::Borrowed(text),
            // Secrets and their replacement are whole characters, so the rest is text as before.
            Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
        }
    }

    /// Takes the secrets out of a line of JSON, which stays valid and of its form: a placeholder such as `content` for a
    /// key is left where it is a field's name or a role.
    pub fn redact_line(&self, line: &mut String) {
        let Some(pattern) = &self.pattern else { return };
        let mut clean = String::new();
        let mut kept = 0;
        for found in pattern.find_iter(line.as_bytes()).filter(|found| !is_form(line, found.range())) {
            clean.push_str(&line[kept..found.start()]);
            clean.push_str(REDACTED);
            kept = found.end();
        }
        if kept > 0 {
            clean.push_str(&line[kept..]);
            *line = clean;
        }
    }

    /// The bytes without secrets.
    #[must_use]
    pub fn redact_bytes<'t>(&self, bytes: &'t [u8]) -> Cow<'t, [u8]> {
        match &self.pattern {
            Some(pattern) => pattern.replace_all(bytes, REDACTED.as_bytes()),
            None => Cow::Borrowed(bytes),
        }
    }
}

/// Whether a match in a line of JSON is a name that the format itself uses: lowercase words, as a field or a role. Inside
/// of a string every quotation mark has a backslash, so `":` only ends a field's name.
fn is_form(line: &str, found: Range<usize>) -> bool {
    let word = line[found.clone()].bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let (before, after) = (&line[..found.start], &line[found.end..]);
    word && (is_field(before, after) || (before.ends_with("\"role\":\"") && after.starts_with('"')))
}

/// Whether what stands between is part of a field's name.
fn is_field(before: &str, after: &str) -> bool {
    let name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let start = before.bytes().rev().find(|byte| !name(byte));
    let end = after.bytes().position(|byte| !name(&byte)).map(|end| &after[end..]);
    start == Some(b'"') && end.is_some_and(|end| end.starts_with("\":"))
}

fn encodings(value: &str, forms: &mut Vec<String>) {
    forms.push(value.to_owned());
    let json = serde_json::Value::from(value).to_string();
    let json = &json[1..json.len() - 1];
    forms.extend([json.to_owned(), json.replace('/', "\\/")]);
    for upper in [true, false] {
        let escaped: String = value.bytes().map(|byte| percent(byte, upper)).collect();
        forms.extend([escaped.replace("%20", "+"), escaped]);
    }
    for alphabet in [&alphabet::STANDARD, &alphabet::URL_SAFE] {
        let engine = GeneralPurpose::new(alphabet, NO_PAD);
        for lead in 0..3_usize {
            let mut bytes = vec![0; lead];
            bytes.extend_from_slice(value.as_bytes());
            let encoded = engine.encode(&bytes);
            // Characters that also hold bits of a neighbour depend on it; only those of the secret alone are looked for.
            let (start, end) = ((lead * 8).div_ceil(6), bytes.len() * 8 / 6);
            if end - start >= SHORTEST_BASE64 {
                forms.push(encoded[start..end].to_owned());
            }
        }
    }
}

fn percent(byte: u8, upper: bool) -> String {
    if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
        char::from(byte).to_string()
    } else if upper {
        format!("%{byte:02X}")
    } else {
        format!("%{byte:02x}")
    }
}

#[cfg(test)]
mod tests {
    use base64::prelude::*;
    use proptest::prelude::*;

    use super::*;

    fn hidden(secret: &str, text: &str) -> String {
        Redactor::new([&Secret::new(secret.to_owned())]).redact(text).into_owned()
    }

    #[test]
    fn usual_encodings_are_found() {
        let secret = "sk-a/b+c\"d e";
        assert_eq!(hidden(secret, &format!("key={secret}.")), "key=[redacted].");
        assert_eq!(hidden(secret, &serde_json::json!({ "k": secret }).to_string()), "{\"k\":\"[redacted]\"}");
        assert_eq!(hidden(secret, "?k=sk-a%2Fb%2Bc%22d%20e&x=1"), "?k=[redacted]&x=1");
        assert_eq!(hidden(secret, "?k=sk-a%2fb%2bc%22d+e&x=1"), "?k=[redacted]&x=1");
    }

    #[test]
    fn a_word_of_the_format_as_a_key_does_not_break_lines() {
        let clean = |secret: &str, line: &str| {
            let mut line = line.to_owned();
            Redactor::new([&Secret::new(secret.to_owned())]).redact_line(&mut line);
            line
        };
        let line = r#"{"content":"my content","is_content":[1],"x":"content","y":"\"content\":1"}"#;
        let shown = r#"{"content":"my [redacted]","is_content":[1],"x":"[redacted]","y":"\"[redacted]\":1"}"#;
        assert_eq!(clean("content", line), shown);
        let line = r#"{"role":"system","content":"the system"}"#;
        assert_eq!(clean("system", line), r#"{"role":"system","content":"the [redacted]"}"#);
        assert_eq!(clean("sk-1234", r#"{"sk-1234":"sk-1234"}"#), r#"{"[redacted]":"[redacted]"}"#);
        assert_eq!(clean("sk-1234", "{}"), "{}");
    }

    #[test]
    fn short_values_and_clean_text_are_left_alone() {
        assert_eq!(hidden("EMPTY", "the list is EMPTY"), "the list is EMPTY");
        assert!(matches!(Redactor::default().redact("clean"), Cow::Borrowed(_)));
        let redactor = Redactor::new([&Secret::new("sk-123456".to_owned())]);
        assert!(matches!(redactor.redact("clean"), Cow::Borrowed(_)));
    }

    #[test]
    fn the_variable_is_named_when_it_is_not_set() {
        let error = Secret::from_env("ROLLHOUSE_NO_SUCH_KEY").err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("`ROLLHOUSE_NO_SUCH_KEY` is not set"), "{error}");
    }

    proptest! {
        #[test]
        fn base64_at_any_alignment_shows_no_stretch_of_the_secret(
            secret in "[ -~]{9,40}", before in "[ -~]{0,8}", after in "[ -~]{0,8}",
        ) {
            let redactor = Redactor::new([&Secret::new(secret.clone())]);
            for encoded in [
                BASE64_STANDARD.encode(format!("{before}{secret}{after}")),
                BASE64_URL_SAFE_NO_PAD.encode(format!("{before}{secret}{after}")),
            ] {
                let shown = redactor.redact(&encoded).into_owned();
                prop_assert!(shown.contains(REDACTED), "{shown}");
                // Of the secret's own characters at most one stays at each end.
                prop_assert!(shown.len() <= (before.len() + after.len() + 4) * 4 / 3 + 8 + REDACTED.len(), "{shown}");
            }
        }
    }
}
