//! What is still to be done: the selected tasks in order, each with the episodes that only lack their scores and the number
//! of those that must run.

use futures::StreamExt;

use crate::{
    store::{Fingerprint, Index, Span},
    taskset::{Task, TaskStream, TasksetError},
};

/// A lazy plan, fresh or resumed. Tasks are read as the plan is asked for work, so that the first request does not wait for
/// the last row of the taskset.
pub struct Plan {
    tasks: TaskStream,
    num_rollouts: u32,
    index: Index,
    counts: PlanCounts,
    exhausted: bool,
}

/// What the plan has handed out and met so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanCounts {
    /// Tasks read so far; all of them once the plan is exhausted.
    pub tasks: u64,
    /// Planned episodes of these tasks.
    pub planned: u64,
    /// Of these, already finished in the journal.
    pub kept: u64,
}

/// A task with work left.
#[derive(Clone, Debug)]
pub struct Assignment {
    /// The task.
    pub task: Task,
    /// Its position among the selected tasks, from 0.
    pub position: u64,
    /// Its finished episodes in the journal, for those that are compared with them.
    pub finished: Vec<Span>,
    /// Episodes that are only to be scored, by their places among the pending ones.
    pub pending: Vec<Span>,
    /// Episodes that must still run; 0 only where some are pending.
    pub missing: u32,
}

impl Plan {
    /// A plan of `num_rollouts` episodes for each task of the stream, less what the index has. A fresh run has an empty
    /// index.
    pub fn new(tasks: TaskStream, num_rollouts: u32, index: Index) -> Self {
        Self { tasks, num_rollouts, index, counts: PlanCounts::default(), exhausted: false }
    }

    /// The next task that lacks episodes or scores; `None` when the stream has ended.
    pub async fn next(&mut self) -> Option<Result<Assignment, TasksetError>> {
        while let Some(task) = self.tasks.next().await {
            let task = match task {
                Ok(task) => task,
                Err(error) => return Some(Err(error)),
            };
            let position = self.counts.tasks;
            let (mut finished, mut pending) = (Vec::new(), Vec::new());
            if let Some(hash) = task.hash.as_deref().or(task.key.as_deref()) {
                let task = Fingerprint::of(hash);
                let wanted = self.num_rollouts as usize;
                finished.extend(std::iter::from_fn(|| self.index.take(task)).take(wanted));
                let rest = wanted - finished.len();
                pending.extend(std::iter::from_fn(|| self.index.take_pending(task)).take(rest));
            }
            self.counts.tasks += 1;
            self.counts.planned += u64::from(self.num_rollouts);
            self.counts.kept += finished.len() as u64;
            let missing = self.num_rollouts - (finished.len() + pending.len()) as u32;
            if missing > 0 || !pending.is_empty() {
                return Some(Ok(Assignment { task, position, finished, pending, missing }));
            }
        }
        self.exhausted = true;
        None
    }

    /// What was met so far.
    pub fn counts(&self) -> PlanCounts {
        self.counts
    }

    /// Finished episodes that belong to no selected task, or are more than were asked for; to be removed from the journal.
    /// `None` while tasks may still come that want them.
    pub fn leftovers(self) -> Option<Vec<Span>> {
        self.exhausted.then(|| self.index.into_rest())
    }
}
