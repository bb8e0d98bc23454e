//! The simulated endpoint over real sockets: shapes as a real vLLM gives them, and behaviour that tests can rely on.
#![allow(clippy::disallowed_methods, reason = "tests are clients of their own")]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, future::BoxFuture, future::join_all, stream::FuturesUnordered};
use reqwest::{Client, Response, StatusCode};
use rollhouse::{
    rubric::corrupted,
    sim::{ApiKey, FaultKind, FaultRule, Oracle, Policy, Route, Settings, SimError, Simulator, Tokenizer},
    trace::Message,
};
use serde_json::{Value, json};

/// Answers with the last user message reversed.
struct Reverser;

impl Oracle for Reverser {
    fn solve<'a>(&'a self, conversation: &'a [Message]) -> BoxFuture<'a, Option<String>> {
        let text = conversation.iter().rev().find_map(|message| match message {
            Message::User(_) => Some(message.text()),
            _ => None,
        });
        let text = text.filter(|text| !text.starts_with("unknown"));
        Box::pin(std::future::ready(text.map(|text| text.chars().rev().collect())))
    }

    fn spoiled(&self, answer: &str, below: &dyn Fn(usize) -> usize) -> Option<String> {
        corrupted(answer, below)
    }
}

async fn start(settings: Settings) -> Simulator {
    Simulator::start(settings, Some(Arc::new(Reverser))).await.expect("the simulator starts")
}

fn fixed(text: &str) -> Settings {
    Settings { policy: Policy::Fixed(text.to_owned()), ..Settings::default() }
}

/// One client a test: each test has a thread, and its own runtime on it.
fn client() -> Client {
    thread_local! {
        static CLIENT: Client = {
            // Fails only because another test was faster.
            let _ = rustls::crypto::ring::default_provider().install_default();
            Client::builder().no_proxy().build().expect("a client")
        };
    }
    CLIENT.with(Client::clone)
}

fn ask(text: &str) -> Value {
    json!({"model": "sim", "messages": [{"role": "user", "content": text}]})
}

fn with(mut body: Value, more: Value) -> Value {
    let (Some(fields), Value::Object(more)) = (body.as_object_mut(), more) else { panic!("two objects") };
    fields.extend(more);
    body
}

async fn post(simulator: &Simulator, path: &str, body: &Value) -> Result<Response, reqwest::Error> {
    client().post(format!("{}{path}", simulator.base_url())).json(body).send().await
}

async fn chat(simulator: &Simulator, body: &Value) -> Value {
    let response = post(simulator, "/chat/completions", body).await.expect("an answer");
    assert_eq!(response.status(), StatusCode::OK);
    response.json().await.expect("a JSON answer")
}

async fn refused(simulator: &Simulator, path: &str, body: &Value) -> (StatusCode, Value) {
    let response = post(simulator, path, body).await.expect("an answer");
    (response.status(), response.json().await.expect("a JSON refusal"))
}

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().expect("text")
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

fn vector(name: &str) -> String {
    let path = format!("{}/tests/vectors/real_endpoint/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All paths of keys in a value; elements of lists share theirs. Maps keyed by tokens are cut off.
fn key_paths(value: &Value) -> BTreeSet<String> {
    fn walk(value: &Value, path: &str, into: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                for (key, value) in fields {
                    let path = format!("{path}.{key}");
                    let by_token = path.ends_with("].prompt_logprobs") || path == ".prompt_logprobs";
                    if !by_token && !path.ends_with("logprobs.top_logprobs") {
                        walk(value, &path, into);
                    }
                    into.insert(path);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| walk(item, &format!("{path}[]"), into)),
            _ => {}
        }
    }
    let mut paths = BTreeSet::new();
    walk(value, "", &mut paths);
    paths
}

fn events(text: &str) -> Vec<Value> {
    let mut events: Vec<&str> = text
        .split("\n\n")
        .filter(|event| !event.trim().is_empty())
        .map(|event| &event.trim()["data: ".len()..])
        .collect();
    assert_eq!(events.pop(), Some("[DONE]"));
    events.into_iter().map(|event| serde_json::from_str(event).expect("an event of JSON")).collect()
}

async fn stream(simulator: &Simulator, path: &str, body: &Value) -> Vec<Value> {
    let response = post(simulator, path, &with(body.clone(), json!({"stream": true}))).await.expect("an answer");
    assert_eq!(response.headers()["content-type"], "text/event-stream; charset=utf-8");
    events(&response.text().await.expect("a whole stream"))
}

fn weather() -> Value {
    json!([{"type": "function", "function": {"name": "get_weather", "strict": true, "parameters": {"type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"], "additionalProperties": false}}}])
}

