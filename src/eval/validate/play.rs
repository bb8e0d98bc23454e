//! Plays a task without a model: someone's replies, through the taskset's own user and hooks, then its rubric.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use serde_json::value::RawValue;
use tokio::{runtime::Handle, task::spawn_blocking, time::timeout};

use crate::{
    rubric::{Ledger, Rubric, corrupted},
    taskset::{Exchange, State, Task, Taskset, UserTurn},
    trace::{AgentInfo, AssistantMessage, Fault, FaultClass, Message, ModelCall, Trace},
};

/// Turns after which a conversation is over, whatever the user wants.
pub(super) const MOST_TURNS: usize = 100;
/// Rows, from the first on, whose replies are scored twice.
const SCORED_TWICE: u64 = 100;
/// Stages that did not end in time, each of which may hold a thread for good, after which nothing is played any more.
const MOST_LATE: u32 = 3;
/// Differences of two scores that mean nothing.
const SAME: f64 = 1e-9;
/// How much longer than its patience a stage may take to notice.
const GRACE: Duration = Duration::from_millis(500);

/// Who replies.
#[derive(Clone)]
pub(super) enum Player {
    /// The taskset's own perfect player.
    Reference,
    /// The perfect player, with something wrong in each reply.
    Corrupted,
    /// The same reply every time.
    Always(String),
    /// One reply after the other; the conversation ends with the last.
    Says(Vec<String>),
    /// The whole conversation after the prompt; the taskset's user is not asked.
    Given(Vec<Message>),
}

/// What came of a play.
pub(super) enum Play {
    /// A scored conversation.
    Scored(Box<Scored>),
    /// It failed on the way or was not scored.
    Failed(Fault),
    /// The player has nothing to say: there is no reference answer, or nothing in it can be wrong.
    Speechless,
    /// Not played, because too much before it did not end in time.
    GivenUp,
}

/// A scored conversation.
pub(super) struct Scored {
    /// What the model's side said, turn by turn.
    pub(super) replies: Vec<String>,
    /// The conversation with its scores.
    pub(super) trace: Trace,
    /// How long each scorer took.
    pub(super) times: Vec<(String, Duration)>,
    /// Whether nothing but the number of turns ended it.
    pub(super) endless: bool,
    /// Whether it came out otherwise when it was scored again; `None` where it was scored once.
    pub(super) again: Option<Result<(), String>>,
}

/// Where tasks are played.
pub(super) struct Stage {
    pub(super) taskset: Arc<dyn Taskset>,
    pub(super) patience: Duration,
    /// Names of the judges that are not asked.
    pub(super) silent: Vec<String>,
    rubric: Arc<Rubric>,
    agent: AgentInfo,
    late: AtomicU32,
}

impl Stage {
    pub(super) fn new(taskset: Arc<dyn Taskset>, rubric: Rubric, silent: Vec<String>, patience: Duration) -> Self {
        let agent = AgentInfo {
            config: Arc::from(RawValue::NULL.to_owned()),
            runtime: None,
            name: "validate".to_owned(),
            trainable: false,
        };
        Self { taskset, patience, silent, rubric: Arc::new(rubric), agent, late: AtomicU32::new(0) }
    }

    /// Whether its rubric compares rollouts with each other.
    pub(super) fn compares_groups(&self) -> bool {
        self.rubric.compares_groups()
    }

    /// Plays a task and scores it.
    pub(super) async fn play(&self, task: &Task, player: Player) -> Play {
        if self.late.load(Ordering::Relaxed) >= MOST_LATE {
            return Play::GivenUp;
        }
        let trace = Trace::new(Arc::clone(task), self.agent.clone());
        let talk = Talk {
            taskset: Arc::clone(&self.taskset),
            task: Arc::clone(task),
            player,
            trace,
            replies: Vec::new(),
            endless: false,
        };
        let talk = match self.contained(FaultClass::Task, "the taskset", talk.hold()).await {
            Ok(Ok(Some(talk))) => talk,
            Ok(Ok(None)) => return Play::Speechless,
            Ok(Err(fault)) | Err(Some(fault)) => return Play::Failed(fault),
            Err(None) => {
                let problem = format!("the conversation did not end within {:?}", self.patience);
                return Play::Failed(Fault::new(FaultClass::Task, problem));
            }
        };
        self.score(talk).await
    }

