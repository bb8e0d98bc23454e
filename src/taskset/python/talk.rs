//! What a script does around the model's turns: its user, its stop conditions, setup and finalize.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde::Deserialize;

use super::{
    body::{Asked, Body},
    description::{Function, Role},
    script::Script,
};
use crate::{
    taskset::{Exchange, Hooks, State, User, UserTurn},
    trace::{Fault, FaultClass, Message, TaskData, Trace, TraceTask},
};

/// The functions of one role, asked in one call.
struct Part {
    script: Arc<Script>,
    op: &'static str,
    functions: Vec<Function>,
    asked: Asked,
}

impl Part {
    fn of(script: &Arc<Script>, role: Role, op: &'static str) -> Self {
        let functions = script.description.of(role);
        Self { script: Arc::clone(script), op, asked: Asked::by(&functions), functions }
    }

    async fn ask<T: serde::de::DeserializeOwned>(&self, mut body: Body, state: &mut State) -> Result<T, Fault> {
        self.asked.add_state(&mut body, state)?;
        let Said { said, state: kept } = self.script.ask(self.op, &self.functions, &body, FaultClass::Task).await?;
        if let Some(kept) = kept {
            *state = kept;
        }
        Ok(said)
    }

    async fn ask_between_turns<T: serde::de::DeserializeOwned>(
        &self,
        task: &TaskData,
        exchange: Exchange<'_>,
    ) -> Result<T, Fault> {
        let mut body = self.asked.of_task(task)?;
        self.asked.add_conversation(&mut body, task, exchange.conversation)?;
        self.ask(body, exchange.state).await
    }
}

/// An answer with the state after the call, where a function asked for the state.
#[derive(Deserialize)]
struct Said<T> {
    said: T,
    state: Option<State>,
}

/// The user of one rollout.
pub(super) struct ScriptUser {
    part: Part,
    task: Arc<TaskData>,
}

impl ScriptUser {
    /// The user of a task; `None` where the script has none.
    pub(super) fn of(script: &Arc<Script>, task: &TraceTask) -> Option<Self> {
        let part = Part::of(script, Role::User, "user");
        (!part.functions.is_empty()).then(|| Self { part, task: Arc::new(task.data.clone()) })
    }
}

impl User for ScriptUser {
    fn reply<'a>(&'a mut self, exchange: Exchange<'a>) -> BoxFuture<'a, Result<UserTurn, Fault>> {
        Box::pin(async move {
            let said: Option<Vec<Message>> = self.part.ask_between_turns(&self.task, exchange).await?;
            Ok(said.map_or(UserTurn::Close, UserTurn::Say))
        })
    }
}

/// Setup, stop conditions and finalize of a script.
pub(super) struct ScriptHooks {
    setup: Part,
    stop: Part,
    finalize: Part,
}

impl ScriptHooks {
    /// The hooks of a script; `None` where it has none.
    pub(super) fn of(script: &Arc<Script>) -> Option<Self> {
        let hooks = Self {
            setup: Part::of(script, Role::Setup, "setup"),
            stop: Part::of(script, Role::Stop, "stop"),
            finalize: Part::of(script, Role::Finalize, "finalize"),
        };
        let any = [&hooks.setup, &hooks.stop, &hooks.finalize].into_iter().any(|part| !part.functions.is_empty());
        any.then_some(hooks)
    }
}

impl Hooks for ScriptHooks {
    fn setup<'a>(&'a self, task: &'a TraceTask, state: &'a mut State) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move {
            if self.setup.functions.is_empty() {
                return Ok(());
            }
            let body = self.setup.asked.of_task(&task.data)?;
            self.setup.ask(body, state).await
        })
    }

    fn stop<'a>(&'a self, task: &'a TraceTask, exchange: Exchange<'a>) -> BoxFuture<'a, Result<Option<String>, Fault>> {
        Box::pin(async move {
            if self.stop.functions.is_empty() {
                return Ok(None);
            }
            self.stop.ask_between_turns(&task.data, exchange).await
        })
    }

    fn finalize<'a>(&'a self, trace: &'a Trace, state: &'a mut State) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move {
            if self.finalize.functions.is_empty() {
                return Ok(());
            }
            let mut body = self.finalize.asked.of_task(&trace.task.data)?;
            self.finalize.asked.add_trace(&mut body, trace)?;
            self.finalize.ask(body, state).await
        })
    }
}
