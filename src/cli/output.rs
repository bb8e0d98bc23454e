//! Results go to stdout, everything else to stderr.
#![expect(clippy::print_stderr, reason = "this is where the command line speaks")]

use std::io::{self, ErrorKind, Write as _};

use super::exit::Failure;

/// Writes a result. A reader that has gone away is no failure.
pub(super) fn print(text: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_ref()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::failed(error)),
        _ => Ok(()),
    }
}

/// Tells the user something beside the result.
pub(super) fn note(text: &str) {
    eprintln!("{text}");
}
