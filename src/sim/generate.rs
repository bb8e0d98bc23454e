//! One generation: its limits, its choices, its place in the engine.

use std::{ops::Range, sync::Arc};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    batch::Work,
    engine::Slot,
    fault::FaultKind,
    hash::Hash,
    metrics::Counters,
    model::Model,
    refusal::Refusal,
    request::{OneOrMany, Text},
    token::{END, Outline, Sink},
    words::words,
};

/// Alternatives that may be asked for at each token.
const MOST_LOGPROBS: usize = 20;
/// Choices that may be asked for.
const MOST_CHOICES: usize = 1024;

/// What both generating routes ask for, beside the prompt.
#[derive(Debug)]
pub(super) struct Sampling<'a> {
    pub(super) model: Option<&'a str>,
    pub(super) max_tokens: Option<usize>,
    pub(super) choices: usize,
    pub(super) stop: Option<&'a OneOrMany<'a>>,
    pub(super) seed: Option<i64>,
    pub(super) ignore_end: bool,
    pub(super) cache_salt: Option<&'a str>,
    /// Alternatives at each token, of the answer and of the prompt.
    pub(super) alternatives: [Option<usize>; 2],
    /// Read tool calls from the text; a named one ends as if it were text.
    pub(super) tools: ToolReading,
    pub(super) fault: Option<FaultKind>,
}

/// What becomes of tool calls in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToolReading {
    /// They are text.
    Off,
    /// They are calls, and the answer ends with `tool_calls`.
    On,
    /// They are calls, yet the answer ends with `stop`: what vLLM does where the call was forced by name.
    Named,
}

/// A generation that has its place in the engine; its text is fixed, its tokens come with time.
#[derive(Debug)]
pub(super) struct Generation {
    pub(super) choices: Vec<Choice>,
    pub(super) prompt_tokens: usize,
    pub(super) cached_tokens: usize,
    pub(super) slot: Slot,
    /// Token counts are told wrong on purpose.
    pub(super) wrong_usage: bool,
}

/// One answer.
#[derive(Debug)]
pub(super) struct Choice {
    /// The text; perhaps more than was sampled.
    text: String,
    /// Its bytes that were sampled: each is a token.
    sampled: usize,
    /// Whether the end of the turn was sampled after them.
    ended: bool,
    /// Bytes that are shown: all that was sampled, less a stop string and half a character.
    visible: usize,
    /// Bytes that are content; the rest of what is shown are tool calls.
    content: usize,
    pub(super) calls: Vec<Call>,
    pub(super) finish: &'static str,
    pub(super) stop_reason: Option<String>,
}

/// One tool call of an answer.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) id: String,
    pub(super) name: String,
    /// Where its arguments stand in the text.
    pub(super) arguments: Range<usize>,
}

impl Choice {
    /// How many tokens it has.
    pub(super) fn tokens(&self) -> usize {
        self.sampled + usize::from(self.ended)
    }

    /// The token at a place.
    pub(super) fn token(&self, place: usize) -> u32 {
        if place < self.sampled { u32::from(self.text.as_bytes()[place]) } else { END }
    }

    /// Its tokens.
    pub(super) fn ids(&self, range: Range<usize>) -> impl Iterator<Item = u32> {
        range.map(|place| self.token(place))
    }

    /// What is shown as text.
    pub(super) fn content(&self) -> &str {
        &self.text[..self.content]
    }

    /// A piece of the text.
    pub(super) fn slice(&self, range: Range<usize>) -> &str {
        &self.text[range]
    }
}

impl Generation {
    /// Tokens of all choices.
    pub(super) fn completion_tokens(&self) -> usize {
        self.choices.iter().map(Choice::tokens).sum()
    }

    /// Waits until all is there.
    pub(super) async fn finish(&mut self, model: &Model) {
        self.slot.until(usize::MAX).await;
        self.record(model, None);
    }

