//! Whether every prompt is one that a model can answer.

use super::check::{Check, Checking, Row};
use crate::{
    taskset::{Task, Taskset},
    trace::{Content, Message},
};

/// Looks at every prompt.
pub(super) fn prompts(taskset: &dyn Taskset, tasks: &[Task]) -> Check {
    let mut check = Checking::new("prompts", "prompts are not empty, their roles in order");
    for task in tasks {
        check.look();
        let opening = task.data.opening();
        if let Some(problem) = disorder(&opening) {
            check.fail(Row::from(task), problem);
        }
        let asked = opening.iter().any(|message| !matches!(message, Message::System(_)));
        if !asked && taskset.user(task).is_none() {
            check.fail(Row::from(task), "has no prompt, and no user who opens the conversation");
        }
    }
    check.done()
}

/// What is wrong with the messages that open a conversation.
fn disorder(opening: &[Message]) -> Option<String> {
    for (position, message) in opening.iter().enumerate() {
        let number = position + 1;
        let before = position.checked_sub(1).and_then(|before| opening.get(before));
        match message {
            Message::System(_) if position > 0 => {
                return Some(format!("message {number} of the prompt is a system message; only the first may be one"));
            }
            Message::Tool(_) if !matches!(before, Some(Message::Assistant(_) | Message::Tool(_))) => {
                return Some(format!("message {number} of the prompt answers a tool that no message before it calls"));
            }
            Message::Assistant(_) if position + 1 == opening.len() => {
                return Some(
                    "the prompt ends with a message of the model's own; end it with one of the user".to_owned(),
                );
            }
            Message::System(_) | Message::User(_) if is_empty(message) => {
                return Some(format!("message {number} of the prompt is empty"));
            }
            _ => {}
        }
    }
    None
}

fn is_empty(message: &Message) -> bool {
    let pictured =
        matches!(message, Message::User(user) if matches!(&user.content, Content::Parts(parts) if parts.len() > 1));
    !pictured && message.text().trim().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_in_disorder_are_told_apart() {
        let (system, user, model) = (Message::system("s"), Message::user("u"), Message::assistant("a"));
        assert_eq!(disorder(&[system.clone(), user.clone(), model.clone(), user.clone()]), None);
        assert_eq!(disorder(&[]), None);
        let problem = |opening: &[Message]| disorder(opening).expect("a problem");
        assert!(problem(&[user.clone(), system]).contains("only the first"));
        assert!(problem(&[user, model]).contains("ends with"));
        assert!(problem(&[Message::user(" \n")]).contains("is empty"));
    }
}
