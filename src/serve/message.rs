//! Requests and replies, and the texts in which a request is refused.

use std::{borrow::Cow, fmt};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::payload;
use crate::trace::{TaskData, wire::TraceSummary};

/// The route frames.
pub(super) const HEALTH: &[u8] = b"health";
pub(super) const RUN: &[u8] = b"run";
pub(super) const CANCEL: &[u8] = b"cancel";
/// The kinds of an answer.
pub(super) const DELTA: &[u8] = b"delta";
pub(super) const REPLY: &[u8] = b"reply";

/// Bytes of an id or a route at most: they are kept, and sent back, for as long as a client likes.
pub(super) const LONGEST_NAME: usize = 1 << 10;
/// Bytes of a refusal at most; it may quote what it refuses.
const LONGEST_REFUSAL: usize = 64 << 10;

/// One run that is asked for: the task, and the model to run it on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunRequest {
    /// The row. A server checks it against the rows of its own taskset.
    pub task_data: Map<String, Value>,
    /// The endpoint, with its `type`. Keys never cross the wire: `api_key_var` names a variable of the server.
    pub client: Map<String, Value>,
    /// The model asked.
    pub model: String,
    /// Sampling fields.
    pub sampling: Map<String, Value>,
}

/// A task that cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the task's `{key}` holds a whole number beyond 64 bits, which the protocol cannot carry; make it a text")]
pub struct Unsendable {
    /// The field.
    pub key: String,
}

/// Why a request was refused, as an error reply says it: the class of an exception, and its message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Refused {
    /// The class, such as `ValidationError`; empty where there is none.
    pub class: String,
    /// What is wrong, and with what.
    pub message: String,
}

impl RunRequest {
    /// The request for a row.
    ///
    /// # Errors
    /// The row holds a number that the protocol cannot carry.
    pub fn new(
        task: &TaskData,
        client: Map<String, Value>,
        model: impl Into<String>,
        sampling: Map<String, Value>,
    ) -> Result<Self, Unsendable> {
        if let Some(key) = task.exact.keys().next() {
            return Err(Unsendable { key: key.clone() });
        }
        let Ok(Value::Object(mut task_data)) = serde_json::to_value(task) else {
            return Err(Unsendable { key: String::new() });
        };
        // A row type may insist on a field that may be null.
        for (key, value) in task.extra.iter().filter(|(_, value)| value.is_null()) {
            task_data.insert(key.clone(), value.clone());
        }
        Ok(Self { task_data, client, model: model.into(), sampling })
    }

    /// The payload.
    pub(super) fn pack(&self) -> Bytes {
        pack(self)
    }

    /// Reads a payload. Unknown keys beside the fields are passed over.
    pub(super) fn read(payload: &[u8]) -> Result<Self, Refused> {
        const NAME: &str = "RunRequest";
        let Value::Object(mut fields) = payload::read(payload)? else {
            return Err(Refused::invalid(NAME, [("", "Input should be a valid dictionary")]));
        };
        let mut faults = Vec::new();
        let mut map = |key: &'static str| match fields.shift_remove(key) {
            Some(Value::Object(map)) => map,
            other => {
                let fault = if other.is_none() { MISSING } else { "Input should be a valid dictionary" };
                faults.push((key, fault));
                Map::new()
            }
        };
        let (task_data, client) = (map("task_data"), map("client"));
        let sampling = map("sampling");
        let model = match fields.shift_remove("model") {
            Some(Value::String(model)) => model,
            other => {
                let fault = if other.is_none() { MISSING } else { "Input should be a valid string" };
                faults.insert(faults.iter().filter(|(key, _)| *key != "sampling").count(), ("model", fault));
                String::new()
            }
        };
        if faults.is_empty() {
            Ok(Self { task_data, client, model, sampling })
        } else {
            Err(Refused::invalid(NAME, faults))
        }
    }
}

const MISSING: &str = "Field required";

impl Refused {
    /// A refusal of a class.
    pub fn new(class: impl Into<String>, message: impl Into<String>) -> Self {
        Self { class: class.into(), message: message.into() }
    }

    /// Values that are not what `model` has: fields with what is wrong with each, in the form of the peer.
    pub fn invalid<K: fmt::Display, P: fmt::Display>(
        model: &str,
        faults: impl IntoIterator<Item = (K, P), IntoIter: ExactSizeIterator>,
    ) -> Self {
        let faults = faults.into_iter();
        let (count, plural) = (faults.len(), if faults.len() == 1 { "" } else { "s" });
        let mut message = format!("{count} validation error{plural} for {model}");
        for (key, problem) in faults {
            let key = key.to_string();
            if !key.is_empty() {
                message.push('\n');
                message.push_str(&key);
            }
            message.push_str("\n  ");
            message.push_str(&problem.to_string());
        }
        Self::new(VALIDATION, message)
    }

