//! The block of an endpoint.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;

use super::{ClientConfig, TokenRoute, TrainClient};
use crate::config::{FamilyConfig, RendererConfig, Section, ThinkingRetention};

/// Environment variable that holds the endpoint's key unless `client.api_key_var` names another one.
pub const DEFAULT_API_KEY_VAR: &str = "OPENAI_API_KEY";

/// As verifiers has it.
const CONNECT: Duration = Duration::from_secs(30);
/// An answer that is not streamed has its first byte when the whole generation is done, so this stands for the longest
/// generation: long enough for a reasoning model on a busy engine, short enough that a dead connection ends.
const FIRST_BYTE: Duration = Duration::from_secs(1800);
/// Between two pieces of a streamed answer. An engine that preempts a sequence may pause for minutes.
const IDLE: Duration = Duration::from_secs(300);
/// One call over all its attempts and waits.
const CALL: Duration = Duration::from_secs(7200);
/// Attempts after the first one.
const MAX_RETRIES: u32 = 4;

/// Headers whose values are secrets as a rule.
const SECRET_HEADERS: &[&str] = &[
    "authorization",
    "proxy-authorization",
    "cookie",
    "x-api-key",
    "api-key",
    "apikey",
    "x-auth-token",
    "x-goog-api-key",
    "x-access-token",
];

/// Reads the block; `None` without a base URL.
pub(super) fn read_client(block: &mut Section<'_>) -> Option<ClientConfig> {
    let kinds = [("eval", false), ("train", true)];
    let trains = block.doc("eval speaks in text; train in exact tokens").choose("type", &kinds, false);
    let train = trains.then(|| read_train(block));
    let client = read_endpoint(block);
    if trains && client.is_none() {
        block.fault("base_url", "missing; a training client needs an endpoint, for example that of `rollhouse sim`");
    }
    client.map(|client| ClientConfig { train, ..client })
}

/// Reads the keys that only a training client has.
pub fn read_train(block: &mut Section<'_>) -> TrainClient {
    let renderer_model =
        block.doc("Folder or hub model of the tokenizer; the run's model when absent").get("renderer_model_name");
    block.doc("As in verifiers; one renderer serves any number of rollouts here").get_in("multiplex", 1_u32.., 256);
    let routes = [("generate", TokenRoute::Generate), ("chat", TokenRoute::Chat)];
    let route = block
        .doc("generate sends tokens; chat asks a vLLM that lacks that route for the tokens of its chat")
        .choose("route", &routes, TokenRoute::Generate);
    TrainClient { renderer: read_renderer(&mut block.child("renderer")), renderer_model, route }
}