    async fn score(&self, talk: Talk) -> Play {
        let Talk { trace, replies, endless, .. } = talk;
        let ledger = Arc::new(Ledger::with_times());
        match self.scored(trace, &ledger).await {
            Ok(Ok(mut trace)) => {
                ledger.settle(&mut trace);
                let twice = trace.task.data.idx.is_some_and(|position| position < SCORED_TWICE);
                let again = if twice { Some(self.score_again(&trace).await) } else { None };
                Play::Scored(Box::new(Scored { replies, trace, times: ledger.times(), endless, again }))
            }
            Ok(Err(fault)) | Err(Some(fault)) => Play::Failed(fault),
            Err(None) => {
                let done = ledger.times();
                let names = self.rubric.names().filter(|name| done.iter().all(|(known, _)| known != name));
                let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
                let problem = format!("{} gave no score within {:?}", names.join(" or "), self.patience);
                Play::Failed(Fault::new(FaultClass::Scoring, problem))
            }
        }
    }

    async fn scored(&self, mut trace: Trace, ledger: &Arc<Ledger>) -> Result<Result<Trace, Fault>, Option<Fault>> {
        let (rubric, ledger) = (Arc::clone(&self.rubric), Arc::clone(ledger));
        let scoring = async move {
            let scored = rubric.score_into(&mut trace, &ledger).await;
            scored.map(|()| trace)
        };
        self.contained(FaultClass::Scoring, "the scorer", scoring).await
    }

    /// Scores a conversation anew, as a replay does: judges find what they said in it. The error says what differs.
    async fn score_again(&self, first: &Trace) -> Result<(), String> {
        let mut trace = first.clone();
        trace.rewards.clear();
        trace.metrics.clear();
        match self.scored(trace, &Arc::new(Ledger::default())).await {
            Ok(Ok(second)) => same_scores(first, &second),
            Ok(Err(fault)) | Err(Some(fault)) => Err(format!("was scored once, and then failed: {}", fault.message)),
            Err(None) => Err(format!("was scored once, and then not within {:?}", self.patience)),
        }
    }

    /// Scores the plays of one task against each other.
    pub(super) async fn score_group(&self, task: &Task, group: Vec<Trace>) -> Result<Vec<Trace>, Fault> {
        let (rubric, task) = (Arc::clone(&self.rubric), Arc::clone(task));
        let scoring = async move {
            let mut group = group;
            let mut members: Vec<&mut Trace> = group.iter_mut().collect();
            rubric.score_group(&task.data, &mut members).await.map(|()| group)
        };
        match self.contained(FaultClass::Scoring, "the scorer", scoring).await {
            Ok(scored) => scored,
            Err(Some(fault)) => Err(fault),
            Err(None) => {
                let problem = format!("the group rewards gave no score within {:?}", self.patience);
                Err(Fault::new(FaultClass::Scoring, problem))
            }
        }
    }

    /// Runs foreign code on a thread of its own, where it may block or panic. `Err(None)` when it did not end in time: the
    /// thread is then left to it.
    async fn contained<T: Send + 'static>(
        &self,
        class: FaultClass,
        who: &str,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Option<Fault>> {
        let (runtime, patience) = (Handle::current(), self.patience);
        let running = spawn_blocking(move || runtime.block_on(timeout(patience, work)));
        let late = |_| {
            self.late.fetch_add(1, Ordering::Relaxed);
            None
        };
        match timeout(patience + GRACE, running).await.map_err(late)? {
            Ok(ended) => ended.map_err(late),
            Err(ended) => Err(Some(match ended.try_into_panic() {
                Ok(panic) => Fault::from_panic(class, who, &*panic),
                Err(_) => Fault::new(FaultClass::Cancelled, "the program is ending"),
            })),
        }
    }
}

/// A conversation that is being held.
struct Talk {
    taskset: Arc<dyn Taskset>,
    task: Task,
    player: Player,
    trace: Trace,
    replies: Vec<String>,
    endless: bool,
}

impl Talk {
    /// Holds it from setup to finalize; `None` when the player has nothing to say.
    async fn hold(mut self) -> Result<Option<Self>, Fault> {
        let (taskset, task) = (Arc::clone(&self.taskset), Arc::clone(&self.task));
        let hooks = taskset.hooks();
        let mut state = State::new();
        if let Some(hooks) = &hooks {
            hooks.setup(&task, &mut state).await?;
        }
        let spoken = match self.player.clone() {
            Player::Given(messages) => self.recite(messages)?,
            _ => self.converse(&mut state).await?,
        };
        if !spoken {
            return Ok(None);
        }
        self.trace.stop("agent_completed");
        self.trace.keep_state(state.clone());
        if let Some(hooks) = &hooks {
            hooks.finalize(&self.trace, &mut state).await?;
            self.trace.keep_state(state);
        }
        Ok(Some(self))
    }

    /// Commits a conversation as it is given.
    fn recite(&mut self, messages: Vec<Message>) -> Result<bool, Fault> {
        let mut leaf = None;
        let mut said = self.task.data.opening();
        for message in messages {
            match message {
                Message::Assistant(reply) => leaf = Some(self.commit(leaf, std::mem::take(&mut said), reply)?),
                other => said.push(other),
            }
        }
        Ok(leaf.is_some())
    }

