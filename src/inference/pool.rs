//! Sessions and where they sit: least load first, one engine for a whole session, elsewhere only when it is out.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use reqwest::{
    Url,
    header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue},
};
use tokio::{sync::Semaphore, task::JoinSet, time::sleep};
use tower::limit::GlobalConcurrencyLimitLayer;

use super::{
    BreakerSettings, ChatCall, ChatFailure, ChatReply, GenerateCall, GenerateReply, Generation, PoolEvent,
    PoolObserver, PoolSettings, RetrySettings,
    engine::{Change, Engine},
    failure::AttemptError,
    retry::{self, Attempts, Success},
    transport::{CONNECTING_AT_ONCE, connection_limit},
    wire::Completion,
};
use crate::{
    config::{Redactor, Secret},
    trace::Fault,
};

/// Settings that no pool can be made from.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// No base URL.
    #[error("no base URL given; name at least one endpoint")]
    NoEndpoint,
    /// A base URL is none.
    #[error("the base URL `{url}` cannot be used: {reason}")]
    BadUrl {
        /// The URL, without user and query.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A header cannot be sent; its value is not shown.
    #[error("the header `{0}` cannot be sent; its name or its value holds characters that HTTP does not allow")]
    BadHeader(String),
    /// The HTTP client cannot be made.
    #[error("the HTTP client cannot be made: {0}")]
    Client(String),
}

/// One or more engines that serve the same model. Cheap to clone; the last clone or session that is dropped ends its
/// health checks.
#[derive(Clone)]
pub struct Pool {
    pub(super) inner: Arc<Inner>,
}

/// One rollout's seat at an engine; dropping it gives the seat back.
pub struct Session {
    inner: Arc<Inner>,
    id: Arc<str>,
    header: HeaderValue,
    /// Index of the engine.
    seat: AtomicUsize,
}

pub(super) struct Inner {
    pub(super) engines: Vec<Arc<Engine>>,
    pub(super) api_key_var: String,
    pub(super) redactor: Redactor,
    session_header: HeaderName,
    retry: RetrySettings,
    breaker: BreakerSettings,
    stream: bool,
    observer: Option<PoolObserver>,
    /// One permit for each call in flight: each needs a connection, and connections need descriptors.
    slots: Semaphore,
    /// Held while a seat is chosen and taken, so that sessions that come together spread.
    seating: Mutex<()>,
    /// Health checks of engines that are out.
    probes: Mutex<JoinSet<()>>,
}

impl Pool {
    /// A pool over the settings' engines. No connection is opened yet.
    ///
    /// # Errors
    /// When a URL or header cannot be used.
    pub fn new(settings: PoolSettings, observer: Option<PoolObserver>) -> Result<Self, PoolError> {
        let connections = connection_limit(settings.max_connections);
        let connecting = GlobalConcurrencyLimitLayer::new(CONNECTING_AT_ONCE);
        let mut secrets: Vec<Secret> = settings.secret_headers.values().cloned().chain(settings.key.clone()).collect();
        let mut seen = HashSet::new();
        let mut engines = Vec::new();
        for url in settings.base_urls.iter().filter(|url| seen.insert(url.trim_end_matches('/').to_owned())) {
            let headers = headers(&settings, url)?;
            secrets.extend(secrets_of(url));
            let connecting = connecting.clone();
            engines.push(Arc::new(Engine::new(url, headers, settings.deadlines, connections, connecting)?));
        }
        if engines.is_empty() {
            return Err(PoolError::NoEndpoint);
        }
        let session_header = settings.session_header.parse();
        let session_header = session_header.map_err(|_| PoolError::BadHeader(settings.session_header.clone()))?;
        Ok(Self {
            inner: Arc::new(Inner {
                engines,
                api_key_var: settings.api_key_var,
                redactor: Redactor::new(&secrets),
                session_header,
                retry: settings.retry,
                breaker: settings.breaker,
                stream: settings.stream,
                observer,
                slots: Semaphore::new(connections),
                seating: Mutex::default(),
                probes: Mutex::default(),
            }),
        })
    }

