//! Why tokens or links do not fit a graph.

/// Why a turn cannot be committed. The graph is unchanged then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// Parallel arrays differ in length.
    #[error("{what} has {got} entries where {expected} are needed")]
    Length {
        /// Which array.
        what: &'static str,
        /// Entries needed.
        expected: usize,
        /// Entries given.
        got: usize,
    },
    /// A message's place lies outside the prompt, ends before it starts or lies before that of an earlier message.
    #[error("the token span {start}..{end} of prompt message {message} is out of order or outside the prompt")]
    Span {
        /// Position of the message.
        message: usize,
        /// Begin.
        start: usize,
        /// End.
        end: usize,
    },
    /// The renderer extended other tokens than the stored ones.
    #[error("the prompt's tokens do not extend the stored prefix of {stored} tokens")]
    NotAnExtension {
        /// Length of the stored prefix.
        stored: usize,
    },
    /// The renderer's prompt and the engine's cannot be matched.
    #[error("the renderer's prompt does not line up with the engine's at renderer token {position}: {reason}")]
    Renderer {
        /// Position in the renderer's prompt.
        position: usize,
        /// What does not fit.
        reason: &'static str,
    },
    /// No such node.
    #[error("node {node} does not exist: the graph has {nodes}")]
    NoSuchNode {
        /// Index given.
        node: u32,
        /// How many there are.
        nodes: usize,
    },
    /// A link between model requests cannot be placed.
    #[error("semantic link from {from} to {to}: {reason}")]
    Link {
        /// Request id of the origin.
        from: String,
        /// Request id of the target.
        to: String,
        /// What is wrong.
        reason: &'static str,
    },
}
