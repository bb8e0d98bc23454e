//! Results go to stdout, everything else to stderr.

use std::io::{self, ErrorKind, Write as _};

use anyhow::Context as _;

use super::exit::Failure;
use crate::config::Fault;

/// Writes a result. A reader that has gone away is no failure.
pub(super) fn print(text: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_ref()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to the standard output").map_err(Failure::failed),
    }
}

/// Tells the user something beside the result. What servers say may stand in it, so control characters are left out;
/// and where nobody listens, the exit status still tells.
pub(super) fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{}", plain(text));
}

/// Tells what a configuration says and means nothing here.
pub(super) fn warn(warnings: &[Fault]) {
    for warning in warnings {
        note(&format!("warning: {warning}"));
    }
}

fn plain(text: &str) -> String {
    text.chars().filter(|letter| matches!(letter, '\n' | '\t') || !letter.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_cannot_steer_a_terminal() {
        assert_eq!(plain("bad \u{1b}[2Jkey\r\n\tü\u{9b}1m"), "bad [2Jkey\n\tü1m");
    }
}
