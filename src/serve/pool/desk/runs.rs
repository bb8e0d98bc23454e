//! Which worker works on which run, and which runs wait.

use std::hash::Hash;

use bytes::Bytes;

use super::{Act, Desk, Name, Worker, wire_id};
use crate::serve::{
    message,
    pool::{
        WorkerState,
        scale::{self, Load},
        supervise,
    },
};

impl<P: Copy + Eq + Hash> Desk<P> {
    /// Gives a run to a worker, or lets it wait.
    pub(super) fn place(&mut self, key: u64) {
        if !self.placed(key) {
            self.waiting.push_back(key);
        }
    }

    fn placed(&mut self, key: u64) -> bool {
        let is_suspect =
            |key: &u64| self.runs.get(key).is_some_and(|run| supervise::is_suspect(self.rules.on_lost, run.losses));
        let apart = is_suspect(&key);
        let fits = |load: &Load| {
            !apart || !self.workers.get(&load.index).is_some_and(|worker| worker.runs.iter().any(is_suspect))
        };
        let Some(index) = scale::least_busy(self.rules.kind, self.loads().filter(fits)) else { return false };
        self.assign(key, index);
        true
    }

    fn assign(&mut self, key: u64, index: usize) {
        let (Some(worker), Some(run)) = (self.workers.get_mut(&index), self.runs.get_mut(&key)) else { return };
        run.worker = Some(index);
        worker.runs.insert(key);
        if worker.state == WorkerState::Starting {
            worker.unsent.push_back(key);
        } else {
            let name = Name { index, life: worker.life };
            self.send(name, key);
        }
    }

    pub(super) fn send(&mut self, worker: Name, key: u64) {
        if let Some(run) = self.runs.get(&key) {
            let frames = vec![wire_id(key), Bytes::from_static(message::RUN), run.payload.clone()];
            self.acts.push_back(Act::Send(worker, frames));
        }
    }

    /// A worker that has ended a run takes one from those that wait for a worker to start.
    pub(super) fn pull(&mut self, name: Name) {
        let policy = self.rules.on_lost;
        if !self.worker(name).is_some_and(|worker| worker.state == WorkerState::Ready) {
            return;
        }
        let longest = self.workers.iter_mut().filter(|(_, other)| !other.unsent.is_empty());
        let longest = longest.max_by_key(|(index, other)| (other.unsent.len(), usize::MAX - **index));
        let Some((_, other)) = longest else { return };
        let runs = &self.runs;
        let free = |key: &u64| runs.get(key).is_some_and(|run| !supervise::is_suspect(policy, run.losses));
        let Some(key) = other.unsent.iter().position(free).and_then(|position| other.unsent.remove(position)) else {
            return;
        };
        other.runs.remove(&key);
        self.assign(key, name.index);
    }

    /// Gives out what waits, lets those go that have nothing left, and sees whether there are too many.
    pub(super) fn settle(&mut self) {
        self.changed = true;
        let mut apart = 0;
        while let Some(key) = self.waiting.get(apart).copied() {
            if self.placed(key) {
                self.waiting.remove(apart);
            } else if self.runs.get(&key).is_some_and(|run| supervise::is_suspect(self.rules.on_lost, run.losses)) {
                // It waits for a worker without one like it; others need not.
                apart += 1;
            } else {
                break;
            }
        }
        let gone = |worker: &Worker| worker.state == WorkerState::Draining && worker.runs.is_empty();
        let done: Vec<usize> =
            self.workers.iter().filter(|(_, worker)| gone(worker)).map(|(index, _)| *index).collect();
        for index in done {
            if let Some(worker) = self.workers.remove(&index) {
                self.acts.push_back(Act::End(Name { index, life: worker.life }));
            }
        }
        if scale::has_surplus(self.rules.kind, self.staying(), self.runs.len()) {
            self.surplus.get_or_insert(self.now);
        } else {
            self.surplus = None;
        }
    }

    /// Ends a run; who waits for it.
    pub(super) fn forget(&mut self, key: u64) -> Option<(P, Bytes)> {
        let run = self.runs.remove(&key)?;
        self.held -= run.cost();
        if let Some(client) = &run.client {
            self.by_client.remove(client);
        }
        match run.worker.and_then(|index| self.workers.get_mut(&index)) {
            Some(worker) => {
                worker.runs.remove(&key);
                worker.unsent.retain(|unsent| *unsent != key);
            }
            None => self.waiting.retain(|waiting| *waiting != key),
        }
        run.client
    }
}
