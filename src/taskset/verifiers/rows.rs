//! The rows of an opened package, made as they are asked for: Python waits while nobody reads.

use futures::{StreamExt as _, stream};
use serde_json::{Value, json};

use super::{
    BridgeError, Package,
    bridge::{Line, Process, unreadable},
    find::IMPORT,
};
use crate::{
    runtime,
    taskset::{Task, TaskStream, TasksetError},
    telemetry::aside,
    trace::TraceTask,
};

/// Most rows that are handed on at once.
const MOST_ROWS: usize = 256;

/// The tasks of a checked block from a position on. Each stream has a process of its own, which ends with it.
pub(super) fn tasks(package: &Package, block: &Value, start: u64) -> TaskStream {
    let reader = Reader {
        name: package.id.clone(),
        // Opened already, if nobody took it before.
        process: package.kept.take(),
        package: package.clone(),
        request: Some(json!({"op": "tasks", "env": block, "skip": start})),
        position: start,
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
    name: String,
    package: Package,
    process: Option<Process>,
    /// Sent with the first batch.
    request: Option<Value>,
    /// Of the next row.
    position: u64,
}

impl Reader {
    /// The rows that are ready, at least one; whether they were the last.
    async fn batch(&mut self) -> (Vec<Result<Task, TasksetError>>, bool) {
        let lines = match self.lines().await {
            Ok(lines) => lines,
            Err(error) => return (vec![Err(self.refused(&error))], true),
        };
        aside(lines.len() > 8, || {
            let mut tasks = Vec::with_capacity(lines.len());
            for line in &lines {
                match self.task(line) {
                    Some(Ok(task)) => tasks.push(Ok(task)),
                    Some(Err(error)) => {
                        tasks.push(Err(error));
                        return (tasks, true);
                    }
                    None => return (tasks, true),
                }
            }
            (tasks, false)
        })
    }

    async fn lines(&mut self) -> Result<Vec<Vec<u8>>, BridgeError> {
        let (before, request) = (self.process.take(), self.request.take());
        let (interpreter, name) = (self.package.interpreter.clone(), self.name.clone());
        let read = runtime::run(async move {
            let mut process = match before {
                Some(process) => process,
                None => Process::start(&interpreter, &name).await?,
            };
            if let Some(request) = request {
                process.send(&request).await?;
            }
            let mut lines = Vec::new();
            loop {
                let mut line = Vec::new();
                let more = process.line(&mut line, IMPORT).await?;
                lines.push(line);
                if !more || lines.len() == MOST_ROWS {
                    return Ok((process, lines));
                }
            }
        });
        let (process, lines) = read.await.map_err(|error| BridgeError::new(error.to_string())).flatten()?;
        self.process = Some(process);
        Ok(lines)
    }

    /// The task of a line; `None` at the end.
    fn task(&mut self, line: &[u8]) -> Option<Result<Task, TasksetError>> {
        let position = self.position;
        let wrong = |problem: String| TasksetError::Source(format!("{}: row {position}: {problem}", self.name));
        let line = match serde_json::from_slice::<Line<'_>>(line) {
            Ok(line) => line,
            Err(error) => return Some(Err(wrong(unreadable(line, &error).to_string()))),
        };
        if let Some(told) = line.error {
            let output = self.process.as_ref().map(Process::told).unwrap_or_default();
            return Some(Err(wrong(told.into_error(output).to_string())));
        }
        if line.end.is_some() {
            return None;
        }
        let text = line.row.map_or("null", |row| row.get());
        self.position += 1;
        Some(serde_json::from_str::<TraceTask>(text).map(Task::new).map_err(|error| wrong(error.to_string())))
    }

    fn refused(&self, error: &BridgeError) -> TasksetError {
        TasksetError::Source(format!("{}: row {}: {error}", self.name, self.position))
    }
}
