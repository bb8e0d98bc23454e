//! The run directory: append-only journal, atomic files, locks, and the events of a run.

mod event;

pub use event::Event;
