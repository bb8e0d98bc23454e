//! Qwen3.5, text only, as the package `renderers` 0.1.12 writes it.
//!
//! As in Qwen3 the empty block of an answer without reasoning stays in earlier answers when reasoning is switched off, unlike in
//! the model's own template.

use std::sync::{Arc, LazyLock};

use indexmap::IndexMap;
use regex::Regex;

use super::{
    chatml::{Frame, is_query},
    reasoning_and_content, texts,
};
use crate::{
    config::ThinkingRetention,
    render::{
        CallStatus, Extension, Parsed, ParsedCall, Previous, RenderError, Rendered, Renderer, Tokenizer, Unbridged,
        arguments::{coerce, schemas},
        bridge::{Retention, extensible},
        calls::{Block, blocks},
        python::{dumps, members, object, repr, strip},
        reasoning::Reasoning,
        rendered::Place,
        writer::{Piece, Writer},
    },
    trace::{AssistantMessage, Message, Tool},
};

const NAME: &str = "qwen3.5";

const TOOLS: &str = "# Tools\n\nYou have access to the following functions:\n\n<tools>";
const TOOLS_END: &str = "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n\
                         <tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n\
                         </parameter>\n<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat \
                         can span\nmultiple lines\n</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n- \
                         Function calls MUST follow the specified format: an inner <function=...></function> block must be \
                         nested within <tool_call></tool_call> XML tags\n- Required parameters MUST be specified\n- You may \
                         provide optional reasoning for your function call in natural language BEFORE the function call, \
                         but NOT after\n- If there is no function call available, answer the question like normal with \
                         your current knowledge and do not tell the user about function calls\n</IMPORTANT>";

/// Sizes whose template has reasoning switched off.
const WITHOUT_REASONING: &[&str] = &["Qwen/Qwen3.5-0.8B", "Qwen/Qwen3.5-2B"];

static FUNCTION: LazyLock<Regex> = LazyLock::new(|| Regex::new("<function=([^>]+)>").expect("a valid expression"));
static PARAMETER: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?s)<parameter=([^>]+)>\n?(.*?)\n?</parameter>").expect("a valid expression"));

/// The renderer of Qwen3.5.
#[derive(Debug)]
pub(super) struct Qwen35 {
    tokenizer: Arc<Tokenizer>,
    enable_thinking: bool,
    retention: Retention,
    frame: Frame,
    think: [u32; 2],
    call: [u32; 2],
    response: [u32; 2],
    stops: [u32; 2],
    reasoning: Reasoning,
}

impl Qwen35 {
    pub(super) fn new(
        tokenizer: Arc<Tokenizer>,
        model: &str,
        enable_thinking: Option<bool>,
        retention: Option<ThinkingRetention>,
    ) -> Result<Self, RenderError> {
        let control = |token: &str| tokenizer.control(token, NAME);
        let pair = |name: &str| Ok([control(&format!("<{name}>"))?, control(&format!("</{name}>"))?]);
        let enable_thinking = enable_thinking.unwrap_or(!WITHOUT_REASONING.contains(&model));
        let frame = Frame::new(&tokenizer, NAME)?;
        let call = pair("tool_call")?;
        let stops = [frame.end, control("<|endoftext|>")?];
        let template = if enable_thinking { Retention::ToolCycle } else { Retention::All };
        Ok(Self {
            enable_thinking,
            retention: Retention::resolve(retention, template),
            frame,
            think: pair("think")?,
            call,
            response: pair("tool_response")?,
            stops,
            reasoning: Reasoning::new(&tokenizer, Some(call[0]), "<|im_start|>assistant\n", &stops),
            tokenizer,
        })
    }

