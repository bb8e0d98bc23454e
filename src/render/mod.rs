//! Renderers: conversations to token ids and back, exactly, turn after turn.
//!
//! What enters are messages and tools; what leaves are ids in which every token is known to be template or message text,
//! and whose it is. What a model sampled is never tokenized again: a [`Renderer::bridge`] extends the ids of the turn
//! before, or says why it cannot. Text that a message brings never becomes a control token. The room knows no network;
//! models' files lie in a folder or in the hub's cache.

mod arguments;
mod bridge;
mod calls;
mod check;
mod error;
pub mod family;
mod find;
mod parsed;
mod python;
mod ranks;
mod reasoning;
mod rendered;
mod template;
mod tokenizer;
mod writer;

use crate::trace::{Message, Tool};

pub use check::{Finding, History, Policy, TemplateCheck, check};
pub use error::{RenderError, Unbridged};
pub use find::{Choice, ModelFiles, open};
pub use parsed::{CallStatus, Parsed, ParsedCall};
pub use rendered::{Extension, Place, Rendered, Run};
pub use template::ChatTemplate;
pub use tokenizer::Tokenizer;

/// Knows the conversation format of one family of models.
pub trait Renderer: Send + Sync {
    /// The family's name, as configurations write it.
    fn name(&self) -> &'static str;

    /// The tokenizer it writes with.
    fn tokenizer(&self) -> &Tokenizer;

    /// Writes a conversation; with `generate`, up to where the model's answer begins.
    ///
    /// # Errors
    /// The conversation has no form in this family, for example because it is empty or shows images.
    fn render(&self, messages: &[Message], tools: &[Tool], generate: bool) -> Result<Rendered, RenderError>;

    /// What follows the ids of the turn before when `new` messages come: the end of that turn, where it was cut short,
    /// the messages, and the beginning of the next answer. The ids of the turn before stay as they are; the cost does
    /// not depend on how many they are.
    ///
    /// # Errors
    /// Why the turn before cannot be extended: the whole conversation must be rendered anew.
    fn bridge(&self, previous: Previous<'_>, new: &[Message], tools: &[Tool]) -> Result<Extension, Unbridged>;

    /// Reads what the model sampled after `prompt`. `tools` say which arguments are strings, in formats that do not
    /// quote them.
    fn parse(&self, completion: &[u32], prompt: &[u32], tools: &[Tool]) -> Parsed;

    /// Ids that end the model's turn.
    fn stop_ids(&self) -> &[u32];

    /// Whether a longer conversation always begins with the ids of the shorter one that ended in an answer. Where it
    /// does not, only bridging keeps a conversation in one branch.
    fn is_prefix_stable(&self) -> bool {
        false
    }

    /// Whether it can extend what was sampled at all.
    fn bridges(&self) -> bool {
        true
    }
}

/// The ids of the turn before: what was sent, and what was sampled after it.
#[derive(Clone, Copy, Debug)]
pub struct Previous<'a> {
    /// The whole prompt.
    pub prompt: &'a [u32],
    /// What was sampled.
    pub completion: &'a [u32],
}
