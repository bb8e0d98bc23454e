//! Exit statuses.

use std::process::ExitCode;

/// The command did what it was asked.
pub(super) const DONE: u8 = 0;
/// The run failed, or ended before its plan was done.
pub(super) const FAILED: u8 = 1;
/// The command line or the configuration is wrong; nothing was started.
pub(super) const USAGE: u8 = 2;
/// The user interrupted it (128 + SIGINT).
pub(super) const INTERRUPTED: u8 = 130;

/// A failure with the status it ends the program with.
#[derive(Debug)]
pub(super) struct Failure {
    status: u8,
    error: anyhow::Error,
}

impl Failure {
    /// A wrong command line or configuration.
    pub(super) fn usage(error: impl Into<anyhow::Error>) -> Self {
        Self { status: USAGE, error: error.into() }
    }

    /// A run that failed.
    pub(super) fn failed(error: impl Into<anyhow::Error>) -> Self {
        Self { status: FAILED, error: error.into() }
    }

    /// Something that the user interrupted.
    pub(super) fn interrupted(error: impl Into<anyhow::Error>) -> Self {
        Self { status: INTERRUPTED, error: error.into() }
    }

    /// The status.
    pub(super) fn code(&self) -> ExitCode {
        self.status.into()
    }

    /// What to tell the user: the error and its causes, less those that the text before them names already.
    pub(super) fn message(&self) -> String {
        self.error.chain().map(ToString::to_string).fold(String::new(), |text, cause| match text.as_str() {
            "" => cause,
            text if text.contains(&cause) => text.to_owned(),
            text => format!("{text}: {cause}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let message = |error: anyhow::Error| Failure::failed(error).message();
        assert_eq!(message(anyhow!("disk full").context("cannot write")), "cannot write: disk full");
        assert_eq!(
            message(anyhow!("disk full").context("cannot write: disk full; free some")),
            "cannot write: disk full; free some"
        );
    }
}
