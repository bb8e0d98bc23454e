//! Branches and the figures that follow from a trace, by the rules of verifiers 0.4.0.

use std::collections::HashMap;

use super::{
    episode::Episode,
    error::GraphError,
    graph::{Graph, Node, ParentLink},
    message::{AssistantMessage, FinishReason, Message},
    rollout::{ModelCall, Trace},
    tokens::{CreditStream, NodeTokens, RouterRows, SamplingMask},
    usage::Usage,
};

/// Token counts that are derived from usage, never from stored ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCounts {
    /// New input of each call, beyond what the call before it ended with.
    pub input: u64,
    /// Completion tokens.
    pub output: u64,
    /// What the producer of the figures calls the total; not always the sum of the two.
    pub total: u64,
}

/// One root-to-leaf path of a trace: at most one training sample.
#[derive(Clone, Debug)]
pub struct Branch<'a> {
    graph: &'a Graph,
    /// Node indices from the root to the leaf.
    pub path: Vec<u32>,
    /// The calls that committed its nodes, in order.
    pub calls: Vec<&'a ModelCall>,
    /// Whether it is a training sample: a compaction attempt is one only if the harness went on from it.
    pub trainable: bool,
}

impl Graph {
    /// The newest sampled message.
    pub fn last_reply(&self) -> Option<&AssistantMessage> {
        self.nodes.iter().rev().find_map(|node| match &node.message {
            Message::Assistant(message) if node.sampled => Some(message),
            _ => None,
        })
    }

    /// Nodes that are nobody's parent, ascending: one per branch.
    pub fn leaves(&self) -> Vec<u32> {
        let mut inner = vec![false; self.nodes.len()];
        for parent in self.nodes.iter().filter_map(|node| node.parent) {
            inner[parent as usize] = true;
        }
        (0..self.nodes.len() as u32).filter(|node| !inner[*node as usize]).collect()
    }

    /// The nodes from the root to `leaf`, which must be a node of this graph.
    pub fn path(&self, leaf: u32) -> Vec<u32> {
        let mut path: Vec<u32> = std::iter::successors(Some(leaf), |node| self.nodes[*node as usize].parent).collect();
        path.reverse();
        path
    }

    /// The messages of the final branch, the one with the highest leaf.
    pub fn transcript(&self) -> Vec<&Message> {
        // The newest node is always a leaf, and no leaf is higher.
        let Some(last) = self.nodes.len().checked_sub(1) else { return Vec::new() };
        self.path(last as u32).into_iter().map(|node| &self.nodes[node as usize].message).collect()
    }

    fn trainable(&self, leaf: u32) -> bool {
        let links = |node: &Node, kind: &str, to: Option<u32>| {
            node.semantic_parents.iter().any(|link| link.kind == kind && to.is_none_or(|to| link.node == to))
        };
        !links(&self.nodes[leaf as usize], "compaction_attempt", None)
            || self.nodes.iter().any(|node| links(node, "compaction", Some(leaf)))
    }
}

/// A sum that stops at the top: a trace of another program may claim any count.
fn total(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

/// For each call that reports usage, its input beyond the end of the call before it.
fn new_input<'a>(calls: impl Iterator<Item = &'a ModelCall>) -> impl Iterator<Item = (&'a ModelCall, u64)> {
    let mut before = 0;
    calls.filter_map(move |call| {
        let usage = call.usage.as_ref()?;
        let increment = usage.input_tokens().saturating_sub(before);
        before = usage.total_tokens();
        Some((call, increment))
    })
}