    /// Counts it as finished; `first_token` is its time if it was seen.
    pub(super) fn record(&self, model: &Model, first_token: Option<std::time::Duration>) {
        let counters = &model.counters;
        let whole = self.slot.elapsed();
        let decode = model.settings.inter_token_latency * (self.steps() - 1) as u32;
        counters.first_token.record(first_token.unwrap_or(whole.saturating_sub(decode)));
        counters.whole_request.record(whole);
        Counters::add(&counters.completion_tokens, self.completion_tokens() as u64);
        let cut = self.choices.iter().filter(|choice| choice.finish == "length").count();
        Counters::add(&counters.cut_at_length, cut as u64);
        Counters::add(&counters.stopped, (self.choices.len() - cut) as u64);
    }

    fn steps(&self) -> usize {
        self.choices.iter().map(Choice::tokens).max().unwrap_or(1).max(1)
    }
}

/// Checks a request, draws its choices, and enters the engine.
///
/// `text` gives the text of a choice from its draw.
pub(super) fn generate(
    model: &Arc<Model>,
    mut prompt: Outline,
    sampling: &Sampling<'_>,
    text: impl Fn(Hash) -> String,
) -> Result<Generation, Refusal> {
    let room = check(model, prompt.tokens, sampling)?;
    // The answer to a broken delivery is given again when the caller tries again.
    let delivered = !matches!(sampling.fault, Some(FaultKind::Malformed | FaultKind::Cut));
    let draw = match sampling.seed {
        Some(seed) => prompt.hash.number(seed as u64).number(1),
        None => {
            let occurrence = model.occurrence(prompt.hash.value(), delivered);
            prompt.hash.number(u64::from(occurrence)).number(2)
        }
    };
    let choices: Vec<Choice> = (0..sampling.choices)
        .map(|index| {
            let draw = draw.number(index as u64);
            let text = if sampling.fault == Some(FaultKind::Empty) { String::new() } else { text(draw) };
            choose(text, room, sampling, draw)
        })
        .collect();

    let salt = sampling.cache_salt.map_or(0, |salt| model.seed.bytes(salt.as_bytes()).value());
    for (hash, _) in &mut prompt.boundaries {
        *hash ^= salt;
    }
    let cached_tokens = model.look_up_prefix(&prompt.boundaries, prompt.tokens);
    let work = Work {
        prompt: prompt.tokens,
        steps: choices.iter().map(Choice::tokens).max().unwrap_or(1),
        width: choices.len(),
    };
    let slot = model.engine.enter(work).map_err(|_| {
        Counters::add(&model.counters.rejected, 1);
        Refusal::busy()
    })?;
    for choice in &choices {
        let mut answered = Outline::new(prompt.hash);
        answered.bytes(choice.slice(0..choice.visible).as_bytes());
        answered.mark(END);
        answered.bytes(b"\n");
        model.remember_prefix(answered.hash.value() ^ salt);
    }
    Counters::add(&model.counters.prompt_tokens, prompt.tokens as u64);
    Counters::add(&model.counters.cached_tokens, cached_tokens as u64);
    let wrong_usage = sampling.fault == Some(FaultKind::WrongUsage);
    Ok(Generation { choices, prompt_tokens: prompt.tokens, cached_tokens, slot, wrong_usage })
}

/// How many tokens a choice may have.
fn check(model: &Model, prompt_tokens: usize, sampling: &Sampling<'_>) -> Result<usize, Refusal> {
    let settings = &model.settings;
    if let Some(name) = sampling.model
        && name != settings.model
    {
        return Err(Refusal::unknown_model(name, &settings.model));
    }
    if sampling.choices == 0 || sampling.choices > MOST_CHOICES {
        let message = format!("n must be between 1 and {MOST_CHOICES}, got {}.", sampling.choices);
        return Err(Refusal::bad_request(&message, Some("n")));
    }
    for asked in sampling.alternatives.into_iter().flatten() {
        if asked > MOST_LOGPROBS {
            let message = format!("Requested logprobs of {asked}, which is greater than max allowed: {MOST_LOGPROBS}");
            return Err(Refusal::bad_request(&message, Some("logprobs")));
        }
    }
    match sampling.max_tokens {
        Some(0) => {
            return Err(Refusal::bad_request("max_tokens must be at least 1, got 0.", Some("max_tokens")));
        }
        Some(asked) if asked > settings.max_model_len => {
            return Err(Refusal::max_tokens(asked, settings.max_model_len));
        }
        _ => {}
    }
    if prompt_tokens >= settings.max_model_len {
        return Err(Refusal::context_overflow(settings.max_model_len));
    }
    Ok(sampling.max_tokens.unwrap_or(usize::MAX).min(settings.max_model_len - prompt_tokens))
}