    /// A new session, at the engine with the least load. The id (a trace id, as a rule) is sent with every request of
    /// the session, so that a router in between can keep it at one engine too; characters that no header may carry are
    /// sent as `_`.
    pub fn session(&self, id: &str) -> Session {
        let sendable: String = id.chars().map(|c| if c.is_ascii_graphic() { c } else { '_' }).collect();
        let header = HeaderValue::from_str(&sendable).expect("printable ASCII is a header value");
        let seat = AtomicUsize::new(self.inner.take_seat(None));
        Session { inner: Arc::clone(&self.inner), id: id.into(), header, seat }
    }

    /// The engines' base URLs, without user and query.
    pub fn endpoints(&self) -> Vec<Arc<str>> {
        self.inner.engines.iter().map(|engine| Arc::clone(&engine.endpoint)).collect()
    }
}

impl Session {
    /// One chat call with its retries. Dropping the future closes the connection, which makes servers stop generating.
    ///
    /// # Errors
    /// When the call cannot succeed or did not within its retries and budget.
    pub async fn chat(&self, call: &ChatCall<'_>) -> Result<ChatReply, ChatFailure> {
        let success = self.call(call).await?;
        let Completion { message, finish_reason, usage, tokens } = success.output;
        Ok(ChatReply {
            message,
            finish_reason,
            usage,
            tokens,
            endpoint: success.endpoint,
            time: success.time,
            failed: success.failed,
        })
    }

    /// One call with the tokens of its prompt, with its retries, as [`Self::chat`].
    ///
    /// # Errors
    /// When the call cannot succeed or did not within its retries and budget, and when the tokens that came contradict each
    /// other.
    pub async fn generate(&self, call: &GenerateCall<'_>) -> Result<GenerateReply, ChatFailure> {
        let success = self.call(call).await?;
        Ok(GenerateReply {
            generation: success.output,
            endpoint: success.endpoint,
            time: success.time,
            failed: success.failed,
        })
    }

    async fn call<A: Asked>(&self, asked: &A) -> Result<Success<A::Answer>, ChatFailure> {
        let _slot = self.inner.slots.acquire().await.expect("the pool's semaphore is never closed");
        let attempts = SessionCall { session: self, asked, engine: None };
        retry::call(&self.inner.retry, attempts).await
    }

    /// The base URL of the engine where the session sits now, without user and query.
    pub fn endpoint(&self) -> Arc<str> {
        Arc::clone(&self.inner.engines[self.seat.load(Ordering::Relaxed)].endpoint)
    }

    /// The engine for the next attempt: the session's own, or another one when that is out and another is not.
    fn engine(&self) -> Arc<Engine> {
        let seat = self.seat.load(Ordering::Relaxed);
        let own = &self.inner.engines[seat];
        if !own.is_out() || self.inner.engines.iter().all(|engine| engine.is_out()) {
            return Arc::clone(own);
        }
        let new = self.inner.take_seat(Some(seat));
        self.seat.store(new, Ordering::Relaxed);
        let (from, to) = (Arc::clone(&own.endpoint), Arc::clone(&self.inner.engines[new].endpoint));
        tracing::warn!(session = %self.id, %from, %to, "a session moves to another engine");
        self.inner.tell(|| PoolEvent::Moved { session: Arc::clone(&self.id), from, to });
        Arc::clone(&self.inner.engines[new])
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.inner.engines[self.seat.load(Ordering::Relaxed)].sessions.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a session can ask an engine.
trait Asked {
    type Answer;

    /// One attempt.
    async fn ask(
        &self,
        engine: &Engine,
        stream: bool,
        session: (&HeaderName, &HeaderValue),
    ) -> Result<Self::Answer, AttemptError>;
}

impl Asked for ChatCall<'_> {
    type Answer = Completion;

    async fn ask(
        &self,
        engine: &Engine,
        stream: bool,
        session: (&HeaderName, &HeaderValue),
    ) -> Result<Completion, AttemptError> {
        engine.chat(self, stream, session).await
    }
}

impl Asked for GenerateCall<'_> {
    type Answer = Generation;

