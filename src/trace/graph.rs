//! The message graph of a trace: every message stored once, shared prefixes, branches by walking.
//!
//! The rules are those of verifiers 0.4.0: a node is found again by its parent, its message hash and, for a root, the
//! hash of the tool list. Concatenating the ids of a root-to-leaf path gives the prompt and completion of its last turn.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use super::{
    align::Layout,
    error::GraphError,
    hash::{Digest16, message_digest, tools_digest},
    message::{AssistantMessage, Message, Tool},
    timing::now,
    tokens::{NodeTokens, RouterRows, TurnTokens},
};

/// One message and what it adds to the token sequence.
#[derive(Clone, Debug)]
pub struct Node {
    /// The message before it; `None` for a root.
    pub parent: Option<u32>,
    /// The tools of the requests that start here; only roots have any.
    pub tools: Arc<[Tool]>,
    /// Causal links from other turns, in the order they were told; they imply no token prefix and may form loops.
    pub semantic_parents: Vec<ParentLink>,
    /// The message.
    pub message: Message,
    /// A model call returned it, as opposed to a prompt that supplied it.
    pub sampled: bool,
    /// When it was stored, epoch seconds.
    pub timestamp: f64,
    /// Its tokens; empty when they are unknown.
    pub tokens: NodeTokens,
}

/// A typed link from another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParentLink {
    /// Index of the other node.
    pub node: u32,
    /// For example `compaction` or `subagent_return`; unknown ones are kept.
    #[serde(rename = "type")]
    pub kind: String,
}

/// The nodes of a trace and the index that finds shared prefixes.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    pub(super) nodes: Vec<Node>,
    pub(super) tools: Vec<Tool>,
    pub(super) mm_token_type_id_map: IndexMap<u32, u32>,
    /// Length of each node's path, itself included.
    lengths: Vec<PathLength>,
    /// Built when first needed: a graph that was read from a file is mostly just looked at.
    index: OnceLock<Index>,
    /// The tools merged last: the same list comes with every turn.
    pub(super) merged: Option<Arc<[Tool]>>,
    /// What changed of nodes after they were stored, oldest first: who has seen the nodes looks here for the rest.
    pub(super) amended: Vec<Amendment>,
}

/// A change of a node that was stored before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Amendment {
    /// It got further links.
    Links(u32),
    /// Its last router row was replaced.
    LastRow(u32),
}

#[derive(Clone, Copy, Debug, Default)]
struct PathLength {
    messages: u32,
    tokens: u32,
}

#[derive(Clone, Debug, Default)]
struct Index {
    newest: HashMap<NodeKey, u32>,
    /// For each node, the next older one with the same key.
    older: Vec<Option<u32>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct NodeKey {
    parent: Option<u32>,
    /// Only where there is no parent.
    tools: Option<Digest16>,
    message: Digest16,
}

impl Index {
    fn build(nodes: &[Node]) -> Self {
        let mut index = Self::default();
        for node in nodes {
            let tools = node.parent.is_none().then(|| tools_digest(&node.tools));
            index.add(NodeKey { parent: node.parent, tools, message: message_digest(&node.message) });
        }
        index
    }

    fn add(&mut self, key: NodeKey) {
        let node = self.older.len() as u32;
        let older = self.newest.insert(key, node);
        self.older.push(older);
    }

    fn newest_first(&self, key: &NodeKey) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(self.newest.get(key).copied(), |node| self.older[*node as usize])
    }
}

/// A turn that is ready to be committed: a stored prefix and what the request adds to it. Dropping it abandons it.
#[derive(Clone, Debug)]
pub struct Turn {
    /// The last stored node of the prefix.
    pub leaf: Option<u32>,
    /// Messages that are not stored yet.
    pub tail: Vec<Message>,
    /// The request's tools.
    pub tools: Arc<[Tool]>,
    /// Prefix messages that hash like the stored ones but are not equal to them, by position in the prompt. They are
    /// needed if the tokens turn out to differ and the messages must be stored anew.
    restated: Vec<(usize, Message)>,
}

