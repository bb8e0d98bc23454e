//! The append-only journal of finished episodes.

use std::{
    borrow::Cow,
    fs::{File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use tokio::sync::{mpsc, oneshot};

use super::{Span, StoreError, error::hint, scan};
use crate::{config::Redactor, telemetry::aside, trace::Episode};

/// Lines waiting for the writer; a full queue holds back those who append.
const QUEUE: usize = 256;

/// Lines that wait together are written together, up to this many bytes and the line that crosses them: a write, and
/// waking those who wait, cost about as much as encoding a short line.
const GROUP: usize = 256 << 10;

/// Bytes in memory from which on an episode is encoded aside from the async workers.
const LONG: usize = 256 << 10;

/// Lines that come less than this apart come fast.
const FAST: Duration = Duration::from_micros(200);

/// How long lines that come fast gather.
const NAP: Duration = Duration::from_micros(500);

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
pub struct Journal {
    path: PathBuf,
    redactor: Redactor,
    sender: mpsc::Sender<Request>,
    writer: thread::JoinHandle<()>,
}

/// Whether encoding takes more than a moment: more than a few hundred kilobytes of messages and tokens.
fn is_long(episode: &Episode) -> bool {
    episode.traces.iter().map(|trace| trace.graph.heap_size()).sum::<usize>() > LONG
}

enum Request {
    /// A whole line, its line feed included.
    Append(String, oneshot::Sender<Result<Span, StoreError>>),
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
        let writer = Writer { path: path.to_owned(), file, length, failed: None };
        let writer = thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || writer.run(receiver))
            .map_err(StoreError::io("write", path))?;
        Ok(Self { path: path.to_owned(), redactor, sender, writer })
    }

    /// A text as it would be written: without secrets.
    pub fn redacted<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.redactor.redact(text)
    }

    /// Appends one finished episode. When this returns `Ok`, the line is written and survives the death of the process.
    pub async fn append(&self, episode: Episode) -> Result<Span, StoreError> {
        self.submit(episode).await?.await
    }

    /// Hands one finished episode to the writer; what comes back tells when its line is written, as [`Self::append`]
    /// does. Lines are written in the order in which these calls returned.
    pub async fn submit(
        &self,
        episode: Episode,
    ) -> Result<impl Future<Output = Result<Span, StoreError>> + Send + use<>, StoreError> {
        // Encoded and freed where it was made: freed on the writer's thread, the many small pieces of an episode would cost
        // more than all the rest, as threads wait for each other's memory.
        let line = aside(is_long(&episode), move || self.encode(&episode))?;
        self.hand_over(line).await
    }

    /// Appends an episode that its caller goes on with.
    pub(super) async fn append_copy(&self, episode: &Episode) -> Result<Span, StoreError> {
        let line = aside(is_long(episode), || self.encode(episode))?;
        self.hand_over(line).await?.await
    }

    async fn hand_over(
        &self,
        line: String,
    ) -> Result<impl Future<Output = Result<Span, StoreError>> + Send + use<>, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.sender.send(Request::Append(line, reply)).await.map_err(|_| self.gone())?;
        let gone = self.gone();
        Ok(async move { answer.await.map_err(|_| gone)? })
    }

    /// Reads a finished episode back.
    pub async fn load(&self, line: Span) -> Result<Episode, StoreError> {
        scan::load_episode(&self.path, line).await
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
        let Self { path, sender, writer, .. } = self;
        drop(sender);
        let joined = tokio::task::spawn_blocking(move || writer.join().is_ok()).await;
        if joined.unwrap_or(false) {
            return Ok(());
        }
        Err(StoreError::JournalFailed { path, problem: "its writer panicked".to_owned() })
    }

    fn encode(&self, episode: &Episode) -> Result<String, StoreError> {
        let mut line = serde_json::to_string(episode)
            .map_err(|error| StoreError::Format { path: self.path.clone(), problem: error.to_string() })?;
        self.redactor.redact_line(&mut line);
        line.push('\n');
        Ok(line)
    }

    fn gone(&self) -> StoreError {
        StoreError::JournalFailed { path: self.path.clone(), problem: "its writer has ended".to_owned() }
    }
}

struct Writer {
    path: PathBuf,
    file: Box<dyn JournalFile>,
    length: u64,
    failed: Option<String>,
}

/// Lines that are written at once, and who waits for them.
#[derive(Default)]
struct Group {
    text: String,
    lines: Vec<(usize, oneshot::Sender<Result<Span, StoreError>>)>,
}

impl Group {
    fn add(&mut self, line: &str, reply: oneshot::Sender<Result<Span, StoreError>>) {
        self.text.push_str(line);
        self.lines.push((line.len(), reply));
    }
}

impl Writer {
    fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        let mut group = Group::default();
        let mut looked = Instant::now();
        loop {
            // Lines that come fast are left to gather: who finds nobody waiting need not wake anybody.
            if looked.elapsed() < FAST {
                thread::sleep(NAP);
            }
            let Some(request) = requests.blocking_recv() else { break };
            looked = Instant::now();
            let mut next = Some(request);
            while let Some(request) = next.take() {
                match request {
                    Request::Append(line, reply) => group.add(&line, reply),
                    Request::Drop(lines, reply) => {
                        self.write(&mut group);
                        let _ = reply.send(self.remove(&lines));
                    }
                }
                if group.text.len() < GROUP {
                    next = requests.try_recv().ok();
                }
            }
            self.write(&mut group);
        }
        if let Err(error) = self.file.sync() {
            tracing::warn!(path = %self.path.display(), %error, "cannot sync the journal");
        }
    }

    /// Writes a group and empties it. If it does not fit as a whole, its lines are written one by one, so that every
    /// line that fits is kept.
    fn write(&mut self, group: &mut Group) {
        let begin = self.length;
        let together = group.lines.len() > 1 && self.append(group.text.as_bytes()).is_ok();
        let mut start = 0;
        for (length, reply) in group.lines.drain(..) {
            let end = start + length;
            let span = Span { offset: begin + start as u64, length: length as u64 - 1 };
            let written = if together { Ok(()) } else { self.append_last(&group.text.as_bytes()[start..end]) };
            // Nobody may be waiting any more; the line is written all the same.
            let _ = reply.send(written.map(|()| span));
            start = end;
        }
        group.text.clear();
        group.text.shrink_to(2 * GROUP);
    }

    /// Appends a line; after a failure there is no other.
    fn append_last(&mut self, line: &[u8]) -> Result<(), StoreError> {
        self.check()?;
        self.append(line).map_err(|source| {
            self.failed = Some(format!("{source}{}", hint(&source)));
            StoreError::Io { action: "append to", path: self.path.clone(), source }
        })
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.failed.is_some() {
            return Err(io::ErrorKind::Other.into());
        }
        if let Err(error) = self.file.append(bytes) {
            // If cutting fails too, opening the journal again finds the torn line and cuts it.
            if self.file.cut(self.length).is_err() {
                self.failed = Some(format!("{error}{}", hint(&error)));
            }
            return Err(error);
        }
        self.length += bytes.len() as u64;
        Ok(())
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
