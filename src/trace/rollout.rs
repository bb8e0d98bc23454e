//! One agent run on one task: messages, calls, scores, failures and times.

use std::sync::Arc;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, value::RawValue};

use super::{
    fault::Fault,
    graph::Graph,
    id::new_id,
    message::FinishReason,
    task::TraceTask,
    timing::{TimeSpan, Timing, now},
    usage::Usage,
};

/// The schema version that is written, that of verifiers 0.4.0.
pub(super) const TRACE_VERSION: u32 = 1;

/// One agent run on one task.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Schema version, 1.
    pub version: u32,
    /// 32 hex digits; also the session id that the endpoint sees.
    pub id: String,
    /// The producer's build, in verifiers' own field.
    pub verifiers: VersionInfo,
    /// What this agent ran.
    pub task: Arc<TraceTask>,
    /// Who ran it.
    pub agent: AgentInfo,
    /// The message graph, with the tools and special tokens that its turns brought.
    pub graph: Graph,
    /// One per exchange with a provider, failed ones included.
    pub calls: Vec<ModelCall>,
    /// Hook rewrites of requests, in order.
    pub request_rewrites: Vec<Value>,
    /// Hook rewrites of responses, in order.
    pub response_rewrites: Vec<Value>,
    /// Named rewards; `None` was due but never scored.
    pub rewards: IndexMap<String, Option<RewardScore>>,
    /// Named metrics; `None` was due but never measured.
    pub metrics: IndexMap<String, Option<f64>>,
    /// Free notes; the reasons for scores stand under `scoring`.
    pub info: Map<String, Value>,
    /// The root agent's reply when it had sub-agents.
    pub root_reply: Option<String>,
    /// Judges' and other calls' usage outside the graph.
    pub extra_usage: Vec<Usage>,
    /// The rollout came to an end.
    pub is_completed: bool,
    /// It ended without a recorded failure.
    pub ok: bool,
    /// Why it ended.
    pub stop_condition: Option<String>,
    /// A stage deadline expired.
    pub is_timeout: bool,
    /// Failures, oldest first.
    pub errors: Vec<Fault>,
    /// When its stages ran.
    pub timing: Timing,
}

/// A producer's build.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VersionInfo {
    /// Version.
    pub version: String,
    /// Commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}

impl Default for VersionInfo {
    fn default() -> Self {
        Self { version: concat!("rollhouse-", env!("CARGO_PKG_VERSION")).to_owned(), commit: None }
    }
}

/// Who ran a trace. The blocks are kept as JSON text: written once per run, shared by its traces.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AgentInfo {
    /// The resolved seat.
    pub config: Arc<RawValue>,
    /// The runtime's config with its `id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<Arc<RawValue>>,
    /// The seat's name.
    #[serde(default = "agent_name")]
    pub name: String,
    /// Whether training may use this trace.
    #[serde(default = "yes")]
    pub trainable: bool,
}

/// A reward's raw score and weight.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RewardScore {
    /// The raw score.
    pub score: f64,
    /// Its weight in the total.
    #[serde(default = "one")]
    pub weight: f64,
}

/// One exchange with a provider.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelCall {
    /// The assistant node it committed; absent for a failed call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    /// The model asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Effective sampling settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Arc<Map<String, Value>>>,
    /// Route, for example `/chat/completions`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Why generation ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<FinishReason>,
    /// Tokens used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// When.
    #[serde(default)]
    pub time: TimeSpan,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Fault>,
    /// A policy decision of a harness hook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyEvent>,
    /// The harness protocol's request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acp: Option<AcpInfo>,
}

/// A policy decision that was applied to a call before inference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyEvent {
    /// Stable reason.
    pub code: String,
    /// Paths of the native request that it touched, without values.
    pub paths: Vec<String>,
}

/// What a harness that speaks the Agent Client Protocol told of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcpInfo {
    /// The harness's own id of the request.
    pub request_id: String,
}

impl Trace {
    /// An empty trace of a task, with a new id, started now. It is not ok yet.
    pub fn new(task: Arc<TraceTask>, agent: AgentInfo) -> Self {
        Self {
            version: TRACE_VERSION,
            id: new_id(),
            verifiers: VersionInfo::default(),
            task,
            agent,
            graph: Graph::default(),
            calls: Vec::new(),
            request_rewrites: Vec::new(),
            response_rewrites: Vec::new(),
            rewards: IndexMap::new(),
            metrics: IndexMap::new(),
            info: Map::new(),
            root_reply: None,
            extra_usage: Vec::new(),
            is_completed: false,
            ok: false,
            stop_condition: None,
            is_timeout: false,
            errors: Vec::new(),
            timing: Timing { start: now(), ..Timing::default() },
        }
    }

    /// Stops the trace; the first condition stays.
    pub fn stop(&mut self, condition: &str) {
        self.is_completed = true;
        self.stop_condition.get_or_insert_with(|| condition.to_owned());
    }

