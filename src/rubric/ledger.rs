//! What scoring took: the calls of judges and their tokens, and the time of each scorer.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::Value;

use crate::trace::{Trace, Usage};

/// Expenses of scoring one rollout. Scorers run side by side and some are dropped half-way, so that each writes down what
/// it spent when it spends it.
#[derive(Debug, Default)]
pub struct Ledger {
    expenses: Mutex<Vec<Expense>>,
    /// Absent where nobody asks for it.
    times: Option<Mutex<Vec<(String, Duration)>>>,
}

/// One call of a model on behalf of a scorer.
#[derive(Clone, Debug, PartialEq)]
pub struct Expense {
    /// Tokens, where the endpoint told them.
    pub usage: Option<Usage>,
    /// The exchange as it is recorded under `info.judge_calls`.
    pub exchange: Value,
}

impl Ledger {
    /// A ledger that keeps the time of each scorer, too.
    pub fn with_times() -> Self {
        Self { times: Some(Mutex::default()), ..Self::default() }
    }

    /// How long each reward and metric took, by name, in the order they were done; those of one panel took its time
    /// together. Nothing unless [`Self::with_times`] made it; who is missing has not answered yet.
    pub fn times(&self) -> Vec<(String, Duration)> {
        self.times.as_ref().map_or_else(Vec::new, |times| open(times).clone())
    }

    /// Writes down how long the scorer of these names took.
    pub(super) fn clock<'a>(&self, names: impl Iterator<Item = &'a str>, took: Duration) {
        if let Some(times) = &self.times {
            open(times).extend(names.map(|name| (name.to_owned(), took)));
        }
    }

    /// Writes an expense down.
    pub fn note(&self, expense: Expense) {
        open(&self.expenses).push(expense);
    }

    /// Moves all expenses into the trace: usage apart from the policy's, exchanges into its `info`.
    pub fn settle(&self, trace: &mut Trace) {
        for Expense { usage, exchange } in open(&self.expenses).drain(..) {
            trace.extra_usage.extend(usage);
            let calls = trace.info.entry(Trace::JUDGE_CALLS).or_insert_with(|| Value::Array(Vec::new()));
            if let Value::Array(calls) = calls {
                calls.push(exchange);
            }
        }
    }
}

/// Entries are whole whenever the lock is free.
fn open<T>(entries: &Mutex<Vec<T>>) -> MutexGuard<'_, Vec<T>> {
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}
