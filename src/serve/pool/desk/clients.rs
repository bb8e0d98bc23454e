//! What clients ask for and how they leave; what goes back to them.

use std::{
    collections::{HashSet, hash_map::Entry},
    hash::Hash,
};

use bytes::Bytes;

use super::{Act, Desk, Name, RUN_COST, Request, Run, text_id, wire_id};
use crate::{
    serve::{
        message::{self, Refused},
        pool::WorkerState,
    },
    zmtp::Frames,
};

/// Questions for the health of a pool that wait, and no more: one is asked a second.
const HEALTHS: usize = 1024;
/// Bytes of requests that are held for redos, and for workers to come.
const HELD: usize = 1 << 30;

impl<P: Copy + Eq + Hash> Desk<P> {
    /// A client asks for something.
    pub(in super::super) fn asked(&mut self, peer: P, id: Bytes, request: Request) {
        match request {
            Request::Health => self.asked_health(peer, id),
            Request::Cancel { target } => self.asked_cancel(peer, id, target),
            Request::Run { payload } => self.asked_run(peer, id, payload),
            Request::Refused(refused) => self.reply(peer, id, message::refusal(&refused)),
        }
    }

    fn asked_health(&mut self, peer: P, id: Bytes) {
        if let Some(why) = self.refuses() {
            self.reply(peer, id, message::refusal(&why));
        } else if self.workers.values().any(|worker| worker.state == WorkerState::Ready) {
            self.reply(peer, id, message::healthy());
        } else {
            if self.healths.len() == HEALTHS {
                self.healths.pop_front();
            }
            self.healths.push_back((peer, id, self.now));
        }
    }

    fn asked_run(&mut self, peer: P, id: Bytes, payload: Bytes) {
        self.changed = true;
        if let Some(why) = self.refuses() {
            return self.reply(peer, id, message::refusal(&why));
        }
        if self.held.saturating_add(payload.len() + RUN_COST) > HELD && self.held > 0 {
            let why = format!(
                "the pool holds {} MiB of requests for runs in flight, and takes no more before some have ended; ask again",
                self.held >> 20
            );
            return self.reply(peer, id, message::refusal(&Refused::new(message::POOL_BUSY, why)));
        }
        let key = self.next_id();
        match self.by_client.entry((peer, id.clone())) {
            // A reply would be taken for that of the first.
            Entry::Occupied(_) => {
                tracing::warn!("dropped a run whose id its client has in flight already");
                return;
            }
            Entry::Vacant(entry) => entry.insert(key),
        };
        let run = Run {
            client: Some((peer, id)),
            cancelled: false,
            payload,
            worker: None,
            traces: HashSet::new(),
            losses: 0,
        };
        self.held += run.cost();
        self.runs.insert(key, run);
        self.place(key);
        self.grow();
    }

    fn asked_cancel(&mut self, peer: P, id: Bytes, target: Option<Bytes>) {
        let Some(key) = target.and_then(|target| self.by_client.get(&(peer, target)).copied()) else {
            return self.reply(peer, id, message::cancelled(false));
        };
        if let Some(worker) = self.sent_to(key) {
            let Some(run) = self.runs.get_mut(&key) else { return };
            if std::mem::replace(&mut run.cancelled, true) {
                // The worker knows.
                return self.reply(peer, id, message::cancelled(true));
            }
            // It answers both, in its order.
            self.send_cancel(worker, key, Some((peer, id)));
        } else {
            self.reply(peer, id, message::cancelled(true));
            if let Some((peer, id)) = self.forget(key) {
                self.reply(peer, id, message::refusal(&Refused::cancelled()));
            }
            self.settle();
        }
    }

    /// A client has gone; nobody waits for its runs.
    pub(in super::super) fn left(&mut self, peer: P) {
        self.changed = true;
        self.healths.retain(|(who, ..)| *who != peer);
        let theirs: Vec<u64> =
            self.by_client.iter().filter(|((who, _), _)| *who == peer).map(|(_, key)| *key).collect();
        for key in theirs {
            let Some(worker) = self.sent_to(key) else {
                self.forget(key);
                continue;
            };
            let run = self.runs.get_mut(&key);
            if let Some(client) = run.and_then(|run| run.client.take()) {
                self.by_client.remove(&client);
            }
            self.send_cancel(worker, key, None);
        }
        self.settle();
    }

    /// The worker that has been given a run.
    pub(super) fn sent_to(&self, key: u64) -> Option<Name> {
        let index = self.runs.get(&key)?.worker?;
        let worker = self.workers.get(&index).filter(|worker| !worker.unsent.contains(&key))?;
        Some(Name { index, life: worker.life })
    }

    fn send_cancel(&mut self, worker: Name, run: u64, client: Option<(P, Bytes)>) {
        let id = self.next_id();
        if let Some((peer, asked)) = client {
            self.cancels.insert(id, (worker, peer, asked));
        }
        let frames = vec![wire_id(id), Bytes::from_static(message::CANCEL), message::cancel(&text_id(run))];
        self.acts.push_back(Act::Send(worker, frames));
    }

    pub(super) fn reply(&mut self, peer: P, id: Bytes, payload: Bytes) {
        self.acts.push_back(Act::Answer(peer, answer(id, payload)));
    }

    /// Why no run is taken.
    pub(super) fn refuses(&self) -> Option<Refused> {
        match (&self.failed, self.closing) {
            (Some(why), _) => Some(Refused::new(message::NO_WORKERS, why.clone())),
            (None, true) => {
                Some(Refused::new(message::POOL_CLOSED, "the env server is shut down; another one can do the run"))
            }
            (None, false) => None,
        }
    }
}

pub(super) fn answer(id: Bytes, payload: Bytes) -> Frames {
    vec![id, Bytes::from_static(message::REPLY), payload]
}
