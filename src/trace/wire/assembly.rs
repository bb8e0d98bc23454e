//! Traces put together from deltas.

use bytes::Bytes;
use indexmap::IndexMap;

use super::{
    Head, TraceSummary, WireError,
    received::{ByIndex, Delta, List, Set, read},
    scan::readable,
    tensor::{Array, Frame},
};
use crate::trace::{
    episode::Episode,
    graph::{Graph, Node},
    message::Message,
    rollout::Trace,
    timing::Timing,
    tokens::RouterRows,
};

/// The traces of one run as far as they have come.
#[derive(Clone, Debug, Default)]
pub struct Assembly {
    traces: IndexMap<String, Growing>,
}

#[derive(Clone, Debug)]
struct Growing {
    trace: Trace,
    pending: Vec<Message>,
}

/// What a frame did.
#[derive(Debug)]
pub enum Applied<'a> {
    /// The trace has changed; the messages are those of requests in flight that no node holds yet.
    Changed(&'a Trace, &'a [Message]),
    /// The trace was given up; `None` when nothing of it had come.
    Discarded(Option<Box<Trace>>),
}

impl Assembly {
    /// Applies one delta. On an error nothing has changed. Large tensors stay where they are: they keep the memory of
    /// their frame alive.
    ///
    /// # Errors
    /// The frame is not a delta, or does not fit what came before.
    pub fn apply(&mut self, frame: &Bytes) -> Result<Applied<'_>, WireError> {
        let error = match read(frame) {
            Ok(delta) => return self.apply_delta(frame, delta),
            Err(error) => error,
        };
        // Text that is not UTF-8 is worth less than the episode it stands in.
        let Some(repaired) = readable(frame).map(Bytes::from) else { return Err(error.into()) };
        self.apply_delta(&repaired, read(&repaired)?)
    }

    fn apply_delta(&mut self, frame: &Bytes, mut delta: Delta<'_>) -> Result<Applied<'_>, WireError> {
        let id = std::mem::take(&mut delta.trace);
        if delta.discard == Some(true) {
            let dropped = self.traces.shift_remove(&id);
            return Ok(Applied::Discarded(dropped.map(|growing| Box::new(growing.trace))));
        }
        let conflict = |reason: String| WireError::Conflict { trace: id.clone(), reason };
        let mut fresh = None;
        let growing = match self.traces.get_mut(&id) {
            Some(known) => known,
            None => fresh.insert(open(&id, &mut delta).map_err(conflict)?),
        };
        growing.apply(frame, delta).map_err(conflict)?;
        if let Some(fresh) = fresh {
            self.traces.insert(id.clone(), fresh);
        }
        let Growing { trace, pending } = &self.traces[&id];
        Ok(Applied::Changed(trace, pending))
    }

    /// The traces that are there, in the order they came.
    pub fn trace_ids(&self) -> impl Iterator<Item = &str> {
        self.traces.keys().map(String::as_str)
    }

    /// A trace and the messages of its requests in flight.
    pub fn trace(&self, id: &str) -> Option<(&Trace, &[Message])> {
        self.traces.get(id).map(|growing| (&growing.trace, &growing.pending[..]))
    }

    /// The episode: the head of the reply with the traces that it names, in its order. Other traces are dropped.
    ///
    /// # Errors
    /// A trace is missing or has other counts than the reply says.
    pub fn finish(mut self, head: Head, summaries: &[TraceSummary]) -> Result<Episode, WireError> {
        let mut traces = Vec::new();
        for summary in summaries {
            let growing = self.traces.swap_remove(&summary.id);
            let Some(Growing { mut trace, .. }) = growing else {
                return Err(WireError::MissingTrace(summary.id.clone()));
            };
            let (nodes, calls) = (trace.graph.nodes().len(), trace.calls.len());
            if (nodes, calls) != (summary.nodes, summary.calls) {
                return Err(WireError::Counts { trace: trace.id, nodes, calls, said: summary.clone() });
            }
            trace.graph.shrink_to_fit();
            traces.push(trace);
        }
        Ok(head.with(traces))
    }
}