impl Graph {
    /// A graph of nodes read from elsewhere.
    ///
    /// # Errors
    /// A node's parent does not stand before it.
    pub(super) fn from_parts(
        nodes: Vec<Node>,
        tools: Vec<Tool>,
        mm_token_type_id_map: IndexMap<u32, u32>,
    ) -> Result<Self, GraphError> {
        let mut graph = Self { tools, mm_token_type_id_map, ..Self::default() };
        graph.nodes.reserve_exact(nodes.len());
        graph.lengths.reserve_exact(nodes.len());
        graph.extend(nodes)?;
        Ok(graph)
    }

    /// Stores nodes read from elsewhere after those that are there.
    ///
    /// # Errors
    /// A node's parent does not stand before it; nothing is stored then.
    pub(super) fn extend(&mut self, nodes: Vec<Node>) -> Result<(), GraphError> {
        for (position, node) in (self.nodes.len()..).zip(&nodes) {
            if let Some(parent) = node.parent.filter(|parent| *parent as usize >= position) {
                return Err(GraphError::NoSuchNode { node: parent, nodes: position });
            }
        }
        self.index = OnceLock::new();
        for node in nodes {
            self.lengths.push(self.length_after(&node));
            self.nodes.push(node);
        }
        Ok(())
    }

    /// Adds links to a node as they were told, known ones too.
    ///
    /// # Errors
    /// The node does not exist.
    pub(super) fn append_links(&mut self, node: u32, links: Vec<ParentLink>) -> Result<(), GraphError> {
        self.expect_node(Some(node))?;
        self.nodes[node as usize].semantic_parents.extend(links);
        self.amended.push(Amendment::Links(node));
        Ok(())
    }

    /// Replaces the last router row of a node; `false`, and nothing changes, when the node has none of that shape.
    pub(super) fn replace_last_row(&mut self, node: u32, row: &RouterRows) -> bool {
        let rows = self.nodes.get_mut(node as usize).and_then(|node| node.tokens.sidecar.as_mut());
        let Some(rows) = rows.and_then(|sidecar| sidecar.routed_experts.as_mut()) else { return false };
        let replaced = rows.replace_last(row);
        if replaced {
            self.amended.push(Amendment::LastRow(node));
        }
        replaced
    }

    fn length_after(&self, node: &Node) -> PathLength {
        let before = node.parent.map_or(PathLength::default(), |parent| self.lengths[parent as usize]);
        PathLength { messages: before.messages + 1, tokens: before.tokens + node.tokens.ids.len() as u32 }
    }

    fn index(&self) -> &Index {
        self.index.get_or_init(|| Index::build(&self.nodes))
    }

    /// Finds the stored prefix of a whole prompt; costs time in proportion to the prompt. Nothing changes.
    pub fn prepare(&self, prompt: &[Message], tools: Arc<[Tool]>) -> Turn {
        let index = self.index();
        let mut turn = Turn { leaf: None, tail: Vec::new(), tools, restated: Vec::new() };
        for (position, message) in prompt.iter().enumerate() {
            let tools = turn.leaf.is_none().then(|| tools_digest(&turn.tools));
            let key = NodeKey { parent: turn.leaf, tools, message: message_digest(message) };
            let Some(node) = index.newest.get(&key).copied() else {
                turn.tail = prompt[position..].to_vec();
                break;
            };
            if self.nodes[node as usize].message != *message {
                turn.restated.push((position, message.clone()));
            }
            turn.leaf = Some(node);
        }
        turn
    }

    /// A turn that continues a node the caller holds, or starts a conversation when there is none. `tools` must be the
    /// list that the conversation started with; a changed list starts a new root, so use [`Self::prepare`] then. Costs
    /// nothing, and the commit costs time in proportion to the tail and the reply.
    pub fn at(&self, leaf: impl Into<Option<u32>>, tail: Vec<Message>, tools: Arc<[Tool]>) -> Turn {
        Turn { leaf: leaf.into(), tail, tools, restated: Vec::new() }
    }

