//! The vocabulary: messages, message graph, usage, faults, timing, tasks, traces and episodes.
//!
//! Pure data: nothing here knows of networks, files or processes. The JSON of every type is that of verifiers 0.4.0,
//! both ways.

mod align;
mod branch;
mod episode;
mod error;
mod fault;
mod graph;
mod hash;
mod id;
mod json;
mod message;
mod readable;
mod record;
mod rollout;
mod task;
mod timing;
mod tokens;
mod usage;
pub mod wire;

pub use branch::{Branch, TokenCounts, truncates};
pub use episode::{EnvInfo, Episode, GroupInfo, Outcome, RunInfo};
pub use error::GraphError;
pub use fault::{Fault, FaultClass};
pub use graph::{Graph, Node, ParentLink, Turn};
pub use json::write_python_float;
pub use message::{
    AssistantMessage, Content, ContentPart, FinishReason, ImageUrl, Message, SystemMessage, Tool, ToolCall,
    ToolCallKind, ToolMessage, UserMessage,
};
pub use readable::readable_json;
pub use record::RecordError;
pub use rollout::{AcpInfo, AgentInfo, ModelCall, PolicyEvent, RewardScore, Trace, VersionInfo};
pub use task::{Artifact, Prompt, TaskData, TaskResources, TaskTimeout, TraceTask};
pub use timing::{AgentSpan, TimeSpan, TimeSplit, Timing, now};
pub use tokens::{CreditStream, ExpertWidth, NodeTokens, RouterRows, SamplingMask, Tensor, TokenFlags, TurnTokens};
pub use usage::Usage;
