//! Reading conversations: what scorers and the perfect player of every taskset need.

use crate::{
    rubric::{similarity::ratio, strip_think},
    trace::{Message, Trace},
};

/// What the model answered on the final branch, one text a turn, thinking left out.
pub(super) fn replies(trace: &Trace) -> Vec<String> {
    trace.graph.transcript().into_iter().filter_map(reply).collect()
}

fn reply(message: &Message) -> Option<String> {
    match message {
        Message::Assistant(message) => {
            Some(strip_think(message.content.as_deref().unwrap_or_default()).trim().to_owned())
        }
        _ => None,
    }
}

/// The last thing the model answered; empty when it never did.
pub(super) fn last_reply(trace: &Trace) -> String {
    replies(trace).pop().unwrap_or_default()
}

/// How many times the model answered.
pub(super) fn turns(conversation: &[Message]) -> usize {
    conversation.iter().filter(|message| matches!(message, Message::Assistant(_))).count()
}

/// What the user said, in order.
pub(super) fn said_by_user(conversation: &[Message]) -> Vec<String> {
    conversation.iter().filter(|message| matches!(message, Message::User(_))).map(Message::text).collect()
}

/// The instructions before the conversation; empty when there are none.
pub(super) fn instructions(conversation: &[Message]) -> String {
    conversation.iter().find(|message| matches!(message, Message::System(_))).map(Message::text).unwrap_or_default()
}

/// Python's `difflib` ratio of an answer and what is expected; 0 for an answer that is over 20 times as long and 1,000
/// characters more. Its ratio would be below 0.1, and finding it out takes time in proportion to both lengths.
pub(super) fn alike(answer: &str, expected: &str) -> f64 {
    let longest = 20 * expected.chars().count() + 1000;
    if answer.chars().nth(longest).is_some() { 0.0 } else { ratio(answer, expected) }
}