    /// The run was aborted because its client asked for it, or is gone.
    pub fn cancelled() -> Self {
        Self::new(CANCELLED, "rollout aborted")
    }

    pub(super) fn unknown_method(route: &[u8]) -> Self {
        match std::str::from_utf8(route) {
            Ok(route) => Self::new("", format!("unknown method {}", quoted(route))),
            Err(error) => Self::new("UnicodeDecodeError", format!("the route is not UTF-8: {error}")),
        }
    }

    pub(super) fn nameless_cancel(payload: &[u8]) -> Self {
        match payload::read(payload) {
            Err(refused) => refused,
            Ok(Value::Object(fields)) => {
                let problem =
                    if fields.contains_key("request_id") { "Input should be a valid string" } else { MISSING };
                Self::invalid("CancelRequest", [("request_id", problem)])
            }
            Ok(_) => Self::invalid("CancelRequest", [("", "Input should be a valid dictionary")]),
        }
    }

    /// The refusal that an error reply tells.
    pub(super) fn of_text(text: &str) -> Self {
        let text = &*cut(text);
        let name = |class: &str| {
            !class.is_empty()
                && class.chars().all(|c| c.is_alphanumeric() || c == '_')
                && !class.starts_with(char::is_numeric)
        };
        match text.split_once(':') {
            Some((class, message)) if name(class) => Self::new(class, message.strip_prefix(' ').unwrap_or(message)),
            _ => Self::new("", text),
        }
    }
}

/// A text that is no longer than one that somebody reads.
fn cut(text: &str) -> Cow<'_, str> {
    if text.len() <= LONGEST_REFUSAL {
        return text.into();
    }
    let end = (0..=LONGEST_REFUSAL).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{} … ({} bytes)", &text[..end], text.len()).into()
}

/// Whether the id and the route of a request are no longer than any honest ones; else it is logged, and to be dropped.
pub(super) fn is_named(id: &[u8], route: &[u8]) -> bool {
    let is_named = id.len() <= LONGEST_NAME && route.len() <= LONGEST_NAME;
    if !is_named {
        tracing::warn!(id = id.len(), route = route.len(), "dropped a request whose id or route has too many bytes");
    }
    is_named
}

/// The classes of refusals that more than one file knows.
pub(super) const VALIDATION: &str = "ValidationError";
pub(super) const CANCELLED: &str = "Cancelled";
/// Of a server that takes no more runs, and of a pool.
pub(super) const SHUT_DOWN: &str = "ShutDown";
pub(super) const POOL_CLOSED: &str = "PoolClosed";
/// Of those that hold too much.
pub(super) const BUSY: &str = "ServerBusy";
pub(super) const POOL_BUSY: &str = "PoolBusy";
/// Of a pool: a worker went with the run, or none comes up any more.
pub(super) const WORKER_LOST: &str = "WorkerLost";
pub(super) const NO_WORKERS: &str = "NoWorkers";

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.class.is_empty() {
            formatter.write_str(&self.message)
        } else {
            write!(formatter, "{}: {}", self.class, self.message)
        }
    }
}

/// A text as Python writes it between quotes.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut quoted = String::from(quote);
    for letter in text.chars() {
        match letter {
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            _ if letter == quote => quoted.extend(['\\', letter]),
            _ if letter < ' ' || letter == '\x7f' => quoted.push_str(&format!("\\x{:02x}", u32::from(letter))),
            _ => quoted.push(letter),
        }
    }
    quoted.push(quote);
    quoted
}

/// The reply to `health`.
pub(super) fn healthy() -> Bytes {
    #[derive(Serialize)]
    struct Reply {
        success: bool,
        error: (),
    }
    pack(&Reply { success: true, error: () })
}

/// The reply to `cancel`.
pub(super) fn cancelled(cancelled: bool) -> Bytes {
    #[derive(Serialize)]
    struct Reply {
        success: bool,
        error: (),
        cancelled: bool,
    }
    pack(&Reply { success: true, error: (), cancelled })
}

/// The reply to a request that was refused.
pub(super) fn refusal(refused: &Refused) -> Bytes {
    #[derive(Serialize)]
    struct Reply<'a> {
        success: bool,
        error: &'a str,
    }
    pack(&Reply { success: false, error: &cut(&refused.to_string()) })
}

