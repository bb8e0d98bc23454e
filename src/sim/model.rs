//! The simulated model: settings, counts and caches that all its requests share.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use tokio_util::sync::CancellationToken;

use super::{
    Oracle,
    batch::Limits,
    engine::Engine,
    fault::{self, FaultKind, FaultRule, Route},
    hash::Hash,
    metrics::{Counters, Stats},
    prefix::PrefixCache,
    settings::Settings,
};

/// The simulated model with everything that its requests share.
pub(super) struct Model {
    pub(super) settings: Settings,
    pub(super) oracle: Option<Arc<dyn Oracle>>,
    pub(super) engine: Arc<Engine>,
    pub(super) counters: Counters,
    /// Unix time of the start, in seconds.
    pub(super) created: u64,
    /// Where everything random starts.
    pub(super) seed: Hash,
    // The three locks are held for a look-up each, never over an await.
    faults: RwLock<Arc<[FaultRule]>>,
    prefixes: Mutex<PrefixCache>,
    /// How often each conversation was answered and each body was tried: 12 bytes each, for the life of the server,
    /// because forgetting one would give it its first answer again.
    counts: Mutex<HashMap<u64, u32>>,
    ids: AtomicU64,
    /// Ends what would wait for ever.
    pub(super) stop: CancellationToken,
}

impl fmt::Debug for Model {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Model").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Model {
    pub(super) fn new(settings: Settings, oracle: Option<Arc<dyn Oracle>>, stop: CancellationToken) -> Self {
        let limits = Limits {
            time_to_first_token: settings.time_to_first_token,
            inter_token_latency: settings.inter_token_latency,
            kv_tokens: settings.kv_tokens,
            max_running: settings.max_running,
            max_queue: settings.max_queue,
        };
        Self {
            engine: Arc::new(Engine::new(limits)),
            counters: Counters::default(),
            created: unix_seconds(),
            seed: Hash::new(settings.seed),
            faults: RwLock::new(settings.faults.as_slice().into()),
            prefixes: Mutex::new(PrefixCache::default()),
            counts: Mutex::new(HashMap::new()),
            settings,
            oracle,
            ids: AtomicU64::new(0),
            stop,
        }
    }

    pub(super) fn stats(&self) -> Stats {
        self.counters.stats(self.engine.gauges())
    }

    pub(super) fn set_faults(&self, faults: Vec<FaultRule>) {
        *self.faults.write().unwrap_or_else(PoisonError::into_inner) = faults.into();
    }

    /// Another one each time, the same ones in each run.
    pub(super) fn next_id(&self) -> u64 {
        self.seed.number(self.ids.fetch_add(1, Ordering::Relaxed)).value()
    }

    /// How often `key` was counted before; counts this time too if it is to `count`.
    pub(super) fn occurrence(&self, key: u64, count: bool) -> u32 {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if !count {
            return counts.get(&key).copied().unwrap_or(0);
        }
        let entry = counts.entry(key).or_insert(0);
        *entry += 1;
        *entry - 1
    }

    /// Cached tokens of a prompt; see [`PrefixCache::look_up`].
    pub(super) fn look_up_prefix(&self, boundaries: &[(u64, usize)], prompt_tokens: usize) -> usize {
        self.prefixes.lock().unwrap_or_else(PoisonError::into_inner).look_up(boundaries, prompt_tokens)
    }

    /// Remembers a conversation that now ends in an answer.
    pub(super) fn remember_prefix(&self, hash: u64) {
        self.prefixes.lock().unwrap_or_else(PoisonError::into_inner).remember(hash);
    }

    /// The fault of the next attempt with this body, counted.
    pub(super) fn fault(&self, route: Route, body: &[u8]) -> Option<FaultKind> {
        let rules = Arc::clone(&self.faults.read().unwrap_or_else(PoisonError::into_inner));
        if rules.is_empty() {
            return None;
        }
        let key = self.seed.number(route as u64).bytes(body);
        let attempt = self.occurrence(key.value(), true);
        let kind = fault::choose(&rules, route, key.number(u64::from(attempt)))?;
        self.counters.fault(kind);
        Some(kind)
    }
}

/// Seconds since 1970.
pub(super) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
