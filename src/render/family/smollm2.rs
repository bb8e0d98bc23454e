//! SmolLM2 Instruct, as its own chat template writes it. The format knows no tools: they are refused rather than dropped.

use std::sync::Arc;

use super::{chatml::Frame, texts};
use crate::{
    render::{
        Extension, Parsed, Previous, RenderError, Rendered, Renderer, Tokenizer, Unbridged,
        bridge::{end_of_turn, extensible},
        rendered::Place,
        writer::{Piece, Writer},
    },
    trace::{Message, Tool},
};

const NAME: &str = "smollm2";
const SYSTEM: &str = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";

/// The renderer of SmolLM2.
#[derive(Debug)]
pub(super) struct SmolLm2 {
    tokenizer: Arc<Tokenizer>,
    frame: Frame,
    stops: Vec<u32>,
}

impl SmolLm2 {
    pub(super) fn new(tokenizer: Arc<Tokenizer>) -> Result<Self, RenderError> {
        let frame = Frame::new(&tokenizer, NAME)?;
        let stops = [Some(frame.end), tokenizer.id("<|endoftext|>")].into_iter().flatten().collect();
        Ok(Self { tokenizer, frame, stops })
    }

    fn heard(&self, writer: &mut Writer<'_>, message: &Message, at: u32, text: &str) {
        let role = match message {
            Message::System(_) => "system",
            Message::Tool(_) => "tool",
            _ => "user",
        };
        self.frame.message(writer, role, Some(at), &[Piece::message(text, Place::content(at))]);
    }
}

impl Renderer for SmolLm2 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    fn render(&self, messages: &[Message], tools: &[Tool], generate: bool) -> Result<Rendered, RenderError> {
        let fault = |reason: &str| Err(RenderError::Conversation { renderer: NAME, reason: reason.to_owned() });
        let texts = texts(messages, NAME)?;
        if !tools.is_empty() {
            return fault("its format shows no tools; take another model, or offer none");
        }
        let mut writer = Writer::new(&self.tokenizer);
        if !matches!(messages[0], Message::System(_)) {
            self.frame.message(&mut writer, "system", None, &[Piece::template(SYSTEM, Place::BETWEEN)]);
        }
        for (at, (message, text)) in messages.iter().zip(&texts).enumerate() {
            let Message::Assistant(answer) = message else {
                self.heard(&mut writer, message, at as u32, text);
                continue;
            };
            if answer.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty()) {
                return fault("its format shows no tool calls");
            }
            let (template, sampled) = (Place::template(at as u32), Place::sampled(at as u32));
            writer.control(self.frame.start, template);
            // As one text, as the template has it.
            writer.pieces(&[Piece::template("assistant\n", template), Piece::message(text, sampled)]);
            writer.control(self.frame.end, sampled);
            writer.template("\n", template);
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
        for (at, (message, text)) in new.iter().zip(&texts).enumerate() {
            self.heard(&mut writer, message, at as u32, text);
        }
        self.frame.open_answer(&mut writer, Place::BETWEEN);
        Ok(writer.extension())
    }

    fn parse(&self, completion: &[u32], _: &[u32], _: &[Tool]) -> Parsed {
        let end = completion.iter().position(|id| self.stops.contains(id)).unwrap_or(completion.len());
        let content = self.tokenizer.decode(&completion[..end]);
        Parsed { content, reasoning_complete: Some(true), ..Parsed::default() }
    }

    fn stop_ids(&self) -> &[u32] {
        &self.stops
    }

    fn is_prefix_stable(&self) -> bool {
        true
    }
}
