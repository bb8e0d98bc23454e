//! What the simulator counts, and how `/metrics` shows it under vLLM's names.

use std::{
    fmt::Write,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::{batch::Gauges, fault::FaultKind, prefix::BLOCK, settings::Settings};

/// What a simulator has done since it started.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Requests to routes that exist, on any of them.
    pub requests: u64,
    /// Generations that ended and were sent.
    pub completed: u64,
    /// Generations now in the batch.
    pub running: usize,
    /// Generations now in the queue.
    pub waiting: usize,
    /// Generations refused because the queue was full.
    pub rejected: u64,
    /// Times that a running request lost its cache to another.
    pub preemptions: u64,
    /// Prompt tokens of admitted requests.
    pub prompt_tokens: u64,
    /// Those of them that the prefix cache had.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub completion_tokens: u64,
    /// Faults injected, by kind; kinds that never came are left out.
    pub faults: Vec<(FaultKind, u64)>,
}

/// Upper edges of the latency histograms, in seconds.
const EDGES: [f64; 12] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.3, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0];

#[derive(Debug, Default)]
pub(super) struct Histogram {
    buckets: [AtomicU64; EDGES.len() + 1],
    micros: AtomicU64,
}

impl Histogram {
    pub(super) fn record(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let place = EDGES.iter().position(|edge| seconds <= *edge).unwrap_or(EDGES.len());
        self.buckets[place].fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(duration.as_micros() as u64, Ordering::Relaxed);
    }
}

/// Running counts.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) requests: AtomicU64,
    pub(super) stopped: AtomicU64,
    pub(super) cut_at_length: AtomicU64,
    pub(super) rejected: AtomicU64,
    pub(super) prompt_tokens: AtomicU64,
    pub(super) cached_tokens: AtomicU64,
    pub(super) completion_tokens: AtomicU64,
    pub(super) faults: [AtomicU64; FaultKind::ALL.len()],
    pub(super) first_token: Histogram,
    pub(super) whole_request: Histogram,
}

