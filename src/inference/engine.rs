//! One engine: its address, its health, its load, and one attempt of a call.

use std::{
    cell::Cell,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_openai::{
    Client,
    config::{Config, OpenAIConfig},
    traits::RequestOptionsBuilder,
};
use reqwest::{
    Method, Response, Url,
    header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue},
};
use secrecy::SecretString;
use tower::limit::GlobalConcurrencyLimitLayer;

use super::{
    ChatCall, Deadlines, GenerateCall, Generation, PoolError,
    failure::AttemptError,
    sse::{SseEvent, SseReader},
    transport::{LARGEST_ANSWER, Transport, within},
    wire::{
        Answer, BODY_READ, Chunk, Completion, GenerateBody, RequestBody, WholeBody, parse, read_generation,
        whole_answer, write_request,
    },
};
use crate::telemetry::aside;

/// The largest event of a stream, in bytes: the prompt's ids come in one.
const LARGEST_EVENT: usize = 64 << 20;
/// Prompts above this many tokens are written aside.
const LONG_PROMPT: usize = 50_000;
/// Answers above this many bytes are read aside.
const LONG_ANSWER: usize = 1 << 20;
/// How long a health check may take.
const HEALTH_CHECK: Duration = Duration::from_secs(5);

/// An engine of a pool.
pub(super) struct Engine {
    /// The base URL without user and query, for people.
    pub(super) endpoint: Arc<str>,
    address: Address,
    client: Client<Address>,
    transport: Transport,
    health: Mutex<Health>,
    /// Sessions seated here.
    pub(super) sessions: AtomicUsize,
    /// Calls in flight here.
    pub(super) in_flight: AtomicUsize,
}

#[derive(Debug, Default)]
struct Health {
    /// Failures in a row that speak against the engine.
    failures: u32,
    out: bool,
    /// Times it was taken out since its last good answer.
    outages: u32,
}

/// What a good or bad attempt did to an engine's standing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing.
    None,
    /// It is taken out, for the nth time since its last good answer.
    Out(u32),
    /// It is back.
    Back,
}

impl Engine {
    pub(super) fn new(
        url: &str,
        headers: HeaderMap,
        deadlines: Deadlines,
        connections: usize,
        connecting: GlobalConcurrencyLimitLayer,
    ) -> Result<Self, PoolError> {
        let address = Address::new(url, headers)?;
        let transport = Transport::new(&address.url, deadlines, connections, connecting)
            .map_err(|error| PoolError::Client(super::failure::root_cause(&error.without_url())))?;
        let client = Client::build(transport.client().clone(), address.clone()).with_http_service(transport.clone());
        Ok(Self {
            endpoint: address.shown(),
            address,
            client,
            transport,
            health: Mutex::default(),
            sessions: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
        })
    }

    /// Sessions and calls in flight.
    pub(super) fn load(&self) -> usize {
        self.sessions.load(Ordering::Relaxed) + self.in_flight.load(Ordering::Relaxed)
    }

    /// Whether it is out of the pool.
    pub(super) fn is_out(&self) -> bool {
        self.health().out
    }

    /// It answered, well or with a refusal: it is alive.
    pub(super) fn answered(&self, well: bool) -> Change {
        let mut health = self.health();
        health.failures = 0;
        if well {
            health.outages = 0;
        }
        if std::mem::take(&mut health.out) { Change::Back } else { Change::None }
    }

    /// It failed; after `limit` failures in a row it is taken out.
    pub(super) fn failed(&self, limit: u32) -> Change {
        let mut health = self.health();
        health.failures = health.failures.saturating_add(1);
        if health.out || health.failures < limit {
            return Change::None;
        }
        health.out = true;
        health.outages += 1;
        Change::Out(health.outages)
    }

