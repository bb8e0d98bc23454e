//! The parts of an answer that both generating routes write: its beginning, usage, log-probabilities.

use std::ops::Range;

use super::{
    generate::{Choice, Generation},
    hash::Hash,
    json::{comma, json_string, json_string_or_null, number, numbers, raw},
    token::mark,
};

/// `system_fingerprint` of every answer.
pub(super) const FINGERPRINT: &str = concat!("rollhouse-sim-", env!("CARGO_PKG_VERSION"));

/// What is not a byte of a character by itself.
const REPLACEMENT: &str = "\u{fffd}";

/// Appends the beginning that all answers share: `{"id":…,"object":…,"created":…,"model":…,"choices":[`.
pub(super) fn opening(out: &mut Vec<u8>, id: &str, object: &str, created: u64, model: &str) {
    raw(out, r#"{"id":"#);
    json_string(out, id);
    raw(out, r#","object":""#);
    raw(out, object);
    raw(out, r#"","created":"#);
    number(out, created);
    raw(out, r#","model":"#);
    json_string(out, model);
    raw(out, r#","choices":["#);
}

/// Appends the fields that close a choice of a whole answer on both routes; token ids are null unless asked for.
pub(super) fn ending(out: &mut Vec<u8>, choice: &Choice, return_ids: bool) {
    raw(out, r#","finish_reason":"#);
    json_string(out, choice.finish);
    raw(out, r#","stop_reason":"#);
    json_string_or_null(out, choice.stop_reason.as_deref());
    raw(out, r#","token_ids":"#);
    if return_ids {
        numbers(out, choice.ids(0..choice.tokens()));
    } else {
        raw(out, "null");
    }
}

/// Appends the usage object; whole answers also carry the fields that the simulator never fills.
pub(super) fn usage(out: &mut Vec<u8>, generation: &Generation, whole: bool, created_cache: &str) {
    let (mut prompt, mut completion) = (generation.prompt_tokens as u64, generation.completion_tokens() as u64);
    let total = prompt + completion;
    if generation.wrong_usage {
        prompt += 1_000;
        completion = completion * 2 + 1;
    }
    raw(out, r#"{"prompt_tokens":"#);
    number(out, prompt);
    raw(out, r#","total_tokens":"#);
    number(out, total);
    raw(out, r#","completion_tokens":"#);
    number(out, completion);
    raw(out, r#","prompt_tokens_details":{"cached_tokens":"#);
    number(out, generation.cached_tokens as u64);
    raw(out, r#","created_cache_tokens":"#);
    raw(out, created_cache);
    raw(out, if whole { r#","multimodal_tokens":null},"completion_tokens_details":null}"# } else { "}}" });
}

/// Log-probabilities of the simulated model: a function of the seed, a token's place, the token before it and itself, so
/// that scoring the same tokens as a prompt gives the same numbers. Each token has at least half of the
/// probability, which makes it the likeliest; alternatives share the rest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scorer(pub(super) Hash);

impl Scorer {
    /// Millionths below zero, at most 690,000 (ln 2 is 0.693).
    fn depth(self, place: usize, previous: u32, id: u32) -> u64 {
        let unit = self.0.number(place as u64).number(u64::from(previous)).number(u64::from(id)).unit();
        (unit * unit * 690_000.0) as u64
    }

    /// An alternative: printable ASCII, another for each rank, never the token itself.
    fn alternative(self, place: usize, id: u32, rank: usize, depth: u64) -> (u32, f64) {
        let first = self.0.number(place as u64).number(99).below(95);
        let candidate = |rank: usize| 32 + ((first + rank) % 95) as u32;
        let own = (32..127).contains(&id).then(|| (id as usize - 32 + 95 - first) % 95);
        let candidate = candidate(if own.is_some_and(|own| own <= rank) { rank + 1 } else { rank });
        let left = 1.0 - (-(depth as f64) / 1e6).exp();
        // Nothing is left beside a token that is certain; JSON has no minus infinity.
        (candidate, (left.max(1e-9) / 2_f64.powi(rank as i32 + 1)).ln())
    }
}

fn depth(out: &mut Vec<u8>, millionths: u64) {
    raw(out, &format!("-0.{millionths:06}"));
}

/// Appends the text of a token.
fn token_text(out: &mut Vec<u8>, id: u32) {
    match (mark(id), u8::try_from(id)) {
        (Some(mark), _) => json_string(out, mark),
        (None, Ok(byte)) if byte.is_ascii() => json_string(out, char::from(byte).encode_utf8(&mut [0; 4])),
        _ => json_string(out, REPLACEMENT),
    }
}

fn token_bytes(out: &mut Vec<u8>, id: u32) {
    match (mark(id), u8::try_from(id)) {
        (Some(mark), _) => numbers(out, mark.bytes().map(u32::from)),
        (None, Ok(byte)) => numbers(out, [u32::from(byte)]),
        _ => numbers(out, []),
    }
}

/// What a token's log-probability depends on beside the token.
fn before(choice: &Choice, place: usize, last_of_prompt: u32) -> u32 {
    if place == 0 { last_of_prompt } else { choice.token(place - 1) }
}

/// Where an answer begins: how many tokens the prompt has, and which is its last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    pub(super) tokens: usize,
    pub(super) last: u32,
}

/// Each token of an answer and its log-probability without its sign.
pub(super) fn token_logprobs(scorer: Scorer, start: Start, choice: &Choice) -> impl Iterator<Item = (u32, f64)> {
    (0..choice.tokens()).map(move |place| {
        let id = choice.token(place);
        (id, scorer.depth(start.tokens + place, before(choice, place, start.last), id) as f64 / 1e6)
    })
}

/// Appends log-probabilities as chat completions show them.
pub(super) fn chat_logprobs(
    out: &mut Vec<u8>,
    scorer: Scorer,
    start: Start,
    choice: &Choice,
    range: Range<usize>,
    alternatives: usize,
) {
    raw(out, r#"{"content":["#);
    for (index, place) in range.enumerate() {
        comma(out, index);
        let id = choice.token(place);
        let below = scorer.depth(start.tokens + place, before(choice, place, start.last), id);
        let entry = |out: &mut Vec<u8>| {
            raw(out, r#"{"token":"#);
            token_text(out, id);
            raw(out, r#","logprob":"#);
            depth(out, below);
            raw(out, r#","bytes":"#);
            token_bytes(out, id);
        };
        entry(out);
        raw(out, r#","top_logprobs":["#);
        for rank in 0..alternatives {
            comma(out, rank);
            if rank == 0 {
                entry(out);
                raw(out, "}");
                continue;
            }
            let (other, logprob) = scorer.alternative(start.tokens + place, id, rank - 1, below);
            raw(out, r#"{"token":"#);
            token_text(out, other);
            raw(out, &format!(r#","logprob":{logprob:.6},"bytes":"#));
            token_bytes(out, other);
            raw(out, "}");
        }
        raw(out, "]}");
    }
    raw(out, "]}");
}

/// Appends log-probabilities as completions show them.
pub(super) fn completion_logprobs(
    out: &mut Vec<u8>,
    scorer: Scorer,
    start: Start,
    choice: &Choice,
    range: Range<usize>,
    alternatives: usize,
) {
    let below =
        |place: usize| scorer.depth(start.tokens + place, before(choice, place, start.last), choice.token(place));
    raw(out, r#"{"text_offset":"#);
    // Every token but the last is one character, or stands for a part of one.
    numbers(out, range.clone().map(|place| place as u32));
    raw(out, r#","token_logprobs":["#);
    for (index, place) in range.clone().enumerate() {
        comma(out, index);
        depth(out, below(place));
    }
    raw(out, r#"],"tokens":["#);
    for (index, place) in range.clone().enumerate() {
        comma(out, index);
        token_text(out, choice.token(place));
    }
    raw(out, r#"],"top_logprobs":["#);
    for (index, place) in range.enumerate() {
        comma(out, index);
        let id = choice.token(place);
        raw(out, "{");
        token_text(out, id);
        raw(out, ":");
        depth(out, below(place));
        for rank in 1..alternatives {
            let (other, logprob) = scorer.alternative(start.tokens + place, id, rank - 1, below(place));
            raw(out, ",");
            token_text(out, other);
            raw(out, &format!(":{logprob:.6}"));
        }
        raw(out, "}");
    }
    raw(out, "]}");
}

/// Appends the log-probabilities of a prompt: null for the first token, then a map from ids, the prompt's own first.
pub(super) fn prompt_logprobs(out: &mut Vec<u8>, scorer: Scorer, ids: &[u32], alternatives: usize) {
    let entry = |out: &mut Vec<u8>, id: u32, rank: usize| {
        raw(out, &format!(r#","rank":{rank},"decoded_token":"#));
        token_text(out, id);
        raw(out, "}");
    };
    raw(out, "[null");
    for (place, pair) in ids.windows(2).enumerate() {
        let (previous, id) = (pair[0], pair[1]);
        let below = scorer.depth(place + 1, previous, id);
        raw(out, &format!(r#",{{"{id}":{{"logprob":"#));
        depth(out, below);
        entry(out, id, 1);
        for rank in 1..alternatives {
            let (other, logprob) = scorer.alternative(place + 1, id, rank - 1, below);
            raw(out, &format!(r#","{other}":{{"logprob":{logprob:.6}"#));
            entry(out, other, rank + 1);
        }
        raw(out, "}");
    }
    raw(out, "]");
}
