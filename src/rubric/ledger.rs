//! What scoring took: the calls of judges and their tokens.

use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use crate::trace::{Trace, Usage};

/// The key under which a trace's `info` keeps the exchanges of judges, as verifiers 0.4.0 does.
const JUDGE_CALLS: &str = "judge_calls";

/// Expenses of scoring one rollout. Scorers run side by side and some are dropped half-way, so that each writes down what
/// it spent when it spends it.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<Vec<Expense>>);

/// One call of a model on behalf of a scorer.
#[derive(Clone, Debug, PartialEq)]
pub struct Expense {
    /// Tokens, where the endpoint told them.
    pub usage: Option<Usage>,
    /// The exchange as it is recorded under `info.judge_calls`.
    pub exchange: Value,
}

impl Ledger {
    /// Writes an expense down.
    pub fn note(&self, expense: Expense) {
        self.entries().push(expense);
    }

    /// Moves all expenses into the trace: usage apart from the policy's, exchanges into its `info`.
    pub fn settle(&self, trace: &mut Trace) {
        for Expense { usage, exchange } in self.entries().drain(..) {
            trace.extra_usage.extend(usage);
            let calls = trace.info.entry(JUDGE_CALLS).or_insert_with(|| Value::Array(Vec::new()));
            if let Value::Array(calls) = calls {
                calls.push(exchange);
            }
        }
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, Vec<Expense>> {
        // Entries are whole whenever the lock is free.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
