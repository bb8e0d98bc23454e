//! rollhouse: a rollout orchestrator and environment runtime for LLM reinforcement learning and evaluation.
//!
//! The rooms, from the floor up. A room uses those above it in this list, never those below; `tests/architecture.rs`
//! holds the exact table and proves it.

pub mod config;
pub mod telemetry;
pub mod template;
pub mod trace;

pub mod store;

pub mod render;

pub mod runtime;

pub mod zmtp;

pub mod inference;

pub mod rubric;

pub mod taskset;

pub mod harness;

pub mod agent;

#[path = "../envs/mod.rs"]
pub mod envs;
#[path = "../tasksets/mod.rs"]
pub mod tasksets;

pub mod serve;

pub mod eval;
pub mod orchestrator;
pub mod report;
pub mod sim;

pub mod cli;
