//! Evaluations: the plan (fresh or resumed), the runner and the summary; scoring a finished run anew; and validation, which
//! needs no model.

mod group;
mod launch;
mod plan;
mod replay;
mod runner;
mod summary;
pub mod validate;

pub use launch::{Ended, Launch, Stops};
pub use plan::{Assignment, Plan, PlanCounts};
pub use replay::{
    Change, Example, Failures, Reason, Replay, ReplayError, ReplayReport, Replayed, RolloutCounts, RowCounts, Side,
    TaskChange,
};
pub use runner::{Ran, RunEnd, Runner};
pub use summary::{EstimateError, Summary, pass_at_k, pass_hat_k};
