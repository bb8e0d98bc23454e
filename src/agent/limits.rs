//! Budgets of one rollout.

use crate::{config::Limits, trace::Usage};

/// What a rollout has spent. Token budgets are soft by one turn: they refuse the next call, as in verifiers 0.4.0.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    turns: u64,
    input_tokens: u64,
    output_tokens: u64,
    last_total: u64,
}

impl Spent {
    /// Counts a committed turn. Input counts what the call's prompt added to the call before it.
    pub(super) fn add(&mut self, usage: Option<&Usage>) {
        self.turns += 1;
        let Some(usage) = usage else { return };
        self.input_tokens += usage.input_tokens().saturating_sub(self.last_total);
        self.output_tokens += usage.completion_tokens;
        self.last_total = usage.total_tokens();
    }

    /// Model turns so far.
    pub(super) fn turns(self) -> u64 {
        self.turns
    }

    /// The stop condition of the first budget that is used up.
    pub(super) fn exhausted(self, limits: &Limits) -> Option<&'static str> {
        let reached = |limit: Option<u64>, spent: u64| limit.is_some_and(|limit| spent >= limit);
        if reached(limits.max_turns, self.turns) {
            Some("max_turns")
        } else if reached(limits.max_input_tokens, self.input_tokens) {
            Some("max_input_tokens")
        } else if reached(limits.max_output_tokens, self.output_tokens) {
            Some("max_output_tokens")
        } else if reached(limits.max_total_tokens, self.input_tokens + self.output_tokens) {
            Some("max_total_tokens")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(prompt_tokens: u64, cached: u64, completion_tokens: u64) -> Usage {
        Usage { prompt_tokens, completion_tokens, cached_input_tokens: Some(cached), ..Usage::default() }
    }

    #[test]
    fn input_counts_only_what_a_prompt_adds() {
        let mut spent = Spent::default();
        spent.add(Some(&usage(10, 0, 5)));
        spent.add(Some(&usage(5, 15, 5)));
        assert_eq!((spent.turns, spent.input_tokens, spent.output_tokens), (2, 15, 10));
    }

    #[test]
    fn a_budget_refuses_the_call_after_it_is_used_up() {
        let limits = Limits { max_turns: Some(3), max_total_tokens: Some(15), ..Limits::default() };
        let mut spent = Spent::default();
        assert_eq!(spent.exhausted(&limits), None);
        spent.add(Some(&usage(10, 0, 4)));
        assert_eq!(spent.exhausted(&limits), None);
        spent.add(Some(&usage(14, 0, 1)));
        assert_eq!(spent.exhausted(&limits), Some("max_total_tokens"));
        spent.add(None);
        assert_eq!(spent.exhausted(&limits), Some("max_turns"));
    }
}
