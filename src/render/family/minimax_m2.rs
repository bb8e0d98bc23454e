//! MiniMax M2 and M2.5, as the package `renderers` 0.1.12 writes M2.5.

use std::sync::{Arc, LazyLock};

use indexmap::IndexMap;
use regex::Regex;

use super::{reasoning_and_content, texts, visible};
use crate::{
    config::ThinkingRetention,
    render::{
        CallStatus, Extension, Parsed, ParsedCall, Previous, RenderError, Rendered, Renderer, Tokenizer, Unbridged,
        arguments::{coerce, schemas},
        bridge::{Retention, extensible, is_user},
        calls::{Block, blocks},
        python::{bare, dumps, members, object, strip},
        reasoning::Reasoning,
        rendered::Place,
        writer::{Piece, Writer},
    },
    trace::{AssistantMessage, Message, Tool, ToolCall},
};

const NAME: &str = "minimax-m2";

const IDENTITY: &str = "You are a helpful assistant. Your name is MiniMax-M2.5 and is built by MiniMax.";
const TOOLS: &str = "\n\n# Tools\nYou may call one or more tools to assist with the user query.\nHere are the tools available \
                     in JSONSchema format:\n\n<tools>\n";
const TOOLS_END: &str = "</tools>\n\nWhen making tool calls, use XML format to invoke tools and pass parameters:\n\n\
                         <minimax:tool_call>\n<invoke name=\"tool-name-1\">\n<parameter name=\"param-key-1\">param-value-1\
                         </parameter>\n<parameter name=\"param-key-2\">param-value-2</parameter>\n...\n</invoke>\n\
                         </minimax:tool_call>";

static INVOKE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r#"(?s)<invoke name="([^"]+)">(.*?)</invoke>"#).expect("a valid expression"));
static PARAMETER: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r#"(?s)<parameter name="([^"]+)">(.*?)</parameter>"#).expect("a valid expression"));

/// The renderer of MiniMax M2.
#[derive(Debug)]
pub(super) struct MiniMaxM2 {
    tokenizer: Arc<Tokenizer>,
    identity: String,
    retention: Retention,
    begin: u32,
    role: u32,
    think: [u32; 2],
    call: [u32; 2],
    /// The end of a message.
    stops: [u32; 1],
    reasoning: Reasoning,
}

impl MiniMaxM2 {
    pub(super) fn new(
        tokenizer: Arc<Tokenizer>,
        identity: Option<&str>,
        retention: Option<ThinkingRetention>,
    ) -> Result<Self, RenderError> {
        let control = |token: &str| tokenizer.control(token, NAME);
        let call = [control("<minimax:tool_call>")?, control("</minimax:tool_call>")?];
        let stops = [control("[e~[")?];
        Ok(Self {
            identity: identity.unwrap_or(IDENTITY).to_owned(),
            retention: Retention::resolve(retention, Retention::ToolCycle),
            begin: control("]~!b[")?,
            role: control("]~b]")?,
            think: [control("<think>")?, control("</think>")?],
            call,
            stops,
            reasoning: Reasoning::new(&tokenizer, Some(call[0]), "]~b]ai\n", &stops),
            tokenizer,
        })
    }

    fn close(&self, writer: &mut Writer<'_>, place: Place) {
        writer.control(self.stops[0], place);
        writer.template("\n", place);
    }

    /// A message that nobody sampled, at its place among the others; neighbouring tool results share one.
    fn heard(&self, writer: &mut Writer<'_>, messages: &[Message], at: usize, text: &str) {
        let (template, content) = (Place::template(at as u32), Place::content(at as u32));
        let is_tool = |at: usize| matches!(messages.get(at), Some(Message::Tool(_)));
        if is_tool(at) {
            let (first, last) = (at == 0 || !is_tool(at - 1), !is_tool(at + 1));
            if first {
                writer.control(self.role, template);
                writer.template("tool", template);
            }
            writer.pieces_with_whole_content(&[
                Piece::template(if first { "\n<response>" } else { "<response>" }, template),
                Piece::message(text, content),
                Piece::template(if last { "</response>" } else { "</response>\n" }, template),
            ]);
            if last {
                self.close(writer, template);
            }
            return;
        }
        let role = if matches!(messages[at], Message::System(_)) { "system\n" } else { "user\n" };
        writer.control(self.role, template);
        writer.pieces(&[Piece::template(role, template), Piece::message(text, content)]);
        self.close(writer, template);
    }

    fn begin_answer(&self, writer: &mut Writer<'_>) {
        writer.control(self.role, Place::BETWEEN);
        writer.template("ai\n", Place::BETWEEN);
        writer.control(self.think[0], Place::BETWEEN);
        writer.template("\n", Place::BETWEEN);
    }

