//! What can go wrong in one attempt, and what it means: try again or not, the engine's fault or not.

use std::{error::Error, time::Duration};

use async_openai::error::OpenAIError;
use serde_json::Value;

use super::{
    FailureKind,
    error_body::{ErrorBody, one_line},
    overflow,
};
use crate::trace::{Fault, FaultClass};

/// Bytes of an unreadable answer that its failure shows.
const LONGEST_EXCERPT: usize = 120;

/// Why one attempt failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum AttemptError {
    /// No connection, or the connection broke.
    #[error("{what}: {cause}")]
    Connection { what: &'static str, cause: String },
    /// A deadline ran out.
    #[error("{what} within {} s", limit.as_secs_f64())]
    Deadline { what: &'static str, limit: Duration },
    /// The call's whole budget ran out.
    #[error("the call's budget of {} s ran out before an answer came", limit.as_secs_f64())]
    Budget { limit: Duration },
    /// The server refused or failed.
    #[error("{}", status_line(*status, body, *kind))]
    Status { status: u16, retry_after: Option<Duration>, body: ErrorBody, kind: FailureKind },
    /// The answer cannot be understood.
    #[error("unreadable answer: {0}")]
    Malformed(String),
    /// The server gave up the request while generating.
    #[error("the server gave up the request (finish reason `{0}`)")]
    Aborted(String),
    /// The answer's tokens contradict each other.
    #[error("the answer's tokens cannot be used: {0}")]
    Tokens(String),
    /// The request could not be made.
    #[error("the request cannot be made: {0}")]
    Request(String),
}

impl AttemptError {
    /// An answer that cannot be understood.
    pub(super) fn malformed(what: impl Into<String>) -> Self {
        Self::Malformed(what.into())
    }

    /// An answer that is not the JSON it should be, with how it begins: that tells a proxy's page from a cut answer.
    pub(super) fn unreadable(what: &str, error: &serde_json::Error, body: &[u8]) -> Self {
        let begin = one_line(&String::from_utf8_lossy(&body[..body.len().min(LONGEST_EXCERPT)]));
        let begin = match body {
            [0x1f, 0x8b, ..] => "it is compressed with gzip, which was not asked for".to_owned(),
            _ if begin.is_empty() => "it is empty".to_owned(),
            _ => format!("it begins with `{begin}`"),
        };
        Self::Malformed(format!("{what}: {error}; {begin}"))
    }

    /// A refusal or failure by status and body.
    pub(super) fn status(status: u16, retry_after: Option<Duration>, body: ErrorBody) -> Self {
        let kind = kind_of_status(status, &body);
        Self::Status { status, retry_after, body, kind }
    }

    /// A failure that was put into an answer of status 200, or into a stream.
    pub(super) fn in_band(error: &Value) -> Self {
        let body = ErrorBody::of_value(error);
        let status = body.code.parse().ok().filter(|code| (400..600).contains(code));
        let guessed = if overflow::is_overflow(&body) { 400 } else { 502 };
        Self::status(status.unwrap_or(guessed), None, body)
    }

    /// A failure that a stream announced by the name of its event; JSON in any form of [`ErrorBody`], or text.
    pub(super) fn in_band_text(data: &[u8]) -> Self {
        match serde_json::from_slice::<Value>(data) {
            Ok(value) => Self::in_band(value.get("error").filter(|error| !error.is_null()).unwrap_or(&value)),
            Err(_) => Self::in_band(&Value::String(String::from_utf8_lossy(data).into_owned())),
        }
    }

    /// What kind of failure it is.
    pub(super) fn kind(&self) -> FailureKind {
        match self {
            Self::Status { kind, .. } => *kind,
            Self::Request(_) => FailureKind::Refused,
            Self::Tokens(_) => FailureKind::BadTokens,
            _ => FailureKind::Unavailable,
        }
    }

    /// Whether another attempt of the same call may succeed.
    pub(super) fn is_retryable(&self) -> bool {
        self.kind() == FailureKind::Unavailable && !matches!(self, Self::Budget { .. })
    }

    /// Whether it speaks against the engine's health; a busy engine (429) and an odd answer do not.
    pub(super) fn blames_engine(&self) -> bool {
        match self {
            Self::Connection { .. } | Self::Deadline { .. } => true,
            Self::Status { status, kind, .. } => *status >= 500 && *kind == FailureKind::Unavailable,
            _ => false,
        }
    }

    /// How long the server asks to wait.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// The fault for the trace; `redact` takes secrets out of what servers say.
    pub(super) fn fault(&self, endpoint: &str, redact: impl Fn(String) -> String) -> Fault {
        let status = match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        };
        Fault::new(FaultClass::Provider, redact(format!("{endpoint}: {self}")))
            .retryable(self.kind() == FailureKind::Unavailable)
            .with_status(status)
    }
}

