//! The rows that score: those of the taskset as it is today, where it still has them.

use std::{collections::HashMap, path::Path};

use futures::StreamExt as _;

use super::{ReplayError, RowCounts, index::SourceIndex};
use crate::{
    store::{Fingerprint, StoreError, read_line},
    taskset::{Task, Taskset, TasksetSize},
    telemetry::blocking,
    trace::{Episode, Prompt},
};

/// Which row scores the rollouts of each task. Rows that are still what the rollouts hold are not kept in memory.
#[derive(Debug, Default)]
pub(super) struct Rows {
    changed: HashMap<usize, Task>,
    /// What was found.
    pub(super) counts: RowCounts,
}

/// How well a row of the taskset fits a task of the journal; the better one stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    None,
    /// The same id elsewhere.
    Id,
    /// The same position, and the same id or prompt.
    Position,
    /// The same row.
    Same,
}

impl Rows {
    /// The rows that stand in the rollouts.
    pub(super) fn stored(index: &SourceIndex) -> Self {
        Self { counts: RowCounts { stored: index.tasks.len() as u64, ..RowCounts::default() }, ..Self::default() }
    }

    /// The row of a task if it differs from the one in its rollouts.
    pub(super) fn changed(&self, number: usize) -> Option<Task> {
        self.changed.get(&number).cloned()
    }

    /// Reads the taskset once, no further than to the last row that is looked for.
    pub(super) async fn find(taskset: &dyn Taskset, index: &SourceIndex, traces: &Path) -> Result<Self, ReplayError> {
        let by_hash: HashMap<Fingerprint, usize> = numbered(index, |task| Some(task.hash)).collect();
        let by_idx = many(numbered(index, |task| task.idx));
        let by_id = many(numbered(index, |task| task.id));
        let mut fits = vec![Fit::None; index.tasks.len()];
        let mut changed = HashMap::new();
        let mut same = 0;
        let last = index.tasks.iter().filter_map(|task| task.idx).max();
        let mut tasks = taskset.tasks();
        let mut position = 0;
        while same < fits.len() {
            // An endless taskset is looked through as far as the rollouts reach.
            if taskset.size() == TasksetSize::Infinite && last.is_none_or(|last| position > last) {
                break;
            }
            let Some(task) = tasks.next().await else { break };
            let task = task?;
            let place = task.data.idx.unwrap_or(position);
            position += 1;
            let hash = task.hash.as_deref().map_or_else(|| Fingerprint::of(&task.data.hash()), Fingerprint::of);
            if let Some(number) = by_hash.get(&hash) {
                same += usize::from(fits[*number] != Fit::Same);
                fits[*number] = Fit::Same;
                changed.remove(number);
                continue;
            }
            let id = task.data.id.as_deref().map(Fingerprint::of);
            let here = by_idx.get(&place).into_iter().flatten().copied();
            let named = id.and_then(|id| by_id.get(&id)).map(Vec::as_slice).unwrap_or_default();
            for number in here {
                let fits_here =
                    (id.is_some() && index.tasks[number].id == id) || same_prompt(&task, index, number, traces).await?;
                if fits_here && fits[number] < Fit::Position {
                    fits[number] = Fit::Position;
                    changed.insert(number, task.clone());
                }
            }
            // An id that several rows of the run bear names none of them.
            if let [number] = *named
                && fits[number] < Fit::Id
            {
                fits[number] = Fit::Id;
                changed.insert(number, task.clone());
            }
        }
        let count = |wanted: &[Fit]| fits.iter().filter(|fit| wanted.contains(fit)).count() as u64;
        let counts = RowCounts {
            same: count(&[Fit::Same]),
            changed: count(&[Fit::Id, Fit::Position]),
            not_found: count(&[Fit::None]),
            stored: 0,
        };
        Ok(Self { changed, counts })
    }
}

fn numbered<'a, K: 'a>(
    index: &'a SourceIndex,
    key: impl Fn(&super::index::SourceTask) -> Option<K> + 'a,
) -> impl Iterator<Item = (K, usize)> + 'a {
    index.tasks.iter().enumerate().filter_map(move |(number, task)| Some((key(task)?, number)))
}

fn many<K: std::hash::Hash + Eq>(entries: impl Iterator<Item = (K, usize)>) -> HashMap<K, Vec<usize>> {
    let mut map: HashMap<K, Vec<usize>> = HashMap::new();
    for (key, number) in entries {
        map.entry(key).or_default().push(number);
    }
    map
}

/// Whether a row asks what the rollouts of a task were asked. Their prompt is read from one of them.
async fn same_prompt(task: &Task, index: &SourceIndex, number: usize, traces: &Path) -> Result<bool, StoreError> {
    let Some(line) = index.tasks[number].lines.first().copied() else { return Ok(false) };
    let traces = traces.to_owned();
    let stored = blocking(move || {
        let text = read_line(&traces, line.span)?;
        Ok(Episode::from_line(text.as_bytes()).ok().map(|episode| prompt(&episode)))
    });
    Ok(stored.await? == Some(task.data.prompt.clone()))
}

fn prompt(episode: &Episode) -> Option<Prompt> {
    episode.task.data.prompt.clone()
}