    fn system(&self, writer: &mut Writer<'_>, system: Option<&str>, tools: &[Tool]) {
        let owner = system.map(|_| 0);
        let (template, content) = (Place::template(owner), Place::content(owner));
        let system = system.map(strip).unwrap_or_default();
        if tools.is_empty() {
            self.frame.message(writer, "system", owner, &[Piece::message(system, content)]);
            return;
        }
        let listed: Vec<String> = tools.iter().map(|tool| dumps(&super::tool(tool))).collect();
        let mut pieces = vec![Piece::template(TOOLS, template)];
        for tool in &listed {
            pieces.push(Piece::template("\n", template));
            pieces.push(Piece::message(tool, template));
        }
        pieces.push(Piece::template(TOOLS_END, template));
        if !system.is_empty() {
            pieces.push(Piece::template("\n\n", template));
            pieces.push(Piece::message(system, content));
        }
        self.frame.message(writer, "system", owner, &pieces);
    }

    /// A message that nobody sampled, at its place among the others; neighbouring tool results share one of the user.
    fn heard(&self, writer: &mut Writer<'_>, messages: &[Message], at: usize, text: &str) {
        let (template, content) = (Place::template(at as u32), Place::content(at as u32));
        let text = strip(text);
        let role = match &messages[at] {
            Message::Tool(_) => {
                let is_tool = |at: usize| matches!(messages.get(at), Some(Message::Tool(_)));
                if at == 0 || !is_tool(at - 1) {
                    writer.control(self.frame.start, template);
                    writer.template("user", template);
                }
                writer.template("\n", template);
                writer.control(self.response[0], template);
                writer.pieces(&[
                    Piece::template("\n", template),
                    Piece::message(text, content),
                    Piece::template("\n", template),
                ]);
                writer.control(self.response[1], template);
                if !is_tool(at + 1) {
                    self.frame.close(writer, template);
                }
                return;
            }
            Message::System(_) => "system",
            _ => "user",
        };
        self.frame.message(writer, role, Some(at as u32), &[Piece::message(text, content)]);
    }

    fn begin_answer(&self, writer: &mut Writer<'_>) {
        self.frame.open_answer(writer, Place::BETWEEN);
        writer.control(self.think[0], Place::BETWEEN);
        if self.enable_thinking {
            writer.template("\n", Place::BETWEEN);
        } else {
            writer.template("\n\n", Place::BETWEEN);
            writer.control(self.think[1], Place::BETWEEN);
            writer.template("\n\n", Place::BETWEEN);
        }
    }

    fn answer(&self, writer: &mut Writer<'_>, at: usize, answer: &AssistantMessage, current: bool) {
        let (template, sampled) = (Place::template(at as u32), Place::sampled(at as u32));
        let (reasoning, content) = reasoning_and_content(answer, strip(answer.content.as_deref().unwrap_or_default()));
        let reasoning = strip(reasoning);
        self.frame.open_answer(writer, template);
        if current || !self.enable_thinking && reasoning.is_empty() {
            writer.control(self.think[0], sampled);
            writer.pieces(&[
                Piece::template("\n", sampled),
                Piece::message(reasoning, sampled),
                Piece::template("\n", sampled),
            ]);
            writer.control(self.think[1], sampled);
            writer.pieces(&[Piece::template("\n\n", sampled), Piece::message(content, sampled)]);
        } else {
            writer.message(content, sampled);
        }
        for (position, call) in answer.tool_calls.iter().flatten().enumerate() {
            match position {
                0 if strip(content).is_empty() => {}
                0 => writer.template("\n\n", sampled),
                _ => writer.template("\n", sampled),
            }
            writer.control(self.call[0], sampled);
            writer.pieces(&[
                Piece::template("\n<function=", sampled),
                Piece::message(&call.name, sampled),
                Piece::template(">\n", sampled),
            ]);
            for (key, value) in members(&call.arguments) {
                writer.pieces(&[
                    Piece::template("<parameter=", sampled),
                    Piece::message(&key, sampled),
                    Piece::template(">\n", sampled),
                    Piece::message(&repr(&value), sampled),
                    Piece::template("\n</parameter>\n", sampled),
                ]);
            }
            writer.template("</function>\n", sampled);
            writer.control(self.call[1], sampled);
        }
        writer.control(self.frame.end, sampled);
        writer.template("\n", template);
    }

