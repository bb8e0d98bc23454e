//! Llama 3.1, 3.2 and 3.3 Instruct, as the package `renderers` 0.1.12 writes Llama 3.2.
//!
//! A tool call is an answer that is one JSON object; the format has no place for text beside it, nor for a second one.

use std::{borrow::Cow, sync::Arc};

use super::texts;
use crate::{
    config::ThinkingRetention,
    render::{
        CallStatus, Extension, Parsed, ParsedCall, Previous, RenderError, Rendered, Renderer, Tokenizer, Unbridged,
        bridge::{Retention, end_of_turn, extensible, is_user},
        python::{bare, dumps, dumps_indented, members, strip},
        rendered::Place,
        writer::{Piece, Writer},
    },
    trace::{Content, Message, Tool, ToolMessage},
};

const NAME: &str = "llama-3";

const FORMAT: &str = "Respond in the format {\"name\": function name, \"parameters\": dictionary of argument name and its \
                      value}.Do not use variables.\n\n";
const TOOLS_IN_SYSTEM: &str =
    "You have access to the following functions. To call a function, please respond with JSON for a function call.";
const TOOLS_IN_USER: &str = "Given the following functions, please respond with a JSON for a function call with its proper \
                             arguments that best answers the given prompt.\n\n";

/// The renderer of Llama 3.
#[derive(Debug)]
pub(super) struct Llama3 {
    tokenizer: Arc<Tokenizer>,
    date: String,
    tools_in_user_message: bool,
    retention: Retention,
    begin: u32,
    header: [u32; 2],
    /// End of turn, of text, and of a message that waits for a tool.
    stops: [u32; 3],
}

impl Llama3 {
    pub(super) fn new(
        tokenizer: Arc<Tokenizer>,
        date: &str,
        tools_in_user_message: bool,
        retention: Option<ThinkingRetention>,
    ) -> Result<Self, RenderError> {
        let control = |token| tokenizer.control(token, NAME);
        Ok(Self {
            date: date.to_owned(),
            tools_in_user_message,
            retention: Retention::resolve(retention, Retention::All),
            begin: control("<|begin_of_text|>")?,
            header: [control("<|start_header_id|>")?, control("<|end_header_id|>")?],
            stops: [control("<|eot_id|>")?, control("<|end_of_text|>")?, control("<|eom_id|>")?],
            tokenizer,
        })
    }

    fn header(&self, writer: &mut Writer<'_>, role: &str, place: Place) {
        writer.control(self.header[0], place);
        writer.template(role, place);
        writer.control(self.header[1], place);
    }

    /// A message that nobody sampled: its role, what the template says first, and its text.
    fn heard(&self, writer: &mut Writer<'_>, role: &str, message: Option<u32>, before: &str, text: &str) {
        let template = Place::template(message);
        self.header(writer, role, template);
        // What stands before may show the schemas of tools, so that no part of it is a control token.
        writer.pieces(&[Piece::message(before, template), Piece::message(text, Place::content(message))]);
        writer.control(self.stops[0], template);
    }

    fn message(&self, writer: &mut Writer<'_>, message: &Message, at: u32, text: &str) {
        match message {
            Message::Tool(tool) => self.heard(writer, "ipython", Some(at), "\n\n", &result(tool)),
            Message::System(_) => self.heard(writer, "system", Some(at), "\n\n", strip(text)),
            _ => self.heard(writer, "user", Some(at), "\n\n", strip(text)),
        }
    }

    fn begin_answer(&self, writer: &mut Writer<'_>) {
        self.header(writer, "assistant", Place::BETWEEN);
        writer.template("\n\n", Place::BETWEEN);
    }

    fn tools(&self, tools: &[Tool]) -> String {
        tools.iter().map(|tool| dumps_indented(&super::tool(tool), 4) + "\n\n").collect()
    }
}

