//! DeepSeek V3, as the package `renderers` 0.1.12 writes it. The model does not reason, and its format shows no tools.

use std::sync::Arc;

use super::texts;
use crate::{
    config::ThinkingRetention,
    render::{
        CallStatus, Extension, Parsed, ParsedCall, Previous, RenderError, Rendered, Renderer, Tokenizer, Unbridged,
        bridge::{Retention, extensible, is_user},
        calls::{Block, blocks},
        python::strip,
        reasoning::Reasoning,
        rendered::Place,
        writer::{Piece, Writer},
    },
    trace::{Message, Tool},
};

const NAME: &str = "deepseek-v3";

/// The renderer of DeepSeek V3.
#[derive(Debug)]
pub(super) struct DeepSeekV3 {
    tokenizer: Arc<Tokenizer>,
    retention: Retention,
    begin: u32,
    user: u32,
    assistant: u32,
    calls: [u32; 2],
    call: [u32; 2],
    separator: u32,
    outputs: [u32; 2],
    output: [u32; 2],
    stops: [u32; 1],
    reasoning: Reasoning,
}

impl DeepSeekV3 {
    pub(super) fn new(tokenizer: Arc<Tokenizer>, retention: Option<ThinkingRetention>) -> Result<Self, RenderError> {
        let control = |name: &str| tokenizer.control(&format!("<｜{}｜>", name.replace(' ', "▁")), NAME);
        let pair = |name: &str| Ok([control(&format!("{name} begin"))?, control(&format!("{name} end"))?]);
        let stops = [control("end of sentence")?];
        Ok(Self {
            retention: Retention::resolve(retention, Retention::All),
            begin: control("begin of sentence")?,
            user: control("User")?,
            assistant: control("Assistant")?,
            calls: pair("tool calls")?,
            call: pair("tool call")?,
            separator: control("tool sep")?,
            outputs: pair("tool outputs")?,
            output: pair("tool output")?,
            stops,
            reasoning: Reasoning::new(&tokenizer, None, "<｜Assistant｜>", &stops),
            tokenizer,
        })
    }

    /// A message that nobody sampled, at its place among the others.
    fn heard(&self, writer: &mut Writer<'_>, messages: &[Message], at: usize, text: &str) {
        let (template, content) = (Place::template(at as u32), Place::content(at as u32));
        if !is_tool(messages, at) {
            writer.control(self.user, template);
            writer.message(text, content);
            return;
        }
        if at == 0 || !is_tool(messages, at - 1) {
            writer.control(self.outputs[0], template);
        }
        writer.control(self.output[0], template);
        writer.message(text, content);
        writer.control(self.output[1], template);
        if !is_tool(messages, at + 1) {
            writer.control(self.outputs[1], template);
        }
    }

    /// An answer to tools goes on where they end.
    fn begin_answer(&self, writer: &mut Writer<'_>, messages: &[Message]) {
        if !is_tool(messages, messages.len() - 1) {
            writer.control(self.assistant, Place::BETWEEN);
        }
    }

    fn read_call(&self, ids: &[u32], span: (usize, usize), closed: bool) -> ParsedCall {
        let raw = self.tokenizer.decode(ids);
        let Some(separator) = ids.iter().position(|id| *id == self.separator) else {
            let status = CallStatus::Malformed;
            return ParsedCall { raw, name: None, arguments: None, span: Some(span), status, id: None };
        };
        let text = self.tokenizer.decode(&ids[separator + 1..]);
        let (name, rest) = strip(&text).split_once('\n').unwrap_or((strip(&text), ""));
        let (name, arguments) = (strip(name), unfenced(strip(rest)));
        let valid = arguments.is_empty() || serde_json::from_str::<serde::de::IgnoredAny>(arguments).is_ok();
        let status = match (closed, name, valid) {
            (false, ..) => CallStatus::Unclosed,
            (_, "", _) => CallStatus::MissingName,
            (_, _, false) => CallStatus::InvalidJson,
            _ => CallStatus::Ok,
        };
        let arguments = if arguments.is_empty() { "{}" } else { arguments }.to_owned();
        let name = (!name.is_empty()).then(|| name.to_owned());
        ParsedCall { raw, name, arguments: Some(arguments), span: Some(span), status, id: None }
    }

