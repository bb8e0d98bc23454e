//! Chat messages as the OpenAI-compatible APIs and verifiers' traces write them.

use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

/// One message of a conversation, tagged by `role` in JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum Message {
    /// Instructions that stand before the conversation.
    System(SystemMessage),
    /// What the user, or whoever plays the user, says.
    User(UserMessage),
    /// What the model answered.
    Assistant(AssistantMessage),
    /// What a tool call returned.
    Tool(ToolMessage),
}

/// A system message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SystemMessage {
    /// Text or parts.
    pub content: Content,
}

/// A user message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UserMessage {
    /// Text or parts.
    pub content: Content,
}

/// An assistant message; every field may be absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AssistantMessage {
    /// The visible text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// The reasoning text, where the server separates it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Tool calls in the order the model made them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// Opaque provider items that must be replayed verbatim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_state: Option<Vec<Map<String, Value>>>,
}

/// The answer to one tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolMessage {
    /// The call that this answers.
    pub tool_call_id: String,
    /// Text or parts.
    pub content: Content,
    /// The tool's name, where a template needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Message content: a string, or typed parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// Plain text.
    Text(String),
    /// Text and images in order.
    Parts(Vec<ContentPart>),
}

/// One part of a multimodal message, tagged by `type` in JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentPart {
    /// A piece of text.
    Text {
        /// The text.
        text: String,
    },
    /// An image by URL (`https:` or `data:`).
    ImageUrl {
        /// Where the image is.
        image_url: ImageUrl,
    },
}

/// Where an image is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImageUrl {
    /// `https:` or `data:` URL.
    pub url: String,
}

/// One tool call as the model emitted it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The call's id.
    pub id: String,
    /// `function` or `custom`.
    #[serde(rename = "type", default)]
    pub kind: ToolCallKind,
    /// The tool's name.
    pub name: String,
    /// Provider namespace of the name, when sent apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The raw argument text, never re-encoded.
    pub arguments: String,
}

/// The two kinds of tool call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolCallKind {
    /// JSON arguments.
    #[default]
    Function,
    /// Free text input.
    Custom,
}

/// A tool offered to the model; keys this struct does not name are kept in `extra`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    /// `function` unless the provider has others.
    #[serde(rename = "type", default = "function")]
    pub kind: String,
    /// Name.
    pub name: String,
    /// Provider namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// What it does, for the model.
    #[serde(default)]
    pub description: String,
    /// JSON schema of the arguments.
    #[serde(default)]
    pub parameters: Map<String, Value>,
    /// Whether the server must force valid arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
    /// Every other key; a null one counts as absent.
    #[serde(flatten, serialize_with = "present")]
    pub extra: Map<String, Value>,
}

fn present<S: Serializer>(extra: &Map<String, Value>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(extra.iter().filter(|(_, value)| !value.is_null()))
}

fn function() -> String {
    "function".to_owned()
}

/// Why generation ended, as chat servers report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended its turn.
    Stop,
    /// The token limit or the context window cut it.
    Length,
    /// The model ended with tool calls.
    ToolCalls,
}

impl Message {
    /// A system message of plain text.
    pub fn system(text: impl Into<String>) -> Self {
        Self::System(SystemMessage { content: Content::Text(text.into()) })
    }

    /// A user message of plain text.
    pub fn user(text: impl Into<String>) -> Self {
        Self::User(UserMessage { content: Content::Text(text.into()) })
    }

    /// An assistant message of plain text.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self::Assistant(AssistantMessage { content: Some(text.into()), ..AssistantMessage::default() })
    }

    /// The text of the message, parts joined by newlines, images dropped, as verifiers' `content_text`.
    pub fn text(&self) -> String {
        match self {
            Self::System(SystemMessage { content })
            | Self::User(UserMessage { content })
            | Self::Tool(ToolMessage { content, .. }) => content.text(),
            Self::Assistant(message) => message.content.clone().unwrap_or_default(),
        }
    }
}

impl Content {
    /// The text, parts joined by newlines, images dropped.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => {
                let texts: Vec<&str> = parts
                    .iter()
                    .filter_map(|part| match part {
                        ContentPart::Text { text } => Some(text.as_str()),
                        ContentPart::ImageUrl { .. } => None,
                    })
                    .collect();
                texts.join("\n")
            }
        }
    }
}

impl Message {
    /// Gives back memory that growing the texts left over.
    pub(super) fn shrink_to_fit(&mut self) {
        match self {
            Self::System(SystemMessage { content }) | Self::User(UserMessage { content }) => content.shrink_to_fit(),
            Self::Tool(message) => message.content.shrink_to_fit(),
            Self::Assistant(message) => {
                for text in [&mut message.content, &mut message.reasoning_content].into_iter().flatten() {
                    text.shrink_to_fit();
                }
                for call in message.tool_calls.iter_mut().flatten() {
                    call.arguments.shrink_to_fit();
                }
            }
        }
    }

    /// Bytes on the heap, by the capacities of what it holds.
    pub fn heap_size(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::capacity);
        match self {
            Self::System(SystemMessage { content }) | Self::User(UserMessage { content }) => content.heap_size(),
            Self::Tool(message) => message.tool_call_id.capacity() + message.content.heap_size() + text(&message.name),
            Self::Assistant(message) => {
                let calls = message.tool_calls.as_ref().map_or(0, |calls| {
                    let texts = |call: &ToolCall| {
                        call.id.capacity() + call.name.capacity() + text(&call.namespace) + call.arguments.capacity()
                    };
                    calls.capacity() * size_of::<ToolCall>() + calls.iter().map(texts).sum::<usize>()
                });
                let state = message.provider_state.iter().flatten().map(map_heap_size).sum::<usize>();
                text(&message.content) + text(&message.reasoning_content) + calls + state
            }
        }
    }
}

impl Content {
    fn shrink_to_fit(&mut self) {
        match self {
            Self::Text(text) => text.shrink_to_fit(),
            Self::Parts(parts) => parts.shrink_to_fit(),
        }
    }

    fn heap_size(&self) -> usize {
        match self {
            Self::Text(text) => text.capacity(),
            Self::Parts(parts) => {
                let texts = parts.iter().map(|part| match part {
                    ContentPart::Text { text } => text.capacity(),
                    ContentPart::ImageUrl { image_url } => image_url.url.capacity(),
                });
                parts.capacity() * size_of::<ContentPart>() + texts.sum::<usize>()
            }
        }
    }
}

impl Tool {
    pub(super) fn heap_size(&self) -> usize {
        size_of::<Self>()
            + self.kind.capacity()
            + self.name.capacity()
            + self.description.capacity()
            + map_heap_size(&self.parameters)
            + map_heap_size(&self.extra)
    }
}

/// About what a map takes: its entries with a hash and an index slot each, and what they hold.
fn map_heap_size(map: &Map<String, Value>) -> usize {
    map.iter()
        .map(|(key, value)| {
            key.capacity() + size_of::<(String, Value)>() + 2 * size_of::<usize>() + value_heap_size(value)
        })
        .sum()
}

fn value_heap_size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.capacity(),
        Value::Array(items) => items.capacity() * size_of::<Value>() + items.iter().map(value_heap_size).sum::<usize>(),
        Value::Object(map) => map_heap_size(map),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}
