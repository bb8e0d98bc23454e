//! How many workers there are: who is hired, who is let go.

use std::{
    collections::{HashSet, VecDeque},
    hash::Hash,
};

use super::{Act, Desk, Name, Worker};
use crate::serve::pool::{
    WorkerState,
    scale::{self, Load},
    supervise::Life,
};

impl<P: Copy + Eq + Hash> Desk<P> {
    /// Puts a new worker on a seat.
    pub(super) fn hire(&mut self, index: usize) {
        self.changed = true;
        self.last_life += 1;
        let life = self.last_life;
        let short = self.workers.get(&index).map_or(0, |before| before.short);
        let worker = Worker {
            life,
            state: WorkerState::Starting,
            pid: None,
            lived: Life::default(),
            runs: HashSet::new(),
            unsent: VecDeque::new(),
            short,
            again: None,
        };
        self.workers.insert(index, worker);
        self.acts.push_back(Act::Start(Name { index, life }));
    }

    pub(super) fn rehire(&mut self) {
        let now = self.now;
        let due = |worker: &Worker| worker.again.is_some_and(|again| again <= now);
        let due: Vec<usize> = self.workers.iter().filter(|(_, worker)| due(worker)).map(|(index, _)| *index).collect();
        for index in due {
            self.hire(index);
        }
    }

    /// One worker more, if the rule says so: one that was about to go, or a new one.
    pub(super) fn grow(&mut self) {
        let staying = self.staying();
        if !scale::grows(self.rules.kind, staying, self.runs.len()) {
            return;
        }
        self.surplus = None;
        let going = self.workers.iter_mut().find(|(_, worker)| worker.state == WorkerState::Draining);
        if let Some((_, worker)) = going {
            worker.state = WorkerState::Ready;
            return;
        }
        let free = (0..).find(|index| !self.workers.contains_key(index)).unwrap_or_default();
        tracing::info!(workers = staying + 1, runs = self.runs.len(), "the pool grows");
        self.hire(free);
    }

    /// One worker less, when there has been one too many for long enough.
    pub(super) fn shrink(&mut self) {
        self.changed = true;
        let now = self.now;
        let staying = self.staying();
        if self.surplus.is_none_or(|since| now.duration_since(since) < self.rules.idle) {
            return;
        }
        // The next goes as much later.
        self.surplus = Some(now);
        let Some(index) = scale::least_needed(self.loads()) else { return };
        tracing::info!(workers = staying - 1, runs = self.runs.len(), "the pool shrinks");
        let Some(worker) = self.workers.get_mut(&index) else { return };
        match worker.state {
            WorkerState::Dead => _ = self.workers.remove(&index),
            WorkerState::Starting => {
                let (life, unsent) = (worker.life, std::mem::take(&mut worker.unsent));
                self.workers.remove(&index);
                self.acts.push_back(Act::End(Name { index, life }));
                self.release(unsent.into());
            }
            WorkerState::Ready | WorkerState::Draining => worker.state = WorkerState::Draining,
        }
    }

    /// Workers that are not about to go.
    pub(super) fn staying(&self) -> usize {
        self.workers.values().filter(|worker| worker.state != WorkerState::Draining).count()
    }

    pub(super) fn loads(&self) -> impl Iterator<Item = Load> {
        self.workers.iter().map(|(index, worker)| Load {
            index: *index,
            state: worker.state,
            in_flight: worker.runs.len(),
        })
    }
}
