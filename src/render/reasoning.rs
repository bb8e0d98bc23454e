//! Where the reasoning of an answer begins and ends: the rule of formats whose reasoning comes first.
//!
//! An answer reasons when its prompt ends inside a reasoning block, or when the block opens before any other text. The first
//! end closes it for good. In some formats the opening of a tool call ends it where its own end is missing, as vLLM's
//! parsers have it. Where the vocabulary has no tokens for the marks `<think>` and `</think>`, they are text.

use super::{
    Parsed, Previous, Unbridged, bridge::end_of_turn, python::strip, rendered::Place, tokenizer::Tokenizer,
    writer::Writer,
};

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// What a format says of reasoning.
#[derive(Clone, Debug)]
pub(super) struct Reasoning {
    /// The tokens that open and close it; `None` where the marks are text.
    marks: Option<[u32; 2]>,
    /// Opens a tool call, which ends reasoning that is still open.
    tool: Option<u32>,
    /// What the template writes in front of an answer.
    header: Box<[u32]>,
    /// Ids that end a turn.
    stops: Box<[u32]>,
}

/// The reasoning of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Region {
    /// The text.
    pub(super) text: String,
    /// It does not end.
    pub(super) open: bool,
    /// It ended where a tool call began.
    pub(super) closed_by_tool: bool,
    /// Index of the first id after it.
    pub(super) rest: usize,
}

impl Reasoning {
    pub(super) fn new(tokenizer: &Tokenizer, tool: Option<u32>, header: &str, stops: &[u32]) -> Self {
        let marks = tokenizer.id(OPEN).zip(tokenizer.id(CLOSE)).map(|(open, close)| [open, close]);
        Self { marks, tool, header: tokenizer.encode(header).into(), stops: stops.into() }
    }

    /// Whether the answer after this prompt begins inside reasoning. Looks back to the end of the last turn, no farther.
    fn is_open_after(&self, tokenizer: &Tokenizer, prompt: &[u32]) -> bool {
        let turn = prompt.iter().rposition(|id| self.stops.contains(id)).map_or(0, |stop| stop + 1);
        let tail = &prompt[turn..];
        let header = self.header.len();
        let at = if header == 0 { None } else { tail.windows(header).rposition(|window| window == &*self.header) };
        let tail = at.map_or(tail, |at| without_newlines(tokenizer, &tail[at + header..]));
        self.region(tokenizer, tail, 0, false, None).is_some_and(|region| region.open)
    }

    /// The reasoning of an answer, if it has any. `inside` says that it begins in reasoning.
    fn scan(&self, tokenizer: &Tokenizer, completion: &[u32], inside: bool) -> Option<Region> {
        let end = completion.iter().position(|id| self.stops.contains(id)).unwrap_or(completion.len());
        let ids = &completion[..end];
        let body = match ids.strip_prefix(&*self.header) {
            Some(rest) if !self.header.is_empty() => without_newlines(tokenizer, rest),
            _ => ids,
        };
        self.region(tokenizer, body, ids.len() - body.len(), inside, self.tool)
    }

    /// Reads the reasoning of an answer and says where the rest of it begins.
    ///
    /// # Errors
    /// The whole answer is reasoning that does not end: it, read.
    pub(super) fn read(
        &self,
        tokenizer: &Tokenizer,
        ids: &[u32],
        prompt: &[u32],
    ) -> Result<(Option<Region>, usize), Parsed> {
        let region = self.scan(tokenizer, ids, self.is_open_after(tokenizer, prompt));
        match region {
            Some(region) if region.open => {
                Err(Parsed { reasoning: Some(region.text), reasoning_complete: Some(false), ..Parsed::default() })
            }
            region => {
                let rest = region.as_ref().map_or(0, |region| region.rest);
                Ok((region, rest))
            }
        }
    }

