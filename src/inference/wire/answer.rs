//! Puts an answer together, from one body or from the pieces of a stream, and checks that it is one.

use serde_json::{Map, Value, value::RawValue};
use uuid::Uuid;

use super::{
    UNKNOWN_LOGPROB,
    reply::{Chunk, Lenient, WholeReply, WireFunction, WireLogprobs, WireMessage, WireToolCall, WireUsage},
    text::{Text, into_string},
};
use crate::{
    inference::failure::AttemptError,
    trace::{AssistantMessage, FinishReason, ToolCall, ToolCallKind, TurnTokens, Usage},
};

/// More tokens than any call has; counts above it are not believed, so that sums of them never overflow.
const MOST_TOKENS: u64 = 1 << 40;

/// An answer in the making.
#[derive(Debug, Default)]
pub(in crate::inference) struct Answer {
    /// The content was given as text, even if empty.
    has_content: bool,
    content: Vec<u8>,
    reasoning: Vec<u8>,
    reasoning_content: Vec<u8>,
    refusal: Vec<u8>,
    details: Vec<Map<String, Value>>,
    calls: Vec<Call>,
    finish_reason: Option<String>,
    usage: Option<WireUsage>,
    prompt_ids: Option<Vec<u32>>,
    token_ids: Option<Vec<u32>>,
    logprobs: Vec<Option<f32>>,
    /// Token ids inside the logprobs entries (llama.cpp).
    logprob_ids: Vec<u32>,
}

#[derive(Debug)]
struct Call {
    index: Option<u64>,
    id: String,
    kind: ToolCallKind,
    name: String,
    namespace: Option<String>,
    arguments: Vec<u8>,
}

/// A complete answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// The message.
    pub message: AssistantMessage,
    /// Why it ended; `None` for reasons outside the vocabulary.
    pub finish_reason: Option<FinishReason>,
    /// Tokens used, as the server reports them.
    pub usage: Option<Usage>,
    /// The exact tokens, when wanted and complete.
    pub tokens: Option<TurnTokens>,
}

impl Answer {
    /// The answer of a whole body.
    pub(in crate::inference) fn from_whole(reply: WholeReply) -> Result<Self, AttemptError> {
        let mut answer =
            Self { usage: believable(reply.usage.0), prompt_ids: reply.prompt_token_ids, ..Self::default() };
        let mut choices = reply.choices.unwrap_or_default();
        let first = choices.iter().position(|choice| choice.index.unwrap_or(0) == 0).unwrap_or(0);
        if first >= choices.len() {
            return Err(AttemptError::malformed("the answer has no choices"));
        }
        let choice = choices.swap_remove(first);
        let Some(message) = choice.message else {
            return Err(AttemptError::malformed("the answer's choice has no message"));
        };
        answer.add(message)?;
        answer.add_choice(choice.finish_reason, choice.token_ids, choice.logprobs);
        Ok(answer)
    }

    /// Adds one event of a stream.
    pub(in crate::inference) fn add_chunk(&mut self, chunk: Chunk) -> Result<(), AttemptError> {
        if let Some(usage) = believable(chunk.usage.0) {
            self.usage = Some(usage);
        }
        if chunk.prompt_token_ids.is_some() {
            self.prompt_ids = chunk.prompt_token_ids;
        }
        for choice in chunk.choices.unwrap_or_default() {
            if choice.index.unwrap_or(0) == 0 {
                if let Some(delta) = choice.delta {
                    self.add(delta)?;
                }
                self.add_choice(choice.finish_reason, choice.token_ids, choice.logprobs);
            }
        }
        Ok(())
    }

    /// Whether the server said why generation ended.
    pub(in crate::inference) fn has_ended(&self) -> bool {
        self.finish_reason.is_some()
    }

