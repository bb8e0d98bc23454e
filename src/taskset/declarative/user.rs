//! The scripted user, the bound on turns, and the perfect player: what is told from a task and its conversation.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Map, Value};

use super::names::{Names, columns};
use crate::{
    rubric::{Answer, Expected},
    taskset::{Exchange, Hooks, User, UserTurn},
    template::{Expression, Template},
    trace::{Fault, FaultClass, Message, TaskData, TraceTask},
};

/// What the user says, one text after each reply, and when there is nothing more to say.
pub(super) struct Script {
    pub turns: Vec<Template>,
    pub stop_when: Option<Expression>,
}

/// The user of one rollout.
pub(super) struct ScriptedUser {
    pub script: Arc<Script>,
    pub config: Arc<Map<String, Value>>,
    pub columns: Map<String, Value>,
    /// Replies that stood in the conversation before the model's first.
    pub given: usize,
    /// The conversation has no prompt: the first text of the script opens it.
    pub opens: bool,
}

impl ScriptedUser {
    pub(super) fn new(script: Arc<Script>, config: Arc<Map<String, Value>>, task: &TaskData) -> Self {
        Self { script, config, columns: columns(task), given: given(task), opens: task.prompt.is_none() }
    }

    fn next(&self, conversation: &[Message]) -> Result<UserTurn, Fault> {
        let (turn, reply) = last_reply(conversation, self.given);
        let known = [("turn", turn.into()), ("reply", reply.into())];
        let names = Names { given: &known, ..Names::of(&self.columns, &self.config) };
        let fault = |error| Fault::from_error(FaultClass::Task, &error);
        if turn > 0
            && let Some(stop_when) = &self.script.stop_when
            && stop_when.holds(names).map_err(fault)?
        {
            return Ok(UserTurn::Close);
        }
        let said = if self.opens { turn } else { turn.saturating_sub(1) };
        match self.script.turns.get(said) {
            None => Ok(UserTurn::Close),
            Some(template) => Ok(UserTurn::Say(vec![Message::user(template.render(names).map_err(fault)?)])),
        }
    }
}

impl User for ScriptedUser {
    fn reply<'a>(&'a mut self, exchange: Exchange<'a>) -> BoxFuture<'a, Result<UserTurn, Fault>> {
        Box::pin(std::future::ready(self.next(exchange.conversation)))
    }
}

/// Ends a rollout after so many replies.
pub(super) struct MaxTurns(pub u64);

impl Hooks for MaxTurns {
    fn stop<'a>(&'a self, task: &'a TraceTask, exchange: Exchange<'a>) -> BoxFuture<'a, Result<Option<String>, Fault>> {
        let (turns, _) = last_reply(exchange.conversation, given(&task.data));
        let reached = turns as u64 >= self.0;
        Box::pin(std::future::ready(Ok(reached.then(|| "max_turns".to_owned()))))
    }
}

/// What a perfect model replies.
pub(super) enum Reference {
    /// The same at every turn.
    Always(Template),
    /// One for each turn; nothing after them.
    Turns(Vec<Template>),
    /// What the first reward expects, written so that its parser finds it.
    Parsed { expected: Expected, answer: Answer },
    /// Nothing is known of one.
    Unknown,
}

impl Reference {
    /// The perfect reply to a conversation of a task.
    ///
    /// # Errors
    /// A template that uses what the task does not have.
    pub(super) fn reply(
        &self,
        config: &Map<String, Value>,
        task: &TaskData,
        conversation: &[Message],
    ) -> Result<Option<String>, Fault> {
        let (turn, reply) = last_reply(conversation, given(task));
        let template = match self {
            Self::Always(template) => template,
            Self::Turns(templates) => match templates.get(turn) {
                Some(template) => template,
                None => return Ok(None),
            },
            Self::Parsed { expected, answer } => {
                // What is no text may be expected as JSON.
                let as_json = |fault| expected.json(task).map(|value| vec![value.to_string()]).map_err(|_| fault);
                let expected = expected.of(task).or_else(as_json)?;
                return Ok(expected.iter().find_map(|expected| answer.inverse(expected)));
            }
            Self::Unknown => return Ok(None),
        };
        let known = [("turn", turn.into()), ("reply", reply.into())];
        let columns = columns(task);
        let names = Names { given: &known, ..Names::of(&columns, config) };
        template.render(names).map(Some).map_err(|error| Fault::from_error(FaultClass::Task, &error))
    }
}

/// Replies that a task's own opening holds: worked examples.
fn given(task: &TaskData) -> usize {
    replies(&task.opening()).count()
}

/// How often the model replied, and what it said last; empty when it never did.
fn last_reply(conversation: &[Message], given: usize) -> (usize, String) {
    let own: Vec<&Message> = replies(conversation).skip(given).collect();
    (own.len(), own.last().map_or_else(String::new, |reply| reply.text().trim().to_owned()))
}

fn replies(conversation: &[Message]) -> impl Iterator<Item = &Message> {
    conversation.iter().filter(|message| matches!(message, Message::Assistant(_)))
}
