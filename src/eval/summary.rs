//! The summary of a run, computed from its journal alone.

use std::path::Path;

use crate::store::{Results, RunState, StoreError};

/// Gathers rows into results.
#[derive(Debug, Default)]
pub struct Summary {}

/// A question that the data cannot answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EstimateError {
    /// More rollouts are asked about than there are.
    #[error("pass@{k} needs at least {k} rollouts of a task, there are {n}; raise `--num-rollouts`")]
    TooFewRollouts {
        /// Rollouts asked about.
        k: u32,
        /// Rollouts there are.
        n: u32,
    },
}

/// Chance that at least one of `k` rollouts drawn from `n`, of which `c` passed, is a pass: 1 - C(n-c,k) / C(n,k), the
/// unbiased estimator of Chen et al. 2021, "Evaluating large language models trained on code".
pub fn pass_at_k(n: u32, c: u32, k: u32) -> Result<f64, EstimateError> {
    let _ = c;
    Err(EstimateError::TooFewRollouts { k, n })
}

/// Chance that all of `k` rollouts drawn from `n`, of which `c` passed, are passes: C(c,k) / C(n,k), as in Yao et al. 2024,
/// "tau-bench".
pub fn pass_hat_k(n: u32, c: u32, k: u32) -> Result<f64, EstimateError> {
    let _ = c;
    Err(EstimateError::TooFewRollouts { k, n })
}

impl Summary {
    /// Reads the run's journal once and summarises it.
    pub fn of_run(run: &Path, state: &RunState) -> Result<Results, StoreError> {
        let _ = (run, state);
        todo!()
    }
}
