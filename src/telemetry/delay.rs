//! The delay of the event loop: how late a task runs after it could have run. Work that blocks a worker shows here first.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    task::AbortHandle,
    time::{Instant, sleep_until},
};

/// Time between two samples.
const EVERY: Duration = Duration::from_millis(20);

/// Buckets for each doubling of the delay, so that a quantile is at most a fifth too high.
const BUCKETS_PER_DOUBLING: f64 = 4.0;

/// From a microsecond to an hour.
const BUCKETS: usize = 128;

/// Samples the delay until it is dropped.
#[derive(Debug)]
pub struct DelayWatch {
    samples: Arc<Mutex<Delays>>,
    task: AbortHandle,
}

/// Delays met so far. The timer's own resolution, a millisecond, is part of them.
#[derive(Clone, Debug)]
pub struct Delays {
    counts: [u64; BUCKETS],
    most: Duration,
}

impl DelayWatch {
    /// Begins to sample on the current tokio runtime.
    pub fn start() -> Self {
        let samples = Arc::new(Mutex::new(Delays::default()));
        let shared = Arc::clone(&samples);
        let sample = async move {
            loop {
                let due = Instant::now() + EVERY;
                sleep_until(due).await;
                let late = due.elapsed();
                shared.lock().expect("nothing panics while it holds the lock").add(late);
            }
        };
        Self { samples, task: tokio::spawn(sample).abort_handle() }
    }

    /// What was met so far.
    pub fn delays(&self) -> Delays {
        self.samples.lock().expect("nothing panics while it holds the lock").clone()
    }
}

impl Drop for DelayWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Default for Delays {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], most: Duration::ZERO }
    }
}

impl Delays {
    fn add(&mut self, late: Duration) {
        let doublings = late.as_secs_f64().mul_add(1e6, 1.0).log2();
        let bucket = (doublings * BUCKETS_PER_DOUBLING).ceil() as usize;
        self.counts[bucket.min(BUCKETS - 1)] += 1;
        self.most = self.most.max(late);
    }

    /// The delay that a share of the samples, 0 to 1, does not exceed, rounded up by at most a fifth; zero without samples.
    pub fn quantile(&self, share: f64) -> Duration {
        let wanted = share * self.counts.iter().sum::<u64>() as f64;
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += count;
            seen > 0 && seen as f64 >= wanted
        });
        let edge =
            |bucket: usize| Duration::from_secs_f64((2_f64.powf(bucket as f64 / BUCKETS_PER_DOUBLING) - 1.0) / 1e6);
        bucket.map_or(Duration::ZERO, |bucket| edge(bucket).min(self.most))
    }

    /// The longest one.
    pub fn longest(&self) -> Duration {
        self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_at_most_a_fifth_too_high() {
        let mut delays = Delays::default();
        assert_eq!(delays.quantile(0.99), Duration::ZERO);
        for milliseconds in 1..=1000 {
            delays.add(Duration::from_millis(milliseconds));
        }
        for share in [0.01, 0.5, 0.99, 1.0] {
            let found = delays.quantile(share).as_secs_f64() / share;
            assert!((0.999..1.2).contains(&found), "{share}: {found}");
        }
        assert_eq!((delays.quantile(1.0), delays.longest()), (Duration::from_secs(1), Duration::from_secs(1)));
        delays.add(Duration::from_secs(1 << 40));
        assert!(delays.quantile(0.5) < Duration::from_millis(600));
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_is_free_has_no_delay() {
        let watch = DelayWatch::start();
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(watch.delays().quantile(0.99) <= Duration::from_millis(1));
        assert!(watch.delays().counts.iter().sum::<u64>() > 400);
    }
}
