//! Full dumps: what the file leaves out is there as null, router rows and masks go along, floats keep all their digits.

use serde::{
    Serialize, Serializer,
    ser::{Error as _, SerializeMap},
};
use serde_json::{Map, Value, value::RawValue};

use super::tensor::{Mask, Rows};
use crate::trace::{
    episode::{EnvInfo, RunInfo},
    fault::{Fault, FaultClass},
    graph::{Node, ParentLink},
    message::{Content, FinishReason, Message, Tool, ToolCall, ToolCallKind},
    rollout::{AcpInfo, AgentInfo, ModelCall, PolicyEvent, VersionInfo},
    task::{Artifact, Prompt, TaskData, TraceTask},
    timing::TimeSpan,
    tokens::{CreditStream, TokenFlags},
    usage::Usage,
};

/// Something dumped in full.
pub(super) struct Full<'a, T>(pub(super) &'a T);

/// A list of things dumped in full.
pub(super) struct All<'a, T>(pub(super) &'a [T]);

impl<T> Serialize for All<'_, T>
where
    for<'b> Full<'b, T>: Serialize,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(Full))
    }
}

impl Serialize for Full<'_, VersionInfo> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Dump<'a> {
            version: &'a str,
            commit: &'a Option<String>,
        }
        Dump { version: &self.0.version, commit: &self.0.commit }.serialize(serializer)
    }
}

impl Serialize for Full<'_, TraceTask> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Dump<'a> {
            r#type: &'a str,
            data: Full<'a, TaskData>,
            key: &'a Option<String>,
            hash: &'a Option<String>,
        }
        let TraceTask { kind, data, key, hash } = self.0;
        Dump { r#type: kind, data: Full(data), key, hash }.serialize(serializer)
    }
}

impl Serialize for Full<'_, TaskData> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Timeouts {
            setup: Option<f64>,
            agent: Option<f64>,
            finalize: Option<f64>,
            scoring: Option<f64>,
        }
        #[derive(Serialize)]
        struct Resources<'a> {
            cpu: Option<f64>,
            memory: Option<f64>,
            gpu: &'a Option<String>,
            disk: Option<f64>,
        }
        let TaskData {
            idx,
            id,
            name,
            description,
            prompt,
            system_prompt,
            image,
            workdir,
            agent_user,
            skills,
            network_allow,
            network_block,
            artifacts,
            artifact_max_bytes,
            timeout,
            resources,
            extra,
            // Numbers too long for 64 bits cannot be packed: the rounded ones of `extra` go.
            exact: _,
        } = self.0;
        let mut map = serializer.serialize_map(Some(16 + extra.len()))?;
        map.serialize_entry("idx", idx)?;
        map.serialize_entry("id", id)?;
        map.serialize_entry("name", name)?;
        map.serialize_entry("description", description)?;
        map.serialize_entry("prompt", &prompt.as_ref().map(Full))?;
        map.serialize_entry("system_prompt", system_prompt)?;
        map.serialize_entry("image", image)?;
        map.serialize_entry("workdir", workdir)?;
        map.serialize_entry("agent_user", agent_user)?;
        map.serialize_entry("skills", skills)?;
        map.serialize_entry("network_allow", network_allow)?;
        map.serialize_entry("network_block", network_block)?;
        map.serialize_entry::<_, [Artifact]>("artifacts", artifacts)?;
        map.serialize_entry("artifact_max_bytes", artifact_max_bytes)?;
        let (setup, agent, finalize, scoring) = (timeout.setup, timeout.agent, timeout.finalize, timeout.scoring);
        map.serialize_entry("timeout", &Timeouts { setup, agent, finalize, scoring })?;
        let (cpu, memory, gpu, disk) = (resources.cpu, resources.memory, &resources.gpu, resources.disk);
        map.serialize_entry("resources", &Resources { cpu, memory, gpu, disk })?;
        for (key, value) in extra {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl Serialize for Full<'_, Prompt> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Prompt::Text(text) => serializer.serialize_str(text),
            Prompt::Messages(messages) => All(messages).serialize(serializer),
        }
    }
}

