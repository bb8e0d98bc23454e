//! `POST /v1/completions`, with a text or with token ids as its prompt.
//!
//! A prompt that holds the chat template (as marks among its ids, or spelt out in a text) is read back into the conversation
//! it renders, so that the policies answer as in chat; any other is one user message. One prompt a request; `echo`,
//! `suffix` and `best_of` are not simulated.

use std::sync::Arc;

use super::{
    answer::Source,
    generate::{Generation, Sampling, ToolReading, generate},
    json::{comma, json_string, number, numbers, raw},
    model::{Model, unix_seconds},
    refusal::Refusal,
    reply::{Call, Prepared, id},
    request::{CompletionRequest, Prompt, parse},
    stream::{Dialect, Streamed},
    token::{END, Outline, START, Sink, Tokenizer, mark},
    write::{FINGERPRINT, Scorer, Start, completion_logprobs, ending, opening, prompt_logprobs, usage},
};
use crate::trace::Message;

/// vLLM's default here, unlike in chat.
const DEFAULT_MAX_TOKENS: usize = 16;

/// Reads a completion request and draws its answer.
pub(super) async fn prepare(model: &Arc<Model>, body: &[u8], call: &Call<'_>) -> Result<Prepared, Refusal> {
    let request: CompletionRequest<'_> = parse(body)?;
    let ids = match request.prompt {
        Prompt::Text(text) => Tokenizer::encode(&text),
        Prompt::Tokens(ids) => ids,
    };
    let Some(last) = ids.last().copied() else {
        return Err(Refusal::bad_request("The prompt must not be empty.", Some("prompt")));
    };
    let sampling = Sampling {
        model: request.model.as_deref(),
        max_tokens: Some(request.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS)),
        choices: request.n.unwrap_or(1),
        stop: request.stop.as_ref(),
        seed: request.seed,
        ignore_end: request.ignore_eos.unwrap_or(false),
        cache_salt: request.cache_salt.as_deref(),
        alternatives: [request.logprobs, request.prompt_logprobs],
        tools: ToolReading::Off,
        fault: call.fault,
    };
    let generation = drawn(model, &ids, &sampling).await?;

    let id = id(model, call.request_id.or(request.request_id.as_deref()), "cmpl");
    let return_ids = request.return_token_ids.unwrap_or(false);
    let start = Start { tokens: generation.prompt_tokens, last };
    let created = unix_seconds();
    if request.stream.unwrap_or(false) {
        let include_usage = request.stream_options.and_then(|options| options.include_usage).unwrap_or(false);
        return Ok(Prepared::Streamed(Streamed {
            model: Arc::clone(model),
            dialect: Dialect::Completions,
            id,
            created,
            generation,
            start,
            logprobs: request.logprobs,
            prompt_ids: return_ids.then_some(ids),
            include_usage,
            fault: call.fault,
        }));
    }

    let mut out = Vec::with_capacity(1024);
    opening(&mut out, &id, "text_completion", created, &model.settings.model);
    for (index, choice) in generation.choices.iter().enumerate() {
        comma(&mut out, index);
        raw(&mut out, r#"{"index":"#);
        number(&mut out, index as u64);
        raw(&mut out, r#","text":"#);
        json_string(&mut out, choice.content());
        raw(&mut out, r#","logprobs":"#);
        match request.logprobs {
            Some(alternatives) => {
                completion_logprobs(&mut out, Scorer(model.seed), start, choice, 0..choice.tokens(), alternatives);
            }
            None => raw(&mut out, "null"),
        }
        ending(&mut out, choice, return_ids);
        raw(&mut out, r#","prompt_logprobs":"#);
        match request.prompt_logprobs {
            Some(alternatives) => prompt_logprobs(&mut out, Scorer(model.seed), &ids, alternatives),
            None => raw(&mut out, "null"),
        }
        raw(&mut out, r#","prompt_token_ids":"#);
        if return_ids {
            numbers(&mut out, ids.iter().copied());
        } else {
            raw(&mut out, "null");
        }
        raw(&mut out, r#","routed_experts":null}"#);
    }
    raw(&mut out, r#"],"service_tier":null,"system_fingerprint":"#);
    json_string(&mut out, FINGERPRINT);
    raw(&mut out, r#","usage":"#);
    usage(&mut out, &generation, true, "null");
    raw(&mut out, r#","kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"#);
    Ok(Prepared::Whole(out, generation))
}

/// The answer to a prompt of tokens.
pub(super) async fn drawn(model: &Arc<Model>, ids: &[u32], sampling: &Sampling<'_>) -> Result<Generation, Refusal> {
    // Bytes in, and out of vocabulary is told at once.
    let spelt = Tokenizer::decode(ids)
        .map_err(|error| Refusal::bad_request(&error.to_string(), Some("prompt")))
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())?;
    let mut outline = Outline::new(model.seed);
    outline_of(&mut outline, ids);
    let messages = read_back(&spelt);
    let source = Source::of(
        model,
        || {
            let last_user = messages.iter().rev().find(|message| matches!(message, Message::User(_)));
            last_user.map_or_else(String::new, Message::text)
        },
        || messages.clone(),
    )
    .await;
    generate(model, outline, sampling, |draw| source.text(model.settings.error_rate, draw))
}

/// Hashes ids as the chat template is hashed, so that both routes share answers and cached prefixes.
fn outline_of(outline: &mut Outline, ids: &[u32]) {
    let mut bytes = Vec::with_capacity(ids.len());
    let mut opened = false;
    let mut closed = false;
    for id in ids {
        match u8::try_from(*id) {
            Ok(b'\n') if opened || closed => {
                // The newline after a role, or after the end of a message, is a piece of its own.
                if !bytes.is_empty() {
                    outline.bytes(&std::mem::take(&mut bytes));
                }
                outline.bytes(b"\n");
                if closed {
                    outline.boundary();
                }
                (opened, closed) = (false, false);
            }
            Ok(byte) => bytes.push(byte),
            Err(_) => {
                // Content is hashed even where there is none.
                if !bytes.is_empty() {
                    outline.bytes(&std::mem::take(&mut bytes));
                }
                outline.mark(*id);
                opened = *id == START;
                closed = *id == END;
            }
        }
    }
    if !bytes.is_empty() {
        outline.bytes(&bytes);
    }
    outline.boundary();
}

/// The conversation that a rendered prompt holds; one user message where it holds none.
fn read_back(prompt: &str) -> Vec<Message> {
    let (Some(open), Some(close)) = (mark(START), mark(END)) else { return Vec::new() };
    let messages: Vec<Message> = prompt
        .split(open)
        .skip(1)
        .filter_map(|part| {
            let (role, rest) = part.split_once('\n')?;
            let (content, _) = rest.split_once(close)?;
            match role {
                "system" | "developer" => Some(Message::system(content)),
                "user" => Some(Message::user(content)),
                "assistant" => Some(Message::assistant(content)),
                _ => None,
            }
        })
        .collect();
    if messages.is_empty() { vec![Message::user(prompt)] } else { messages }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rendered_prompts_are_read_back() {
        let prompt =
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi\nyou<|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(read_back(prompt), [Message::system("Be brief."), Message::user("Hi\nyou")]);
        assert_eq!(read_back("Once upon"), [Message::user("Once upon")]);
    }
}
