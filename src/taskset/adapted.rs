//! A taskset as a run has it: under another system prompt, judged by judges of the run's own, weighed otherwise.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use futures::{StreamExt as _, future::BoxFuture};

use super::{Hooks, Task, TaskStream, Taskset, TasksetSize, User};
use crate::{
    rubric::{Rubric, RubricError, judge::JudgeSpec},
    trace::{Fault, Message, TraceTask},
};

/// A view of a taskset that differs from it in its system prompt or its rubric; all else is as it is.
pub struct Adapted {
    taskset: Arc<dyn Taskset>,
    instruction: Option<Instruction>,
    rubric: Option<Rubric>,
}

/// A system prompt in the place of every task's own.
struct Instruction {
    text: Arc<str>,
    /// What the replaced prompt of the tasks read so far was, for the taskset's own solver.
    replaced: Arc<OnceLock<Option<String>>>,
}

impl Adapted {
    /// Every task with its system prompt replaced; hashes and keys are those of the changed rows.
    pub fn with_system_prompt(taskset: Arc<dyn Taskset>, text: &str) -> Self {
        let instruction = Instruction { text: text.into(), replaced: Arc::default() };
        Self { taskset, instruction: Some(instruction), rubric: None }
    }

    /// The taskset also scored by judges that it does not have itself.
    ///
    /// # Errors
    /// When a judge has the name of a reward or metric that is there.
    pub fn with_judges(taskset: Arc<dyn Taskset>, judges: Vec<JudgeSpec>) -> Result<Self, RubricError> {
        let rubric = judges.into_iter().fold(taskset.rubric().clone(), Rubric::judge).build()?;
        Ok(Self { taskset, instruction: None, rubric: Some(rubric) })
    }

    /// The taskset with other weights of its rewards, by name.
    ///
    /// # Errors
    /// When the taskset has no such reward, or a weight is no number.
    pub fn with_weights(taskset: Arc<dyn Taskset>, weights: &BTreeMap<String, f64>) -> Result<Self, RubricError> {
        let mut rubric = taskset.rubric().clone();
        for (name, weight) in weights {
            rubric.reweight(name, *weight)?;
        }
        Ok(Self { taskset, instruction: None, rubric: Some(rubric) })
    }

    fn instruct(&self, tasks: TaskStream) -> TaskStream {
        match &self.instruction {
            Some(instruction) => instruction.put_in(tasks),
            None => tasks,
        }
    }

    /// A conversation as the taskset's own solver knows it.
    fn restored<'a>(&self, conversation: &'a [Message]) -> Cow<'a, [Message]> {
        self.instruction.as_ref().map_or(Cow::Borrowed(conversation), |instruction| instruction.restored(conversation))
    }
}

impl Instruction {
    fn put_in(&self, tasks: TaskStream) -> TaskStream {
        let (text, replaced) = (Arc::clone(&self.text), Arc::clone(&self.replaced));
        tasks
            .map(move |task| {
                task.map(|task| {
                    replaced.get_or_init(|| task.data.system_prompt.clone());
                    instructed(&task, &text)
                })
            })
            .boxed()
    }

    /// A conversation with the taskset's own system prompt, which may be none.
    fn restored<'a>(&self, conversation: &'a [Message]) -> Cow<'a, [Message]> {
        let ([Message::System(_), rest @ ..], Some(replaced)) = (conversation, self.replaced.get()) else {
            return Cow::Borrowed(conversation);
        };
        Cow::Owned(replaced.as_ref().map(Message::system).into_iter().chain(rest.iter().cloned()).collect())
    }
}

fn instructed(task: &Task, system_prompt: &str) -> Task {
    let mut data = task.data.clone();
    data.system_prompt = Some(system_prompt.to_owned());
    let mut changed = TraceTask::new(task.kind.clone(), data);
    // A key of the taskset's own names the task whatever its prompt; one that is the hash follows the row.
    if task.key != task.hash {
        changed.key.clone_from(&task.key);
    }
    Arc::new(changed)
}

impl Taskset for Adapted {
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
        self.rubric.as_ref().unwrap_or_else(|| self.taskset.rubric())
    }

    fn user(&self, task: &TraceTask) -> Option<Box<dyn User>> {
        self.taskset.user(task)
    }

    fn hooks(&self) -> Option<Arc<dyn Hooks>> {
        self.taskset.hooks()
    }

    fn solve(&self, conversation: &[Message]) -> Option<String> {
        self.taskset.solve(&self.restored(conversation))
    }

    fn reference<'a>(
        &'a self,
        task: &'a TraceTask,
        conversation: &'a [Message],
    ) -> BoxFuture<'a, Result<Option<String>, Fault>> {
        Box::pin(async move { self.taskset.reference(task, &self.restored(conversation)).await })
    }
}