    async fn ask(
        &self,
        engine: &Engine,
        _: bool,
        session: (&HeaderName, &HeaderValue),
    ) -> Result<Generation, AttemptError> {
        engine.generate(self, session).await
    }
}

/// One call of a session, seen by the retry rules.
struct SessionCall<'a, A> {
    session: &'a Session,
    asked: &'a A,
    engine: Option<Arc<Engine>>,
}

impl<A> SessionCall<'_, A> {
    fn engine(&self) -> &Arc<Engine> {
        self.engine.as_ref().expect("an engine is chosen before it is asked")
    }
}

impl<A: Asked> Attempts for SessionCall<'_, A> {
    type Output = A::Answer;

    fn choose(&mut self) -> Arc<str> {
        Arc::clone(&self.engine.insert(self.session.engine()).endpoint)
    }

    async fn attempt(&mut self) -> Result<A::Answer, AttemptError> {
        let (inner, engine) = (&self.session.inner, self.engine());
        let _load = Load::on(engine);
        let outcome = self.asked.ask(engine, inner.stream, (&inner.session_header, &self.session.header)).await;
        match &outcome {
            Ok(_) => inner.answered(engine, true),
            Err(error) if !error.blames_engine() => inner.answered(engine, false),
            Err(_) => {}
        }
        outcome
    }

    fn failed(&mut self, error: &AttemptError) -> (Fault, bool) {
        let (inner, engine) = (&self.session.inner, self.engine());
        let fault = error.fault(&engine.endpoint, |text| inner.redactor.redact(&text).into_owned());
        if error.blames_engine() {
            inner.failed(engine, &fault.message);
        }
        let elsewhere = engine.is_out() && inner.engines.iter().any(|other| !other.is_out());
        (fault, elsewhere)
    }

    fn announce(&mut self, cause: &Fault, wait: Duration) {
        tracing::info!(session = %self.session.id, cause = %cause.message, ?wait, "a call is tried again");
        let endpoint = &self.engine().endpoint;
        self.session.inner.tell(|| PoolEvent::Retry {
            session: Arc::clone(&self.session.id),
            endpoint: Arc::clone(endpoint),
            cause: without_endpoint(&cause.message, endpoint).to_owned(),
            wait,
        });
    }
}

/// A call in flight at an engine.
struct Load<'a>(&'a Engine);

