//! The attempts of one call: how many, how far apart, and when to give up.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use reqwest::header::{HeaderMap, RETRY_AFTER};
use tokio::time::{Instant, sleep, timeout_at};

use super::{ChatFailure, FailedAttempt, RetrySettings, failure::AttemptError};
use crate::trace::{Fault, TimeSpan};

/// What one call needs to be tried: an engine's attempt, and what to do between attempts.
pub(super) trait Attempts {
    /// What an attempt gives.
    type Output;

    /// The engine of the next attempt.
    fn choose(&mut self) -> Arc<str>;

    /// One attempt at the engine chosen.
    async fn attempt(&mut self) -> Result<Self::Output, AttemptError>;

    /// An attempt failed: its fault, and whether another engine takes the next one.
    fn failed(&mut self, error: &AttemptError) -> (Fault, bool);

    /// The call is tried again after `wait`.
    fn announce(&mut self, cause: &Fault, wait: Duration);
}

/// A call that succeeded: the output, the time of its attempt, and the attempts before it.
pub(super) struct Success<T> {
    pub(super) output: T,
    pub(super) endpoint: Arc<str>,
    pub(super) time: TimeSpan,
    pub(super) failed: Vec<FailedAttempt>,
}

/// Tries a call until it succeeds, cannot succeed, or has used up its retries or its budget.
pub(super) async fn call<A: Attempts>(
    settings: &RetrySettings,
    mut attempts: A,
) -> Result<Success<A::Output>, ChatFailure> {
    let end = settings.budget.and_then(|budget| Instant::now().checked_add(budget));
    let mut failed = Vec::new();
    loop {
        let endpoint = attempts.choose();
        let mut time = TimeSpan::begin();
        let outcome = match (end, settings.budget) {
            (Some(end), Some(limit)) => match timeout_at(end, attempts.attempt()).await {
                Ok(outcome) => outcome,
                Err(_) => Err(AttemptError::Budget { limit }),
            },
            _ => attempts.attempt().await,
        };
        time.finish();
        let error = match outcome {
            Ok(output) => return Ok(Success { output, endpoint, time, failed }),
            Err(error) => error,
        };
        let (mut fault, elsewhere) = attempts.failed(&error);
        let retries = u32::try_from(failed.len()).unwrap_or(u32::MAX);
        let plan = plan(settings, retries, &error, elsewhere, end.map(|end| end - Instant::now()));
        match plan {
            Plan::Wait(wait) => {
                attempts.announce(&fault, wait);
                failed.push(FailedAttempt { time, fault, endpoint });
                sleep(wait).await;
            }
            Plan::GiveUp(reason) => {
                if let Some(reason) = reason {
                    fault.message = format!("{}; {reason}", fault.message);
                }
                failed.push(FailedAttempt { time, fault, endpoint });
                return Err(ChatFailure { kind: error.kind(), failed });
            }
        }
    }
}

#[derive(Debug, PartialEq)]
enum Plan {
    Wait(Duration),
    GiveUp(Option<String>),
}

fn plan(settings: &RetrySettings, retries: u32, error: &AttemptError, elsewhere: bool, left: Option<Duration>) -> Plan {
    if !error.is_retryable() {
        return Plan::GiveUp(None);
    }
    if retries >= settings.max_retries {
        let attempts = retries + 1;
        return Plan::GiveUp((retries > 0).then(|| format!("given up after {attempts} attempts")));
    }
    let wait = match error.retry_after() {
        // Another engine has not asked for patience.
        _ if elsewhere => Duration::ZERO,
        Some(asked) if asked > settings.longest_retry_after => {
            let (asked, longest) = (asked.as_secs(), settings.longest_retry_after.as_secs());
            return Plan::GiveUp(Some(format!("it asks to wait {asked} s, and at most {longest} s are waited")));
        }
        // Spread out, so that those who were turned away together do not come back together.
        Some(asked) => asked + settings.first_wait.mul_f64(rand::random::<f64>()),
        None => back_off(settings, retries),
    };
    match left {
        Some(left) if wait >= left => Plan::GiveUp(Some(format!(
            "the call's budget has {} s left and the next attempt would wait {} s",
            left.as_secs(),
            wait.as_secs()
        ))),
        _ => Plan::Wait(wait),
    }
}

