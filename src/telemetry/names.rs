//! Every public name of the program in one place: environment variables and metrics.

/// Environment variables that rollhouse reads.
pub mod env {
    /// Log filter in `tracing` directives, such as `info,rollhouse::inference=debug`; wins over `--verbose`.
    pub const LOG: &str = "ROLLHOUSE_LOG";
    /// Default of `client.api_key_var`: the variable that holds the endpoint's key.
    pub const OPENAI_API_KEY: &str = crate::config::DEFAULT_API_KEY_VAR;
    /// Set to anything but the empty string: no colour in the output.
    pub const NO_COLOR: &str = "NO_COLOR";
    /// Names a Python interpreter with `verifiers` installed, for the tests that compare with it.
    pub const TEST_PYTHON: &str = "ROLLHOUSE_TEST_PYTHON";
}

/// Metrics. Counters end in `_total`, durations are in seconds.
pub mod metric {
    /// Counter, label `outcome` (`scored`, or the class of the failure): episodes that ended.
    pub const EPISODES: &str = "rollhouse_episodes_total";
    /// Gauge: episodes in flight.
    pub const EPISODES_IN_FLIGHT: &str = "rollhouse_episodes_in_flight";
    /// Histogram: seconds of one episode, teardown included.
    pub const EPISODE_SECONDS: &str = "rollhouse_episode_seconds";
    /// Counter, label `endpoint` (base URL): model calls that were tried again.
    pub const RETRIES: &str = "rollhouse_retries_total";
    /// Counter: model turns.
    pub const TURNS: &str = "rollhouse_turns_total";
    /// Counter, label `kind` (`input`, `output`): tokens as the endpoint counts them.
    pub const TOKENS: &str = "rollhouse_tokens_total";
}
