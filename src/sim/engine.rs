//! The engine: when tokens come.
//!
//! Without limits every request runs at once and only its own clock counts; with a limit a [`Batch`] says who runs.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::batch::{Batch, Busy, Gauges, Limits, Nanos, Progress, Work};

/// The engine of one simulator.
#[derive(Debug)]
pub(super) struct Engine {
    limits: Limits,
    epoch: Instant,
    /// Requests in the batch, where there is no limit to keep.
    unlimited_running: AtomicUsize,
    /// Present where there is a limit. Held for a few map operations, never over an await.
    batch: Option<Mutex<Batch>>,
    next_id: AtomicU64,
    changed: Notify,
}

impl Engine {
    pub(super) fn new(limits: Limits) -> Self {
        let limited = limits.kv_tokens.is_some() || limits.max_running.is_some();
        Self {
            limits,
            epoch: Instant::now(),
            unlimited_running: AtomicUsize::new(0),
            batch: limited.then(|| Mutex::new(Batch::new(limits))),
            next_id: AtomicU64::new(0),
            changed: Notify::new(),
        }
    }

    /// Whether [`Engine::run`] has anything to do.
    pub(super) fn is_limited(&self) -> bool {
        self.batch.is_some()
    }

    /// Takes a request in.
    pub(super) fn enter(self: &Arc<Self>, work: Work) -> Result<Slot, Busy> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let now = self.now();
        let progress = match &self.batch {
            None => {
                self.unlimited_running.fetch_add(1, Ordering::Relaxed);
                None
            }
            Some(batch) => {
                let progress = lock(batch).arrive(now, id, work)?;
                self.changed.notify_one();
                Some(progress)
            }
        };
        Ok(Slot { engine: Arc::clone(self), id, entered: now, work, progress })
    }

    /// Moves the batch along until `stop`; needed only where there are limits.
    pub(super) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let Some(batch) = &self.batch else { return };
        loop {
            let next = lock(batch).advance(self.now());
            let sleep = async {
                match next {
                    Some(at) => sleep_until(self.instant(at)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.changed.notified() => {}
                () = sleep => {}
            }
        }
    }

    pub(super) fn gauges(&self) -> Gauges {
        match &self.batch {
            None => Gauges { running: self.unlimited_running.load(Ordering::Relaxed), ..Gauges::default() },
            Some(batch) => lock(batch).gauges(self.now()),
        }
    }

    fn now(&self) -> Nanos {
        self.epoch.elapsed().as_nanos() as Nanos
    }

    fn instant(&self, at: Nanos) -> Instant {
        self.epoch + Duration::from_nanos(at)
    }

    fn leave(&self, id: u64) {
        match &self.batch {
            None => {
                self.unlimited_running.fetch_sub(1, Ordering::Relaxed);
            }
            Some(batch) => {
                lock(batch).leave(self.now(), id);
                self.changed.notify_one();
            }
        }
    }
}

fn lock(batch: &Mutex<Batch>) -> MutexGuard<'_, Batch> {
    batch.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request inside the engine; dropping it takes the request out, finished or not.
#[derive(Debug)]
pub(super) struct Slot {
    engine: Arc<Engine>,
    id: u64,
    entered: Nanos,
    work: Work,
    progress: Option<watch::Receiver<Progress>>,
}

impl Slot {
    /// Waits until the first `steps` tokens of every choice are there (all of them, if there are fewer).
    pub(super) async fn until(&mut self, steps: usize) {
        // A step that does not exist is the last one.
        let steps = steps.clamp(1, self.work.steps.max(1)) as u64;
        let limits = self.engine.limits;
        let interval = limits.inter_token_latency.as_nanos() as Nanos;
        let Some(progress) = &mut self.progress else {
            let first = self.entered + limits.time_to_first_token.as_nanos() as Nanos;
            let due = first + (steps - 1) * interval;
            if due > self.entered {
                sleep_until(self.engine.instant(due)).await;
            }
            return;
        };
        let last = steps >= self.work.steps as u64;
        loop {
            let now = *progress.borrow_and_update();
            let due = match now {
                Progress::Finished => return,
                // The end is the engine's to tell; a second timer for it would be waste.
                Progress::Running { first, before } if !last => {
                    Some(first + (steps - before).saturating_sub(1) * interval)
                }
                Progress::Running { .. } | Progress::Waiting => None,
            };
            let changed = match due {
                Some(due) => tokio::select! {
                    () = sleep_until(self.engine.instant(due)) => return,
                    changed = progress.changed() => changed,
                },
                None => progress.changed().await,
            };
            if changed.is_err() {
                return;
            }
        }
    }

    /// Time since the request came.
    pub(super) fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.engine.now() - self.entered)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.engine.leave(self.id);
    }
}
