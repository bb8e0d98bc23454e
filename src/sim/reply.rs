//! What a route answers, and what the generating routes have ready before their tokens have come.

use bytes::Bytes;

use super::{
    body::Answer,
    fault::FaultKind,
    generate::Generation,
    model::Model,
    stream::{self, Streamed},
};

/// What a route answers.
pub(super) enum Reply {
    Json(Bytes),
    Text(Bytes),
    Events(Answer),
}

/// A request to one of the routes that run the model, beside its body.
pub(super) struct Call<'a> {
    /// `X-Request-Id`, from which the answer's id is made.
    pub(super) request_id: Option<&'a str>,
    /// A fault that the route itself must act out.
    pub(super) fault: Option<FaultKind>,
}

/// An answer that is fixed; its tokens are still to come.
pub(super) enum Prepared {
    /// The whole body, sent when all tokens are there.
    Whole(Vec<u8>, Generation),
    /// Sent as they come.
    Streamed(Streamed),
}

impl Prepared {
    /// The reply, when it may be sent.
    pub(super) async fn reply(self, model: &Model) -> Reply {
        match self {
            Self::Streamed(streamed) => Reply::Events(stream::answer(streamed)),
            Self::Whole(json, mut generation) => {
                generation.finish(model).await;
                Reply::Json(json.into())
            }
        }
    }
}

/// The id of an answer: the caller's, or one of our own.
pub(super) fn id(model: &Model, request_id: Option<&str>, prefix: &str) -> String {
    match request_id {
        Some(own) => format!("{prefix}-{own}"),
        None => format!("{prefix}-{:016x}", model.next_id()),
    }
}
