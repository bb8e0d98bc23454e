//! The chat template: how a conversation becomes one text of tokens.

use serde_json::{Value, value::RawValue};

use super::{
    request::{ChatContent, ChatMessage},
    token::{END, START, Sink},
};

/// Writes a tool call as the model samples it.
pub(super) fn push_call(text: &mut String, name: &str, arguments: &str) {
    let name = Value::from(name);
    text.push_str("<tool_call>\n{\"name\": ");
    text.push_str(&name.to_string());
    text.push_str(", \"arguments\": ");
    text.push_str(arguments);
    text.push_str("}\n</tool_call>");
}

/// Renders a conversation with the chat template.
pub(super) fn render(sink: &mut impl Sink, messages: &[ChatMessage<'_>], tools: Option<&RawValue>, generate: bool) {
    if let Some(tools) = tools {
        sink.mark(START);
        sink.bytes(b"tools");
        sink.bytes(b"\n");
        sink.bytes(tools.get().as_bytes());
        sink.mark(END);
        sink.bytes(b"\n");
        sink.boundary();
    }
    for message in messages {
        message.render(sink);
    }
    if generate {
        sink.mark(START);
        sink.bytes(b"assistant");
        sink.bytes(b"\n");
    }
}

impl ChatMessage<'_> {
    fn render(&self, sink: &mut impl Sink) {
        sink.mark(START);
        sink.bytes(self.role.as_bytes());
        sink.bytes(b"\n");
        match (&self.content, &self.tool_calls) {
            (content, Some(calls)) if !calls.is_empty() => {
                let mut whole = match content {
                    None => String::new(),
                    Some(_) => self.text().into_owned(),
                };
                for (index, call) in calls.iter().enumerate() {
                    if index > 0 {
                        whole.push('\n');
                    }
                    push_call(&mut whole, &call.function.name, call.function.arguments.as_deref().unwrap_or("{}"));
                }
                // In one piece, as the answer was, so that both hash alike.
                sink.bytes(whole.as_bytes());
            }
            (None, _) => {}
            (Some(ChatContent::Text(text)), _) => sink.bytes(text.as_bytes()),
            (Some(ChatContent::Parts(parts)), _) => {
                for (index, part) in parts.iter().enumerate() {
                    if index > 0 {
                        sink.bytes(b"\n");
                    }
                    if let Some(text) = &part.text {
                        sink.bytes(text.as_bytes());
                    }
                    if let Some(image) = &part.image_url {
                        sink.image(&image.url);
                    }
                }
            }
        }
        sink.mark(END);
        sink.bytes(b"\n");
        sink.boundary();
    }
}
