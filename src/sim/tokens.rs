//! `POST /inference/v1/generate`: token ids in, token ids out, as vLLM 0.32 answers with `--enable-scale-out`.
//!
//! The answer is that of the completion with the same prompt. An answer that ends its turn has the token that ends it.

use std::sync::Arc;

use serde::Deserialize;

use super::{
    completion::drawn,
    fault::FaultKind,
    generate::{Sampling, ToolReading},
    json::{comma, json_string, json_string_or_null, number, numbers, raw},
    model::{Model, unix_seconds},
    refusal::Refusal,
    reply::{Call, Prepared, id},
    request::{OneOrMany, Text, parse},
    write::{Scorer, Start, prompt_logprobs, token_logprobs, usage},
};

#[derive(Debug, Deserialize)]
struct Request<'a> {
    #[serde(borrow, default)]
    model: Option<Text<'a>>,
    token_ids: Vec<u32>,
    #[serde(borrow, default)]
    sampling_params: Params<'a>,
    #[serde(borrow, default)]
    cache_salt: Option<Text<'a>>,
    #[serde(borrow, default)]
    request_id: Option<Text<'a>>,
}

#[derive(Debug, Default, Deserialize)]
struct Params<'a> {
    #[serde(default)]
    max_tokens: Option<usize>,
    #[serde(borrow, default)]
    stop: Option<OneOrMany<'a>>,
    #[serde(default)]
    seed: Option<i64>,
    #[serde(default)]
    ignore_eos: Option<bool>,
    #[serde(default)]
    logprobs: Option<usize>,
    #[serde(default)]
    prompt_logprobs: Option<usize>,
}

/// Reads a request and draws its answer.
pub(super) async fn prepare(model: &Arc<Model>, body: &[u8], call: &Call<'_>) -> Result<Prepared, Refusal> {
    let request: Request<'_> = parse(body)?;
    let Some(last) = request.token_ids.last().copied() else {
        return Err(Refusal::bad_request("The prompt must not be empty.", None));
    };
    let (ids, params) = (request.token_ids, request.sampling_params);
    let window = model.settings.max_model_len;
    if ids.len() > window {
        // Another wording than the chat route has.
        let length = ids.len();
        let told = format!(
            "The decoder prompt (length {length}) is longer than the maximum model length of {window}. Make sure that \
             `max_model_len` is no smaller than the number of text tokens."
        );
        return Err(Refusal::bad_request(&told, None));
    }
    let sampling = Sampling {
        model: request.model.as_deref(),
        // Beyond the window means up to the window.
        max_tokens: params.max_tokens.filter(|tokens| *tokens <= window),
        choices: 1,
        stop: params.stop.as_ref(),
        seed: params.seed,
        ignore_end: params.ignore_eos.unwrap_or(false),
        cache_salt: request.cache_salt.as_deref(),
        alternatives: [params.logprobs, params.prompt_logprobs],
        tools: ToolReading::Off,
        fault: call.fault,
    };
    let generation = drawn(model, &ids, &sampling).await?;
    let choice = &generation.choices[0];

    let mut out = Vec::with_capacity(1024);
    raw(&mut out, r#"{"request_id":"#);
    json_string(&mut out, &id(model, call.request_id.or(request.request_id.as_deref()), "generate-tokens"));
    raw(&mut out, r#","created":"#);
    number(&mut out, unix_seconds());
    raw(&mut out, r#","usage":"#);
    usage(&mut out, &generation, true, "null");
    raw(&mut out, r#","output_mode":"tokens","choices":[{"index":0,"finish_reason":"#);
    json_string(&mut out, choice.finish);
    raw(&mut out, r#","stop_reason":"#);
    json_string_or_null(&mut out, choice.stop_reason.as_deref());
    raw(&mut out, r#","token_ids":"#);
    numbers(&mut out, choice.ids(0..choice.tokens()));
    raw(&mut out, r#","weight_versions":[{"version":"default","start":0,"end":"#);
    number(&mut out, choice.tokens() as u64);
    raw(&mut out, r#"}],"logprobs":"#);
    match params.logprobs {
        Some(_) => {
            let start = Start { tokens: ids.len(), last };
            // One is missing where the fault wants it so.
            let told = choice.tokens() - usize::from(call.fault == Some(FaultKind::WrongTokens));
            raw(&mut out, r#"{"content":["#);
            for (index, (id, logprob)) in token_logprobs(Scorer(model.seed), start, choice).take(told).enumerate() {
                comma(&mut out, index);
                raw(&mut out, &format!(r#"{{"token_id":{id},"logprob":-{logprob},"rank":1,"top_logprobs":[]}}"#));
            }
            raw(&mut out, "]}");
        }
        None => raw(&mut out, "null"),
    }
    raw(&mut out, r#","routed_experts":null}],"prompt_logprobs":"#);
    match params.prompt_logprobs {
        Some(alternatives) => prompt_logprobs(&mut out, Scorer(model.seed), &ids, alternatives),
        None => raw(&mut out, "null"),
    }
    raw(&mut out, "}");
    Ok(Prepared::Whole(out, generation))
}
