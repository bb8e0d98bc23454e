//! Episodes as they are read: what is absent has its default, what is unknown is passed over.

use std::sync::Arc;

use indexmap::IndexMap;
use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value};

use crate::trace::{
    episode::{EnvInfo, Episode, GroupInfo, RunInfo},
    error::GraphError,
    fault::Fault,
    graph::{Graph, Node, ParentLink},
    message::{Message, Tool},
    rollout::{AgentInfo, ModelCall, RewardScore, TRACE_VERSION, Trace, VersionInfo},
    task::TraceTask,
    timing::Timing,
    tokens::{CreditStream, NodeTokens, TokenFlags, expect_length},
    usage::Usage,
};

#[derive(Deserialize)]
struct StoredEpisode {
    id: String,
    #[serde(default)]
    env: EnvInfo,
    task: Arc<TraceTask>,
    #[serde(default)]
    group: Option<GroupInfo>,
    #[serde(default)]
    run: Option<RunInfo>,
    #[serde(default)]
    ok: bool,
    #[serde(default)]
    is_timeout: bool,
    #[serde(default)]
    errors: Vec<Fault>,
    #[serde(default)]
    traces: Vec<Trace>,
}

impl<'de> Deserialize<'de> for Episode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let StoredEpisode { id, env, task, group, run, ok, is_timeout, errors, mut traces } =
            StoredEpisode::deserialize(deserializer)?;
        for trace in &mut traces {
            // Nearly always the same row: keep it once.
            if *trace.task == *task {
                trace.task = Arc::clone(&task);
            }
        }
        Ok(Self { id, env, task, group, run, ok, is_timeout, errors, traces })
    }
}

#[derive(Deserialize)]
struct StoredTrace {
    #[serde(default = "current_version")]
    version: u32,
    id: String,
    #[serde(default)]
    verifiers: VersionInfo,
    task: Arc<TraceTask>,
    agent: AgentInfo,
    #[serde(default)]
    tools: Vec<Tool>,
    #[serde(default)]
    nodes: Vec<Node>,
    #[serde(default)]
    calls: Vec<ModelCall>,
    #[serde(default)]
    mm_token_type_id_map: IndexMap<u32, u32>,
    #[serde(default)]
    request_rewrites: Vec<Value>,
    #[serde(default)]
    response_rewrites: Vec<Value>,
    #[serde(default)]
    rewards: IndexMap<String, Option<RewardScore>>,
    #[serde(default)]
    metrics: IndexMap<String, Option<f64>>,
    #[serde(default)]
    info: Map<String, Value>,
    #[serde(default)]
    root_reply: Option<String>,
    #[serde(default)]
    extra_usage: Vec<Usage>,
    #[serde(default)]
    is_completed: bool,
    #[serde(default)]
    ok: bool,
    #[serde(default)]
    stop_condition: Option<String>,
    #[serde(default)]
    is_timeout: bool,
    #[serde(default)]
    errors: Vec<Fault>,
    #[serde(default)]
    timing: Timing,
}

fn current_version() -> u32 {
    TRACE_VERSION
}

impl<'de> Deserialize<'de> for Trace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let stored = StoredTrace::deserialize(deserializer)?;
        let graph =
            Graph::from_parts(stored.nodes, stored.tools, stored.mm_token_type_id_map).map_err(de::Error::custom)?;
        Ok(Self {
            version: stored.version,
            id: stored.id,
            verifiers: stored.verifiers,
            task: stored.task,
            agent: stored.agent,
            graph,
            calls: stored.calls,
            request_rewrites: stored.request_rewrites,
            response_rewrites: stored.response_rewrites,
            rewards: stored.rewards,
            metrics: stored.metrics,
            info: stored.info,
            root_reply: stored.root_reply,
            extra_usage: stored.extra_usage,
            is_completed: stored.is_completed,
            ok: stored.ok,
            stop_condition: stored.stop_condition,
            is_timeout: stored.is_timeout,
            errors: stored.errors,
            timing: stored.timing,
        })
    }
}

#[derive(Deserialize)]
struct StoredNode {
    #[serde(default)]
    parent: Option<u32>,
    #[serde(default)]
    tools: Arc<[Tool]>,
    #[serde(default)]
    semantic_parents: Vec<ParentLink>,
    message: Message,
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
}

/// Floats that may hold null, which is how a NaN is written.
#[derive(Default)]
pub(in crate::trace) struct Floats(pub(in crate::trace) Vec<f32>);

impl<'de> Deserialize<'de> for Floats {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let values = Vec::<Option<f32>>::deserialize(deserializer)?;
        Ok(Self(values.into_iter().map(|value| value.unwrap_or(f32::NAN)).collect()))
    }
}

impl NodeTokens {
    /// The tokens of a node read from elsewhere; the streams in the order of [`CreditStream::ALL`].
    ///
    /// # Errors
    /// Arrays that belong together differ in length.
    pub(in crate::trace) fn from_parts(
        ids: Box<[u32]>,
        mask: TokenFlags,
        is_content: TokenFlags,
        logprobs: Floats,
        streams: [Option<Floats>; 4],
        loss_weights: Option<IndexMap<String, Vec<f64>>>,
    ) -> Result<Self, GraphError> {
        let logprobs = logprobs.0.into_boxed_slice();
        let mut tokens = Self { ids, mask, is_content, logprobs, sidecar: None };
        expect_length("mask", tokens.ids.len(), tokens.mask.len())?;
        if !tokens.is_content.is_empty() {
            expect_length("is_content", tokens.ids.len(), tokens.is_content.len())?;
        }
        // Engines that report no logprobs leave none.
        if !tokens.logprobs.is_empty() {
            expect_length("logprobs", tokens.mask.count(), tokens.logprobs.len())?;
        }
        for (stream, values) in CreditStream::ALL.into_iter().zip(streams) {
            if let Some(values) = values {
                tokens.set_credit(stream, Some(values.0))?;
            }
        }
        if let Some(weights) = loss_weights {
            tokens.sidecar().loss_weights = Some(IndexMap::new());
            for (name, weights) in weights {
                tokens.set_loss_weights(&name, weights)?;
            }
        }
        Ok(tokens)
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let stored = StoredNode::deserialize(deserializer)?;
        let tokens = NodeTokens::from_parts(
            stored.token_ids,
            stored.mask,
            stored.is_content,
            stored.logprobs,
            [stored.advantages, stored.reference_logprobs, stored.trainer_logprobs, stored.entropies],
            stored.loss_weights,
        );
        Ok(Self {
            parent: stored.parent,
            tools: stored.tools,
            semantic_parents: stored.semantic_parents,
            message: stored.message,
            sampled: stored.sampled,
            timestamp: stored.timestamp,
            tokens: tokens.map_err(de::Error::custom)?,
        })
    }
}

impl<'de> Deserialize<'de> for TokenFlags {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::new(Vec::<bool>::deserialize(deserializer)?))
    }
}
