//! What all bridges share: when a turn may be extended, and how it ended.

use super::{Previous, error::Unbridged};
use crate::{config::ThinkingRetention, trace::Message};

/// Which earlier reasoning stays when a conversation goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retention {
    /// All of it.
    All,
    /// Until the user speaks: the template then drops it.
    ToolCycle,
}

impl Retention {
    /// What the configuration asks for, else what the family's template does.
    pub(super) fn resolve(asked: Option<ThinkingRetention>, template: Self) -> Self {
        match asked {
            Some(ThinkingRetention::All) => Self::All,
            Some(ThinkingRetention::ToolCycle) => Self::ToolCycle,
            None => template,
        }
    }

    /// Whether a turn may be extended by these messages; `is_query` tells which of them are the user speaking.
    pub(super) fn allows(self, new: &[Message], is_query: impl Fn(&Message) -> bool) -> Result<(), Unbridged> {
        let drops = match self {
            Self::All => false,
            Self::ToolCycle => new.iter().any(is_query),
        };
        if drops { Err(Unbridged::ReasoningDropped) } else { Ok(()) }
    }
}

/// A user's message.
pub(super) fn is_user(message: &Message) -> bool {
    matches!(message, Message::User(_))
}

/// What every family refuses: nothing to extend, nothing new, or an answer that would be tokenized anew.
pub(super) fn extensible(previous: Previous<'_>, new: &[Message]) -> Result<(), Unbridged> {
    if previous.prompt.is_empty() || new.is_empty() {
        return Err(Unbridged::Nothing);
    }
    match new.iter().any(|message| matches!(message, Message::Assistant(_))) {
        true => Err(Unbridged::Assistant),
        false => Ok(()),
    }
}

/// The id that ended the turn; `None` for a turn that was cut short. What stands after the end would be lost, so that such a
/// turn is not extended.
pub(super) fn end_of_turn(completion: &[u32], ends: &[u32]) -> Result<Option<u32>, Unbridged> {
    match completion.iter().position(|id| ends.contains(id)) {
        None => Ok(None),
        Some(at) if at + 1 == completion.len() => Ok(Some(completion[at])),
        Some(_) => Err(Unbridged::AfterEnd),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_ends_with_its_last_id_or_not_at_all() {
        assert_eq!(end_of_turn(&[1, 2, 9], &[8, 9]), Ok(Some(9)));
        assert_eq!(end_of_turn(&[1, 2], &[8, 9]), Ok(None));
        assert_eq!(end_of_turn(&[], &[9]), Ok(None));
        assert_eq!(end_of_turn(&[1, 9, 2], &[9]), Err(Unbridged::AfterEnd));
        assert_eq!(end_of_turn(&[1, 9, 9], &[9]), Err(Unbridged::AfterEnd));
    }

    #[test]
    fn reasoning_is_kept_for_ever_until_the_user_speaks_or_not_at_all() {
        let user = [Message::user("more")];
        assert!(Retention::All.allows(&user, is_user).is_ok());
        assert_eq!(Retention::ToolCycle.allows(&user, is_user), Err(Unbridged::ReasoningDropped));
        assert!(Retention::ToolCycle.allows(&[Message::system("x")], is_user).is_ok());
        assert_eq!(Retention::resolve(Some(ThinkingRetention::All), Retention::ToolCycle), Retention::All);
    }
}
