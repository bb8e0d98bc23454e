//! Reading tool calls: blocks between two control tokens, and the form called hermes, a JSON object with `name` and
//! `arguments`.

use serde_json::{Value, value::RawValue};

use super::{
    parsed::{CallStatus, ParsedCall},
    python::strip,
    tokenizer::Tokenizer,
};

/// A stretch between two control tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// Index of the token that opens it.
    pub(super) open: usize,
    /// Index behind its last inner id.
    pub(super) end: usize,
    /// A token closes it, rather than the end of everything.
    pub(super) closed: bool,
}

impl Block {
    /// The ids inside.
    pub(super) fn inside(self, ids: &[u32]) -> &[u32] {
        &ids[self.open + 1..self.end]
    }

    /// Its place with its tokens, in a sequence in which `ids` begin at `offset`.
    pub(super) fn span(self, offset: usize) -> (usize, usize) {
        (offset + self.open, offset + self.end + usize::from(self.closed))
    }
}

/// The blocks in ids, in order; one that is not closed is the last.
pub(super) fn blocks(ids: &[u32], [open, close]: [u32; 2]) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut at = 0;
    while let Some(begin) = ids[at..].iter().position(|id| *id == open).map(|found| at + found) {
        let end = ids[begin + 1..].iter().position(|id| *id == close).map(|found| begin + 1 + found);
        blocks.push(Block { open: begin, end: end.unwrap_or(ids.len()), closed: end.is_some() });
        let Some(end) = end else { break };
        at = end + 1;
    }
    blocks
}

/// Reads the calls of an answer from its first one on. `offset` is where `ids` begin in the completion.
pub(super) fn hermes(tokenizer: &Tokenizer, ids: &[u32], offset: usize, marks: [u32; 2]) -> Vec<ParsedCall> {
    let read = |block: Block| {
        let raw = strip(&tokenizer.decode(block.inside(ids))).to_owned();
        let span = Some(block.span(offset));
        match block.closed {
            true => json_call(raw, span),
            false => ParsedCall { raw, name: None, arguments: None, span, status: CallStatus::Unclosed, id: None },
        }
    };
    blocks(ids, marks).into_iter().map(read).collect()
}

/// Reads one call that is a JSON object.
fn json_call(raw: String, span: Option<(usize, usize)>) -> ParsedCall {
    let (name, arguments, status) = match serde_json::from_str::<Value>(&raw) {
        Err(_) => (None, None, CallStatus::InvalidJson),
        Ok(_) => {
            let parts = serde_json::from_str::<Parts<'_>>(&raw).unwrap_or_default();
            let arguments = parts.arguments.map_or("{}", RawValue::get).to_owned();
            let name = parts.name.and_then(|name| serde_json::from_str::<String>(name.get()).ok());
            match name.filter(|name| !name.is_empty()) {
                Some(name) => (Some(name), Some(arguments), CallStatus::Ok),
                None => (None, Some(arguments), CallStatus::MissingName),
            }
        }
    };
    ParsedCall { raw, name, arguments, span, status, id: None }
}

#[derive(Default, serde::Deserialize)]
struct Parts<'a> {
    #[serde(borrow, default)]
    name: Option<&'a RawValue>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
}
