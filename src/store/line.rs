//! What a journal's line says, read without its message bodies and tokens.

use std::borrow::Cow;

use indexmap::IndexMap;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;

use super::{Fingerprint, JudgeUsage, Row, RowFault, Span, UsageTotals};
use crate::trace::{Episode, Fault, FaultClass, Trace, Usage, truncates};

/// What a line is.
pub(super) enum Parsed {
    Blank,
    Malformed,
    Row(Box<Row>),
}

/// What a line of a journal comes to, wherever it lies; `None` if it is no episode.
pub fn read_row(line: &str) -> Option<Row> {
    match parse(line.as_bytes(), Span { offset: 0, length: line.len() as u64 }) {
        Parsed::Row(row) => Some(*row),
        Parsed::Blank | Parsed::Malformed => None,
    }
}

/// Looks at one line, without its line feed.
pub(super) fn parse(text: &[u8], span: Span) -> Parsed {
    if text.iter().all(u8::is_ascii_whitespace) {
        return Parsed::Blank;
    }
    let Ok(text) = std::str::from_utf8(text) else { return Parsed::Malformed };
    let Ok(line) = serde_json::from_str::<EpisodeLine<'_>>(text) else { return Parsed::Malformed };
    match line.into_row(span, text) {
        Some(row) => Parsed::Row(Box::new(row)),
        None => Parsed::Malformed,
    }
}

#[derive(Deserialize)]
struct EpisodeLine<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    task: TaskLine<'a>,
    #[serde(default)]
    ok: bool,
    #[serde(default)]
    errors: Vec<Fault>,
    #[serde(borrow)]
    traces: Vec<TraceLine<'a>>,
}

#[derive(Deserialize)]
struct TaskLine<'a> {
    #[serde(default, borrow)]
    key: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    hash: Option<Cow<'a, str>>,
    #[serde(borrow)]
    data: DataLine<'a>,
}

#[derive(Deserialize)]
struct DataLine<'a> {
    #[serde(default)]
    idx: Option<u64>,
    #[serde(default, borrow)]
    id: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct TraceLine<'a> {
    agent: AgentLine,
    #[serde(default)]
    nodes: Vec<NodeLine>,
    #[serde(default, borrow)]
    calls: Vec<CallLine<'a>>,
    #[serde(default, borrow)]
    rewards: IndexMap<Cow<'a, str>, Option<RewardLine>>,
    #[serde(default, borrow)]
    metrics: IndexMap<Cow<'a, str>, Option<f64>>,
    #[serde(default)]
    ok: bool,
    #[serde(default, borrow)]
    stop_condition: Option<Cow<'a, str>>,
    #[serde(default)]
    is_timeout: bool,
    #[serde(default, borrow)]
    info: Option<InfoLine<'a>>,
    #[serde(default)]
    errors: Vec<Fault>,
}

#[derive(Deserialize)]
struct InfoLine<'a> {
    #[serde(default)]
    context_overflow: Option<IgnoredAny>,
    // Read apart: notes of another producer may have any form.
    #[serde(default, borrow)]
    judge_calls: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct JudgeLine {
    #[serde(default)]
    cached: bool,
    #[serde(default)]
    response: Option<JudgeAnswer>,
}

