//! The scheduler: who runs, who waits, who is preempted.
//!
//! It keeps what vLLM's scheduler keeps: requests are admitted first come, first served while their prompt fits; each
//! decoding request grows by a token a step; when the cache overflows, the one admitted last gives up its cache and
//! waits at the head of the queue, later to compute its prompt and what it had generated again. No step is simulated:
//! the moment of the next overflow follows from how many requests grow.
//!
//! A request with several choices counts its prompt once and grows by one token a choice and step, up to its longest.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap, VecDeque},
    time::Duration,
};

use tokio::sync::watch;

/// Nanoseconds since the engine started.
pub(super) type Nanos = u64;

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// In the queue.
    Waiting,
    /// In the batch: the next token, after `before` earlier ones, comes at `first`.
    Running { first: Nanos, before: u64 },
    /// All tokens are there.
    Finished,
}

/// What is asked of the engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// Prompt tokens.
    pub(super) prompt: usize,
    /// Tokens of the longest choice.
    pub(super) steps: usize,
    /// Number of choices.
    pub(super) width: usize,
}

/// Durations and limits of an engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) time_to_first_token: Duration,
    pub(super) inter_token_latency: Duration,
    pub(super) kv_tokens: Option<usize>,
    pub(super) max_running: Option<usize>,
    pub(super) max_queue: Option<usize>,
}

/// The queue is full.
#[derive(Debug)]
pub(super) struct Busy;

/// What the gauges show.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gauges {
    pub(super) running: usize,
    pub(super) waiting: usize,
    pub(super) kv_used: f64,
    pub(super) preemptions: u64,
}

/// A request that is not finished.
#[derive(Debug)]
struct Job {
    id: u64,
    prompt: u64,
    steps: u64,
    width: u64,
    /// Steps done before it was last admitted.
    before: u64,
    progress: watch::Sender<Progress>,
}

impl Job {
    /// Cache that it needs to be admitted: its prompt, what it generated, and the next token.
    fn need(&self) -> u64 {
        self.prompt + self.width * (self.before + 1)
    }
}

