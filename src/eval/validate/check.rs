//! Checks in the making and when they are done.

use serde::Serialize;

use crate::{rubric::text::excerpt, taskset::Task, trace::Message};

/// One thing that was looked at, over all rows.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Its name, a word.
    pub name: &'static str,
    /// What holds when it passes.
    pub promise: &'static str,
    /// What came of it.
    pub outcome: Outcome,
    /// How many rows, replies or lines it looked at.
    pub looked_at: u64,
    /// How many rows failed.
    pub failed: u64,
    /// What else is to be known, such as why it does not apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Every row that failed or is doubtful.
    pub findings: Vec<Finding>,
}

/// What came of a check, from the best to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// There was nothing to look at.
    NotApplicable,
    /// All is well.
    Passed,
    /// Something is doubtful.
    Warned,
    /// Something is wrong.
    Failed,
}

/// A row that failed or is doubtful.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// Position of the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<u64>,
    /// Durable id of the task, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Key of the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// How its prompt begins: what the user says last of it, at most 60 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// What is wrong, and what is expected.
    pub problem: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Perhaps wrong.
    Warning,
    /// Wrong.
    Failure,
}

/// The row that a finding is about.
#[derive(Clone, Copy)]
pub(super) struct Row<'a>(Option<&'a Task>);

impl Row<'_> {
    /// No row: the taskset as a whole, or a line of a file that the problem names.
    pub(super) const NONE: Self = Self(None);
}

impl<'a> From<&'a Task> for Row<'a> {
    fn from(task: &'a Task) -> Self {
        Self(Some(task))
    }
}

/// A check in the making.
pub(super) struct Checking {
    name: &'static str,
    promise: &'static str,
    looked_at: u64,
    note: Option<String>,
    findings: Vec<Finding>,
}

impl Checking {
    pub(super) fn new(name: &'static str, promise: &'static str) -> Self {
        Self { name, promise, looked_at: 0, note: None, findings: Vec::new() }
    }

    /// Counts one more row as looked at.
    pub(super) fn look(&mut self) {
        self.looked_at += 1;
    }

    pub(super) fn note(&mut self, text: impl Into<String>) {
        self.note.get_or_insert(text.into());
    }

    pub(super) fn fail(&mut self, row: Row<'_>, problem: impl Into<String>) {
        self.find(Level::Failure, row, problem.into());
    }

    pub(super) fn warn(&mut self, row: Row<'_>, problem: impl Into<String>) {
        self.find(Level::Warning, row, problem.into());
    }

    fn find(&mut self, level: Level, row: Row<'_>, problem: String) {
        let data = row.0.map(|task| &task.data);
        self.findings.push(Finding {
            level,
            task: data.and_then(|data| data.idx),
            id: data.and_then(|data| data.id.clone()),
            key: row.0.and_then(|task| task.key.clone()),
            prompt: row.0.and_then(beginning),
            problem,
        });
    }

    /// Whether something is wrong so far.
    pub(super) fn has_failed(&self) -> bool {
        self.findings.iter().any(|finding| finding.level == Level::Failure)
    }

    pub(super) fn done(self) -> Check {
        let failures = || self.findings.iter().filter(|finding| finding.level == Level::Failure);
        let mut rows: Vec<_> = failures().map(|finding| (finding.task, finding.key.as_deref())).collect();
        let nameless = rows.iter().filter(|row| row.0.is_none()).count();
        rows.retain(|row| row.0.is_some());
        rows.sort_unstable();
        rows.dedup();
        let failed = (rows.len() + nameless) as u64;
        let outcome = match (failed, self.findings.is_empty(), self.looked_at) {
            (1.., ..) => Outcome::Failed,
            (0, false, _) => Outcome::Warned,
            (0, true, 0) => Outcome::NotApplicable,
            (0, true, _) => Outcome::Passed,
        };
        let Self { name, promise, looked_at, note, findings } = self;
        Check { name, promise, outcome, looked_at, failed, note, findings }
    }
}

/// What an author knows a row by, whose file and line a task does not carry.
fn beginning(task: &Task) -> Option<String> {
    let opening = task.data.opening();
    let said = opening.iter().rev().find(|message| matches!(message, Message::User(_)))?.text();
    Some(excerpt(said.trim())).filter(|said| !said.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_decides() {
        let check = || Checking::new("name", "promise");
        assert_eq!(check().done().outcome, Outcome::NotApplicable);
        let mut looked = check();
        looked.look();
        assert_eq!(looked.done().outcome, Outcome::Passed);
        let mut warned = check();
        warned.warn(Row::NONE, "doubtful");
        assert_eq!((warned.done().outcome), Outcome::Warned);
        let mut failed = check();
        failed.warn(Row::NONE, "doubtful");
        failed.fail(Row::NONE, "wrong");
        let failed = failed.done();
        assert_eq!((failed.outcome, failed.failed, failed.findings.len()), (Outcome::Failed, 1, 2));
    }

    #[test]
    fn a_row_counts_as_failed_once() {
        let task =
            Task::new(crate::trace::TraceTask::new("T", crate::trace::TaskData { idx: Some(3), ..Default::default() }));
        let mut check = Checking::new("name", "promise");
        check.fail((&task).into(), "one reason");
        check.fail((&task).into(), "another");
        let check = check.done();
        assert_eq!((check.failed, check.findings[0].task), (1, Some(3)));
    }
}
