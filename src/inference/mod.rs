//! The client of OpenAI-compatible endpoints: a pool of engines, sessions that stay on one of them, retries, deadlines.
//!
//! What enters is one chat call, or one call with the tokens of its prompt; what leaves is the model's message with its usage and every attempt that failed on
//! the way. This is the one room that opens HTTP connections.

mod engine;
mod error_body;
mod failure;
mod overflow;
mod pool;
mod probe;
mod retry;
mod settings;
pub mod sse;
mod transport;
mod wire;

use std::{fmt, sync::Arc};

use serde_json::{Map, Value};

use crate::trace::{AssistantMessage, Fault, FinishReason, Message, TimeSpan, Tool, TurnTokens, Usage};

pub use pool::{Pool, PoolError, Session};
pub use probe::{ProbeFailure, ServedModel};
pub use settings::{BreakerSettings, Deadlines, PoolEvent, PoolObserver, PoolSettings, RetrySettings};
pub use wire::{Completion, Generation, WeightSpan, read_completion, write_request};

/// One chat call of a session.
#[derive(Clone, Copy, Debug)]
pub struct ChatCall<'a> {
    /// Model name.
    pub model: &'a str,
    /// The whole conversation.
    pub messages: &'a [Message],
    /// Tools offered.
    pub tools: &'a [Tool],
    /// Sampling fields, written into the request body as they are; fields that the call itself fills (`model`,
    /// `messages`, `stream` and the like) are left out.
    pub sampling: &'a Map<String, Value>,
    /// Ask for token ids and logprobs.
    pub tokens: bool,
}

/// One call of a session with the exact tokens of its prompt.
#[derive(Clone, Copy, Debug)]
pub struct GenerateCall<'a> {
    /// Model name.
    pub model: &'a str,
    /// The whole prompt.
    pub prompt: &'a [u32],
    /// The run's sampling fields, as for a chat call; each is sent where the route looks for it.
    pub sampling: &'a Map<String, Value>,
    /// Ids that end the answer.
    pub stop_ids: &'a [u32],
    /// First prompt position whose router rows are wanted, where the prompt extends an earlier one.
    pub routed_from: Option<usize>,
}

/// What the engine sampled, and where.
#[derive(Clone, Debug)]
pub struct GenerateReply {
    /// The tokens.
    pub generation: Generation,
    /// The engine that answered: its base URL, without user and query.
    pub endpoint: Arc<str>,
    /// The attempt that succeeded.
    pub time: TimeSpan,
    /// The attempts before it.
    pub failed: Vec<FailedAttempt>,
}

/// What the model answered.
#[derive(Clone, Debug)]
pub struct ChatReply {
    /// The message.
    pub message: AssistantMessage,
    /// Why it ended; `None` for reasons outside the vocabulary (`content_filter`, …).
    pub finish_reason: Option<FinishReason>,
    /// Tokens used, as the server reports them.
    pub usage: Option<Usage>,
    /// The exact tokens, when asked for and given.
    pub tokens: Option<TurnTokens>,
    /// The engine that answered: its base URL, without user and query.
    pub endpoint: Arc<str>,
    /// The attempt that succeeded.
    pub time: TimeSpan,
    /// The attempts before it.
    pub failed: Vec<FailedAttempt>,
}

/// An attempt that did not succeed.
#[derive(Clone, Debug)]
pub struct FailedAttempt {
    /// When.
    pub time: TimeSpan,
    /// Why.
    pub fault: Fault,
    /// The engine asked.
    pub endpoint: Arc<str>,
}

/// A call that did not succeed, after all its attempts.
#[derive(Clone, Debug)]
pub struct ChatFailure {
    /// What kind of failure the last attempt was.
    pub kind: FailureKind,
    /// All attempts, the last one last; its fault is the call's. Never empty.
    pub failed: Vec<FailedAttempt>,
}

/// Kinds of failure, by what they mean for the rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The conversation no longer fits the model's window: the rollout ends as truncated.
    ContextOverflow,
    /// Wrong or missing key (401, 403) or no credit left (402, exhausted quota): no other call can succeed either.
    Unauthorized,
    /// The endpoint does not serve this model: no other call can succeed either.
    UnknownModel,
    /// The endpoint refused this request (other 4xx).
    Refused,
    /// The answer's token ids, logprobs and masks do not fit each other: nothing is padded, and the rollout fails.
    BadTokens,
    /// No answer in time, connection faults, 429, 5xx or an unreadable answer, after all retries.
    Unavailable,
}

impl ChatFailure {
    /// The call's fault: that of the last attempt.
    pub fn fault(&self) -> &Fault {
        &self.failed.last().expect("a failed call has at least one failed attempt").fault
    }
}

impl fmt::Display for ChatFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fault().message)
    }
}

impl std::error::Error for ChatFailure {}
