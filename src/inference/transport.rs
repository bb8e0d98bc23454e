//! One HTTP client per engine: deadlines, connection limits, typed failures, no retries.
//!
//! The only request that is sent twice without the caller's knowledge is one that met a kept-alive connection which
//! the server had closed before a byte was written (hyper's rule).

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use async_openai::middleware::HttpRequestFactory;
use futures::{StreamExt, stream};
use reqwest::{Request, Response, Url};
use tokio::time::timeout;
use tower::limit::GlobalConcurrencyLimitLayer;

use super::{
    Deadlines,
    error_body::ErrorBody,
    failure::{AttemptError, BodyFault, BodyFaultKind},
    retry,
    wire::BODY_READ,
};
use crate::telemetry::raise_descriptor_limit;

/// New connections at the same time, so that a burst of sessions does not overflow a listen queue (4,096 on Linux,
/// 1,024 in many servers).
pub(super) const CONNECTING_AT_ONCE: usize = 512;
/// Descriptors kept for everything that is not a connection to an engine.
const RESERVED_DESCRIPTORS: u64 = 256;
/// Python servers (uvicorn) and llama.cpp close idle connections after 5 s; ours go before, not during a request.
const IDLE_CONNECTION: Duration = Duration::from_secs(4);
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// The largest answer taken, in bytes: a million tokens with ids and logprobs.
pub(super) const LARGEST_ANSWER: usize = 256 << 20;
/// The largest error body read, in bytes.
const LARGEST_ERROR: usize = 64 << 10;
/// How long the rest of an error body may take.
const ERROR_BODY: Duration = Duration::from_secs(10);

/// How many connections may be open: what is wanted, within the descriptor limit.
pub(super) fn connection_limit(wanted: Option<usize>) -> usize {
    let descriptors = raise_descriptor_limit().unwrap_or(u64::MAX);
    let possible = usize::try_from(descriptors.saturating_sub(RESERVED_DESCRIPTORS).max(64)).unwrap_or(usize::MAX);
    // A semaphore holds at most this many permits.
    let possible = possible.min(tokio::sync::Semaphore::MAX_PERMITS);
    match wanted {
        Some(wanted) if wanted > possible => {
            tracing::warn!(
                wanted,
                possible,
                "fewer connections than wanted: raise the limit of open files (ulimit -n)"
            );
            possible
        }
        Some(wanted) => wanted.max(1),
        None => possible,
    }
}

/// An HTTP client with its deadlines; cheap to clone.
#[derive(Clone)]
pub(super) struct Transport {
    client: reqwest::Client,
    deadlines: Deadlines,
}

impl Transport {
    /// A client for one engine. `connecting` is shared by the engines of a pool.
    pub(super) fn new(
        url: &Url,
        deadlines: Deadlines,
        connections: usize,
        connecting: GlobalConcurrencyLimitLayer,
    ) -> Result<Self, reqwest::Error> {
        // Fails only when a provider is installed already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        #[expect(clippy::disallowed_methods, reason = "this is the room that opens HTTP connections")]
        let mut builder = reqwest::Client::builder()
            .connect_timeout(deadlines.connect)
            .pool_max_idle_per_host(connections)
            .pool_idle_timeout(IDLE_CONNECTION)
            .tcp_nodelay(true)
            .tcp_keepalive(KEEP_ALIVE)
            .connector_layer(connecting)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .user_agent(concat!("rollhouse/", env!("CARGO_PKG_VERSION")));
        if url.scheme() == "http" {
            builder = builder.http1_only();
        }
        if is_loopback(url) {
            builder = builder.no_proxy();
        }
        Ok(Self { client: builder.build()?, deadlines })
    }

    /// The bare client, for building requests.
    pub(super) fn client(&self) -> &reqwest::Client {
        &self.client
    }

    /// How long may pass between two reads.
    pub(super) fn idle(&self) -> Option<Duration> {
        self.deadlines.idle
    }

    /// Sends a request and waits for the head of a successful answer.
    pub(super) async fn send(&self, request: Request) -> Result<Response, AttemptError> {
        let sent = within(self.deadlines.first_byte, self.client.execute(request)).await;
        let Some(sent) = sent else {
            let limit = self.deadlines.first_byte.unwrap_or_default();
            return Err(AttemptError::Deadline { what: "the endpoint did not begin to answer", limit });
        };
        let response = sent?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let retry_after = retry::retry_after(response.headers(), SystemTime::now());
        Err(AttemptError::status(status, retry_after, ErrorBody::parse(&error_body(response).await)))
    }
}

/// Under async-openai: sends what it builds, with the deadlines on head and body.
impl tower::Service<HttpRequestFactory> for Transport {
    type Response = Response;
    type Error = AttemptError;
    type Future = Pin<Box<dyn Future<Output = Result<Response, AttemptError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), AttemptError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, factory: HttpRequestFactory) -> Self::Future {
        let transport = self.clone();
        Box::pin(async move {
            let request = factory.build().await?;
            let response = transport.send(request).await?;
            Ok(guard_body(response, transport.deadlines.idle))
        })
    }
}

/// The same answer, its body cut with a fault of ours when it stalls or grows too large.
fn guard_body(mut response: Response, idle: Option<Duration>) -> Response {
    let status = response.status();
    let headers = std::mem::take(response.headers_mut());
    let body = response.bytes_stream();
    let guarded = stream::unfold(Some((body, 0usize)), move |state| async move {
        let (mut body, read) = state?;
        let fault = |kind| Some((Err(BoxError::from(BodyFault(kind))), None));
        match within(idle, body.next()).await {
            None => fault(BodyFaultKind::Idle(idle.unwrap_or_default())),
            Some(None) => None,
            Some(Some(Err(error))) => Some((Err(error.into()), None)),
            Some(Some(Ok(bytes))) => {
                let read = read + bytes.len();
                let _ = BODY_READ.try_with(|total| total.set(read));
                if read > LARGEST_ANSWER {
                    return fault(BodyFaultKind::TooLarge(LARGEST_ANSWER));
                }
                Some((Ok(bytes), Some((body, read))))
            }
        }
    });
    let mut guarded = http::Response::new(reqwest::Body::wrap_stream(guarded));
    *guarded.status_mut() = status;
    *guarded.headers_mut() = headers;
    guarded.into()
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

async fn error_body(mut response: Response) -> Vec<u8> {
    let mut body = Vec::new();
    let read = async {
        while let Ok(Some(chunk)) = response.chunk().await {
            let room = LARGEST_ERROR - body.len();
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if body.len() == LARGEST_ERROR {
                break;
            }
        }
    };
    let _ = timeout(ERROR_BODY, read).await;
    body
}

/// The future's output, or `None` when the limit runs out first.
pub(super) async fn within<F: Future>(limit: Option<Duration>, future: F) -> Option<F::Output> {
    match limit {
        Some(limit) => timeout(limit, future).await.ok(),
        None => Some(future.await),
    }
}

fn is_loopback(url: &Url) -> bool {
    match url.host_str() {
        Some("localhost") => true,
        Some(host) => {
            host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
        }
        None => false,
    }
}
