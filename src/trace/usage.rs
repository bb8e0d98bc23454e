//! Token accounting of model calls.

use serde::{Deserialize, Serialize};

/// What one call used, in tokens. `prompt_tokens` excludes cache reads, as in verifiers 0.4.0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Prompt tokens that were not read from a cache.
    pub prompt_tokens: u64,
    /// Sampled tokens, reasoning included.
    pub completion_tokens: u64,
    /// Prompt tokens read from the prefix cache, where reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input_tokens: Option<u64>,
    /// Reasoning tokens, a subset of `completion_tokens`, where reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
    /// Price, where reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
}

impl Usage {
    /// Prompt tokens with cache reads.
    pub fn input_tokens(&self) -> u64 {
        self.prompt_tokens.saturating_add(self.cached_input_tokens.unwrap_or(0))
    }

    /// Input plus completion.
    pub fn total_tokens(&self) -> u64 {
        self.input_tokens().saturating_add(self.completion_tokens)
    }

    /// The sum of several usages; an optional field is the sum over those that report it. `None` for no usages.
    pub fn sum<'a>(usages: impl IntoIterator<Item = &'a Usage>) -> Option<Usage> {
        usages.into_iter().fold(None, |sum: Option<Usage>, usage| {
            let Some(mut sum) = sum else { return Some(usage.clone()) };
            sum.prompt_tokens = sum.prompt_tokens.saturating_add(usage.prompt_tokens);
            sum.completion_tokens = sum.completion_tokens.saturating_add(usage.completion_tokens);
            sum.cached_input_tokens = add(sum.cached_input_tokens, usage.cached_input_tokens, u64::saturating_add);
            sum.reasoning_tokens = add(sum.reasoning_tokens, usage.reasoning_tokens, u64::saturating_add);
            sum.cost = add(sum.cost, usage.cost, |left, right| left + right);
            Some(sum)
        })
    }
}

fn add<T>(left: Option<T>, right: Option<T>, sum: impl Fn(T, T) -> T) -> Option<T> {
    match (left, right) {
        (Some(left), Some(right)) => Some(sum(left, right)),
        (left, right) => left.or(right),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_from_a_hostile_file_do_not_overflow() {
        let most = Usage {
            prompt_tokens: u64::MAX,
            completion_tokens: u64::MAX,
            cached_input_tokens: Some(u64::MAX),
            ..Usage::default()
        };
        assert_eq!(most.total_tokens(), u64::MAX);
        let sum = Usage::sum([&most, &most]).unwrap();
        assert_eq!((sum.prompt_tokens, sum.cached_input_tokens), (u64::MAX, Some(u64::MAX)));
    }
}