/// A wait that doubles with each retry, cut at the longest, then shortened by up to a half at random.
pub(super) fn back_off(settings: &RetrySettings, retries: u32) -> Duration {
    let doubled = settings.first_wait.saturating_mul(2u32.saturating_pow(retries.min(30)));
    doubled.min(settings.longest_wait).mul_f64(0.5 + 0.5 * rand::random::<f64>())
}

/// How long the server asks to wait: `Retry-After` in seconds or as a date (RFC 9110, 10.2.3), or `retry-after-ms`.
pub(super) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let number = |text: &str| text.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0);
    if let Some(milliseconds) = text("retry-after-ms").and_then(number) {
        return Some(seconds(milliseconds / 1000.0));
    }
    let value = text(RETRY_AFTER.as_str())?;
    match number(value) {
        Some(number) => Some(seconds(number)),
        None => Some(httpdate::parse_http_date(value).ok()?.duration_since(now).unwrap_or_default()),
    }
}

/// A duration, the longest there is for what is longer.
fn seconds(number: f64) -> Duration {
    Duration::try_from_secs_f64(number).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::{
        inference::{FailureKind, error_body::ErrorBody},
        trace::FaultClass,
    };

    /// Attempts that follow a script; each takes a second of the paused clock.
    struct Script {
        outcomes: VecDeque<Result<u32, AttemptError>>,
        waits: Vec<Duration>,
        elsewhere: bool,
    }

    impl Attempts for &mut Script {
        type Output = u32;

        fn choose(&mut self) -> Arc<str> {
            "engine".into()
        }

        async fn attempt(&mut self) -> Result<u32, AttemptError> {
            sleep(Duration::from_secs(1)).await;
            self.outcomes.pop_front().unwrap()
        }

        fn failed(&mut self, error: &AttemptError) -> (Fault, bool) {
            (Fault::new(FaultClass::Provider, error.to_string()), self.elsewhere)
        }

        fn announce(&mut self, _: &Fault, wait: Duration) {
            self.waits.push(wait);
        }
    }

    fn script(outcomes: impl IntoIterator<Item = Result<u32, AttemptError>>) -> Script {
        Script { outcomes: outcomes.into_iter().collect(), waits: Vec::new(), elsewhere: false }
    }

    fn status(status: u16, retry_after: Option<u64>) -> Result<u32, AttemptError> {
        Err(AttemptError::status(status, retry_after.map(Duration::from_secs), ErrorBody::default()))
    }

    #[tokio::test(start_paused = true)]
    async fn every_failed_attempt_is_kept_and_waits_double() {
        let mut script = script([status(500, None), status(503, None), Err(AttemptError::malformed("x")), Ok(7)]);
        let success = call(&RetrySettings::default(), &mut script).await.ok().unwrap();
        assert_eq!((success.output, success.failed.len(), script.waits.len()), (7, 3, 3));
        for (index, wait) in script.waits.iter().enumerate() {
            let full = 0.5 * f64::from(1 << index);
            assert!((full / 2.0..=full).contains(&wait.as_secs_f64()), "{wait:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn retries_end() {
        let settings = RetrySettings { max_retries: 2, ..RetrySettings::default() };
        let mut script = script((0..9).map(|_| status(502, None)));
        let failure = call(&settings, &mut script).await.err().unwrap();
        assert_eq!((failure.kind, failure.failed.len(), script.outcomes.len()), (FailureKind::Unavailable, 3, 6));
        assert!(failure.to_string().ends_with("given up after 3 attempts"), "{failure}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_succeed_is_not_tried_again() {
        for code in [400, 401, 403, 404, 422] {
            let mut script = script([status(code, None), Ok(1)]);
            let failure = call(&RetrySettings::default(), &mut script).await.err().unwrap();
            assert_eq!(failure.failed.len(), 1, "{code}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_budget_holds_over_attempts_and_waits() {
        let settings =
            RetrySettings { budget: Some(Duration::from_secs(10)), max_retries: 1000, ..RetrySettings::default() };
        let begin = Instant::now();
        let mut failing = script((0..1000).map(|_| status(503, None)));
        let failure = call(&settings, &mut failing).await.err().unwrap();
        assert!(begin.elapsed() <= Duration::from_secs(10), "{:?}", begin.elapsed());
        assert!(failure.failed.len() > 2);

        // An attempt that hangs is cut at the end of the budget.
        struct Hang;
        impl Attempts for Hang {
            type Output = ();
            fn choose(&mut self) -> Arc<str> {
                "engine".into()
            }
            async fn attempt(&mut self) -> Result<(), AttemptError> {
                std::future::pending().await
            }
            fn failed(&mut self, error: &AttemptError) -> (Fault, bool) {
                (Fault::new(FaultClass::Provider, error.to_string()), false)
            }
            fn announce(&mut self, _: &Fault, _: Duration) {}
        }
        let begin = Instant::now();
        let failure = call(&settings, Hang).await.err().unwrap();
        assert_eq!((failure.kind, begin.elapsed().as_secs()), (FailureKind::Unavailable, 10));
        assert!(failure.to_string().contains("budget of 10 s"), "{failure}");
    }

    #[tokio::test(start_paused = true)]
    async fn retry_after_is_honoured_within_reason() {
        let mut patient = script([status(429, Some(20)), Ok(1)]);
        assert!(call(&RetrySettings::default(), &mut patient).await.is_ok());
        assert!((20.0..=20.5).contains(&patient.waits[0].as_secs_f64()));

        let mut endless = script([status(429, Some(86_400)), Ok(1)]);
        let failure = call(&RetrySettings::default(), &mut endless).await.err().unwrap();
        assert!(failure.to_string().contains("asks to wait 86400 s"), "{failure}");

        let short = RetrySettings { budget: Some(Duration::from_secs(10)), ..RetrySettings::default() };
        let begin = Instant::now();
        let mut late = script([status(429, Some(20)), Ok(1)]);
        assert!(call(&short, &mut late).await.is_err());
        assert_eq!(begin.elapsed().as_secs(), 1, "a wait beyond the budget is not begun");
    }

    #[tokio::test(start_paused = true)]
    async fn another_engine_is_asked_at_once() {
        let mut script = script([status(503, Some(60)), Ok(1)]);
        script.elsewhere = true;
        assert!(call(&RetrySettings::default(), &mut script).await.is_ok());
        assert_eq!(script.waits, [Duration::ZERO]);
    }

    #[test]
    fn retry_after_is_read_in_all_its_forms() {
        let now = httpdate::parse_http_date("Wed, 21 Oct 2026 07:28:00 GMT").unwrap();
        let read = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            retry_after(&headers, now).map(|wait| wait.as_secs_f64())
        };
        assert_eq!(read("retry-after", "3"), Some(3.0));
        assert_eq!(read("retry-after", "0.5"), Some(0.5));
        assert_eq!(read("retry-after", "Wed, 21 Oct 2026 07:28:09 GMT"), Some(9.0));
        assert_eq!(read("retry-after", "Wed, 21 Oct 2026 07:00:00 GMT"), Some(0.0));
        assert_eq!(read("retry-after-ms", "250"), Some(0.25));
        assert!(read("retry-after", "999999999999999999999999").is_some_and(|wait| wait > 1e18));
        assert_eq!(read("retry-after", "soon"), None);
        assert_eq!(read("retry-after", "-1"), None);
        assert_eq!(read("retry-after", "inf"), None);
    }
}