/// A job in the batch.
#[derive(Debug)]
struct Running {
    job: Job,
    /// When its next token comes, and from when on it grows.
    first: Nanos,
    decoding: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EventKind {
    FirstToken,
    Finish,
}

/// The scheduler: plain data, moved by the times it is told.
#[derive(Debug)]
pub(super) struct Batch {
    prefill: Nanos,
    interval: Nanos,
    capacity: u64,
    max_running: usize,
    max_queue: usize,
    waiting: VecDeque<Job>,
    /// By order of admission.
    running: BTreeMap<u64, Running>,
    /// From id to order of admission.
    admitted: HashMap<u64, u64>,
    next_order: u64,
    events: BinaryHeap<Reverse<(Nanos, u64, EventKind)>>,
    /// What the running jobs needed when they were admitted.
    fixed: u64,
    /// Tokens that a step adds.
    growing: u64,
    /// For the tokens added so far, without a sum over all jobs: the sum of width times `first` over what is decoding.
    growing_since: u128,
    preemptions: u64,
}

impl Batch {
    /// An empty batch.
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            prefill: limits.time_to_first_token.as_nanos() as Nanos,
            interval: limits.inter_token_latency.as_nanos() as Nanos,
            capacity: limits.kv_tokens.map_or(u64::MAX, |tokens| tokens as u64),
            max_running: limits.max_running.unwrap_or(usize::MAX),
            max_queue: limits.max_queue.unwrap_or(usize::MAX),
            waiting: VecDeque::new(),
            running: BTreeMap::new(),
            admitted: HashMap::new(),
            next_order: 0,
            events: BinaryHeap::new(),
            fixed: 0,
            growing: 0,
            growing_since: 0,
            preemptions: 0,
        }
    }

    /// Takes a request in, at once or into the queue.
    pub(super) fn arrive(&mut self, now: Nanos, id: u64, work: Work) -> Result<watch::Receiver<Progress>, Busy> {
        self.advance(now);
        let (progress, receiver) = watch::channel(Progress::Waiting);
        let job = Job {
            id,
            prompt: work.prompt as u64,
            steps: work.steps.max(1) as u64,
            width: work.width.max(1) as u64,
            before: 0,
            progress,
        };
        let runs_at_once = self.waiting.is_empty() && self.fits(now, &job);
        if !runs_at_once && self.waiting.len() >= self.max_queue {
            return Err(Busy);
        }
        self.waiting.push_back(job);
        self.admit(now);
        // Where neither prefill nor steps take time it is finished by now.
        self.advance(now);
        Ok(receiver)
    }

    /// Takes a request out, finished or not.
    pub(super) fn leave(&mut self, now: Nanos, id: u64) {
        self.advance(now);
        if let Some(order) = self.admitted.get(&id).copied() {
            self.remove(order);
            self.admit(now);
        } else if let Some(place) = self.waiting.iter().position(|job| job.id == id) {
            self.waiting.remove(place);
            self.admit(now);
        }
    }

    /// Lets everything happen that is due by `now`; says when something is due next.
    pub(super) fn advance(&mut self, now: Nanos) -> Option<Nanos> {
        loop {
            let event = self.next_event();
            let overflow = self.overflow_at();
            let next = match (event, overflow) {
                (Some((event, ..)), Some(overflow)) => event.min(overflow),
                (Some((event, ..)), None) => event,
                (None, Some(overflow)) => overflow,
                (None, None) => return None,
            };
            if next > now {
                return Some(next);
            }
            match event {
                Some((at, order, kind)) if at == next => {
                    self.events.pop();
                    match kind {
                        EventKind::FirstToken => self.start_decoding(at, order),
                        EventKind::Finish => self.finish(at, order),
                    }
                }
                _ => self.preempt(next),
            }
        }
    }

    /// What it holds now.
    pub(super) fn gauges(&mut self, now: Nanos) -> Gauges {
        self.advance(now);
        let kv_used = if self.capacity == u64::MAX { 0.0 } else { self.used(now) as f64 / self.capacity as f64 };
        Gauges {
            running: self.running.len(),
            waiting: self.waiting.len(),
            kv_used: kv_used.min(1.0),
            preemptions: self.preemptions,
        }
    }

    /// Tokens in the cache.
    fn used(&self, now: Nanos) -> u64 {
        if self.growing == 0 || self.interval == 0 {
            return self.fixed;
        }
        let grown = (u128::from(self.growing) * u128::from(now)).saturating_sub(self.growing_since);
        self.fixed + (grown / u128::from(self.interval)) as u64
    }

    /// The first moment at which the cache holds more than it can.
    fn overflow_at(&self) -> Option<Nanos> {
        // The last one standing is never preempted: nobody else could give it room.
        if self.growing == 0 || self.interval == 0 || self.capacity == u64::MAX || self.running.len() < 2 {
            return None;
        }
        let room = u128::from(self.capacity.saturating_sub(self.fixed) + 1) * u128::from(self.interval);
        Some((room + self.growing_since).div_ceil(u128::from(self.growing)) as Nanos)
    }

    /// The next event of a job that is still running.
    fn next_event(&mut self) -> Option<(Nanos, u64, EventKind)> {
        while let Some(Reverse((at, order, kind))) = self.events.peek().copied() {
            if self.running.contains_key(&order) {
                return Some((at, order, kind));
            }
            self.events.pop();
        }
        None
    }

    fn fits(&self, now: Nanos, job: &Job) -> bool {
        self.running.is_empty()
            || (self.running.len() < self.max_running && self.used(now).saturating_add(job.need()) <= self.capacity)
    }

    fn admit(&mut self, now: Nanos) {
        while self.waiting.front().is_some_and(|job| self.fits(now, job)) {
            let Some(job) = self.waiting.pop_front() else { return };
            let order = self.next_order;
            self.next_order += 1;
            let first = now + self.prefill;
            self.fixed += job.need();
            self.admitted.insert(job.id, order);
            self.events.push(Reverse((first, order, EventKind::FirstToken)));
            job.progress.send_replace(Progress::Running { first, before: job.before });
            self.running.insert(order, Running { job, first, decoding: false });
        }
    }

    fn start_decoding(&mut self, now: Nanos, order: u64) {
        let Some(running) = self.running.get_mut(&order) else { return };
        running.decoding = true;
        self.growing += running.job.width;
        self.growing_since += u128::from(running.job.width) * u128::from(running.first);
        let finish = now + (running.job.steps - running.job.before).saturating_sub(1) * self.interval;
        self.events.push(Reverse((finish, order, EventKind::Finish)));
    }

    fn finish(&mut self, now: Nanos, order: u64) {
        if let Some(running) = self.remove(order) {
            running.job.progress.send_replace(Progress::Finished);
        }
        self.admit(now);
    }

    fn preempt(&mut self, now: Nanos) {
        let Some(order) = self.running.last_key_value().map(|(order, _)| *order) else { return };
        let Some(running) = self.remove(order) else { return };
        let Running { mut job, first, decoding } = running;
        if decoding {
            let done = 1 + now.saturating_sub(first).checked_div(self.interval).unwrap_or(0);
            job.before = (job.before + done).min(job.steps - 1);
        }
        self.preemptions += 1;
        job.progress.send_replace(Progress::Waiting);
        self.waiting.push_front(job);
    }

    fn remove(&mut self, order: u64) -> Option<Running> {
        let running = self.running.remove(&order)?;
        self.admitted.remove(&running.job.id);
        self.fixed -= running.job.need();
        if running.decoding {
            self.growing -= running.job.width;
            self.growing_since -= u128::from(running.job.width) * u128::from(running.first);
        }
        Some(running)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    fn batch(kv_tokens: usize, max_running: Option<usize>, max_queue: Option<usize>) -> Batch {
        Batch::new(Limits {
            time_to_first_token: Duration::from_millis(10),
            inter_token_latency: Duration::from_millis(1),
            kv_tokens: Some(kv_tokens),
            max_running,
            max_queue,
        })
    }

    fn work(prompt: usize, steps: usize) -> Work {
        Work { prompt, steps, width: 1 }
    }

    #[test]
    fn a_request_alone_takes_prefill_and_steps() {
        let mut batch = batch(1_000, None, None);
        let progress = batch.arrive(0, 1, work(100, 50)).expect("room");
        assert_eq!(*progress.borrow(), Progress::Running { first: 10 * MS, before: 0 });
        assert_eq!(batch.advance(0), Some(10 * MS));
        batch.advance(59 * MS - 1);
        assert_ne!(*progress.borrow(), Progress::Finished);
        assert_eq!(batch.used(58 * MS), 149);
        batch.advance(59 * MS);
        assert_eq!(*progress.borrow(), Progress::Finished);
        assert_eq!((batch.used(60 * MS), batch.fixed, batch.growing, batch.growing_since), (0, 0, 0, 0));
    }

    #[test]
    fn what_does_not_fit_waits_in_order() {
        let mut batch = batch(250, None, None);
        let first = batch.arrive(0, 1, work(100, 10)).expect("room");
        let second = batch.arrive(0, 2, work(200, 10)).expect("a place in the queue");
        let third = batch.arrive(0, 3, work(10, 10)).expect("a place in the queue");
        let gauges = batch.gauges(0);
        assert_eq!((gauges.running, gauges.waiting), (1, 2));
        assert_eq!(*third.borrow(), Progress::Waiting, "no overtaking");
        batch.advance(19 * MS);
        assert_eq!(*first.borrow(), Progress::Finished);
        assert_eq!(*second.borrow(), Progress::Running { first: 29 * MS, before: 0 });
        assert_eq!(*third.borrow(), Progress::Running { first: 29 * MS, before: 0 });
    }

    #[test]
    fn an_overflow_preempts_the_last_admitted_which_goes_on_later() {
        let mut batch = batch(250, None, None);
        let first = batch.arrive(0, 1, work(100, 100)).expect("room");
        let second = batch.arrive(0, 2, work(100, 100)).expect("room");
        // 202 tokens at 10 ms, two more each millisecond: more than 250 at 35 ms.
        batch.advance(34 * MS);
        assert_eq!(batch.gauges(34 * MS).preemptions, 0);
        batch.advance(35 * MS);
        let gauges = batch.gauges(35 * MS);
        assert_eq!((gauges.preemptions, gauges.running, gauges.waiting), (1, 1, 1));
        assert_eq!(*second.borrow(), Progress::Waiting);
        batch.advance(109 * MS);
        assert_eq!(*first.borrow(), Progress::Finished);
        let Progress::Running { first: resumed, before } = *second.borrow() else { panic!("admitted again") };
        assert_eq!(resumed, 119 * MS);
        assert!((24..=26).contains(&before), "{before}");
        batch.advance(resumed + (99 - before) * MS);
        assert_eq!(*second.borrow(), Progress::Finished);
        assert_eq!((batch.fixed, batch.growing, batch.growing_since), (0, 0, 0));
    }

    #[test]
    fn a_full_queue_refuses_and_a_leaver_makes_room() {
        let mut batch = batch(10_000, Some(1), Some(1));
        let _first = batch.arrive(0, 1, work(10, 10)).expect("room");
        let second = batch.arrive(0, 2, work(10, 10)).expect("a place in the queue");
        assert!(batch.arrive(0, 3, work(10, 10)).is_err());
        batch.leave(5 * MS, 1);
        assert_eq!(*second.borrow(), Progress::Running { first: 15 * MS, before: 0 });
        assert!(batch.arrive(5 * MS, 4, work(10, 10)).is_ok());
        batch.leave(6 * MS, 4);
        batch.leave(6 * MS, 2);
        let gauges = batch.gauges(7 * MS);
        assert_eq!((gauges.running, gauges.waiting, batch.fixed), (0, 0, 0));
    }

    #[test]
    fn every_request_finishes_under_pressure() {
        let mut batch = batch(300, Some(8), None);
        let all: Vec<_> = (0..50)
            .map(|id| {
                batch
                    .arrive(id * MS, id, work(20 + (id as usize * 7) % 80, 1 + (id as usize * 13) % 90))
                    .expect("queue")
            })
            .collect();
        let mut now = 0;
        while let Some(next) = batch.advance(now) {
            assert!(batch.running.len() < 2 || batch.used(now) <= 300, "{} at {now}", batch.used(now));
            now = next;
        }
        assert!(all.iter().all(|progress| *progress.borrow() == Progress::Finished));
        assert!(batch.preemptions > 0);
        assert_eq!((batch.fixed, batch.growing, batch.waiting.len()), (0, 0, 0));
    }
}
