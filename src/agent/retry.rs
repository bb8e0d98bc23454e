//! Which failed rollouts and episodes are tried again (verifiers 0.4.0: ordered rules, the first match owns a failure).

use std::time::Duration;

use rand::RngExt as _;

use crate::{
    config::{RetryRule, RetryRules, StatusMatch},
    trace::Fault,
};

/// What is left of the retries of one rollout or episode.
#[derive(Debug)]
pub struct RetryBudget<'a> {
    rules: &'a [RetryRule],
    rules_left: Vec<u32>,
    unmatched_left: u32,
    attempts: u32,
}

impl<'a> RetryBudget<'a> {
    /// The full budget.
    pub fn new(rules: &'a RetryRules) -> Self {
        Self {
            rules: &rules.rules,
            rules_left: rules.rules.iter().map(|rule| rule.max_retries).collect(),
            unmatched_left: rules.max_retries,
            attempts: 0,
        }
    }

    /// Takes one retry for the first of an attempt's failures that may have one; `None` when none may. The duration
    /// is the back-off before the retry: `min(0.5 * 2^n, 30)` seconds, times 0.5 to 1.5.
    pub fn take(&mut self, faults: &[Fault]) -> Option<Duration> {
        let spent = faults.iter().any(|fault| {
            let left = match self.rules.iter().position(|rule| owns(rule, fault)) {
                Some(rule) => &mut self.rules_left[rule],
                None => &mut self.unmatched_left,
            };
            let may = *left > 0;
            *left -= u32::from(may);
            may
        });
        spent.then(|| {
            let base = (0.5 * f64::from(1 << self.attempts.min(10))).min(30.0);
            self.attempts += 1;
            Duration::from_secs_f64(base * rand::rng().random_range(0.5..1.5))
        })
    }
}

fn owns(rule: &RetryRule, fault: &Fault) -> bool {
    let status_matches = rule.status.is_empty()
        || fault.status_code.is_some_and(|code| {
            rule.status.iter().any(|status| match *status {
                StatusMatch::Code(wanted) => code == wanted,
                StatusMatch::Class(hundreds) => code / 100 == hundreds,
            })
        });
    rule.kind.as_ref().is_none_or(|kind| *kind == fault.kind)
        && status_matches
        && rule.message.as_ref().is_none_or(|pattern| pattern.is_match(&fault.message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::FaultClass;

    fn provider(status: u16) -> Fault {
        Fault::new(FaultClass::Provider, "busy").with_status(Some(status))
    }

    fn rule(status: StatusMatch, max_retries: u32) -> RetryRule {
        RetryRule { kind: Some("ProviderError".to_owned()), status: vec![status], message: None, max_retries }
    }

    #[test]
    fn the_first_matching_rule_owns_a_failure_and_does_not_fall_through() {
        let rules =
            RetryRules { max_retries: 5, rules: vec![rule(StatusMatch::Code(503), 1), rule(StatusMatch::Class(5), 5)] };
        let mut budget = RetryBudget::new(&rules);
        assert!(budget.take(&[provider(503)]).is_some());
        assert!(budget.take(&[provider(503)]).is_none(), "used up; the second rule must not serve it");
        assert!(budget.take(&[provider(500)]).is_some());
        assert!(
            budget.take(&[Fault::new(FaultClass::Task, "x")]).is_some(),
            "unmatched failures have their own budget"
        );
    }

    #[test]
    fn without_rules_there_are_no_retries() {
        assert!(RetryBudget::new(&RetryRules::default()).take(&[provider(500)]).is_none());
    }
}
