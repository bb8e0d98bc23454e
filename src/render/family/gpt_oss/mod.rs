//! gpt-oss in the format harmony, as the packages `renderers` 0.1.12 and `openai-harmony` 0.0.8 write it.
//!
//! An answer is any number of blocks, each in a channel: reasoning in `analysis`, text in `final`, calls in `commentary`.
//! Reasoning is dropped from history once a final answer follows.

mod schema;

use std::sync::Arc;

use serde::de::IgnoredAny;
use serde_json::Value;

use super::texts;
use crate::{
    config::ThinkingRetention,
    render::{
        CallStatus, Extension, Parsed, ParsedCall, Previous, RenderError, Rendered, Renderer, Tokenizer, Unbridged,
        bridge::{Retention, end_of_turn, extensible, is_user},
        python::{is_space, strip},
        rendered::Place,
        writer::Writer,
    },
    trace::{AssistantMessage, Message, Tool},
};

const NAME: &str = "gpt-oss";

/// What the template can be told.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) reasoning_effort: String,
    /// The date shown; that of today is taken by whoever makes the renderer.
    pub(super) date: String,
    pub(super) use_system_prompt: bool,
    pub(super) knowledge_cutoff: Option<String>,
    pub(super) model_identity: Option<String>,
    pub(super) auto_drop_analysis: bool,
}

/// The renderer of gpt-oss.
#[derive(Debug)]
pub(super) struct GptOss {
    tokenizer: Arc<Tokenizer>,
    settings: Settings,
    retention: Retention,
    start: u32,
    end: u32,
    channel: u32,
    message: u32,
    /// End of the whole answer, and of a call.
    stops: [u32; 2],
}

/// A message of harmony.
struct Block<'a> {
    author: &'a str,
    recipient: Option<String>,
    channel: Option<&'static str>,
    text: &'a str,
    /// What ends it.
    end: u32,
}

/// A block that was read: indices of its start, its message token, and its end.
struct Read {
    start: usize,
    message: usize,
    end: usize,
    closed: bool,
}

impl GptOss {
    pub(super) fn new(
        tokenizer: Arc<Tokenizer>,
        settings: Settings,
        retention: Option<ThinkingRetention>,
    ) -> Result<Self, RenderError> {
        let control = |name: &str| tokenizer.control(&format!("<|{name}|>"), NAME);
        let template = if settings.auto_drop_analysis { Retention::ToolCycle } else { Retention::All };
        Ok(Self {
            settings,
            retention: Retention::resolve(retention, template),
            start: control("start")?,
            end: control("end")?,
            channel: control("channel")?,
            message: control("message")?,
            stops: [control("return")?, control("call")?],
            tokenizer,
        })
    }

    fn plain<'a>(&self, author: &'a str, text: &'a str) -> Block<'a> {
        Block { author, recipient: None, channel: None, text, end: self.end }
    }

    /// Writes a block: a header, which is template, and a body.
    fn block(&self, writer: &mut Writer<'_>, block: &Block<'_>, header: Place, body: Place, end: Place) {
        writer.control(self.start, header);
        writer.message(block.author, header);
        if let Some(recipient) = &block.recipient {
            writer.message(&format!(" to={recipient}"), header);
        }
        if let Some(channel) = block.channel {
            writer.control(self.channel, header);
            writer.template(channel, header);
        }
        writer.control(self.message, header);
        writer.message(block.text, body);
        writer.control(block.end, end);
    }

    /// A message that nobody sampled.
    fn heard(&self, writer: &mut Writer<'_>, message: &Message, at: usize, text: &str) {
        let (template, content) = (Place::template(at as u32), Place::content(at as u32));
        match message {
            Message::Tool(tool) => {
                let name = functions(tool.name.as_deref().filter(|name| !name.is_empty()).unwrap_or("unknown"));
                let (recipient, channel) = (Some("assistant".to_owned()), Some("commentary"));
                let block = Block { author: &name, recipient, channel, text, end: self.end };
                self.block(writer, &block, template, content, template);
            }
            Message::System(_) => {
                let text = format!("# Instructions\n\n{text}");
                self.block(writer, &self.plain("developer", &text), template, content, template);
            }
            _ => self.block(writer, &self.plain("user", text), template, content, template),
        }
    }

