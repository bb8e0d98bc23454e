//! Places the messages of a turn in its token sequence: which ids belong to which message.
//!
//! A message's ids run from the end of the message before it to the end of its own span, so that template scaffold in
//! front belongs to it. Where an engine expanded image placeholders there are two sequences, the renderer's and the
//! engine's, and every cursor is a pair.

use indexmap::IndexMap;

use super::{
    error::GraphError,
    tokens::{NodeTokens, TokenFlags, TurnTokens, expect_length},
};

impl TurnTokens {
    /// The ids that spans and `is_content` refer to.
    pub(super) fn renderer_prompt_ids(&self) -> &[u32] {
        self.renderer_prompt_ids.as_deref().unwrap_or(&self.prompt_ids)
    }

    /// What can be checked without the graph.
    pub(super) fn check(&self) -> Result<(), GraphError> {
        expect_length("completion_logprobs", self.completion_ids.len(), self.completion_logprobs.len())?;
        if !self.is_content.is_empty() {
            expect_length("is_content", self.renderer_prompt_ids().len(), self.is_content.len())?;
        }
        if let Some((rows, _)) = &self.routed_experts {
            let row = rows.row_bytes();
            let whole = rows.data.len().checked_rem(row).map(|rest| rows.data.len() - rest);
            expect_length("routed_experts", whole.unwrap_or(0), rows.data.len())?;
        }
        if self.prompt_start > 0 && self.renderer_prompt_ids.is_some() {
            return Err(GraphError::Renderer {
                position: 0,
                reason: "a partial prompt has no renderer ids of its own",
            });
        }
        Ok(())
    }
}

/// A half-open range in the engine's sequence and the same in the renderer's.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: usize,
    end: usize,
    renderer_start: usize,
    renderer_end: usize,
}

/// Hands out the ids of a turn, message by message.
pub(super) struct Layout<'a> {
    tokens: &'a TurnTokens,
    /// Whether the renderer's ids are another sequence.
    expanded: bool,
    /// One per message that is not in the kept prefix.
    spans: Vec<Option<Span>>,
    is_content: Option<Vec<bool>>,
    next: usize,
    at: usize,
    renderer_at: usize,
}

impl<'a> Layout<'a> {
    /// The layout of `messages` messages after the first `first` ones, whose ids end at `begin` in the engine's and the
    /// renderer's sequence.
    pub(super) fn new(
        tokens: &'a TurnTokens,
        placeholders: &IndexMap<u32, u32>,
        first: usize,
        messages: usize,
        begin: (usize, usize),
    ) -> Result<Self, GraphError> {
        let renderer_ids = tokens.renderer_prompt_ids();
        let expanded = renderer_ids != tokens.prompt_ids;
        let offsets = if expanded { Some(offsets(tokens, placeholders)?) } else { None };
        let engine = |position: usize| offsets.as_ref().map_or(position, |offsets| offsets[position]);
        let mut spans = vec![None; messages];
        if let Some(given) = &tokens.message_spans {
            expect_length("message_spans", first + messages, given.len())?;
            let mut last = 0;
            for (message, span) in given.iter().enumerate() {
                let Some((start, end)) = *span else { continue };
                let inside = |position: usize| position.checked_sub(tokens.prompt_start);
                let (Some(renderer_start), Some(renderer_end)) = (inside(start), inside(end)) else {
                    return Err(GraphError::Span { message, start, end });
                };
                if renderer_start < last || renderer_end < renderer_start || renderer_end > renderer_ids.len() {
                    return Err(GraphError::Span { message, start, end });
                }
                last = renderer_end;
                if let Some(place) = message.checked_sub(first) {
                    spans[place] = Some(Span {
                        start: engine(renderer_start),
                        end: engine(renderer_end),
                        renderer_start,
                        renderer_end,
                    });
                }
            }
        }
        let is_content = (!tokens.is_content.is_empty()).then(|| match &offsets {
            None => tokens.is_content.clone(),
            Some(offsets) => tokens
                .is_content
                .iter()
                .enumerate()
                .flat_map(|(position, flag)| vec![*flag; offsets[position + 1] - offsets[position]])
                .collect(),
        });
        Ok(Self { tokens, expanded, spans, is_content, next: 0, at: begin.0, renderer_at: begin.1 })
    }

    /// Where the next message ends in both sequences. A span that lies behind the cursor adds nothing: the message's
    /// ids are already in the prefix.
    fn end(&self) -> (usize, usize) {
        match self.spans[self.next] {
            Some(span) => (span.end.max(self.at), span.renderer_end.max(self.renderer_at)),
            None => (self.at, self.renderer_at),
        }
    }

