//! Tasksets in Python: a script that imports `rollhouse`, and the pool of interpreters that runs its functions.
//! `tasksets/PYTHON.md` is the page for its author.
//!
//! **The script** ([`found`], [`open`]) says what it is when it is opened: it runs once, in a process of its own, and
//! describes its functions and keys. Its rows are read, and its functions asked, as the rollouts need them; a call gets what
//! its functions ask for by the names of their parameters, and nothing else.
//!
//! **The pool** ([`Workers`]) outlives whatever the functions do. A worker is a Python process that has imported the
//! taskset's script once and answers calls over private pipes. Every fault of a function (an exception, a hang, a crash, a
//! flood of output, a process left behind) costs the one call that had it and names the reason; the worker is replaced where
//! it cannot be trusted any more.

mod body;
mod call;
mod description;
mod frame;
mod interpreter;
mod keys;
mod open;
mod output;
mod rows;
mod scoring;
mod script;
mod talk;
mod worker;
mod workers;

pub use call::{Call, CallFailure, FailureKind, Lane};
pub use interpreter::{Interpreter, InterpreterError};
pub use open::{ScriptSource, found, open};
pub(super) use output::Output;
pub(super) use worker::{described as end_in_words, place as frame_in_words};
pub use workers::{Dedicated, WorkerSettings, Workers};