    /// The complete answer, with the exact tokens if they are `wanted`.
    pub(in crate::inference) fn finish(self, wanted: bool) -> Result<Completion, AttemptError> {
        let finish_reason = match self.finish_reason.as_deref() {
            Some("stop" | "eos" | "eos_token" | "end_turn" | "stop_sequence") => Some(FinishReason::Stop),
            Some("length" | "max_tokens" | "model_length") => Some(FinishReason::Length),
            Some("tool_calls" | "tool_use" | "function_call") => Some(FinishReason::ToolCalls),
            Some(reason @ ("abort" | "aborted" | "cancelled" | "error")) => {
                return Err(AttemptError::Aborted(reason.to_owned()));
            }
            Some(other) => {
                tracing::debug!(finish_reason = other, "the answer ended for a reason outside the vocabulary");
                None
            }
            None => None,
        };
        let sampled = self.usage.as_ref().map(|usage| usage.completion_tokens > 0);
        let tokens =
            if wanted { exact_tokens(self.prompt_ids, self.token_ids, self.logprob_ids, &self.logprobs) } else { None };
        let content = if self.content.is_empty() { self.refusal } else { self.content };
        let reasoning = [self.reasoning, self.reasoning_content].into_iter().find(|text| !text.is_empty());
        let message = AssistantMessage {
            content: (!content.is_empty()).then(|| into_string(content)),
            reasoning_content: reasoning.map(into_string).or_else(|| details_text(&self.details)),
            tool_calls: (!self.calls.is_empty()).then(|| self.calls.into_iter().map(Call::finish).collect()),
            provider_state: (!self.details.is_empty()).then_some(self.details),
        };
        let empty = message.content.is_none() && message.reasoning_content.is_none() && message.tool_calls.is_none();
        // A model may end its turn at once, which costs it a token; an answer that nobody sampled is a fault of the
        // server.
        let deliberate = self.finish_reason.is_some() && sampled.unwrap_or(self.has_content);
        if empty && !deliberate {
            return Err(AttemptError::malformed("the answer has neither text nor tool calls"));
        }
        Ok(Completion { message, finish_reason, usage: self.usage.map(usage), tokens })
    }

    fn add(&mut self, message: WireMessage) -> Result<(), AttemptError> {
        if let Some(content) = message.content {
            self.has_content = true;
            append(&mut self.content, content);
        }
        append(&mut self.reasoning, message.reasoning.0.unwrap_or_default());
        append(&mut self.reasoning_content, message.reasoning_content.0.unwrap_or_default());
        append(&mut self.refusal, message.refusal.0.unwrap_or_default());
        for detail in message.reasoning_details.0.unwrap_or_default() {
            self.add_detail(detail);
        }
        for call in message.tool_calls.unwrap_or_default() {
            self.add_call(call)?;
        }
        Ok(())
    }

    fn add_choice(&mut self, reason: Lenient<String>, ids: Option<Vec<u32>>, logprobs: Option<WireLogprobs>) {
        if let Some(reason) = reason.0.filter(|reason| !reason.is_empty()) {
            self.finish_reason = Some(reason);
        }
        if let Some(ids) = ids {
            self.token_ids.get_or_insert_default().extend(ids);
        }
        for entry in logprobs.and_then(|logprobs| logprobs.content).unwrap_or_default() {
            self.logprobs.push(entry.logprob);
            self.logprob_ids.extend(entry.id);
        }
    }

    fn add_call(&mut self, call: WireToolCall) -> Result<(), AttemptError> {
        let (kind, function) = match (call.function, call.custom) {
            (None, Some(custom)) => (ToolCallKind::Custom, Some(custom)),
            (function, _) => (ToolCallKind::Function, function),
        };
        let id = call.id.map(|id| into_string(id.0)).unwrap_or_default();
        let known = match call.index {
            Some(index) => self.calls.iter().position(|known| known.index == Some(index)),
            // Without an index a piece belongs to the last call, unless it brings an id or a name of its own.
            None if !id.is_empty() || function.as_ref().is_some_and(|function| function.name.is_some()) => None,
            None => self.calls.len().checked_sub(1),
        };
        let position = known.unwrap_or_else(|| {
            let call = Call {
                index: call.index,
                id: String::new(),
                kind,
                name: String::new(),
                namespace: None,
                arguments: Vec::new(),
            };
            self.calls.push(call);
            self.calls.len() - 1
        });
        let slot = &mut self.calls[position];
        if !id.is_empty() {
            slot.id = id;
        }
        let Some(WireFunction { name, namespace, arguments }) = function else { return Ok(()) };
        if let Some(name) = name.map(|name| into_string(name.0)).filter(|name| !name.is_empty()) {
            slot.name = name;
        }
        if namespace.is_some() {
            slot.namespace = namespace;
        }
        if let Some(arguments) = arguments {
            slot.arguments.extend(argument_text(&arguments)?);
        }
        Ok(())
    }

