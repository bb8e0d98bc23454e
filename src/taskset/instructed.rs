//! A taskset under another system prompt.

use std::sync::{Arc, OnceLock};

use futures::StreamExt as _;

use super::{Task, TaskStream, Taskset, TasksetSize, User};
use crate::{
    rubric::Rubric,
    trace::{Message, TraceTask},
};

/// Every task of a taskset with its system prompt replaced; hashes and keys are those of the changed rows.
pub struct Instructed {
    taskset: Arc<dyn Taskset>,
    system_prompt: Arc<str>,
    /// What the replaced prompt of the tasks read so far was, for the taskset's own solver.
    replaced: Arc<OnceLock<Option<String>>>,
}

impl Instructed {
    /// A view of a taskset.
    pub fn new(taskset: Arc<dyn Taskset>, system_prompt: &str) -> Self {
        Self { taskset, system_prompt: system_prompt.into(), replaced: Arc::default() }
    }

    fn instruct(&self, tasks: TaskStream) -> TaskStream {
        let system_prompt = Arc::clone(&self.system_prompt);
        let replaced = Arc::clone(&self.replaced);
        tasks
            .map(move |task| {
                task.map(|task| {
                    replaced.get_or_init(|| task.data.system_prompt.clone());
                    with_prompt(&task, &system_prompt)
                })
            })
            .boxed()
    }
}

fn with_prompt(task: &Task, system_prompt: &str) -> Task {
    let mut data = task.data.clone();
    data.system_prompt = Some(system_prompt.to_owned());
    let mut changed = TraceTask::new(task.kind.clone(), data);
    // A key of the taskset's own names the task whatever its prompt; one that is the hash follows the row.
    if task.key != task.hash {
        changed.key.clone_from(&task.key);
    }
    Arc::new(changed)
}

impl Taskset for Instructed {
    fn tasks(&self) -> TaskStream {
        self.instruct(self.taskset.tasks())
    }

    fn tasks_from(&self, position: u64) -> TaskStream {
        self.instruct(self.taskset.tasks_from(position))
    }

    fn size(&self) -> TasksetSize {
        self.taskset.size()
    }

    fn rubric(&self) -> &Rubric {
        self.taskset.rubric()
    }

    fn user(&self, task: &TraceTask) -> Option<Box<dyn User>> {
        self.taskset.user(task)
    }

    fn solve(&self, conversation: &[Message]) -> Option<String> {
        let [Message::System(_), rest @ ..] = conversation else { return self.taskset.solve(conversation) };
        let original = self.replaced.get()?.as_ref().map(Message::system);
        let conversation: Vec<Message> = original.into_iter().chain(rest.iter().cloned()).collect();
        self.taskset.solve(&conversation)
    }
}
