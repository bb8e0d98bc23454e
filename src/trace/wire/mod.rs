//! Episodes on the env-server wire, both ways: traces cut into deltas as they grow, and put together again.
//!
//! A delta is one msgpack map about one trace, in the form of verifiers 0.4.0. [`Sent`] makes them, [`Assembly`] applies
//! them; the reply that ends a run carries the [`head`] of the episode and a [`TraceSummary`] of each trace.

mod assembly;
mod counts;
mod full;
mod head;
mod json;
mod received;
mod scan;
mod sent;
mod tensor;

use serde::de::DeserializeOwned;

pub use assembly::{Applied, Assembly};
pub use head::{Head, TraceSummary, head, task_data};
pub use json::Json;
pub use scan::trace_of;
pub use sent::{Sent, discard};

/// A frame that cannot be made or applied.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The trace holds something that msgpack cannot.
    #[error("the trace cannot be put into msgpack: {0}")]
    Encode(#[from] rmp_serde::encode::Error),
    /// The frame is not the msgpack of a delta, or lacks what a delta must have.
    #[error("the frame is not a trace delta: {0}")]
    Decode(#[from] rmp_serde::decode::Error),
    /// The frame contradicts what came before it.
    #[error("delta of trace {trace}: {reason}")]
    Conflict {
        /// The trace.
        trace: String,
        /// What does not fit.
        reason: String,
    },
    /// The reply names a trace of which nothing came.
    #[error("the reply names trace {0}, of which no delta came")]
    MissingTrace(String),
    /// The reply's counts are not those of the deltas.
    #[error("trace {trace} has {nodes} nodes and {calls} calls, the reply says {} and {}", .said.nodes, .said.calls)]
    Counts {
        /// The trace.
        trace: String,
        /// Nodes that came.
        nodes: usize,
        /// Calls that came.
        calls: usize,
        /// What the reply says.
        said: TraceSummary,
    },
}

/// Reads a whole frame, within bounds that no honest one reaches. Text that is not UTF-8 is repaired where it must be.
///
/// # Errors
/// The frame is not msgpack, or not of that form; something follows it.
pub fn read<T: DeserializeOwned>(frame: &[u8]) -> Result<T, rmp_serde::decode::Error> {
    received::read(frame).or_else(|error| match scan::readable(frame) {
        Some(repaired) => received::read(&repaired),
        None => Err(error),
    })
}
