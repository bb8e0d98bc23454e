//! Kimi K2, as the package `renderers` 0.1.12 writes it. The model does not reason, and its format never changes what it wrote
//! before.

use std::sync::Arc;

use serde_json::Value;

use super::texts;
use crate::{
    config::ThinkingRetention,
    render::{
        CallStatus, Extension, Parsed, ParsedCall, Previous, RenderError, Rendered, Renderer, Tokenizer, Unbridged,
        bridge::{Retention, extensible, is_user},
        python::{dumps_sorted, strip},
        reasoning::Reasoning,
        rendered::Place,
        writer::{Piece, Writer},
    },
    trace::{Message, Tool},
};

const NAME: &str = "kimi-k2";
const SYSTEM: &str = "You are Kimi, an AI assistant created by Moonshot AI.";

/// The renderer of Kimi K2.
#[derive(Debug)]
pub(super) struct KimiK2 {
    tokenizer: Arc<Tokenizer>,
    retention: Retention,
    system: u32,
    user: u32,
    assistant: u32,
    middle: u32,
    section: [u32; 2],
    call: [u32; 2],
    argument: u32,
    /// The end of a message.
    stops: [u32; 1],
    reasoning: Reasoning,
}

impl KimiK2 {
    pub(super) fn new(tokenizer: Arc<Tokenizer>, retention: Option<ThinkingRetention>) -> Result<Self, RenderError> {
        let control = |name: &str| tokenizer.control(&format!("<|{name}|>"), NAME);
        let section = [control("tool_calls_section_begin")?, control("tool_calls_section_end")?];
        let stops = [control("im_end")?];
        let header = "<|im_assistant|>assistant<|im_middle|>";
        Ok(Self {
            retention: Retention::resolve(retention, Retention::All),
            system: control("im_system")?,
            user: control("im_user")?,
            assistant: control("im_assistant")?,
            middle: control("im_middle")?,
            section,
            call: [control("tool_call_begin")?, control("tool_call_end")?],
            argument: control("tool_call_argument_begin")?,
            stops,
            reasoning: Reasoning::new(&tokenizer, Some(section[0]), header, &stops),
            tokenizer,
        })
    }

    fn header(&self, writer: &mut Writer<'_>, marker: u32, who: &str, place: Place) {
        writer.control(marker, place);
        writer.message(who, place);
        writer.control(self.middle, place);
    }

    fn heard(&self, writer: &mut Writer<'_>, message: &Message, at: usize, text: &str) {
        let template = Place::template(at as u32);
        match message {
            Message::Tool(tool) => {
                let name = tool.name.as_deref().filter(|name| !name.is_empty()).unwrap_or("tool");
                self.header(writer, self.system, name, template);
                writer.pieces(&[
                    Piece::template("## Return of ", template),
                    Piece::message(&tool.tool_call_id, template),
                    Piece::template("\n", template),
                ]);
            }
            Message::System(_) => self.header(writer, self.system, "system", template),
            _ => self.header(writer, self.user, "user", template),
        }
        writer.message(text, Place::content(at as u32));
        writer.control(self.stops[0], template);
    }

    fn read_calls(&self, ids: &[u32], offset: usize) -> Vec<ParsedCall> {
        let end = ids.iter().position(|id| *id == self.section[1]).unwrap_or(ids.len());
        let ids = &ids[..end];
        let find = |token: u32, from: usize| ids[from..].iter().position(|id| *id == token).map(|at| from + at);
        let text = |from: usize, to: usize| self.tokenizer.decode(&ids[from..to]);
        let mut calls = Vec::new();
        let mut at = 0;
        while let Some(begin) = find(self.call[0], at) {
            let Some(argument) = find(self.argument, begin + 1) else {
                let span = Some((offset + begin, offset + ids.len()));
                let (raw, status) = (text(begin + 1, ids.len()), CallStatus::Malformed);
                calls.push(ParsedCall { raw, name: None, arguments: None, span, status, id: None });
                break;
            };
            let close = find(self.call[1], argument + 1);
            let end = close.unwrap_or(ids.len());
            let id = strip(&text(begin + 1, argument)).to_owned();
            let arguments = strip(&text(argument + 1, end)).to_owned();
            let name = id.split(':').next().unwrap_or_default();
            let name = name.split_once('.').map_or(name, |(_, name)| name).to_owned();
            let status = match () {
                () if close.is_none() => CallStatus::Unclosed,
                () if name.is_empty() => CallStatus::MissingName,
                () if serde_json::from_str::<serde::de::IgnoredAny>(&arguments).is_err() => CallStatus::InvalidJson,
                () => CallStatus::Ok,
            };
            calls.push(ParsedCall {
                raw: text(begin + 1, end),
                name: (!name.is_empty()).then_some(name),
                arguments: Some(arguments),
                span: Some((offset + begin, offset + end + usize::from(close.is_some()))),
                status,
                id: (!id.is_empty()).then_some(id),
            });
            let Some(close) = close else { break };
            at = close + 1;
        }
        calls
    }
}

