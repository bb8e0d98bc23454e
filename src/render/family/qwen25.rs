//! Qwen2.5 Instruct, as its own chat template writes it.

use std::{borrow::Cow, sync::Arc};

use super::{
    chatml::{Frame, hermes_call},
    texts,
};
use crate::{
    render::{
        Extension, Parsed, Previous, RenderError, Rendered, Renderer, Tokenizer, Unbridged,
        bridge::{end_of_turn, extensible},
        calls,
        python::{reread, strip},
        rendered::Place,
        writer::{Piece, Writer},
    },
    trace::{AssistantMessage, Message, Tool},
};

const NAME: &str = "qwen2.5";
const SYSTEM: &str = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";

/// The renderer of Qwen2.5.
#[derive(Debug)]
pub(super) struct Qwen25 {
    tokenizer: Arc<Tokenizer>,
    frame: Frame,
    call: [u32; 2],
    stops: [u32; 2],
}

impl Qwen25 {
    pub(super) fn new(tokenizer: Arc<Tokenizer>) -> Result<Self, RenderError> {
        let control = |token| tokenizer.control(token, NAME);
        let frame = Frame::new(&tokenizer, NAME)?;
        let call = [control("<tool_call>")?, control("</tool_call>")?];
        let stops = [frame.end, control("<|endoftext|>")?];
        Ok(Self { tokenizer, frame, call, stops })
    }

    fn answer(&self, writer: &mut Writer<'_>, at: u32, answer: &AssistantMessage, text: &str) {
        let (template, sampled) = (Place::template(at), Place::sampled(at));
        let calls = answer.tool_calls.as_deref().unwrap_or_default();
        writer.control(self.frame.start, template);
        let gap = if calls.is_empty() || text.is_empty() { "" } else { "\n" };
        // As one text, as the template has it.
        writer.pieces(&[
            Piece::template("assistant\n", template),
            Piece::message(text, sampled),
            Piece::template(gap, sampled),
        ]);
        for (position, call) in calls.iter().enumerate() {
            writer.template(if position > 0 { "\n" } else { "" }, sampled);
            hermes_call(writer, self.call, &call.name, &as_template_writes(&call.arguments), sampled);
        }
        writer.control(self.frame.end, sampled);
        writer.template("\n", template);
    }
}

impl Renderer for Qwen25 {
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
        match (tools, system) {
            ([], Some(text)) => {
                self.frame.message(&mut writer, "system", Some(0), &[Piece::message(text, Place::content(0))]);
            }
            ([], None) => {
                self.frame.message(&mut writer, "system", None, &[Piece::template(SYSTEM, Place::BETWEEN)]);
            }
            (tools, _) => self.frame.hermes_tools(&mut writer, system, Some(SYSTEM), tools),
        }
        for (at, message) in messages.iter().enumerate().skip(usize::from(system.is_some())) {
            match message {
                Message::Assistant(answer) => self.answer(&mut writer, at as u32, answer, &texts[at]),
                _ => self.frame.hermes_heard(&mut writer, messages, at, &texts),
            }
        }
        if generate {
            self.frame.open_answer(&mut writer, Place::BETWEEN);
        }
        Ok(writer.rendered())
    }

    fn bridge(&self, previous: Previous<'_>, new: &[Message], _: &[Tool]) -> Result<Extension, Unbridged> {
        extensible(previous, new)?;
        let mut writer = Writer::new(&self.tokenizer);
        if end_of_turn(previous.completion, &self.stops)?.is_none() {
            writer.control(self.frame.end, Place::BETWEEN);
        }
        writer.template("\n", Place::BETWEEN);
        let texts = texts(new, NAME).map_err(|_| Unbridged::Message)?;
        for at in 0..new.len() {
            self.frame.hermes_heard(&mut writer, new, at, &texts);
        }
        self.frame.open_answer(&mut writer, Place::BETWEEN);
        Ok(writer.extension())
    }

    fn parse(&self, completion: &[u32], _: &[u32], _: &[Tool]) -> Parsed {
        let end = completion.iter().position(|id| self.stops.contains(id)).unwrap_or(completion.len());
        let ids = &completion[..end];
        let first = ids.iter().position(|id| *id == self.call[0]).unwrap_or(end);
        Parsed {
            content: strip(&self.tokenizer.decode(&ids[..first])).to_owned(),
            reasoning: None,
            reasoning_complete: Some(true),
            calls: calls::hermes(&self.tokenizer, &ids[first..], first, self.call),
        }
    }

    fn stop_ids(&self) -> &[u32] {
        &self.stops
    }

    fn is_prefix_stable(&self) -> bool {
        true
    }
}

/// The template reads arguments and writes them anew; what is no JSON stays as it is.
fn as_template_writes(arguments: &str) -> Cow<'_, str> {
    reread(arguments).map_or(arguments.into(), Cow::from)
}
