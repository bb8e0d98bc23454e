//! What the families share whose messages stand between `<|im_start|>role` and `<|im_end|>`.

use std::borrow::Cow;

use crate::{
    render::{
        RenderError, Tokenizer,
        python::{dumps, strip},
        rendered::Place,
        writer::{Piece, Writer},
    },
    trace::{Message, Tool},
};

const TOOLS: &str = "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with \
                     function signatures within <tools></tools> XML tags:\n<tools>";
const TOOLS_END: &str = "\n</tools>\n\nFor each function call, return a json object with function name and arguments within \
                         <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": \
                         <args-json-object>}\n</tool_call>";

/// The tokens that frame a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) start: u32,
    pub(super) end: u32,
}

impl Frame {
    pub(super) fn new(tokenizer: &Tokenizer, renderer: &'static str) -> Result<Self, RenderError> {
        Ok(Self {
            start: tokenizer.control("<|im_start|>", renderer)?,
            end: tokenizer.control("<|im_end|>", renderer)?,
        })
    }

    /// A whole message that nobody sampled: its role, and pieces that are tokenized together with it.
    pub(super) fn message(self, writer: &mut Writer<'_>, role: &str, message: Option<u32>, text: &[Piece<'_>]) {
        let template = Place::template(message);
        writer.control(self.start, template);
        let role = format!("{role}\n");
        let mut pieces = vec![Piece::template(&role, template)];
        pieces.extend_from_slice(text);
        writer.pieces(&pieces);
        self.close(writer, template);
    }

    /// The beginning of an answer.
    pub(super) fn open_answer(self, writer: &mut Writer<'_>, place: Place) {
        writer.control(self.start, place);
        writer.template("assistant\n", place);
    }

    /// The end of a message that nobody sampled.
    pub(super) fn close(self, writer: &mut Writer<'_>, place: Place) {
        writer.control(self.end, place);
        writer.template("\n", place);
    }

    /// The system message of the form called hermes, which shows the tools after what the system says.
    pub(super) fn hermes_tools(
        self,
        writer: &mut Writer<'_>,
        system: Option<&str>,
        default: Option<&str>,
        tools: &[Tool],
    ) {
        let owner = system.map(|_| 0);
        let template = Place::template(owner);
        let listed: Vec<String> = tools.iter().map(|tool| dumps(&super::tool(tool))).collect();
        let mut pieces = Vec::new();
        pieces.extend(system.map(|text| Piece::message(text, Place::content(owner))));
        pieces.extend(default.filter(|_| system.is_none()).map(|text| Piece::template(text, template)));
        pieces.extend(system.or(default).map(|_| Piece::template("\n\n", template)));
        pieces.push(Piece::template(TOOLS, template));
        for tool in &listed {
            pieces.push(Piece::template("\n", template));
            pieces.push(Piece::message(tool, template));
        }
        pieces.push(Piece::template(TOOLS_END, template));
        self.message(writer, "system", owner, &pieces);
    }

    /// A message that nobody sampled, at its place among the others. Neighbouring tool results share one message of the
    /// user, which is tokenized as a whole with the first of them.
    pub(super) fn hermes_heard(self, writer: &mut Writer<'_>, messages: &[Message], at: usize, texts: &[Cow<'_, str>]) {
        let place = |at: usize| (Place::template(at as u32), Place::content(at as u32));
        let role = match &messages[at] {
            Message::Tool(_) => {
                let is_tool = |message: &Message| matches!(message, Message::Tool(_));
                if at > 0 && is_tool(&messages[at - 1]) {
                    return;
                }
                let results = messages[at..].iter().take_while(|message| is_tool(message)).count();
                writer.control(self.start, place(at).0);
                let mut pieces = vec![Piece::template("user", place(at).0)];
                for (at, text) in texts.iter().enumerate().skip(at).take(results) {
                    pieces.push(Piece::template("\n<tool_response>\n", place(at).0));
                    pieces.push(Piece::message(text, place(at).1));
                    pieces.push(Piece::template("\n</tool_response>", place(at).0));
                }
                writer.pieces(&pieces);
                self.close(writer, place(at + results - 1).0);
                return;
            }
            Message::System(_) => "system",
            _ => "user",
        };
        self.message(writer, role, Some(at as u32), &[Piece::message(&texts[at], place(at).1)]);
    }
}

/// A call between its two control tokens.
pub(super) fn hermes_call(writer: &mut Writer<'_>, [open, close]: [u32; 2], name: &str, arguments: &str, place: Place) {
    writer.control(open, place);
    writer.pieces(&[
        Piece::template("\n{\"name\": \"", place),
        Piece::message(name, place),
        Piece::template("\", \"arguments\": ", place),
        Piece::message(arguments, place),
        Piece::template("}\n", place),
    ]);
    writer.control(close, place);
}

/// The user speaks, rather than passing on what a tool said.
pub(super) fn is_query(message: &Message) -> bool {
    let Message::User(user) = message else { return false };
    let text = super::text(&user.content).unwrap_or_default();
    let text = strip(&text);
    !(text.starts_with("<tool_response>") && text.ends_with("</tool_response>"))
}
