//! The chat completions API as it is on the wire: requests written, answers read, whole or in pieces.

mod answer;
mod reply;
mod request;
mod text;

pub(super) use answer::{Answer, Parsed};
pub(super) use reply::{Chunk, WholeReply};
pub(super) use request::RequestBody;
