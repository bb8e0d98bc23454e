//! What is asked of a taskset's Python functions, and how asking can fail.

use std::{fmt, time::Duration};

use crate::trace::{Fault, FaultClass};

/// One call of `handle(op, body)` in a worker. Calls are pure: what a function keeps travels in the body and in the answer,
/// so a call may be made again in another process.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// What is asked, as the module's `handle` knows it.
    pub op: &'a str,
    /// The body, a JSON text.
    pub body: &'a [u8],
    /// How long the function may take, from when a worker has the call; waiting for a free worker does not count.
    pub deadline: Duration,
    /// Where it runs.
    pub lane: Lane,
}

/// Where a call runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Alone in a process: any function.
    Exclusive,
    /// In one process with many other calls, interleaved at every `await`: for `async` functions, which wait more than
    /// they compute. A call that was in flight when that process died or hung is made again, alone.
    Shared,
}

/// Why a call has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallFailure {
    /// What kind of failure.
    pub kind: FailureKind,
    /// What happened, one line, with the author's line where it is known.
    pub message: String,
    /// The author's frames as Python writes them, outermost first.
    pub traceback: Vec<String>,
    /// The last lines that the call printed; empty in the shared lane, where nobody knows whose they are.
    pub output: Vec<String>,
}

/// The kinds of failures of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The function raised an exception, `sys.exit` included.
    Raised,
    /// No answer within the deadline; the process was killed.
    TimedOut,
    /// The process ended during the call.
    Died,
    /// The function answered with what is not JSON, too large, or of another shape than expected.
    Unreadable,
    /// No process could be started, or the script could not be imported.
    CannotStart,
}

impl CallFailure {
    /// A failure without frames and output.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), traceback: Vec::new(), output: Vec::new() }
    }

    /// The failure as a fault of a class; `who` failed, for example "reward `correct`". Frames and output become its causes.
    pub fn into_fault(self, class: FaultClass, who: &str) -> Fault {
        let mut fault = Fault::new(class, format!("{who}: {}", self.message));
        fault.causes = self.traceback;
        if !self.output.is_empty() {
            fault.causes.push("last output:".to_owned());
            fault.causes.extend(self.output);
        }
        fault
    }
}

impl fmt::Display for CallFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CallFailure {}
