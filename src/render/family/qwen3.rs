//! Qwen3, text only, as the package `renderers` 0.1.12 writes it.
//!
//! Earlier reasoning is dropped when the user speaks again. With reasoning switched off, the empty block that the prompt
//! begins an answer with stays in earlier answers, too, unlike in the model's own template: the model has seen it.

use std::sync::Arc;

use super::{
    chatml::{Frame, hermes_call, is_query},
    reasoning_and_content, texts,
};
use crate::{
    config::ThinkingRetention,
    render::{
        Extension, Parsed, Previous, RenderError, Rendered, Renderer, Tokenizer, Unbridged,
        bridge::{Retention, extensible},
        calls,
        python::strip,
        reasoning::Reasoning,
        rendered::Place,
        writer::{Piece, Writer},
    },
    trace::{AssistantMessage, Message, Tool},
};

const NAME: &str = "qwen3";

const NO_REASONING: &str = "<think>\n\n</think>\n\n";

/// The renderer of Qwen3.
#[derive(Debug)]
pub(super) struct Qwen3 {
    tokenizer: Arc<Tokenizer>,
    enable_thinking: bool,
    retention: Retention,
    frame: Frame,
    call: [u32; 2],
    stops: [u32; 2],
    reasoning: Reasoning,
}

impl Qwen3 {
    pub(super) fn new(
        tokenizer: Arc<Tokenizer>,
        enable_thinking: bool,
        retention: Option<ThinkingRetention>,
    ) -> Result<Self, RenderError> {
        let control = |token| tokenizer.control(token, NAME);
        let frame = Frame::new(&tokenizer, NAME)?;
        let call = [control("<tool_call>")?, control("</tool_call>")?];
        let stops = [frame.end, control("<|endoftext|>")?];
        let reasoning = Reasoning::new(&tokenizer, Some(call[0]), "<|im_start|>assistant\n", &stops);
        let template = if enable_thinking { Retention::ToolCycle } else { Retention::All };
        Ok(Self {
            enable_thinking,
            retention: Retention::resolve(retention, template),
            frame,
            call,
            stops,
            reasoning,
            tokenizer,
        })
    }
}

impl Renderer for Qwen3 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    fn render(&self, messages: &[Message], tools: &[Tool], generate: bool) -> Result<Rendered, RenderError> {
        let texts = texts(messages, NAME)?;
        let mut writer = Writer::new(&self.tokenizer);
        let system = matches!(messages[0], Message::System(_));
        if !tools.is_empty() {
            self.frame.hermes_tools(&mut writer, system.then(|| &*texts[0]), None, tools);
        } else if system {
            self.frame.message(&mut writer, "system", Some(0), &[Piece::message(&texts[0], Place::content(0))]);
        }
        let last_query = messages.iter().rposition(is_query).unwrap_or(messages.len() - 1);
        for (at, message) in messages.iter().enumerate().skip(usize::from(system)) {
            match message {
                Message::Assistant(answer) => {
                    let last = at + 1 == messages.len();
                    self.answer(&mut writer, at as u32, answer, at > last_query, last);
                }
                _ => self.frame.hermes_heard(&mut writer, messages, at, &texts),
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
        for at in 0..new.len() {
            self.frame.hermes_heard(&mut writer, new, at, &texts);
        }
        self.begin_answer(&mut writer);
        Ok(writer.extension())
    }

    fn parse(&self, completion: &[u32], prompt: &[u32], _: &[Tool]) -> Parsed {
        let end = completion.iter().position(|id| self.stops.contains(id)).unwrap_or(completion.len());
        let ids = &completion[..end];
        let (region, begin) = match self.reasoning.read(&self.tokenizer, ids, prompt) {
            Ok(read) => read,
            Err(unfinished) => return unfinished,
        };
        let first = ids[begin..].iter().position(|id| *id == self.call[0]).map_or(ids.len(), |at| begin + at);
        let content = self.tokenizer.decode(&ids[begin..first]);
        let reasoning = region.map(|region| strip(&region.text).to_owned()).filter(|text| !text.is_empty());
        Parsed {
            content: strip(&content).to_owned(),
            reasoning,
            reasoning_complete: Some(true),
            calls: calls::hermes(&self.tokenizer, &ids[first..], first, self.call),
        }
    }

    fn stop_ids(&self) -> &[u32] {
        &self.stops
    }
}

impl Qwen3 {
    fn answer(&self, writer: &mut Writer<'_>, at: u32, answer: &AssistantMessage, current: bool, last: bool) {
        let (reasoning, content) = reasoning_and_content(answer, answer.content.as_deref().unwrap_or_default());
        let (template, sampled) = (Place::template(at), Place::sampled(at));
        self.frame.open_answer(writer, template);
        let reasons = current && (last || !reasoning.is_empty()) || !self.enable_thinking && reasoning.is_empty();
        let mut body = Vec::new();
        if reasons {
            body.push(Piece::template("<think>\n", sampled));
            body.push(Piece::message(reasoning.trim_matches('\n'), sampled));
            body.push(Piece::template("\n</think>\n\n", sampled));
        }
        let shown = if reasons { content.trim_start_matches('\n') } else { content };
        body.push(Piece::message(shown, sampled));
        let calls = answer.tool_calls.as_deref().unwrap_or_default();
        if !calls.is_empty() && !content.is_empty() {
            body.push(Piece::template("\n", sampled));
        }
        writer.pieces(&body);
        for (position, call) in calls.iter().enumerate() {
            writer.template(if position > 0 { "\n" } else { "" }, sampled);
            hermes_call(writer, self.call, &call.name, &call.arguments, sampled);
        }
        writer.control(self.frame.end, sampled);
        writer.template("\n", template);
    }

    fn begin_answer(&self, writer: &mut Writer<'_>) {
        self.frame.open_answer(writer, Place::BETWEEN);
        if !self.enable_thinking {
            writer.template(NO_REASONING, Place::BETWEEN);
        }
    }
}