    /// Commits a turn and returns the assistant node's index.
    ///
    /// Messages of the prompt that another turn stored meanwhile are found again. With tokens, a stored message counts
    /// as found only if its tokens stand in the prompt at its place; the rest is stored anew, each with the prompt's
    /// ids up to the end of its span. The assistant node gets what is left of the prompt, and the completion.
    ///
    /// # Errors
    /// The tokens contradict each other or the stored prefix; the graph is then unchanged.
    pub fn commit(
        &mut self,
        turn: Turn,
        response: AssistantMessage,
        tokens: Option<TurnTokens>,
    ) -> Result<u32, GraphError> {
        self.expect_node(turn.leaf)?;
        let Turn { leaf, mut tail, tools, mut restated } = turn;
        let mut kept = leaf;
        let mut layout = None;
        if let Some(tokens) = &tokens {
            tokens.check()?;
            let stored = self.path_tokens(leaf);
            let mut first = 0;
            if tokens.prompt_start == 0 {
                let path = leaf.map(|leaf| self.path(leaf)).unwrap_or_default();
                let found = self.matching(&path, tokens);
                if tokens.bridged && found < path.len() {
                    return Err(GraphError::NotAnExtension { stored });
                }
                kept = found.checked_sub(1).map(|last| path[last]);
                first = found;
                let dropped = path[found..].iter().enumerate().map(|(offset, node)| {
                    let restated = restated.iter_mut().find(|(position, _)| *position == found + offset);
                    match restated {
                        Some((_, message)) => std::mem::replace(message, Message::user("")),
                        None => self.nodes[*node as usize].message.clone(),
                    }
                });
                tail = dropped.chain(tail).collect();
            } else if tokens.prompt_start != stored {
                return Err(GraphError::NotAnExtension { stored });
            }
            let map = match tokens.mm_token_type_id_map.is_empty() {
                true => &self.mm_token_type_id_map,
                false => &tokens.mm_token_type_id_map,
            };
            let begin = self.path_tokens(kept) - tokens.prompt_start;
            let renderer_begin = if tokens.prompt_start == 0 { self.path_renderer_tokens(kept) } else { begin };
            layout = Some(Layout::new(tokens, map, first, tail.len(), (begin, renderer_begin))?);
        }

        // Nothing below can fail.
        let timestamp = now();
        let digests: Vec<Digest16> = tail.iter().map(message_digest).collect();
        let root_tools = kept.is_none().then(|| tools_digest(&tools));
        let mut parent = kept;
        let mut reused = 0;
        for digest in &digests {
            let key = NodeKey { parent, tools: root_tools.filter(|_| parent.is_none()), message: *digest };
            let mut candidates = self.index().newest_first(&key);
            let found = match &mut layout {
                None => candidates.next(),
                Some(layout) => layout.reuse(candidates.map(|node| (node, &self.nodes[node as usize].tokens))),
            };
            let Some(found) = found else { break };
            parent = Some(found);
            reused += 1;
        }
        let prefix = parent;
        let first_new = self.nodes.len();
        let mut add = |graph: &mut Self, message, digest, sampled, tokens| {
            let node = Node {
                parent,
                tools: if parent.is_none() { Arc::clone(&tools) } else { Arc::default() },
                semantic_parents: Vec::new(),
                message,
                sampled,
                timestamp,
                tokens,
            };
            let key = NodeKey { parent, tools: root_tools.filter(|_| parent.is_none()), message: digest };
            parent = Some(graph.push(node, key));
        };
        for (message, digest) in tail.into_iter().zip(digests).skip(reused) {
            let tokens = layout.as_mut().map_or_else(NodeTokens::default, Layout::message);
            add(self, message, digest, false, tokens);
        }
        let response = Message::Assistant(response);
        let digest = message_digest(&response);
        let reply = layout.as_mut().map_or_else(NodeTokens::default, Layout::reply);
        add(self, response, digest, true, reply);
        self.merge_tools(&tools);
        if let Some(tokens) = tokens {
            self.attach_sidecars(&tokens, prefix, first_new);
            if !tokens.mm_token_type_id_map.is_empty() {
                self.mm_token_type_id_map = tokens.mm_token_type_id_map;
            }
        }
        Ok((self.nodes.len() - 1) as u32)
    }

