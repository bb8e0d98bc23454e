//! A simulator of a vLLM-compatible endpoint: the model server of a laptop, of the tests and of the benchmarks.
//!
//! Requests enter over HTTP/1.1; answers in vLLM's shapes leave, made by a [`Policy`], timed by a load model and spoilt
//! by [`FaultRule`]s. It answers no question by itself: what solves tasks is handed in as an [`Oracle`].
//!
//! **Reproducible.** Everything random is a hash of the seed, the rendered conversation, and how often this server has
//! answered that conversation before; nothing depends on time, ports or session ids. The rollouts of one task therefore
//! differ from each other, while a second run of the whole evaluation gets the same answers: in the same order when
//! sent one by one, as the same multiset when sent at once. A `seed` in the request takes the place of the count, so
//! that equal requests get equal answers, as with vLLM. Failed attempts (injected faults) do not count as answers.
//!
//! **Tokens.** One token a byte; see [`Tokenizer`] for ids and framing.
//!
//! **Faults** fall on an attempt by the seed, the route, the bytes of the body, and how often these came before: a caller
//! that tries again draws again, and a second run with the same bodies draws the same.
//!
//! **Left out** of vLLM's surface: prompt embeddings, beam search, several prompts in one completion, `echo`,
//! `stop_token_ids`, `min_tokens`, structured output other than forced tool calls, LoRA, and the routes for weights and
//! pausing. Sampling fields such as `temperature` are accepted and change nothing. Fields that vLLM always sends are all
//! there, null where it sends null; `/metrics` has its families that a client of it reads, not all of them.

mod answer;
mod batch;
mod body;
mod chat;
mod completion;
mod engine;
mod fault;
mod generate;
mod hash;
mod json;
mod metrics;
mod model;
mod prefix;
mod refusal;
mod reply;
mod request;
mod route;
mod schema;
mod server;
mod settings;
mod stream;
mod template;
mod token;
mod tokenize;
mod tokens;
mod words;
mod write;

use futures::future::BoxFuture;

use crate::trace::Message;

pub use fault::{FaultKind, FaultRule, FaultRuleError, Route};
pub use metrics::Stats;
pub use server::Simulator;
pub use settings::{ApiKey, Policy, Settings, SettingsError};
pub use token::{Tokenizer, UnknownToken};

/// `owned_by` of the model in `/v1/models`: how a client can tell that the model is simulated.
pub const OWNED_BY: &str = "rollhouse-sim";

/// What knows the right answers of the tasks that the simulated model is asked to solve.
pub trait Oracle: Send + Sync {
    /// The right next assistant message of a conversation, or `None` if this is not a conversation it knows.
    ///
    /// With tools offered, an answer may hold calls in Hermes form:
    /// `<tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>`.
    fn solve<'a>(&'a self, conversation: &'a [Message]) -> BoxFuture<'a, Option<String>>;

    /// What is said whatever the error rate, before [`Self::solve`] is asked: the verdict where the conversation is the
    /// question of a judge. The default knows of none.
    fn certain(&self, _conversation: &[Message]) -> Option<String> {
        None
    }

    /// A wrong version of a right answer, in its form; `below` draws a number below its argument. The default knows of
    /// none, and what should be wrong then is a plain sentence.
    fn spoiled(&self, _answer: &str, _below: &dyn Fn(usize) -> usize) -> Option<String> {
        None
    }
}

/// Why a simulator did not start.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// A setting is out of bounds.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The address is not free or not ours.
    #[error("cannot listen on {address}: {source}; choose another port, or 0 for any free one")]
    Listen {
        /// What was asked for.
        address: std::net::SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
}