#[derive(Deserialize)]
struct JudgeAnswer {
    #[serde(default)]
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct AgentLine {
    #[serde(default = "yes")]
    trainable: bool,
}

#[derive(Deserialize)]
struct NodeLine {
    #[serde(default)]
    parent: Option<usize>,
    #[serde(default)]
    sampled: bool,
}

#[derive(Deserialize)]
struct CallLine<'a> {
    #[serde(default)]
    node: Option<usize>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    error: Option<IgnoredAny>,
    #[serde(default, borrow)]
    finish_reason: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct RewardLine {
    // Null is what a score that was not finite becomes in the file.
    score: Option<f64>,
    #[serde(default = "one")]
    weight: f64,
}

fn yes() -> bool {
    true
}

fn one() -> f64 {
    1.0
}

impl EpisodeLine<'_> {
    fn into_row(self, span: Span, text: &str) -> Option<Row> {
        let hash = match &self.task.hash {
            Some(hash) => hash.to_string(),
            None => rehash(text)?,
        };
        let trainable = self.traces.iter().any(|trace| trace.agent.trainable);
        let counting: Vec<&TraceLine<'_>> =
            self.traces.iter().filter(|trace| trace.agent.trainable || !trainable).collect();
        let traces = counting.len().max(1) as f64;
        let unscored = self.traces.iter().flat_map(TraceLine::unscored).next();
        let finished = self.ok && !self.traces.is_empty() && unscored.is_none();
        let rescorable = !finished && self.agents_ended(unscored.is_some());
        let fault = if finished { None } else { Some(self.fault(unscored)) };
        let mut usage = UsageTotals::default();
        self.traces.iter().for_each(|trace| usage.add(&trace.tokens()));
        let mut judge_usage = JudgeUsage::default();
        self.traces.iter().for_each(|trace| judge_usage.add(&trace.judged()));
        Some(Row {
            span,
            line: 0,
            id: self.id.to_string(),
            task: Fingerprint::of(&hash),
            task_key: self.task.key.as_ref().map_or(hash, |key| key.to_string()),
            task_idx: self.task.data.idx,
            task_id: self.task.data.id.as_ref().map(ToString::to_string),
            finished,
            rescorable,
            reward: counting.iter().fold(0.0, |sum, trace| sum + trace.reward()) / traces,
            full_reward: counting.iter().fold(0.0, |sum, trace| sum + trace.full_reward()) / traces,
            rewards: counting.iter().flat_map(|trace| trace.raw_scores()).collect(),
            metrics: counting.iter().flat_map(|trace| trace.measured()).collect(),
            turns: self.traces.iter().map(TraceLine::turns).sum(),
            usage,
            judge_usage,
            truncated: self.traces.iter().any(TraceLine::is_truncated),
            timed_out: self.traces.iter().any(|trace| trace.is_timeout),
            stop_conditions: self.traces.iter().filter_map(TraceLine::stopped_by).map(str::to_owned).collect(),
            retries: self.retries(finished),
            fault,
        })
    }

    /// Whether only the scores are missing: all agents ended in an ordinary way, and the scoring failed or was never done.
    /// Failures of the episode itself leave no traces, but for that of the scoring of a group.
    fn agents_ended(&self, unscored: bool) -> bool {
        let in_scoring = |errors: &[Fault]| errors.last().is_some_and(|fault| fault.class.is_of_scoring());
        let failed = self.traces.iter().any(|trace| !trace.ok);
        !self.traces.is_empty()
            && self.traces.iter().all(|trace| trace.ok || (in_scoring(&trace.errors) && !trace.agent_failed()))
            && (failed || unscored || in_scoring(&self.errors))
    }

    fn fault(&self, unscored: Option<String>) -> RowFault {
        let of_trace = self.traces.iter().filter(|trace| !trace.ok).find_map(|trace| trace.errors.last());
        let newest = of_trace.or(self.errors.last());
        match (newest, unscored) {
            (Some(fault), _) => RowFault { class: fault.class, message: fault.message.clone() },
            (None, Some(name)) => {
                RowFault { class: FaultClass::Scoring, message: format!("reward `{name}` was due but has no score") }
            }
            (None, None) => RowFault {
                class: FaultClass::Infrastructure,
                message: "the episode is not ok, and no reason was recorded".to_owned(),
            },
        }
    }

    /// Failed calls that were followed by another one, and earlier attempts, whose errors stay in the record.
    fn retries(&self, finished: bool) -> u64 {
        let calls: usize = self.traces.iter().map(TraceLine::retried_calls).sum();
        let errors = self.errors.len() + self.traces.iter().map(|trace| trace.errors.len()).sum::<usize>();
        (calls + if finished { errors } else { errors.saturating_sub(1) }) as u64
    }
}

/// The task hash of a line that has none.
fn rehash(text: &str) -> Option<String> {
    let episode = Episode::from_line(text.as_bytes()).ok()?;
    Some(episode.task.data.hash())
}

