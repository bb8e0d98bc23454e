//! What a worker writes on its standard streams: into its log, without secrets, and its last lines into errors.

use std::{
    collections::VecDeque,
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::net::unix::pipe;

use crate::{config::Redactor, store::OutputLog};

/// Bytes of one of the two files that are kept of each worker.
const LARGEST: u64 = 16 << 20;
/// Lines kept for errors, and characters of each.
const LINES: usize = 20;
const LINE: usize = 400;
/// A line that is longer is cut into several.
const PIECE: usize = 64 << 10;

/// The log of one life. Clones write to the same.
#[derive(Clone)]
pub(super) struct Log(Arc<Mutex<Inner>>);

struct Inner {
    file: Option<OutputLog>,
    last: VecDeque<String>,
    redactor: Redactor,
}

impl Log {
    /// Goes on with the file at `path`; a file that cannot be written is told once, and done without.
    pub(super) fn open(path: Option<&Path>, redactor: Redactor) -> Self {
        let open =
            |path| OutputLog::open(path, LARGEST).inspect_err(|error| tracing::warn!("{error}: no log of a worker"));
        let file = path.and_then(|path| open(path).ok());
        Self(Arc::new(Mutex::new(Inner { file, last: VecDeque::new(), redactor })))
    }

    /// A remark of ours.
    pub(super) fn note(&self, text: &str) {
        self.lock().write(format!("[rollhouse] {text}\n").as_bytes());
    }

    /// The last lines it wrote.
    pub(super) fn last(&self) -> Vec<String> {
        self.lock().last.iter().cloned().collect()
    }

    /// Takes all that comes out of a stream.
    pub(super) async fn take(self, stream: pipe::Receiver) {
        let mut line = Vec::new();
        let mut bytes = vec![0; 16 << 10];
        loop {
            if stream.readable().await.is_err() {
                break;
            }
            match stream.try_read(&mut bytes) {
                Ok(0) => break,
                Ok(count) => self.pieces(&mut line, &bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
        if !line.is_empty() {
            line.push(b'\n');
            self.lock().line(&line);
        }
    }

    fn pieces(&self, line: &mut Vec<u8>, bytes: &[u8]) {
        let mut inner = self.lock();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(piece);
            if line.ends_with(b"\n") || line.len() >= PIECE {
                inner.line(line);
                line.clear();
            }
        }
    }

    // Held for one write; the two streams of a process and an error that quotes them come here.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn line(&mut self, line: &[u8]) {
        let clean = self.redactor.redact_bytes(line).into_owned();
        let text = String::from_utf8_lossy(&clean);
        let text = text.trim_end();
        if !text.is_empty() {
            if self.last.len() == LINES {
                self.last.pop_front();
            }
            self.last.push_back(text.chars().take(LINE).collect());
        }
        self.write(&clean);
    }

    fn write(&mut self, bytes: &[u8]) {
        let Some(file) = &mut self.file else { return };
        if let Err(error) = file.append(bytes) {
            tracing::warn!("{error}: the log of a worker ends here");
            self.file = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;
    use crate::config::Secret;

    #[tokio::test]
    async fn lines_reach_the_file_without_secrets_and_the_last_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker-3.log");
        let log = Log::open(Some(&path), Redactor::new([&Secret::new("s3cr3t-value".to_owned())]));
        let (mut sender, receiver) = pipe::pipe().unwrap();
        let taking = tokio::spawn(log.clone().take(receiver));
        for number in 0..30 {
            sender.write_all(format!("line {number}\n").as_bytes()).await.unwrap();
        }
        sender.write_all(b"key s3cr3t-").await.unwrap();
        sender.write_all(b"value\n\n").await.unwrap();
        sender.write_all(&[b'x'; 100_000]).await.unwrap();
        sender.write_all(b"\nno end").await.unwrap();
        drop(sender);
        taking.await.unwrap();
        log.note("gone");
        let last = log.last();
        assert_eq!(last.len(), LINES);
        assert_eq!(last[LINES - 4], "key [redacted]");
        assert_eq!((last[LINES - 2].len(), &*last[LINES - 1]), (LINE, "no end"));
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("line 0\n") && text.ends_with("\nno end\n[rollhouse] gone\n"), "{text:.40}");
        assert!(!text.contains("s3cr3t") && text.len() > 100_000);
    }
}