impl Serialize for Full<'_, Message> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Plain<'a> {
            role: &'static str,
            content: &'a Content,
        }
        #[derive(Serialize)]
        struct Assistant<'a> {
            role: &'static str,
            content: &'a Option<String>,
            reasoning_content: &'a Option<String>,
            tool_calls: Option<All<'a, ToolCall>>,
            provider_state: &'a Option<Vec<Map<String, Value>>>,
        }
        #[derive(Serialize)]
        struct ToolResult<'a> {
            role: &'static str,
            tool_call_id: &'a str,
            content: &'a Content,
            name: &'a Option<String>,
        }
        match self.0 {
            Message::System(message) => Plain { role: "system", content: &message.content }.serialize(serializer),
            Message::User(message) => Plain { role: "user", content: &message.content }.serialize(serializer),
            Message::Assistant(message) => Assistant {
                role: "assistant",
                content: &message.content,
                reasoning_content: &message.reasoning_content,
                tool_calls: message.tool_calls.as_deref().map(All),
                provider_state: &message.provider_state,
            }
            .serialize(serializer),
            Message::Tool(message) => ToolResult {
                role: "tool",
                tool_call_id: &message.tool_call_id,
                content: &message.content,
                name: &message.name,
            }
            .serialize(serializer),
        }
    }
}

impl Serialize for Full<'_, ToolCall> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Dump<'a> {
            id: &'a str,
            r#type: ToolCallKind,
            name: &'a str,
            namespace: &'a Option<String>,
            arguments: &'a str,
        }
        let ToolCall { id, kind, name, namespace, arguments } = self.0;
        Dump { id, r#type: *kind, name, namespace, arguments }.serialize(serializer)
    }
}

impl Serialize for Full<'_, Tool> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Tool { kind, name, namespace, description, parameters, strict, extra } = self.0;
        let mut map = serializer.serialize_map(Some(6 + extra.len()))?;
        map.serialize_entry("type", kind)?;
        map.serialize_entry("name", name)?;
        map.serialize_entry("namespace", namespace)?;
        map.serialize_entry("description", description)?;
        map.serialize_entry("parameters", parameters)?;
        map.serialize_entry("strict", strict)?;
        for (key, value) in extra {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

/// Floats of four bytes as eight, which is how Python has them.
struct Doubles<'a>(&'a [f32]);

impl Serialize for Doubles<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().copied().map(f64::from))
    }
}

impl Serialize for Full<'_, Node> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Dump<'a> {
            parent: Option<u32>,
            #[serde(skip_serializing_if = "Option::is_none")]
            tools: Option<All<'a, Tool>>,
            semantic_parents: &'a [ParentLink],
            message: Full<'a, Message>,
            sampled: bool,
            timestamp: f64,
            token_ids: &'a [u32],
            mask: &'a TokenFlags,
            is_content: &'a TokenFlags,
            logprobs: Doubles<'a>,
            advantages: Option<Doubles<'a>>,
            reference_logprobs: Option<Doubles<'a>>,
            trainer_logprobs: Option<Doubles<'a>>,
            entropies: Option<Doubles<'a>>,
            loss_weights: Option<&'a indexmap::IndexMap<String, Box<[f64]>>>,
            routed_experts: Option<Rows<'a>>,
            sampling_mask: Option<Mask<'a>>,
        }
        let Node { parent, tools, semantic_parents, message, sampled, timestamp, tokens } = self.0;
        let credit = |stream| tokens.credit(stream).map(Doubles);
        Dump {
            parent: *parent,
            tools: Some(&tools[..]).filter(|tools| !tools.is_empty()).map(All),
            semantic_parents,
            message: Full(message),
            sampled: *sampled,
            timestamp: *timestamp,
            token_ids: tokens.ids(),
            mask: tokens.mask(),
            is_content: tokens.is_content(),
            logprobs: Doubles(tokens.logprobs()),
            advantages: credit(CreditStream::Advantages),
            reference_logprobs: credit(CreditStream::ReferenceLogprobs),
            trainer_logprobs: credit(CreditStream::TrainerLogprobs),
            entropies: credit(CreditStream::Entropies),
            loss_weights: tokens.loss_weights(),
            routed_experts: tokens.routed_experts().map(Rows::all),
            sampling_mask: tokens.sampling_mask().map(Mask),
        }
        .serialize(serializer)
    }
}

