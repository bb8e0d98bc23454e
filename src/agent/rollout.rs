//! One rollout as a state machine: open, any number of segments, finished.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{FutureExt as _, future::BoxFuture};
use tokio::time::{Instant, timeout_at};

use super::{
    Agent, TokenIn,
    limits::Spent,
    tokens::{Spoken, Stream},
};
use crate::{
    config::TokenRoute,
    harness::{Halt, Model},
    inference::{ChatCall, ChatFailure, ChatReply, FailedAttempt, FailureKind, GenerateCall, Session},
    store::Event,
    taskset::{Exchange, Hooks, State, Task},
    trace::{AssistantMessage, Fault, FaultClass, Message, ModelCall, TimeSpan, Trace, now},
};

/// The routes of calls, as traces record them.
const CHAT: &str = "/chat/completions";
const GENERATE: &str = "/inference/v1/generate";

/// One rollout while it runs.
pub struct Rollout {
    agent: Arc<Agent>,
    task: Task,
    hooks: Option<Arc<dyn Hooks>>,
    /// On the heap: it is large, and would lie in the future of every stage that it is handed to.
    trace: Box<Trace>,
    session: Session,
    conversation: Vec<Message>,
    /// The tokens of the conversation, for an agent that speaks in them.
    stream: Stream,
    leaf: Option<u32>,
    state: State,
    spent: Spent,
    agent_time_left: Option<Duration>,
    deadline: Option<Instant>,
}