    fn system(&self, writer: &mut Writer<'_>, system: Option<&str>, tools: &[Tool]) {
        let owner = system.map(|_| 0);
        let template = Place::template(owner);
        writer.control(self.begin, template);
        writer.control(self.role, template);
        let listed: Vec<String> =
            tools.iter().map(|tool| format!("<tool>{}</tool>\n", dumps(&super::tool(tool)["function"]))).collect();
        let mut pieces = vec![Piece::template("system\n", template)];
        pieces.push(match system.filter(|text| !text.is_empty()) {
            Some(text) => Piece::message(text, Place::content(owner)),
            None => Piece::template(&self.identity, template),
        });
        if !tools.is_empty() {
            pieces.push(Piece::template(TOOLS, template));
            pieces.extend(listed.iter().map(|tool| Piece::message(tool, template)));
            pieces.push(Piece::template(TOOLS_END, template));
        }
        writer.pieces(&pieces);
        self.close(writer, template);
    }

    fn answer(&self, writer: &mut Writer<'_>, at: usize, answer: &AssistantMessage, current: bool) {
        let (template, sampled) = (Place::template(at as u32), Place::sampled(at as u32));
        let calls = answer.tool_calls.as_deref().unwrap_or_default();
        let text = visible(answer);
        let (reasoning, mut content) = reasoning_and_content(answer, text);
        if content.len() < text.len() {
            content = content.trim_end_matches('\n');
        }
        let reasons = current && !reasoning.is_empty();
        writer.control(self.role, template);
        let mut body = vec![Piece::message(content, sampled)];
        if reasons {
            writer.template("ai\n", template);
            writer.control(self.think[0], sampled);
            writer.pieces(&[
                Piece::template("\n", sampled),
                Piece::message(reasoning, sampled),
                Piece::template("\n", sampled),
            ]);
            writer.control(self.think[1], sampled);
            body.insert(0, Piece::template("\n\n", sampled));
        } else {
            let bare = !calls.is_empty() && content.is_empty();
            writer.template(if bare { "ai\n\n" } else { "ai\n" }, template);
        }
        if !calls.is_empty() && (reasons || !content.is_empty()) {
            body.push(Piece::template("\n", sampled));
        }
        writer.pieces(&body);
        if !calls.is_empty() {
            writer.control(self.call[0], sampled);
            writer.message(&invocations(calls), sampled);
            writer.control(self.call[1], sampled);
        }
        writer.control(self.stops[0], sampled);
        writer.template("\n", template);
    }

    fn read_block(&self, ids: &[u32], block: Block, offset: usize, tools: &[Tool]) -> Vec<ParsedCall> {
        let raw = self.tokenizer.decode(block.inside(ids));
        let span = Some(block.span(offset));
        let broken =
            |status| vec![ParsedCall { raw: raw.clone(), name: None, arguments: None, span, status, id: None }];
        if !block.closed {
            return broken(CallStatus::Unclosed);
        }
        let calls: Vec<ParsedCall> = INVOKE
            .captures_iter(&raw)
            .map(|invoke| {
                let schemas = schemas(tools, &invoke[1]);
                let mut suspect = false;
                let mut arguments = IndexMap::new();
                for parameter in PARAMETER.captures_iter(&invoke[2]) {
                    let schema = schemas.and_then(|schemas| schemas.get(&parameter[1]));
                    let (value, fallback) = coerce(strip(&parameter[2]), schema);
                    suspect |= fallback;
                    arguments.insert(parameter[1].to_owned(), value);
                }
                ParsedCall {
                    raw: raw.clone(),
                    name: Some(invoke[1].to_owned()),
                    arguments: Some(object(&arguments)),
                    span,
                    status: if suspect { CallStatus::InvalidJson } else { CallStatus::Ok },
                    id: None,
                }
            })
            .collect();
        if calls.is_empty() { broken(CallStatus::Malformed) } else { calls }
    }
}

impl Renderer for MiniMaxM2 {
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
        self.system(&mut writer, system, tools);
        let last_user = messages.iter().rposition(is_user);
        for (at, message) in messages.iter().enumerate().skip(usize::from(system.is_some())) {
            match message {
                Message::Assistant(answer) => {
                    self.answer(&mut writer, at, answer, last_user.is_none_or(|last| at > last));
                }
                Message::System(_) => {
                    let reason = "its template drops a system message that is not the first".to_owned();
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
        self.retention.allows(new, is_user)?;
        let mut writer = Writer::new(&self.tokenizer);
        self.reasoning.end_turn(&mut writer, &self.tokenizer, previous, self.stops[0])?;
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
            reasoning: region.map(|region| strip(&region.text).to_owned()).filter(|text| !text.is_empty()),
            reasoning_complete: Some(true),
            calls: blocks.flat_map(|block| self.read_block(ids, block, rest, tools)).collect(),
        }
    }

    fn stop_ids(&self) -> &[u32] {
        &self.stops
    }
}

/// All calls of an answer in one block.
fn invocations(calls: &[ToolCall]) -> String {
    let mut text = "\n".to_owned();
    for call in calls {
        text.extend(["<invoke name=\"", &call.name, "\">\n"]);
        for (key, value) in members(&call.arguments) {
            text.extend(["<parameter name=\"", &key, "\">", &bare(&value), "</parameter>\n"]);
        }
        text.push_str("</invoke>\n");
    }
    text
}
