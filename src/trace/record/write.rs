//! Episodes as they are written.

use std::sync::Arc;

use indexmap::IndexMap;
use serde::{Serialize, Serializer, ser::SerializeSeq};
use serde_json::{Map, Value, value::RawValue};

use crate::trace::{
    branch::TokenCounts,
    episode::{EnvInfo, Episode, GroupInfo, RunInfo},
    fault::Fault,
    graph::{Node, ParentLink},
    message::{Message, Tool},
    rollout::{AgentInfo, ModelCall, RewardScore, Trace, VersionInfo},
    task::TraceTask,
    timing::Timing,
    tokens::{CreditStream, TokenFlags},
    usage::Usage,
};

/// A task, or its text where it is written more than once.
#[derive(Clone, Copy)]
enum TaskForm<'a> {
    Plain(&'a TraceTask),
    Rendered(&'a RawValue),
}

impl Serialize for TaskForm<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Plain(task) => task.serialize(serializer),
            Self::Rendered(text) => text.serialize(serializer),
        }
    }
}

#[derive(Serialize)]
struct EpisodeRecord<'a> {
    id: &'a str,
    env: &'a EnvInfo,
    task: TaskForm<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: &'a Option<GroupInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run: &'a Option<RunInfo>,
    ok: bool,
    is_timeout: bool,
    errors: &'a [Fault],
    traces: Vec<TraceRecord<'a>>,
    num_input_tokens: u64,
    num_output_tokens: u64,
    num_total_tokens: u64,
}

impl Serialize for Episode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let shares = |trace: &Trace| Arc::ptr_eq(&trace.task, &self.task);
        let rendered = self.traces.iter().any(shares).then(|| serde_json::value::to_raw_value(&self.task)).transpose();
        let rendered = rendered.map_err(serde::ser::Error::custom)?;
        let task = rendered.as_deref().map_or(TaskForm::Plain(&self.task), TaskForm::Rendered);
        let traces: Vec<TraceRecord<'_>> = self
            .traces
            .iter()
            .map(|trace| TraceRecord::new(trace, if shares(trace) { task } else { TaskForm::Plain(&trace.task) }))
            .collect();
        let counts = traces.iter().map(|trace| trace.counts).fold(TokenCounts::default(), TokenCounts::plus);
        let record = EpisodeRecord {
            id: &self.id,
            env: &self.env,
            task,
            group: &self.group,
            run: &self.run,
            ok: self.ok,
            is_timeout: self.is_timeout,
            errors: &self.errors,
            traces,
            num_input_tokens: counts.input,
            num_output_tokens: counts.output,
            num_total_tokens: counts.total,
        };
        record.serialize(serializer)
    }
}

#[derive(Serialize)]
struct TraceRecord<'a> {
    version: u32,
    id: &'a str,
    verifiers: &'a VersionInfo,
    task: TaskForm<'a>,
    agent: &'a AgentInfo,
    tools: &'a [Tool],
    nodes: NodeRecords<'a>,
    calls: &'a [ModelCall],
    mm_token_type_id_map: &'a IndexMap<u32, u32>,
    request_rewrites: &'a [Value],
    response_rewrites: &'a [Value],
    rewards: &'a IndexMap<String, Option<RewardScore>>,
    metrics: &'a IndexMap<String, Option<f64>>,
    info: &'a Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    root_reply: &'a Option<String>,
    extra_usage: &'a [Usage],
    is_completed: bool,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_condition: &'a Option<String>,
    is_timeout: bool,
    errors: &'a [Fault],
    timing: &'a Timing,
    #[serde(skip)]
    counts: TokenCounts,
    num_input_tokens: u64,
    num_output_tokens: u64,
    num_total_tokens: u64,
}

impl<'a> TraceRecord<'a> {
    fn new(trace: &'a Trace, task: TaskForm<'a>) -> Self {
        let counts = trace.token_counts();
        Self {
            version: trace.version,
            id: &trace.id,
            verifiers: &trace.verifiers,
            task,
            agent: &trace.agent,
            tools: &trace.graph.tools,
            nodes: NodeRecords(&trace.graph.nodes),
            calls: &trace.calls,
            mm_token_type_id_map: &trace.graph.mm_token_type_id_map,
            request_rewrites: &trace.request_rewrites,
            response_rewrites: &trace.response_rewrites,
            rewards: &trace.rewards,
            metrics: &trace.metrics,
            info: &trace.info,
            root_reply: &trace.root_reply,
            extra_usage: &trace.extra_usage,
            is_completed: trace.is_completed,
            ok: trace.ok,
            stop_condition: &trace.stop_condition,
            is_timeout: trace.is_timeout,
            errors: &trace.errors,
            timing: &trace.timing,
            counts,
            num_input_tokens: counts.input,
            num_output_tokens: counts.output,
            num_total_tokens: counts.total,
        }
    }
}

