//! GLM-4.5, as the package `renderers` 0.1.12 writes GLM-4.5-Air.
//!
//! A turn has no end of its own: the model ends it with the marker of who speaks next, which belongs to its answer.

use std::sync::Arc;

use indexmap::IndexMap;

use super::{reasoning_and_content, texts, visible};
use crate::{
    config::ThinkingRetention,
    render::{
        CallStatus, Extension, Parsed, ParsedCall, Previous, RenderError, Rendered, Renderer, Tokenizer, Unbridged,
        arguments::{coerce, schemas},
        bridge::{Retention, end_of_turn, extensible, is_user},
        python::{bare, dumps, is_space, members, object, strip},
        rendered::Place,
        writer::{Piece, Writer},
    },
    trace::{AssistantMessage, Message, Tool},
};

const NAME: &str = "glm-4.5";

const TOOLS: &str = "\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with \
                     function signatures within <tools></tools> XML tags:\n<tools>\n";
const TOOLS_END: &str = "</tools>\n\nFor each function call, output the function name and arguments within the following XML \
                         format:\n<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}\
                         </arg_value>\n<arg_key>{arg-key-2}</arg_key>\n<arg_value>{arg-value-2}</arg_value>\n...\n\
                         </tool_call>";

/// The renderer of GLM-4.5.
#[derive(Debug)]
pub(super) struct Glm45 {
    tokenizer: Arc<Tokenizer>,
    enable_thinking: bool,
    retention: Retention,
    begin: [u32; 2],
    system: u32,
    user: u32,
    assistant: u32,
    observation: u32,
    think: [u32; 2],
    call: [u32; 2],
    key: [u32; 2],
    value: [u32; 2],
    /// End of text, and the markers of user and tool.
    stops: [u32; 3],
}

/// Where an answer is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Channel {
    Reasoning,
    Content,
}

impl Glm45 {
    pub(super) fn new(
        tokenizer: Arc<Tokenizer>,
        enable_thinking: bool,
        retention: Option<ThinkingRetention>,
    ) -> Result<Self, RenderError> {
        let control = |token: &str| tokenizer.control(token, NAME);
        let pair = |name: &str| Ok([control(&format!("<{name}>"))?, control(&format!("</{name}>"))?]);
        let (user, observation) = (control("<|user|>")?, control("<|observation|>")?);
        let template = if enable_thinking { Retention::ToolCycle } else { Retention::All };
        Ok(Self {
            enable_thinking,
            retention: Retention::resolve(retention, template),
            begin: [control("[gMASK]")?, control("<sop>")?],
            system: control("<|system|>")?,
            user,
            assistant: control("<|assistant|>")?,
            observation,
            think: pair("think")?,
            call: pair("tool_call")?,
            key: pair("arg_key")?,
            value: pair("arg_value")?,
            stops: [control("<|endoftext|>")?, user, observation],
            tokenizer,
        })
    }

    /// The marker of who speaks; `None` for one that continues with the marker of the message before.
    fn marker(&self, messages: &[Message], at: usize) -> Option<u32> {
        match &messages[at] {
            Message::Tool(_) => {
                let continues = at > 0 && matches!(messages[at - 1], Message::Tool(_));
                (!continues).then_some(self.observation)
            }
            Message::System(_) => Some(self.system),
            _ => Some(self.user),
        }
    }

    /// What a message says after its marker.
    fn said(&self, writer: &mut Writer<'_>, message: &Message, at: usize, text: &str) {
        let (template, content) = (Place::template(at as u32), Place::content(at as u32));
        match message {
            Message::Tool(_) => writer.pieces(&[
                Piece::template("\n<tool_response>\n", template),
                Piece::message(text, content),
                Piece::template("\n</tool_response>", template),
            ]),
            Message::User(_) if !self.enable_thinking && !text.ends_with("/nothink") => writer.pieces(&[
                Piece::template("\n", template),
                Piece::message(text, content),
                Piece::template("/nothink", template),
            ]),
            _ => writer.pieces(&[Piece::template("\n", template), Piece::message(text, content)]),
        }
    }

    fn begin_answer(&self, writer: &mut Writer<'_>) {
        writer.control(self.assistant, Place::BETWEEN);
        if !self.enable_thinking {
            writer.template("\n", Place::BETWEEN);
            writer.control(self.think[0], Place::BETWEEN);
            writer.control(self.think[1], Place::BETWEEN);
        }
    }

