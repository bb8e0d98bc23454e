//! Token counts of a growing trace, kept up as it grows: [`Trace::token_counts`] costs the whole trace each time.

use crate::trace::{branch::TokenCounts, rollout::Trace, usage::Usage};

/// The counts of what has been seen of a trace.
#[derive(Debug, Default)]
pub(super) struct Counts {
    nodes: Vec<Counted>,
    calls: usize,
    input: u128,
    output: u128,
    completions: u128,
}

/// A node, with what the calls on its path came to.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    /// Total tokens of the last of them that reports usage.
    end: u64,
    /// Their completion tokens.
    output: u128,
    is_inner: bool,
}

impl Counts {
    /// The counts of the trace as it is now.
    pub(super) fn of(&mut self, trace: &Trace) -> TokenCounts {
        self.grow(trace);
        let clamp = |count: u128| u64::try_from(count).unwrap_or(u64::MAX);
        let (input, output, completions) = (clamp(self.input), clamp(self.output), clamp(self.completions));
        TokenCounts { input, output, total: input.saturating_add(completions) }
    }

    fn grow(&mut self, trace: &Trace) {
        let nodes = trace.graph.nodes();
        let late = |call: &&_| -> bool {
            let call: &crate::trace::rollout::ModelCall = call;
            call.node.is_some_and(|node| (node as usize) < self.nodes.len())
        };
        // A call of a node that was counted without it changes all that follows that node; as a rule they come together.
        if trace.calls[self.calls..].iter().any(|call| late(&call)) {
            *self = Self::default();
        }
        let first = self.nodes.len();
        // A node that was committed twice over belongs to its newest call.
        let mut usages: Vec<Option<&Usage>> = vec![None; nodes.len() - first];
        for call in &trace.calls[self.calls..] {
            self.completions += u128::from(call.usage.as_ref().map_or(0, |usage| usage.completion_tokens));
            let place = call.node.and_then(|node| (node as usize).checked_sub(first));
            if let Some(place) = place.and_then(|place| usages.get_mut(place)) {
                *place = call.usage.as_ref();
            }
        }
        self.calls = trace.calls.len();
        for (node, usage) in nodes[first..].iter().zip(usages) {
            let mut counted = Counted::default();
            if let Some(parent) = node.parent.and_then(|parent| self.nodes.get_mut(parent as usize)) {
                if !parent.is_inner {
                    self.output -= parent.output;
                }
                parent.is_inner = true;
                counted = Counted { is_inner: false, ..*parent };
            }
            if let Some(usage) = usage {
                self.input += u128::from(usage.input_tokens().saturating_sub(counted.end));
                counted.end = usage.total_tokens();
                counted.output += u128::from(usage.completion_tokens);
            }
            self.output += counted.output;
            self.nodes.push(counted);
        }
    }
}