#[tokio::test]
async fn answers_have_the_keys_of_a_real_vllm() {
    let simulator = start(fixed("The capital of France is Paris.")).await;
    let question = ask("What is the capital of France?");
    let tokens = json!({"return_token_ids": true, "logprobs": true, "top_logprobs": 2});
    let tools = json!({"tools": weather(), "tool_choice": "required", "return_token_ids": true, "logprobs": true});
    let cases = [
        ("vllm_plain.json", "/chat/completions", question.clone()),
        ("vllm_logprobs_token_ids.json", "/chat/completions", with(question.clone(), tokens)),
        (
            "vllm_length_n2_seed.json",
            "/chat/completions",
            with(
                question.clone(),
                json!({"n": 2, "max_tokens": 6, "seed": 7,
            "logprobs": true, "return_token_ids": true}),
            ),
        ),
        (
            "vllm_stop_string.json",
            "/chat/completions",
            with(question.clone(), json!({"stop": ["4"], "return_token_ids": true})),
        ),
        (
            "vllm_prompt_logprobs.json",
            "/chat/completions",
            with(
                question.clone(),
                json!({"prompt_logprobs": 1,
            "return_token_ids": true}),
            ),
        ),
        ("vllm_tool_call.json", "/chat/completions", with(question.clone(), tools)),
        (
            "vllm_completions_token_prompt.json",
            "/completions",
            json!({"model": "sim", "prompt": [72, 105], "max_tokens": 4,
            "logprobs": 1, "return_token_ids": true}),
        ),
        ("vllm_error_unknown_model.json", "/chat/completions", with(question.clone(), json!({"model": "nope"}))),
        ("vllm_error_max_tokens.json", "/chat/completions", with(question, json!({"max_tokens": 50_000}))),
    ];
    for (name, path, body) in cases {
        let real: Value = serde_json::from_str(&vector(name)).expect("a vector of JSON");
        let ours: Value = post(&simulator, path, &body).await.expect("an answer").json().await.expect("JSON");
        let (real, mut ours) = (key_paths(&real), key_paths(&ours));
        // Only where a choice has alternatives do they have keys.
        ours.retain(|path| real.contains(path) || !path.contains("top_logprobs[]"));
        assert_eq!(ours, real, "{name}");
    }
    simulator.shutdown().await;
}

#[tokio::test]
async fn streams_have_the_keys_of_a_real_vllm() {
    let simulator = start(fixed("The capital of France is Paris.")).await;
    let check = |real: &str, ours: &[Value]| {
        let all = |events: &[Value]| events.iter().map(key_paths).collect::<BTreeSet<_>>();
        assert_eq!(all(ours), all(&events(real)));
    };
    let body = with(
        ask("What?"),
        json!({"stream_options": {"include_usage": true}, "logprobs": true, "return_token_ids": true}),
    );
    check(&vector("vllm_stream.sse"), &stream(&simulator, "/chat/completions", &body).await);
    let body = with(ask("What?"), json!({"tools": weather(), "tool_choice": "required"}));
    check(&vector("vllm_tool_call_stream.sse"), &stream(&simulator, "/chat/completions", &body).await);
    simulator.shutdown().await;
}

#[tokio::test]
async fn the_other_routes_have_the_shapes_of_a_real_vllm() {
    let simulator = start(fixed("yes")).await;
    let root = simulator.base_url().trim_end_matches("/v1").to_owned();
    let get = async |path: &str| client().get(format!("{root}{path}")).send().await.expect("an answer");
    let models: Value = get("/v1/models").await.json().await.expect("JSON");
    assert_eq!(key_paths(&models), key_paths(&serde_json::from_str(&vector("vllm_models.json")).expect("JSON")));
    assert_eq!(models["data"][0]["id"], "sim");
    assert_eq!(models["data"][0]["max_model_len"], 32_768);
    assert_eq!(models["data"][0]["owned_by"], rollhouse::sim::OWNED_BY);
    assert_eq!(get("/health").await.text().await.expect("a body"), "");
    let version: Value = get("/version").await.json().await.expect("JSON");
    assert!(version["version"].as_str().expect("a version").starts_with("rollhouse-sim-"));
    assert_eq!(get("/nothing").await.status(), StatusCode::NOT_FOUND);
    assert_eq!(get("/v1/chat/completions").await.status(), StatusCode::METHOD_NOT_ALLOWED);

    chat(&simulator, &ask("Hi")).await;
    let page = get("/metrics").await.text().await.expect("a page");
    // Each of our samples, less the edges of histograms, has the name and label names of one of theirs.
    let forms = |page: &str| -> BTreeMap<String, BTreeSet<String>> {
        let mut forms: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for line in page.lines().filter(|line| line.starts_with("vllm:") && !line.contains("_bucket{")) {
            let (name, rest) = line.split_once('{').expect("labels");
            let (labels, _) = rest.rsplit_once('}').expect("labels");
            let names = labels.split("\",").filter_map(|label| label.split('=').next()).map(str::to_owned);
            forms.entry(name.to_owned()).or_default().extend(names);
        }
        forms
    };
    let real = forms(&vector("vllm_metrics_excerpt.txt"));
    for (name, labels) in forms(&page) {
        let theirs = real.get(&name).unwrap_or_else(|| panic!("vLLM has no {name}"));
        assert!(labels.is_subset(theirs), "{name}: {labels:?} and {theirs:?}");
    }
    assert!(
        page.contains("vllm:request_success_total{engine=\"0\",finished_reason=\"stop\",model_name=\"sim\"} 1.0\n"),
        "{page}"
    );
    assert!(page.contains("vllm:generation_tokens_total{engine=\"0\",model_name=\"sim\"} 4.0\n"), "{page}");
    simulator.shutdown().await;
}

