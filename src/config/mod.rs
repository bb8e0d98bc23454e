//! Configuration: TOML and JSON layers, overrides, all faults at once with file, line and key, secrets, the resolved
//! dump.

mod eval;
mod section;

pub use eval::{
    AgentConfig, ClientConfig, EvalConfig, Limits, RetryRule, RetryRules, Select, StageDeadlines, StatusMatch,
    TaskFilter,
};
pub use section::{FromValue, Section};
