//! The agent talks with the taskset's user, turn by turn, until one of them ends it.

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::time::Instant;

use super::{Attempt, Env, SingleAgent};
use crate::{
    agent::Agent,
    taskset::{Task, Taskset, User, UserTurn},
    trace::{Message, Trace},
};

/// The taskset's user drives the exchange; a task without a user is a single-agent one.
pub struct ScriptedUser {
    taskset: Arc<dyn Taskset>,
    agent: Arc<Agent>,
    alone: SingleAgent,
}

impl ScriptedUser {
    /// An env over a taskset.
    pub fn new(taskset: Arc<dyn Taskset>, agent: Arc<Agent>) -> Self {
        let alone = SingleAgent::new(Arc::clone(&taskset), Arc::clone(&agent));
        Self { taskset, agent, alone }
    }

    async fn talk(&self, task: &Task, mut user: Box<dyn User>, deadline: Option<Instant>) -> Trace {
        let mut rollout = self.agent.begin(task, self.taskset.hooks(), deadline).await;
        let mut say = task.data.opening();
        // A task whose prompt is only instructions is opened by its user.
        let mut user_opens = !say.iter().any(|message| !matches!(message, Message::System(_)));
        loop {
            if rollout.open() && (user_opens || say.is_empty()) {
                match user.reply(rollout.exchange()).await {
                    Ok(UserTurn::Say(messages)) => say.extend(messages),
                    Ok(UserTurn::Close) => rollout.stop("user_closed"),
                    Err(fault) => rollout.fail(fault),
                }
                user_opens = false;
            }
            if !rollout.segment(std::mem::take(&mut say)).await {
                return rollout.finish().await;
            }
        }
    }
}

impl Env for ScriptedUser {
    fn run<'a>(&'a self, task: &'a Task, deadline: Option<Instant>) -> BoxFuture<'a, Attempt> {
        match self.taskset.user(task) {
            None => self.alone.run(task, deadline),
            Some(user) => Box::pin(async move { self.talk(task, user, deadline).await.into() }),
        }
    }
}