#[tokio::test]
async fn tokens_text_and_usage_agree() {
    let simulator = start(fixed("Grüße, \"world\" 🌍\n")).await;
    let first = with(ask("Hallo 世界"), json!({"return_token_ids": true, "logprobs": true, "top_logprobs": 3}));
    let answer = chat(&simulator, &first).await;
    let choice = &answer["choices"][0];
    let (prompt, completion) = (ids(&answer["prompt_token_ids"]), ids(&choice["token_ids"]));
    assert_eq!(answer["usage"]["prompt_tokens"], prompt.len());
    assert_eq!(answer["usage"]["completion_tokens"], completion.len());
    assert_eq!(answer["usage"]["total_tokens"], prompt.len() + completion.len());
    let spelt = String::from_utf8(Tokenizer::decode(&prompt).expect("known ids")).expect("UTF-8");
    assert_eq!(spelt, "<|im_start|>user\nHallo 世界<|im_end|>\n<|im_start|>assistant\n");
    let spelt = String::from_utf8(Tokenizer::decode(&completion).expect("known ids")).expect("UTF-8");
    assert_eq!(spelt.strip_suffix("<|im_end|>"), Some(content(&answer)));

    let logprobs = choice["logprobs"]["content"].as_array().expect("entries");
    assert_eq!(logprobs.len(), completion.len());
    for entry in logprobs {
        let alternatives = entry["top_logprobs"].as_array().expect("alternatives");
        assert_eq!(alternatives.len(), 3);
        assert_eq!((&alternatives[0]["token"], &alternatives[0]["logprob"]), (&entry["token"], &entry["logprob"]));
        let chances: Vec<f64> =
            alternatives.iter().map(|one| one["logprob"].as_f64().expect("a number").exp()).collect();
        assert!(chances.is_sorted_by(|left, right| left >= right), "{chances:?}");
        assert!(chances.iter().sum::<f64>() <= 1.0 + 1e-5, "{chances:?}");
        let tokens: BTreeSet<&str> = alternatives.iter().map(|one| one["token"].as_str().expect("text")).collect();
        assert_eq!(tokens.len(), 3, "{tokens:?}");
    }

    // The next turn begins with this turn's prompt and completion, and that much of it is cached.
    let next = json!({"model": "sim", "return_token_ids": true, "messages": [{"role": "user", "content": "Hallo 世界"},
        {"role": "assistant", "content": content(&answer)}, {"role": "user", "content": "more"}]});
    let answer = chat(&simulator, &next).await;
    let longer = ids(&answer["prompt_token_ids"]);
    assert_eq!(longer[..prompt.len()], prompt);
    assert_eq!(longer[prompt.len()..][..completion.len()], completion);
    let shared = prompt.len() + completion.len() + 1;
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], shared / 16 * 16);

    // Scored as a prompt, the same tokens have the same log-probabilities.
    let scored = chat(&simulator, &with(next, json!({"prompt_logprobs": 1}))).await;
    for (place, (id, entry)) in completion.iter().zip(logprobs).enumerate() {
        let scored = &scored["prompt_logprobs"][prompt.len() + place][id.to_string()];
        assert_eq!(scored["logprob"], entry["logprob"]);
    }
    simulator.shutdown().await;
}

#[tokio::test]
async fn tokens_can_be_asked_for_and_given_as_prompt() {
    let simulator = start(Settings { policy: Policy::Oracle, ..Settings::default() }).await;
    let root = simulator.base_url().trim_end_matches("/v1").to_owned();
    let call = async |path: &str, body: Value| -> Value {
        client().post(format!("{root}{path}")).json(&body).send().await.expect("an answer").json().await.expect("JSON")
    };
    let tokens = call("/tokenize", json!({"model": "sim", "messages": [{"role": "user", "content": "abc"}]})).await;
    assert_eq!(tokens["count"], ids(&tokens["tokens"]).len());
    let text = call("/detokenize", json!({"model": "sim", "tokens": tokens["tokens"]})).await;
    assert_eq!(text["prompt"], "<|im_start|>user\nabc<|im_end|>\n<|im_start|>assistant\n");
    let same = chat(&simulator, &with(ask("abc"), json!({"return_token_ids": true}))).await;
    assert_eq!(same["prompt_token_ids"], tokens["tokens"]);

    let completion = call(
        "/v1/completions",
        json!({"model": "sim", "prompt": tokens["tokens"], "return_token_ids": true, "max_tokens": 9}),
    )
    .await;
    assert_eq!(completion["choices"][0]["text"], "cba");
    assert_eq!(ids(&completion["choices"][0]["token_ids"]), [99, 98, 97, 257]);
    let completion = call("/v1/completions", json!({"prompt": "a long enough user text"})).await;
    assert_eq!(completion["choices"][0]["text"], "txet resu hguone");
    assert_eq!(completion["choices"][0]["finish_reason"], "length");
    assert_eq!(completion["usage"]["completion_tokens"], 16);
    simulator.shutdown().await;
}

