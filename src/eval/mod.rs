//! Evaluations: the plan (fresh or resumed), the runner and the summary.

mod launch;
mod plan;
mod runner;
mod summary;

pub use launch::{Ended, Launch, Stops};
pub use plan::{Assignment, Plan, PlanCounts};
pub use runner::{RunEnd, Runner};
pub use summary::{EstimateError, Summary, pass_at_k, pass_hat_k};
