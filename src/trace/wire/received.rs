//! Deltas as they are read: straight from the frame into what a trace holds.

use std::{fmt, marker::PhantomData, sync::Arc};

use indexmap::IndexMap;
use rmp_serde::decode::Error;
use serde::{
    Deserialize, Deserializer,
    de::{self, IgnoredAny, Visitor},
};
use serde_json::{Map, Value, value::RawValue};

use super::{
    json::{Json, MAX_DEPTH, Nulls, raw, transcribe},
    tensor::{Array, Frame, MaskArrays},
};
use crate::trace::{
    fault::Fault,
    graph::{Node, ParentLink},
    message::{
        AssistantMessage, Content, ContentPart, FinishReason, ImageUrl, Message, SystemMessage, Tool, ToolCall,
        ToolMessage, UserMessage,
    },
    record::Floats,
    rollout::{AcpInfo, AgentInfo, ModelCall, PolicyEvent, RewardScore, VersionInfo},
    task::TraceTask,
    timing::{TimeSpan, Timing},
    tokens::{NodeTokens, TokenFlags},
    usage::Usage,
};

/// Reads a whole frame.
pub(super) fn read<'a, T: Deserialize<'a>>(frame: &'a [u8]) -> Result<T, Error> {
    let mut deserializer = rmp_serde::Deserializer::from_read_ref(frame);
    deserializer.set_max_depth(MAX_DEPTH);
    let value = T::deserialize(&mut deserializer)?;
    match IgnoredAny::deserialize(&mut deserializer) {
        Err(Error::InvalidMarkerRead(_)) => Ok(value),
        _ => Err(de::Error::custom("something follows the end")),
    }
}

/// Items of one list of a delta: an empty map takes a byte there and some hundred here.
const MAX_ITEMS: usize = 1 << 20;

/// A list that is no longer than any honest one.
pub(super) struct List<T>(pub(super) Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Items<T> {
            type Value = List<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<List<T>, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    if items.len() == MAX_ITEMS {
                        return Err(de::Error::custom(format!("a list has more than {MAX_ITEMS} items")));
                    }
                    items.push(item);
                }
                Ok(List(items))
            }
        }
        deserializer.deserialize_seq(Items(PhantomData))
    }
}

impl<T> List<T> {
    /// The items of a list that may be absent.
    pub(super) fn items(list: Option<Self>) -> impl Iterator<Item = T> {
        list.into_iter().flat_map(|list| list.0)
    }
}

#[derive(Deserialize)]
pub(super) struct Delta<'a> {
    pub(super) trace: String,
    #[serde(default)]
    pub(super) discard: Option<bool>,
    #[serde(default)]
    pub(super) open: Option<Json<Opening>>,
    #[serde(default)]
    pub(super) links: Option<ByIndex<Vec<ParentLink>>>,
    #[serde(default, borrow)]
    pub(super) routing_repairs: Option<ByIndex<Array<'a>>>,
    #[serde(default, borrow)]
    pub(super) nodes: Option<List<ReadNode<'a>>>,
    #[serde(default)]
    pub(super) calls: Option<List<ReadCall>>,
    #[serde(default)]
    pub(super) errors: Option<List<Fault>>,
    #[serde(default)]
    pub(super) extra_usage: Option<List<Usage>>,
    #[serde(default)]
    pub(super) request_rewrites: Option<List<Json<Value>>>,
    #[serde(default)]
    pub(super) response_rewrites: Option<List<Json<Value>>>,
    #[serde(default)]
    pub(super) set: Option<Set>,
    #[serde(default)]
    pub(super) pending: Option<List<ReadMessage>>,
}

#[derive(Deserialize)]
pub(super) struct Opening {
    #[serde(default = "one")]
    pub(super) version: u32,
    pub(super) id: String,
    #[serde(default)]
    pub(super) verifiers: VersionInfo,
    pub(super) task: Arc<TraceTask>,
}

fn one() -> u32 {
    1
}

/// The scalars that a delta replaces; a null is a value of those that may be absent.
#[derive(Deserialize)]
pub(super) struct Set {
    #[serde(default)]
    pub(super) agent: Option<ReadAgent>,
    #[serde(default)]
    pub(super) tools: Option<Json<Vec<Tool>>>,
    #[serde(default)]
    pub(super) mm_token_type_id_map: Option<ByIndex<u32>>,
    #[serde(default)]
    pub(super) rewards: Option<IndexMap<String, Option<RewardScore>>>,
    #[serde(default)]
    pub(super) metrics: Option<IndexMap<String, Option<f64>>>,
    #[serde(default)]
    pub(super) info: Option<Json<Map<String, Value>>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) root_reply: Option<Option<String>>,
    #[serde(default)]
    pub(super) is_completed: Option<bool>,
    #[serde(default)]
    pub(super) ok: Option<bool>,
    #[serde(default, deserialize_with = "present")]
    pub(super) stop_condition: Option<Option<String>>,
    #[serde(default)]
    pub(super) is_timeout: Option<bool>,
    #[serde(default)]
    pub(super) timing: Option<Timing>,
}

fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Entries whose keys are numbers, or the texts of numbers.
pub(super) struct ByIndex<T>(pub(super) Vec<(u32, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for ByIndex<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = Vec<(u32, T)>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from numbers")
            }
            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some((Index(key), value)) = map.next_entry()? {
                    entries.push((key, value));
                }
                Ok(entries)
            }
        }
        deserializer.deserialize_map(Entries(PhantomData)).map(Self)
    }
}

struct Index(u32);

impl<'de> Deserialize<'de> for Index {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = Index;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number from 0")
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Index, E> {
                u32::try_from(value).map(Index).map_err(|_| E::custom(format!("there is no place {value}")))
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Index, E> {
                u32::try_from(value).map(Index).map_err(|_| E::custom(format!("there is no place {value}")))
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<Index, E> {
                value.parse().map(Index).map_err(|_| E::custom(format!("there is no place `{value}`")))
            }
        }
        deserializer.deserialize_any(Number)
    }
}

#[derive(Deserialize)]
pub(super) struct ReadAgent {
    #[serde(deserialize_with = "config")]
    config: Box<RawValue>,
    #[serde(default)]
    runtime: Option<Runtime>,
    #[serde(default = "agent_name")]
    name: String,
    #[serde(default = "yes")]
    trainable: bool,
}

struct Runtime(Box<RawValue>);

impl<'de> Deserialize<'de> for Runtime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        raw(deserializer, Nulls::Config).map(Self)
    }
}

fn config<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Box<RawValue>, D::Error> {
    raw(deserializer, Nulls::Config)
}

fn agent_name() -> String {
    "agent".to_owned()
}

fn yes() -> bool {
    true
}

impl From<ReadAgent> for AgentInfo {
    fn from(read: ReadAgent) -> Self {
        let ReadAgent { config, runtime, name, trainable } = read;
        Self { config: config.into(), runtime: runtime.map(|runtime| runtime.0.into()), name, trainable }
    }
}

#[derive(Deserialize)]
pub(super) struct ReadNode<'a> {
    #[serde(default)]
    parent: Option<u32>,
    #[serde(default)]
    tools: Option<Json<Vec<Tool>>>,
    #[serde(default)]
    semantic_parents: Option<Vec<ParentLink>>,
    message: ReadMessage,
    #[serde(default)]
    sampled: bool,
    #[serde(default)]
    timestamp: f64,
    #[serde(default)]
    token_ids: Box<[u32]>,
    #[serde(default)]
    mask: TokenFlags,
    #[serde(default)]
    is_content: TokenFlags,
    #[serde(default)]
    logprobs: Floats,
    #[serde(default)]
    advantages: Option<Floats>,
    #[serde(default)]
    reference_logprobs: Option<Floats>,
    #[serde(default)]
    trainer_logprobs: Option<Floats>,
    #[serde(default)]
    entropies: Option<Floats>,
    #[serde(default)]
    loss_weights: Option<IndexMap<String, Vec<f64>>>,
    #[serde(default, borrow)]
    routed_experts: Option<Array<'a>>,
    #[serde(default, borrow)]
    sampling_mask: Option<MaskArrays<'a>>,
}

impl ReadNode<'_> {
    /// The node of a trace.
    pub(super) fn node(self, frame: &Frame<'_>) -> Result<Node, String> {
        let streams = [self.advantages, self.reference_logprobs, self.trainer_logprobs, self.entropies];
        let tokens = NodeTokens::from_parts(
            self.token_ids,
            self.mask,
            self.is_content,
            self.logprobs,
            streams,
            self.loss_weights,
        );
        let mut tokens = tokens.map_err(|error| error.to_string())?;
        if let Some(rows) = &self.routed_experts {
            tokens.sidecar().routed_experts = Some(rows.rows(frame)?);
        }
        if let Some(mask) = &self.sampling_mask {
            let mask = mask.mask(tokens.mask().count(), frame)?;
            tokens.sidecar().sampling_mask = Some(mask);
        }
        Ok(Node {
            parent: self.parent,
            tools: self.tools.map(|tools| tools.0.into()).unwrap_or_default(),
            semantic_parents: self.semantic_parents.unwrap_or_default(),
            message: self.message.0,
            sampled: self.sampled,
            timestamp: self.timestamp,
            tokens,
        })
    }
}

