//! What happened in a run: the one stream that log, progress and reports read.

use std::time::Duration;

use crate::trace::{FaultClass, Outcome};

/// Something that happened. An event that is not in this enum did not happen.
#[derive(Clone, Debug)]
pub enum Event {
    /// The run begins.
    RunStarted {
        /// What it runs, for a headline: taskset, model, endpoint.
        title: String,
        /// Planned episodes; `None` until the taskset has been read to its end.
        planned: Option<u64>,
        /// Of these, already in the journal.
        resumed: u64,
        /// The sum of their rewards.
        resumed_reward: f64,
        /// Planned episodes that only lack their scores.
        pending: u64,
        /// The model is simulated.
        simulated: bool,
    },
    /// An episode was started, or is scored anew.
    EpisodeStarted,
    /// A model turn was committed.
    TurnCompleted {
        /// Prompt tokens, cache reads included.
        input_tokens: u64,
        /// Sampled tokens.
        output_tokens: u64,
    },
    /// The exact tokens of a model turn are kept.
    TokensKept {
        /// The prompt extends the turn before, token by token.
        extended: bool,
        /// The endpoint wrote the prompt otherwise than the renderer.
        drifted: bool,
        /// Tool calls that could not be read.
        malformed_calls: u64,
    },
    /// A call failed and is tried again.
    CallRetried {
        /// Base URL.
        endpoint: String,
        /// Why, in a line.
        cause: String,
        /// When the next attempt starts.
        wait: Duration,
    },
    /// An episode ended and is in the journal.
    EpisodeFinished {
        /// How.
        outcome: Outcome,
        /// Its failure, in a line.
        fault: Option<(FaultClass, String)>,
        /// It hit a budget or the window.
        truncated: bool,
        /// Wall time, seconds.
        seconds: f64,
    },
    /// The workers that serve the env are others than before.
    Workers {
        /// Those that take runs.
        ready: usize,
        /// Those there are, with those that start or go.
        all: usize,
        /// Those that were lost, so far.
        lost: u64,
        /// Runs that were begun anew for it, so far.
        redone: u64,
    },
    /// The run stops before its end; episodes in flight are finishing.
    Stopping {
        /// Why, and how to go on.
        reason: String,
    },
    /// The run is over.
    RunFinished,
}
