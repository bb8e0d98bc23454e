//! What a worker prints: into the log up to a bound, the end of it kept for failures.

use std::{mem, sync::Arc};

/// Log lines per call and bytes per line; what is beyond is counted.
const LINES: u64 = 20;
const LINE: usize = 500;
/// Bytes kept of the end.
const KEPT: usize = 16 << 10;
/// Lines told of the end.
const TOLD: usize = 10;

/// The output of one worker since a call began.
#[derive(Debug)]
pub(in crate::taskset) struct Output {
    taskset: Arc<str>,
    line: Vec<u8>,
    lines: u64,
    left_out: u64,
    end: Vec<u8>,
}

impl Output {
    pub(in crate::taskset) fn new(taskset: Arc<str>) -> Self {
        Self { taskset, line: Vec::new(), lines: 0, left_out: 0, end: Vec::new() }
    }

    /// A call begins.
    pub(in crate::taskset) fn begin(&mut self) {
        self.close();
        self.end.clear();
    }

    /// A call of several ends, or the worker: what was left out is told, and there is room for as much again.
    pub(in crate::taskset) fn close(&mut self) {
        if !self.line.is_empty() {
            self.log_line();
        }
        if self.left_out > 0 {
            tracing::info!(target: TARGET, taskset = %self.taskset, "... {} more bytes printed in this call", self.left_out);
        }
        self.lines = 0;
        self.left_out = 0;
    }

    /// More of it.
    pub(in crate::taskset) fn take(&mut self, bytes: &[u8]) {
        let kept = &bytes[bytes.len().saturating_sub(KEPT)..];
        let excess = (self.end.len() + kept.len()).saturating_sub(KEPT);
        self.end.drain(..excess.min(self.end.len()));
        self.end.extend_from_slice(kept);
        let mut rest = bytes;
        while self.lines < LINES && !rest.is_empty() {
            let end = rest.iter().position(|byte| *byte == b'\n');
            let piece = &rest[..end.unwrap_or(rest.len())];
            let fits = piece.len().min(LINE - self.line.len());
            self.line.extend(&piece[..fits]);
            self.left_out += (piece.len() - fits) as u64;
            rest = end.map_or(&[], |end| &rest[end + 1..]);
            if end.is_some() {
                self.log_line();
            }
        }
        self.left_out += rest.len() as u64;
    }

    fn log_line(&mut self) {
        let line = mem::take(&mut self.line);
        self.lines += 1;
        tracing::info!(target: TARGET, taskset = %self.taskset, "{}", String::from_utf8_lossy(&line));
    }

    /// The last lines, and apart the author's frames, outermost first, that Python dumped when it was killed.
    pub(in crate::taskset) fn told(&self) -> (Vec<String>, Vec<String>) {
        let text = String::from_utf8_lossy(&self.end);
        let (printed, dump) = match text.rfind("Fatal Python error: ") {
            Some(start) => text.split_at(start),
            None => (&*text, ""),
        };
        let lines: Vec<&str> = printed.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = &lines[lines.len().saturating_sub(TOLD)..];
        let cut = |line: &&str| line.chars().take(LINE).collect();
        (last.iter().map(cut).collect(), frames(dump))
    }
}

/// Where log lines of authors' code come from.
const TARGET: &str = "rollhouse::python";

/// The frames of the thread that was running in a dump, which lists the innermost first.
fn frames(dump: &str) -> Vec<String> {
    let current = dump.split("Current thread ").nth(1).unwrap_or_default();
    let frames = current.lines().skip(1).take_while(|line| line.starts_with("  "));
    let mut frames: Vec<String> =
        frames.take_while(|line| !line.contains("File \"<rollhouse")).map(str::to_owned).collect();
    frames.reverse();
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_its_end_kept() {
        let mut output = Output::new("flood".into());
        output.take(b"first\n");
        for _ in 0..1000 {
            output.take(&[b'x'; 10_000]);
        }
        output.take(b"\nsecond last\nlast");
        assert_eq!(output.lines, 2 + 1);
        assert_eq!(output.left_out, 10_000_000 - LINE as u64);
        let (lines, frames) = output.told();
        assert_eq!(lines[1..], ["second last", "last"]);
        assert_eq!(lines[0].len(), LINE);
        assert!(frames.is_empty() && output.end.len() == KEPT);
        output.begin();
        assert!(output.told().0.is_empty());
    }

    #[test]
    fn a_dump_gives_the_authors_frames_and_is_not_output() {
        let mut output = Output::new("crash".into());
        output.take(
            b"printed\nFatal Python error: Aborted\n\nThread 0x01 (most recent call first):\n  File \"/t/other.py\", line 1 in x\n\n\
              Current thread 0x02 (most recent call first):\n  File \"/t/taskset.py\", line 3 in inner\n  \
              File \"/t/taskset.py\", line 9 in outer\n  File \"<rollhouse module>\", line 5 in handle\n  \
              File \"<rollhouse>\", line 1 in main\n",
        );
        let (lines, frames) = output.told();
        assert_eq!(lines, ["printed"]);
        assert_eq!(frames, ["  File \"/t/taskset.py\", line 9 in outer", "  File \"/t/taskset.py\", line 3 in inner"]);
    }
}
