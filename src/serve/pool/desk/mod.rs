//! Who works on what: all state of a pool, without a clock, a socket or a process.
//!
//! Whatever happens outside comes in as a call; what is to be done outside goes out as [`Act`]s, in order. Runs are keyed
//! by the peer that asked and the id it chose; towards workers each has an id of ours, a new one with every redo.

mod clients;
mod losses;
mod runs;
mod seats;
mod workers;

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    hash::Hash,
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::{
    OnLost, PoolKind, PoolStatus, WorkerState, WorkerStatus, scale,
    supervise::{Fortune, Life},
};
use crate::{serve::message::Refused, zmtp::Frames};

/// A question for the health of a pool that is not ready waits as long as who asked does.
const HEALTH: Duration = Duration::from_secs(2);
/// What a run takes beside its request.
const RUN_COST: usize = 1 << 10;

/// One life on one seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Name {
    pub(super) index: usize,
    pub(super) life: u64,
}

/// What is to be done outside.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Act<P> {
    /// To a client.
    Answer(P, Frames),
    /// To a worker that is ready.
    Send(Name, Frames),
    /// Starts a worker.
    Start(Name),
    /// Asks a worker to end, and forgets it.
    End(Name),
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Health,
    Cancel { target: Option<Bytes> },
    Run { payload: Bytes },
    Refused(Refused),
}

/// What a worker said that no worker says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Nonsense {
    #[error("it sent a message of {0} frames")]
    Frames(usize),
    #[error("it answered what nobody asked")]
    Id,
    #[error("it sent a message that is neither a delta nor a reply")]
    Kind,
    #[error("it sent a delta that is none")]
    Delta,
    #[error("it sent more rollouts of one run, or with longer ids, than any env has")]
    Trace,
    #[error("it sent a reply that is none")]
    Reply,
}

/// How a worker was lost, in words: "was killed by SIGKILL", and the last lines it wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Loss {
    pub(super) how: String,
    pub(super) lines: Vec<String>,
}

pub(super) struct Rules {
    pub(super) kind: PoolKind,
    pub(super) on_lost: OnLost,
    pub(super) idle: Duration,
}

pub(super) struct Desk<P> {
    rules: Rules,
    workers: BTreeMap<usize, Worker>,
    runs: HashMap<u64, Run<P>>,
    by_client: HashMap<(P, Bytes), u64>,
    /// Runs that no worker can take yet, in the order of their coming.
    waiting: VecDeque<u64>,
    /// Cancels that a worker has not answered.
    cancels: HashMap<u64, (Name, P, Bytes)>,
    healths: VecDeque<(P, Bytes, Instant)>,
    /// What all `runs` take.
    held: usize,
    last_id: u64,
    last_life: u64,
    fortune: Fortune,
    /// Since when there is a worker too many.
    surplus: Option<Instant>,
    lost: u64,
    redone: u64,
    failed: Option<String>,
    closing: bool,
    /// Whether anything has changed that [`PoolStatus`] shows.
    changed: bool,
    now: Instant,
    acts: VecDeque<Act<P>>,
}

struct Worker {
    life: u64,
    state: WorkerState,
    pid: Option<u32>,
    lived: Life,
    runs: HashSet<u64>,
    /// Those of its runs that it gets when it is ready.
    unsent: VecDeque<u64>,
    /// Lives in a row on this seat that brought nothing.
    short: u32,
    /// When a dead one is started again.
    again: Option<Instant>,
}

struct Run<P> {
    /// Who waits for it, under which id; nobody when the client has gone.
    client: Option<(P, Bytes)>,
    /// Its client wants no more of it but its end.
    cancelled: bool,
    payload: Bytes,
    worker: Option<usize>,
    /// Traces of which the client has seen something.
    traces: HashSet<String>,
    losses: u32,
}

impl<P> Run<P> {
    /// Bytes that it takes.
    fn cost(&self) -> usize {
        RUN_COST + self.payload.len()
    }
}

impl<P: Copy + Eq + Hash> Desk<P> {
    /// A pool with its first workers.
    pub(super) fn new(rules: Rules, now: Instant) -> Self {
        let mut desk = Self {
            workers: BTreeMap::new(),
            runs: HashMap::new(),
            by_client: HashMap::new(),
            waiting: VecDeque::new(),
            cancels: HashMap::new(),
            healths: VecDeque::new(),
            held: 0,
            last_id: 0,
            last_life: 0,
            fortune: Fortune::default(),
            surplus: None,
            lost: 0,
            redone: 0,
            failed: None,
            closing: false,
            changed: true,
            now,
            acts: VecDeque::new(),
            rules,
        };
        for index in 0..scale::at_first(desk.rules.kind) {
            desk.hire(index);
        }
        desk
    }

    /// What comes now happens then.
    pub(super) fn at(&mut self, now: Instant) {
        self.now = now;
    }

    /// The next thing to do.
    pub(super) fn act(&mut self) -> Option<Act<P>> {
        self.acts.pop_front()
    }

    /// Takes no more runs.
    pub(super) fn close(&mut self) {
        self.closing = true;
    }

    /// Ends what is left: runs in flight are cancelled, workers asked to end.
    pub(super) fn end(&mut self) {
        self.closing = true;
        self.end_runs();
        self.end_workers();
    }

    /// Whether anybody waits for a run.
    pub(super) fn is_empty(&self) -> bool {
        self.runs.values().all(|run| run.client.is_none())
    }

    /// Time has passed.
    pub(super) fn tick(&mut self) {
        let now = self.now;
        while self.healths.front().is_some_and(|(.., since)| now.duration_since(*since) >= HEALTH) {
            self.healths.pop_front();
        }
        self.rehire();
        self.shrink();
        self.settle();
    }

    /// When to tick at the latest.
    pub(super) fn next_tick(&self) -> Option<Instant> {
        let again = self.workers.values().filter_map(|worker| worker.again).min();
        let idle = self.surplus.map(|since| since + self.rules.idle);
        let health = self.healths.front().map(|(.., since)| *since + HEALTH);
        [again, idle, health].into_iter().flatten().min()
    }

    /// Whether the pool looks different than when this was asked last.
    pub(super) fn has_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// What the pool looks like.
    pub(super) fn status(&self) -> PoolStatus {
        let worker = |(index, worker): (&usize, &Worker)| WorkerStatus {
            index: *index,
            pid: worker.pid,
            state: worker.state,
            in_flight: worker.runs.len(),
        };
        let unsent: usize = self.workers.values().map(|worker| worker.unsent.len()).sum();
        PoolStatus {
            workers: self.workers.iter().map(worker).collect(),
            in_flight: self.runs.len(),
            waiting: self.waiting.len() + unsent,
            lost: self.lost,
            redone: self.redone,
            failed: self.failed.clone(),
        }
    }

    fn worker(&mut self, name: Name) -> Option<&mut Worker> {
        let alive = |worker: &&mut Worker| worker.life == name.life && worker.state != WorkerState::Dead;
        self.workers.get_mut(&name.index).filter(alive)
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }
}

fn text_id(id: u64) -> String {
    format!("{id:016x}")
}

fn wire_id(id: u64) -> Bytes {
    text_id(id).into()
}

fn read_id(id: &[u8]) -> Option<u64> {
    let is_ours = id.len() == 16 && id.iter().all(u8::is_ascii_hexdigit);
    u64::from_str_radix(std::str::from_utf8(id).ok().filter(|_| is_ours)?, 16).ok()
}

#[cfg(test)]
mod tests;