impl Rollout {
    pub(super) fn begin(
        agent: Arc<Agent>,
        task: &Task,
        hooks: Option<Arc<dyn Hooks>>,
        deadline: Option<Instant>,
    ) -> Self {
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
            hooks,
            trace,
            conversation: Vec::new(),
            stream: Stream::default(),
            leaf: None,
            state: State::new(),
            spent: Spent::default(),
            deadline,
        }
    }

    /// Shows the rollout as it is now to who watches it: before each wait, so that what follows at once is shown with it.
    fn tell(&self, pending: &[Message]) {
        if let Some(watch) = &self.agent.watch {
            watch.changed(&self.trace, pending);
        }
    }

    /// Runs the taskset's setup under its deadline. Too slow, it ends the rollout in the ordinary way.
    pub(super) async fn set_up(&mut self) {
        let Some(hooks) = self.hooks.clone() else { return };
        self.tell(&[]);
        let deadline = self.stage_end(self.agent.deadlines.setup, self.task.data.timeout.setup);
        self.trace.timing.setup = TimeSpan::begin();
        let done = within(deadline, caught("setup", hooks.setup(&self.task, &mut self.state))).await;
        self.conclude("setup", done);
        self.trace.timing.setup.finish();
        self.trace.timing.agent.start = self.trace.timing.setup.end;
    }

    /// Whether another segment can run.
    pub fn open(&self) -> bool {
        self.trace.stop_condition.is_none()
    }

    /// The rollout as the taskset's own functions see it between two turns.
    pub fn exchange(&mut self) -> Exchange<'_> {
        self.tell(&[]);
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

    /// Finalizes, unless the rollout failed, and hands the trace on to be scored.
    pub async fn finish(mut self) -> Trace {
        self.stop("agent_completed");
        self.trace.timing.agent.end = now();
        self.trace.split_agent_time();
        self.tell(&[]);
        if self.trace.errors.is_empty() {
            self.finalize().await;
        }
        self.trace.keep_state(self.state);
        self.trace.ok = self.trace.errors.is_empty();
        self.trace.graph.shrink_to_fit();
        *self.trace
    }

    async fn finalize(&mut self) {
        let at = self.trace.timing.agent.end;
        self.trace.timing.finalize = TimeSpan { start: at, end: at };
        let Some(hooks) = self.hooks.clone() else { return };
        let deadline = self.stage_end(self.agent.deadlines.finalize, self.task.data.timeout.finalize);
        let done = within(deadline, caught("finalize", hooks.finalize(&self.trace, &mut self.state))).await;
        self.conclude("finalize", done);
        self.trace.timing.finalize.finish();
    }

    /// When a stage must end that begins now: by the seat's deadline, else the task's, and by that of the episode.
    fn stage_end(&self, seat: Option<Duration>, task: Option<f64>) -> Option<Instant> {
        let stage = seat.or(seconds(task)).and_then(|stage| Instant::now().checked_add(stage));
        earlier(stage, self.deadline)
    }

    /// Records how a hook ended; `None` when its deadline passed.
    fn conclude(&mut self, stage: &str, done: Option<Result<(), Fault>>) {
        let failed = match done {
            Some(done) => done.err(),
            None => match self.out_of_time(stage) {
                Halt::Failed(fault) => Some(fault),
                Halt::Stopped(_) => None,
            },
        };
        if let Some(fault) = failed {
            self.fail(fault);
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
        self.tell(&self.conversation[first_new..]);
        let reply = match self.agent.tokens.clone() {
            Some(tokens) => self.speak(&tokens, first_new).await?,
            None => match self.session.chat(&self.chat_call(false)).await {
                Ok(reply) => reply,
                Err(failure) => return Err(self.give_up(failure)),
            },
        };
        self.commit(reply, first_new).await
    }

    fn chat_call(&self, tokens: bool) -> ChatCall<'_> {
        ChatCall {
            model: &self.agent.model,
            messages: &self.conversation,
            tools: &[],
            sampling: &self.agent.sampling,
            tokens,
        }
    }

    /// One call whose tokens are all known, by the route that the agent has.
    async fn speak(&mut self, tokens: &TokenIn, first_new: usize) -> Result<ChatReply, Halt> {
        let prompt = self.stream.next(tokens, &self.conversation, self.conversation.len() - first_new);
        let agent = Arc::clone(&self.agent);
        if let Ok(prompt) = &prompt
            && let Some(window) = tokens.window(&agent.pool, &agent.model).await
            && self.stream.length(prompt) >= window
        {
            let length = self.stream.length(prompt);
            self.trace.stop_at_window(format!("the prompt has {length} tokens, and the model's window {window}"));
            return Err(Halt::Stopped(Trace::CONTEXT_OVERFLOW.to_owned()));
        }
        if tokens.route() == TokenRoute::Chat {
            let reply = match self.session.chat(&self.chat_call(true)).await {
                Ok(reply) => reply,
                Err(failure) => return Err(self.give_up(failure)),
            };
            let (endpoint, time, attempts) = (Arc::clone(&reply.endpoint), reply.time, reply.failed.clone());
            let Some(spoken) = self.stream.answered(tokens, prompt.ok(), reply) else {
                let told = format!(
                    "{endpoint}: the answer has no exact tokens; the server must answer `return_token_ids` and `logprobs`, as \
                     vLLM does"
                );
                let fault = Fault::new(FaultClass::Provider, told);
                self.record_failed(attempts.into_iter().chain([FailedAttempt {
                    time,
                    fault: fault.clone(),
                    endpoint,
                }]));
                return Err(Halt::Failed(fault));
            };
            return Ok(self.reply(spoken, endpoint, time, attempts).await);
        }
        let prompt = prompt.map_err(|error| Halt::Failed(Fault::from_error(FaultClass::Task, &error)))?;
        let routed_from = Stream::routed_from(&prompt);
        let call = GenerateCall {
            model: &agent.model,
            prompt: self.stream.take(&prompt),
            sampling: &agent.sampling,
            stop_ids: tokens.stop_ids(),
            routed_from,
        };
        let reply = match self.session.generate(&call).await {
            Ok(reply) => reply,
            Err(failure) => return Err(self.give_up(failure)),
        };
        let spoken = self.stream.generated(tokens, prompt, &reply);
        Ok(self.reply(spoken, reply.endpoint, reply.time, reply.failed).await)
    }

    /// The reply of a turn whose tokens are kept, which is told to who counts.
    async fn reply(&self, spoken: Spoken, endpoint: Arc<str>, time: TimeSpan, failed: Vec<FailedAttempt>) -> ChatReply {
        let Spoken { message, finish_reason, usage, tokens, kept } = spoken;
        let _ = self.agent.events.send(kept).await;
        ChatReply { message, finish_reason, usage, tokens: Some(tokens), endpoint, time, failed }
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
        self.ask_to_stop().await?;
        Ok(reply.message)
    }

    /// Asks the taskset whether the rollout ends here; the agent's time goes on meanwhile.
    async fn ask_to_stop(&mut self) -> Result<(), Halt> {
        let Some(hooks) = self.hooks.clone() else { return Ok(()) };
        let task = Arc::clone(&self.task);
        match caught("stop", hooks.stop(&task, self.exchange())).await {
            Ok(None) => Ok(()),
            Ok(Some(condition)) => Err(Halt::Stopped(condition)),
            Err(fault) => Err(Halt::Failed(fault)),
        }
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

    fn record_failed(&mut self, attempts: impl IntoIterator<Item = FailedAttempt>) {
        for attempt in attempts {
            self.trace.calls.push(ModelCall { time: attempt.time, error: Some(attempt.fault), ..self.blank_call() });
        }
    }

    fn blank_call(&self) -> ModelCall {
        let by_tokens = self.agent.tokens.as_ref().is_some_and(|tokens| tokens.route() == TokenRoute::Generate);
        let endpoint = if by_tokens { GENERATE } else { CHAT };
        ModelCall {
            model: Some(self.agent.model.clone()),
            sampling: Some(Arc::clone(&self.agent.sampling)),
            endpoint: Some(endpoint.to_owned()),
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

/// A hook that panics has failed.
async fn caught<T>(hook: &str, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let who = || format!("the taskset's {hook}");
    let done = AssertUnwindSafe(work).catch_unwind().await;
    done.unwrap_or_else(|panic| Err(Fault::from_panic(FaultClass::Task, &who(), panic.as_ref())))
}

async fn within<T>(deadline: Option<Instant>, work: impl Future<Output = T>) -> Option<T> {
    match deadline {
        None => Some(work.await),
        Some(deadline) => timeout_at(deadline, work).await.ok(),
    }
}