impl<'a> Load<'a> {
    fn on(engine: &'a Engine) -> Self {
        engine.in_flight.fetch_add(1, Ordering::Relaxed);
        Self(engine)
    }
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Inner {
    /// Takes a seat at the engine with the least load, those that are out last, and gives back the old one.
    fn take_seat(&self, old: Option<usize>) -> usize {
        let _seating = self.seating.lock().expect("nothing panics while it holds the seating lock");
        let order = |(_, engine): &(usize, &Arc<Engine>)| (engine.is_out(), engine.load());
        let (seat, engine) = self.engines.iter().enumerate().min_by_key(order).expect("a pool has at least one engine");
        engine.sessions.fetch_add(1, Ordering::Relaxed);
        if let Some(old) = old {
            self.engines[old].sessions.fetch_sub(1, Ordering::Relaxed);
        }
        seat
    }

    fn answered(&self, engine: &Engine, well: bool) {
        if engine.answered(well) == Change::Back {
            self.say_back(engine);
        }
    }

    pub(super) fn failed(self: &Arc<Self>, engine: &Arc<Engine>, cause: &str) {
        let Change::Out(outages) = engine.failed(self.breaker.failures) else { return };
        tracing::warn!(endpoint = %engine.endpoint, cause, "an engine is taken out of the pool");
        self.tell(|| PoolEvent::EngineOut {
            endpoint: Arc::clone(&engine.endpoint),
            cause: without_endpoint(cause, &engine.endpoint).to_owned(),
        });
        let mut probes = self.probes.lock().expect("nothing panics while it holds the probes lock");
        while probes.try_join_next().is_some() {}
        // The task must not keep the pool alive that owns it.
        let (inner, engine, breaker) = (Arc::downgrade(self), Arc::clone(engine), self.breaker);
        probes.spawn(async move {
            // An engine that passes its health check and fails again at once is asked less and less often.
            let mut wait = breaker.first_probe.saturating_mul(2u32.saturating_pow(outages.saturating_sub(1).min(30)));
            loop {
                wait = wait.min(breaker.longest_probe);
                sleep(wait.mul_f64(0.5 + 0.5 * rand::random::<f64>())).await;
                if !engine.is_out() {
                    return;
                }
                if engine.is_alive().await {
                    if let Some(inner) = inner.upgrade() {
                        inner.answered(&engine, false);
                    }
                    return;
                }
                wait = wait.saturating_mul(2);
            }
        });
    }

    fn say_back(&self, engine: &Engine) {
        tracing::info!(endpoint = %engine.endpoint, "an engine is back in the pool");
        self.tell(|| PoolEvent::EngineBack { endpoint: Arc::clone(&engine.endpoint) });
    }

    fn tell(&self, event: impl FnOnce() -> PoolEvent) {
        if let Some(observer) = &self.observer {
            observer(event());
        }
    }
}

/// A fault's message without the endpoint that it begins with, for events that name it themselves.
fn without_endpoint<'a>(message: &'a str, endpoint: &str) -> &'a str {
    message.strip_prefix(endpoint).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(message)
}

/// The headers of every request to an engine.
fn headers(settings: &PoolSettings, url: &str) -> Result<HeaderMap, PoolError> {
    let mut headers = HeaderMap::new();
    let has_user = Url::parse(url).is_ok_and(|url| !url.username().is_empty() || url.password().is_some());
    // The user of a URL is sent as Basic by the HTTP client; a key given as well goes first.
    if settings.key.is_some() || !has_user {
        let bearer = format!("Bearer {}", settings.key.as_ref().map_or("EMPTY", Secret::expose));
        headers.insert(AUTHORIZATION, header(AUTHORIZATION.as_str(), &bearer, true)?);
    }
    let plain = settings.headers.iter().map(|(name, value)| (name, value.as_str(), false));
    let secret = settings.secret_headers.iter().map(|(name, value)| (name, value.expose(), true));
    for (name, value, sensitive) in plain.chain(secret) {
        let parsed: HeaderName = name.parse().map_err(|_| PoolError::BadHeader(name.clone()))?;
        let sensitive = sensitive || parsed == AUTHORIZATION;
        headers.insert(parsed, header(name, value, sensitive)?);
    }
    Ok(headers)
}

fn header(name: &str, value: &str, sensitive: bool) -> Result<HeaderValue, PoolError> {
    let mut value = HeaderValue::from_str(value).map_err(|_| PoolError::BadHeader(name.to_owned()))?;
    value.set_sensitive(sensitive);
    Ok(value)
}

/// What a base URL holds that nobody should read: its user's password, its query's values.
fn secrets_of(url: &str) -> Vec<Secret> {
    let Ok(url) = Url::parse(url) else { return Vec::new() };
    let mut secrets: Vec<Secret> = url.query_pairs().map(|(_, value)| Secret::new(value.into_owned())).collect();
    if let Some(password) = url.password() {
        secrets.push(Secret::new(password.to_owned()));
        secrets.push(Secret::new(STANDARD.encode(format!("{}:{password}", url.username()))));
    }
    secrets
}