    /// Stores the messages of a turn that ended before inference, reusing equal ones; nothing is sampled. Returns the
    /// last of them.
    ///
    /// # Errors
    /// The turn's leaf is not a node of this graph.
    pub fn commit_prompt(&mut self, turn: Turn) -> Result<Option<u32>, GraphError> {
        self.expect_node(turn.leaf)?;
        let timestamp = now();
        let mut parent = turn.leaf;
        for message in turn.tail {
            let tools = parent.is_none().then(|| tools_digest(&turn.tools));
            let key = NodeKey { parent, tools, message: message_digest(&message) };
            if let Some(found) = self.index().newest.get(&key) {
                parent = Some(*found);
                continue;
            }
            let node = Node {
                parent,
                tools: if parent.is_none() { Arc::clone(&turn.tools) } else { Arc::default() },
                semantic_parents: Vec::new(),
                message,
                sampled: false,
                timestamp,
                tokens: NodeTokens::default(),
            };
            parent = Some(self.push(node, key));
        }
        self.merge_tools(&turn.tools);
        Ok(parent)
    }

    fn push(&mut self, mut node: Node, key: NodeKey) -> u32 {
        node.message.shrink_to_fit();
        self.index();
        if let Some(index) = self.index.get_mut() {
            index.add(key);
        }
        self.lengths.push(self.length_after(&node));
        self.nodes.push(node);
        (self.nodes.len() - 1) as u32
    }

    fn expect_node(&self, node: Option<u32>) -> Result<(), GraphError> {
        match node {
            Some(node) if node as usize >= self.nodes.len() => {
                Err(GraphError::NoSuchNode { node, nodes: self.nodes.len() })
            }
            _ => Ok(()),
        }
    }

    /// How many leading nodes of a path stand in a whole prompt, token by token.
    fn matching(&self, path: &[u32], tokens: &TurnTokens) -> usize {
        let mut ids = &tokens.prompt_ids[..];
        let mut renderer_ids = tokens.renderer_prompt_ids();
        for (position, node) in path.iter().enumerate() {
            let node = &self.nodes[*node as usize].tokens;
            match (ids.strip_prefix(&*node.ids), renderer_ids.strip_prefix(node.renderer_ids())) {
                (Some(rest), Some(renderer_rest)) => (ids, renderer_ids) = (rest, renderer_rest),
                _ => return position,
            }
        }
        path.len()
    }

    fn path_renderer_tokens(&self, node: Option<u32>) -> usize {
        node.map_or(0, |node| {
            self.path(node).into_iter().map(|node| self.nodes[node as usize].tokens.renderer_ids().len()).sum()
        })
    }

    fn merge_tools(&mut self, tools: &Arc<[Tool]>) {
        if tools.is_empty() || self.merged.as_ref().is_some_and(|merged| Arc::ptr_eq(merged, tools)) {
            return;
        }
        for tool in tools.iter() {
            let same = |known: &&mut Tool| {
                (&known.namespace, &known.name, &known.kind) == (&tool.namespace, &tool.name, &tool.kind)
            };
            match self.tools.iter_mut().find(same) {
                Some(known) => *known = tool.clone(),
                None => self.tools.push(tool.clone()),
            }
        }
        self.merged = Some(Arc::clone(tools));
    }

    /// Gives the nodes from `first_new` on their router rows, and the reply its sampling mask (verifiers 0.4.0,
    /// `_attribute_routed_experts` and `_attribute_sampling_mask`).
    fn attach_sidecars(&mut self, tokens: &TurnTokens, prefix: Option<u32>, first_new: usize) {
        if let Some((rows, start)) = &tokens.routed_experts {
            let available = rows.rows();
            let mut offset = self.path_tokens(prefix) as i64 - *start as i64;
            if let Ok(end) = usize::try_from(offset)
                && (1..=available).contains(&end)
                && let Some(node) = self.last_with_tokens(prefix)
                && let Some(known) = self.nodes[node].tokens.routed_experts()
                && self.nodes[node].sampled
                && known.same_shape(rows)
                && known.rows() > 0
            {
                // That turn had no forward pass for its last token, so its row was a copy of the one before.
                self.replace_last_row(node as u32, &rows.copy(end - 1, end, 0));
            }
            let added: usize = self.nodes[first_new..].iter().map(|node| node.tokens.ids.len()).sum();
            let needed = offset + added as i64;
            for position in first_new..self.nodes.len() {
                let length = self.nodes[position].tokens.ids.len();
                let end = offset + length as i64;
                let missing = end - available as i64;
                if length > 0 && offset >= 0 && available > 0 && (missing <= 0 || missing == 1 && end == needed) {
                    let (begin, extra) = (offset as usize, missing.max(0) as usize);
                    let slice = rows.copy(begin, end as usize - extra, extra);
                    self.nodes[position].tokens.sidecar().routed_experts = Some(slice);
                }
                offset = end;
            }
        }
        if let (Some(mask), Some(reply)) = (&tokens.sampling_mask, self.nodes.last_mut())
            && mask.counts().count() == reply.tokens.mask.count()
            && mask.counts().map(u64::from).sum::<u64>() == mask.ids().count() as u64
        {
            reply.tokens.sidecar().sampling_mask = Some(mask.clone());
        }
    }