    fn answer(&self, writer: &mut Writer<'_>, at: usize, answer: &AssistantMessage, current: bool) {
        let (template, sampled) = (Place::template(at as u32), Place::sampled(at as u32));
        let calls = answer.tool_calls.as_deref().unwrap_or_default();
        let (reasoning, content) = reasoning_and_content(answer, visible(answer));
        let content = strip(content);
        writer.control(self.assistant, template);
        writer.template("\n", template);
        writer.control(self.think[0], sampled);
        if current && !reasoning.is_empty() {
            writer.message(strip(reasoning), sampled);
        }
        writer.control(self.think[1], sampled);
        if !content.is_empty() {
            writer.pieces(&[
                Piece::template("\n", sampled),
                Piece::message(content, sampled),
                Piece::template(if calls.is_empty() { "" } else { "\n" }, sampled),
            ]);
        }
        for call in calls {
            if content.is_empty() {
                writer.template("\n", sampled);
            }
            writer.control(self.call[0], sampled);
            writer.pieces(&[Piece::message(&call.name, sampled), Piece::template("\n", sampled)]);
            for (key, value) in members(&call.arguments) {
                writer.control(self.key[0], sampled);
                writer.message(&key, sampled);
                writer.control(self.key[1], sampled);
                writer.template("\n", sampled);
                writer.control(self.value[0], sampled);
                writer.message(&bare(&value), sampled);
                writer.control(self.value[1], sampled);
                writer.template("\n", sampled);
            }
            writer.control(self.call[1], sampled);
        }
    }

    fn read_call(&self, block: &[u32], span: (usize, usize), closed: bool, tools: &[Tool]) -> ParsedCall {
        let raw = self.tokenizer.decode(block);
        if !closed {
            let status = CallStatus::Unclosed;
            return ParsedCall { raw, name: None, arguments: None, span: Some(span), status, id: None };
        }
        let find = |token: u32, from: usize| block[from..].iter().position(|id| *id == token).map(|at| from + at);
        let text = |from: usize, to: usize| strip(&self.tokenizer.decode(&block[from..to])).to_owned();
        let first = find(self.key[0], 0);
        let name = text(0, first.unwrap_or(block.len()));
        let schemas = schemas(tools, &name);
        let mut arguments = IndexMap::new();
        let (mut broken, mut suspect) = (false, false);
        let mut next = first;
        while let Some(key) = next {
            let ends = || {
                let key_end = find(self.key[1], key + 1)?;
                let value = find(self.value[0], key_end + 1)?;
                Some((key_end, value, find(self.value[1], value + 1)?))
            };
            let Some((key_end, value, value_end)) = ends() else {
                broken = true;
                break;
            };
            let key = text(key + 1, key_end);
            let schema = schemas.and_then(|schemas| schemas.get(&key));
            let (value, fallback) = coerce(&text(value + 1, value_end), schema);
            suspect |= fallback;
            arguments.insert(key, value);
            next = find(self.key[0], value_end + 1);
        }
        let known = tools.is_empty() || tools.iter().any(|tool| tool.name == name);
        let status = match () {
            () if name.is_empty() => CallStatus::MissingName,
            () if !known => CallStatus::UnknownTool,
            () if broken => CallStatus::Malformed,
            () if suspect => CallStatus::InvalidJson,
            () => CallStatus::Ok,
        };
        let arguments = Some(object(&arguments));
        let name = (!name.is_empty()).then_some(name);
        ParsedCall { raw, name, arguments, span: Some(span), status, id: None }
    }

