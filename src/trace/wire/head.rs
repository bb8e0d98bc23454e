//! What the reply that ends a run says of its episode.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};

use super::{
    full::{All, Full},
    json::Json,
};
use crate::trace::{
    episode::{EnvInfo, Episode, GroupInfo, RunInfo},
    fault::Fault,
    rollout::Trace,
    task::{TaskData, TraceTask},
};

/// An episode without its traces, as a reply carries it.
#[derive(Clone, Debug)]
pub struct Head {
    /// 32 hex digits.
    pub id: String,
    /// Which env.
    pub env: EnvInfo,
    /// The task dispatched.
    pub task: Arc<TraceTask>,
    /// The group it belongs to, where there is one.
    pub group: Option<GroupInfo>,
    /// The run it belongs to.
    pub run: Option<RunInfo>,
    /// Every hook finished and every trace is ok.
    pub ok: bool,
    /// A deadline of the env's own hooks ran out.
    pub is_timeout: bool,
    /// Failures of the episode itself.
    pub errors: Vec<Fault>,
}

impl<'de> Deserialize<'de> for Head {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Json(Episode { id, env, task, group, run, ok, is_timeout, errors, traces: _ }) =
            Json::deserialize(deserializer)?;
        Ok(Self { id, env, task, group, run, ok, is_timeout, errors })
    }
}

impl Head {
    /// The episode with its traces; those that ran the episode's own task share it.
    pub(super) fn with(self, mut traces: Vec<Trace>) -> Episode {
        let Self { id, env, task, group, run, ok, is_timeout, errors } = self;
        for trace in traces.iter_mut().filter(|trace| *trace.task == *task) {
            trace.task = Arc::clone(&task);
        }
        Episode { id, env, task, group, run, ok, is_timeout, errors, traces }
    }
}

/// A finished trace's id and size, for the client to check what it put together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceSummary {
    /// The trace.
    pub id: String,
    /// Its nodes.
    pub nodes: usize,
    /// Its calls.
    pub calls: usize,
}

impl TraceSummary {
    /// The summary of a trace.
    pub fn of(trace: &Trace) -> Self {
        Self { id: trace.id.clone(), nodes: trace.graph.nodes().len(), calls: trace.calls.len() }
    }
}

/// The episode without its traces, in the form of a reply: nulls present, counts last.
pub fn head(episode: &Episode) -> impl Serialize + '_ {
    #[derive(Serialize)]
    struct Dump<'a> {
        id: &'a str,
        env: Full<'a, EnvInfo>,
        task: Full<'a, TraceTask>,
        group: &'a Option<GroupInfo>,
        run: Option<Full<'a, RunInfo>>,
        ok: bool,
        is_timeout: bool,
        errors: All<'a, Fault>,
        num_input_tokens: u64,
        num_output_tokens: u64,
        num_total_tokens: u64,
    }
    let counts = episode.token_counts();
    Dump {
        id: &episode.id,
        env: Full(&episode.env),
        task: Full(&episode.task),
        group: &episode.group,
        run: episode.run.as_ref().map(Full),
        ok: episode.ok,
        is_timeout: episode.is_timeout,
        errors: All(&episode.errors),
        num_input_tokens: counts.input,
        num_output_tokens: counts.output,
        num_total_tokens: counts.total,
    }
}

/// A row in the form of a request: nulls present. It reads back as [`Json`].
pub fn task_data(data: &TaskData) -> impl Serialize + '_ {
    Full(data)
}
