//! Any model, by its own chat template. What a template does is not known, so that nothing is extended and no token is told
//! from another.

use std::{borrow::Cow, sync::Arc};

use serde_json::{Map, Value, json};

use crate::{
    render::{
        Extension, Parsed, Previous, RenderError, Rendered, Renderer, Tokenizer, Unbridged, calls,
        python::strip,
        rendered::Place,
        template::ChatTemplate,
        writer::{Piece, Writer},
    },
    trace::{Content, Message, Tool, ToolCallKind},
};

const NAME: &str = "default";
/// Breaks the texts of control tokens apart while the template works; Unicode keeps these characters free for such use.
const MARKS: std::ops::RangeInclusive<char> = '\u{fdd0}'..='\u{fdef}';

/// The renderer of a model's own template.
#[derive(Debug)]
pub(super) struct Own {
    tokenizer: Arc<Tokenizer>,
    template: ChatTemplate,
    variables: Map<String, Value>,
    /// The tokens around a call, where calls are read.
    calls: Option<[u32; 2]>,
    reads_reasoning: bool,
    stops: Vec<u32>,
}

impl Own {
    pub(super) fn new(
        tokenizer: Arc<Tokenizer>,
        template: ChatTemplate,
        variables: &Map<String, Value>,
        (tool_parser, reasoning_parser): (Option<&str>, Option<&str>),
        end: Option<&str>,
    ) -> Result<Self, RenderError> {
        let unknown = |key: &str, value: &str, known: &str| {
            Err(RenderError::Unresolved(format!(
                "`client.renderer.{key}` = `{value}` is not known here; expected {known}"
            )))
        };
        let calls = match tool_parser {
            None => None,
            Some("qwen3") => Some([tokenizer.control("<tool_call>", NAME)?, tokenizer.control("</tool_call>", NAME)?]),
            Some(other) => return unknown("tool_parser", other, "`qwen3`"),
        };
        let reads_reasoning = match reasoning_parser {
            None => false,
            Some("think") => true,
            Some(other) => return unknown("reasoning_parser", other, "`think`"),
        };
        let Some(end) = end.and_then(|end| tokenizer.id(end)) else {
            return Err(RenderError::Unresolved(
                "the model's tokenizer_config.json names no `eos_token` of its vocabulary, which must end a turn"
                    .to_owned(),
            ));
        };
        Ok(Self { tokenizer, template, variables: variables.clone(), calls, reads_reasoning, stops: vec![end] })
    }
}

impl Renderer for Own {
    fn name(&self) -> &'static str {
        NAME
    }

    fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    fn render(&self, messages: &[Message], tools: &[Tool], generate: bool) -> Result<Rendered, RenderError> {
        let fault = |reason: String| RenderError::Conversation { renderer: NAME, reason };
        super::texts(messages, NAME)?;
        let messages: Vec<Value> = messages.iter().map(as_engines_do).collect();
        let tools: Vec<Value> = tools.iter().map(super::tool).collect();
        let whole = json!([messages, tools]).to_string();
        let Some(mark) = MARKS.into_iter().find(|mark| !whole.contains(*mark)) else {
            return Err(fault("it uses every noncharacter of Unicode".to_owned()));
        };
        let guard = |values: Vec<Value>| -> Vec<Value> {
            values.into_iter().map(|value| guarded(&self.tokenizer, value, mark)).collect()
        };
        let text = self.template.render(&guard(messages), &guard(tools), generate, &self.variables).map_err(fault)?;
        let pieces: Vec<Piece<'_>> = text.split(mark).map(|part| Piece::template(part, Place::BETWEEN)).collect();
        let mut writer = Writer::new(&self.tokenizer);
        writer.pieces(&pieces);
        Ok(Rendered { runs: None, ..writer.rendered() })
    }

    fn bridge(&self, _: Previous<'_>, _: &[Message], _: &[Tool]) -> Result<Extension, Unbridged> {
        Err(Unbridged::Opaque)
    }

    fn parse(&self, completion: &[u32], _: &[u32], _: &[Tool]) -> Parsed {
        let end = completion.iter().position(|id| self.stops.contains(id)).unwrap_or(completion.len());
        let ids = &completion[..end];
        let first = self.calls.and_then(|[open, _]| ids.iter().position(|id| *id == open)).unwrap_or(end);
        let text = self.tokenizer.decode(&ids[..first]);
        let (reasoning, content) = match text.strip_prefix("<think>").filter(|_| self.reads_reasoning) {
            Some(inside) => match inside.split_once("</think>") {
                Some((reasoning, after)) => (Some(reasoning).filter(|text| !text.is_empty()), after),
                None => (Some(inside), ""),
            },
            None => (None, &*text),
        };
        Parsed {
            content: strip(content).to_owned(),
            reasoning: reasoning.map(str::to_owned),
            reasoning_complete: None,
            calls: self
                .calls
                .map_or_else(Vec::new, |marks| calls::hermes(&self.tokenizer, &ids[first..], first, marks)),
        }
    }

    fn stop_ids(&self) -> &[u32] {
        &self.stops
    }

    fn bridges(&self) -> bool {
        false
    }
}

/// A message in the form in which engines hand it to templates: the arguments of calls are read.
fn as_engines_do(message: &Message) -> Value {
    let plain = |content: &Content| super::text(content).unwrap_or_default().into_owned();
    match message {
        Message::System(message) => json!({ "role": "system", "content": plain(&message.content) }),
        Message::User(message) => json!({ "role": "user", "content": plain(&message.content) }),
        Message::Tool(message) => {
            let mut value = json!({
                "role": "tool", "tool_call_id": message.tool_call_id, "content": plain(&message.content),
            });
            if let Some(name) = &message.name {
                value["name"] = name.as_str().into();
            }
            value
        }
        Message::Assistant(answer) => {
            let calls: Vec<Value> = answer
                .tool_calls
                .iter()
                .flatten()
                .map(|call| {
                    let arguments = serde_json::from_str::<Value>(&call.arguments);
                    let arguments = arguments.unwrap_or_else(|_| call.arguments.as_str().into());
                    let kind = if call.kind == ToolCallKind::Custom { "custom" } else { "function" };
                    json!({
                        "id": call.id, "type": kind, "function": { "name": call.name, "arguments": arguments },
                    })
                })
                .collect();
            let mut value = json!({ "role": "assistant", "content": answer.content });
            if answer.content.is_none() && calls.is_empty() {
                value["content"] = "".into();
            }
            if let Some(reasoning) = &answer.reasoning_content {
                value["reasoning_content"] = reasoning.as_str().into();
            }
            if !calls.is_empty() {
                value["tool_calls"] = calls.into();
            }
            value
        }
    }
}

/// A value with every control token in its texts broken apart.
fn guarded(tokenizer: &Tokenizer, value: Value, mark: char) -> Value {
    match value {
        Value::String(text) => match tokenizer.broken(&text, mark) {
            Cow::Borrowed(_) => Value::String(text),
            Cow::Owned(broken) => Value::String(broken),
        },
        Value::Array(items) => items.into_iter().map(|item| guarded(tokenizer, item, mark)).collect(),
        Value::Object(map) => {
            let guard = |(key, item): (String, Value)| {
                (tokenizer.broken(&key, mark).into_owned(), guarded(tokenizer, item, mark))
            };
            Value::Object(map.into_iter().map(guard).collect())
        }
        plain => plain,
    }
}
