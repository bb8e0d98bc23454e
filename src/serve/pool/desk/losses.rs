//! What follows when a worker is lost, and when there is none any more: whose runs are redone, failed, or over.

use std::hash::Hash;

use bytes::Bytes;

use super::{Act, Desk, Loss, Name, Worker, clients::answer};
use crate::{
    serve::{
        message::{self, Refused},
        pool::{
            OnLost, WorkerState,
            supervise::{self, Verdict},
        },
    },
    trace::wire,
};

impl<P: Copy + Eq + Hash> Desk<P> {
    /// A worker is gone.
    pub(in super::super) fn lost(&mut self, name: Name, loss: &Loss) {
        self.changed = true;
        let now = self.now;
        if self.worker(name).is_none() {
            return;
        }
        let Some(mut worker) = self.workers.remove(&name.index) else { return };
        self.lost += 1;
        let drains = worker.state == WorkerState::Draining;
        let others = self.workers.values().any(|other| other.state == WorkerState::Ready);
        let never = worker.lived.ready.is_none();
        let verdict = self.fortune.lost(worker.lived, &mut worker.short, others, self.rules.on_lost, now);
        let what =
            format!("env server worker {} {}", name.index, if never { "did not start: it " } else { "was lost: it " });
        let what = format!("{what}{}", loss.how);
        let given_up = match verdict {
            Verdict::Replace(_) => None,
            Verdict::CannotStart => Some(what.clone()),
            Verdict::StartsNoMore(times) => Some(format!("{what}; that was start {times} in a row that failed")),
            Verdict::Loop(times) => {
                Some(format!("{what}; that was loss {times} in a row without the end of a single run"))
            }
        };
        let runs = std::mem::take(&mut worker.runs);
        let unsent = std::mem::take(&mut worker.unsent);
        if let (Verdict::Replace(pause), false) = (verdict, drains) {
            let seat = Worker { state: WorkerState::Dead, pid: None, again: Some(now + pause), ..worker };
            self.workers.insert(name.index, seat);
        }
        self.end_cancels(name);
        if let Some(why) = given_up {
            tracing::error!(worker = name.index, "{why}: the pool gives up");
            self.failed = Some(with_lines(why, &loss.lines));
            self.end_runs();
            self.end_workers();
            return;
        }
        tracing::warn!(worker = name.index, runs = runs.len(), "{}", with_lines(what.clone(), &loss.lines));
        self.rehire();
        let (unsent, begun): (Vec<u64>, Vec<u64>) = runs.into_iter().partition(|key| unsent.contains(key));
        self.release(unsent);
        self.redo(begun, &what, &loss.lines);
        self.settle();
    }

    /// Runs that a worker had not begun go elsewhere, first.
    pub(super) fn release(&mut self, mut keys: Vec<u64>) {
        keys.sort_unstable();
        for key in keys.into_iter().rev() {
            if let Some(run) = self.runs.get_mut(&key) {
                run.worker = None;
                self.waiting.push_front(key);
            }
        }
    }

    /// The runs that were in flight on a lost worker are begun anew, or fail.
    fn redo(&mut self, mut keys: Vec<u64>, what: &str, lines: &[String]) {
        // In the order of their coming.
        keys.sort_unstable();
        let losses = |key: &u64| self.runs.get(key).map_or(0, |run| run.losses);
        let blamed = supervise::blamed(keys.iter().map(losses));
        for key in keys {
            let Some(mut run) = self.runs.remove(&key) else { continue };
            let (peer, id) = match run.client.clone() {
                Some(client) if !run.cancelled => client,
                // What was cancelled is not begun again.
                client => {
                    self.held -= run.cost();
                    if let Some((peer, id)) = client {
                        self.by_client.remove(&(peer, id.clone()));
                        self.reply(peer, id, message::refusal(&Refused::cancelled()));
                    }
                    continue;
                }
            };
            run.losses += u32::from(run.losses == blamed);
            if supervise::is_redone(self.rules.on_lost, run.losses) {
                for trace in run.traces.drain() {
                    let frames = vec![id.clone(), Bytes::from_static(message::DELTA), wire::discard(&trace)];
                    self.acts.push_back(Act::Answer(peer, frames));
                }
                run.worker = None;
                self.redone += 1;
                let anew = self.next_id();
                self.by_client.insert((peer, id), anew);
                self.runs.insert(anew, run);
                self.waiting.push_back(anew);
            } else {
                let why = match (self.rules.on_lost, run.losses) {
                    (OnLost::Redo { max_redos: 1.. }, losses) => format!(
                        "{what}, with this run in flight; so were {} workers before it that had this run: it is not begun \
                         again",
                        losses - 1
                    ),
                    _ => format!("{what}, with this run in flight; another attempt can succeed"),
                };
                self.held -= run.cost();
                self.by_client.remove(&(peer, id.clone()));
                let why = Refused::new(message::WORKER_LOST, with_lines(why, lines));
                self.reply(peer, id, message::refusal(&why));
                self.fortune.answered();
            }
        }
    }

    /// Cancels that a lost worker cannot answer have done what they should, and their runs have ended.
    fn end_cancels(&mut self, name: Name) {
        let unanswered: Vec<u64> =
            self.cancels.iter().filter(|(_, (worker, ..))| *worker == name).map(|(id, _)| *id).collect();
        for id in unanswered {
            if let Some((_, peer, id)) = self.cancels.remove(&id) {
                self.reply(peer, id, message::cancelled(true));
            }
        }
    }

    /// Fails all that anybody waits for.
    pub(super) fn end_runs(&mut self) {
        self.changed = true;
        let Some(why) = self.refuses() else { return };
        let refusal = message::refusal(&why);
        for (_, run) in self.runs.drain() {
            if let Some((peer, id)) = run.client {
                self.acts.push_back(Act::Answer(peer, answer(id, refusal.clone())));
            }
        }
        for (peer, id, _) in self.healths.drain(..) {
            self.acts.push_back(Act::Answer(peer, answer(id, refusal.clone())));
        }
        for (_, (_, peer, id)) in self.cancels.drain() {
            self.acts.push_back(Act::Answer(peer, answer(id, message::cancelled(true))));
        }
        self.by_client.clear();
        self.waiting.clear();
        self.held = 0;
    }

    pub(super) fn end_workers(&mut self) {
        for (index, worker) in std::mem::take(&mut self.workers) {
            if worker.state != WorkerState::Dead {
                self.acts.push_back(Act::End(Name { index, life: worker.life }));
            }
        }
    }
}

/// A text, and under it what a worker wrote last.
fn with_lines(text: String, lines: &[String]) -> String {
    if lines.is_empty() { text } else { format!("{text}; its last lines:\n  {}", lines.join("\n  ")) }
}
