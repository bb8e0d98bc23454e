//! What a simulator is told when it starts.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use super::fault::{FaultRule, Route};

/// How a simulator behaves. The default is a fast, faultless model that echoes, on any free port of the loopback.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address to listen on; 127.0.0.1 by default.
    pub host: IpAddr,
    /// Port to listen on; 0 (the default) takes any free one.
    pub port: u16,
    /// Name of the model served; `sim` by default.
    pub model: String,
    /// What everything random is derived from; 0 by default.
    pub seed: u64,
    /// Where answers come from.
    pub policy: Policy,
    /// Share of answers of [`Policy::Oracle`] that are made wrong, 0 to 1; 0 by default.
    pub error_rate: f64,
    /// From admission to the first token.
    pub time_to_first_token: Duration,
    /// From each token to the next.
    pub inter_token_latency: Duration,
    /// Tokens that the key-value cache holds; `None` (the default) is without limit. At least `max_model_len`.
    pub kv_tokens: Option<usize>,
    /// Requests in a batch; more wait. `None` (the default) is without limit.
    pub max_running: Option<usize>,
    /// Requests that may wait; more are refused with 503. `None` (the default) is without limit.
    pub max_queue: Option<usize>,
    /// The context window, prompt and completion, in tokens (bytes); 32,768 by default.
    pub max_model_len: usize,
    /// Faults to inject.
    pub faults: Vec<FaultRule>,
    /// `Retry-After` of injected 429s, in whole seconds; 1 s by default.
    pub retry_after: Duration,
    /// How long an injected slow header takes; 2 s by default.
    pub slow_headers: Duration,
    /// The key that callers must present as a bearer token; `None` (the default) lets everyone in.
    pub api_key: Option<ApiKey>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 0,
            model: "sim".to_owned(),
            seed: 0,
            policy: Policy::Echo,
            error_rate: 0.0,
            time_to_first_token: Duration::ZERO,
            inter_token_latency: Duration::ZERO,
            kv_tokens: None,
            max_running: None,
            max_queue: None,
            max_model_len: 32_768,
            faults: Vec::new(),
            retry_after: Duration::from_secs(1),
            slow_headers: Duration::from_secs(2),
            api_key: None,
        }
    }
}

/// Where a simulated model's answers come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The oracle's answer, made wrong with probability `error_rate`; a plain sentence where the oracle has none.
    Oracle,
    /// The last user message, again.
    Echo,
    /// Always this text.
    Fixed(String),
    /// Random words: 8 to 63 of them, and now and then a tool call where tools are offered.
    Random,
}

/// A secret that can be compared and cannot be printed.
#[derive(Clone)]
pub struct ApiKey(String);

impl ApiKey {
    /// Takes the key in.
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into())
    }

    /// Whether an `Authorization` header carries this key as a bearer token.
    pub(super) fn admits(&self, authorization: &[u8]) -> bool {
        authorization.strip_prefix(b"Bearer ").is_some_and(|token| token == self.0.as_bytes())
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ApiKey(…)")
    }
}

/// A setting that no simulator can have.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SettingsError {
    /// Not a probability.
    #[error("error rate {0} is not between 0 and 1")]
    ErrorRate(f64),
    /// Shares of one route that add up to more than everything.
    #[error("fault shares on route {route} add up to {sum}, more than 1")]
    FaultShares {
        /// The route.
        route: &'static str,
        /// The sum of its shares.
        sum: f64,
    },
    /// A window without room for a prompt and a token.
    #[error("max model len {0} is too small, give at least 16 tokens")]
    MaxModelLen(usize),
    /// A cache that one full window does not fit in; vLLM refuses to start then, too.
    #[error(
        "kv tokens {kv_tokens} is less than max model len {max_model_len}: a request could never finish, raise one or lower the other"
    )]
    KvTokens {
        /// The cache.
        kv_tokens: usize,
        /// The window.
        max_model_len: usize,
    },
    /// A batch of nothing.
    #[error("max running is 0: no request could ever run")]
    MaxRunning,
    /// A model without a name.
    #[error("the model's name is empty")]
    Model,
    /// A key that everyone has.
    #[error("the API key is empty")]
    ApiKey,
}

impl Settings {
    /// Checks everything that types do not.
    ///
    /// # Errors
    /// The first setting that is out of bounds.
    pub fn validate(&self) -> Result<(), SettingsError> {
        if !(0.0..=1.0).contains(&self.error_rate) {
            return Err(SettingsError::ErrorRate(self.error_rate));
        }
        if self.max_model_len < 16 {
            return Err(SettingsError::MaxModelLen(self.max_model_len));
        }
        if let Some(kv_tokens) = self.kv_tokens
            && kv_tokens < self.max_model_len
        {
            return Err(SettingsError::KvTokens { kv_tokens, max_model_len: self.max_model_len });
        }
        if self.max_running == Some(0) {
            return Err(SettingsError::MaxRunning);
        }
        if self.model.is_empty() {
            return Err(SettingsError::Model);
        }
        if self.api_key.as_ref().is_some_and(|key| key.0.is_empty()) {
            return Err(SettingsError::ApiKey);
        }
        check_shares(&self.faults)
    }
}

/// Refuses shares that are no shares, alone or together.
pub(super) fn check_shares(rules: &[FaultRule]) -> Result<(), SettingsError> {
    for route in Route::ALL {
        let covering = rules.iter().filter(|rule| rule.covers(route));
        let sum: f64 = covering.clone().map(|rule| rule.share).sum();
        // Written so that a share that is not a number is refused too.
        let each_is_share = covering.clone().all(|rule| (0.0..=1.0).contains(&rule.share));
        if !each_is_share || sum > 1.0 + 1e-9 {
            return Err(SettingsError::FaultShares { route: route.name(), sum });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::fault::FaultKind, *};

    #[test]
    fn the_default_is_valid_and_keys_do_not_print() {
        assert_eq!(Settings::default().validate(), Ok(()));
        let settings = Settings { api_key: Some(ApiKey::new("hunter2")), ..Settings::default() };
        assert!(!format!("{settings:?}").contains("hunter2"));
    }

    #[test]
    fn bad_values_are_named() {
        let check = |settings: Settings, expected: &str| {
            let error = settings.validate().expect_err("should be refused").to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(Settings { error_rate: 1.5, ..Settings::default() }, "error rate 1.5");
        check(Settings { error_rate: f64::NAN, ..Settings::default() }, "error rate NaN");
        check(Settings { kv_tokens: Some(100), ..Settings::default() }, "kv tokens 100");
        check(Settings { max_running: Some(0), ..Settings::default() }, "max running");
        check(Settings { model: String::new(), ..Settings::default() }, "name is empty");
    }

    #[test]
    fn shares_above_one_are_refused() {
        let rules = [FaultRule::new(FaultKind::Reset, 0.6), FaultRule::new(FaultKind::Cut, 0.6)];
        assert!(check_shares(&rules).is_err());
        assert!(check_shares(&[FaultRule::new(FaultKind::Reset, f64::NAN)]).is_err());
    }
}
