//! Requests as they come: borrowed from the body wherever the JSON has no escapes.
//!
//! Unknown fields are accepted without a word, as vLLM does.

use std::{borrow::Cow, fmt, ops::Deref};

use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::{Value, value::RawValue};

use super::refusal::Refusal;
use crate::trace::{
    AssistantMessage, Content, ContentPart, ImageUrl, Message, SystemMessage, ToolCall, ToolCallKind, ToolMessage,
    UserMessage,
};

/// A string, borrowed if it can be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;

        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a string")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }

        deserializer.deserialize_str(TextVisitor)
    }
}

/// Fields that both generating routes have.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(super) struct StreamOptions {
    #[serde(default)]
    pub(super) include_usage: Option<bool>,
}

/// `POST /v1/chat/completions`
#[derive(Debug, Deserialize)]
pub(super) struct ChatRequest<'a> {
    #[serde(borrow, default)]
    pub(super) model: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) messages: Vec<ChatMessage<'a>>,
    #[serde(default)]
    pub(super) max_tokens: Option<usize>,
    #[serde(default)]
    pub(super) max_completion_tokens: Option<usize>,
    #[serde(default)]
    pub(super) n: Option<usize>,
    #[serde(borrow, default)]
    pub(super) stop: Option<OneOrMany<'a>>,
    #[serde(default)]
    pub(super) seed: Option<i64>,
    #[serde(default)]
    pub(super) stream: Option<bool>,
    #[serde(default)]
    pub(super) stream_options: Option<StreamOptions>,
    #[serde(default)]
    pub(super) logprobs: Option<bool>,
    #[serde(default)]
    pub(super) top_logprobs: Option<usize>,
    #[serde(default)]
    pub(super) prompt_logprobs: Option<usize>,
    #[serde(default)]
    pub(super) return_token_ids: Option<bool>,
    #[serde(borrow, default)]
    pub(super) tools: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) tool_choice: Option<ToolChoice<'a>>,
    #[serde(default)]
    pub(super) ignore_eos: Option<bool>,
    #[serde(borrow, default)]
    pub(super) cache_salt: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub(super) request_id: Option<Text<'a>>,
}

/// `POST /v1/completions`
#[derive(Debug, Deserialize)]
pub(super) struct CompletionRequest<'a> {
    #[serde(borrow, default)]
    pub(super) model: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) prompt: Prompt<'a>,
    #[serde(default)]
    pub(super) max_tokens: Option<usize>,
    #[serde(default)]
    pub(super) n: Option<usize>,
    #[serde(borrow, default)]
    pub(super) stop: Option<OneOrMany<'a>>,
    #[serde(default)]
    pub(super) seed: Option<i64>,
    #[serde(default)]
    pub(super) stream: Option<bool>,
    #[serde(default)]
    pub(super) stream_options: Option<StreamOptions>,
    #[serde(default)]
    pub(super) logprobs: Option<usize>,
    #[serde(default)]
    pub(super) prompt_logprobs: Option<usize>,
    #[serde(default)]
    pub(super) return_token_ids: Option<bool>,
    #[serde(default)]
    pub(super) ignore_eos: Option<bool>,
    #[serde(borrow, default)]
    pub(super) cache_salt: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub(super) request_id: Option<Text<'a>>,
}

/// `POST /tokenize`: a prompt or a conversation.
#[derive(Debug, Deserialize)]
pub(super) struct TokenizeRequest<'a> {
    #[serde(borrow, default)]
    pub(super) prompt: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub(super) messages: Option<Vec<ChatMessage<'a>>>,
    #[serde(borrow, default)]
    pub(super) tools: Option<&'a RawValue>,
    #[serde(default)]
    pub(super) add_generation_prompt: Option<bool>,
    #[serde(default)]
    pub(super) return_token_strs: Option<bool>,
}

/// `POST /detokenize`
#[derive(Debug, Deserialize)]
pub(super) struct DetokenizeRequest {
    pub(super) tokens: Vec<u32>,
}

/// A message of a request.
#[derive(Debug, Deserialize)]
pub(super) struct ChatMessage<'a> {
    #[serde(borrow)]
    pub(super) role: Text<'a>,
    #[serde(borrow, default)]
    pub(super) content: Option<ChatContent<'a>>,
    #[serde(borrow, default)]
    pub(super) tool_calls: Option<Vec<ChatToolCall<'a>>>,
    #[serde(borrow, default)]
    pub(super) tool_call_id: Option<Text<'a>>,
}