    fn answer(&self, writer: &mut Writer<'_>, at: usize, answer: &AssistantMessage, reasons: bool, last: bool) {
        let (template, sampled) = (Place::template(at as u32), Place::sampled(at as u32));
        let calls = answer.tool_calls.as_deref().unwrap_or_default();
        let content = answer.content.as_deref().unwrap_or_default();
        let mut said = |channel, recipient, text, end| {
            let block = Block { author: "assistant", recipient, channel: Some(channel), text, end };
            self.block(writer, &block, template, sampled, sampled);
        };
        let reasoning = answer.reasoning_content.as_deref().filter(|text| reasons && !text.is_empty());
        let speaks = !content.is_empty() || calls.is_empty() && reasoning.is_none();
        // The last block of a conversation's last answer ends the whole answer.
        let end = if last && calls.is_empty() { self.stops[0] } else { self.end };
        if let Some(reasoning) = reasoning {
            said("analysis", None, reasoning, if speaks { self.end } else { end });
        }
        if speaks {
            said("final", None, content, end);
        }
        for call in calls {
            said("commentary", Some(functions(&call.name)), &call.arguments, self.stops[1]);
        }
    }

    /// Whether the reasoning of an answer is shown: that of calls to which no final answer has come yet.
    fn shows_reasoning(&self, messages: &[Message], at: usize) -> bool {
        let calls = |answer: &AssistantMessage| answer.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty());
        let is_final = |message: &Message| match message {
            Message::Assistant(answer) => {
                !calls(answer) && answer.content.as_ref().is_some_and(|text| !text.is_empty())
            }
            _ => false,
        };
        let asks = matches!(&messages[at], Message::Assistant(answer) if calls(answer));
        !self.settings.auto_drop_analysis || asks && !messages[at + 1..].iter().any(is_final)
    }

    /// What stands before the conversation.
    fn preamble(&self, system: Option<&str>, tools: &[Tool], developer: bool) -> Vec<u32> {
        let mut writer = Writer::new(&self.tokenizer);
        let between = Place::BETWEEN;
        let settings = &self.settings;
        if settings.use_system_prompt {
            let identity = settings.model_identity.as_deref();
            let mut text = format!(
                "{}\nKnowledge cutoff: {}\nCurrent date: {}\n\nReasoning: {}\n\n# Valid channels: analysis, commentary, final. \
                 Channel must be included for every message.",
                identity.unwrap_or("You are ChatGPT, a large language model trained by OpenAI."),
                settings.knowledge_cutoff.as_deref().unwrap_or("2024-06"),
                settings.date,
                settings.reasoning_effort,
            );
            if !tools.is_empty() {
                text.push_str("\nCalls to these tools must go to the commentary channel: 'functions'.");
            }
            self.block(&mut writer, &self.plain("system", &text), between, between, between);
        }
        if developer {
            let mut sections = Vec::new();
            sections.extend(system.filter(|text| !text.is_empty()).map(|text| format!("# Instructions\n\n{text}")));
            if !tools.is_empty() {
                let shown: String = tools.iter().map(declaration).collect();
                sections.push(format!(
                    "# Tools\n\n## functions\n\nnamespace functions {{\n\n{shown}}} // namespace functions"
                ));
            }
            self.block(&mut writer, &self.plain("developer", &sections.join("\n\n")), between, between, between);
        }
        writer.rendered().ids
    }

    /// Writes the preamble. What it would not have without the system's text is content.
    fn begin(&self, writer: &mut Writer<'_>, system: Option<(usize, &str)>, tools: &[Tool]) {
        let developer = system.is_some() || !tools.is_empty();
        let with = self.preamble(system.map(|(_, text)| text), tools, developer);
        let owner = system.map(|(at, _)| at as u32);
        let content = match system {
            Some((_, text)) if !text.is_empty() => {
                let without = self.preamble(None, tools, developer);
                let before = with.iter().zip(&without).take_while(|(one, other)| one == other).count();
                let after = with[before..].iter().rev().zip(without[before..].iter().rev());
                before..with.len() - after.take_while(|(one, other)| one == other).count()
            }
            _ => 0..0,
        };
        for (at, id) in with.iter().enumerate() {
            let place = if content.contains(&at) { Place::content(owner) } else { Place::template(owner) };
            writer.control(*id, place);
        }
    }

    fn begin_answer(&self, writer: &mut Writer<'_>) {
        writer.control(self.start, Place::BETWEEN);
        writer.template("assistant", Place::BETWEEN);
        writer.control(self.channel, Place::BETWEEN);
        writer.template("analysis", Place::BETWEEN);
        writer.control(self.message, Place::BETWEEN);
    }

    /// The header that the prompt has begun the answer with.
    fn header<'a>(&self, completion: &[u32], prompt: &'a [u32]) -> &'a [u32] {
        if completion.first() == Some(&self.start) {
            return &[];
        }
        let Some(start) = prompt.iter().rposition(|id| *id == self.start) else { return &[] };
        let message = prompt[start..].iter().position(|id| *id == self.message);
        message.map_or(&[], |message| &prompt[start..=start + message])
    }

    /// The id that ended the turn. A call ends it too, but calls may follow each other where an engine does not stop at them.
    fn end_of_turn(&self, completion: &[u32]) -> Result<Option<u32>, Unbridged> {
        let calls = completion.iter().rposition(|id| *id == self.stops[1]).filter(|at| at + 1 == completion.len());
        match calls {
            Some(last) if !completion.contains(&self.stops[0]) => Ok(Some(completion[last])),
            _ => end_of_turn(completion, &self.stops),
        }
    }

    fn blocks(&self, ids: &[u32]) -> Vec<Read> {
        let find = |tokens: &[u32], from: usize| {
            ids.get(from..)?.iter().position(|id| tokens.contains(id)).map(|found| from + found)
        };
        let mut blocks = Vec::new();
        let mut at = 0;
        while let Some(start) = find(&[self.start], at) {
            let Some(message) = find(&[self.message], start + 1) else { break };
            let end = find(&[self.start, self.end, self.stops[1]], message + 1).unwrap_or(ids.len());
            let closed = ids.get(end).is_some_and(|id| *id != self.start);
            blocks.push(Read { start, message, end, closed });
            at = end + usize::from(closed);
        }
        blocks
    }

    fn channel_of(&self, header: &[u32]) -> Option<String> {
        let at = header.iter().position(|id| *id == self.channel)?;
        self.tokenizer.decode(&header[at + 1..]).split(is_space).find(|word| !word.is_empty()).map(str::to_owned)
    }
}

