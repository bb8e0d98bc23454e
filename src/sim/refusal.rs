//! Refusals in vLLM's words (observed on vLLM 0.32).

use bytes::Bytes;
use hyper::StatusCode;

use super::json::json_string;

/// An error answer.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

impl Refusal {
    fn new(status: StatusCode, message: &str, kind: &str, param: Option<&str>) -> Self {
        let mut body = br#"{"error":{"message":"#.to_vec();
        json_string(&mut body, message);
        body.extend_from_slice(br#","type":"#);
        json_string(&mut body, kind);
        body.extend_from_slice(br#","param":"#);
        match param {
            Some(param) => json_string(&mut body, param),
            None => body.extend_from_slice(b"null"),
        }
        body.extend_from_slice(format!(",\"code\":{}}}}}", status.as_u16()).as_bytes());
        Self { status, body: body.into() }
    }

    pub(super) fn unknown_model(name: &str, served: &str) -> Self {
        let message = format!("The model `{name}` does not exist. Valid aliases: {served}.");
        Self::new(StatusCode::NOT_FOUND, &message, "NotFoundError", Some("model"))
    }

    pub(super) fn context_overflow(window: usize) -> Self {
        let least = window + 1;
        let message = format!(
            "This model's maximum context length is {window} tokens. However, your prompt contains at least {least} input \
             tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input \
             prompt. (parameter=input_tokens, value={least})"
        );
        Self::new(StatusCode::BAD_REQUEST, &message, "BadRequestError", Some("input_tokens"))
    }

    pub(super) fn max_tokens(asked: usize, window: usize) -> Self {
        let message = format!(
            "max_tokens={asked} cannot be greater than max_model_len={window}. Please request fewer output tokens. \
             (parameter=max_tokens, value={asked})"
        );
        Self::new(StatusCode::BAD_REQUEST, &message, "BadRequestError", Some("max_tokens"))
    }

    pub(super) fn busy() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "The engine is currently busy and cannot accept new requests. Please try again later or on a different \
             instance.",
            "Service Unavailable",
            None,
        )
    }

    pub(super) fn too_many_requests() -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "Too many requests (injected fault).", "Too Many Requests", None)
    }

    pub(super) fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "Internal server error (injected fault).",
            "Internal Server Error",
            None,
        )
    }

    /// A body that cannot be read as a request, or a field out of bounds.
    pub(super) fn bad_request(message: &str, param: Option<&str>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message, "Bad Request", param)
    }

    pub(super) fn unauthorized() -> Self {
        Self { status: StatusCode::UNAUTHORIZED, body: Bytes::from_static(br#"{"error":"Unauthorized"}"#) }
    }

    pub(super) fn no_such_route() -> Self {
        Self { status: StatusCode::NOT_FOUND, body: Bytes::from_static(br#"{"detail":"Not Found"}"#) }
    }

    pub(super) fn wrong_method() -> Self {
        Self { status: StatusCode::METHOD_NOT_ALLOWED, body: Bytes::from_static(br#"{"detail":"Method Not Allowed"}"#) }
    }

    pub(super) fn too_large() -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "The request body is too large.", "Bad Request", None)
    }
}