    /// The calls of a section. `offset` is where it begins in the completion.
    fn read_calls(&self, ids: &[u32], offset: usize) -> Vec<ParsedCall> {
        let end = ids.iter().position(|id| *id == self.calls[1]).unwrap_or(ids.len());
        let section = &ids[..end];
        let read = |block: Block| self.read_call(block.inside(section), block.span(offset), block.closed);
        blocks(section, self.call).into_iter().map(read).collect()
    }
}

impl Renderer for DeepSeekV3 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    fn render(&self, messages: &[Message], _: &[Tool], generate: bool) -> Result<Rendered, RenderError> {
        let texts = texts(messages, NAME)?;
        let mut writer = Writer::new(&self.tokenizer);
        writer.control(self.begin, Place::BETWEEN);
        let systems = messages.iter().take_while(|message| matches!(message, Message::System(_))).count();
        // As one text, which belongs to the first.
        writer.message(&texts[..systems].join("\n\n"), Place::content(0));
        for (at, message) in messages.iter().enumerate().skip(systems) {
            let Message::Assistant(answer) = message else {
                self.heard(&mut writer, messages, at, &texts[at]);
                continue;
            };
            let sampled = Place::sampled(at as u32);
            if at == 0 || !is_tool(messages, at - 1) {
                writer.control(self.assistant, Place::template(at as u32));
            }
            writer.message(&texts[at], sampled);
            let calls = answer.tool_calls.as_deref().unwrap_or_default();
            if !calls.is_empty() {
                writer.control(self.calls[0], sampled);
                for call in calls {
                    writer.control(self.call[0], sampled);
                    writer.template("function", sampled);
                    writer.control(self.separator, sampled);
                    writer.pieces(&[
                        Piece::message(&call.name, sampled),
                        Piece::template("\n```json\n", sampled),
                        Piece::message(&call.arguments, sampled),
                        Piece::template("\n```", sampled),
                    ]);
                    writer.control(self.call[1], sampled);
                }
                writer.control(self.calls[1], sampled);
            }
            writer.control(self.stops[0], sampled);
        }
        if generate {
            self.begin_answer(&mut writer, messages);
        }
        Ok(writer.rendered())
    }

    fn bridge(&self, previous: Previous<'_>, new: &[Message], _: &[Tool]) -> Result<Extension, Unbridged> {
        extensible(previous, new)?;
        self.retention.allows(new, is_user)?;
        let mut writer = Writer::new(&self.tokenizer);
        self.reasoning.end_turn(&mut writer, &self.tokenizer, previous, self.stops[0])?;
        let texts = texts(new, NAME).map_err(|_| Unbridged::Message)?;
        for (at, text) in texts.iter().enumerate() {
            self.heard(&mut writer, new, at, text);
        }
        self.begin_answer(&mut writer, new);
        Ok(writer.extension())
    }

    fn parse(&self, completion: &[u32], prompt: &[u32], _: &[Tool]) -> Parsed {
        let end = completion.iter().position(|id| self.stops.contains(id)).unwrap_or(completion.len());
        let ids = &completion[..end];
        let (region, begin) = match self.reasoning.read(&self.tokenizer, ids, prompt) {
            Ok(read) => read,
            Err(unfinished) => return unfinished,
        };
        let section = ids[begin..].iter().position(|id| *id == self.calls[0]).map(|at| begin + at);
        let text = self.tokenizer.decode(&ids[..section.unwrap_or(ids.len())]);
        let content = match &region {
            Some(_) => text.split_once("</think>").map_or(&*text, |(_, after)| after),
            None => &text,
        };
        let reasoning = region.map(|region| strip(&region.text).to_owned()).filter(|text| !text.is_empty());
        Parsed {
            content: strip(content).to_owned(),
            reasoning,
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

fn is_tool(messages: &[Message], at: usize) -> bool {
    matches!(messages.get(at), Some(Message::Tool(_)))
}

/// The text inside a fence of three backticks that encloses all of it.
fn unfenced(text: &str) -> &str {
    let inside = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    inside.map_or(text, |inside| strip(inside.strip_prefix("json").unwrap_or(inside)))
}
