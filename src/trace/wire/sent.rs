//! Traces cut into deltas.

use std::{
    collections::BTreeSet,
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use bytes::Bytes;
use serde::{Serialize, Serializer};

use super::{
    WireError,
    counts::Counts,
    full::{All, Full},
    tensor::Rows,
};
use crate::trace::{
    fault::Fault,
    graph::{Amendment, Node, ParentLink},
    message::{Message, Tool},
    rollout::{AgentInfo, Trace},
};

/// What of one trace has been sent. What a delta costs does not grow with what was sent before.
#[derive(Debug, Default)]
pub struct Sent {
    /// The trace; empty before its first delta.
    id: String,
    /// Links sent of each node sent.
    links: Vec<usize>,
    /// How many of the graph's amendments have been looked at.
    amended: usize,
    calls: usize,
    extra_usage: usize,
    request_rewrites: usize,
    response_rewrites: usize,
    /// Whole, because earlier attempts' failures may come to stand in front of them.
    errors: Vec<Fault>,
    /// Hash of each scalar as it was sent last, in the order of [`Sent::set`].
    scalars: [Option<u64>; 15],
    /// Blocks whose texts need not be looked at while they are the same in memory.
    agent: Option<AgentInfo>,
    tools: Option<(Arc<[Tool]>, usize)>,
    pending: Option<u64>,
    counts: Counts,
    hashes: RandomState,
    /// A delta could not be made, and what is noted here of it was not sent.
    is_spoilt: bool,
}

impl Sent {
    /// What of the trace has not been sent, as frames in order; none when nothing has changed. It counts as sent from
    /// then on: a frame that is lost ends the run. `pending` are the messages of requests in flight that no node holds
    /// yet.
    ///
    /// It is one frame as a rule. Two where what was sent is no longer true, as when a retry put earlier failures in front
    /// of those that were sent: the first discards the trace, the second is all of it.
    ///
    /// # Errors
    /// The trace holds text that claims to be JSON and is not.
    pub fn delta(&mut self, trace: &Trace, pending: &[Message]) -> Result<Vec<Bytes>, WireError> {
        let mut frames = Vec::new();
        let is_open = !self.id.is_empty();
        if self.is_spoilt || is_open && !self.is_part_of(trace) {
            frames.extend(is_open.then(|| discard(&self.id)));
            *self = Self::default();
        }
        let rest = self.rest(trace, pending);
        self.is_spoilt = rest.is_err();
        frames.extend(rest?);
        Ok(frames)
    }

    fn is_part_of(&self, trace: &Trace) -> bool {
        self.id == trace.id
            && self.links.len() <= trace.graph.nodes().len()
            && self.amended <= trace.graph.amended.len()
            && self.calls <= trace.calls.len()
            && self.extra_usage <= trace.extra_usage.len()
            && self.request_rewrites <= trace.request_rewrites.len()
            && self.response_rewrites <= trace.response_rewrites.len()
            && trace.errors.starts_with(&self.errors)
    }

    fn rest(&mut self, trace: &Trace, pending: &[Message]) -> Result<Option<Bytes>, WireError> {
        let first = self.links.len();
        let nodes = &trace.graph.nodes()[first..];
        let mut delta = Fields::new(nodes.iter().map(room).sum());
        delta.put("trace", &trace.id)?;
        if self.id.is_empty() {
            delta.put("open", &Opening(trace))?;
        }
        self.amendments(trace, &mut delta)?;
        delta.rest("nodes", nodes)?;
        delta.rest("calls", &trace.calls[self.calls..])?;
        delta.rest("errors", &trace.errors[self.errors.len()..])?;
        delta.rest("extra_usage", &trace.extra_usage[self.extra_usage..])?;
        for (key, all, sent) in [
            ("request_rewrites", &trace.request_rewrites, self.request_rewrites),
            ("response_rewrites", &trace.response_rewrites, self.response_rewrites),
        ] {
            if all.len() > sent {
                delta.put(key, &all[sent..])?;
            }
        }
        let set = self.set(trace)?;
        if set.count > 0 {
            delta.put_packed("set", &set.into_bytes())?;
        }
        self.preview(pending, nodes.is_empty(), &mut delta)?;

        if self.id.is_empty() {
            self.id.clone_from(&trace.id);
        }
        self.links.extend(nodes.iter().map(|node| node.semantic_parents.len()));
        self.amended = trace.graph.amended.len();
        self.calls = trace.calls.len();
        self.errors.extend_from_slice(&trace.errors[self.errors.len()..]);
        self.extra_usage = trace.extra_usage.len();
        self.request_rewrites = trace.request_rewrites.len();
        self.response_rewrites = trace.response_rewrites.len();
        Ok((delta.count > 1).then(|| delta.into_bytes().into()))
    }

    /// What became of nodes that were sent: further links, other last router rows.
    fn amendments(&mut self, trace: &Trace, delta: &mut Fields) -> Result<(), WireError> {
        let sent = self.links.len();
        let (mut linked, mut rerouted) = (BTreeSet::new(), BTreeSet::new());
        for amendment in &trace.graph.amended[self.amended..] {
            match *amendment {
                Amendment::Links(node) => linked.insert(node),
                Amendment::LastRow(node) => rerouted.insert(node),
            };
        }
        let is_sent = |node: &u32| (*node as usize) < sent;
        let node = |node: u32| &trace.graph.nodes()[node as usize];
        let links: Vec<(u32, &[ParentLink])> = linked
            .into_iter()
            .filter(is_sent)
            .map(|index| (index, &node(index).semantic_parents[self.links[index as usize]..]))
            .filter(|(_, links)| !links.is_empty())
            .collect();
        if !links.is_empty() {
            delta.put("links", &Entries(&links))?;
        }
        for (index, links) in links {
            self.links[index as usize] += links.len();
        }
        let row = |index| Some((index, Rows::last(node(index).tokens.routed_experts()?)?));
        let rows: Vec<(u32, Rows<'_>)> = rerouted.into_iter().filter(is_sent).filter_map(row).collect();
        if !rows.is_empty() {
            delta.put("routing_repairs", &Entries(&rows))?;
        }
        Ok(())
    }

    /// The scalars that are not as they were sent.
    fn set(&mut self, trace: &Trace) -> Result<Fields, WireError> {
        let mut set = Fields::new(0);
        let agent = &trace.agent;
        let is_same = |sent: &AgentInfo| {
            let runtime = match (&sent.runtime, &agent.runtime) {
                (Some(sent), Some(runtime)) => Arc::ptr_eq(sent, runtime),
                (sent, runtime) => sent.is_none() && runtime.is_none(),
            };
            runtime
                && Arc::ptr_eq(&sent.config, &agent.config)
                && (&sent.name, sent.trainable) == (&agent.name, agent.trainable)
        };
        if !self.agent.as_ref().is_some_and(is_same) {
            self.scalar(0, "agent", &Full(agent), &mut set)?;
            self.agent = Some(agent.clone());
        }
        // The list changes only when another one is merged into it.
        let tools = trace.graph.tools();
        let merged = trace.graph.merged.as_ref().map(|merged| (merged, tools.len()));
        let same =
            |((sent, count), (merged, len)): (&(Arc<[Tool]>, usize), _)| Arc::ptr_eq(sent, merged) && *count == len;
        if !self.tools.as_ref().zip(merged).is_some_and(same) {
            self.scalar(1, "tools", &All(tools), &mut set)?;
            self.tools = merged.map(|(merged, len)| (Arc::clone(merged), len));
        }
        self.scalar(2, "mm_token_type_id_map", &TextKeys(trace.graph.mm_token_type_id_map()), &mut set)?;
        self.scalar(3, "rewards", &trace.rewards, &mut set)?;
        self.scalar(4, "metrics", &trace.metrics, &mut set)?;
        self.scalar(5, "info", &trace.info, &mut set)?;
        self.scalar(6, "root_reply", &trace.root_reply, &mut set)?;
        self.scalar(7, "is_completed", &trace.is_completed, &mut set)?;
        self.scalar(8, "ok", &trace.ok, &mut set)?;
        self.scalar(9, "stop_condition", &trace.stop_condition, &mut set)?;
        self.scalar(10, "is_timeout", &trace.is_timeout, &mut set)?;
        self.scalar(11, "timing", &trace.timing, &mut set)?;
        let counts = self.counts.of(trace);
        self.scalar(12, "num_input_tokens", &counts.input, &mut set)?;
        self.scalar(13, "num_output_tokens", &counts.output, &mut set)?;
        self.scalar(14, "num_total_tokens", &counts.total, &mut set)?;
        Ok(set)
    }

    fn scalar(
        &mut self,
        place: usize,
        key: &str,
        value: &(impl Serialize + ?Sized),
        set: &mut Fields,
    ) -> Result<(), WireError> {
        let before = set.bytes.len();
        let packed = set.put(key, value)?;
        let hash = self.hashes.hash_one(&set.bytes[packed..]);
        if self.scalars[place].replace(hash) == Some(hash) {
            set.bytes.truncate(before);
            set.count -= 1;
        }
        Ok(())
    }

    fn preview(&mut self, pending: &[Message], no_nodes: bool, delta: &mut Fields) -> Result<(), WireError> {
        let before = delta.bytes.len();
        let packed = delta.put("pending", &All(pending))?;
        let hash = self.hashes.hash_one(&delta.bytes[packed..]);
        let was_empty = self.pending.is_none();
        let is_same = if pending.is_empty() { was_empty } else { self.pending == Some(hash) };
        self.pending = (!pending.is_empty()).then_some(hash);
        // Nodes that land clear the preview by themselves.
        if is_same && (no_nodes || pending.is_empty()) || pending.is_empty() && !no_nodes {
            delta.bytes.truncate(before);
            delta.count -= 1;
        }
        Ok(())
    }
}

/// The frame that makes a client forget a trace.
pub fn discard(trace_id: &str) -> Bytes {
    let mut delta = Fields::new(0);
    // A text and a flag always become msgpack.
    let _ = delta.put("trace", trace_id).and_then(|_| delta.put("discard", &true));
    delta.into_bytes().into()
}

/// About how many bytes a node takes; what matters is that large ones do not grow their buffer many times.
fn room(node: &Node) -> usize {
    let tokens = &node.tokens;
    let rows = tokens.routed_experts().map_or(0, |rows| rows.data.len());
    let mask = tokens.sampling_mask().map_or(0, |mask| mask.ids.len() + mask.counts.len());
    512 + rows + mask + 5 * tokens.ids().len() + 9 * tokens.logprobs().len()
}

/// A map of at most 15 entries that is written entry by entry.
struct Fields {
    bytes: Vec<u8>,
    count: u8,
}

impl Fields {
    fn new(room: usize) -> Self {
        let mut bytes = Vec::with_capacity(room + 256);
        // The head of a small map; the count is filled in at the end.
        bytes.push(0x80);
        Self { bytes, count: 0 }
    }

    /// Writes an entry; its value begins at the place returned.
    fn put(&mut self, key: &str, value: &(impl Serialize + ?Sized)) -> Result<usize, WireError> {
        rmp_serde::encode::write_named(&mut self.bytes, key)?;
        let packed = self.bytes.len();
        rmp_serde::encode::write_named(&mut self.bytes, value)?;
        self.count += 1;
        Ok(packed)
    }

    fn put_packed(&mut self, key: &str, packed: &[u8]) -> Result<(), WireError> {
        rmp_serde::encode::write_named(&mut self.bytes, key)?;
        self.bytes.extend_from_slice(packed);
        self.count += 1;
        Ok(())
    }

    /// The items of a list that were not sent, if there are any.
    fn rest<T>(&mut self, key: &str, items: &[T]) -> Result<(), WireError>
    where
        for<'b> Full<'b, T>: Serialize,
    {
        if !items.is_empty() {
            self.put(key, &All(items))?;
        }
        Ok(())
    }

    fn into_bytes(mut self) -> Vec<u8> {
        self.bytes[0] |= self.count;
        self.bytes
    }
}

/// What a trace's first delta says of it once and for all.
struct Opening<'a>(&'a Trace);

impl Serialize for Opening<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Open<'a> {
            version: u32,
            id: &'a str,
            verifiers: Full<'a, crate::trace::rollout::VersionInfo>,
            task: Full<'a, crate::trace::task::TraceTask>,
        }
        let Trace { version, id, verifiers, task, .. } = self.0;
        Open { version: *version, id, verifiers: Full(verifiers), task: Full(task) }.serialize(serializer)
    }
}

/// A map from node indices.
struct Entries<'a, T>(&'a [(u32, T)]);

impl<T: Serialize> Serialize for Entries<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(node, value)| (node, value)))
    }
}

/// A map whose keys are numbers here and texts on the wire.
struct TextKeys<'a>(&'a indexmap::IndexMap<u32, u32>);

impl Serialize for TextKeys<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key.to_string(), value)))
    }
}
