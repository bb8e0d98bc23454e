//! The rows of a script, read as they are asked for.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, stream};
use serde::{Deserialize, Serialize};

use super::{
    Call, Dedicated, Lane,
    script::{Answer, AuthorError, Script},
};
use crate::{
    taskset::{Task, TaskStream, TasksetError, TasksetSize},
    telemetry::aside,
    trace::{TaskData, TraceTask},
};

/// Most rows of a batch; the first has one, so that the first task comes at once.
const MOST_ROWS: usize = 256;
/// A batch ends after this long, in seconds, so that slow rows come one by one.
const BATCH_SECONDS: f64 = 0.05;
/// Or with so much text: rows with pictures in them would be too long for an answer, and wait here for nobody.
const BATCH_CHARACTERS: usize = 4 << 20;
/// How long a batch may take where `load` says nothing: it may fetch data first.
const PATIENCE: Duration = Duration::from_secs(600);

/// The tasks of a script from a position on, of a class. Each stream has a worker of its own, which ends with it.
pub(super) fn tasks(script: &Arc<Script>, kind: &str, size: TasksetSize, start: u64) -> TaskStream {
    let reader = Reader {
        script: Arc::clone(script),
        kind: kind.to_owned(),
        size,
        worker: script.workers.dedicated(),
        position: start,
        begun: false,
        count: 1,
    };
    stream::unfold(Some(reader), |reader| async move {
        let mut reader = reader?;
        let (tasks, done) = reader.batch().await;
        Some((stream::iter(tasks), (!done).then_some(reader)))
    })
    .flatten()
    .boxed()
}

struct Reader {
    script: Arc<Script>,
    kind: String,
    size: TasksetSize,
    worker: Dedicated,
    /// Of the next row.
    position: u64,
    begun: bool,
    count: usize,
}

#[derive(Serialize)]
struct Wanted {
    count: usize,
    seconds: f64,
    characters: usize,
    skip: u64,
}

#[derive(Deserialize)]
struct Batch {
    /// Each row as JSON text, so that no number in it is rounded on the way.
    rows: Vec<String>,
    error: Option<AuthorError>,
    done: bool,
}

impl Reader {
    async fn batch(&mut self) -> (Vec<Result<Task, TasksetError>>, bool) {
        let batch = match self.ask().await {
            Ok(batch) => batch,
            Err(error) => return (vec![Err(error)], true),
        };
        self.count = (self.count * 2).min(MOST_ROWS);
        let mut tasks: Vec<Result<Task, TasksetError>> = Vec::with_capacity(batch.rows.len());
        let mut failed = aside(batch.rows.len() > 8, || {
            for row in &batch.rows {
                match self.task(row) {
                    Ok(task) => tasks.push(Ok(task)),
                    Err(error) => return Some(error),
                }
            }
            None
        });
        if let (None, Some(error)) = (&failed, &batch.error) {
            failed = Some(self.refused(&error.in_full()));
        }
        if batch.done && failed.is_none() {
            failed = self.ended();
        }
        let done = batch.done || failed.is_some();
        tasks.extend(failed.map(Err));
        (tasks, done)
    }

    async fn ask(&mut self) -> Result<Batch, TasksetError> {
        let skip = if std::mem::replace(&mut self.begun, true) { 0 } else { self.position };
        let wanted = Wanted { count: self.count, seconds: BATCH_SECONDS, characters: BATCH_CHARACTERS, skip };
        let body = serde_json::to_vec(&wanted).map_err(|error| self.refused(&error.to_string()))?;
        let own = self.script.description.load.timeout;
        let deadline = own.and_then(|own| Duration::try_from_secs_f64(own).ok()).unwrap_or(PATIENCE);
        let call = Call { op: "rows", body: &body, deadline, lane: Lane::Exclusive };
        match self.worker.call::<Answer<Batch>>(call).await {
            Ok(Answer::Value(batch)) => Ok(batch),
            Ok(Answer::Error(error)) => Err(self.refused(&format!("@load: {}", error.in_full()))),
            Err(failure) => {
                let fault = failure.into_fault(crate::trace::FaultClass::Task, &format!("row {}", self.position));
                let lines: Vec<String> = std::iter::once(fault.message).chain(fault.causes).collect();
                Err(self.refused(&lines.join("\n")))
            }
        }
    }

    fn task(&mut self, row: &str) -> Result<Task, TasksetError> {
        let position = self.position;
        let wrong = |problem: String| TasksetError::Source(format!("{}: row {position}: {problem}", self.script.name));
        let mut data: TaskData = serde_json::from_str(row).map_err(|error| wrong(said(&error)))?;
        if data.idx.is_some_and(|own| own != position) {
            return Err(wrong("`idx` is the position of the row and is set for it: leave it out".to_owned()));
        }
        data.idx = Some(position);
        self.position += 1;
        Ok(Arc::new(TraceTask::new(self.kind.clone(), data)))
    }

    /// What is wrong with the rows ending here.
    fn ended(&self) -> Option<TasksetError> {
        match self.size {
            TasksetSize::Infinite => {
                Some(self.refused(&format!("@load(infinite=True) ended after {} rows", self.position)))
            }
            TasksetSize::Finite(count) if self.position < count => {
                Some(self.refused(&format!("@load(size=…) says {count} rows, but there are {}", self.position)))
            }
            _ if self.position == 0 => Some(self.refused("@load gave no rows")),
            _ => None,
        }
    }

    fn refused(&self, problem: &str) -> TasksetError {
        TasksetError::Source(format!("{}: {problem}", self.script.name))
    }
}

/// The parser's words without its line and column, which mean nothing in a row.
fn said(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}