impl Branch<'_> {
    fn tokens(&self) -> impl Iterator<Item = &NodeTokens> {
        self.path.iter().map(|node| &self.graph.nodes[*node as usize].tokens)
    }

    /// The messages of the path.
    pub fn messages(&self) -> Vec<&Message> {
        self.path.iter().map(|node| &self.graph.nodes[*node as usize].message).collect()
    }

    /// The whole token sequence.
    pub fn token_ids(&self) -> Vec<u32> {
        self.tokens().flat_map(|node| node.ids.iter().copied()).collect()
    }

    /// One flag per id: whether the model sampled it.
    pub fn sampled_mask(&self) -> Vec<bool> {
        self.tokens().flat_map(|node| node.mask.iter()).collect()
    }

    /// One value per id: the logprob where it was sampled, 0 elsewhere.
    pub fn logprobs(&self) -> Vec<f32> {
        self.spread(|node| Some(&node.logprobs))
    }

    /// One value per id of a credit stream; `None` when no node of the path has it.
    pub fn credit(&self, stream: CreditStream) -> Option<Vec<f32>> {
        self.tokens().any(|node| node.credit(stream).is_some()).then(|| self.spread(|node| node.credit(stream)))
    }

    /// One weight per id of a named stream, 0 where a node has none; `None` when no node of the path has it.
    pub fn loss_weights(&self, name: &str) -> Option<Vec<f64>> {
        let weights = |node: &NodeTokens| node.loss_weights().and_then(|weights| weights.get(name)).cloned();
        self.tokens().any(|node| weights(node).is_some()).then(|| {
            self.tokens()
                .flat_map(|node| {
                    weights(node).unwrap_or_else(|| vec![0.0; node.ids.len()].into_boxed_slice()).into_vec()
                })
                .collect()
        })
    }

    fn spread<'s>(&'s self, values: impl Fn(&'s NodeTokens) -> Option<&'s [f32]>) -> Vec<f32> {
        let mut spread = Vec::new();
        for node in self.tokens() {
            let mut values = values(node).unwrap_or_default().iter();
            spread.extend(node.mask.iter().map(|sampled| match sampled {
                true => values.next().copied().unwrap_or_default(),
                false => 0.0,
            }));
        }
        spread
    }

    /// One marker per id, 1 for an image and 2 for a video; `None` for text alone.
    pub fn mm_token_type_ids(&self) -> Option<Vec<u32>> {
        let kinds = &self.graph.mm_token_type_id_map;
        let kind = |id: &u32| kinds.get(id).copied().unwrap_or(0);
        let markers: Vec<u32> = self.tokens().flat_map(|node| node.ids.iter().map(kind)).collect();
        markers.iter().any(|marker| *marker != 0).then_some(markers)
    }

    /// The experts of every position; `None` unless all nodes with tokens have theirs.
    pub fn routed_experts(&self) -> Option<RouterRows> {
        let nodes: Vec<&NodeTokens> = self.tokens().filter(|node| !node.ids.is_empty()).collect();
        let rows: Vec<&RouterRows> = nodes.iter().map(|node| node.routed_experts()).collect::<Option<_>>()?;
        let (first, others) = rows.split_first()?;
        if others.iter().any(|rows| !rows.same_shape(first)) {
            return None;
        }
        RouterRows::concat(&rows).filter(|rows| rows.rows() == nodes.iter().map(|node| node.ids.len()).sum::<usize>())
    }

    /// The sampling mask with one row per id, empty where nothing was sampled; `None` when no node of the path has one.
    pub fn sampling_mask(&self) -> Option<SamplingMask> {
        self.tokens().any(|node| node.sampling_mask().is_some()).then(|| {
            let (mut ids, mut counts) = (Vec::new(), Vec::new());
            for node in self.tokens() {
                let mut rows = node.sampling_mask().into_iter().flat_map(SamplingMask::counts);
                for sampled in node.mask.iter() {
                    let count = if sampled { rows.next().unwrap_or(0) } else { 0 };
                    counts.extend_from_slice(&count.to_le_bytes());
                }
                ids.extend(node.sampling_mask().into_iter().flat_map(|mask| mask.ids.iter()));
            }
            SamplingMask { ids: ids.into(), counts: counts.into() }
        })
    }

    /// New input and completion of its calls; the total is what its last call ended with.
    pub fn token_counts(&self) -> TokenCounts {
        let usages = || self.calls.iter().filter_map(|call| call.usage.as_ref());
        TokenCounts {
            input: total(new_input(self.calls.iter().copied()).map(|(_, increment)| increment)),
            output: total(usages().map(|usage| usage.completion_tokens)),
            total: usages().next_back().map_or(0, Usage::total_tokens),
        }
    }
}

