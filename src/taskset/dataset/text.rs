//! Text read byte by byte that knows where it is.

use std::io::{self, BufRead, Seek, SeekFrom};

/// Bytes with their places.
pub(super) struct Text<R> {
    text: R,
    /// Bytes passed.
    pub(super) byte: u64,
    /// The line of the next byte, from 1. Lines end in LF, CR LF or CR.
    pub(super) line: u64,
    after_return: bool,
}

impl<R: BufRead> Text<R> {
    pub(super) fn new(text: R) -> Self {
        Self { text, byte: 0, line: 1, after_return: false }
    }

    /// What can be seen without passing it; empty at the end.
    pub(super) fn buffer(&mut self) -> io::Result<&[u8]> {
        loop {
            match self.text.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                // Borrowed anew, since a loop cannot give its own borrow away.
                Ok(_) => return self.text.fill_buf(),
            }
        }
    }

    pub(super) fn peek(&mut self) -> io::Result<Option<u8>> {
        Ok(self.buffer()?.first().copied())
    }

    pub(super) fn next(&mut self) -> io::Result<Option<u8>> {
        let Some(byte) = self.peek()? else { return Ok(None) };
        self.pass(1);
        if byte == b'\r' || (byte == b'\n' && !self.after_return) {
            self.line += 1;
        }
        self.after_return = byte == b'\r';
        Ok(Some(byte))
    }

    /// Takes bytes as long as they are plain, none of them a line end; perhaps not all of them at once.
    pub(super) fn take_while(&mut self, into: &mut Vec<u8>, plain: impl Fn(u8) -> bool) -> io::Result<()> {
        let there = self.buffer()?;
        let count = there.iter().position(|byte| !plain(*byte)).unwrap_or(there.len());
        into.extend_from_slice(&there[..count]);
        if count > 0 {
            self.pass(count);
            self.after_return = false;
        }
        Ok(())
    }

    /// Passes bytes that are no line ends.
    pub(super) fn pass(&mut self, bytes: usize) {
        self.text.consume(bytes);
        self.byte += bytes as u64;
    }

    /// Goes on at this byte, which begins that line.
    pub(super) fn go(&mut self, byte: u64, line: u64) -> io::Result<()>
    where
        R: Seek,
    {
        self.text.seek(SeekFrom::Start(byte))?;
        (self.byte, self.line, self.after_return) = (byte, line, false);
        Ok(())
    }
}
