//! Tasksets as the simulator's oracle: the perfect player of their tasks.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use futures::{StreamExt as _, TryStreamExt as _, future::BoxFuture};
use sha2::{Digest, Sha256};

use crate::{
    config::Select,
    rubric::corrupted,
    sim::Oracle,
    taskset::{Task, TaskStream, Taskset, TasksetError, TasksetSize, select},
    trace::{Message, TraceTask},
};

/// Most tasks of a taskset that a simulator which serves alone keeps.
const MOST_TASKS: u64 = 100_000;

/// Tasks are forgotten when nobody else holds them; the register is swept when it has grown to this, and doubled.
const FIRST_SWEEP: usize = 4096;

/// A taskset that plays its own tasks. The task of a conversation is the one whose opening messages it begins with;
/// a conversation of no known task goes to the taskset itself ([`Taskset::solve`]). The same model may be asked to judge what
/// it played: it gives full marks.
pub(super) struct Player {
    taskset: Arc<dyn Taskset>,
    register: Mutex<Register>,
    /// Tasks that nobody else holds.
    kept: Vec<Task>,
}

#[derive(Default)]
struct Register {
    tasks: HashMap<Opening, Weak<TraceTask>>,
    sweep_at: usize,
}

/// What tells tasks apart: a digest of the messages that open their conversations.
type Opening = [u8; 32];

impl Player {
    /// A player that knows the taskset but no task yet.
    pub(super) fn new(taskset: Arc<dyn Taskset>) -> Self {
        Self { taskset, register: Mutex::default(), kept: Vec::new() }
    }

    /// A player that has read the taskset's tasks, as far as there is room for them.
    ///
    /// # Errors
    /// Data that cannot be read.
    pub(super) async fn with_tasks(taskset: Arc<dyn Taskset>) -> Result<Self, TasksetError> {
        let limit = Some(MOST_TASKS);
        let tasks: Vec<Task> = select(taskset.as_ref(), &Select { limit, ..Select::default() })?.try_collect().await?;
        if tasks.len() as u64 == MOST_TASKS && taskset.size() != TasksetSize::Finite(MOST_TASKS) {
            tracing::warn!("the simulator knows the first {MOST_TASKS} tasks of a taskset, not those behind them");
        }
        let mut player = Self::new(taskset);
        tasks.iter().for_each(|task| player.meet(task));
        player.kept = tasks;
        Ok(player)
    }

    /// The same tasks; the player gets to know each as it passes, before anyone can ask about it.
    pub(super) fn watch(self: &Arc<Self>, tasks: TaskStream) -> TaskStream {
        let player = Arc::clone(self);
        tasks.inspect_ok(move |task| player.meet(task)).boxed()
    }

    fn meet(&self, task: &Task) {
        let messages = task.data.opening();
        let opening = openings(&messages).pop().unwrap_or_default();
        let mut register = self.register();
        if register.tasks.len() >= register.sweep_at.max(FIRST_SWEEP) {
            register.tasks.retain(|_, task| task.strong_count() > 0);
            register.sweep_at = 2 * register.tasks.len();
        }
        let asked = without_system(&messages);
        if !asked.is_empty() && asked.len() < messages.len() {
            // One of the same question with no system prompt is nearer.
            let asked = openings(asked).pop().unwrap_or_default();
            if register.tasks.get(&asked).is_none_or(|known| known.strong_count() == 0) {
                register.tasks.insert(asked, Arc::downgrade(task));
            }
        }
        register.tasks.insert(opening, Arc::downgrade(task));
    }

    /// The task whose opening is the longest beginning of a conversation; harnesses put system prompts of their own before
    /// it, or in place of the task's.
    fn task_of(&self, conversation: &[Message]) -> Option<Task> {
        let register = self.register();
        let find =
            |openings: Vec<Opening>| openings.iter().rev().find_map(|opening| register.tasks.get(opening)?.upgrade());
        find(openings(conversation)).or_else(|| find(openings(without_system(conversation))))
    }

