//! The body of a call: what its functions ask for, and nothing else.

use std::collections::BTreeSet;

use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Map, Value, value::RawValue};

use super::description::{Field, Function};
use crate::{
    taskset::State,
    trace::{Fault, FaultClass, Message, RewardScore, TaskData, Trace},
};

/// What the functions of one call ask for, taken together.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    fields: Vec<Field>,
    columns: BTreeSet<String>,
}

/// The parts of a body, each as JSON text.
#[derive(Debug, Default)]
pub(super) struct Body(Vec<(&'static str, Box<RawValue>)>);

impl Asked {
    pub(super) fn by(functions: &[Function]) -> Self {
        let mut fields = Vec::new();
        for field in functions.iter().flat_map(|function| &function.asks) {
            if !fields.contains(field) {
                fields.push(*field);
            }
        }
        Self { fields, columns: functions.iter().flat_map(|function| function.columns.iter().cloned()).collect() }
    }

    fn for_field(&self, field: Field) -> bool {
        self.fields.contains(&field)
    }

    /// A body with what is asked for of a row.
    pub(super) fn of_task(&self, task: &TaskData) -> Result<Body, Fault> {
        let mut body = Body::default();
        body.put("columns", &Columns { task, names: &self.columns })?;
        if self.for_field(Field::Task) {
            body.put("task", task)?;
        }
        Ok(body)
    }

    /// Adds what is asked for of a conversation, whose first messages are the row's own.
    pub(super) fn add_conversation(&self, body: &mut Body, task: &TaskData, talk: &[Message]) -> Result<(), Fault> {
        if self.for_field(Field::Messages) {
            body.put("messages", talk)?;
        }
        if !(self.for_field(Field::Reply) || self.for_field(Field::Replies)) {
            return Ok(());
        }
        let opening = task.opening().len();
        let replies = talk.iter().skip(opening).filter(|message| matches!(message, Message::Assistant(_)));
        let replies: Vec<String> = replies.map(Message::text).collect();
        if self.for_field(Field::Reply) {
            body.put("reply", replies.last().map_or("", |reply| reply.trim()))?;
        }
        if self.for_field(Field::Replies) {
            body.put("replies", &replies)?;
        }
        Ok(())
    }

    /// Adds the state, if it is asked for.
    pub(super) fn add_state(&self, body: &mut Body, state: &State) -> Result<(), Fault> {
        if self.for_field(Field::State) { body.put("state", state) } else { Ok(()) }
    }

    /// Adds what is asked for of a rollout that has come to its end, but for the state.
    pub(super) fn add_trace(&self, body: &mut Body, trace: &Trace) -> Result<(), Fault> {
        if self.for_field(Field::Messages) {
            body.put("messages", &trace.graph.transcript())?;
        }
        if self.for_field(Field::Reply) {
            body.put("reply", trace.last_reply())?;
        }
        if self.for_field(Field::Replies) {
            body.put("replies", &replies(trace))?;
        }
        if self.for_field(Field::Metrics) {
            body.put("metrics", &trace.metrics)?;
        }
        if self.for_field(Field::Trace) {
            body.put("trace", trace)?;
        }
        Ok(())
    }
}

impl Body {
    /// Adds a part.
    pub(super) fn put<T: Serialize + ?Sized>(&mut self, name: &'static str, part: &T) -> Result<(), Fault> {
        self.0.push((name, raw(part)?));
        Ok(())
    }

    /// The body as it is sent.
    pub(super) fn bytes(&self) -> Result<Vec<u8>, Fault> {
        serde_json::to_vec(self).map_err(|error| unwritable(&error))
    }
}

impl Serialize for Body {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, part)| (name, part)))
    }
}

/// A member of a group as a group reward sees it.
#[derive(Serialize)]
pub(super) struct Member<'a> {
    reply: &'a str,
    replies: Vec<String>,
    messages: Vec<&'a Message>,
    state: &'a Map<String, Value>,
    rewards: Map<String, Value>,
    metrics: &'a indexmap::IndexMap<String, Option<f64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<&'a Trace>,
}

impl<'a> Member<'a> {
    /// `nothing` stands for the state of a rollout that kept none.
    pub(super) fn of(trace: &'a Trace, nothing: &'a State, whole: bool) -> Self {
        let score =
            |(name, reward): (&String, &Option<RewardScore>)| Some((name.clone(), reward.as_ref()?.score.into()));
        Self {
            reply: trace.last_reply(),
            replies: replies(trace),
            messages: trace.graph.transcript(),
            state: trace.state().unwrap_or(nothing),
            rewards: trace.rewards.iter().filter_map(score).collect(),
            metrics: &trace.metrics,
            trace: whole.then_some(trace),
        }
    }
}

/// What the model said on the final branch, message by message.
fn replies(trace: &Trace) -> Vec<String> {
    let nodes = trace.graph.nodes();
    let Some(last) = nodes.len().checked_sub(1) else { return Vec::new() };
    let path = trace.graph.path(last as u32);
    path.into_iter()
        .map(|node| &nodes[node as usize])
        .filter(|node| node.sampled)
        .map(|node| node.message.text())
        .collect()
}

/// Some of the columns of a row; those that it lacks are left out.
struct Columns<'a> {
    task: &'a TaskData,
    names: &'a BTreeSet<String>,
}

impl Serialize for Columns<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let own = |name: &String| self.task.extra.contains_key(name);
        let mut map = serializer.serialize_map(None)?;
        // A known field, or a number too long for a value: the row's own writer has the rule for it.
        let written = if self.names.iter().any(|name| !own(name) || self.task.exact.contains_key(name)) {
            let text = serde_json::to_string(self.task).map_err(serde::ser::Error::custom)?;
            serde_json::from_str::<indexmap::IndexMap<String, Box<RawValue>>>(&text)
                .map_err(serde::ser::Error::custom)?
        } else {
            indexmap::IndexMap::new()
        };
        for name in self.names {
            match (written.get(name), self.task.extra.get(name)) {
                (Some(value), _) => map.serialize_entry(name, value)?,
                (None, Some(value)) => map.serialize_entry(name, value)?,
                (None, None) => {}
            }
        }
        map.end()
    }
}

fn raw<T: Serialize + ?Sized>(part: &T) -> Result<Box<RawValue>, Fault> {
    serde_json::value::to_raw_value(part).map_err(|error| unwritable(&error))
}

fn unwritable(error: &serde_json::Error) -> Fault {
    Fault::new(FaultClass::Infrastructure, format!("what a function asks for cannot be written as JSON: {error}"))
}