/// The reply to a run that came to an end.
pub(super) fn done(head: &impl Serialize, traces: &[TraceSummary]) -> Result<Bytes, rmp_serde::encode::Error> {
    #[derive(Serialize)]
    struct Reply<'a, H> {
        success: bool,
        error: (),
        head: &'a H,
        traces: &'a [TraceSummary],
    }
    Ok(rmp_serde::to_vec_named(&Reply { success: true, error: (), head, traces })?.into())
}

/// The payload of a `cancel` of a run.
pub(super) fn cancel(id: &str) -> Bytes {
    #[derive(Serialize)]
    struct Request<'a> {
        request_id: &'a str,
    }
    pack(&Request { request_id: id })
}

/// The payload of a `health`.
pub(super) fn health() -> Bytes {
    Bytes::from_static(b"\x80")
}

/// A reply, but for what belongs to a run.
#[derive(Debug, Deserialize)]
pub(super) struct Standing {
    #[serde(default = "yes")]
    pub(super) success: bool,
    #[serde(default)]
    pub(super) error: Option<String>,
}

impl Standing {
    /// The refusal that the reply tells, if it does.
    pub(super) fn verdict(self) -> Result<(), Refused> {
        if self.success {
            return Ok(());
        }
        let text = self.error.filter(|text| !text.is_empty());
        Err(Refused::of_text(text.as_deref().unwrap_or("the env server gave no reason")))
    }
}

fn yes() -> bool {
    true
}

fn pack(value: &impl Serialize) -> Bytes {
    // Maps of texts to JSON: there is nothing in them that msgpack lacks.
    rmp_serde::to_vec_named(value).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn packed(value: &Value) -> Vec<u8> {
        rmp_serde::to_vec_named(value).unwrap()
    }

    #[test]
    fn a_request_reads_as_it_was_written() {
        let mut task = TaskData { idx: Some(3), ..TaskData::default() };
        task.extra.insert("answer".to_owned(), Value::Null);
        let map = |value: Value| value.as_object().unwrap().clone();
        let client = map(json!({"type": "eval", "base_url": "http://x/v1"}));
        let request = RunRequest::new(&task, client, "m", map(json!({"temperature": 0.5}))).unwrap();
        assert_eq!(request.task_data["answer"], Value::Null);
        assert_eq!(RunRequest::read(&request.pack()).unwrap(), request);
    }

    #[test]
    fn a_number_that_msgpack_lacks_is_not_rounded() {
        let task: TaskData = serde_json::from_str(r#"{"answer": 123456789012345678901234567890}"#).unwrap();
        let refused = RunRequest::new(&task, Map::new(), "m", Map::new()).unwrap_err();
        assert_eq!(refused.key, "answer");
    }

    #[test]
    fn faults_name_their_fields_in_order() {
        let error = |value: Value| RunRequest::read(&packed(&value)).unwrap_err().to_string();
        assert_eq!(
            error(json!({"task_data": {}, "client": {}, "sampling": {}, "more": 1})),
            "ValidationError: 1 validation error for RunRequest\nmodel\n  Field required"
        );
        assert_eq!(
            error(json!({"client": [], "model": 1})),
            "ValidationError: 4 validation errors for RunRequest\ntask_data\n  Field required\nclient\n  \
             Input should be a valid dictionary\nmodel\n  Input should be a valid string\nsampling\n  Field required"
        );
        assert!(error(json!([])).starts_with("ValidationError: 1 validation error for RunRequest\n  Input should"));
    }

    #[test]
    fn routes_are_quoted_as_python_does() {
        for (route, text) in
            [("frobnicate", "'frobnicate'"), ("it's", "\"it's\""), ("a\n\"'\u{1}\\", "'a\\n\"\\'\\x01\\\\'")]
        {
            assert_eq!(Refused::unknown_method(route.as_bytes()).to_string(), format!("unknown method {text}"));
        }
        assert!(Refused::unknown_method(b"\xff").to_string().starts_with("UnicodeDecodeError: "));
    }

    #[test]
    fn the_class_of_an_error_is_told_from_its_text() {
        let told = |text: &str| Refused::of_text(text);
        assert_eq!(told("ValidationError: 1 x: y"), Refused::new("ValidationError", "1 x: y"));
        assert_eq!(told("Cancelled: rollout aborted"), Refused::cancelled());
        assert_eq!(told("FormatError: "), Refused::new("FormatError", ""));
        for plain in ["unknown method 'x: y'", "", "no class here: x"] {
            assert_eq!(told(plain), Refused::new("", plain));
        }
    }
}