impl Renderer for GptOss {
    fn name(&self) -> &'static str {
        NAME
    }

    fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    fn render(&self, messages: &[Message], tools: &[Tool], generate: bool) -> Result<Rendered, RenderError> {
        let texts = texts(messages, NAME)?;
        let mut writer = Writer::new(&self.tokenizer);
        let system = messages.iter().position(|message| matches!(message, Message::System(_)));
        self.begin(&mut writer, system.map(|at| (at, &*texts[at])), tools);
        for (at, message) in messages.iter().enumerate().filter(|(at, _)| Some(*at) != system) {
            match message {
                Message::Assistant(answer) => {
                    let last = !generate && at + 1 == messages.len();
                    self.answer(&mut writer, at, answer, self.shows_reasoning(messages, at), last);
                }
                _ => self.heard(&mut writer, message, at, &texts[at]),
            }
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
        if let Some(end) = self.end_of_turn(previous.completion)? {
            let answered = previous.completion.len() - usize::from(end == self.stops[0]);
            let header = self.header(previous.completion, previous.prompt);
            let ids = [header, &previous.completion[..answered]].concat();
            let open = self.blocks(&ids).into_iter().any(|block| {
                let header = &ids[block.start + 1..block.message];
                !block.closed && block.end == ids.len() && self.channel_of(header).as_deref() == Some("analysis")
            });
            if open {
                return Err(Unbridged::OpenReasoning);
            }
        } else {
            writer.control(self.end, Place::BETWEEN);
        }
        let texts = texts(new, NAME).map_err(|_| Unbridged::Message)?;
        for (at, (message, text)) in new.iter().zip(&texts).enumerate() {
            self.heard(&mut writer, message, at, text);
        }
        self.begin_answer(&mut writer);
        Ok(writer.extension())
    }

    fn parse(&self, completion: &[u32], prompt: &[u32], _: &[Tool]) -> Parsed {
        let header = self.header(completion, prompt);
        if header.is_empty() && completion.first() != Some(&self.start) {
            let end = completion.iter().position(|id| self.stops.contains(id)).unwrap_or(completion.len());
            let content = self.tokenizer.decode(&completion[..end]);
            return Parsed { content, reasoning_complete: Some(true), ..Parsed::default() };
        }
        let end = completion.iter().position(|id| *id == self.stops[0]).unwrap_or(completion.len());
        let ids = [header, &completion[..end]].concat();
        let (mut reasoning, mut content, mut calls) = (String::new(), String::new(), Vec::new());
        let mut complete = true;
        for block in self.blocks(&ids) {
            let head = &ids[block.start + 1..block.message];
            let body = self.tokenizer.decode(&ids[block.message + 1..block.end]);
            let span = (
                block.start.saturating_sub(header.len()),
                (block.end + usize::from(block.closed)).saturating_sub(header.len()),
            );
            match (tool(&self.tokenizer.decode(head)), self.channel_of(head).as_deref()) {
                (Some(name), _) => calls.push(call(name, body, span, block.closed)),
                (None, Some("analysis")) => {
                    reasoning.push_str(&body);
                    complete = block.closed || block.end < ids.len();
                }
                (None, Some("final" | "commentary")) => content.push_str(&body),
                _ => {}
            }
        }
        let reasoning = strip(&reasoning).to_owned();
        Parsed {
            content: strip(&content).to_owned(),
            reasoning: (!complete || !reasoning.is_empty()).then_some(reasoning),
            reasoning_complete: Some(complete),
            calls,
        }
    }

    fn stop_ids(&self) -> &[u32] {
        &self.stops
    }
}

