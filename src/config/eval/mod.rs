//! The configuration of an evaluation: its values, how they are read, its flags, and what makes two runs the same.

mod aliases;
mod client;
mod identity;
mod read;
mod sampling;
mod seat;
mod selection;
mod serve;
mod types;

pub use aliases::EVAL_ALIASES;
pub use client::{DEFAULT_API_KEY_VAR, read_endpoint, read_train};
pub use identity::{Difference, differences};
pub use read::{EnvReader, SIMULATED_MODEL, Tasksets, taskset_label};
pub use sampling::read_sampling;
pub use types::{
    AgentConfig, ClientConfig, EvalConfig, Limits, RetryRule, RetryRules, Select, ServeConfig, ServeRuntime,
    StageDeadlines, StatusMatch, TaskFilter, TokenRoute, TrainClient, Workers,
};