    /// Lets the player talk with the taskset's user until one of them, or a stop condition, ends it.
    async fn converse(&mut self, state: &mut State) -> Result<bool, Fault> {
        let (taskset, task) = (Arc::clone(&self.taskset), Arc::clone(&self.task));
        let hooks = taskset.hooks();
        let mut user = taskset.user(&task);
        let mut conversation = Vec::new();
        let mut say = task.data.opening();
        let mut changed = false;
        let mut leaf = None;
        let user_opens = !say.iter().any(|message| !matches!(message, Message::System(_)));
        if let (true, Some(user)) = (user_opens, &mut user) {
            match user.reply(Exchange { conversation: &say, state }).await? {
                UserTurn::Say(messages) => say.extend(messages),
                UserTurn::Close => return Ok(false),
            }
        }
        for turn in 0..MOST_TURNS {
            conversation.extend(say.iter().cloned());
            let Some(reply) = self.reply(turn, &conversation, &mut changed).await? else {
                if turn > 0 && matches!(self.player, Player::Reference) {
                    let problem = format!("there is no reference answer to turn {}", turn + 1);
                    return Err(Fault::new(FaultClass::Task, problem));
                }
                break;
            };
            let message = AssistantMessage { content: Some(reply), ..AssistantMessage::default() };
            conversation.push(Message::Assistant(message.clone()));
            leaf = Some(self.commit(leaf, std::mem::take(&mut say), message)?);
            if let Some(hooks) = &hooks
                && let Some(condition) = hooks.stop(&task, Exchange { conversation: &conversation, state }).await?
            {
                self.trace.stop(&condition);
                break;
            }
            let Some(user) = &mut user else { break };
            match user.reply(Exchange { conversation: &conversation, state }).await? {
                UserTurn::Say(messages) => {
                    say = messages;
                    self.endless = turn + 1 == MOST_TURNS;
                }
                UserTurn::Close => {
                    self.trace.stop("user_closed");
                    break;
                }
            }
        }
        Ok(leaf.is_some() && (changed || !matches!(self.player, Player::Corrupted)))
    }

    async fn reply(&self, turn: usize, conversation: &[Message], changed: &mut bool) -> Result<Option<String>, Fault> {
        Ok(match &self.player {
            Player::Reference => self.taskset.reference(&self.task, conversation).await?,
            Player::Corrupted => {
                let Some(right) = self.taskset.reference(&self.task, conversation).await? else { return Ok(None) };
                let wrong = corrupted(&right, |bound| if bound == 0 { 0 } else { turn % bound });
                *changed |= wrong.is_some();
                Some(wrong.unwrap_or(right))
            }
            Player::Always(reply) => Some(reply.clone()),
            Player::Says(replies) => replies.get(turn).cloned(),
            Player::Given(_) => None,
        })
    }

    fn commit(&mut self, leaf: Option<u32>, said: Vec<Message>, reply: AssistantMessage) -> Result<u32, Fault> {
        let turn = self.trace.graph.at(leaf, said, Arc::new([]));
        self.replies.push(reply.content.clone().unwrap_or_default());
        let node = self.trace.graph.commit(turn, reply, None);
        let node = node.map_err(|error| Fault::from_error(FaultClass::Task, &error))?;
        self.trace.calls.push(ModelCall { node: Some(node), ..ModelCall::default() });
        Ok(node)
    }
}

/// Compares the scores of a conversation with those that it got before.
pub(super) fn same_scores(first: &Trace, second: &Trace) -> Result<(), String> {
    let differs = |one: Option<f64>, other: Option<f64>| match (one, other) {
        (Some(one), Some(other)) => (one - other).abs() > SAME,
        (one, other) => one.is_some() != other.is_some(),
    };
    let rewards = |trace: &Trace, name: &str| trace.rewards.get(name).copied().flatten().map(|reward| reward.score);
    let metrics = |trace: &Trace, name: &str| trace.metrics.get(name).copied().flatten();
    let told = |score: Option<f64>| score.map_or_else(|| "nothing".to_owned(), |score| score.to_string());
    let of = first.rewards.keys().map(|name| ("reward", name, rewards(first, name), rewards(second, name)));
    let all = of.chain(first.metrics.keys().map(|name| ("metric", name, metrics(first, name), metrics(second, name))));
    for (kind, name, one, other) in all {
        if differs(one, other) {
            return Err(format!(
                "{kind} `{name}` gave {}, then {}; let it depend on the reply and the row alone, and seed what is random",
                told(one),
                told(other)
            ));
        }
    }
    Ok(())
}
