//! Which rollouts a journal holds, by task: some twenty bytes for each, whatever its length.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
};

use crate::store::{Fingerprint, Span, StoreError, pending_of, scan, scan_once, traces_of};

/// A journal that is only read, by task.
#[derive(Debug, Default)]
pub(super) struct SourceIndex {
    /// In the order in which they first stand in the file.
    pub(super) tasks: Vec<SourceTask>,
    /// Rollouts of all of them.
    pub(super) rollouts: u64,
    /// Rollouts of the task that has most.
    pub(super) most_rollouts: u32,
    /// Lines that are no episode, a torn last one included.
    pub(super) malformed: u64,
    /// Rollouts that wait for their scores and are not in the journal.
    pub(super) pending: u64,
    /// Lines of episodes for which another line counts; they are left out.
    pub(super) repeated: u64,
}

/// A task of a journal.
#[derive(Debug)]
pub(super) struct SourceTask {
    /// Its hash.
    pub(super) hash: Fingerprint,
    /// Its position in its taskset.
    pub(super) idx: Option<u64>,
    /// Its id from the source of its data.
    pub(super) id: Option<Fingerprint>,
    /// Its rollouts in file order, at least one.
    pub(super) lines: Vec<Line>,
}

/// One rollout.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    /// Number of the line, from 0.
    pub(super) number: u64,
    /// Where it lies.
    pub(super) span: Span,
}

impl SourceIndex {
    /// Reads the journal of a run once.
    pub(super) fn read(run: &Path) -> Result<Self, StoreError> {
        let mut waiting = HashSet::new();
        scan(&pending_of(run), |row| waiting.extend([Fingerprint::of(&row.id)]))?;
        let made = || (Self::default(), HashMap::<Fingerprint, usize>::new());
        let ((mut index, _), found, repeated) = scan_once(&traces_of(run), made, |(index, by_hash), row| {
            waiting.remove(&Fingerprint::of(&row.id));
            let tasks = &mut index.tasks;
            let number = *by_hash.entry(row.task).or_insert_with(|| {
                let id = row.task_id.as_deref().map(Fingerprint::of);
                tasks.push(SourceTask { hash: row.task, idx: row.task_idx, id, lines: Vec::new() });
                tasks.len() - 1
            });
            tasks[number].lines.push(Line { number: row.line, span: row.span });
            index.rollouts += 1;
        })?;
        index.repeated = repeated;
        index.pending = waiting.len() as u64;
        index.malformed = found.malformed.len() as u64;
        let most = index.tasks.iter().map(|task| task.lines.len()).max().unwrap_or(0);
        index.most_rollouts = u32::try_from(most).unwrap_or(u32::MAX);
        Ok(index)
    }
}
