//! One rollout as a state machine: open, any number of segments, finished.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use tokio::time::{Instant, timeout_at};

use super::{Agent, limits::Spent};
use crate::{
    harness::{Halt, Model},
    inference::{ChatCall, ChatFailure, ChatReply, FailedAttempt, FailureKind, Session},
    rubric::Rubric,
    store::Event,
    taskset::{Exchange, State, Task},
    trace::{AssistantMessage, Fault, FaultClass, Message, ModelCall, TimeSpan, Trace, now},
};

/// The route of every call, as traces record it.
const ENDPOINT: &str = "/chat/completions";

/// One rollout while it runs.
pub struct Rollout {
    agent: Arc<Agent>,
    task: Task,
    /// On the heap: it is large, and would lie in the future of every stage that it is handed to.
    trace: Box<Trace>,
    session: Session,
    conversation: Vec<Message>,
    leaf: Option<u32>,
    state: State,
    spent: Spent,
    agent_time_left: Option<Duration>,
    deadline: Option<Instant>,
}

impl Rollout {
    pub(super) fn begin(agent: Arc<Agent>, task: &Task, deadline: Option<Instant>) -> Self {
        let mut trace = Box::new(Trace::new(Arc::clone(task), agent.info.clone()));
        let started = trace.timing.start;
        tracing::debug!(id = %trace.id, task = task.data.idx, "rollout start");
        trace.timing.boot = TimeSpan { start: started, end: started };
        trace.timing.setup = TimeSpan { start: started, end: started };
        trace.timing.agent.start = started;
        Self {
            session: agent.pool.session(&trace.id),
            agent_time_left: agent.deadlines.rollout.or(seconds(task.data.timeout.agent)),
            agent,
            task: Arc::clone(task),
            trace,
            conversation: Vec::new(),
            leaf: None,
            state: State::new(),
            spent: Spent::default(),
            deadline,
        }
    }

    /// Whether another segment can run.
    pub fn open(&self) -> bool {
        self.trace.stop_condition.is_none()
    }