impl From<AttemptError> for OpenAIError {
    fn from(error: AttemptError) -> Self {
        Self::Boxed(Box::new(error))
    }
}

impl From<OpenAIError> for AttemptError {
    fn from(error: OpenAIError) -> Self {
        match error {
            OpenAIError::Boxed(error) => match error.downcast::<AttemptError>() {
                Ok(error) => *error,
                Err(error) => Self::Connection { what: "the request failed", cause: error.to_string() },
            },
            OpenAIError::Reqwest(error) => error.into(),
            OpenAIError::JSONDeserialize(error, body) => {
                Self::unreadable("not the expected JSON", &error, body.as_bytes())
            }
            OpenAIError::InvalidArgument(message) => Self::Request(message),
            other => Self::Malformed(other.to_string()),
        }
    }
}

impl From<reqwest::Error> for AttemptError {
    fn from(error: reqwest::Error) -> Self {
        if error.is_builder() {
            return Self::Request(root_cause(&error));
        }
        let mut source = error.source();
        while let Some(cause) = source {
            if let Some(stall) = cause.downcast_ref::<BodyFault>() {
                return stall.0.to_attempt_error();
            }
            source = cause.source();
        }
        let what = match () {
            () if error.is_connect() && error.is_timeout() => "no connection in time",
            () if error.is_connect() => "no connection",
            () if error.is_body() || error.is_decode() => "the answer was cut off",
            () => "the connection broke",
        };
        Self::Connection { what, cause: root_cause(&error) }
    }
}

/// A fault of ours that travels inside a response's body.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("{0:?}")]
pub(super) struct BodyFault(pub(super) BodyFaultKind);

/// The faults that can travel so.
#[derive(Clone, Copy, Debug)]
pub(super) enum BodyFaultKind {
    /// Nothing came for this long.
    Idle(Duration),
    /// More than this many bytes came.
    TooLarge(usize),
}

impl BodyFaultKind {
    fn to_attempt_error(self) -> AttemptError {
        match self {
            Self::Idle(limit) => AttemptError::idle(limit),
            Self::TooLarge(limit) => AttemptError::malformed(format!("it is larger than {limit} bytes")),
        }
    }
}

impl AttemptError {
    /// The answer stalled.
    pub(super) fn idle(limit: Duration) -> Self {
        Self::Deadline { what: "the answer stalled: nothing came", limit }
    }
}

/// The last error of a chain: the one that says what happened. No layer's text holds a URL but reqwest's own, the
/// outermost, which is left out.
pub(super) fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    if cause.is::<reqwest::Error>() { "no further cause is known".to_owned() } else { cause.to_string() }
}

fn kind_of_status(status: u16, body: &ErrorBody) -> FailureKind {
    match status {
        401..=403 => FailureKind::Unauthorized,
        429 if is_quota(body) => FailureKind::Unauthorized,
        408 | 409 | 425 | 429 => FailureKind::Unavailable,
        _ if overflow::is_overflow(body) => FailureKind::ContextOverflow,
        400 | 404 | 422 if overflow::is_unknown_model(body) => FailureKind::UnknownModel,
        501 | 505 => FailureKind::Refused,
        500.. => FailureKind::Unavailable,
        _ => FailureKind::Refused,
    }
}

/// A 429 that no waiting heals: OpenAI's word for an account without credit.
fn is_quota(body: &ErrorBody) -> bool {
    body.code == "insufficient_quota" || body.kind == "insufficient_quota"
}