impl TraceLine<'_> {
    fn unscored(&self) -> impl Iterator<Item = String> + '_ {
        let scored = |reward: &Option<RewardLine>| reward.as_ref().is_some_and(|reward| reward.score.is_some());
        self.rewards.iter().filter(move |(_, reward)| !scored(reward)).map(|(name, _)| name.to_string())
    }

    fn scored(&self) -> impl Iterator<Item = (&Cow<'_, str>, f64, f64)> {
        self.rewards.iter().filter_map(|(name, reward)| {
            let reward = reward.as_ref()?;
            Some((name, reward.score?, reward.weight))
        })
    }

    fn reward(&self) -> f64 {
        // Not `sum`, whose empty sum is -0.0.
        self.scored().fold(0.0, |sum, (_, score, weight)| sum + score * weight)
    }

    fn full_reward(&self) -> f64 {
        self.scored().fold(0.0, |sum, (_, _, weight)| sum + weight.max(0.0))
    }

    fn raw_scores(&self) -> impl Iterator<Item = (String, f64)> {
        self.scored().map(|(name, score, _)| (name.to_string(), score))
    }

    fn measured(&self) -> impl Iterator<Item = (String, f64)> {
        self.metrics.iter().filter_map(|(name, value)| Some((name.to_string(), (*value)?)))
    }

    fn turns(&self) -> u64 {
        self.nodes.iter().filter(|node| node.sampled).count() as u64
    }

    /// The stop condition, a full context window by its own name: in the trace it is the budget that verifiers knows.
    fn stopped_by(&self) -> Option<&str> {
        let condition = self.stop_condition.as_deref()?;
        let overflow = self.info.as_ref().is_some_and(|info| info.context_overflow.is_some());
        Some(if overflow && truncates(condition) { Trace::CONTEXT_OVERFLOW } else { condition })
    }

    /// Whether its newest failure is what ended it; a failed scoring leaves the stop condition as it was.
    fn agent_failed(&self) -> bool {
        self.errors.last().map(Fault::stop_condition).as_deref() == self.stop_condition.as_deref()
    }

    fn judged(&self) -> JudgeUsage {
        let calls = self.info.as_ref().and_then(|info| info.judge_calls);
        let calls: Vec<JudgeLine> = calls.and_then(|calls| serde_json::from_str(calls.get()).ok()).unwrap_or_default();
        let mut sum = JudgeUsage::default();
        for JudgeLine { cached, response } in &calls {
            let usage = response.as_ref().and_then(|response| response.usage.as_ref());
            sum.add(&JudgeUsage {
                calls: u64::from(!cached && response.is_some()),
                cached: u64::from(*cached),
                input_tokens: usage.map_or(0, Usage::input_tokens),
                output_tokens: usage.map_or(0, |usage| usage.completion_tokens),
            });
        }
        sum
    }

    fn is_truncated(&self) -> bool {
        let last = self.calls.iter().rev().find(|call| call.error.is_none());
        self.stop_condition.as_deref().is_some_and(truncates)
            || last.is_some_and(|call| call.finish_reason.as_deref() == Some("length"))
    }

    fn retried_calls(&self) -> usize {
        let last = self.calls.len().saturating_sub(1);
        self.calls.iter().take(last).filter(|call| call.error.is_some()).count()
    }

    /// Tokens of all calls, each once. New input follows verifiers' rule: a call's prompt counts as far as it exceeds the total
    /// of the call before it on its branch.
    fn tokens(&self) -> UsageTotals {
        let mut totals = UsageTotals::default();
        let mut usage_at: Vec<Option<&Usage>> = vec![None; self.nodes.len()];
        for call in &self.calls {
            let Some(usage) = &call.usage else { continue };
            totals.add(&UsageTotals {
                input_tokens: usage.input_tokens(),
                output_tokens: usage.completion_tokens,
                cached_input_tokens: usage.cached_input_tokens.unwrap_or(0),
                new_input_tokens: 0,
            });
            if let Some(slot) = call.node.and_then(|node| usage_at.get_mut(node)) {
                *slot = Some(usage);
            }
        }
        // Parents stand before their children, so one pass carries totals down.
        let mut total_before = vec![0; self.nodes.len()];
        for (node, line) in self.nodes.iter().enumerate() {
            let before = line.parent.filter(|parent| *parent < node).map_or(0, |parent| total_before[parent]);
            total_before[node] = usage_at[node].map_or(before, |usage| {
                let new = usage.input_tokens().saturating_sub(before);
                totals.new_input_tokens = totals.new_input_tokens.saturating_add(new);
                usage.total_tokens()
            });
        }
        totals
    }
}
