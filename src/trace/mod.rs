//! The vocabulary: messages, message graph, usage, faults, timing, tasks, traces and episodes.
//!
//! Pure data: nothing here knows of networks, files or processes. The JSON of every type is that of verifiers 0.4.0,
//! both ways.

mod episode;
mod fault;
mod graph;
mod message;
mod task;
mod timing;
mod tokens;
mod usage;

pub use episode::{
    AcpInfo, AgentInfo, EnvInfo, Episode, GroupInfo, ModelCall, Outcome, PolicyEvent, RewardScore, RunInfo, Trace,
    VersionInfo,
};
pub use fault::{Fault, FaultClass};
pub use graph::{Graph, GraphError, Node, ParentLink, Turn};
pub use message::{
    AssistantMessage, Content, ContentPart, FinishReason, ImageUrl, Message, SystemMessage, Tool, ToolCall,
    ToolCallKind, ToolMessage, UserMessage,
};
pub use task::{Prompt, TaskData, TaskResources, TaskTimeout, TraceTask};
pub use timing::{AgentSpan, TimeSpan, TimeSplit, Timing, now};
pub use tokens::{CreditStream, ExpertWidth, NodeTokens, RouterRows, SamplingMask, TokenFlags, TurnTokens};
pub use usage::Usage;