    fn health(&self) -> std::sync::MutexGuard<'_, Health> {
        self.health.lock().expect("nothing panics while it holds the health lock")
    }

    /// One attempt of a call.
    pub(super) async fn chat(
        &self,
        call: &ChatCall<'_>,
        stream: bool,
        session: (&HeaderName, &HeaderValue),
    ) -> Result<Completion, AttemptError> {
        // Boxed, so that a call that is not streamed does not carry the other one's room with it.
        let answer = match stream {
            true => Box::pin(self.streamed(call, session)).await?,
            false => self.whole(call, session).await?,
        };
        answer.finish(call.tokens)
    }

    async fn whole(
        &self,
        call: &ChatCall<'_>,
        (name, value): (&HeaderName, &HeaderValue),
    ) -> Result<Answer, AttemptError> {
        let body = RequestBody { call, stream: false };
        let headers = HeaderMap::from_iter([(name.clone(), value.clone())]);
        let chat = self.client.chat().headers(headers);
        let WholeBody(reply) = BODY_READ.scope(Cell::new(0), chat.create_byot(body)).await?;
        whole_answer(reply)
    }

    /// One attempt of a call with tokens. The route lies at the server's root, not under `/v1`.
    pub(super) async fn generate(
        &self,
        call: &GenerateCall<'_>,
        (name, value): (&HeaderName, &HeaderValue),
    ) -> Result<Generation, AttemptError> {
        // A long prompt takes milliseconds to write, and its answer to read.
        let long = call.prompt.len() > LONG_PROMPT;
        let body = aside(long, || serde_json::to_vec(&GenerateBody(call)));
        let request = self
            .request(Method::POST, self.address.root("/inference/v1/generate"))
            .header(name, value)
            .header(CONTENT_TYPE, "application/json")
            .body(body.map_err(|error| AttemptError::Request(error.to_string()))?)
            .build()?;
        let response = self.transport.send(request).await?;
        let mut whole = Vec::new();
        self.read(response, |bytes| {
            whole.extend_from_slice(bytes);
            Ok(true)
        })
        .await?;
        aside(whole.len() > LONG_ANSWER, || read_generation(&whole))
    }

    /// Streams are read here and not by async-openai, whose streams run ahead of the reader without bound.
    async fn streamed(
        &self,
        call: &ChatCall<'_>,
        (name, value): (&HeaderName, &HeaderValue),
    ) -> Result<Answer, AttemptError> {
        let body = write_request(call, true).map_err(|error| AttemptError::Request(error.to_string()))?;
        let request = self
            .request(Method::POST, self.address.route("/chat/completions"))
            .header(name, value)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "text/event-stream")
            .body(body)
            .build()?;
        let response = self.transport.send(request).await?;
        let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let kind = kind.to_owned();
        if kind.starts_with("application/json") {
            // A server that does not stream answers as if it had not been asked to.
            let mut whole = Vec::new();
            self.read(response, |bytes| {
                whole.extend_from_slice(bytes);
                Ok(true)
            })
            .await?;
            let reply =
                parse(&whole).map_err(|error| AttemptError::unreadable("not the expected JSON", &error, &whole))?;
            return whole_answer(reply);
        }
        let mut reader = SseReader::new(LARGEST_EVENT);
        let mut answer = Answer::default();
        let (mut done, mut any) = (false, false);
        self.read(response, |mut bytes| {
            while let Some(event) =
                reader.next(&mut bytes).map_err(|error| AttemptError::malformed(error.to_string()))?
            {
                any = true;
                done = add_event(&mut answer, event)?;
                if done {
                    break;
                }
            }
            Ok(!done)
        })
        .await?;
        if !done && let Some(event) = reader.finish().map_err(|error| AttemptError::malformed(error.to_string()))? {
            any = true;
            done = add_event(&mut answer, event)?;
        }
        if !any {
            return Err(AttemptError::malformed(format!("no event of a stream came; the content type is `{kind}`")));
        }
        // Some servers leave out the end mark; a reason to end says as much.
        if !done && !answer.has_ended() {
            return Err(AttemptError::malformed("the stream ended before the answer did"));
        }
        Ok(answer)
    }

    /// Reads a body piece by piece until `take` has enough.
    async fn read(
        &self,
        mut response: Response,
        mut take: impl FnMut(&[u8]) -> Result<bool, AttemptError>,
    ) -> Result<(), AttemptError> {
        let idle = self.transport.idle();
        let mut read = 0;
        loop {
            let Some(chunk) = within(idle, response.chunk()).await else {
                return Err(AttemptError::idle(idle.unwrap_or_default()));
            };
            let Some(chunk) = chunk? else { return Ok(()) };
            read += chunk.len();
            if read > LARGEST_ANSWER {
                return Err(AttemptError::malformed(format!("it is larger than {LARGEST_ANSWER} bytes")));
            }
            if !take(&chunk)? {
                return Ok(());
            }
        }
    }

    /// Whether it answers health checks: `/health` at the server's root, else the list of models.
    pub(super) async fn is_alive(&self) -> bool {
        let get = |url: String| async {
            let request = self.request(Method::GET, url).timeout(HEALTH_CHECK).build()?;
            self.transport.client().execute(request).await.map(|response| response.status().as_u16())
        };
        match get(self.address.root("/health")).await {
            Ok(404 | 405 | 501) => get(self.address.route("/models")).await.is_ok_and(|status| status < 500),
            Ok(status) => status < 500,
            Err(_) => false,
        }
    }

    /// The answer of a GET below the base URL.
    pub(super) async fn get(&self, path: &str, limit: Duration) -> Result<Vec<u8>, AttemptError> {
        let request = self.request(Method::GET, self.address.route(path)).timeout(limit).build()?;
        let response = self.transport.send(request).await?;
        let mut body = Vec::new();
        self.read(response, |bytes| {
            body.extend_from_slice(bytes);
            Ok(true)
        })
        .await?;
        Ok(body)
    }

    fn request(&self, method: Method, url: String) -> reqwest::RequestBuilder {
        self.transport.client().request(method, url).headers(self.address.headers.clone())
    }
}