    fn last_with_tokens(&self, leaf: Option<u32>) -> Option<usize> {
        let parent = |node: &u32| self.nodes[*node as usize].parent;
        let node =
            std::iter::successors(leaf, parent).find(|node| !self.nodes[*node as usize].tokens.ids.is_empty())?;
        Some(node as usize)
    }

    /// Adds typed links between nodes; a link that is already there is not added again.
    ///
    /// # Errors
    /// A node does not exist; nothing is added then.
    pub fn link(&mut self, links: &[(u32, ParentLink)]) -> Result<(), GraphError> {
        for (target, link) in links {
            self.expect_node(Some(*target))?;
            self.expect_node(Some(link.node))?;
        }
        for (target, link) in links {
            let parents = &mut self.nodes[*target as usize].semantic_parents;
            if !parents.contains(link) {
                parents.push(link.clone());
                self.amended.push(Amendment::Links(*target));
            }
        }
        Ok(())
    }

    /// All nodes in the order they were stored; links are indices into this.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// A node's tokens, to set credit.
    pub fn tokens_mut(&mut self, node: u32) -> Option<&mut NodeTokens> {
        self.nodes.get_mut(node as usize).map(|node| &mut node.tokens)
    }

    /// Every tool seen, newest definition, in first-seen order.
    pub fn tools(&self) -> &[Tool] {
        &self.tools
    }

    /// Special token id to 1 (image) or 2 (video).
    pub fn mm_token_type_id_map(&self) -> &IndexMap<u32, u32> {
        &self.mm_token_type_id_map
    }

    /// How many messages stand on the path to a node, itself included; 0 for none.
    pub fn path_messages(&self, node: Option<u32>) -> usize {
        node.and_then(|node| self.lengths.get(node as usize)).map_or(0, |length| length.messages as usize)
    }

    /// How many tokens stand on the path to a node, its own included; 0 for none.
    pub fn path_tokens(&self, node: Option<u32>) -> usize {
        node.and_then(|node| self.lengths.get(node as usize)).map_or(0, |length| length.tokens as usize)
    }

    /// Gives back memory that further turns would need. For a trace that is finished.
    pub fn shrink_to_fit(&mut self) {
        self.index = OnceLock::new();
        self.nodes.shrink_to_fit();
        self.lengths.shrink_to_fit();
        self.tools.shrink_to_fit();
        self.amended.shrink_to_fit();
    }

    /// Bytes on the heap, by the capacities of what it holds. Tool lists are shared and count once, as the trace's.
    pub fn heap_size(&self) -> usize {
        let index = self.index.get().map_or(0, |index| {
            index.newest.capacity() * (size_of::<(NodeKey, u32)>() + 1)
                + index.older.capacity() * size_of::<Option<u32>>()
        });
        let nodes: usize = self
            .nodes
            .iter()
            .map(|node| {
                let links = node.semantic_parents.capacity() * size_of::<ParentLink>();
                links + node.message.heap_size() + node.tokens.heap_size()
            })
            .sum();
        nodes
            + index
            + self.nodes.capacity() * size_of::<Node>()
            + self.lengths.capacity() * size_of::<PathLength>()
            + self.amended.capacity() * size_of::<Amendment>()
            + self.tools.iter().map(Tool::heap_size).sum::<usize>()
    }
}