    /// Reads an answer in one pass: in a call everything is the call's; elsewhere the marks of reasoning and of calls count.
    fn read(&self, ids: &[u32], tools: &[Tool]) -> Parsed {
        let mut channel = if self.enable_thinking { Channel::Reasoning } else { Channel::Content };
        let reasons = self.enable_thinking;
        let (mut reasoning, mut content, mut calls) = (String::new(), String::new(), Vec::new());
        let mut at = 0;
        let is_mark = |id: &u32| *id == self.call[0] || reasons && self.think.contains(id);
        while at < ids.len() {
            let end = ids[at..].iter().position(is_mark).map_or(ids.len(), |found| at + found);
            let text = self.tokenizer.decode(&ids[at..end]);
            match channel {
                Channel::Reasoning => reasoning.push_str(&text),
                Channel::Content => content.push_str(&text),
            }
            at = end + 1;
            match ids.get(end) {
                None => break,
                Some(id) if *id == self.call[0] => {
                    let close = ids[at..].iter().position(|id| *id == self.call[1]).map(|found| at + found);
                    let span = (end, close.map_or(ids.len(), |close| close + 1));
                    let block = &ids[at..close.unwrap_or(ids.len())];
                    calls.push(self.read_call(block, span, close.is_some(), tools));
                    at = span.1;
                    channel = Channel::Content;
                }
                Some(id) if *id == self.think[0] => channel = Channel::Reasoning,
                Some(_) => channel = Channel::Content,
            }
        }
        // A call that is not closed is the end of it.
        let open = channel == Channel::Reasoning;
        let reasoning = reasoning.trim_end_matches(is_space).to_owned();
        Parsed {
            content: if calls.is_empty() { content } else { strip(&content).to_owned() },
            reasoning: (open || !reasoning.is_empty()).then_some(reasoning),
            reasoning_complete: Some(!open),
            calls,
        }
    }
}

impl Renderer for Glm45 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    fn render(&self, messages: &[Message], tools: &[Tool], generate: bool) -> Result<Rendered, RenderError> {
        let texts = texts(messages, NAME)?;
        let mut writer = Writer::new(&self.tokenizer);
        self.begin.iter().for_each(|id| writer.control(*id, Place::BETWEEN));
        if !tools.is_empty() {
            writer.control(self.system, Place::BETWEEN);
            let listed: Vec<String> = tools.iter().map(|tool| dumps(&super::tool(tool)) + "\n").collect();
            let mut pieces = vec![Piece::template(TOOLS, Place::BETWEEN)];
            pieces.extend(listed.iter().map(|tool| Piece::message(tool, Place::BETWEEN)));
            pieces.push(Piece::template(TOOLS_END, Place::BETWEEN));
            writer.pieces(&pieces);
        }
        let last_user = messages.iter().rposition(is_user);
        for (at, message) in messages.iter().enumerate() {
            if let Message::Assistant(answer) = message {
                self.answer(&mut writer, at, answer, last_user.is_none_or(|last| at > last));
                continue;
            }
            let ends_answer = at > 0 && matches!(messages[at - 1], Message::Assistant(_));
            if let Some(marker) = self.marker(messages, at) {
                let sampled = ends_answer && self.stops.contains(&marker);
                let place = if sampled { Place::sampled(at as u32 - 1) } else { Place::template(at as u32) };
                writer.control(marker, place);
            }
            self.said(&mut writer, message, at, &texts[at]);
        }
        if generate {
            self.begin_answer(&mut writer);
        }
        Ok(writer.rendered())
    }

    fn bridge(&self, previous: Previous<'_>, new: &[Message], tools: &[Tool]) -> Result<Extension, Unbridged> {
        extensible(previous, new)?;
        self.retention.allows(new, is_user)?;
        let mut end = end_of_turn(previous.completion, &self.stops)?;
        let mut writer = Writer::new(&self.tokenizer);
        let read = self.parse(previous.completion, previous.prompt, tools);
        if read.reasoning_complete == Some(false) {
            if end.is_some() {
                return Err(Unbridged::OpenReasoning);
            }
            writer.control(self.think[1], Place::BETWEEN);
        }
        if end.is_none() {
            writer.control(self.stops[0], Place::BETWEEN);
        }
        let texts = texts(new, NAME).map_err(|_| Unbridged::Message)?;
        for (at, (message, text)) in new.iter().zip(&texts).enumerate() {
            let marker = self.marker(new, at);
            // The model has already said who speaks next.
            if marker != end.take() || marker.is_none() {
                marker.iter().for_each(|marker| writer.control(*marker, Place::template(at as u32)));
            }
            self.said(&mut writer, message, at, text);
        }
        self.begin_answer(&mut writer);
        Ok(writer.extension())
    }

    fn parse(&self, completion: &[u32], _: &[u32], tools: &[Tool]) -> Parsed {
        let end = completion.iter().position(|id| self.stops.contains(id)).unwrap_or(completion.len());
        self.read(&completion[..end], tools)
    }

    fn stop_ids(&self) -> &[u32] {
        &self.stops
    }
}
