//! The run directory: append-only journal, atomic files, locks, and the events of a run.
//!
//! This room is the one door through which files are written. What enters are finished episodes, settings and results;
//! what leaves is a directory that any later process can resume, summarise or explain from the files alone:
//!
//! ```text
//! <output_dir>/<run.dir>/
//!   traces.jsonl                  one line per finished episode, in completion order
//!   pending.jsonl                 episodes that only lack their scores, where these may be lost; gone when the run is complete
//!   results.json                  the summary, rewritten whole
//!   run.json                      state with a format version: what the plan was, which attempts ran
//!   run.lock                      held by the process that writes here
//!   configs/eval.toml             launch files, verbatim
//!   configs/resolved/eval.json    the resolved config; `replay.json` in a folder of rollouts that were scored anew
//!   logs/attempt_<n>/eval.log     one per launch, named as its command; logs/latest points at the newest
//! ```
//!
//! Durability: a line is acknowledged after it was handed to the kernel in one write, so a finished rollout survives any
//! death of the process. It is synced to the medium when the journal closes; a power cut may lose the last seconds.

#![expect(clippy::disallowed_methods, reason = "this room is the one door through which files are written")]

mod atomic;
mod error;
mod event;
mod folder;
mod generations;
mod index;
mod journal;
mod line;
mod once;
mod output;
mod pending;
mod results;
mod row;
mod run_dir;
mod scan;
mod state;

pub use atomic::write_atomically;
pub use error::StoreError;
pub use event::Event;
pub use folder::make_folder;
pub use generations::{Generation, Generations};
pub use index::Index;
pub use journal::{Journal, JournalFile};
pub use line::read_row;
pub use once::scan_once;
pub use output::OutputLog;
pub use pending::Pending;
pub use results::{ErrorExample, JudgeUsage, Mean, Results, RewardMean, UsageTotals, Verdict};
pub use row::{Fingerprint, Row, RowFault, Span};
pub use run_dir::{Opening, RunDir, pending_of, resolved_config_of, results_of, saved_config_of, state_of, traces_of};
pub use scan::{Scan, compact, read_line, scan};
pub use state::{Attempt, RunState, STATE_VERSION, SourceRun};