/// A message. All roles share one form, so that none has to be held back until its role is known.
pub(super) struct ReadMessage(pub(super) Message);

impl<'de> Deserialize<'de> for ReadMessage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Role {
            System,
            User,
            Assistant,
            Tool,
        }
        #[derive(Deserialize)]
        struct Fields {
            role: Role,
            #[serde(default)]
            content: Option<ReadContent>,
            #[serde(default)]
            reasoning_content: Option<String>,
            #[serde(default)]
            tool_calls: Option<Vec<ToolCall>>,
            #[serde(default)]
            provider_state: Option<Vec<Json<Map<String, Value>>>>,
            #[serde(default)]
            tool_call_id: Option<String>,
            #[serde(default)]
            name: Option<String>,
        }
        let fields = Fields::deserialize(deserializer)?;
        let content = fields.content.map(|content| content.0);
        let due = |content: Option<Content>| content.ok_or_else(|| de::Error::missing_field("content"));
        Ok(Self(match fields.role {
            Role::System => Message::System(SystemMessage { content: due(content)? }),
            Role::User => Message::User(UserMessage { content: due(content)? }),
            Role::Assistant => Message::Assistant(AssistantMessage {
                content: match content {
                    Some(Content::Parts(_)) => {
                        return Err(de::Error::custom("the content of an assistant message is a text"));
                    }
                    Some(Content::Text(text)) => Some(text),
                    None => None,
                },
                reasoning_content: fields.reasoning_content,
                tool_calls: fields.tool_calls,
                provider_state: fields.provider_state.map(|items| items.into_iter().map(|item| item.0).collect()),
            }),
            Role::Tool => Message::Tool(ToolMessage {
                tool_call_id: fields.tool_call_id.ok_or_else(|| de::Error::missing_field("tool_call_id"))?,
                content: due(content)?,
                name: fields.name,
            }),
        }))
    }
}

struct ReadContent(Content);

impl<'de> Deserialize<'de> for ReadContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrParts;
        impl<'de> Visitor<'de> for TextOrParts {
            type Value = ReadContent;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a list of parts")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<ReadContent, E> {
                Ok(ReadContent(Content::Text(text.to_owned())))
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut items: A) -> Result<ReadContent, A::Error> {
                #[derive(Deserialize)]
                #[serde(rename_all = "snake_case")]
                enum Kind {
                    Text,
                    ImageUrl,
                }
                #[derive(Deserialize)]
                struct Part {
                    r#type: Kind,
                    #[serde(default)]
                    text: Option<String>,
                    #[serde(default)]
                    image_url: Option<ImageUrl>,
                }
                let mut parts = Vec::new();
                while let Some(part) = items.next_element::<Part>()? {
                    parts.push(match part.r#type {
                        Kind::Text => {
                            ContentPart::Text { text: part.text.ok_or_else(|| de::Error::missing_field("text"))? }
                        }
                        Kind::ImageUrl => ContentPart::ImageUrl {
                            image_url: part.image_url.ok_or_else(|| de::Error::missing_field("image_url"))?,
                        },
                    });
                }
                Ok(ReadContent(Content::Parts(parts)))
            }
        }
        deserializer.deserialize_any(TextOrParts)
    }
}

#[derive(Deserialize)]
pub(super) struct ReadCall {
    #[serde(default)]
    node: Option<u32>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    sampling: Option<Sampling>,
    #[serde(default)]
    endpoint: Option<String>,
    #[serde(default)]
    finish_reason: Option<FinishReason>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    time: TimeSpan,
    #[serde(default)]
    error: Option<Fault>,
    #[serde(default)]
    policy: Option<PolicyEvent>,
    #[serde(default)]
    acp: Option<AcpInfo>,
}

struct Sampling(Map<String, Value>);

impl<'de> Deserialize<'de> for Sampling {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = transcribe(deserializer, Nulls::Declared)?;
        serde_json::from_slice(&text).map(Self).map_err(de::Error::custom)
    }
}

impl ReadCall {
    /// The call of a trace, with the settings of the call before it if they are the same.
    pub(super) fn call(self, before: Option<&ModelCall>) -> ModelCall {
        let known = before.and_then(|call| call.sampling.as_ref());
        let sampling = self.sampling.map(|Sampling(sampling)| match known {
            Some(known) if **known == sampling => Arc::clone(known),
            _ => Arc::new(sampling),
        });
        ModelCall {
            node: self.node,
            model: self.model,
            sampling,
            endpoint: self.endpoint,
            finish_reason: self.finish_reason,
            usage: self.usage,
            time: self.time,
            error: self.error,
            policy: self.policy,
            acp: self.acp,
        }
    }
}
