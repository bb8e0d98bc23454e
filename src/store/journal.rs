//! The append-only journal of finished episodes.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    thread,
};

use tokio::sync::{mpsc, oneshot};

use super::{Span, StoreError, error::hint, scan};
use crate::{config::Redactor, trace::Episode};

/// Lines waiting for the writer; a full queue holds back those who append.
const QUEUE: usize = 256;

/// What the journal writes to.
pub trait JournalFile: Send {
    /// Appends the bytes, all or with an error.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Cuts the file back to a length, after a failed append.
    fn cut(&mut self, length: u64) -> io::Result<()>;

    /// Hands everything to the medium.
    fn sync(&mut self) -> io::Result<()>;
}

impl JournalFile for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

/// The open journal. One thread owns the file; cloned handles are not needed, share it by reference or `Arc`.
///
/// After the first failed write nothing more is accepted: what the failed write left is cut off again, every later append
/// fails with the first cause, and all lines acknowledged before stay.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    sender: mpsc::Sender<Request>,
    writer: thread::JoinHandle<()>,
}

enum Request {
    Append(Box<Episode>, oneshot::Sender<Result<Span, StoreError>>),
    Drop(Vec<Span>, oneshot::Sender<Result<(), StoreError>>),
}

impl Journal {
    /// Opens the journal for appending and mends its end: a torn last line is cut off, a whole one without its line feed
    /// gets it. Everything else in it stays as it is. `redactor` takes secrets out of every line before it is written.
    pub fn open(path: &Path, redactor: Redactor) -> Result<Self, StoreError> {
        scan::mend_tail(path)?;
        let file = open_for_append(path)?;
        let length = file.metadata().map_err(StoreError::io("read", path))?.len();
        Self::over(path, Box::new(file), length, redactor)
    }

    /// A journal over any file of the given length; `path` names it in messages.
    pub fn over(path: &Path, file: Box<dyn JournalFile>, length: u64, redactor: Redactor) -> Result<Self, StoreError> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let writer = Writer { path: path.to_owned(), file, length, redactor, failed: None };
        let writer = thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || writer.run(receiver))
            .map_err(StoreError::io("write", path))?;
        Ok(Self { path: path.to_owned(), sender, writer })
    }

    /// Appends one finished episode; encoding happens on the writer's thread. When this returns `Ok`, the line is written
    /// and survives the death of the process.
    pub async fn append(&self, episode: Episode) -> Result<Span, StoreError> {
        let (reply, answer) = oneshot::channel();
        let request = Request::Append(Box::new(episode), reply);
        self.sender.send(request).await.map_err(|_| self.gone())?;
        answer.await.map_err(|_| self.gone())?
    }

    /// Takes lines out of the journal, for example those of tasks that are no longer selected; the others stay byte for
    /// byte. Lines appended before this call are safe.
    pub async fn remove(&self, lines: Vec<Span>) -> Result<(), StoreError> {
        if lines.is_empty() {
            return Ok(());
        }
        let (reply, answer) = oneshot::channel();
        self.sender.send(Request::Drop(lines, reply)).await.map_err(|_| self.gone())?;
        answer.await.map_err(|_| self.gone())?
    }

    /// Waits for all appends, syncs the file and closes it.
    pub async fn close(self) -> Result<(), StoreError> {
        let Self { path, sender, writer } = self;
        drop(sender);
        let joined = tokio::task::spawn_blocking(move || writer.join().is_ok()).await;
        if joined.unwrap_or(false) {
            return Ok(());
        }
        Err(StoreError::JournalFailed { path, problem: "its writer panicked".to_owned() })
    }

    fn gone(&self) -> StoreError {
        StoreError::JournalFailed { path: self.path.clone(), problem: "its writer has ended".to_owned() }
    }
}

struct Writer {
    path: PathBuf,
    file: Box<dyn JournalFile>,
    length: u64,
    redactor: Redactor,
    failed: Option<String>,
}

impl Writer {
    fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        while let Some(request) = requests.blocking_recv() {
            // Nobody may be waiting any more; the line is written all the same.
            match request {
                Request::Append(episode, reply) => {
                    let _ = reply.send(self.append(&episode));
                }
                Request::Drop(lines, reply) => {
                    let _ = reply.send(self.remove(&lines));
                }
            }
        }
        if let Err(error) = self.file.sync() {
            tracing::warn!(path = %self.path.display(), %error, "cannot sync the journal");
        }
    }

    fn append(&mut self, episode: &Episode) -> Result<Span, StoreError> {
        self.check()?;
        let mut line = serde_json::to_string(episode)
            .map_err(|error| StoreError::Format { path: self.path.clone(), problem: error.to_string() })?;
        self.redactor.redact_line(&mut line);
        let span = Span { offset: self.length, length: line.len() as u64 };
        line.push('\n');
        if let Err(source) = self.file.append(line.as_bytes()) {
            self.failed = Some(format!("{source}{}", hint(&source)));
            // If cutting fails too, opening the journal again finds the torn line and cuts it.
            let _ = self.file.cut(self.length);
            return Err(StoreError::Io { action: "append to", path: self.path.clone(), source });
        }
        self.length += line.len() as u64;
        Ok(span)
    }

    fn remove(&mut self, lines: &[Span]) -> Result<(), StoreError> {
        self.check()?;
        scan::compact(&self.path, lines)?;
        let file = open_for_append(&self.path)?;
        self.length = file.metadata().map_err(StoreError::io("read", &self.path))?.len();
        self.file = Box::new(file);
        Ok(())
    }

    fn check(&self) -> Result<(), StoreError> {
        match &self.failed {
            Some(problem) => Err(StoreError::JournalFailed { path: self.path.clone(), problem: problem.clone() }),
            None => Ok(()),
        }
    }
}

fn open_for_append(path: &Path) -> Result<File, StoreError> {
    OpenOptions::new().create(true).append(true).open(path).map_err(StoreError::io("open", path))
}
