//! Episodes as lines of `traces.jsonl`, both ways.
//!
//! The form is that of verifiers 0.4.0: declared fields that are absent are left out, nulls inside plain maps stay,
//! per-token floats have four decimals, what is not finite becomes null, derived counts come last. Router rows, sampling
//! masks and renderer ids stay in memory. Errors carry two fields more, `class` and `retryable`, which verifiers ignores.

mod read;
mod write;

pub(super) use read::Floats;

use super::{episode::Episode, readable::readable_json};

/// A line that cannot be read as an episode, or an episode that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("the line is not an episode: {0}")]
pub struct RecordError(#[from] serde_json::Error);

impl Episode {
    /// Reads one line of `traces.jsonl`, of this program or of verifiers. Invalid bytes and escapes of half a surrogate
    /// pair are read as U+FFFD; unknown fields are ignored, those of `task.data` kept.
    ///
    /// # Errors
    /// The line is not JSON, lacks a required field or holds a value of the wrong type.
    pub fn from_line(line: &[u8]) -> Result<Self, RecordError> {
        Ok(serde_json::from_str(&readable_json(line))?)
    }

    /// Appends the episode as one line, its newline included: compact JSON, always valid UTF-8.
    ///
    /// # Errors
    /// None for an episode made of JSON values; kept for the sake of text that claims to be JSON and is not.
    pub fn write_line(&self, line: &mut Vec<u8>) -> Result<(), RecordError> {
        serde_json::to_writer(&mut *line, self)?;
        line.push(b'\n');
        Ok(())
    }
}