impl Counters {
    pub(super) fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }

    pub(super) fn fault(&self, kind: FaultKind) {
        if let Some(place) = FaultKind::ALL.iter().position(|candidate| *candidate == kind) {
            self.faults[place].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn stats(&self, gauges: Gauges) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            requests: read(&self.requests),
            completed: read(&self.stopped) + read(&self.cut_at_length),
            running: gauges.running,
            waiting: gauges.waiting,
            rejected: read(&self.rejected),
            preemptions: gauges.preemptions,
            prompt_tokens: read(&self.prompt_tokens),
            cached_tokens: read(&self.cached_tokens),
            completion_tokens: read(&self.completion_tokens),
            faults: FaultKind::ALL
                .into_iter()
                .zip(self.faults.iter().map(read))
                .filter(|(_, count)| *count > 0)
                .collect(),
        }
    }

    /// The page in Prometheus text form. Families, labels and the form of numbers are those of vLLM 0.32.
    pub(super) fn page(&self, settings: &Settings, gauges: Gauges) -> String {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        let model = settings.model.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
        let mut page = Page { text: String::with_capacity(8192), model };
        let (prompt, cached) = (read(&self.prompt_tokens), read(&self.cached_tokens));

        page.family("num_requests_running", "gauge", "Number of requests in the batch.");
        page.sample("num_requests_running", &[], gauges.running as f64);
        page.family("num_requests_waiting", "gauge", "Number of requests that wait to be admitted.");
        page.sample("num_requests_waiting", &[], gauges.waiting as f64);
        page.family("num_requests_waiting_by_reason", "gauge", "Number of waiting requests, by what they wait for.");
        page.sample("num_requests_waiting_by_reason", &[("reason", "capacity")], gauges.waiting as f64);
        page.sample("num_requests_waiting_by_reason", &[("reason", "deferred")], 0.0);
        page.family("engine_sleep_state", "gauge", "1 for the state the engine is in; always awake.");
        for (state, value) in [("awake", 1.0), ("weights_offloaded", 0.0), ("discard_all", 0.0)] {
            page.sample("engine_sleep_state", &[("sleep_state", state)], value);
        }
        page.family("kv_cache_usage_perc", "gauge", "Share of the key-value cache in use, 0 to 1.");
        page.sample("kv_cache_usage_perc", &[], gauges.kv_used);
        page.counter("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", prompt);
        page.counter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", cached);
        page.counter("num_preemptions_total", "Times that a request lost its cache.", gauges.preemptions as f64);
        page.counter("prompt_tokens_total", "Prompt tokens of admitted requests.", prompt);
        page.family("prompt_tokens_by_source_total", "counter", "Prompt tokens, by where they came from.");
        let sources = [("local_compute", prompt - cached), ("local_cache_hit", cached), ("external_kv_transfer", 0.0)];
        for (source, value) in sources {
            page.sample("prompt_tokens_by_source_total", &[("source", source)], value);
        }
        page.counter("prompt_tokens_cached_total", "Prompt tokens found in a cache.", cached);
        page.counter("generation_tokens_total", "Tokens generated.", read(&self.completion_tokens));
        page.family("request_success_total", "counter", "Requests that ended, by why.");
        let ends = [
            ("stop", read(&self.stopped)),
            ("length", read(&self.cut_at_length)),
            ("abort", 0.0),
            ("error", 0.0),
            ("repetition", 0.0),
        ];
        for (reason, value) in ends {
            page.sample("request_success_total", &[("finished_reason", reason)], value);
        }
        page.family("admission_rejections_total", "counter", "Requests refused because a queue was full.");
        // The front of the server refuses, not an engine.
        for (reason, value) in [("max_num_queued_reqs", read(&self.rejected)), ("max_num_queued_tokens", 0.0)] {
            let model = page.model.clone();
            page.sample_of("admission_rejections_total", vec![("model_name", &model), ("reason", reason)], value);
        }
        page.histogram("time_to_first_token_seconds", "Time to the first token.", &self.first_token);
        page.histogram("e2e_request_latency_seconds", "Time from arrival to the last token.", &self.whole_request);
        page.family("cache_config_info", "gauge", "How the key-value cache is laid out.");
        let size = settings.kv_tokens.map_or("None".to_owned(), |tokens| tokens.to_string());
        let blocks = settings.kv_tokens.map_or("None".to_owned(), |tokens| (tokens / BLOCK).to_string());
        page.sample_of(
            "cache_config_info",
            vec![
                ("engine", "0"),
                ("block_size", &BLOCK.to_string()),
                ("enable_prefix_caching", "True"),
                ("kv_cache_size_tokens", &size),
                ("num_gpu_blocks", &blocks),
            ],
            1.0,
        );
        page.text
    }
}

struct Page {
    text: String,
    model: String,
}

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}\n"));
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let model = self.model.clone();
        self.sample_of(name, [&[("engine", "0"), ("model_name", model.as_str())], labels].concat(), value);
    }

    /// A sample with these labels only; in alphabetical order, as Prometheus clients write them.
    fn sample_of(&mut self, name: &str, mut all: Vec<(&str, &str)>, value: f64) {
        all.sort_unstable();
        self.line(format_args!("vllm:{name}{{"));
        for (index, (label, text)) in all.into_iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            self.line(format_args!("{comma}{label}=\"{text}\""));
        }
        self.line(format_args!("}} {value:?}\n"));
    }

    fn counter(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, "counter", help);
        self.sample(name, &[], value);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.family(name, "histogram", help);
        let mut below = 0;
        for (place, bucket) in histogram.buckets.iter().enumerate() {
            below += bucket.load(Ordering::Relaxed);
            let edge = EDGES.get(place).map_or("+Inf".to_owned(), |edge| format!("{edge:?}"));
            self.sample(&format!("{name}_bucket"), &[("le", &edge)], below as f64);
        }
        self.sample(&format!("{name}_count"), &[], below as f64);
        self.sample(&format!("{name}_sum"), &[], histogram.micros.load(Ordering::Relaxed) as f64 / 1e6);
    }

    fn line(&mut self, arguments: std::fmt::Arguments<'_>) {
        self.text.write_fmt(arguments).expect("writing to a string does not fail");
    }
}
