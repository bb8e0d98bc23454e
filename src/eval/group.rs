//! Rollouts that wait for the others of their task, to be compared with them.

use std::{collections::HashMap, time::Duration};

use super::Assignment;
use crate::{store::Span, taskset::Task, trace::Episode};

/// The groups in flight, by the positions of their tasks. Only members that are done and scored are held.
#[derive(Default)]
pub(super) struct Groups {
    open: HashMap<u64, Group>,
}

/// The rollouts of one task.
pub(super) struct Group {
    pub task: Task,
    /// Those that an earlier launch finished.
    pub finished: Vec<Span>,
    /// Those of this launch that have all their own scores.
    pub members: Vec<Member>,
    left: usize,
}

/// A rollout with all its own scores.
pub(super) struct Member {
    pub episode: Episode,
    /// How long it took.
    pub spent: Duration,
}

impl Groups {
    /// Awaits all episodes of an assignment.
    pub(super) fn open(&mut self, assignment: &Assignment) {
        let group = Group {
            task: Task::clone(&assignment.task),
            finished: assignment.finished.clone(),
            members: Vec::new(),
            left: assignment.pending.len() + assignment.missing as usize,
        };
        self.open.insert(assignment.position, group);
    }

    /// One episode of the task at a position has ended, as a member or, where it failed, as none. Returns the group when
    /// it was the last and there is a member to score.
    pub(super) fn ended(&mut self, position: u64, member: Option<Member>) -> Option<Group> {
        let group = self.open.get_mut(&position)?;
        group.members.extend(member);
        group.left = group.left.saturating_sub(1);
        if group.left > 0 {
            return None;
        }
        self.open.remove(&position).filter(|group| !group.members.is_empty())
    }
}