/// A tool's name as harmony addresses it.
fn functions(name: &str) -> String {
    if name.starts_with("functions.") { name.to_owned() } else { format!("functions.{name}") }
}

/// The tool that a header addresses.
fn tool(header: &str) -> Option<String> {
    let ends = |c: char| is_space(c) || c == '<';
    let mut named = header.match_indices("to=").map(|(at, to)| header[at + to.len()..].split(ends).next());
    let recipient = named.find_map(|name| name.filter(|name| !name.is_empty()))?;
    recipient.strip_prefix("functions.").map(str::to_owned)
}

fn call(name: String, body: String, span: (usize, usize), closed: bool) -> ParsedCall {
    let status = match () {
        () if serde_json::from_str::<IgnoredAny>(&body).is_err() => CallStatus::InvalidJson,
        () if !closed => CallStatus::Unclosed,
        () if name.is_empty() => CallStatus::MissingName,
        () => CallStatus::Ok,
    };
    let name = (!name.is_empty()).then_some(name);
    ParsedCall { raw: body.clone(), name, arguments: Some(body), span: Some(span), status, id: None }
}

/// A tool as a function's type.
fn declaration(tool: &Tool) -> String {
    let mut text = String::new();
    for line in tool.description.lines() {
        text.extend(["// ", line, "\n"]);
    }
    let arguments = schema::type_of(&Value::Object(tool.parameters.clone()), "");
    text.extend(["type ", &tool.name, " = (_: ", &arguments, ") => any;\n\n"]);
    text
}