    /// Writes what is missing of the end of a turn: that of its reasoning, and `end`, where it was cut short.
    pub(super) fn end_turn(
        &self,
        writer: &mut Writer<'_>,
        tokenizer: &Tokenizer,
        previous: Previous<'_>,
        end: u32,
    ) -> Result<(), Unbridged> {
        let ended = end_of_turn(previous.completion, &self.stops)?.is_some();
        let inside = self.is_open_after(tokenizer, previous.prompt);
        if self.scan(tokenizer, previous.completion, inside).is_some_and(|region| region.open) {
            if ended {
                return Err(Unbridged::OpenReasoning);
            }
            let close = self.marks.map_or_else(|| tokenizer.encode(CLOSE), |[_, close]| vec![close]);
            close.into_iter().for_each(|id| writer.control(id, Place::BETWEEN));
        }
        if !ended {
            writer.control(end, Place::BETWEEN);
        }
        Ok(())
    }

    fn region(
        &self,
        tokenizer: &Tokenizer,
        ids: &[u32],
        offset: usize,
        inside: bool,
        tool: Option<u32>,
    ) -> Option<Region> {
        let Some([open, close]) = self.marks else { return text_region(tokenizer, ids, offset, inside, tool) };
        let opening = ids.iter().position(|id| *id == open);
        let explicit = opening.filter(|at| strip(&tokenizer.decode(&ids[..*at])).is_empty());
        let start = match explicit {
            Some(at) => at + 1,
            None if inside => 0,
            None => return None,
        };
        let find = |token: u32| ids[start..].iter().position(|id| *id == token).map(|at| start + at);
        let close = find(close);
        let tool = if close.is_none() { tool.and_then(find) } else { None };
        let end = close.or(tool).unwrap_or(ids.len());
        let text: Vec<u32> = ids[start..end].iter().copied().filter(|id| *id != open).collect();
        Some(Region {
            text: tokenizer.decode(&text),
            open: close.or(tool).is_none(),
            closed_by_tool: tool.is_some(),
            rest: offset + end + usize::from(close.is_some()),
        })
    }
}

fn text_region(tokenizer: &Tokenizer, ids: &[u32], offset: usize, inside: bool, tool: Option<u32>) -> Option<Region> {
    let text = tokenizer.decode(ids);
    let explicit = text.find(OPEN).filter(|at| strip(&text[..*at]).is_empty());
    let start = match explicit {
        Some(at) => at + OPEN.len(),
        None if inside => 0,
        None => return None,
    };
    let close = text[start..].find(CLOSE).map(|at| start + at);
    let tool = tool.filter(|_| close.is_none()).and_then(|tool| {
        let at = ids.iter().position(|id| *id == tool)?;
        let before = tokenizer.decode(&ids[..at]).len();
        (start..=text.len()).contains(&before).then_some((at, before))
    });
    let end = close.or(tool.map(|(_, before)| before));
    Some(Region {
        text: text.get(start..end.unwrap_or(text.len())).unwrap_or_default().replace(OPEN, ""),
        open: end.is_none(),
        closed_by_tool: tool.is_some(),
        rest: offset
            + match (close, tool) {
                (Some(_), _) => after_mark(tokenizer, ids),
                (_, Some((at, _))) => at,
                _ => ids.len(),
            },
    })
}

/// How many ids it takes until the mark that closes reasoning is complete. Its characters can stand in tokens together with
/// others, so that only the text tells.
fn after_mark(tokenizer: &Tokenizer, ids: &[u32]) -> usize {
    let (mut short, mut long) = (1, ids.len());
    while short < long {
        let middle = (short + long) / 2;
        match tokenizer.decode(&ids[..middle]).contains(CLOSE) {
            true => long = middle,
            false => short = middle + 1,
        }
    }
    short
}

fn without_newlines<'a>(tokenizer: &Tokenizer, mut ids: &'a [u32]) -> &'a [u32] {
    while let Some((first, rest)) = ids.split_first()
        && tokenizer.decode(&[*first]).bytes().all(|byte| byte == b'\n')
    {
        ids = rest;
    }
    ids
}
