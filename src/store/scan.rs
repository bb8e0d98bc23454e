//! A streaming reader of the journal: memory in proportion to the number of lines, never to their size.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    path::Path,
    sync::mpsc,
    thread,
};

use super::{
    Row, Span, StoreError, atomic,
    line::{Parsed, parse},
};
use crate::{telemetry::blocking, trace::Episode};

/// Bytes of whole lines that one worker parses at a time; longer lines travel alone.
const BATCH: usize = 1 << 20;

/// Parsing is the dear part; two workers keep pace with the disk.
const WORKERS: usize = 2;

/// Batches that wait for a worker, and for their visitor: with none waiting, each would wait for the scheduler instead,
/// which on a busy machine takes longer than the work.
const AHEAD: usize = 4;

/// What a pass over a journal met, beside its rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// Lines, blank ones included.
    pub lines: u64,
    /// Lines that are no episode, a torn last one included.
    pub malformed: Vec<Span>,
}

/// Reads every line of a journal once, in file order; `visit` sees those that are episodes. A missing file is empty. Only
/// what a [`Row`] needs is checked: message bodies and tokens are skipped as JSON.
pub fn scan(path: &Path, mut visit: impl FnMut(Row)) -> Result<Scan, StoreError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Scan::default()),
        Err(error) => return Err(StoreError::io("read", path)(error)),
    };
    let mut found = Scan::default();
    thread::scope(|scope| {
        let mut inputs = Vec::new();
        let mut outputs = Vec::new();
        for _ in 0..WORKERS {
            let (input, batches) = mpsc::sync_channel::<Batch>(AHEAD);
            let (rows, output) = mpsc::sync_channel(AHEAD);
            inputs.push(input);
            outputs.push(output);
            scope.spawn(move || {
                for batch in batches {
                    if rows.send(batch.parse()).is_err() {
                        return;
                    }
                }
            });
        }
        let reader = scope.spawn(move || read_batches(file, &inputs));
        // Batches went out in turn, so they come back in turn: rows arrive in file order.
        for output in outputs.iter().cycle() {
            let Ok(lines) = output.recv() else { break };
            for (span, row) in lines {
                let line = found.lines;
                found.lines += 1;
                match row {
                    Parsed::Blank => {}
                    Parsed::Malformed => found.malformed.push(span),
                    Parsed::Row(mut row) => {
                        row.line = line;
                        visit(*row);
                    }
                }
            }
        }
        let read = reader.join().unwrap_or_else(|_| Err(io::Error::other("the reader panicked")));
        read.map_err(StoreError::io("read", path))
    })?;
    Ok(found)
}

/// Reads one line's text.
pub fn read_line(path: &Path, span: Span) -> Result<String, StoreError> {
    let read = || {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(span.offset))?;
        let mut text = String::new();
        file.take(span.length).read_to_string(&mut text)?;
        Ok(text)
    };
    read().map_err(StoreError::io("read", path))
}

/// Reads one line's episode, on a thread for blocking work.
pub(super) async fn load_episode(path: &Path, span: Span) -> Result<Episode, StoreError> {
    let path = path.to_owned();
    blocking(move || {
        let text = read_line(&path, span)?;
        let problem = |error| format!("the line at byte {} is broken, take it out: {error}", span.offset);
        Episode::from_line(text.as_bytes()).map_err(|error| StoreError::Format { problem: problem(error), path })
    })
    .await
}

/// Rewrites a journal without some of its lines, atomically; the others stay byte for byte and in order.
pub fn compact(path: &Path, discard: &[Span]) -> Result<(), StoreError> {
    let mut discard = discard.to_vec();
    discard.sort_unstable();
    discard.dedup();
    let mut source = File::open(path).map_err(StoreError::io("read", path))?;
    atomic::replace(path, |target| {
        let mut position = 0;
        for span in &discard {
            copy(&mut source, target, position, span.offset)?;
            position = span.offset + span.length + 1;
        }
        let end = source.metadata()?.len();
        copy(&mut source, target, position, end)
    })
}

/// Appends whole lines of one file to another, in their order, and hands them to the medium.
pub(super) fn copy_lines(from: &Path, lines: &[Span], to: &Path) -> Result<(), StoreError> {
    let mut source = File::open(from).map_err(StoreError::io("read", from))?;
    let mut append = || {
        let mut target = OpenOptions::new().create(true).append(true).open(to)?;
        for line in lines {
            copy(&mut source, &mut target, line.offset, line.offset + line.length + 1)?;
        }
        target.sync_data()
    };
    append().map_err(StoreError::io("append to", to))
}

fn copy(source: &mut File, target: &mut File, from: u64, to: u64) -> io::Result<()> {
    if from >= to {
        return Ok(());
    }
    source.seek(SeekFrom::Start(from))?;
    let copied = io::copy(&mut Read::by_ref(source).take(to - from), target)?;
    if copied == to - from { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Mends what a killed writer leaves: a torn last line is cut off, a whole one without its line feed gets it. Costs the
/// length of the last line, not of the file. A missing file is fine.
pub(super) fn mend_tail(path: &Path) -> Result<(), StoreError> {
    let mend = || {
        let mut file = match OpenOptions::new().read(true).write(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        let length = file.metadata()?.len();
        let start = last_line(&mut file, length)?;
        if start == length {
            return Ok(());
        }
        file.seek(SeekFrom::Start(start))?;
        let mut tail = Vec::new();
        file.read_to_end(&mut tail)?;
        if matches!(parse(&tail, Span { offset: start, length: tail.len() as u64 }), Parsed::Row(_)) {
            return file.write_all(b"\n");
        }
        tracing::warn!(path = %path.display(), bytes = tail.len(), "cut off a torn last line");
        file.set_len(start)
    };
    mend().map_err(StoreError::io("mend", path))
}

/// Where the bytes after the last line feed begin.
fn last_line(file: &mut File, length: u64) -> io::Result<u64> {
    let mut end = length;
    let mut block = vec![0; 64 << 10];
    while end > 0 {
        let size = end.min(block.len() as u64);
        file.seek(SeekFrom::Start(end - size))?;
        let bytes = &mut block[..size as usize];
        file.read_exact(bytes)?;
        if let Some(at) = bytes.iter().rposition(|byte| *byte == b'\n') {
            return Ok(end - size + at as u64 + 1);
        }
        end -= size;
    }
    Ok(0)
}

/// Whole lines of the file.
struct Batch {
    offset: u64,
    bytes: Vec<u8>,
}

fn read_batches(file: File, workers: &[mpsc::SyncSender<Batch>]) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(BATCH, file);
    let mut offset = 0;
    for worker in workers.iter().cycle() {
        let mut bytes = Vec::with_capacity(BATCH + (64 << 10));
        while bytes.len() < BATCH {
            if reader.read_until(b'\n', &mut bytes)? == 0 {
                break;
            }
        }
        if bytes.is_empty() {
            break;
        }
        let batch = Batch { offset, bytes };
        offset += batch.bytes.len() as u64;
        if worker.send(batch).is_err() {
            break;
        }
    }
    Ok(())
}

impl Batch {
    fn parse(self) -> Vec<(Span, Parsed)> {
        let mut offset = self.offset;
        let mut lines = Vec::new();
        for line in self.bytes.split_inclusive(|byte| *byte == b'\n') {
            let text = line.strip_suffix(b"\n").unwrap_or(line);
            let span = Span { offset, length: text.len() as u64 };
            offset += line.len() as u64;
            lines.push((span, parse(text, span)));
        }
        lines
    }
}
