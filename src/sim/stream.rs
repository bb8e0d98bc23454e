//! Answers as server-sent events, for both generating routes.
//!
//! An event carries a word or so: several tokens, as vLLM sends them when its stream interval is above one.

use std::{io, ops::Range, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::stream::{self, StreamExt};

use super::{
    body::Answer,
    fault::FaultKind,
    generate::{Choice, Generation, whole_characters},
    json::{json_string, json_string_or_null, number, numbers, raw},
    model::Model,
    write::{FINGERPRINT, Scorer, Start, chat_logprobs, completion_logprobs, opening, usage},
};

/// Bytes of text in one event, at most.
const LONGEST_PIECE: usize = 16;

/// Which of the two routes an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Chat,
    Completions,
}

/// What is to be streamed.
pub(super) struct Streamed {
    pub(super) model: Arc<Model>,
    pub(super) dialect: Dialect,
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) generation: Generation,
    pub(super) start: Start,
    /// Alternatives, if log-probabilities are asked for.
    pub(super) logprobs: Option<usize>,
    /// The prompt's ids, if ids are asked for.
    pub(super) prompt_ids: Option<Vec<u32>>,
    pub(super) include_usage: bool,
    pub(super) fault: Option<FaultKind>,
}

#[derive(Debug)]
enum Delta {
    Role,
    Text(Range<usize>),
    CallName(usize),
    CallArguments(usize, Range<usize>),
    Nothing,
}

#[derive(Debug)]
struct Piece {
    choice: usize,
    delta: Delta,
    tokens: Range<usize>,
    finish: bool,
}

/// Turns a generation into the body of an answer.
pub(super) fn answer(streamed: Streamed) -> Answer {
    let pieces = pieces(&streamed);
    let settings = &streamed.model.settings;
    let immediate = settings.time_to_first_token.is_zero()
        && settings.inter_token_latency.is_zero()
        && !streamed.model.engine.is_limited();
    if immediate {
        let mut out = Vec::with_capacity(pieces.len() * 256);
        for (index, piece) in pieces.iter().enumerate() {
            streamed.event(&mut out, piece, index == 0);
        }
        streamed.end(&mut out);
        streamed.generation.record(&streamed.model, None);
        return Answer::Events(out.into());
    }
    let cut = (streamed.fault == Some(FaultKind::Cut)).then_some(pieces.len() / 2);
    let run = Run { streamed, pieces, next: 0, cut, first_token: None };
    Answer::Pieces(stream::unfold(Some(run), Run::step).boxed())
}

struct Run {
    streamed: Streamed,
    pieces: Vec<Piece>,
    next: usize,
    /// The piece before which the connection breaks.
    cut: Option<usize>,
    first_token: Option<Duration>,
}

impl Run {
    async fn step(run: Option<Self>) -> Option<(io::Result<Bytes>, Option<Self>)> {
        let mut run = run?;
        if run.cut == Some(run.next) {
            // What came before must leave first: it does while a body is pending.
            tokio::task::yield_now().await;
            return Some((Err(io::Error::other("injected cut")), None));
        }
        let piece = run.pieces.get(run.next)?;
        run.streamed.generation.slot.until(piece.tokens.end).await;
        if run.first_token.is_none() {
            run.first_token = Some(run.streamed.generation.slot.elapsed());
        }
        let mut out = Vec::with_capacity(512);
        run.streamed.event(&mut out, piece, run.next == 0);
        run.next += 1;
        if run.next < run.pieces.len() {
            return Some((Ok(out.into()), Some(run)));
        }
        run.streamed.generation.slot.until(usize::MAX).await;
        run.streamed.end(&mut out);
        run.streamed.generation.record(&run.streamed.model, run.first_token);
        Some((Ok(out.into()), None))
    }
}

/// The events of a generation in the order of time.
fn pieces(streamed: &Streamed) -> Vec<Piece> {
    let mut all = Vec::new();
    for (index, choice) in streamed.generation.choices.iter().enumerate() {
        let mut at = 0;
        let mut push = |delta, end: usize| {
            let end = end.max(at);
            all.push(Piece { choice: index, delta, tokens: at..end, finish: false });
            at = end;
        };
        if streamed.dialect == Dialect::Chat {
            push(Delta::Role, 0);
        }
        for range in split(choice, 0..choice.content().len()) {
            let end = range.end;
            push(Delta::Text(range), end);
        }
        for (place, call) in choice.calls.iter().enumerate() {
            push(Delta::CallName(place), call.arguments.start);
            for range in split(choice, call.arguments.clone()) {
                let end = range.end;
                push(Delta::CallArguments(place, range), end);
            }
        }
        let whole = choice.tokens();
        match all.last_mut() {
            Some(last) if last.choice == index && last.tokens.end == whole && matches!(last.delta, Delta::Text(_)) => {
                last.finish = true;
            }
            _ => all.push(Piece { choice: index, delta: Delta::Nothing, tokens: at..whole, finish: true }),
        }
    }
    if streamed.generation.choices.len() > 1 {
        all.sort_by_key(|piece| piece.tokens.end);
    }
    all
}