/// The trace that a delta opens, with nothing in it.
fn open(id: &str, delta: &mut Delta<'_>) -> Result<Growing, String> {
    let opening = delta.open.take().ok_or("its first delta does not open it")?.0;
    if opening.id != id {
        return Err(format!("its first delta opens trace {}", opening.id));
    }
    let agent = delta.set.as_mut().and_then(|set| set.agent.take()).ok_or("its first delta names no agent")?;
    let mut trace = Trace::new(opening.task, agent.into());
    trace.version = opening.version;
    trace.id = opening.id;
    trace.verifiers = opening.verifiers;
    trace.timing = Timing::default();
    Ok(Growing { trace, pending: Vec::new() })
}

impl Growing {
    /// Applies a delta, or says why it does not fit and changes nothing.
    fn apply(&mut self, frame: &Bytes, delta: Delta<'_>) -> Result<(), String> {
        let graph = &self.trace.graph;
        let frame = Frame(frame);
        let repairs = repairs(graph, delta.routing_repairs, &frame)?;
        let links = delta.links.map_or_else(Vec::new, |links| links.0);
        if let Some((node, _)) = links.iter().find(|(node, _)| *node as usize >= graph.nodes().len()) {
            return Err(format!("a link leads to node {node} of {}", graph.nodes().len()));
        }
        let has_nodes = delta.nodes.is_some();
        let nodes = List::items(delta.nodes).map(|node| node.node(&frame)).collect::<Result<Vec<Node>, _>>()?;

        // The last thing that can fail, and it fails as a whole.
        let trace = &mut self.trace;
        trace.graph.extend(nodes).map_err(|error| error.to_string())?;
        for (node, links) in links {
            trace.graph.append_links(node, links).map_err(|error| error.to_string())?;
        }
        for (node, row) in repairs {
            trace.graph.replace_last_row(node, &row);
        }
        for call in List::items(delta.calls) {
            let call = call.call(trace.calls.last());
            trace.calls.push(call);
        }
        trace.errors.extend(List::items(delta.errors));
        trace.extra_usage.extend(List::items(delta.extra_usage));
        trace.request_rewrites.extend(List::items(delta.request_rewrites).map(|rewrite| rewrite.0));
        trace.response_rewrites.extend(List::items(delta.response_rewrites).map(|rewrite| rewrite.0));
        if let Some(set) = delta.set {
            set.apply(trace);
        }
        // Nodes that land hold what was pending, unless the delta says otherwise.
        if has_nodes {
            self.pending.clear();
        }
        if let Some(pending) = delta.pending {
            self.pending = pending.0.into_iter().map(|message| message.0).collect();
        }
        Ok(())
    }
}

/// The rows that are to replace others, if all of them can.
fn repairs(
    graph: &Graph,
    repairs: Option<ByIndex<Array<'_>>>,
    frame: &Frame<'_>,
) -> Result<Vec<(u32, RouterRows)>, String> {
    let mut rows = Vec::new();
    for (node, row) in repairs.into_iter().flat_map(|repairs| repairs.0) {
        let row = row.rows(frame)?;
        let known = graph.nodes().get(node as usize).and_then(|node| node.tokens.routed_experts());
        let fits = known.is_some_and(|known| known.rows() > 0 && known.same_shape(&row) && row.rows() == 1);
        if !fits {
            return Err(format!("node {node} of {} has no router row to replace", graph.nodes().len()));
        }
        rows.push((node, row));
    }
    Ok(rows)
}

impl Set {
    fn apply(self, trace: &mut Trace) {
        fn put<T>(place: &mut T, value: Option<T>) {
            if let Some(value) = value {
                *place = value;
            }
        }
        put(&mut trace.agent, self.agent.map(Into::into));
        if let Some(tools) = self.tools {
            trace.graph.tools = tools.0;
            // Not the list that was merged last.
            trace.graph.merged = None;
        }
        put(&mut trace.graph.mm_token_type_id_map, self.mm_token_type_id_map.map(|map| map.0.into_iter().collect()));
        put(&mut trace.rewards, self.rewards);
        put(&mut trace.metrics, self.metrics);
        put(&mut trace.info, self.info.map(|info| info.0));
        put(&mut trace.root_reply, self.root_reply);
        put(&mut trace.is_completed, self.is_completed);
        put(&mut trace.ok, self.ok);
        put(&mut trace.stop_condition, self.stop_condition);
        put(&mut trace.is_timeout, self.is_timeout);
        put(&mut trace.timing, self.timing);
    }
}
