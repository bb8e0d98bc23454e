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
    /// Counter, label `outcome` (`scored`, `failed`, `not_run`): rollouts that ended.
    pub const ROLLOUTS: &str = "rollhouse_rollouts_total";
    /// Gauge: episodes in flight.
    pub const EPISODES_IN_FLIGHT: &str = "rollhouse_episodes_in_flight";
    /// Histogram: seconds of one episode, teardown included.
    pub const EPISODE_SECONDS: &str = "rollhouse_episode_seconds";
    /// Counter, label `status` (HTTP status or `transport`): attempts of model calls.
    pub const MODEL_ATTEMPTS: &str = "rollhouse_model_attempts_total";
    /// Counter, label `reason` (error class): model calls that were tried again.
    pub const MODEL_RETRIES: &str = "rollhouse_model_retries_total";
    /// Histogram: seconds of one model call over all its attempts.
    pub const MODEL_CALL_SECONDS: &str = "rollhouse_model_call_seconds";
    /// Gauge, label `endpoint` (base URL): model calls in flight.
    pub const MODEL_CALLS_IN_FLIGHT: &str = "rollhouse_model_calls_in_flight";
    /// Counter, label `kind` (`input`, `output`): tokens as the endpoint counts them.
    pub const TOKENS: &str = "rollhouse_tokens_total";
}
