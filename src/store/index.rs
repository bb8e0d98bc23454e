//! What a run's folder has of its plan when the run goes on: finished episodes, and those that only lack their scores.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    fs,
    path::Path,
};

use super::{
    Fingerprint, Span, StoreError,
    scan::{compact, copy_lines, mend_tail, scan},
};

/// The finished episodes of a journal and the pending ones beside it, by task, for a resumed plan.
#[derive(Debug, Default)]
pub struct Index {
    finished: Lines,
    pending: Lines,
    reward: f64,
}

/// Lines of one file by their tasks, in file order.
#[derive(Debug, Default)]
struct Lines {
    by_task: HashMap<Fingerprint, VecDeque<Span>>,
    count: u64,
}

/// The lines of a file that stay, one for each episode: the last.
#[derive(Default)]
struct Kept {
    at: HashMap<Fingerprint, usize>,
    lines: Vec<(Fingerprint, Span, f64)>,
}

impl Index {
    /// Mends the ends of the journal and of the file of pending episodes (which may be missing) and indexes both.
    ///
    /// In the journal every line but a finished one is taken out: failed ones, malformed ones, and all but the last of an
    /// episode that stands there more than once. Episodes whose agents ended and whose scoring alone failed are first
    /// written to the pending ones. There each episode keeps its last line, unless it is finished in the journal; a file
    /// of which nothing stays is removed. A file of which all stays is not rewritten.
    pub fn open(traces: &Path, pending: &Path) -> Result<Self, StoreError> {
        mend_tail(traces)?;
        mend_tail(pending)?;
        let mut finished = Kept::default();
        let mut unscored: Vec<(Fingerprint, Span)> = Vec::new();
        let mut discard = Vec::new();
        let found = scan(traces, |row| {
            let id = Fingerprint::of(&row.id);
            if row.finished {
                discard.extend(finished.keep(id, row.task, row.span, row.reward));
            } else {
                discard.push(row.span);
                if row.rescorable {
                    unscored.push((id, row.span));
                }
            }
        })?;
        discard.extend(found.malformed);
        unscored.retain(|(id, _)| !finished.at.contains_key(id));
        if !unscored.is_empty() {
            // Before they are taken out of the journal: whenever the process dies, each is in one of the files.
            let spans: Vec<Span> = unscored.into_iter().map(|(_, span)| span).collect();
            tracing::info!(lines = spans.len(), "only the scoring of these failed; it is done again");
            copy_lines(traces, &spans, pending)?;
        }
        let waiting = wait_for_scores(pending, &finished)?;
        let reward = finished.lines.iter().map(|(_, _, reward)| reward).sum::<f64>() + 0.0;
        if !discard.is_empty() {
            tracing::info!(lines = discard.len(), "taking out lines that are not finished");
        }
        Ok(Self { finished: finished.without(traces, discard)?, pending: waiting, reward })
    }

    /// Finished episodes in the journal when it was opened.
    pub fn finished(&self) -> u64 {
        self.finished.count
    }

    /// Episodes that only lack their scores.
    pub fn pending(&self) -> u64 {
        self.pending.count
    }

    /// The sum of the rewards of the finished ones.
    pub fn reward(&self) -> f64 {
        self.reward
    }

    /// Gives a finished episode of the task away, the first in the journal; `None` when there is none left.
    pub fn take(&mut self, task: Fingerprint) -> Option<Span> {
        self.finished.take(task)
    }

    /// Gives a pending episode of the task away, by its place among the pending ones; `None` when there is none left.
    pub fn take_pending(&mut self, task: Fingerprint) -> Option<Span> {
        self.pending.take(task)
    }

    /// The finished episodes that nobody took, in file order.
    pub fn into_rest(self) -> Vec<Span> {
        let mut rest: Vec<Span> = self.finished.by_task.into_values().flatten().collect();
        rest.sort_unstable();
        rest
    }
}

/// The pending episodes that are not finished in the journal.
fn wait_for_scores(path: &Path, finished: &Kept) -> Result<Lines, StoreError> {
    let mut waiting = Kept::default();
    let mut discard = Vec::new();
    let found = scan(path, |row| {
        let id = Fingerprint::of(&row.id);
        if finished.at.contains_key(&id) {
            discard.push(row.span);
        } else {
            discard.extend(waiting.keep(id, row.task, row.span, 0.0));
        }
    })?;
    discard.extend(found.malformed);
    if waiting.lines.is_empty() {
        if found.lines > 0 {
            fs::remove_file(path).map_err(StoreError::io("delete", path))?;
        }
        return Ok(Lines::default());
    }
    waiting.without(path, discard)
}

impl Kept {
    /// Keeps an episode's line, and returns the one that it stands for from now on.
    fn keep(&mut self, id: Fingerprint, task: Fingerprint, span: Span, reward: f64) -> Option<Span> {
        let line = (task, span, reward);
        match self.at.entry(id) {
            Entry::Vacant(entry) => {
                entry.insert(self.lines.len());
                self.lines.push(line);
                None
            }
            Entry::Occupied(entry) => Some(std::mem::replace(&mut self.lines[*entry.get()], line).1),
        }
    }

    /// Takes other lines out of the file; where these lie then.
    fn without(self, path: &Path, mut discard: Vec<Span>) -> Result<Lines, StoreError> {
        let mut lines = self.lines;
        lines.sort_unstable_by_key(|(_, span, _)| *span);
        discard.sort_unstable();
        if !discard.is_empty() {
            compact(path, &discard)?;
        }
        let mut kept = Lines { count: lines.len() as u64, ..Lines::default() };
        let mut gone = discard.iter().peekable();
        let mut shift = 0;
        for (task, mut span, _) in lines {
            while let Some(line) = gone.next_if(|line| line.offset < span.offset) {
                shift += line.length + 1;
            }
            span.offset -= shift;
            kept.by_task.entry(task).or_default().push_back(span);
        }
        Ok(kept)
    }
}

impl Lines {
    fn take(&mut self, task: Fingerprint) -> Option<Span> {
        self.by_task.get_mut(&task)?.pop_front()
    }
}
