//! What servers write when they refuse or fail.

use serde_json::Value;

/// What a server says about a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ErrorBody {
    /// The message, one line.
    pub(super) message: String,
    /// `type`, as `BadRequestError`.
    pub(super) kind: String,
    /// The parameter at fault.
    pub(super) param: String,
    /// `code`, number or word.
    pub(super) code: String,
}

impl ErrorBody {
    /// Reads a body in any of the known forms: OpenAI's and vLLM's `{"error": {…}}`, SGLang's and older vLLM's object
    /// at the top, Ollama's and TGI's `{"error": "…"}`, FastAPI's `detail`, plain text.
    pub(super) fn parse(body: &[u8]) -> Self {
        match serde_json::from_slice::<Value>(body) {
            Ok(value @ Value::Object(_)) => {
                let inner = value.get("error").filter(|error| !error.is_null()).unwrap_or(&value);
                let mut parsed = Self::of_value(inner);
                if parsed.kind.is_empty() {
                    parsed.kind = text(value.get("error_type"));
                }
                parsed
            }
            Ok(value) => Self { message: one_line(&text(Some(&value))), ..Self::default() },
            Err(_) => Self { message: one_line(&String::from_utf8_lossy(body)), ..Self::default() },
        }
    }

    /// Reads what stands under `error`.
    pub(super) fn of_value(error: &Value) -> Self {
        let Value::Object(fields) = error else {
            return Self { message: one_line(&text(Some(error))), ..Self::default() };
        };
        let message = ["message", "detail", "error", "msg"].iter().find_map(|key| fields.get(*key));
        let mut message = text(message.or(Some(error)));
        // OpenRouter says "Provider returned error" and keeps what the provider said apart.
        if let Some(raw) = error.pointer("/metadata/raw") {
            message = format!("{message}: {}", text(Some(raw)));
        }
        let field = |key: &str| text(fields.get(key));
        Self { message: one_line(&message), kind: field("type"), param: field("param"), code: field("code") }
    }
}

fn text(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// One line of at most 1,000 characters, without what a terminal would obey.
pub(super) fn one_line(text: &str) -> String {
    let blank = |c: char| c.is_whitespace() || c.is_control();
    let line = text.split(blank).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(1000) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}