impl Serialize for Trace {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        TraceRecord::new(self, TaskForm::Plain(&self.task)).serialize(serializer)
    }
}

struct NodeRecords<'a>(&'a [Node]);

impl Serialize for NodeRecords<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0)
    }
}

#[derive(Serialize)]
struct NodeRecord<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<u32>,
    #[serde(skip_serializing_if = "<[Tool]>::is_empty")]
    tools: &'a [Tool],
    semantic_parents: &'a [ParentLink],
    message: &'a Message,
    sampled: bool,
    timestamp: f64,
    token_ids: &'a [u32],
    mask: &'a TokenFlags,
    is_content: &'a TokenFlags,
    logprobs: Rounded<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    advantages: Option<Rounded<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reference_logprobs: Option<Rounded<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trainer_logprobs: Option<Rounded<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entropies: Option<Rounded<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    loss_weights: Option<&'a IndexMap<String, Box<[f64]>>>,
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let credit = |stream| self.tokens.credit(stream).map(Rounded);
        let record = NodeRecord {
            parent: self.parent,
            tools: &self.tools,
            semantic_parents: &self.semantic_parents,
            message: &self.message,
            sampled: self.sampled,
            timestamp: self.timestamp,
            token_ids: &self.tokens.ids,
            mask: &self.tokens.mask,
            is_content: &self.tokens.is_content,
            logprobs: Rounded(&self.tokens.logprobs),
            advantages: credit(CreditStream::Advantages),
            reference_logprobs: credit(CreditStream::ReferenceLogprobs),
            trainer_logprobs: credit(CreditStream::TrainerLogprobs),
            entropies: credit(CreditStream::Entropies),
            loss_weights: self.tokens.loss_weights(),
        };
        record.serialize(serializer)
    }
}

impl Serialize for TokenFlags {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut sequence = serializer.serialize_seq(Some(self.len()))?;
        for flag in self.iter() {
            sequence.serialize_element(&flag)?;
        }
        sequence.end()
    }
}

/// Floats that are written with four decimals.
struct Rounded<'a>(&'a [f32]);

impl Serialize for Rounded<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|value| four_decimals(*value)))
    }
}

/// The nearest number with four decimals, half to even, as Python's `round(value, 4)`. The product is exact: 24 bits of
/// the value and 14 of the factor fit into 53.
fn four_decimals(value: f32) -> f64 {
    let scaled = f64::from(value) * 1e4;
    // Beyond that, and for what is not finite, there are no decimals to round.
    if scaled.abs() < 9e15 { scaled.round_ties_even() / 1e4 } else { f64::from(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn per_token_floats_have_four_decimals() {
        // Each pair as Python's json.dumps(round(value, 4)) prints it.
        for (value, expected) in [
            (-0.123_456_f32, "-0.1235"),
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (-1e-6, "-0.0"),
            // Exactly between two: 1/32 and 3/32 have five decimals.
            (0.03125, "0.0312"),
            (0.09375, "0.0938"),
            (-0.03125, "-0.0312"),
            (-9999.0, "-9999.0"),
            (1e-4, "0.0001"),
            (f32::NAN, "null"),
            (f32::NEG_INFINITY, "null"),
        ] {
            assert_eq!(serde_json::to_string(&Rounded(&[value])).unwrap(), format!("[{expected}]"));
        }
        // Large floats are whole numbers already.
        assert_eq!(four_decimals(f32::MAX), f64::from(f32::MAX));
    }

    #[test]
    fn what_was_written_rounded_is_read_as_the_same_text() {
        for ten_thousandths in (-90_000..90_000).step_by(7) {
            let text = serde_json::to_string(&(f64::from(ten_thousandths) / 1e4)).unwrap();
            let read: Vec<f32> = serde_json::from_str(&format!("[{text}]")).unwrap();
            assert_eq!(serde_json::to_string(&Rounded(&read)).unwrap(), format!("[{text}]"));
        }
    }
}
