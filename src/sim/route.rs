//! From a request to what answers it: routes, key, faults; and the routes that do not run the model.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER},
};
use tokio_util::sync::CancellationToken;

use super::{
    OWNED_BY, Oracle,
    body::{self, Answer, ReadFault},
    chat, completion,
    engine::{Engine, Limits},
    fault::{self, FaultKind, FaultRule, Route},
    hash::Hash,
    metrics::{Counters, Stats},
    prefix::PrefixCache,
    refusal::Refusal,
    settings::Settings,
    tokenize,
    write::{json_string, number},
};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; version=1.0.0; charset=utf-8");

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
    stop: CancellationToken,
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

    fn fault(&self, route: Route, body: &[u8]) -> Option<FaultKind> {
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

/// Ends a connection without an answer.
#[derive(Debug, thiserror::Error)]
#[error("injected reset")]
pub(super) struct Reset;

/// What a route answers.
pub(super) enum Reply {
    Json(Bytes),
    Text(Bytes),
    Events(Answer),
}

/// A request to one of the routes that run the model, beside its body.
pub(super) struct Call<'a> {
    /// `X-Request-Id`, from which the answer's id is made.
    pub(super) request_id: Option<&'a str>,
    /// A fault that the route itself must act out.
    pub(super) fault: Option<FaultKind>,
}

/// Answers one request.
pub(super) async fn handle(model: Arc<Model>, request: Request<Incoming>) -> Result<Response<Answer>, Reset> {
    let (head, incoming) = request.into_parts();
    let Some(route) = Route::ALL.into_iter().find(|route| route.path() == head.uri.path()) else {
        return Ok(refuse(Refusal::no_such_route()));
    };
    Counters::add(&model.counters.requests, 1);
    if head.method != if route.is_get() { Method::GET } else { Method::POST } {
        return Ok(refuse(Refusal::wrong_method()));
    }
    if let Some(key) = &model.settings.api_key
        // As in vLLM, only what stands under /v1 asks for the key.
        && route.path().starts_with("/v1/")
        && !head.headers.get(AUTHORIZATION).is_some_and(|value| key.admits(value.as_bytes()))
    {
        return Ok(refuse(Refusal::unauthorized()));
    }
    let body = match body::read(incoming).await {
        Ok(body) => body,
        Err(ReadFault::TooLarge(refusal)) => return Ok(refuse(refusal)),
        Err(ReadFault::Gone) => return Err(Reset),
    };
    let fault = model.fault(route, &body);
    match fault {
        Some(FaultKind::TooManyRequests) => {
            let mut response = refuse(Refusal::too_many_requests());
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(model.settings.retry_after.as_secs()));
            return Ok(response);
        }
        Some(FaultKind::InternalError) => return Ok(refuse(Refusal::internal())),
        Some(FaultKind::Overloaded) => return Ok(refuse(Refusal::busy())),
        Some(FaultKind::Overflow) => return Ok(refuse(Refusal::context_overflow(model.settings.max_model_len))),
        Some(FaultKind::Reset) => return Err(Reset),
        Some(FaultKind::Hang) => {
            model.stop.cancelled().await;
            return Err(Reset);
        }
        Some(FaultKind::SlowHeaders) => tokio::time::sleep(model.settings.slow_headers).await,
        Some(FaultKind::Malformed | FaultKind::Cut | FaultKind::WrongUsage | FaultKind::Empty) | None => {}
    }
    let request_id = head.headers.get("x-request-id").and_then(|value| value.to_str().ok()).map(str::to_owned);
    // Headers are a kilobyte, and the answer may be a while.
    drop(head);
    let call = Call { request_id: request_id.as_deref(), fault };
    let reply = match route {
        Route::Chat => chat::answer(&model, body, call).await,
        Route::Completions => completion::answer(&model, body, call).await,
        Route::Models => Ok(Reply::Json(models(&model))),
        Route::Health => Ok(Reply::Text(Bytes::new())),
        Route::Metrics => {
            let page = model.counters.page(&model.settings, model.engine.gauges());
            Ok(Reply::Text(page.into()))
        }
        Route::Version => Ok(Reply::Json(Bytes::from_static(
            concat!(r#"{"version":"rollhouse-sim-"#, env!("CARGO_PKG_VERSION"), r#""}"#).as_bytes(),
        ))),
        Route::Tokenize => tokenize::tokenize(&model, &body),
        Route::Detokenize => tokenize::detokenize(&body),
    };
    Ok(match reply {
        Ok(reply) => respond(reply, fault),
        Err(refusal) => refuse(refusal),
    })
}

fn refuse(refusal: Refusal) -> Response<Answer> {
    let mut response = Response::new(Answer::Whole(refusal.body));
    *response.status_mut() = refusal.status;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

fn respond(reply: Reply, fault: Option<FaultKind>) -> Response<Answer> {
    let (kind, answer) = match reply {
        Reply::Json(bytes) => (JSON, Answer::Whole(bytes)),
        Reply::Text(bytes) => (TEXT, Answer::Whole(bytes)),
        Reply::Events(answer) => (EVENTS, answer),
    };
    let answer = match (fault, answer) {
        (Some(FaultKind::Malformed), Answer::Whole(bytes)) => Answer::Whole(bytes.slice(..bytes.len() / 2)),
        (Some(FaultKind::Cut), Answer::Whole(bytes)) => {
            Answer::Broken { announced: Some(bytes.len() as u64), bytes: bytes.slice(..bytes.len() / 2) }
        }
        (Some(FaultKind::Cut), Answer::Events(bytes)) => {
            Answer::Broken { announced: None, bytes: bytes.slice(..bytes.len() / 2) }
        }
        (_, answer) => answer,
    };
    let mut response = Response::new(answer);
    *response.status_mut() = StatusCode::OK;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn models(model: &Model) -> Bytes {
    let mut out = br#"{"object":"list","data":[{"id":"#.to_vec();
    json_string(&mut out, &model.settings.model);
    out.extend_from_slice(br#","object":"model","created":"#);
    number(&mut out, model.created);
    out.extend_from_slice(format!(r#","owned_by":"{OWNED_BY}","root":"#).as_bytes());
    json_string(&mut out, &model.settings.model);
    out.extend_from_slice(br#","parent":null,"max_model_len":"#);
    number(&mut out, model.settings.max_model_len as u64);
    out.extend_from_slice(
        format!(
            r#","permission":[{{"id":"modelperm-{:016x}","object":"model_permission","created":"#,
            model.seed.value()
        )
        .as_bytes(),
    );
    number(&mut out, model.created);
    out.extend_from_slice(
        br#","allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,"allow_search_indices":false,"allow_view":true,"allow_fine_tuning":false,"organization":"*","group":null,"is_blocking":false}]}]}"#,
    );
    out.into()
}