impl Renderer for Llama3 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    fn render(&self, messages: &[Message], tools: &[Tool], generate: bool) -> Result<Rendered, RenderError> {
        let fault = |reason: &str| RenderError::Conversation { renderer: NAME, reason: reason.to_owned() };
        let texts = texts(messages, NAME)?;
        let mut writer = Writer::new(&self.tokenizer);
        writer.control(self.begin, Place::BETWEEN);
        let system = matches!(messages[0], Message::System(_)).then(|| strip(&texts[0]));
        let mut preamble = "\n\n".to_owned();
        if !tools.is_empty() {
            preamble.push_str("Environment: ipython\n");
        }
        preamble.push_str(&format!("Cutting Knowledge Date: December 2023\nToday Date: {}\n\n", self.date));
        if !tools.is_empty() && !self.tools_in_user_message {
            preamble.extend([TOOLS_IN_SYSTEM, FORMAT, &self.tools(tools)]);
        }
        self.heard(&mut writer, "system", system.map(|_| 0), &preamble, system.unwrap_or_default());
        let mut next = usize::from(system.is_some());
        if !tools.is_empty() && self.tools_in_user_message {
            let Some(Message::User(_)) = messages.get(next) else {
                return Err(fault("tools stand in the first user message, and the first message is none"));
            };
            let before = ["\n\n", TOOLS_IN_USER, FORMAT, &self.tools(tools)].concat();
            self.heard(&mut writer, "user", Some(next as u32), &before, strip(&texts[next]));
            next += 1;
        }
        for (at, message) in messages.iter().enumerate().skip(next) {
            let Message::Assistant(answer) = message else {
                self.message(&mut writer, message, at as u32, &texts[at]);
                continue;
            };
            let (template, sampled) = (Place::template(at as u32), Place::sampled(at as u32));
            self.header(&mut writer, "assistant", template);
            writer.template("\n\n", template);
            match answer.tool_calls.as_deref().unwrap_or_default() {
                [] => writer.message(strip(&texts[at]), sampled),
                [call] => writer.pieces(&[
                    Piece::template("{\"name\": \"", sampled),
                    Piece::message(&call.name, sampled),
                    Piece::template("\", \"parameters\": ", sampled),
                    Piece::message(&call.arguments, sampled),
                    Piece::template("}", sampled),
                ]),
                _ => return Err(fault("an answer calls more than one tool")),
            }
            writer.control(self.stops[0], sampled);
        }
        if generate {
            self.begin_answer(&mut writer);
        }
        Ok(writer.rendered())
    }

    fn bridge(&self, previous: Previous<'_>, new: &[Message], _: &[Tool]) -> Result<Extension, Unbridged> {
        extensible(previous, new)?;
        self.retention.allows(new, is_user)?;
        let mut writer = Writer::new(&self.tokenizer);
        if end_of_turn(previous.completion, &self.stops)?.is_none() {
            writer.control(self.stops[0], Place::BETWEEN);
        }
        let texts = texts(new, NAME).map_err(|_| Unbridged::Message)?;
        for (at, (message, text)) in new.iter().zip(&texts).enumerate() {
            self.message(&mut writer, message, at as u32, text);
        }
        self.begin_answer(&mut writer);
        Ok(writer.extension())
    }

    fn parse(&self, completion: &[u32], _: &[u32], _: &[Tool]) -> Parsed {
        let end = completion.iter().position(|id| self.stops.contains(id)).unwrap_or(completion.len());
        let begin = completion[..end].iter().rposition(|id| *id == self.header[1]).map_or(0, |at| at + 1);
        let text = self.tokenizer.decode(&completion[begin..end]);
        let text = strip(&text).to_owned();
        match call(&text) {
            Some((name, arguments)) => Parsed {
                reasoning_complete: Some(true),
                calls: vec![ParsedCall {
                    name: Some(name),
                    arguments: Some(arguments),
                    span: Some((begin, end)),
                    status: CallStatus::Ok,
                    id: None,
                    raw: text,
                }],
                ..Parsed::default()
            },
            None => Parsed { content: text, reasoning_complete: Some(true), ..Parsed::default() },
        }
    }

    fn stop_ids(&self) -> &[u32] {
        &self.stops
    }

    fn is_prefix_stable(&self) -> bool {
        true
    }
}

/// A text that is a call: name and arguments.
fn call(text: &str) -> Option<(String, String)> {
    let members = members(text);
    let member = |key: &str| members.iter().find(|(name, _)| name == key).map(|(_, json)| json);
    let name = bare(member("name").filter(|json| json.starts_with('"'))?).into_owned();
    let arguments = member("parameters").or_else(|| member("arguments"));
    (!name.is_empty()).then(|| (name, arguments.map_or_else(|| "{}".to_owned(), String::clone)))
}

/// What a tool said, as JSON.
fn result(tool: &ToolMessage) -> Cow<'_, str> {
    dumps(&match &tool.content {
        Content::Text(text) => text.as_str().into(),
        parts => serde_json::to_value(parts).unwrap_or_default(),
    })
    .into()
}
