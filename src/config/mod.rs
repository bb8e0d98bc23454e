//! Configuration: TOML and JSON layers, overrides, all faults at once with file, line and key, secrets, the resolved
//! dump.

mod eval;
mod fault;
mod flags;
mod grammar;
mod json;
mod layer;
mod nearest;
mod node;
mod places;
mod reader;
mod record;
mod renderer;
mod secret;
mod section;
mod show;
mod value;

pub use eval::{
    AgentConfig, ClientConfig, DEFAULT_API_KEY_VAR, Difference, EVAL_ALIASES, EnvReader, EvalConfig, Limits, RetryRule,
    RetryRules, SIMULATED_MODEL, Select, ServeConfig, ServeRuntime, StageDeadlines, StatusMatch, TaskFilter, Tasksets,
    TokenRoute, TrainClient, Workers, differences, read_endpoint, read_sampling, read_train, taskset_label,
};
pub use fault::{Fault, Faults, Origin};
pub use flags::{Parsed, parse_args};
pub use grammar::{Alias, Grammar, Target};
pub use layer::{Document, Layer};
pub use nearest::nearest;
pub use reader::{Reader, Resolved};
pub use record::Key;
pub use renderer::{FamilyConfig, RendererConfig, ThinkingRetention};
pub use secret::{Redactor, Secret, SecretError};
pub use section::Section;
pub use show::flag_help;
pub use value::{FromValue, Shape};