    fn read_call(&self, ids: &[u32], block: Block, offset: usize, tools: &[Tool]) -> ParsedCall {
        let raw = self.tokenizer.decode(block.inside(ids));
        let span = Some(block.span(offset));
        let name = FUNCTION.captures(&raw).map(|found| found[1].to_owned());
        let Some(name) = name.filter(|_| block.closed) else {
            let status = if block.closed { CallStatus::Malformed } else { CallStatus::Unclosed };
            return ParsedCall { raw, name: None, arguments: None, span, status, id: None };
        };
        let schemas = schemas(tools, &name);
        let mut suspect = false;
        let mut arguments = IndexMap::new();
        for parameter in PARAMETER.captures_iter(&raw) {
            let schema = schemas.and_then(|schemas| schemas.get(&parameter[1]));
            let (value, fallback) = coerce(strip(&parameter[2]), schema);
            suspect |= fallback;
            arguments.insert(parameter[1].to_owned(), value);
        }
        let status = if suspect { CallStatus::InvalidJson } else { CallStatus::Ok };
        let arguments = Some(object(&arguments));
        ParsedCall { raw, name: Some(name), arguments, span, status, id: None }
    }
}

impl Renderer for Qwen35 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    fn render(&self, messages: &[Message], tools: &[Tool], generate: bool) -> Result<Rendered, RenderError> {
        let texts = texts(messages, NAME)?;
        let mut writer = Writer::new(&self.tokenizer);
        let system = matches!(messages[0], Message::System(_)).then(|| &*texts[0]);
        if system.is_some() || !tools.is_empty() {
            self.system(&mut writer, system, tools);
        }
        let last_query = messages.iter().rposition(is_query);
        for (at, message) in messages.iter().enumerate().skip(usize::from(system.is_some())) {
            match message {
                Message::Assistant(answer) => {
                    self.answer(&mut writer, at, answer, last_query.is_some_and(|last| at > last));
                }
                Message::System(_) => {
                    let reason = "its template allows a system message only as the first".to_owned();
                    return Err(RenderError::Conversation { renderer: NAME, reason });
                }
                _ => self.heard(&mut writer, messages, at, &texts[at]),
            }
        }
        if generate {
            self.begin_answer(&mut writer);
        }
        Ok(writer.rendered())
    }

    fn bridge(&self, previous: Previous<'_>, new: &[Message], _: &[Tool]) -> Result<Extension, Unbridged> {
        extensible(previous, new)?;
        self.retention.allows(new, is_query)?;
        let mut writer = Writer::new(&self.tokenizer);
        self.reasoning.end_turn(&mut writer, &self.tokenizer, previous, self.frame.end)?;
        writer.template("\n", Place::BETWEEN);
        let texts = texts(new, NAME).map_err(|_| Unbridged::Message)?;
        for (at, text) in texts.iter().enumerate() {
            self.heard(&mut writer, new, at, text);
        }
        self.begin_answer(&mut writer);
        Ok(writer.extension())
    }

    fn parse(&self, completion: &[u32], prompt: &[u32], tools: &[Tool]) -> Parsed {
        let end = completion.iter().position(|id| self.stops.contains(id)).unwrap_or(completion.len());
        let ids = &completion[..end];
        let (region, rest) = match self.reasoning.read(&self.tokenizer, ids, prompt) {
            Ok(read) => read,
            Err(unfinished) => return unfinished,
        };
        let ids = &ids[rest..];
        let first = ids.iter().position(|id| *id == self.call[0]).unwrap_or(ids.len());
        let blocks = blocks(ids, self.call).into_iter();
        Parsed {
            content: strip(&self.tokenizer.decode(&ids[..first])).to_owned(),
            // An empty block is one: rendered again it must come out the same.
            reasoning: region.map(|region| strip(&region.text).to_owned()),
            reasoning_complete: Some(true),
            calls: blocks.map(|block| self.read_call(ids, block, rest, tools)).collect(),
        }
    }

    fn stop_ids(&self) -> &[u32] {
        &self.stops
    }
}
