//! Answers as servers write them: vLLM, llama.cpp, SGLang, OpenAI and the proxies in front of them.
//!
//! Fields that decide the answer must have their type; fields that only add to it are left out when they do not.

use std::{cell::Cell, fmt};

use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::{Map, Value, value::RawValue};

use super::text::Text;
use crate::{inference::failure::AttemptError, telemetry::aside};

/// A whole answer.
#[derive(Debug, Deserialize)]
pub(in crate::inference) struct WholeReply {
    #[serde(default)]
    pub(super) choices: Option<Vec<Choice>>,
    #[serde(default)]
    pub(super) usage: Lenient<WireUsage>,
    #[serde(default)]
    pub(super) prompt_token_ids: Option<Vec<u32>>,
    /// Some proxies answer 200 and put the failure here.
    #[serde(default)]
    error: Option<Value>,
    #[serde(default)]
    object: Lenient<String>,
    #[serde(default)]
    message: Option<Value>,
}

/// Bytes of a body above which it is parsed where no other call waits for it; about a millisecond's work.
const LONG: usize = 256 << 10;

tokio::task_local! {
    /// Bytes read of the answer of this task's call: async-openai parses a body without telling its size.
    pub(in crate::inference) static BODY_READ: Cell<usize>;
}

/// Parses JSON, aside from other tasks when it is long.
pub(in crate::inference) fn parse<T: DeserializeOwned>(json: &[u8]) -> serde_json::Result<T> {
    aside(json.len() > LONG, || serde_json::from_slice(json))
}

/// A whole answer that async-openai parses.
pub(in crate::inference) struct WholeBody(pub(in crate::inference) WholeReply);

impl<'de> Deserialize<'de> for WholeBody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let long = BODY_READ.try_with(Cell::get).is_ok_and(|read| read > LONG);
        aside(long, || WholeReply::deserialize(deserializer)).map(Self)
    }
}

/// One event of a stream.
#[derive(Debug, Deserialize)]
pub(in crate::inference) struct Chunk {
    #[serde(default)]
    pub(super) choices: Option<Vec<ChunkChoice>>,
    #[serde(default)]
    pub(super) usage: Lenient<WireUsage>,
    #[serde(default)]
    pub(super) prompt_token_ids: Option<Vec<u32>>,
    #[serde(default)]
    error: Option<Value>,
    #[serde(default)]
    object: Lenient<String>,
    #[serde(default)]
    message: Option<Value>,
}

impl WholeReply {
    /// The failure that stands in place of an answer.
    pub(super) fn failure(&self) -> Option<AttemptError> {
        failure(self.error.as_ref(), &self.object, self.message.as_ref())
    }
}

impl Chunk {
    /// The failure that stands in place of a piece of an answer.
    pub(in crate::inference) fn failure(&self) -> Option<AttemptError> {
        failure(self.error.as_ref(), &self.object, self.message.as_ref())
    }
}

/// `{"error": …}`, or the object at the top that older vLLM and SGLang write: `{"object": "error", "message": …}`.
fn failure(error: Option<&Value>, object: &Lenient<String>, message: Option<&Value>) -> Option<AttemptError> {
    match (error.filter(|error| !error.is_null()), object.0.as_deref()) {
        (Some(error), _) => Some(AttemptError::in_band(error)),
        (None, Some("error")) => Some(AttemptError::in_band(message.unwrap_or(&Value::Null))),
        _ => None,
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Choice {
    #[serde(default)]
    pub(super) index: Option<u64>,
    #[serde(default)]
    pub(super) message: Option<WireMessage>,
    #[serde(default)]
    pub(super) finish_reason: Lenient<String>,
    #[serde(default)]
    pub(super) logprobs: Option<WireLogprobs>,
    #[serde(default)]
    pub(super) token_ids: Option<Vec<u32>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ChunkChoice {
    #[serde(default)]
    pub(super) index: Option<u64>,
    #[serde(default)]
    pub(super) delta: Option<WireMessage>,
    #[serde(default)]
    pub(super) finish_reason: Lenient<String>,
    #[serde(default)]
    pub(super) logprobs: Option<WireLogprobs>,
    #[serde(default)]
    pub(super) token_ids: Option<Vec<u32>>,
}

/// A message, or a piece of one.
#[derive(Debug, Deserialize)]
pub(super) struct WireMessage {
    #[serde(default)]
    pub(super) content: Option<Text>,
    #[serde(default)]
    pub(super) reasoning: Lenient<Text>,
    #[serde(default)]
    pub(super) reasoning_content: Lenient<Text>,
    #[serde(default)]
    pub(super) reasoning_details: Lenient<Vec<Map<String, Value>>>,
    #[serde(default)]
    pub(super) refusal: Lenient<Text>,
    #[serde(default)]
    pub(super) tool_calls: Option<Vec<WireToolCall>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct WireToolCall {
    #[serde(default)]
    pub(super) index: Option<u64>,
    #[serde(default)]
    pub(super) id: Option<Text>,
    #[serde(default)]
    pub(super) function: Option<WireFunction>,
    #[serde(default)]
    pub(super) custom: Option<WireFunction>,
}

#[derive(Debug, Deserialize)]
pub(super) struct WireFunction {
    #[serde(default)]
    pub(super) name: Option<Text>,
    #[serde(default)]
    pub(super) namespace: Option<String>,
    /// A string, or an object from servers that have parsed it.
    #[serde(default, alias = "input")]
    pub(super) arguments: Option<Box<RawValue>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct WireLogprobs {
    #[serde(default)]
    pub(super) content: Option<Vec<WireLogprob>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct WireLogprob {
    #[serde(default)]
    pub(super) logprob: Option<f32>,
    /// llama.cpp's place for the token id.
    #[serde(default)]
    pub(super) id: Option<u32>,
}

/// `usage`, with DeepSeek's name for cache reads and OpenRouter's price beside OpenAI's fields.
#[derive(Debug, Deserialize)]
pub(super) struct WireUsage {
    pub(super) prompt_tokens: u64,
    pub(super) completion_tokens: u64,
    #[serde(default)]
    pub(super) prompt_tokens_details: Option<PromptDetails>,
    #[serde(default)]
    pub(super) completion_tokens_details: Option<CompletionDetails>,
    #[serde(default)]
    pub(super) prompt_cache_hit_tokens: Option<u64>,
    #[serde(default)]
    pub(super) cost: Option<f64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct PromptDetails {
    #[serde(default)]
    pub(super) cached_tokens: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct CompletionDetails {
    #[serde(default)]
    pub(super) reasoning_tokens: Option<u64>,
}

/// A field that is left out when it has another type than expected.
pub(super) struct Lenient<T>(pub(super) Option<T>);

impl<T> Default for Lenient<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: fmt::Debug> fmt::Debug for Lenient<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        Ok(Self(serde_json::from_str::<Option<T>>(raw.get()).unwrap_or_else(|error| {
            tracing::debug!(%error, "a field of the answer is left out");
            None
        })))
    }
}
