//! Exit statuses.

use std::process::ExitCode;

/// The command did what it was asked.
pub const DONE: u8 = 0;
/// The run failed, or ended before its plan was done.
pub const FAILED: u8 = 1;
/// The command line or the configuration is wrong; nothing was started.
pub const USAGE: u8 = 2;
/// The user interrupted it (128 + SIGINT).
pub const INTERRUPTED: u8 = 130;

/// A failure with the status it ends the program with.
#[derive(Debug)]
pub struct Failure {
    status: u8,
    error: anyhow::Error,
}

impl Failure {
    /// A wrong command line or configuration.
    pub fn usage(error: impl Into<anyhow::Error>) -> Self {
        Self { status: USAGE, error: error.into() }
    }

    /// A run that failed.
    pub fn failed(error: impl Into<anyhow::Error>) -> Self {
        Self { status: FAILED, error: error.into() }
    }

    /// The status.
    pub fn code(&self) -> ExitCode {
        self.status.into()
    }

    /// What to tell the user.
    pub fn message(&self) -> String {
        format!("{:#}", self.error)
    }
}