    /// Ends the rollout because the conversation no longer fits the model's window. The stop condition is
    /// `max_total_tokens`: the window is the endpoint's own bound on total tokens, and verifiers derives "truncated" from
    /// that name. What the endpoint said stands in `info` under [`Trace::CONTEXT_OVERFLOW`] and tells the two apart.
    pub fn stop_at_window(&mut self, said: String) {
        self.info.insert(Self::CONTEXT_OVERFLOW.to_owned(), said.into());
        self.stop("max_total_tokens");
    }

    /// Whether the model's window ended the rollout.
    pub fn has_overflowed(&self) -> bool {
        self.info.contains_key(Self::CONTEXT_OVERFLOW)
    }

    /// The key in `info` of a rollout that the model's window ended, and the name of that ending in summaries.
    pub const CONTEXT_OVERFLOW: &str = "context_overflow";

    /// Records that the deadline of a stage (`setup`, `agent`, `finalize` or `scoring`) expired; this replaces any
    /// earlier stop condition. Where the scoring ran out of time, `info` keeps how the agent ended, for a later scoring.
    pub fn record_timeout(&mut self, stage: &str) {
        self.is_completed = true;
        self.is_timeout = true;
        let earlier = self.stop_condition.replace(format!("{stage}_timeout"));
        if let Some(earlier) = earlier.filter(|_| stage == "scoring") {
            self.info.insert(Self::STOPPED_BY.to_owned(), earlier.into());
        }
    }

    /// The key in `info` of the stop condition that `scoring_timeout` stands for.
    const STOPPED_BY: &str = "stopped_by";

    /// Makes a rollout whose scoring failed one that waits to be scored; its failures stay in the record.
    pub fn reopen_scoring(&mut self) {
        self.ok = true;
        self.timing.scoring = TimeSpan::default();
        if let Some(Value::String(condition)) = self.info.shift_remove(Self::STOPPED_BY) {
            self.is_timeout = condition.ends_with("_timeout");
            self.stop_condition = Some(condition);
        }
    }

    /// Records a failure and stops the trace as failed.
    pub fn record_fault(&mut self, fault: Fault) {
        self.ok = false;
        self.stop(&fault.stop_condition());
        self.errors.push(fault);
    }

    /// The key in `info` of the reasons for scores, a text by the name of its reward or metric.
    pub const REASONS: &str = "scoring";
    /// The key in `info` of the exchanges with judges, as verifiers 0.4.0 has it.
    pub const JUDGE_CALLS: &str = "judge_calls";

    /// The reasons for its scores, by the names of rewards and metrics.
    pub fn reasons(&self) -> Option<&Map<String, Value>> {
        self.info.get(Self::REASONS)?.as_object()
    }

    /// Its exchanges with judges, oldest first.
    pub fn judge_calls(&self) -> &[Value] {
        self.info.get(Self::JUDGE_CALLS).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// The key in `info` of what the taskset's own functions kept for the rollout.
    const STATE: &str = "state";

    /// What the taskset's own functions kept for the rollout; nothing if they kept nothing.
    pub fn state(&self) -> Option<&Map<String, Value>> {
        self.info.get(Self::STATE)?.as_object()
    }

    /// Keeps what the taskset's own functions have for the rollout; an empty one is not written down.
    pub fn keep_state(&mut self, state: Map<String, Value>) {
        if state.is_empty() {
            self.info.shift_remove(Self::STATE);
        } else {
            self.info.insert(Self::STATE.to_owned(), Value::Object(state));
        }
    }

    /// Splits the finished agent stage between the model's calls and the harness.
    pub fn split_agent_time(&mut self) {
        let agent = &mut self.timing.agent;
        if agent.end == 0.0 {
            return;
        }
        let whole = (agent.end - agent.start).max(0.0);
        let model: f64 = self.calls.iter().map(|call| call.time.duration()).sum();
        agent.model.duration = model.min(whole);
        agent.harness.duration = whole - agent.model.duration;
    }

    /// The reply that scorers judge, stripped: the root agent's where there are sub-agents, else the newest sampled
    /// message; empty when there is none.
    pub fn last_reply(&self) -> &str {
        let reply = match &self.root_reply {
            Some(reply) => Some(reply.as_str()),
            None => self.graph.last_reply().and_then(|message| message.content.as_deref()),
        };
        strip(reply.unwrap_or_default())
    }

    /// Sum of score times weight over the scored rewards; 0 when there are none.
    pub fn reward(&self) -> f64 {
        self.rewards.values().flatten().map(|reward| reward.score * reward.weight).sum()
    }
}

fn agent_name() -> String {
    "agent".to_owned()
}

fn yes() -> bool {
    true
}

fn one() -> f64 {
    1.0
}

/// Python's `str.strip`, which takes the separator controls for space too.
fn strip(text: &str) -> &str {
    text.trim_matches(|character: char| character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character))
}
