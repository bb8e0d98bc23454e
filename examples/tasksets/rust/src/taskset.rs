//! Solve small word problems: the rows, what they ask, and how a reply is scored.

use std::sync::Arc;

use futures::future::{BoxFuture, ready};
use rollhouse::{
    config::Section,
    rubric::{
        Answer, Expected, Rubric, Score, ScoreContext, compare,
        text::{Tolerance, numeric},
    },
    taskset::{
        Shipped, TaskStream, Taskset, TasksetError, TasksetSize,
        dataset::{self, Row, Source},
    },
    trace::{Fault, FaultClass, Message, Prompt, TaskData, TraceTask},
};

/// How the program knows this taskset.
pub const SHIPPED: Shipped =
    Shipped { id: "word-problems", summary: "Solve small word problems", readme: include_str!("../README.md"), open };

/// The class name of its tasks in traces.
const KIND: &str = "WordProblemsTask";
const DATA: &str = include_str!("../data.jsonl");
const INSTRUCTIONS: &str = "Think step by step. End with a line that has nothing but #### and the number.";

struct WordProblems {
    rubric: Rubric,
}

/// Opens the taskset. Keys of its own are read here: `section.doc("What it means").get_or("seed", 0)`.
fn open(_section: &mut Section<'_>) -> Result<Arc<dyn Taskset>, TasksetError> {
    // What a reply earns: the number behind the last `####` is that of the field `answer`.
    let number = Answer::whole().strip_think().after_hashes();
    let correct =
        compare(number, Expected::field("answer"), |found, expected| numeric(found, expected, Tolerance::EXACT));
    // What is recorded beside it and earns nothing.
    let rubric = Rubric::new().reward("correct", 1.0, correct).metric("words", words);
    Ok(Arc::new(WordProblems { rubric }))
}

fn words(context: ScoreContext<'_>) -> Result<Score, Fault> {
    Ok(Score::from(context.trace.last_reply().split_whitespace().count() as f64))
}

/// A task from a line of the file.
fn task(row: &Row) -> Result<TaskData, String> {
    let mut data = TaskData {
        id: Some(row.text("id")?.to_owned()),
        prompt: Some(Prompt::Text(format!("{}\n\n{INSTRUCTIONS}", row.text("question")?))),
        ..TaskData::default()
    };
    data.extra.insert("answer".to_owned(), row.text("answer")?.into());
    Ok(data)
}

impl Taskset for WordProblems {
    fn tasks(&self) -> TaskStream {
        dataset::tasks(KIND, || Ok(vec![Source::Shipped { name: "data.jsonl", text: DATA }]), task)
    }

    fn size(&self) -> TasksetSize {
        TasksetSize::Finite(DATA.lines().count() as u64)
    }

    fn rubric(&self) -> &Rubric {
        &self.rubric
    }

    /// What a perfect model replies; validation and the simulator play with it.
    fn reference<'a>(
        &'a self,
        task: &'a TraceTask,
        _conversation: &'a [Message],
    ) -> BoxFuture<'a, Result<Option<String>, Fault>> {
        let answer = task.data.text("answer").map(|answer| Some(format!("#### {answer}")));
        Box::pin(ready(answer.ok_or_else(|| Fault::new(FaultClass::Task, "the row has no `answer`"))))
    }
}
