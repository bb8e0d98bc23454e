//! Episodes: what one env run on one task leaves behind, and how it ended.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    fault::{Fault, FaultClass},
    id::new_id,
    rollout::Trace,
    task::TraceTask,
};

/// Everything one env run on one task produced; one line of `traces.jsonl`.
#[derive(Clone, Debug)]
pub struct Episode {
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
    /// Failures of the episode itself, earlier attempts first.
    pub errors: Vec<Fault>,
    /// One trace per agent run, in completion order.
    pub traces: Vec<Trace>,
}

/// Which env ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EnvInfo {
    /// The taskset id, or `<env>+<taskset>`.
    #[serde(default)]
    pub id: String,
    /// Name given by the consumer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// The episodes of one task that are compared with each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupInfo {
    /// The group's id.
    pub id: String,
}

/// The run an episode belongs to, tagged by `type` in JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum RunInfo {
    /// A local evaluation.
    Eval {
        /// The run's id.
        id: String,
        /// The run's name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// A training run.
    Train {
        /// The run's id.
        id: String,
        /// The run's name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// Step and policy span.
        work: Value,
    },
}

/// How a planned rollout ended: exactly one of these, so that counts add up to the plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// It has a reward.
    Scored(f64),
    /// It has none, and this is whose fault that is.
    Failed(FaultClass),
}

impl Episode {
    /// An empty episode of a task, with a new id. It is not ok yet.
    pub fn new(env: EnvInfo, task: Arc<TraceTask>, run: Option<RunInfo>) -> Self {
        Self {
            id: new_id(),
            env,
            task,
            group: None,
            run,
            ok: false,
            is_timeout: false,
            errors: Vec::new(),
            traces: Vec::new(),
        }
    }

    /// The episode's outcome: the mean reward of its traces, or the class of the first failure.
    pub fn outcome(&self) -> Outcome {
        if self.ok && !self.traces.is_empty() {
            return Outcome::Scored(self.reward());
        }
        Outcome::Failed(self.fault().map_or(FaultClass::Infrastructure, |fault| fault.class))
    }

    /// The failure that decided a failed episode: the newest of a failed trace, else of the episode, whose first ones may
    /// be those of earlier attempts.
    pub fn fault(&self) -> Option<&Fault> {
        let of_trace = self.traces.iter().filter(|trace| !trace.ok).find_map(|trace| trace.errors.last());
        of_trace.or(self.errors.last())
    }

    /// Mean reward of the trainable traces, of all traces when none is.
    pub fn reward(&self) -> f64 {
        let trainable = self.traces.iter().any(|trace| trace.agent.trainable);
        let rewards: Vec<f64> =
            self.traces.iter().filter(|trace| trace.agent.trainable || !trainable).map(Trace::reward).collect();
        rewards.iter().sum::<f64>() / rewards.len().max(1) as f64
    }
}