    /// Joins the pieces of one reasoning item, as OpenRouter streams them; anything else is an item of its own.
    fn add_detail(&mut self, detail: Map<String, Value>) {
        let field = match detail.get("type").and_then(Value::as_str) {
            Some("reasoning.text") => "text",
            Some("reasoning.summary") => "summary",
            _ => return self.details.push(detail),
        };
        let same = |key: &str, previous: &Map<String, Value>| match (previous.get(key), detail.get(key)) {
            (None | Some(Value::Null), _) | (_, None | Some(Value::Null)) => true,
            (left, right) => left == right,
        };
        let previous = self.details.last_mut().filter(|previous| {
            previous.get("type") == detail.get("type")
                && ["id", "index", "format"].iter().all(|key| same(key, previous))
        });
        let Some(previous) = previous else { return self.details.push(detail) };
        for (key, value) in detail {
            if key == field {
                let piece = value.as_str().unwrap_or_default();
                match previous.get_mut(field) {
                    Some(Value::String(text)) => text.push_str(piece),
                    _ => drop(previous.insert(key, Value::String(piece.to_owned()))),
                }
            } else if previous.get(&key).is_none_or(Value::is_null) {
                previous.insert(key, value);
            }
        }
    }
}

impl Call {
    fn finish(self) -> ToolCall {
        // The answer to a call names it, so every call needs an id of its own.
        let id = if self.id.is_empty() { format!("call_{}", Uuid::new_v4().simple()) } else { self.id };
        ToolCall {
            id,
            kind: self.kind,
            name: self.name,
            namespace: self.namespace,
            arguments: into_string(self.arguments),
        }
    }
}

fn append(whole: &mut Vec<u8>, piece: Text) {
    if whole.is_empty() {
        *whole = piece.0;
    } else {
        whole.extend(piece.0);
    }
}

/// Argument text: the string, or the JSON text of a server that sends the object itself.
fn argument_text(raw: &RawValue) -> Result<Vec<u8>, AttemptError> {
    let text = raw.get();
    if text.starts_with('"') {
        let text: Text = serde_json::from_str(text)
            .map_err(|error| AttemptError::malformed(format!("a tool call's arguments cannot be read: {error}")))?;
        return Ok(text.0);
    }
    Ok(if text == "null" { Vec::new() } else { text.as_bytes().to_vec() })
}

fn details_text(details: &[Map<String, Value>]) -> Option<String> {
    let pieces: Vec<&str> = details
        .iter()
        .filter_map(|detail| {
            let text = |key: &str| detail.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
            text("text").or_else(|| text("summary"))
        })
        .collect();
    (!pieces.is_empty()).then(|| pieces.join("\n"))
}

/// A usage whose counts can be.
fn believable(wire: Option<WireUsage>) -> Option<WireUsage> {
    wire.filter(|wire| {
        let possible = wire.prompt_tokens <= MOST_TOKENS && wire.completion_tokens <= MOST_TOKENS;
        if !possible {
            tracing::debug!(prompt = wire.prompt_tokens, completion = wire.completion_tokens, "a usage is left out");
        }
        possible
    })
}

/// Cache reads are taken out of the prompt's tokens; a count of cache reads above the prompt's is not believed.
fn usage(wire: WireUsage) -> Usage {
    let cached = wire.prompt_tokens_details.and_then(|details| details.cached_tokens).or(wire.prompt_cache_hit_tokens);
    let cached = cached.filter(|&cached| {
        let possible = cached <= wire.prompt_tokens;
        if !possible {
            tracing::debug!(cached, prompt = wire.prompt_tokens, "more cache reads than prompt tokens are not counted");
        }
        possible
    });
    Usage {
        prompt_tokens: wire.prompt_tokens - cached.unwrap_or(0),
        completion_tokens: wire.completion_tokens,
        cached_input_tokens: cached,
        reasoning_tokens: wire
            .completion_tokens_details
            .and_then(|details| details.reasoning_tokens)
            .filter(|&reasoning| reasoning <= wire.completion_tokens),
        cost: wire.cost,
    }
}

/// The exact tokens, only if they are complete: prompt, completion and one known logprob for each completion token.
fn exact_tokens(
    prompt_ids: Option<Vec<u32>>,
    token_ids: Option<Vec<u32>>,
    logprob_ids: Vec<u32>,
    logprobs: &[Option<f32>],
) -> Option<TurnTokens> {
    let prompt_ids = prompt_ids.filter(|ids| !ids.is_empty())?;
    let completion_ids = token_ids.or((!logprob_ids.is_empty()).then_some(logprob_ids))?;
    let known: Option<Vec<f32>> =
        logprobs.iter().map(|logprob| logprob.filter(|&value| value.is_finite() && value != UNKNOWN_LOGPROB)).collect();
    match known {
        Some(completion_logprobs) if completion_logprobs.len() == completion_ids.len() => {
            Some(TurnTokens { prompt_ids, completion_ids, completion_logprobs, ..TurnTokens::default() })
        }
        _ => {
            tracing::warn!(
                tokens = completion_ids.len(),
                logprobs = logprobs.len(),
                "token ids without one known logprob each are left out"
            );
            None
        }
    }
}