/// Adds an event to the answer; true for the end mark.
fn add_event(answer: &mut Answer, event: SseEvent<'_>) -> Result<bool, AttemptError> {
    let data = event.data.trim_ascii();
    if event.name == b"error" {
        return Err(AttemptError::in_band_text(data));
    }
    if data == b"[DONE]" {
        return Ok(true);
    }
    if data.is_empty() {
        return Ok(false);
    }
    let chunk: Chunk = parse(data)
        .map_err(|error| AttemptError::unreadable("an event of the stream is not what it should be", &error, data))?;
    match chunk.failure() {
        Some(failure) => Err(failure),
        None => answer.add_chunk(chunk).map(|()| false),
    }
}

/// Where an engine is and what every request to it carries. Not printable: it may hold a user and a key.
#[derive(Clone)]
struct Address {
    url: Url,
    /// Scheme, user, host, port and path, without a slash at the end.
    base: String,
    /// `base` without `/v1`.
    root: String,
    query: Option<String>,
    headers: HeaderMap,
    /// Holds what async-openai asks for and does not use: our headers carry the key.
    unused: OpenAIConfig,
}

impl Address {
    fn new(text: &str, headers: HeaderMap) -> Result<Self, PoolError> {
        let bad = |reason: String| PoolError::BadUrl { url: without_user(text), reason };
        let mut url = Url::parse(text.trim()).map_err(|error| bad(error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err(bad("it must begin with http:// or https:// and name a host".to_owned()));
        }
        url.set_fragment(None);
        let query = url.query().map(str::to_owned);
        url.set_query(None);
        let base = url.as_str().trim_end_matches('/');
        let base = base.strip_suffix("/chat/completions").unwrap_or(base).to_owned();
        let root = base.strip_suffix("/v1").unwrap_or(&base).to_owned();
        let unused = OpenAIConfig::default().with_api_base("").with_api_key("");
        Ok(Self { url, base, root, query, headers, unused })
    }

    fn shown(&self) -> Arc<str> {
        without_user(&self.base).into()
    }

    fn route(&self, path: &str) -> String {
        self.with_query(format!("{}{path}", self.base))
    }

    fn root(&self, path: &str) -> String {
        self.with_query(format!("{}{path}", self.root))
    }

    fn with_query(&self, url: String) -> String {
        match &self.query {
            Some(query) => format!("{url}?{query}"),
            None => url,
        }
    }
}

impl Config for Address {
    fn headers(&self) -> HeaderMap {
        self.headers.clone()
    }

    fn url(&self, path: &str) -> String {
        self.route(path)
    }

    fn query(&self) -> Vec<(&str, &str)> {
        Vec::new()
    }

    fn api_base(&self) -> &str {
        self.unused.api_base()
    }

    fn api_key(&self) -> &SecretString {
        self.unused.api_key()
    }
}

/// A URL without `user:password@` and without query.
fn without_user(url: &str) -> String {
    let (scheme, rest) = url.trim().split_once("://").unwrap_or(("", url.trim()));
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or_default();
    if scheme.is_empty() { format!("{host}{path}") } else { format!("{scheme}://{host}{path}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(url: &str) -> Address {
        Address::new(url, HeaderMap::new()).unwrap()
    }

    #[test]
    fn addresses_are_put_together() {
        let plain = address("http://127.0.0.1:8000/v1/");
        assert_eq!(plain.route("/chat/completions"), "http://127.0.0.1:8000/v1/chat/completions");
        assert_eq!(plain.root("/health"), "http://127.0.0.1:8000/health");
        assert_eq!(&*plain.shown(), "http://127.0.0.1:8000/v1");
        let full = address("https://me:secret@host/api/v1/chat/completions?key=secret&v=2#x");
        assert_eq!(full.route("/models"), "https://me:secret@host/api/v1/models?key=secret&v=2");
        assert_eq!(&*full.shown(), "https://host/api/v1");
        assert_eq!(address("http://host").root("/health"), "http://host/health");
    }

    #[test]
    fn bad_addresses_are_refused_without_their_secrets() {
        for url in [
            "",
            "127.0.0.1:8000",
            "ftp://u:secret@host/v1",
            "http://u:secret@",
            "unix:/x",
            "http://u:secret@h:x/v1?k=secret",
        ] {
            let error = Address::new(url, HeaderMap::new()).err().unwrap().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn an_engine_goes_after_failures_in_a_row_and_comes_back() {
        let connecting = GlobalConcurrencyLimitLayer::new(1);
        let engine =
            Engine::new("http://127.0.0.1:1/v1", HeaderMap::new(), Deadlines::default(), 1, connecting).unwrap();
        assert_eq!(engine.failed(3), Change::None);
        assert_eq!(engine.failed(3), Change::None);
        assert_eq!(engine.answered(true), Change::None);
        assert_eq!(engine.failed(2), Change::None);
        assert_eq!(engine.failed(2), Change::Out(1));
        assert_eq!(engine.failed(2), Change::None);
        assert!(engine.is_out());
        assert_eq!(engine.answered(false), Change::Back);
        assert_eq!((engine.failed(1), engine.is_out()), (Change::Out(2), true));
    }
}
