//! `POST /v1/chat/completions`

use std::sync::Arc;

use super::{
    answer::{Source, call},
    fault::FaultKind,
    generate::{Choice, Sampling, ToolReading, generate},
    hash::Hash,
    json::{comma, json_string, number, numbers, raw},
    model::{Model, unix_seconds},
    refusal::Refusal,
    reply::{Call, Prepared, id},
    request::{ChatRequest, OfferedTool, ToolChoice, check, conversation, parse},
    settings::Policy,
    stream::{Dialect, Streamed},
    template::render,
    token::Outline,
    write::{FINGERPRINT, Scorer, Start, chat_logprobs, ending, opening, prompt_logprobs, usage},
};

/// The template's last token before an answer: a newline.
const LAST_OF_PROMPT: u32 = b'\n' as u32;

/// Reads a chat request and draws its answer.
pub(super) async fn prepare(model: &Arc<Model>, body: &[u8], call: &Call<'_>) -> Result<Prepared, Refusal> {
    let request: ChatRequest<'_> = parse(body)?;
    check(&request.messages)?;
    let logprobs = request.logprobs.unwrap_or(false).then(|| request.top_logprobs.unwrap_or(0));
    if request.top_logprobs.is_some_and(|count| count > 0) && logprobs.is_none() {
        return Err(Refusal::bad_request(
            "when using `top_logprobs`, `logprobs` must be set to true.",
            Some("top_logprobs"),
        ));
    }
    let tools = Tools::read(&request)?;
    let shown_tools = request.tools.filter(|_| tools.reading != ToolReading::Off);
    let mut outline = Outline::new(model.seed);
    render(&mut outline, &request.messages, shown_tools, true);
    let sampling = Sampling {
        model: request.model.as_deref(),
        max_tokens: request.max_completion_tokens.or(request.max_tokens),
        choices: request.n.unwrap_or(1),
        stop: request.stop.as_ref(),
        seed: request.seed,
        ignore_end: request.ignore_eos.unwrap_or(false),
        cache_salt: request.cache_salt.as_deref(),
        alternatives: [logprobs, request.prompt_logprobs],
        tools: tools.reading,
        fault: call.fault,
    };
    let source = Source::of(
        model,
        || {
            request
                .messages
                .iter()
                .rev()
                .find(|message| message.is_user())
                .map_or_else(String::new, |message| message.text().into_owned())
        },
        || conversation(&request.messages),
    )
    .await;
    let after_tool = request.messages.last().is_some_and(|message| &*message.role == "tool");
    let may_call = model.settings.policy == Policy::Random && !after_tool;
    let generation = generate(model, outline, &sampling, |draw| {
        tools.call(draw, may_call).unwrap_or_else(|| source.text(model.settings.error_rate, draw))
    })?;

    let id = id(model, call.request_id.or(request.request_id.as_deref()), "chatcmpl");
    let return_ids = request.return_token_ids.unwrap_or(false);
    let prompt_ids = || {
        let mut ids = Vec::with_capacity(generation.prompt_tokens);
        render(&mut ids, &request.messages, shown_tools, true);
        ids
    };
    let listed = return_ids.then(&prompt_ids);
    let start = Start { tokens: generation.prompt_tokens, last: LAST_OF_PROMPT };
    let created = unix_seconds();
    if request.stream.unwrap_or(false) {
        let include_usage = request.stream_options.and_then(|options| options.include_usage).unwrap_or(false);
        return Ok(Prepared::Streamed(Streamed {
            model: Arc::clone(model),
            dialect: Dialect::Chat,
            id,
            created,
            generation,
            start,
            logprobs,
            prompt_ids: listed,
            include_usage,
            fault: call.fault,
        }));
    }

    let mut out = Vec::with_capacity(1024);
    opening(&mut out, &id, "chat.completion", created, &model.settings.model);
    for (index, choice) in generation.choices.iter().enumerate() {
        comma(&mut out, index);
        raw(&mut out, r#"{"index":"#);
        number(&mut out, index as u64);
        raw(&mut out, r#","message":{"role":"assistant","content":"#);
        json_string(&mut out, choice.content());
        raw(&mut out, r#","refusal":null,"annotations":null,"audio":null,"function_call":null"#);
        tool_calls(&mut out, choice);
        raw(&mut out, r#","reasoning":null},"logprobs":"#);
        match logprobs {
            Some(alternatives) => {
                // One is missing where the fault wants it so.
                let told = choice.tokens().saturating_sub(usize::from(call.fault == Some(FaultKind::WrongTokens)));
                chat_logprobs(&mut out, Scorer(model.seed), start, choice, 0..told, alternatives);
            }
            None => raw(&mut out, "null"),
        }
        ending(&mut out, choice, return_ids);
        raw(&mut out, r#","routed_experts":null}"#);
    }
    raw(&mut out, r#"],"service_tier":null,"system_fingerprint":"#);
    json_string(&mut out, FINGERPRINT);
    raw(&mut out, r#","usage":"#);
    usage(&mut out, &generation, true, "0");
    raw(&mut out, r#","prompt_logprobs":"#);
    match request.prompt_logprobs {
        Some(alternatives) => {
            let ids = prompt_ids();
            prompt_logprobs(&mut out, Scorer(model.seed), &ids, alternatives);
        }
        None => raw(&mut out, "null"),
    }
    raw(&mut out, r#","prompt_token_ids":"#);
    match &listed {
        Some(ids) => numbers(&mut out, ids.iter().copied()),
        None => raw(&mut out, "null"),
    }
    raw(&mut out, r#","prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"#);
    Ok(Prepared::Whole(out, generation))
}

fn tool_calls(out: &mut Vec<u8>, choice: &Choice) {
    if choice.calls.is_empty() {
        return;
    }
    raw(out, r#","tool_calls":["#);
    for (index, call) in choice.calls.iter().enumerate() {
        comma(out, index);
        raw(out, r#"{"id":"#);
        json_string(out, &call.id);
        raw(out, r#","type":"function","function":{"name":"#);
        json_string(out, &call.name);
        raw(out, r#","arguments":"#);
        json_string(out, choice.slice(call.arguments.clone()));
        raw(out, "}}");
    }
    raw(out, "]");
}

/// The tools of a request.
struct Tools {
    offered: Vec<OfferedTool>,
    reading: ToolReading,
    forced: bool,
}

impl Tools {
    fn read(request: &ChatRequest<'_>) -> Result<Self, Refusal> {
        let offered = match (&request.tools, &request.tool_choice) {
            (None, _) | (_, Some(ToolChoice::None)) => Vec::new(),
            (Some(tools), _) => parse::<Option<Vec<OfferedTool>>>(tools.get().as_bytes())?.unwrap_or_default(),
        };
        let none = Self { offered: Vec::new(), reading: ToolReading::Off, forced: false };
        match &request.tool_choice {
            None | Some(ToolChoice::Auto) if offered.is_empty() => Ok(none),
            None | Some(ToolChoice::Auto) => Ok(Self { offered, reading: ToolReading::On, forced: false }),
            Some(ToolChoice::None) => Ok(none),
            Some(ToolChoice::Required | ToolChoice::Named(_)) if offered.is_empty() => {
                Err(Refusal::bad_request("When using `tool_choice`, `tools` must be set.", Some("tool_choice")))
            }
            Some(ToolChoice::Required) => Ok(Self { offered, reading: ToolReading::On, forced: true }),
            Some(ToolChoice::Named(name)) => match offered.into_iter().find(|tool| tool.function.name == **name) {
                Some(tool) => Ok(Self { offered: vec![tool], reading: ToolReading::Named, forced: true }),
                None => Err(Refusal::bad_request(
                    "The tool specified in `tool_choice` does not match any of the specified `tools`",
                    Some("tool_choice"),
                )),
            },
        }
    }

    /// The text of a call, where one is forced, or where one may be made and the draw says so.
    fn call(&self, draw: Hash, may_call: bool) -> Option<String> {
        let wanted = self.forced || (may_call && draw.number(11).below(2) == 1);
        if !wanted {
            return None;
        }
        let tool = self.offered.get(draw.number(12).below(self.offered.len()))?;
        Some(call(tool, draw.number(13)))
    }
}