    /// Steps over the next message if a stored node holds it. Candidates come newest first.
    pub(super) fn reuse<'n>(&mut self, candidates: impl Iterator<Item = (u32, &'n NodeTokens)>) -> Option<u32> {
        let ids = &self.tokens.prompt_ids[..];
        let renderer_ids = self.tokens.renderer_prompt_ids();
        let found = if self.spans[self.next].is_some() {
            let (end, renderer_end) = self.end();
            let wanted = &ids[self.at..end];
            let renderer_wanted = &renderer_ids[self.renderer_at..renderer_end];
            let mut candidates = candidates;
            candidates.find(|(_, stored)| *stored.ids == *wanted && stored.renderer_ids() == renderer_wanted)
        } else {
            // Without a span, the stored ids say where the message ends, up to where the next known one begins.
            let known = self.spans[self.next + 1..].iter().flatten().next();
            let (bound, renderer_bound) =
                known.map_or((ids.len(), renderer_ids.len()), |span| (span.start, span.renderer_start));
            let room = &ids[self.at..bound.max(self.at)];
            let renderer_room = &renderer_ids[self.renderer_at..renderer_bound.max(self.renderer_at)];
            let mut longest: Option<(u32, &NodeTokens)> = None;
            for (node, stored) in candidates {
                if room.starts_with(&stored.ids)
                    && renderer_room.starts_with(stored.renderer_ids())
                    && longest.is_none_or(|(_, best)| stored.ids.len() > best.ids.len())
                {
                    longest = Some((node, stored));
                }
            }
            longest
        };
        let (node, stored) = found?;
        self.at += stored.ids.len();
        self.renderer_at += stored.renderer_ids().len();
        self.next += 1;
        Some(node)
    }

    /// The next message's ids.
    pub(super) fn message(&mut self) -> NodeTokens {
        let (end, renderer_end) = self.end();
        let piece = self.tokens.prompt_ids[self.at..end].into();
        let node = self.node(piece, renderer_end, TokenFlags::suffix(end - self.at, 0), end, 0);
        self.next += 1;
        node
    }

    /// The reply's ids: the rest of the prompt and the completion.
    pub(super) fn reply(&mut self) -> NodeTokens {
        let prompt = &self.tokens.prompt_ids[self.at..];
        let completion = &self.tokens.completion_ids;
        let ids = [prompt, completion].concat().into_boxed_slice();
        let mask = TokenFlags::suffix(prompt.len(), completion.len());
        let mut node = self.node(
            ids,
            self.tokens.renderer_prompt_ids().len(),
            mask.clone(),
            self.tokens.prompt_ids.len(),
            completion.len(),
        );
        if self.is_content.is_some() {
            // The rest of the prompt is scaffold whatever the renderer says of it.
            node.is_content = mask;
        }
        node.logprobs = self.tokens.completion_logprobs.as_slice().into();
        node
    }

    fn node(
        &mut self,
        ids: Box<[u32]>,
        renderer_end: usize,
        mask: TokenFlags,
        end: usize,
        completion: usize,
    ) -> NodeTokens {
        let renderer_piece = &self.tokens.renderer_prompt_ids()[self.renderer_at..renderer_end];
        let renderer_ids = self.expanded.then(|| {
            let completion = &self.tokens.completion_ids[..completion];
            [renderer_piece, completion].concat().into_boxed_slice()
        });
        let is_content = match &self.is_content {
            Some(flags) => TokenFlags::new(flags[self.at..end].iter().copied()),
            None => TokenFlags::default(),
        };
        self.at = end;
        self.renderer_at = renderer_end;
        let mut node = NodeTokens { ids, mask, is_content, ..NodeTokens::default() };
        if let Some(renderer_ids) = renderer_ids.filter(|renderer_ids| *renderer_ids != node.ids) {
            node.sidecar().renderer_ids = Some(renderer_ids);
        }
        node
    }
}

/// For each position of the renderer's prompt, and its end, the position in the engine's: each placeholder token of the
/// renderer stands for a range of the engine.
fn offsets(tokens: &TurnTokens, special: &IndexMap<u32, u32>) -> Result<Vec<usize>, GraphError> {
    let fault = |position, reason| GraphError::Renderer { position, reason };
    let Some(placeholders) = tokens.mm_placeholders.as_ref().filter(|_| !special.is_empty()) else {
        return Err(fault(0, "the prompts differ and no placeholder ranges are given"));
    };
    let renderer_ids = tokens.renderer_prompt_ids();
    let mut placeholders = placeholders.iter();
    let mut offsets = Vec::with_capacity(renderer_ids.len() + 1);
    let mut at = 0;
    for (position, id) in renderer_ids.iter().enumerate() {
        offsets.push(at);
        if special.contains_key(id) {
            match placeholders.next() {
                Some((offset, length)) if *offset == at && *length > 0 => at += length,
                Some(_) => return Err(fault(position, "the placeholder range is elsewhere")),
                None => return Err(fault(position, "a placeholder has no range")),
            }
        } else {
            if tokens.prompt_ids.get(at) != Some(id) {
                return Err(fault(position, "the token differs"));
            }
            at += 1;
        }
    }
    if at != tokens.prompt_ids.len() || placeholders.next().is_some() {
        return Err(fault(renderer_ids.len(), "the engine's prompt is longer or has more placeholders"));
    }
    offsets.push(at);
    Ok(offsets)
}