#[tokio::test]
async fn a_stream_joined_is_the_plain_answer() {
    let simulator = start(Settings { policy: Policy::Random, ..Settings::default() }).await;
    for index in 0..12 {
        // A seed makes equal requests equal.
        let body = with(
            ask("go"),
            json!({"seed": index, "n": 2, "return_token_ids": true, "logprobs": true, "tools": weather(),
            "stream_options": {"include_usage": true}}),
        );
        let plain = chat(&simulator, &body).await;
        let pieces = stream(&simulator, "/chat/completions", &body).await;
        assert_eq!(pieces.last().expect("events")["usage"]["total_tokens"], plain["usage"]["total_tokens"]);
        for choice in plain["choices"].as_array().expect("choices") {
            let own = || {
                pieces
                    .iter()
                    .flat_map(|piece| piece["choices"].as_array().expect("choices"))
                    .filter(|piece| piece["index"] == choice["index"])
            };
            let text: String = own().filter_map(|piece| piece["delta"]["content"].as_str()).collect();
            assert_eq!(text, choice["message"]["content"]);
            let calls = own().filter_map(|piece| piece["delta"]["tool_calls"][0]["function"].as_object());
            let arguments: String = calls.filter_map(|call| call.get("arguments")?.as_str()).collect();
            let expected = &choice["message"]["tool_calls"][0]["function"]["arguments"];
            assert_eq!(arguments, expected.as_str().unwrap_or_default());
            let tokens: Vec<u32> = own()
                .filter_map(|piece| piece["token_ids"].as_array())
                .flatten()
                .map(|id| id.as_u64().expect("an id") as u32)
                .collect();
            assert_eq!(tokens, ids(&choice["token_ids"]));
            let logprobs: Vec<&Value> =
                own().filter_map(|piece| piece["logprobs"]["content"].as_array()).flatten().collect();
            assert_eq!(logprobs, choice["logprobs"]["content"].as_array().expect("entries").iter().collect::<Vec<_>>());
            let ends: Vec<&Value> = own().map(|piece| &piece["finish_reason"]).filter(|end| !end.is_null()).collect();
            assert_eq!(ends, [&choice["finish_reason"]]);
        }
    }
    simulator.shutdown().await;
}

#[tokio::test]
async fn a_timed_stream_is_the_same_as_an_immediate_one() {
    let immediate = start(fixed("one two three four")).await;
    let timed = start(Settings {
        time_to_first_token: Duration::from_millis(2),
        inter_token_latency: Duration::from_millis(1),
        ..fixed("one two three four")
    })
    .await;
    let body = with(ask("go"), json!({"stream_options": {"include_usage": true}, "return_token_ids": true}));
    let began = Instant::now();
    let mut slow = stream(&timed, "/chat/completions", &body).await;
    assert!(began.elapsed() >= Duration::from_millis(2 + 18), "{:?}", began.elapsed());
    let mut fast = stream(&immediate, "/chat/completions", &body).await;
    slow.iter_mut().chain(&mut fast).for_each(|event| event["created"] = json!(0));
    assert_eq!(slow, fast);
    assert_eq!(timed.stats().running, 0);
    let text: Vec<Value> = stream(&timed, "/completions", &json!({"prompt": "go", "max_tokens": 7})).await;
    let text: String = text.iter().map(|event| event["choices"][0]["text"].as_str().expect("text")).collect();
    assert_eq!(text, "one two");
    immediate.shutdown().await;
    timed.shutdown().await;
}

#[tokio::test]
async fn stops_and_lengths_cut_as_in_vllm() {
    let simulator = start(Settings { max_model_len: 100, ..fixed("1, 2, 3, 4, 5 é") }).await;
    let check = async |more: Value, text: &str, tokens: usize, finish: &str, stop: Value| {
        let answer = chat(&simulator, &with(with(ask("Count"), json!({"return_token_ids": true})), more)).await;
        let choice = &answer["choices"][0];
        assert_eq!((content(&answer), ids(&choice["token_ids"]).len()), (text, tokens));
        assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!(finish), &stop));
        assert_eq!(answer["usage"]["completion_tokens"], tokens);
    };
    check(json!({}), "1, 2, 3, 4, 5 é", 17, "stop", Value::Null).await;
    check(json!({"stop": "4"}), "1, 2, 3, ", 10, "stop", json!("4")).await;
    check(json!({"stop": [", 3", "4"]}), "1, 2", 7, "stop", json!(", 3")).await;
    check(json!({"max_tokens": 4}), "1, 2", 4, "length", Value::Null).await;
    check(json!({"max_completion_tokens": 16}), "1, 2, 3, 4, 5 é", 16, "length", Value::Null).await;
    check(json!({"max_tokens": 15}), "1, 2, 3, 4, 5 ", 15, "length", Value::Null).await;
    check(json!({"max_tokens": 9, "stop": "4"}), "1, 2, 3, ", 9, "length", Value::Null).await;

    // The window cuts without an error; a prompt over it, or a wish over it, is one.
    let long = chat(&simulator, &with(ask(&"x".repeat(70)), json!({"max_tokens": 90}))).await;
    assert_eq!(long["usage"]["total_tokens"], 100);
    assert_eq!(long["choices"][0]["finish_reason"], "length");
    let real: Value = serde_json::from_str(&vector("vllm_error_context_overflow.json")).expect("JSON");
    let (status, refusal) = refused(&simulator, "/chat/completions", &ask(&"x".repeat(100))).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let ours = refusal.to_string();
    assert_eq!(ours, real.to_string().replace("2048", "100").replace("2049", "101"));
    let real: Value = serde_json::from_str(&vector("vllm_error_max_tokens.json")).expect("JSON");
    let (status, refusal) =
        refused(&simulator, "/chat/completions", &with(ask("x"), json!({"max_tokens": 5000}))).await;
    assert_eq!((status, refusal.to_string()), (StatusCode::BAD_REQUEST, real.to_string().replace("2048", "100")));
    let real: Value = serde_json::from_str(&vector("vllm_error_unknown_model.json")).expect("JSON");
    let (status, refusal) = refused(&simulator, "/chat/completions", &with(ask("x"), json!({"model": "nope"}))).await;
    assert_eq!(
        (status, refusal.to_string()),
        (StatusCode::NOT_FOUND, real.to_string().replace("SmolLM2-135M-Instruct", "sim"))
    );
    let ignoring = chat(&simulator, &with(ask("x"), json!({"ignore_eos": true, "max_tokens": 40}))).await;
    assert_eq!(ignoring["usage"]["completion_tokens"], 40);
    simulator.shutdown().await;
}