/// Cuts a stretch of text behind spaces, or at a length.
fn split(choice: &Choice, range: Range<usize>) -> Vec<Range<usize>> {
    let mut ranges = Vec::with_capacity(range.len() / 4 + 1);
    let mut start = range.start;
    while start < range.end {
        let rest = choice.slice(start..range.end);
        let most = rest.len().min(LONGEST_PIECE);
        let length = match rest.as_bytes()[..most].iter().position(|byte| *byte == b' ') {
            Some(space) => space + 1,
            None => whole_characters(rest, most),
        };
        ranges.push(start..start + length);
        start += length;
    }
    ranges
}

impl Streamed {
    fn event(&self, out: &mut Vec<u8>, piece: &Piece, first: bool) {
        raw(out, "data: ");
        if self.fault == Some(FaultKind::Malformed) && piece.finish {
            raw(out, "{\"id\":\"chatcmpl-\n\n");
            return;
        }
        let object = match self.dialect {
            Dialect::Chat => "chat.completion.chunk",
            Dialect::Completions => "text_completion",
        };
        opening(out, &self.id, object, self.created, &self.model.settings.model);
        let choice = &self.generation.choices[piece.choice];
        raw(out, r#"{"index":"#);
        number(out, piece.choice as u64);
        match self.dialect {
            Dialect::Chat => {
                raw(out, r#","delta":{"#);
                self.delta(out, choice, &piece.delta);
                raw(out, "}");
            }
            Dialect::Completions => {
                raw(out, r#","text":"#);
                match &piece.delta {
                    Delta::Text(range) => json_string(out, choice.slice(range.clone())),
                    _ => raw(out, r#""""#),
                }
            }
        }
        raw(out, r#","logprobs":"#);
        match (self.logprobs, self.dialect) {
            (Some(alternatives), Dialect::Chat) if !piece.tokens.is_empty() => {
                chat_logprobs(out, self.scorer(), self.start, choice, piece.tokens.clone(), alternatives);
            }
            (Some(alternatives), Dialect::Completions) if !piece.tokens.is_empty() => {
                completion_logprobs(out, self.scorer(), self.start, choice, piece.tokens.clone(), alternatives);
            }
            _ => raw(out, "null"),
        }
        raw(out, r#","finish_reason":"#);
        if piece.finish {
            json_string(out, choice.finish);
            raw(out, r#","stop_reason":"#);
            json_string_or_null(out, choice.stop_reason.as_deref());
        } else {
            raw(out, "null");
        }
        if self.dialect == Dialect::Completions && first {
            raw(out, r#","prompt_token_ids":"#);
            self.prompt_ids(out);
        }
        if !matches!(piece.delta, Delta::Role) {
            raw(out, r#","token_ids":"#);
            match &self.prompt_ids {
                Some(_) => numbers(out, choice.ids(piece.tokens.clone())),
                None => raw(out, "null"),
            }
        }
        raw(out, "}]");
        if self.dialect == Dialect::Chat && first {
            raw(out, r#","prompt_token_ids":"#);
            self.prompt_ids(out);
            raw(out, r#","prompt_text":null"#);
        }
        if piece.finish && !self.include_usage {
            self.fingerprint(out);
        }
        raw(out, "}\n\n");
    }

    fn delta(&self, out: &mut Vec<u8>, choice: &Choice, delta: &Delta) {
        match delta {
            Delta::Role => raw(out, r#""role":"assistant","content":"""#),
            Delta::Text(range) => {
                raw(out, r#""content":"#);
                json_string(out, choice.slice(range.clone()));
            }
            Delta::CallName(place) => {
                let call = &choice.calls[*place];
                raw(out, r#""content":null,"tool_calls":[{"id":"#);
                json_string(out, &call.id);
                raw(out, r#","type":"function","index":"#);
                number(out, *place as u64);
                raw(out, r#","function":{"name":"#);
                json_string(out, &call.name);
                raw(out, "}}]");
            }
            Delta::CallArguments(place, range) => {
                raw(out, r#""content":null,"tool_calls":[{"index":"#);
                number(out, *place as u64);
                raw(out, r#","function":{"arguments":"#);
                json_string(out, choice.slice(range.clone()));
                raw(out, "}}]");
            }
            Delta::Nothing => {}
        }
    }

    fn end(&self, out: &mut Vec<u8>) {
        if self.include_usage {
            raw(out, "data: ");
            let object = match self.dialect {
                Dialect::Chat => "chat.completion.chunk",
                Dialect::Completions => "text_completion",
            };
            opening(out, &self.id, object, self.created, &self.model.settings.model);
            raw(out, r#"],"usage":"#);
            usage(out, &self.generation, false, "0");
            self.fingerprint(out);
            raw(out, "}\n\n");
        }
        raw(out, "data: [DONE]\n\n");
    }

    fn scorer(&self) -> Scorer {
        Scorer(self.model.seed)
    }

    fn fingerprint(&self, out: &mut Vec<u8>) {
        raw(out, r#","system_fingerprint":"#);
        json_string(out, FINGERPRINT);
    }

    fn prompt_ids(&self, out: &mut Vec<u8>) {
        match &self.prompt_ids {
            Some(ids) => numbers(out, ids.iter().copied()),
            None => raw(out, "null"),
        }
    }
}
