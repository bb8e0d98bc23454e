//! Configuration: TOML and JSON layers, overrides, all faults at once with file, line and key, secrets, the resolved
//! dump.

mod eval;
mod fault;
mod json;
mod layer;
mod nearest;
mod node;
mod reader;
mod secret;
mod section;
mod value;

pub use eval::{
    AgentConfig, ClientConfig, EvalConfig, Limits, RetryRule, RetryRules, Select, StageDeadlines, StatusMatch,
    TaskFilter,
};
pub use fault::{Fault, Faults, Origin};
pub use layer::{Document, Layer};
pub use nearest::nearest;
pub use reader::{Key, Reader, Resolved};
pub use secret::{Redactor, Secret, SecretError};
pub use section::Section;
pub use value::{FromValue, Shape};