fn choose(mut text: String, room: usize, sampling: &Sampling<'_>, draw: Hash) -> Choice {
    if sampling.ignore_end {
        while text.len() < room {
            text.push(' ');
            text.push_str(&words(room.saturating_sub(text.len()).div_ceil(8).max(1), draw.number(text.len() as u64)));
        }
    }
    let stop = sampling
        .stop
        .iter()
        .flat_map(|stops| &stops.0)
        .filter(|stop| !stop.is_empty())
        .filter_map(|stop: &Text<'_>| text.find(&**stop).map(|place| (place + stop.len(), place, stop)))
        .filter(|(end, ..)| *end <= room)
        .min_by_key(|(end, ..)| *end);
    let mut choice = match stop {
        Some((end, place, stop)) => {
            let stop_reason = Some(stop.to_string());
            Choice { sampled: end, ended: false, visible: place, finish: "stop", stop_reason, ..Choice::bare() }
        }
        None if text.len() + usize::from(!sampling.ignore_end) > room => {
            let sampled = room.min(text.len());
            Choice { sampled, visible: whole_characters(&text, sampled), finish: "length", ..Choice::bare() }
        }
        None => {
            let ended = !sampling.ignore_end;
            let finish = if ended { "stop" } else { "length" };
            Choice { sampled: text.len(), ended, visible: text.len(), finish, ..Choice::bare() }
        }
    };
    choice.content = choice.visible;
    if sampling.tools != ToolReading::Off
        && let Some((content, calls)) = read_calls(&text[..choice.visible], draw)
    {
        choice.content = content;
        choice.calls = calls;
        if sampling.tools == ToolReading::On && choice.finish == "stop" {
            choice.finish = "tool_calls";
        }
    }
    choice.text = text;
    choice
}

/// The last place at or before `at` where no character is cut.
pub(super) fn whole_characters(text: &str, at: usize) -> usize {
    (0..=at).rev().find(|place| text.is_char_boundary(*place)).unwrap_or(0)
}

impl Choice {
    fn bare() -> Self {
        Self {
            text: String::new(),
            sampled: 0,
            ended: false,
            visible: 0,
            content: 0,
            calls: Vec::new(),
            finish: "stop",
            stop_reason: None,
        }
    }
}

/// Reads calls in Hermes form: where the content ends, and the calls. `None` if there are none, or one is malformed.
fn read_calls(text: &str, draw: Hash) -> Option<(usize, Vec<Call>)> {
    const OPEN: &str = "<tool_call>";
    const CLOSE: &str = "</tool_call>";

    #[derive(Deserialize)]
    struct Written<'a> {
        name: String,
        #[serde(borrow)]
        arguments: &'a RawValue,
    }

    let content = text.find(OPEN)?;
    let mut calls = Vec::new();
    let mut rest = content;
    while let Some(open) = text[rest..].find(OPEN) {
        let start = rest + open + OPEN.len();
        let end = text[start..].find(CLOSE).map_or(text.len(), |close| start + close);
        let written: Written<'_> = serde_json::from_str(&text[start..end]).ok()?;
        // The raw value is a slice of the text; where it stands is the difference of their addresses.
        let place = written.arguments.get().as_ptr() as usize - text.as_ptr() as usize;
        calls.push(Call {
            id: format!("chatcmpl-tool-{:016x}", draw.number(calls.len() as u64).number(7).value()),
            name: written.name,
            arguments: place..place + written.arguments.get().len(),
        });
        rest = end;
    }
    Some((content, calls))
}