#[derive(Debug)]
pub(super) enum ChatContent<'a> {
    Text(Text<'a>),
    Parts(Vec<ChatPart<'a>>),
}

#[derive(Debug, Deserialize)]
pub(super) struct ChatPart<'a> {
    #[serde(borrow, default)]
    pub(super) text: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub(super) image_url: Option<ChatImage<'a>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ChatImage<'a> {
    #[serde(borrow)]
    pub(super) url: Text<'a>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ChatToolCall<'a> {
    #[serde(borrow, default)]
    pub(super) id: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) function: ChatFunction<'a>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ChatFunction<'a> {
    #[serde(borrow)]
    pub(super) name: Text<'a>,
    #[serde(borrow, default)]
    pub(super) arguments: Option<Text<'a>>,
}

/// Stop strings.
#[derive(Debug)]
pub(super) struct OneOrMany<'a>(pub(super) Vec<Text<'a>>);

/// The prompt of a completion.
#[derive(Debug)]
pub(super) enum Prompt<'a> {
    Text(Text<'a>),
    Tokens(Vec<u32>),
}

/// Whether tools may, must or must not be called.
#[derive(Debug)]
pub(super) enum ToolChoice<'a> {
    None,
    Auto,
    Required,
    Named(Text<'a>),
}

/// Reads what is either one text or a list.
struct TextOrList<'de, T, R> {
    expecting: &'static str,
    text: fn(Text<'de>) -> R,
    list: fn(Vec<T>) -> R,
}

impl<'de, T: Deserialize<'de>, R> Visitor<'de> for TextOrList<'de, T, R> {
    type Value = R;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.expecting)
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<R, E> {
        Ok((self.text)(Text(Cow::Borrowed(text))))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<R, E> {
        Ok((self.text)(Text(Cow::Owned(text.to_owned()))))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<R, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element()? {
            all.push(item);
        }
        Ok((self.list)(all))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for ChatContent<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expecting = "a string or a list of content parts";
        deserializer.deserialize_any(TextOrList { expecting, text: ChatContent::Text, list: ChatContent::Parts })
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for OneOrMany<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expecting = "a string or a list of strings";
        deserializer.deserialize_any(TextOrList { expecting, text: |text| OneOrMany(vec![text]), list: OneOrMany })
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Prompt<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expecting = "a string or a list of token ids (one prompt a request)";
        deserializer.deserialize_any(TextOrList { expecting, text: Prompt::Text, list: Prompt::Tokens })
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for ToolChoice<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Named<'a> {
            #[serde(borrow)]
            function: NamedFunction<'a>,
            #[serde(default, rename = "type")]
            _kind: Option<IgnoredAny>,
        }

        #[derive(Deserialize)]
        struct NamedFunction<'a> {
            #[serde(borrow)]
            name: Text<'a>,
        }

        struct ChoiceVisitor;

        impl<'de> Visitor<'de> for ChoiceVisitor {
            type Value = ToolChoice<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("\"none\", \"auto\", \"required\" or a named function")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                match text {
                    "none" => Ok(ToolChoice::None),
                    "auto" => Ok(ToolChoice::Auto),
                    "required" => Ok(ToolChoice::Required),
                    other => Err(E::custom(format!("unknown tool_choice `{other}`"))),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                let named = Named::deserialize(MapAccessDeserializer::new(map))?;
                Ok(ToolChoice::Named(named.function.name))
            }
        }

        deserializer.deserialize_any(ChoiceVisitor)
    }
}

/// A tool that may be called.
#[derive(Debug, Deserialize)]
pub(super) struct OfferedTool {
    pub(super) function: OfferedFunction,
}

/// Its name and the schema of its arguments.
#[derive(Debug, Deserialize)]
pub(super) struct OfferedFunction {
    pub(super) name: String,
    #[serde(default)]
    pub(super) parameters: Option<Value>,
}

/// Reads a body.
pub(super) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal::bad_request(&format!("1 validation error: {error}"), None))
}

impl ChatMessage<'_> {
    /// Whether the user says it.
    pub(super) fn is_user(&self) -> bool {
        &*self.role == "user"
    }

    /// The text, parts joined by newlines.
    pub(super) fn text(&self) -> Cow<'_, str> {
        match &self.content {
            None => Cow::Borrowed(""),
            Some(ChatContent::Text(text)) => Cow::Borrowed(text),
            Some(ChatContent::Parts(parts)) => {
                let texts: Vec<&str> = parts.iter().filter_map(|part| part.text.as_deref()).collect();
                Cow::Owned(texts.join("\n"))
            }
        }
    }

    /// The message in the words of the trace.
    fn to_trace(&self) -> Message {
        let content = || match &self.content {
            Some(ChatContent::Parts(parts)) => Content::Parts(
                parts
                    .iter()
                    .map(|part| match (&part.image_url, &part.text) {
                        (Some(image), _) => {
                            ContentPart::ImageUrl { image_url: ImageUrl { url: image.url.to_string() } }
                        }
                        (None, text) => ContentPart::Text { text: text.as_deref().unwrap_or_default().to_owned() },
                    })
                    .collect(),
            ),
            _ => Content::Text(self.text().into_owned()),
        };
        match &*self.role {
            "user" => Message::User(UserMessage { content: content() }),
            "assistant" => Message::Assistant(AssistantMessage {
                content: self.content.as_ref().map(|_| self.text().into_owned()),
                tool_calls: self.tool_calls.as_ref().map(|calls| {
                    calls
                        .iter()
                        .map(|call| ToolCall {
                            id: call.id.as_deref().unwrap_or_default().to_owned(),
                            kind: ToolCallKind::Function,
                            name: call.function.name.to_string(),
                            namespace: None,
                            arguments: call.function.arguments.as_deref().unwrap_or("{}").to_owned(),
                        })
                        .collect()
                }),
                ..AssistantMessage::default()
            }),
            "tool" => Message::Tool(ToolMessage {
                tool_call_id: self.tool_call_id.as_deref().unwrap_or_default().to_owned(),
                content: content(),
                name: None,
            }),
            _ => Message::System(SystemMessage { content: content() }),
        }
    }
}

/// Refuses conversations that no template could render.
pub(super) fn check(messages: &[ChatMessage<'_>]) -> Result<(), Refusal> {
    if messages.is_empty() {
        return Err(Refusal::bad_request("messages must not be empty.", Some("messages")));
    }
    match messages
        .iter()
        .find(|message| !matches!(&*message.role, "system" | "developer" | "user" | "assistant" | "tool" | "function"))
    {
        Some(message) => {
            Err(Refusal::bad_request(&format!("Unknown role `{}` in messages.", &*message.role), Some("messages")))
        }
        None => Ok(()),
    }
}

/// The conversation in the words of the trace.
pub(super) fn conversation(messages: &[ChatMessage<'_>]) -> Vec<Message> {
    messages.iter().map(ChatMessage::to_trace).collect()
}