fn read_renderer(block: &mut Section<'_>) -> RendererConfig {
    let names: Vec<(&str, usize)> = FamilyConfig::NAMES.iter().enumerate().map(|(at, name)| (*name, at)).collect();
    let named = block.doc("How conversations become tokens; auto goes by the model's id").choose("name", &names, 0);
    let mut family = FamilyConfig::named(FamilyConfig::NAMES[named]).unwrap_or_default();
    let retentions =
        [("", None), ("tool_cycle", Some(ThinkingRetention::ToolCycle)), ("all", Some(ThinkingRetention::All))];
    let asked: Option<String> = block
        .doc("tool_cycle or all: how long earlier reasoning stays; the template's way when absent")
        .get("thinking_retention");
    let retention =
        asked.as_deref().and_then(|asked| retentions.iter().find(|(name, _)| *name == asked && !name.is_empty()));
    if asked.is_some() && retention.is_none() {
        block.fault("thinking_retention", "unknown choice; expected tool_cycle or all");
    }
    let thinking = "Whether the model reasons";
    match &mut family {
        FamilyConfig::Auto | FamilyConfig::Qwen25 | FamilyConfig::SmolLm2 | FamilyConfig::DeepSeekV3 => {}
        FamilyConfig::Default { tool_parser, reasoning_parser, template } => {
            *tool_parser = block.doc("How tool calls are read: qwen3").get("tool_parser");
            *reasoning_parser = block.doc("How reasoning is read: think").get("reasoning_parser");
            for key in ["preserve_all_thinking", "preserve_thinking_between_tool_calls"] {
                if block.has(key) {
                    block.fault(key, "gone; name the family in `name` and write `thinking_retention`");
                }
            }
            *template = block.rest();
        }
        FamilyConfig::Qwen3 { enable_thinking }
        | FamilyConfig::Glm45 { enable_thinking }
        | FamilyConfig::KimiK2 { enable_thinking } => {
            *enable_thinking = block.doc(thinking).get_or("enable_thinking", true)
        }
        FamilyConfig::Qwen35 { enable_thinking, add_vision_id } => {
            *enable_thinking = block.doc(thinking).get("enable_thinking");
            *add_vision_id = block.doc("Numbers images").get_or("add_vision_id", false);
            // What verifiers sends names every field, this one too.
            block.doc("As in verifiers; has no effect without images").get_in("image_cache_max", 0_u32.., 256);
        }
        FamilyConfig::Llama3 { date_string, tools_in_user_message } => {
            *date_string = block.doc("The date in the system prompt").get_or("date_string", date_string.clone());
            *tools_in_user_message =
                block.doc("Tools stand in the first user message").get_or("tools_in_user_message", true);
        }
        FamilyConfig::GptOss {
            reasoning_effort,
            conversation_start_date,
            use_system_prompt,
            knowledge_cutoff,
            model_identity,
            auto_drop_analysis,
        } => {
            let efforts = FamilyConfig::EFFORTS.map(|effort| (effort, effort));
            *reasoning_effort =
                block.doc("How long the model reasons").choose("reasoning_effort", &efforts, "medium").to_owned();
            *conversation_start_date = block.doc("The date shown; today when absent").get("conversation_start_date");
            *use_system_prompt = block.doc("Write a system message").get_or("use_system_prompt", true);
            *knowledge_cutoff = block.doc("In place of the usual date").get("knowledge_cutoff");
            *model_identity = block.doc("In place of the usual sentence").get("model_identity");
            *auto_drop_analysis = block.doc("Drop stale reasoning").get_or("auto_drop_analysis", true);
            let implied = if *auto_drop_analysis { ThinkingRetention::ToolCycle } else { ThinkingRetention::All };
            let conflicts = retention.and_then(|(_, asked)| *asked).is_some_and(|asked| asked != implied);
            if block.has("auto_drop_analysis") && conflicts {
                block.fault("thinking_retention", "contradicts `auto_drop_analysis`; give one of the two");
            }
        }
        FamilyConfig::MiniMaxM2 { model_identity } => {
            *model_identity = block.doc("The system prompt where there is none").get("model_identity");
        }
    }
    RendererConfig { thinking_retention: retention.and_then(|(_, retention)| *retention), family }
}

/// Reads the keys of an endpoint from a block that may have others beside; `None` without a base URL.
pub fn read_endpoint(block: &mut Section<'_>) -> Option<ClientConfig> {
    let base_urls = read_urls(block);
    let key_doc = "Environment variable that holds the endpoint's key";
    let api_key_var = block.doc(key_doc).get_or("api_key_var", DEFAULT_API_KEY_VAR.to_owned());
    if !is_variable(&api_key_var) {
        // The value is not shown: people paste the key itself here.
        block
            .fault("api_key_var", "not the name of an environment variable; export the key and name its variable here");
        block.resolve("api_key_var", Value::Null);
    }
    let headers = block.doc("Headers sent with every request").strings("headers");
    check_headers(block, "headers", &headers);
    for (name, value) in &headers {
        if SECRET_HEADERS.contains(&name.to_ascii_lowercase().as_str()) {
            let hint = "put the value into an environment variable and name it in `client.headers_from_env`";
            block.fault_below("headers", name, "a secret does not belong into a configuration", hint);
        } else if !value.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte)) {
            block.fault_below("headers", name, "not a header value", "use printable ASCII in one line");
        }
    }
    let headers_from_env = block
        .doc("Headers whose value is in the named environment variable; unset ones are left out")
        .strings("headers_from_env");
    check_headers(block, "headers_from_env", &headers_from_env);
    for (name, variable) in &headers_from_env {
        if !is_variable(variable) {
            block.fault_below("headers_from_env", name, "not the name of an environment variable", "name a variable");
        }
    }
    let max_retries =
        block.doc("Attempts of a model call after the first one").get_in("max_retries", 0..=100, MAX_RETRIES);
    let stream = block.doc("Stream the answers").get_or("stream", false);
    let mut timeout = block.child("timeout");
    let connect = timeout.doc("Seconds for a connection").duration("connect", Some(CONNECT));
    let read = timeout
        .doc("Seconds without a byte, the default of first_byte and idle; as in verifiers")
        .duration("read", None);
    let first_byte = timeout
        .doc("Seconds to the first byte; an answer that is not streamed has none before it is complete")
        .duration("first_byte", Some(read.unwrap_or(FIRST_BYTE)));
    let idle = timeout.doc("Seconds between two pieces of an answer").duration("idle", Some(read.unwrap_or(IDLE)));
    let call_budget =
        timeout.doc("Seconds for one model call with all its attempts and waits").duration("call", Some(CALL));
    for key in ["write", "pool"] {
        if timeout.doc("As in verifiers; has no effect").duration(key, None).is_some() {
            timeout.warn(key, "has no effect: first_byte and call cover it");
        }
    }
    if let (Some(call), Some(first_byte)) = (call_budget, first_byte)
        && call < first_byte
    {
        // The budget cuts first; say so, whoever set only one of the two may not expect it.
        timeout.warn("first_byte", format!("is cut short by `{}` = {} s", timeout.dotted("call"), call.as_secs_f64()));
    }
    if base_urls.is_empty() {
        return None;
    }
    Some(ClientConfig {
        base_urls,
        api_key_var,
        headers,
        headers_from_env,
        connect: connect.unwrap_or(CONNECT),
        first_byte,
        idle,
        max_retries,
        call_budget,
        stream,
        train: None,
    })
}

