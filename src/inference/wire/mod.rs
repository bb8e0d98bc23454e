//! The chat completions API and vLLM's route for tokens as they are on the wire: requests written, answers read, whole or in
//! pieces.

mod answer;
mod generate;
mod reply;
mod request;
mod text;

use serde_json::Error;

use super::{ChatCall, failure::AttemptError};
use crate::trace::Fault;

/// vLLM's sign for a logprob that it does not know.
const UNKNOWN_LOGPROB: f32 = -9999.0;

pub(super) use answer::Answer;
pub use answer::Completion;
pub(super) use generate::{GenerateBody, read_generation};
pub use generate::{Generation, WeightSpan};
pub(super) use reply::{BODY_READ, Chunk, WholeBody, WholeReply, parse};
pub(super) use request::RequestBody;

/// The body of a chat completions request, as it is sent.
///
/// # Errors
/// When a sampling field or a tool cannot be written as JSON, which plain JSON values always can.
pub fn write_request(call: &ChatCall<'_>, stream: bool) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(&RequestBody { call, stream })
}

/// Reads the body of an answer that was not streamed, with the exact tokens if they are wanted.
///
/// # Errors
/// When the body is no answer, or holds a failure.
pub fn read_completion(body: &[u8], tokens: bool) -> Result<Completion, Fault> {
    let reply: Result<WholeReply, _> = serde_json::from_slice(body);
    reply
        .map_err(|error| AttemptError::unreadable("not the expected JSON", &error, body))
        .and_then(whole_answer)
        .and_then(|answer| answer.finish(tokens))
        .map_err(|error| error.fault("the answer", |text| text))
}

/// The answer of a whole reply, unless that holds a failure.
pub(super) fn whole_answer(reply: WholeReply) -> Result<Answer, AttemptError> {
    match reply.failure() {
        Some(failure) => Err(failure),
        None => Answer::from_whole(reply),
    }
}
