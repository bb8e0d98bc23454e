//! Identities of messages and tool lists, as verifiers 0.4.0 computes them (`message_hash`, `_tools_hash`).

use blake2::{Blake2b, Digest, digest::consts::U16};
use serde_json::{Map, Value};

use super::{
    json::{PythonJson, Spacing, write_entries, write_value},
    message::{AssistantMessage, Content, ContentPart, Message, Tool, ToolCall, ToolCallKind},
};

/// A BLAKE2b digest of 16 bytes.
pub(super) type Digest16 = [u8; 16];

struct Fields(Blake2b<U16>);

impl Fields {
    /// Each string goes in with its length before it, so that no two sequences look the same.
    fn add(&mut self, text: &str) {
        self.0.update((text.len() as u64).to_be_bytes());
        self.0.update(text);
    }

    fn add_content(&mut self, content: &Content) {
        match content {
            Content::Text(text) => {
                self.add("content_text");
                self.add(text);
            }
            Content::Parts(parts) => {
                self.add("content_parts");
                for part in parts {
                    match part {
                        ContentPart::Text { text } => {
                            self.add("text");
                            self.add(text);
                        }
                        ContentPart::ImageUrl { image_url } => {
                            self.add("image_url");
                            self.add(&image_url.url);
                        }
                    }
                }
            }
        }
    }

    fn add_assistant(&mut self, message: &AssistantMessage) {
        self.add("content_text");
        self.add(message.content.as_deref().unwrap_or_default());
        if let Some(reasoning) = &message.reasoning_content {
            self.add("reasoning_content");
            self.add(reasoning);
        }
        let calls = message.tool_calls.as_deref().unwrap_or_default();
        for item in message.provider_state.iter().flatten() {
            self.add_provider_item(item, calls);
        }
        for call in calls {
            self.add("tool_call");
            self.add(match call.kind {
                ToolCallKind::Function => "function",
                ToolCallKind::Custom => "custom",
            });
            self.add(&call.id);
            self.add(&call.name);
            self.add(call.namespace.as_deref().unwrap_or_default());
            self.add(&canonical_arguments(call));
        }
    }

    /// Opaque provider items count by what the typed message does not already say.
    fn add_provider_item(&mut self, item: &Map<String, Value>, calls: &[ToolCall]) {
        let word = |key: &str| item.get(key).and_then(Value::as_str).filter(|word| !word.is_empty());
        let kind = word("type").unwrap_or(if word("role") == Some("assistant") { "message" } else { "" });
        let mut kept: Vec<(&str, &Value)> = ["encrypted_content", "signature", "data", "phase"]
            .into_iter()
            .filter_map(|key| item.get(key).filter(|value| !value.is_null()).map(|value| (key, value)))
            .collect();
        let unread = match item.get("content") {
            Some(Value::Array(parts)) if kind == "message" => parts
                .iter()
                .filter(|part| !matches!(part.get("type").and_then(Value::as_str), Some("input_text" | "output_text")))
                .cloned()
                .collect(),
            _ => Vec::new(),
        };
        let unread = Value::Array(unread);
        if unread.as_array().is_some_and(|parts| !parts.is_empty()) {
            kept.push(("content", &unread));
        }
        let represented = match kind {
            "message" | "reasoning" => true,
            "function_call" | "custom_tool_call" => {
                let id = item.get("call_id").and_then(Value::as_str);
                calls.iter().any(|call| Some(call.id.as_str()) == id)
            }
            _ => false,
        };
        if represented && kept.is_empty() {
            return;
        }
        let mut text = String::new();
        if represented {
            write_entries(&mut text, kept, Spacing::Spaced);
        } else {
            write_entries(&mut text, item.iter().map(|(key, value)| (key.as_str(), value)), Spacing::Spaced);
        }
        self.add("provider_state");
        self.add(kind);
        self.add(&text);
    }
}

/// Arguments with sorted keys and no spaces, so that key order and layout do not tell calls apart; text that is not
/// JSON, and free text input, stay as they are.
fn canonical_arguments(call: &ToolCall) -> String {
    let parsed = match call.kind {
        ToolCallKind::Function => PythonJson::read(&call.arguments),
        ToolCallKind::Custom => None,
    };
    match parsed {
        Some(arguments) => {
            let mut text = String::with_capacity(call.arguments.len());
            arguments.write(&mut text, Spacing::Compact);
            text
        }
        None => call.arguments.clone(),
    }
}

/// Hash of what of a message comes back when a prompt restates it.
pub(super) fn message_digest(message: &Message) -> Digest16 {
    let mut fields = Fields(Blake2b::new());
    match message {
        Message::System(system) => {
            fields.add("SystemMessage");
            fields.add_content(&system.content);
        }
        Message::User(user) => {
            fields.add("UserMessage");
            fields.add_content(&user.content);
        }
        Message::Assistant(assistant) => {
            fields.add("AssistantMessage");
            fields.add_assistant(assistant);
        }
        Message::Tool(tool) => {
            fields.add("ToolMessage");
            fields.add_content(&tool.content);
            fields.add("tool_call_id");
            fields.add(&tool.tool_call_id);
        }
    }
    fields.0.finalize().into()
}

/// Hash of a tool list; the order counts.
pub(super) fn tools_digest(tools: &[Tool]) -> Digest16 {
    let mut text = String::from("[");
    for (position, tool) in tools.iter().enumerate() {
        if position > 0 {
            text.push(',');
        }
        // A tool is strings, flags and JSON values: it always becomes a value.
        write_value(&mut text, &serde_json::to_value(tool).unwrap_or_default(), Spacing::Compact);
    }
    text.push(']');
    Blake2b::<U16>::digest(text).into()
}

/// Lowercase hex digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect()
}

impl Message {
    /// The message's identity in verifiers 0.4.0: BLAKE2b-128 of its content, reasoning, tool calls and tool call id,
    /// 32 lowercase hex digits. Equal JSON arguments count as equal, null content as empty.
    pub fn hash(&self) -> String {
        hex(&message_digest(self))
    }
}

impl Tool {
    /// Identity of a tool list in verifiers 0.4.0: BLAKE2b-128 of its canonical JSON, 32 lowercase hex digits.
    pub fn list_hash(tools: &[Tool]) -> String {
        hex(&tools_digest(tools))
    }
}