    /// The rollout as the taskset's own functions see it between two turns.
    pub fn exchange(&mut self) -> Exchange<'_> {
        Exchange { conversation: &self.conversation, state: &mut self.state }
    }

    /// Runs one segment under what is left of the agent's time; waiting for the user between segments is free.
    /// Returns whether another one can follow.
    pub async fn segment(&mut self, say: Vec<Message>) -> bool {
        if !self.open() {
            return false;
        }
        let turns_before = self.spent.turns();
        let harness = Arc::clone(&self.agent.harness);
        let started = Instant::now();
        let deadline = earlier(self.agent_time_left.and_then(|left| started.checked_add(left)), self.deadline);
        let result = match within(deadline, harness.segment(say, self)).await {
            Some(result) => result,
            None => Err(self.out_of_time("agent")),
        };
        self.agent_time_left = self.agent_time_left.map(|left| left.saturating_sub(started.elapsed()));
        match result {
            Ok(()) => {}
            Err(Halt::Stopped(condition)) => self.stop(&condition),
            Err(Halt::Failed(fault)) => self.fail(fault),
        }
        self.open() && self.spent.turns() > turns_before
    }

    /// Ends the rollout under a stop condition; the first one stands.
    pub fn stop(&mut self, condition: &str) {
        self.trace.stop(condition);
    }

    /// Ends the rollout with a failure: it will have no score.
    pub fn fail(&mut self, fault: Fault) {
        self.trace.record_fault(fault);
    }

    /// Finalizes and scores, unless the rollout failed, and hands the trace on.
    pub async fn finish(mut self, rubric: &Rubric) -> Trace {
        self.stop("agent_completed");
        self.trace.timing.agent.end = now();
        self.trace.split_agent_time();
        self.trace.keep_state(std::mem::take(&mut self.state));
        if self.trace.errors.is_empty() {
            let at = now();
            self.trace.timing.finalize = TimeSpan { start: at, end: at };
            self.trace.timing.scoring = TimeSpan { start: at, end: 0.0 };
            self.score(rubric).await;
            self.trace.timing.scoring.finish();
        }
        self.trace.ok = self.trace.errors.is_empty();
        self.trace.graph.shrink_to_fit();
        tracing::info!(
            id = %self.trace.id,
            task = self.task.data.idx,
            reward = self.trace.reward(),
            turns = self.spent.turns(),
            stop = self.trace.errors.last().map_or(self.trace.stop_condition.as_deref(), |fault| Some(&fault.kind)),
            "rollout done"
        );
        *self.trace
    }

    async fn score(&mut self, rubric: &Rubric) {
        let stage = self.agent.deadlines.scoring.or(seconds(self.task.data.timeout.scoring));
        let deadline = earlier(stage.and_then(|stage| Instant::now().checked_add(stage)), self.deadline);
        let scored = match within(deadline, rubric.score(&mut self.trace)).await {
            Some(scored) => scored,
            None => Err(match self.out_of_time("scoring") {
                Halt::Failed(fault) => fault,
                Halt::Stopped(_) => {
                    Fault::new(FaultClass::Scoring, "scoring did not finish within its deadline").retryable(true)
                }
            }),
        };
        // The stop condition keeps saying how the agent ended; the error says why there is no score.
        if let Err(fault) = scored {
            self.trace.errors.push(fault);
        }
    }

    /// What an expired deadline means: the stage's own is an ordinary ending that replaces any stop condition, the
    /// whole episode's is a failure.
    fn out_of_time(&mut self, stage: &str) -> Halt {
        if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            self.trace.record_timeout("episode");
            let message = format!("the episode's deadline passed in its {stage} stage");
            return Halt::Failed(Fault::new(FaultClass::Infrastructure, message));
        }
        self.trace.record_timeout(stage);
        Halt::Stopped(format!("{stage}_timeout"))
    }

    async fn call(&mut self, say: Vec<Message>) -> Result<AssistantMessage, Halt> {
        if let Some(budget) = self.spent.exhausted(&self.agent.limits) {
            return Err(Halt::Stopped(budget.to_owned()));
        }
        let first_new = self.conversation.len();
        self.conversation.extend(say);
        let call = ChatCall {
            model: &self.agent.model,
            messages: &self.conversation,
            tools: &[],
            sampling: &self.agent.sampling,
            tokens: self.agent.tokens,
        };
        match self.session.chat(&call).await {
            Ok(reply) => self.commit(reply, first_new).await,
            Err(failure) => Err(self.give_up(failure)),
        }
    }

    async fn commit(&mut self, reply: ChatReply, first_new: usize) -> Result<AssistantMessage, Halt> {
        self.record_failed(reply.failed);
        let turn = self.trace.graph.at(self.leaf, self.conversation[first_new..].to_vec(), Arc::new([]));
        let committed = self.trace.graph.commit(turn, reply.message.clone(), reply.tokens);
        let node = committed.map_err(|error| Halt::Failed(Fault::from_error(FaultClass::Provider, &error)))?;
        self.leaf = Some(node);
        self.spent.add(reply.usage.as_ref());
        let event = Event::TurnCompleted {
            input_tokens: reply.usage.as_ref().map_or(0, |usage| usage.input_tokens()),
            output_tokens: reply.usage.as_ref().map_or(0, |usage| usage.completion_tokens),
        };
        self.trace.calls.push(ModelCall {
            node: Some(node),
            finish_reason: reply.finish_reason,
            usage: reply.usage,
            time: reply.time,
            ..self.blank_call()
        });
        self.conversation.push(Message::Assistant(reply.message.clone()));
        // A closed channel means that nobody watches.
        let _ = self.agent.events.send(event).await;
        Ok(reply.message)
    }

    /// Records a call that failed for good and says what it means for the rollout.
    fn give_up(&mut self, failure: ChatFailure) -> Halt {
        let fault = failure.fault().clone();
        self.record_failed(failure.failed);
        match failure.kind {
            FailureKind::ContextOverflow => {
                self.trace.stop_at_window(fault.message);
                Halt::Stopped(Trace::CONTEXT_OVERFLOW.to_owned())
            }
            _ => Halt::Failed(fault),
        }
    }

    fn record_failed(&mut self, attempts: Vec<FailedAttempt>) {
        for attempt in attempts {
            self.trace.calls.push(ModelCall { time: attempt.time, error: Some(attempt.fault), ..self.blank_call() });
        }
    }

    fn blank_call(&self) -> ModelCall {
        ModelCall {
            model: Some(self.agent.model.clone()),
            sampling: Some(Arc::clone(&self.agent.sampling)),
            endpoint: Some(ENDPOINT.to_owned()),
            ..ModelCall::default()
        }
    }
}

impl Model for Rollout {
    fn ask<'a>(&'a mut self, say: Vec<Message>) -> BoxFuture<'a, Result<AssistantMessage, Halt>> {
        Box::pin(self.call(say))
    }
}

fn seconds(seconds: Option<f64>) -> Option<Duration> {
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

async fn within<T>(deadline: Option<Instant>, work: impl Future<Output = T>) -> Option<T> {
    match deadline {
        None => Some(work.await),
        Some(deadline) => timeout_at(deadline, work).await.ok(),
    }
}