impl Serialize for Full<'_, ModelCall> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Dump<'a> {
            node: Option<u32>,
            model: &'a Option<String>,
            sampling: Option<&'a Map<String, Value>>,
            endpoint: &'a Option<String>,
            finish_reason: Option<FinishReason>,
            usage: Option<Full<'a, Usage>>,
            time: TimeSpan,
            error: Option<Full<'a, Fault>>,
            policy: &'a Option<PolicyEvent>,
            acp: &'a Option<AcpInfo>,
        }
        let ModelCall { node, model, sampling, endpoint, finish_reason, usage, time, error, policy, acp } = self.0;
        Dump {
            node: *node,
            model,
            sampling: sampling.as_deref(),
            endpoint,
            finish_reason: *finish_reason,
            usage: usage.as_ref().map(Full),
            time: *time,
            error: error.as_ref().map(Full),
            policy,
            acp,
        }
        .serialize(serializer)
    }
}

impl Serialize for Full<'_, Usage> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Dump {
            prompt_tokens: u64,
            completion_tokens: u64,
            cached_input_tokens: Option<u64>,
            reasoning_tokens: Option<u64>,
            cost: Option<f64>,
        }
        let Usage { prompt_tokens, completion_tokens, cached_input_tokens, reasoning_tokens, cost } = *self.0;
        Dump { prompt_tokens, completion_tokens, cached_input_tokens, reasoning_tokens, cost }.serialize(serializer)
    }
}

impl Serialize for Full<'_, Fault> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Dump<'a> {
            r#type: &'a str,
            message: &'a str,
            status_code: Option<u16>,
            traceback: Option<String>,
            class: FaultClass,
            retryable: bool,
        }
        let Fault { kind, class, retryable, message, status_code, causes } = self.0;
        let traceback = (!causes.is_empty()).then(|| causes.join("\n"));
        let dump =
            Dump { r#type: kind, message, status_code: *status_code, traceback, class: *class, retryable: *retryable };
        dump.serialize(serializer)
    }
}

/// JSON text as msgpack.
struct Packed<'a>(&'a RawValue);

impl Serialize for Packed<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde_json::from_str::<Value>(self.0.get()).map_err(S::Error::custom)?.serialize(serializer)
    }
}

impl Serialize for Full<'_, AgentInfo> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Dump<'a> {
            config: Packed<'a>,
            runtime: Option<Packed<'a>>,
            name: &'a str,
            trainable: bool,
        }
        let AgentInfo { config, runtime, name, trainable } = self.0;
        Dump { config: Packed(config), runtime: runtime.as_deref().map(Packed), name, trainable: *trainable }
            .serialize(serializer)
    }
}

impl Serialize for Full<'_, EnvInfo> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Dump<'a> {
            id: &'a str,
            name: &'a Option<String>,
        }
        Dump { id: &self.0.id, name: &self.0.name }.serialize(serializer)
    }
}

impl Serialize for Full<'_, RunInfo> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Dump<'a> {
            r#type: &'static str,
            id: &'a str,
            name: &'a Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            work: Option<&'a Value>,
        }
        match self.0 {
            RunInfo::Eval { id, name } => Dump { r#type: "eval", id, name, work: None }.serialize(serializer),
            RunInfo::Train { id, name, work } => {
                Dump { r#type: "train", id, name, work: Some(work) }.serialize(serializer)
            }
        }
    }
}
