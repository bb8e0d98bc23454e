//! Every public name of the program in one place: environment variables and metrics.

/// Environment variables that rollhouse reads by a name of its own. A configuration names those of keys and headers
/// (`client.api_key_var`, `client.headers_from_env`), and the Hugging Face cache is found as its own library finds it.
pub mod env {
    /// Log filter in `tracing` directives, such as `info,rollhouse::inference=debug`; wins over `--verbose`.
    pub const LOG: &str = "ROLLHOUSE_LOG";
    /// Set by rollhouse for a program that it built from a Rust package and handed its work to: the package's folder.
    pub const PACKAGE: &str = "ROLLHOUSE_PACKAGE";
}

/// Metrics. Counters end in `_total`, durations are in seconds.
pub mod metric {
    /// Counter, label `outcome` (`scored`, or the class of the failure): episodes that ended.
    pub const EPISODES: &str = "rollhouse_episodes_total";
    /// Gauge: episodes in flight.
    pub const EPISODES_IN_FLIGHT: &str = "rollhouse_episodes_in_flight";
    /// Gauge: workers of an env server's pool that take runs.
    pub const WORKERS: &str = "rollhouse_workers_ready";
    /// Histogram: seconds of one episode, teardown included.
    pub const EPISODE_SECONDS: &str = "rollhouse_episode_seconds";
    /// Counter, label `endpoint` (base URL): model calls that were tried again.
    pub const RETRIES: &str = "rollhouse_retries_total";
    /// Counter: model turns.
    pub const TURNS: &str = "rollhouse_turns_total";
    /// Counter, label `kind` (`input`, `output`): tokens as the endpoint counts them.
    pub const TOKENS: &str = "rollhouse_tokens_total";
    /// Counter, label `prompt` (`extended`: the ids of the turn before go on; `rendered`: written anew; `drifted`: the endpoint
    /// wrote other ids than the renderer): turns whose exact tokens are kept.
    pub const TOKEN_TURNS: &str = "rollhouse_token_turns_total";
    /// Counter: tool calls of training clients that could not be read.
    pub const MALFORMED_CALLS: &str = "rollhouse_malformed_calls_total";
    /// Gauge: env server workers that are ready.
    pub const WORKERS_READY: &str = "rollhouse_pool_workers_ready";
    /// Counter: env server workers that were lost.
    pub const WORKERS_LOST: &str = "rollhouse_pool_workers_lost_total";
    /// Counter: runs that were begun anew because their worker was lost.
    pub const RUNS_REDONE: &str = "rollhouse_pool_runs_redone_total";
}
