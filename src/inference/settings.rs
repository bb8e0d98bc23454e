//! What a pool needs to know before it opens the first connection.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::config::{ClientConfig, DEFAULT_API_KEY_VAR, Secret, SecretError};

/// Settings of a [`Pool`](super::Pool). Not printable: a base URL or a header may hold a secret.
#[derive(Clone)]
pub struct PoolSettings {
    /// One or more base URLs that serve the same model, each ending in `/v1` as a rule.
    pub base_urls: Vec<String>,
    /// The key, sent as a bearer token; without one it is `EMPTY`, which servers without keys expect.
    pub key: Option<Secret>,
    /// Name of the environment variable that holds the key, for messages.
    pub api_key_var: String,
    /// Headers of every request.
    pub headers: BTreeMap<String, String>,
    /// Headers whose values are never printed; they win over `headers`.
    pub secret_headers: BTreeMap<String, Secret>,
    /// Header that carries the session's id, `X-Session-ID` unless a router wants another.
    pub session_header: String,
    /// How long one attempt may wait.
    pub deadlines: Deadlines,
    /// How failed attempts are tried again.
    pub retry: RetrySettings,
    /// Ask for streamed answers.
    pub stream: bool,
    /// When an engine is taken out of the pool, and how it is asked whether it is back.
    pub breaker: BreakerSettings,
    /// Connections open at the same time over all engines; `None` derives it from the descriptor limit.
    pub max_connections: Option<usize>,
}

/// How long one attempt may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// For a connection.
    pub connect: Duration,
    /// For the first byte of the answer; `None` waits for ever.
    pub first_byte: Option<Duration>,
    /// Between two reads of the body; `None` waits for ever.
    pub idle: Option<Duration>,
}

/// How failed attempts are tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetrySettings {
    /// Attempts after the first one.
    pub max_retries: u32,
    /// Budget of one call over all attempts and waits; `None` is no limit.
    pub budget: Option<Duration>,
    /// The wait before the first retry; it doubles with each one.
    pub first_wait: Duration,
    /// The longest wait of our own choosing.
    pub longest_wait: Duration,
    /// The longest `Retry-After` that is honoured; a longer one ends the call.
    pub longest_retry_after: Duration,
}

/// When an engine is taken out of the pool, and how it is asked whether it is back. With one engine there is nowhere
/// else to go: it stays in use, and being out is only said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerSettings {
    /// Connection faults, deadlines and 5xx in a row that take it out.
    pub failures: u32,
    /// The wait before the first health check; it doubles with each one.
    pub first_probe: Duration,
    /// The longest wait between two health checks.
    pub longest_probe: Duration,
}

/// Something that happened inside a pool and that a user wants to see.
#[derive(Clone, Debug, PartialEq)]
pub enum PoolEvent {
    /// An attempt failed and the call is tried again.
    Retry {
        /// The session's id.
        session: Arc<str>,
        /// The engine that failed.
        endpoint: Arc<str>,
        /// Why, in a line.
        cause: String,
        /// How long until the next attempt starts.
        wait: Duration,
    },
    /// A session was moved to another engine, because its own is out.
    Moved {
        /// The session's id.
        session: Arc<str>,
        /// The engine that is out.
        from: Arc<str>,
        /// The engine that takes over.
        to: Arc<str>,
    },
    /// An engine was taken out of the pool.
    EngineOut {
        /// Which.
        endpoint: Arc<str>,
        /// The last failure, in a line.
        cause: String,
    },
    /// An engine answers again.
    EngineBack {
        /// Which.
        endpoint: Arc<str>,
    },
}

/// Who is told of [`PoolEvent`]s. Called on the task of the call; it must return at once.
pub type PoolObserver = Arc<dyn Fn(PoolEvent) + Send + Sync>;

impl PoolSettings {
    /// Settings for base URLs, with the defaults of every other field: no key, no headers, [`Deadlines::default`],
    /// [`RetrySettings::default`], answers not streamed.
    pub fn new<I: IntoIterator<Item = S>, S: Into<String>>(base_urls: I) -> Self {
        Self {
            base_urls: base_urls.into_iter().map(Into::into).collect(),
            key: None,
            api_key_var: DEFAULT_API_KEY_VAR.to_owned(),
            headers: BTreeMap::new(),
            secret_headers: BTreeMap::new(),
            session_header: "X-Session-ID".to_owned(),
            deadlines: Deadlines::default(),
            retry: RetrySettings::default(),
            stream: false,
            breaker: BreakerSettings::default(),
            max_connections: None,
        }
    }

    /// Settings from a client's configuration; the key and the headers' variables are read from the environment. An
    /// unset variable gives no key or leaves its header to the static ones.
    ///
    /// # Errors
    /// When a variable holds what no header may carry.
    pub fn from_config(config: &ClientConfig) -> Result<Self, SecretError> {
        let mut settings = Self {
            key: from_env(&config.api_key_var)?,
            api_key_var: config.api_key_var.clone(),
            headers: config.headers.clone(),
            deadlines: Deadlines { connect: config.connect, first_byte: config.first_byte, idle: config.idle },
            stream: config.stream,
            ..Self::new(config.base_urls.iter().cloned())
        };
        settings.retry.max_retries = config.max_retries;
        settings.retry.budget = config.call_budget;
        for (header, variable) in &config.headers_from_env {
            if let Some(value) = from_env(variable)? {
                settings.secret_headers.insert(header.clone(), value);
            }
        }
        Ok(settings)
    }
}

fn from_env(variable: &str) -> Result<Option<Secret>, SecretError> {
    match Secret::from_env(variable) {
        Ok(secret) => Ok(Some(secret)),
        Err(SecretError::Unset(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Default for Deadlines {
    /// Connect 30 s, first byte 30 min (an answer that is not streamed sends nothing before it is complete), idle 5 min:
    /// the defaults of a configuration.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(30),
            first_byte: Some(Duration::from_secs(1800)),
            idle: Some(Duration::from_secs(300)),
        }
    }
}

impl Default for RetrySettings {
    /// 4 retries within 2 h, the defaults of a configuration; waits of 0.5 s doubling to 30 s, `Retry-After` up to 5 min.
    fn default() -> Self {
        Self {
            max_retries: 4,
            budget: Some(Duration::from_secs(7200)),
            first_wait: Duration::from_millis(500),
            longest_wait: Duration::from_secs(30),
            longest_retry_after: Duration::from_secs(300),
        }
    }
}

impl Default for BreakerSettings {
    /// Out after 3 failures in a row; checked after 1 s, then less and less often, down to every 30 s.
    fn default() -> Self {
        Self { failures: 3, first_probe: Duration::from_secs(1), longest_probe: Duration::from_secs(30) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::{Document, EvalConfig, Layer, Tasksets};

    #[test]
    fn the_defaults_are_those_of_a_configuration() {
        let given =
            json!({"model": "m", "client": {"base_url": "http://localhost:8000/v1"}, "env": {"taskset": {"id": "t"}}});
        let document = Document::new([Layer::from_value(&given)]);
        let (config, _) = EvalConfig::from_document(document, &mut Tasksets(|_, _| {})).unwrap();
        let read = PoolSettings::from_config(&config.client.unwrap()).unwrap();
        let plain = PoolSettings::new(["http://localhost:8000/v1"]);
        assert_eq!((read.deadlines, read.retry, read.stream), (plain.deadlines, plain.retry, plain.stream));
        assert_eq!(read.api_key_var, plain.api_key_var);
    }
}