impl Trace {
    /// The branches, by ascending leaf.
    pub fn branches(&self) -> Vec<Branch<'_>> {
        // A node that was committed twice over belongs to its newest call.
        let calls: HashMap<u32, &ModelCall> =
            self.calls.iter().filter_map(|call| call.node.map(|node| (node, call))).collect();
        let branch = |leaf| {
            let path = self.graph.path(leaf);
            let calls = path.iter().filter_map(|node| calls.get(node).copied()).collect();
            Branch { graph: &self.graph, path, calls, trainable: self.graph.trainable(leaf) }
        };
        self.graph.leaves().into_iter().map(branch).collect()
    }

    /// Token counts as verifiers writes them: new input counts each call once; output counts a call once in every branch
    /// that it belongs to; the total is the new input plus the completions of all calls, failed ones included.
    pub fn token_counts(&self) -> TokenCounts {
        let mut increments: HashMap<*const ModelCall, u64> = HashMap::new();
        let mut output = 0_u64;
        for branch in self.branches() {
            output = output.saturating_add(branch.token_counts().output);
            for (call, increment) in new_input(branch.calls.iter().copied()) {
                increments.entry(std::ptr::from_ref(call)).or_insert(increment);
            }
        }
        let input = total(increments.into_values());
        let completions = total(self.calls.iter().flat_map(|call| &call.usage).map(|usage| usage.completion_tokens));
        TokenCounts { input, output, total: input.saturating_add(completions) }
    }

    /// Usage of all calls, each once; `None` when none reports it.
    pub fn usage(&self) -> Option<Usage> {
        Usage::sum(self.calls.iter().filter_map(|call| call.usage.as_ref()))
    }

    /// How many messages the model returned.
    pub fn num_turns(&self) -> usize {
        self.graph.nodes.iter().filter(|node| node.sampled).count()
    }

    /// Whether a budget, a failed compaction or the token limit of the last call cut the rollout. A time-out is not a
    /// truncation.
    pub fn is_truncated(&self) -> bool {
        self.stop_condition.as_deref().is_some_and(truncates)
            || self
                .calls
                .iter()
                .rev()
                .find(|call| call.error.is_none())
                .is_some_and(|call| call.finish_reason == Some(FinishReason::Length))
    }

    /// Adds links that a harness declared between its own requests (origin, target, type). Known ones are not added
    /// again.
    ///
    /// # Errors
    /// A request has no committed node, a link leads to itself or is declared twice, or its type is not a letter
    /// followed by at most 127 of `A-Z a-z 0-9 . _ : -`. Nothing is added then.
    pub fn add_semantic_edges(&mut self, edges: &[(String, String, String)]) -> Result<(), GraphError> {
        let committed = |call: &ModelCall| Some((call.acp.as_ref()?.request_id.clone(), call.node?));
        let nodes: HashMap<String, u32> = self.calls.iter().filter_map(committed).collect();
        let mut links: Vec<(u32, ParentLink)> = Vec::new();
        for (from, to, kind) in edges {
            let fault = |reason| GraphError::Link { from: from.clone(), to: to.clone(), reason };
            let (Some(origin), Some(target)) = (nodes.get(from), nodes.get(to)) else {
                return Err(fault("a request has no committed message"));
            };
            if origin == target {
                return Err(fault("both are the same message"));
            }
            if !is_link_type(kind) {
                return Err(fault("the type is not a name"));
            }
            let link = (*target, ParentLink { node: *origin, kind: kind.clone() });
            if links.contains(&link) {
                return Err(fault("it is declared twice"));
            }
            links.push(link);
        }
        self.graph.link(&links)
    }
}

/// Whether a stop condition says that a budget or a failed compaction cut the rollout (verifiers 0.4.0,
/// `Trace.is_truncated`).
pub fn truncates(stop_condition: &str) -> bool {
    matches!(
        stop_condition,
        "max_turns" | "max_input_tokens" | "max_output_tokens" | "max_total_tokens" | "compaction_failed"
    )
}

fn is_link_type(kind: &str) -> bool {
    let rest = |byte: &u8| byte.is_ascii_alphanumeric() || b"._:-".contains(byte);
    kind.len() <= 128
        && kind.as_bytes().first().is_some_and(u8::is_ascii_alphabetic)
        && kind.as_bytes().iter().all(rest)
}

impl Episode {
    /// Sums over the traces.
    pub fn token_counts(&self) -> TokenCounts {
        self.traces.iter().map(Trace::token_counts).fold(TokenCounts::default(), TokenCounts::plus)
    }
}

impl TokenCounts {
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            input: self.input.saturating_add(other.input),
            output: self.output.saturating_add(other.output),
            total: self.total.saturating_add(other.total),
        }
    }
}
