//! When the stages of a rollout began and ended, in epoch seconds; 0.0 means not reached.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Seconds since the Unix epoch, now.
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// A stage's begin and end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeSpan {
    /// Begin.
    #[serde(default)]
    pub start: f64,
    /// End.
    #[serde(default)]
    pub end: f64,
}

impl TimeSpan {
    /// A span that begins now.
    pub fn begin() -> Self {
        Self { start: now(), end: 0.0 }
    }

    /// Ends the span now.
    pub fn finish(&mut self) {
        self.end = now();
    }

    /// Length in seconds, 0 while unfinished.
    pub fn duration(&self) -> f64 {
        if self.end == 0.0 { 0.0 } else { (self.end - self.start).max(0.0) }
    }
}

/// A share of a span, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeSplit {
    /// Seconds.
    #[serde(default)]
    pub duration: f64,
}

/// The agent stage, split between the model and the harness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentSpan {
    /// Begin.
    #[serde(default)]
    pub start: f64,
    /// End.
    #[serde(default)]
    pub end: f64,
    /// Time inside model calls: the sum of the calls' times, at most the whole stage.
    #[serde(default)]
    pub model: TimeSplit,
    /// The rest.
    #[serde(default)]
    pub harness: TimeSplit,
}

/// All stages of one rollout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// When the trace was made.
    #[serde(default)]
    pub start: f64,
    /// Starting the runtime.
    #[serde(default)]
    pub boot: TimeSpan,
    /// Task and harness setup.
    #[serde(default)]
    pub setup: TimeSpan,
    /// The harness driving the model.
    #[serde(default)]
    pub agent: AgentSpan,
    /// Collecting results.
    #[serde(default)]
    pub finalize: TimeSpan,
    /// Rewards and metrics.
    #[serde(default)]
    pub scoring: TimeSpan,
}
