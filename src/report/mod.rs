//! What a person sees: progress, summaries and explanations. Reads events and runs, knows neither eval nor orchestrator.
//!
//! Everything is written to a writer that the caller passes in, and is readable without colour and without a terminal.

mod counters;
mod number;
mod progress;
mod summary;
mod why;

pub use number::{count, excerpt, percent, seconds};
pub use progress::{Progress, ProgressStyle};
pub use summary::write_summary;
pub use why::{WhyError, explain, find_run};