fn status_line(status: u16, body: &ErrorBody, kind: FailureKind) -> String {
    let said = if body.message.is_empty() { "no reason given" } else { &body.message };
    let advice = match kind {
        FailureKind::Refused if overflow::is_output_limit(body) => {
            "; the output limit alone is above what the model allows: lower `max_tokens` in the sampling settings"
        }
        FailureKind::Refused if status == 404 => "; is the base URL right? It ends in /v1 as a rule",
        FailureKind::Refused if (300..400).contains(&status) => "; the endpoint redirects: correct the base URL",
        _ => "",
    };
    format!("status {status}: {said}{advice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_of_every_form_are_read() {
        let cases: [(&str, &str, &str, &str); 9] = [
            (r#"{"error":"a\u001b[31m\u0000b\n"}"#, "a [31m b", "", ""),
            (r#"{"error":{"message":"m","type":"t","param":"p","code":400}}"#, "m", "t", "400"),
            (r#"{"object":"error","message":"m","type":"t","param":null,"code":"c"}"#, "m", "t", "c"),
            (r#"{"error":"m"}"#, "m", "", ""),
            (r#"{"error":"m","error_type":"validation"}"#, "m", "validation", ""),
            (r#"{"detail":"m"}"#, "m", "", ""),
            (r#"{"type":"error","error":{"type":"t","message":"m"}}"#, "m", "t", ""),
            ("<html>\n  m</html>", "<html> m</html>", "", ""),
            ("", "", "", ""),
        ];
        for (body, message, kind, code) in cases {
            let parsed = ErrorBody::parse(body.as_bytes());
            assert_eq!((&*parsed.message, &*parsed.kind, &*parsed.code), (message, kind, code), "{body}");
        }
        let raw = br#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"too long"}}}"#;
        assert_eq!(ErrorBody::parse(raw).message, "Provider returned error: too long");
    }

    #[test]
    fn statuses_mean_what_they_say() {
        let body = |message: &str| ErrorBody { message: message.into(), ..ErrorBody::default() };
        let cases = [
            (400, "bad", FailureKind::Refused),
            (401, "key", FailureKind::Unauthorized),
            (402, "pay", FailureKind::Unauthorized),
            (403, "no", FailureKind::Unauthorized),
            (404, "Not Found", FailureKind::Refused),
            (404, "The model `x` does not exist.", FailureKind::UnknownModel),
            (400, "Invalid model: x is not a valid model ID", FailureKind::UnknownModel),
            (408, "slow", FailureKind::Unavailable),
            (409, "conflict", FailureKind::Unavailable),
            (413, "Request Entity Too Large", FailureKind::Refused),
            (425, "early", FailureKind::Unavailable),
            (429, "busy", FailureKind::Unavailable),
            (500, "oops", FailureKind::Unavailable),
            (501, "not implemented", FailureKind::Refused),
            (503, "busy", FailureKind::Unavailable),
            (307, "", FailureKind::Refused),
        ];
        for (status, message, kind) in cases {
            let error = AttemptError::status(status, None, body(message));
            assert_eq!(error.kind(), kind, "{status} {message}");
            assert_eq!(error.is_retryable(), kind == FailureKind::Unavailable);
        }
        let quota = ErrorBody { code: "insufficient_quota".into(), ..ErrorBody::default() };
        assert_eq!(AttemptError::status(429, None, quota).kind(), FailureKind::Unauthorized);
    }

    #[test]
    fn an_error_inside_an_answer_has_its_status() {
        let error = |json: &str| AttemptError::in_band(&serde_json::from_str(json).unwrap());
        assert!(matches!(error(r#"{"message":"m","code":429}"#), AttemptError::Status { status: 429, .. }));
        assert!(matches!(error(r#""text""#), AttemptError::Status { status: 502, .. }));
        let by_name = |data: &str| AttemptError::in_band_text(data.as_bytes()).to_string();
        assert_eq!(by_name("engine died"), "status 502: engine died");
        assert_eq!(by_name(r#"{"error":{"message":"m","code":503}}"#), "status 503: m");
        assert_eq!(by_name(r#"{"message":"m"}"#), "status 502: m");
        let long = error(r#"{"message":"m","code":"context_length_exceeded"}"#);
        assert_eq!(long.kind(), FailureKind::ContextOverflow);
    }
}
