//! What can go wrong, and what the user must change.

use std::path::PathBuf;

/// Why nothing can be rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// A file of the model cannot be used.
    #[error("{path}: {reason}", path = path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The tokenizer lacks a control token that the family needs.
    #[error(
        "the tokenizer has no token `{token}`, which the renderer `{renderer}` needs; name the renderer that belongs to \
         the model in `client.renderer.name`"
    )]
    NoToken {
        /// The token's text.
        token: String,
        /// The renderer's name.
        renderer: &'static str,
    },
    /// Nothing is known of the model.
    #[error("{0}")]
    Unresolved(String),
    /// The conversation has no form in this family.
    #[error("the renderer `{renderer}` cannot write this conversation: {reason}")]
    Conversation {
        /// The renderer's name.
        renderer: &'static str,
        /// Why.
        reason: String,
    },
}

/// Why a turn cannot be extended without rendering the conversation anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unbridged {
    /// The renderer does not know where its template ends a turn.
    #[error("the chat template is opaque")]
    Opaque,
    /// Nothing came before, or nothing is new.
    #[error("there is nothing to extend")]
    Nothing,
    /// An answer among the new messages: it would be tokenized anew.
    #[error("an assistant message is new")]
    Assistant,
    /// A new question drops the reasoning of earlier turns.
    #[error("the template drops earlier reasoning when the user speaks")]
    ReasoningDropped,
    /// The turn before ended in the middle of its reasoning.
    #[error("the turn before ended inside its reasoning")]
    OpenReasoning,
    /// Ids stand after the end of the turn before: they would be lost.
    #[error("ids were sampled after the end of the turn")]
    AfterEnd,
    /// A new message has no form between turns.
    #[error("a new message cannot stand there")]
    Message,
}
