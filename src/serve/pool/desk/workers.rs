//! What workers say: that they are there, that they are ready, and what they send for their runs.

use std::hash::Hash;

use bytes::Bytes;

use super::{Act, Desk, Name, Nonsense, read_id};
use crate::{
    serve::{message, pool::WorkerState},
    trace::wire,
    zmtp::Frames,
};

/// Traces of one run; more than any env has.
pub(super) const TRACES: usize = 64 << 10;

impl<P: Copy + Eq + Hash> Desk<P> {
    /// A worker's process is there.
    pub(in super::super) fn started(&mut self, name: Name, pid: u32) {
        self.changed = true;
        if let Some(worker) = self.worker(name) {
            worker.pid = Some(pid);
        }
    }

    /// A worker answers.
    pub(in super::super) fn ready(&mut self, name: Name) {
        self.changed = true;
        let now = self.now;
        let Some(worker) = self.worker(name) else { return };
        worker.lived.ready = Some(now);
        if worker.state == WorkerState::Starting {
            worker.state = WorkerState::Ready;
        }
        let unsent = std::mem::take(&mut worker.unsent);
        self.fortune.ready();
        for key in unsent {
            self.send(name, key);
        }
        for (peer, id, _) in std::mem::take(&mut self.healths) {
            self.reply(peer, id, message::healthy());
        }
        self.settle();
    }

    /// A worker that is ready said something.
    pub(in super::super) fn said(&mut self, name: Name, frames: Frames) -> Result<(), Nonsense> {
        if self.worker(name).is_none() {
            return Ok(());
        }
        let [id, kind, payload] = <[Bytes; 3]>::try_from(frames).map_err(|frames| Nonsense::Frames(frames.len()))?;
        let key = read_id(&id).filter(|key| (1..=self.last_id).contains(key)).ok_or(Nonsense::Id)?;
        match &*kind {
            message::DELTA => self.said_delta(name, key, kind, payload),
            message::REPLY => self.said_reply(name, key, kind, payload),
            _ => Err(Nonsense::Kind),
        }
    }

    fn said_delta(&mut self, name: Name, key: u64, kind: Bytes, payload: Bytes) -> Result<(), Nonsense> {
        let (trace, discards) = wire::trace_of(&payload).ok_or(Nonsense::Delta)?;
        let Some(run) = self.runs.get_mut(&key) else { return Ok(()) };
        if run.worker != Some(name.index) {
            return Err(Nonsense::Id);
        }
        if discards {
            run.traces.remove(trace);
        } else if !run.traces.contains(trace) {
            if run.traces.len() == TRACES || trace.len() > message::LONGEST_NAME {
                return Err(Nonsense::Trace);
            }
            run.traces.insert(trace.to_owned());
        }
        if let Some((peer, id)) = &run.client {
            self.acts.push_back(Act::Answer(*peer, vec![id.clone(), kind, payload]));
        }
        Ok(())
    }

    fn said_reply(&mut self, name: Name, key: u64, kind: Bytes, payload: Bytes) -> Result<(), Nonsense> {
        // A map, small, of 16 bits, or of 32.
        if !payload.first().is_some_and(|byte| matches!(byte, 0x80..=0x8f | 0xde | 0xdf)) {
            return Err(Nonsense::Reply);
        }
        if let Some((worker, peer, id)) = self.cancels.remove(&key) {
            if worker != name {
                return Err(Nonsense::Id);
            }
            self.acts.push_back(Act::Answer(peer, vec![id, kind, payload]));
            return Ok(());
        }
        let Some(run) = self.runs.get(&key) else { return Ok(()) };
        if run.worker != Some(name.index) {
            return Err(Nonsense::Id);
        }
        if let Some((peer, id)) = self.forget(key) {
            self.acts.push_back(Act::Answer(peer, vec![id, kind, payload]));
        }
        if let Some(worker) = self.worker(name) {
            worker.lived.answered = true;
            worker.short = 0;
        }
        self.fortune.answered();
        self.pull(name);
        self.settle();
        Ok(())
    }
}