#[tokio::test]
async fn bad_requests_are_refused() {
    let simulator = start(fixed("yes")).await;
    let check = async |body: Value, expected: &str| {
        let (status, refusal) = refused(&simulator, "/chat/completions", &body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{refusal}");
        assert_eq!(refusal["error"]["code"], 400);
        assert!(refusal["error"]["message"].as_str().expect("text").contains(expected), "{refusal}");
    };
    check(json!([]), "validation error").await;
    check(json!({"messages": []}), "must not be empty").await;
    check(json!({"messages": [{"role": "wizard", "content": "hi"}]}), "Unknown role `wizard`").await;
    check(with(ask("x"), json!({"max_tokens": "many"})), "validation error").await;
    check(with(ask("x"), json!({"max_tokens": 0})), "at least 1").await;
    check(with(ask("x"), json!({"n": 0})), "n must be").await;
    check(with(ask("x"), json!({"top_logprobs": 2})), "`logprobs` must be set").await;
    check(with(ask("x"), json!({"logprobs": true, "top_logprobs": 21})), "max allowed: 20").await;
    check(with(ask("x"), json!({"tool_choice": "required"})), "`tools` must be set").await;
    check(
        with(ask("x"), json!({"tools": weather(), "tool_choice": {"type": "function", "function": {"name": "fly"}}})),
        "does not match",
    )
    .await;
    let null_fields = json!({"tools": null, "tool_choice": null, "stop": null, "seed": null, "n": null, "stream": null,
        "max_tokens": null, "some_field_of_others": {"deep": [1]}});
    assert_eq!(content(&chat(&simulator, &with(ask("x"), null_fields)).await), "yes");
    simulator.shutdown().await;
}

#[tokio::test]
async fn tools_are_called_when_forced_and_rendered_back() {
    let simulator = start(fixed("just text")).await;
    let body = with(ask("Weather?"), json!({"tools": weather(), "return_token_ids": true}));
    let free = chat(&simulator, &body).await;
    assert_eq!((content(&free), &free["choices"][0]["finish_reason"]), ("just text", &json!("stop")));
    let required = chat(&simulator, &with(body.clone(), json!({"tool_choice": "required"}))).await;
    let named_choice = json!({"tool_choice": {"type": "function", "function": {"name": "get_weather"}}});
    let named = chat(&simulator, &with(body.clone(), named_choice)).await;
    for (answer, finish) in [(&required, "tool_calls"), (&named, "stop")] {
        let choice = &answer["choices"][0];
        assert_eq!((&choice["finish_reason"], content(answer)), (&json!(finish), ""));
        let call = &choice["message"]["tool_calls"][0];
        assert_eq!(call["function"]["name"], "get_weather");
        let arguments: Value =
            serde_json::from_str(call["function"]["arguments"].as_str().expect("text")).expect("JSON arguments");
        assert!(arguments["city"].is_string() && arguments.as_object().expect("fields").len() == 1);
    }
    // The conversation with the call in it begins with the tokens of the call.
    let message = required["choices"][0]["message"].clone();
    let result = json!({"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "rain"});
    let next = with(body.clone(), json!({"messages": [body["messages"][0], message, result]}));
    let answer = chat(&simulator, &next).await;
    let before = [ids(&required["prompt_token_ids"]), ids(&required["choices"][0]["token_ids"])].concat();
    assert!(ids(&answer["prompt_token_ids"]).starts_with(&before));
    simulator.shutdown().await;
}

#[tokio::test]
async fn the_oracle_errs_at_its_rate_and_the_same_each_time() {
    let run = async |seed: u64, together: bool| -> Vec<Vec<String>> {
        let settings = Settings { policy: Policy::Oracle, error_rate: 0.4, seed, ..Settings::default() };
        let simulator = start(settings).await;
        let client = client();
        let mut tasks = Vec::new();
        for task in 0..20 {
            let url = format!("{}/chat/completions", simulator.base_url());
            let body = ask(&format!("task number {task}"));
            let one = || async {
                let answer: Value =
                    client.post(&url).json(&body).send().await.expect("an answer").json().await.expect("JSON");
                content(&answer).to_owned()
            };
            let mut answers = if together {
                join_all((0..8).map(|_| one())).await
            } else {
                let mut answers = Vec::new();
                for _ in 0..8 {
                    answers.push(one().await);
                }
                answers
            };
            if together {
                answers.sort();
            }
            tasks.push(answers);
        }
        simulator.shutdown().await;
        tasks
    };
    let first = run(1, false).await;
    assert_eq!(first, run(1, false).await, "one by one: the same answers");
    let mut sorted = first.clone();
    sorted.iter_mut().for_each(|answers| answers.sort());
    assert_eq!(sorted, run(1, true).await, "at once: the same answers in any order");
    assert_ne!(first, run(2, false).await);
    let wrong = first.iter().enumerate().flat_map(|(task, answers)| {
        let right: String = format!("task number {task}").chars().rev().collect();
        answers.iter().filter(move |answer| **answer != right)
    });
    let wrong = wrong.count();
    assert!((44..=84).contains(&wrong), "{wrong} of 160");
    assert!(first.iter().any(|answers| answers.iter().collect::<BTreeSet<_>>().len() > 1), "rollouts differ");
}

#[tokio::test]
async fn policies_say_what_they_promise() {
    let echo = start(Settings::default()).await;
    let body = json!({"messages": [{"role": "user", "content": "first"}, {"role": "assistant", "content": "…"},
        {"role": "user", "content": [{"type": "text", "text": "se\"cond"}, {"type": "image_url", "image_url": {"url": "data:x"}}]}]});
    let answer = chat(&echo, &body).await;
    assert_eq!(content(&answer), "se\"cond");
    assert!(answer["usage"]["prompt_tokens"].as_u64().expect("a count") > 64, "images are tokens");
    echo.shutdown().await;
    let oracle = start(Settings { policy: Policy::Oracle, ..Settings::default() }).await;
    let answer = chat(&oracle, &ask("unknown thing")).await;
    assert!(content(&answer).contains("simulated model and do not know"), "{answer}");
    oracle.shutdown().await;
    let random = start(Settings { policy: Policy::Random, ..Settings::default() }).await;
    let (one, other) = (chat(&random, &ask("x")).await, chat(&random, &ask("x")).await);
    assert_ne!(content(&one), content(&other));
    let seeded = with(ask("x"), json!({"seed": 5}));
    assert_eq!(content(&chat(&random, &seeded).await), content(&chat(&random, &seeded).await));
    random.shutdown().await;
}

#[tokio::test]
async fn each_fault_does_what_its_name_says() {
    let settings = Settings {
        retry_after: Duration::from_secs(3),
        slow_headers: Duration::from_millis(40),
        ..fixed("fine answer")
    };
    let simulator = start(settings).await;
    let body = ask("x");
    let inject = |kind| simulator.set_faults(vec![FaultRule::new(kind, 1.0)]).expect("a share");
    let send = || post(&simulator, "/chat/completions", &body);

    for (kind, status) in
        [(FaultKind::TooManyRequests, 429), (FaultKind::InternalError, 500), (FaultKind::Overloaded, 503)]
    {
        inject(kind);
        let response = send().await.expect("an answer");
        assert_eq!(response.status().as_u16(), status);
        let retry_after = response.headers().get("retry-after").map(|value| value.to_str().expect("text").to_owned());
        assert_eq!(retry_after.as_deref(), (status == 429).then_some("3"));
        let refusal: Value = response.json().await.expect("JSON");
        assert_eq!(refusal["error"]["code"], status);
    }
    inject(FaultKind::Overflow);
    let (status, refusal) = refused(&simulator, "/chat/completions", &body).await;
    assert_eq!((status.as_u16(), &refusal["error"]["param"]), (400, &json!("input_tokens")));

    inject(FaultKind::Reset);
    let error = send().await.expect_err("no answer");
    assert!(format!("{error:?}").contains("reset"), "{error:?}");

    inject(FaultKind::Hang);
    let hung = tokio::time::timeout(Duration::from_millis(80), send()).await;
    assert!(hung.is_err());

    inject(FaultKind::Malformed);
    let response = send().await.expect("an answer");
    assert_eq!(response.status(), StatusCode::OK);
    let text = response.text().await.expect("a whole body");
    assert!(text.starts_with("{\"id\"") && serde_json::from_str::<Value>(&text).is_err());
    let streamed = with(body.clone(), json!({"stream": true}));
    let text = post(&simulator, "/chat/completions", &streamed).await.expect("an answer").text().await.expect("a body");
    assert!(text.contains("data: {\"id\":\"chatcmpl-\n\n") && text.ends_with("[DONE]\n\n"), "{text}");

    inject(FaultKind::Cut);
    let response = send().await.expect("headers");
    assert_eq!(response.status(), StatusCode::OK);
    assert!(response.bytes().await.is_err());
    let response = post(&simulator, "/chat/completions", &streamed).await.expect("headers");
    assert!(response.bytes().await.is_err());

    inject(FaultKind::SlowHeaders);
    let began = Instant::now();
    assert_eq!(content(&chat(&simulator, &body).await), "fine answer");
    assert!(began.elapsed() >= Duration::from_millis(40));

    inject(FaultKind::WrongUsage);
    let answer = chat(&simulator, &body).await;
    let usage = &answer["usage"];
    let count = |key: &str| usage[key].as_u64().expect("a count");
    assert_ne!(count("prompt_tokens") + count("completion_tokens"), count("total_tokens"));

    inject(FaultKind::Empty);
    let answer = chat(&simulator, &body).await;
    assert_eq!((content(&answer), &answer["usage"]["completion_tokens"]), ("", &json!(1)));

    inject(FaultKind::WrongTokens);
    let asked = json!({ "token_ids": [72, 105], "sampling_params": { "logprobs": 1 } });
    let url = simulator.base_url().replace("/v1", "/inference/v1/generate");
    let answer: Value = client().post(url).json(&asked).send().await.expect("an answer").json().await.expect("JSON");
    let choice = &answer["choices"][0];
    let (ids, entries) = (choice["token_ids"].as_array(), choice["logprobs"]["content"].as_array());
    assert_eq!(ids.map(Vec::len), entries.map(|entries| entries.len() + 1));

    simulator.set_faults(Vec::new()).expect("no faults");
    assert_eq!(content(&chat(&simulator, &body).await), "fine answer");
    let outage = FaultRule { kind: FaultKind::Overloaded, share: 1.0, route: Some(Route::Models) };
    simulator.set_faults(vec![outage]).expect("a share");
    assert_eq!(content(&chat(&simulator, &body).await), "fine answer");
    let models = client().get(format!("{}/models", simulator.base_url())).send().await.expect("an answer");
    assert_eq!(models.status(), StatusCode::SERVICE_UNAVAILABLE);

    let counted: Vec<FaultKind> = simulator.stats().faults.into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(counted, FaultKind::ALL);
    assert!(simulator.set_faults(vec![FaultRule::new(FaultKind::Cut, 0.7); 2]).is_err());
    simulator.shutdown().await;
}

#[tokio::test]
async fn a_timed_stream_can_be_cut() {
    let settings = Settings {
        inter_token_latency: Duration::from_millis(1),
        faults: vec![FaultRule::new(FaultKind::Cut, 1.0)],
        ..fixed("one two three four")
    };
    let simulator = start(settings).await;
    let streamed = with(ask("x"), json!({"stream": true}));
    let mut chunks = post(&simulator, "/chat/completions", &streamed).await.expect("headers").bytes_stream();
    let mut seen = String::new();
    let broken = loop {
        match chunks.next().await {
            Some(Ok(bytes)) => seen.push_str(&String::from_utf8_lossy(&bytes)),
            Some(Err(_)) => break true,
            None => break false,
        }
    };
    assert!(broken && seen.contains("one") && !seen.contains("four"), "{seen}");
    simulator.shutdown().await;
}

#[tokio::test]
async fn faults_are_reproducible_and_change_no_answer() {
    let run = async |faults: Vec<FaultRule>| -> (Vec<u16>, Vec<String>) {
        let settings = Settings {
            policy: Policy::Oracle,
            error_rate: 0.5,
            faults,
            retry_after: Duration::ZERO,
            ..Settings::default()
        };
        let simulator = start(settings).await;
        let (mut statuses, mut answers) = (Vec::new(), Vec::new());
        for task in 0..30 {
            for _ in 0..4 {
                loop {
                    let response =
                        post(&simulator, "/chat/completions", &ask(&format!("task {task}"))).await.expect("an answer");
                    let status = response.status().as_u16();
                    let answer = response.json::<Value>().await;
                    statuses.push(if answer.is_ok() { status } else { 0 });
                    if let (200, Ok(answer)) = (status, answer) {
                        answers.push(content(&answer).to_owned());
                        break;
                    }
                }
            }
        }
        simulator.shutdown().await;
        (statuses, answers)
    };
    let rules = vec![
        FaultRule::new(FaultKind::TooManyRequests, 0.1),
        FaultRule::new(FaultKind::Malformed, 0.1),
        FaultRule::new(FaultKind::Cut, 0.1),
    ];
    let (statuses, answers) = run(rules.clone()).await;
    assert_eq!((statuses.clone(), answers.clone()), run(rules).await);
    assert_eq!(answers, run(Vec::new()).await.1);
    let faulty = statuses.iter().filter(|status| **status != 200).count();
    assert!((30..80).contains(&faulty), "{faulty} of {}", statuses.len());
}

#[tokio::test]
async fn a_full_cache_makes_requests_wait_and_preempts() {
    let settings = Settings {
        inter_token_latency: Duration::from_micros(500),
        kv_tokens: Some(600),
        max_model_len: 300,
        ..fixed(&"a".repeat(120))
    };
    let simulator = Arc::new(start(settings).await);
    let requests: FuturesUnordered<_> = (0..12)
        .map(|index| {
            let simulator = Arc::clone(&simulator);
            // 100 prompt tokens each: five or six are admitted, none of their answers fits beside the others.
            tokio::spawn(async move { chat(&simulator, &ask(&format!("{index:064}"))).await })
        })
        .collect();
    let mut seen_waiting = 0;
    let mut seen_use: f64 = 0.0;
    let done = requests.map(|answer| answer.expect("no panic")).collect::<Vec<_>>();
    tokio::pin!(done);
    let root = simulator.base_url().trim_end_matches("/v1").to_owned();
    let answers = loop {
        tokio::select! {
            answers = &mut done => break answers,
            page = async { client().get(format!("{root}/metrics")).send().await.expect("a page").text().await.expect("text") } => {
                let value = |name: &str| -> f64 {
                    let line = page.lines().find(|line| line.starts_with(&format!("vllm:{name}{{"))).expect("a sample");
                    line.rsplit_once(' ').expect("a value").1.parse().expect("a number")
                };
                seen_waiting = seen_waiting.max(value("num_requests_waiting") as usize);
                seen_use = seen_use.max(value("kv_cache_usage_perc"));
            }
        }
    };
    assert!(answers.iter().all(|answer| answer["usage"]["completion_tokens"] == 121));
    let stats = simulator.stats();
    assert!(stats.preemptions > 0 && seen_waiting > 0, "{stats:?}");
    assert!((0.5..=1.0).contains(&seen_use), "{seen_use}");
    assert_eq!((stats.running, stats.waiting, stats.completed), (0, 0, 12));
    Arc::into_inner(simulator).expect("the last owner").shutdown().await;
}

#[tokio::test]
async fn a_full_queue_is_refused_in_vllms_words() {
    let settings = Settings {
        time_to_first_token: Duration::from_secs(60),
        max_running: Some(1),
        max_queue: Some(1),
        ..fixed("late")
    };
    let simulator = start(settings).await;
    let body = ask("x");
    let mut accepted = Vec::new();
    for expected in 1..=2 {
        let client = client();
        let url = format!("{}/chat/completions", simulator.base_url());
        let request = client.post(url).json(&body).send();
        accepted.push(tokio::spawn(request));
        while simulator.stats().running + simulator.stats().waiting < expected {
            tokio::task::yield_now().await;
        }
    }
    let (status, refusal) = refused(&simulator, "/chat/completions", &body).await;
    let real: Value = serde_json::from_str(&vector("vllm_error_overloaded.json")).expect("JSON");
    assert_eq!((status, refusal), (StatusCode::SERVICE_UNAVAILABLE, real));
    assert_eq!(simulator.stats().rejected, 1);

    // A client that goes away frees its place, and the next one gets it.
    accepted.remove(0).abort();
    while simulator.stats().waiting > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(simulator.stats().running, 1);
    accepted.remove(0).abort();
    while simulator.stats().running > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(simulator.stats().completed, 0);
    simulator.shutdown().await;
}

#[tokio::test]
async fn keys_are_checked_where_vllm_checks_them() {
    let simulator = start(Settings { api_key: Some(ApiKey::new("right")), ..fixed("yes") }).await;
    let url = format!("{}/chat/completions", simulator.base_url());
    let send = async |key: Option<&str>| {
        let mut request = client().post(&url).json(&ask("x"));
        if let Some(key) = key {
            request = request.bearer_auth(key);
        }
        request.send().await.expect("an answer")
    };
    assert_eq!(send(Some("right")).await.status(), StatusCode::OK);
    for wrong in [None, Some("wrong"), Some("")] {
        let response = send(wrong).await;
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(response.json::<Value>().await.expect("JSON"), json!({"error": "Unauthorized"}));
    }
    let health = simulator.base_url().replace("/v1", "/health");
    assert_eq!(client().get(health).send().await.expect("an answer").status(), StatusCode::OK);
    simulator.shutdown().await;
}

#[tokio::test]
async fn request_ids_are_taken_over() {
    let simulator = start(fixed("yes")).await;
    let url = format!("{}/chat/completions", simulator.base_url());
    let named = client().post(&url).header("X-Request-Id", "trace-77").json(&ask("x")).send().await.expect("an answer");
    assert_eq!(named.json::<Value>().await.expect("JSON")["id"], "chatcmpl-trace-77");
    assert_eq!(chat(&simulator, &with(ask("x"), json!({"request_id": "ab5"}))).await["id"], "chatcmpl-ab5");
    let (one, other) = (chat(&simulator, &ask("x")).await, chat(&simulator, &ask("x")).await);
    assert_ne!(one["id"], other["id"]);
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_requests_are_served_at_once() {
    let settings = Settings { time_to_first_token: Duration::from_secs(2), ..Settings::default() };
    let simulator = start(settings).await;
    let client = client();
    let url = format!("{}/chat/completions", simulator.base_url());
    let mut requests: FuturesUnordered<_> = (0..2_000)
        .map(|index| {
            let request = client.post(&url).json(&ask(&format!("number {index}"))).send();
            async move {
                let answer: Value = request.await.expect("an answer").json().await.expect("JSON");
                assert_eq!(content(&answer), format!("number {index}"));
            }
        })
        .collect();
    let mut most = 0;
    while requests.next().await.is_some() {
        most = most.max(simulator.stats().running);
    }
    assert_eq!(simulator.stats().completed, 2_000);
    assert_eq!(simulator.stats().running, 0);
    assert!(most > 500, "{most} at once");
    simulator.shutdown().await;
}

#[tokio::test]
async fn bad_settings_and_taken_ports_are_told() {
    let refused = Simulator::start(Settings { error_rate: 2.0, ..Settings::default() }, None).await;
    assert!(matches!(refused, Err(SimError::Settings(_))));
    let simulator = start(Settings::default()).await;
    let taken = Settings { port: simulator.address().port(), ..Settings::default() };
    let error = Simulator::start(taken, None).await.expect_err("the port is taken").to_string();
    assert!(error.contains(&simulator.address().to_string()) && error.contains("choose another port"), "{error}");
    let address = simulator.address();
    simulator.shutdown().await;
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn shutting_down_ends_what_hangs() {
    let settings = Settings { faults: vec![FaultRule::new(FaultKind::Hang, 1.0)], ..Settings::default() };
    let simulator = start(settings).await;
    let request =
        tokio::spawn(client().post(format!("{}/chat/completions", simulator.base_url())).json(&ask("x")).send());
    while simulator.stats().faults.is_empty() {
        tokio::task::yield_now().await;
    }
    tokio::time::timeout(Duration::from_secs(5), simulator.shutdown()).await.expect("it ends");
    assert!(request.await.expect("no panic").is_err());
}