impl Renderer for KimiK2 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    fn render(&self, messages: &[Message], tools: &[Tool], generate: bool) -> Result<Rendered, RenderError> {
        let texts = texts(messages, NAME)?;
        let mut writer = Writer::new(&self.tokenizer);
        if !tools.is_empty() {
            let listed: Vec<Value> = tools.iter().map(super::tool).collect();
            self.header(&mut writer, self.system, "tool_declare", Place::BETWEEN);
            writer.message(&dumps_sorted(listed.into()), Place::BETWEEN);
            writer.control(self.stops[0], Place::BETWEEN);
        }
        if !matches!(messages[0], Message::System(_)) {
            self.header(&mut writer, self.system, "system", Place::BETWEEN);
            writer.template(SYSTEM, Place::BETWEEN);
            writer.control(self.stops[0], Place::BETWEEN);
            writer.template("\n", Place::BETWEEN);
        }
        for (at, message) in messages.iter().enumerate() {
            let Message::Assistant(answer) = message else {
                self.heard(&mut writer, message, at, &texts[at]);
                continue;
            };
            let sampled = Place::sampled(at as u32);
            self.header(&mut writer, self.assistant, "assistant", Place::template(at as u32));
            writer.message(&texts[at], sampled);
            let calls = answer.tool_calls.as_deref().unwrap_or_default();
            if !calls.is_empty() {
                writer.control(self.section[0], sampled);
                for call in calls {
                    writer.control(self.call[0], sampled);
                    writer.message(&call.id, sampled);
                    writer.control(self.argument, sampled);
                    writer.message(&call.arguments, sampled);
                    writer.control(self.call[1], sampled);
                }
                writer.control(self.section[1], sampled);
            }
            writer.control(self.stops[0], sampled);
        }
        if generate {
            self.header(&mut writer, self.assistant, "assistant", Place::BETWEEN);
        }
        Ok(writer.rendered())
    }

    fn bridge(&self, previous: Previous<'_>, new: &[Message], _: &[Tool]) -> Result<Extension, Unbridged> {
        extensible(previous, new)?;
        self.retention.allows(new, is_user)?;
        let mut writer = Writer::new(&self.tokenizer);
        self.reasoning.end_turn(&mut writer, &self.tokenizer, previous, self.stops[0])?;
        let texts = texts(new, NAME).map_err(|_| Unbridged::Message)?;
        for (at, (message, text)) in new.iter().zip(&texts).enumerate() {
            self.heard(&mut writer, message, at, text);
        }
        self.header(&mut writer, self.assistant, "assistant", Place::BETWEEN);
        Ok(writer.extension())
    }

    fn parse(&self, completion: &[u32], prompt: &[u32], _: &[Tool]) -> Parsed {
        let end = completion.iter().position(|id| self.stops.contains(id)).unwrap_or(completion.len());
        let ids = &completion[..end];
        let (region, rest) = match self.reasoning.read(&self.tokenizer, ids, prompt) {
            Ok(read) => read,
            Err(unfinished) => return unfinished,
        };
        let section = ids[rest..].iter().position(|id| *id == self.section[0]).map(|at| rest + at);
        let end = section.unwrap_or(ids.len());
        let text = match &region {
            Some(region) if region.closed_by_tool => self.tokenizer.decode(&ids[rest..end]),
            _ => self.tokenizer.decode(&ids[..end]),
        };
        let content = match &region {
            Some(region) if !region.closed_by_tool => text.split_once("</think>").map_or(&*text, |(_, after)| after),
            _ => &text,
        };
        Parsed {
            content: strip(content).to_owned(),
            reasoning: region.map(|region| strip(&region.text).to_owned()).filter(|text| !text.is_empty()),
            reasoning_complete: Some(true),
            calls: section.map_or_else(Vec::new, |at| self.read_calls(&ids[at + 1..], at + 1)),
        }
    }

    fn stop_ids(&self) -> &[u32] {
        &self.stops
    }

    fn is_prefix_stable(&self) -> bool {
        true
    }
}
