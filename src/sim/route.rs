//! From a request to what answers it: routes, key, faults; and the routes that do not run the model.

use std::sync::Arc;

use super::{
    OWNED_BY,
    body::{self, Answer, ReadFault},
    chat, completion,
    fault::{FaultKind, Route},
    json::{json_string, number},
    metrics::Counters,
    model::Model,
    refusal::Refusal,
    reply::{Call, Reply},
    tokenize, tokens,
};
use bytes::Bytes;
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER},
};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; version=1.0.0; charset=utf-8");

/// Ends a connection without an answer.
#[derive(Debug, thiserror::Error)]
#[error("injected reset")]
pub(super) struct Reset;

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
        Some(
            FaultKind::Malformed | FaultKind::Cut | FaultKind::WrongUsage | FaultKind::WrongTokens | FaultKind::Empty,
        )
        | None => {}
    }
    let request_id = head.headers.get("x-request-id").and_then(|value| value.to_str().ok()).map(str::to_owned);
    // Headers are a kilobyte, and the answer may be a while.
    drop(head);
    let call = Call { request_id: request_id.as_deref(), fault };
    let reply = match route {
        Route::Chat => generated(&model, body, &call, Route::Chat).await,
        Route::Completions => generated(&model, body, &call, Route::Completions).await,
        Route::Generate => generated(&model, body, &call, Route::Generate).await,
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

async fn generated(model: &Arc<Model>, body: Bytes, call: &Call<'_>, route: Route) -> Result<Reply, Refusal> {
    let prepared = match route {
        Route::Completions => completion::prepare(model, &body, call).await?,
        Route::Generate => tokens::prepare(model, &body, call).await?,
        _ => chat::prepare(model, &body, call).await?,
    };
    // Thousands of requests may be waiting: none holds its body meanwhile.
    drop(body);
    Ok(prepared.reply(model).await)
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