/// `base_url`, one or a list, or `base_urls`, which the resolved configuration shows as `base_url`.
fn read_urls(block: &mut Section<'_>) -> Vec<String> {
    let doc =
        "Base URL of the endpoint, or a list of them that serve the same model; without one the simulator answers";
    let single = block.doc(doc).value("base_url", Value::Null, "a URL or a list of URLs");
    let several = block.doc("The same as a list").get::<Vec<String>>("base_urls");
    block.record.hide(&block.dotted("base_urls"));
    let (key, urls) = match (single, several) {
        (Value::Null, None) => return Vec::new(),
        (Value::Null, Some(urls)) => ("base_urls", urls.into_iter().map(Value::String).collect()),
        (_, Some(_)) => {
            block.fault("base_urls", "given together with `base_url`; give one of them");
            return Vec::new();
        }
        (Value::Array(urls), None) => ("base_url", urls),
        (url, None) => ("base_url", vec![url]),
    };
    if urls.is_empty() {
        block.fault(key, "an empty list; expected a URL or a list of URLs");
    }
    let mut plain: Vec<String> = Vec::new();
    for url in &urls {
        match url.as_str().map(check_url) {
            Some(Ok(url)) if plain.contains(&url) => block.fault(key, format!("the URL `{url}` is given twice")),
            Some(Ok(url)) => plain.push(url),
            Some(Err(problem)) => block.fault(key, problem),
            None => block.fault(key, "wrong type; expected a URL or a list of URLs"),
        }
    }
    let shown = if let [url] = plain.as_slice() { Value::from(url.as_str()) } else { Value::from(plain.clone()) };
    let origin = block.origin(key);
    block.resolve("base_url", shown);
    let path = block.dotted("base_url");
    if let Some(known) = block.record.keys.get_mut(&path) {
        known.origin = origin;
    }
    plain
}

/// The URL without a slash at its end. Its text is shown in no message: it may hold a password.
fn check_url(url: &str) -> Result<String, &'static str> {
    let url = url.trim_end_matches('/');
    let Some(rest) = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")) else {
        return Err("not a URL; expected one such as http://localhost:8000/v1");
    };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if host.contains('@') {
        return Err("a URL with a user name or password; put the key into the variable named by `client.api_key_var`");
    }
    if host.is_empty() || host.starts_with(':') || rest.contains(|letter: char| letter.is_whitespace()) {
        return Err("not a URL; expected one such as http://localhost:8000/v1");
    }
    if rest.contains(['?', '#']) {
        return Err("a base URL has no query; expected one such as http://localhost:8000/v1");
    }
    if let Some(route) = ["/chat/completions", "/completions"].iter().find(|route| rest.ends_with(**route)) {
        return Err(match *route {
            "/chat/completions" => "a base URL ends before `/chat/completions`; leave that out",
            _ => "a base URL ends before `/completions`; leave that out",
        });
    }
    Ok(url.to_owned())
}

fn check_headers(block: &mut Section<'_>, key: &str, headers: &BTreeMap<String, String>) {
    for name in headers.keys() {
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(valid) {
            block.fault_below(key, name, "not a header name", "use letters, digits and dashes");
        }
    }
}

/// Whether this may be the name of an environment variable.
pub(super) fn is_variable(name: &str) -> bool {
    !name.starts_with(|letter: char| letter.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
