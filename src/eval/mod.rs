//! Evaluations: the plan (fresh or resumed), the runner and the summary.

mod plan;
mod summary;

pub use plan::{Assignment, Plan, PlanCounts};
pub use summary::{EstimateError, Summary, pass_at_k, pass_hat_k};