    async fn play(&self, conversation: &[Message]) -> Option<String> {
        let Some(task) = self.task_of(conversation) else { return self.taskset.solve(conversation) };
        match self.taskset.reference(&task, conversation).await {
            Ok(reply) => reply,
            Err(fault) => {
                tracing::warn!(%fault, task = task.data.idx, "no reference answer");
                None
            }
        }
    }

    fn register(&self) -> std::sync::MutexGuard<'_, Register> {
        // The register is whole whenever the lock is free.
        self.register.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A conversation from its first message on that is no system prompt.
fn without_system(conversation: &[Message]) -> &[Message] {
    let first = conversation.iter().position(|message| !matches!(message, Message::System(_)));
    &conversation[first.unwrap_or(conversation.len())..]
}

/// The digest of each beginning of a conversation, from the empty one to the whole.
fn openings(conversation: &[Message]) -> Vec<Opening> {
    let mut hasher = Sha256::new();
    let mut openings = vec![hasher.clone().finalize().into()];
    for message in conversation {
        // Of a reply, its text: what else it came with is not in every form of it.
        let text = match message {
            Message::Assistant(reply) => format!("{:?}", reply.content.as_deref().unwrap_or_default()),
            other => serde_json::to_string(other).unwrap_or_default(),
        };
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text);
        openings.push(hasher.clone().finalize().into());
    }
    openings
}

/// Tasksets as one oracle: the first that knows the conversation answers.
pub(super) struct Players(pub(super) Vec<Arc<Player>>);

impl Oracle for Players {
    fn solve<'a>(&'a self, conversation: &'a [Message]) -> BoxFuture<'a, Option<String>> {
        Box::pin(async move {
            for player in &self.0 {
                if let Some(reply) = player.play(conversation).await {
                    return Some(reply);
                }
            }
            None
        })
    }

    fn certain(&self, conversation: &[Message]) -> Option<String> {
        self.0.iter().find_map(|player| player.taskset.rubric().full_marks(conversation))
    }

    fn spoiled(&self, answer: &str, below: &dyn Fn(usize) -> usize) -> Option<String> {
        corrupted(answer, below)
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;
    use crate::{
        rubric::Rubric,
        trace::{Prompt, TaskData},
    };

    #[derive(Default)]
    struct Nothing(Rubric);

    impl Taskset for Nothing {
        fn tasks(&self) -> TaskStream {
            stream::empty().boxed()
        }

        fn size(&self) -> TasksetSize {
            TasksetSize::Finite(0)
        }

        fn rubric(&self) -> &Rubric {
            &self.0
        }
    }

    #[test]
    fn a_task_is_known_below_the_system_prompt_of_a_harness() {
        let task = |idx, system: Option<&str>| {
            let prompt = Some(Prompt::Text("What is 1 + 1?".to_owned()));
            let system_prompt = system.map(str::to_owned);
            Task::new(TraceTask::new("T", TaskData { idx: Some(idx), prompt, system_prompt, ..TaskData::default() }))
        };
        let tasks = [task(0, Some("Be brief.")), task(1, None), task(2, Some("Be long."))];
        let player = Player::new(Arc::new(Nothing::default()));
        tasks.iter().for_each(|task| player.meet(task));
        let known = |system: &[&str], question: &str| {
            let mut conversation: Vec<Message> = system.iter().map(|text| Message::system(*text)).collect();
            conversation.push(Message::user(question));
            player.task_of(&conversation).and_then(|task| task.data.idx)
        };
        let question = "What is 1 + 1?";
        assert_eq!(known(&["Be brief."], question), Some(0));
        assert_eq!(known(&["Be long."], question), Some(2));
        assert_eq!(known(&[], question), Some(1));
        assert_eq!(known(&["You are a coding agent."], question), Some(1));
        assert_eq!(known(&["You are a coding agent.", "Be brief."], question), Some(1));
        assert_eq!(known(&["Be brief."], "Another question"), None);
    }
}
