//! From rows to a stream of tasks.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream};

use super::{Row, Source, Table};
use crate::{
    taskset::{TaskStream, TasksetError},
    trace::{TaskData, TraceTask},
};

/// Most rows read in one bite.
const BITE_ROWS: usize = 256;
/// A bite ends after this long, so that large rows do not pile up.
const BITE_TIME: Duration = Duration::from_millis(5);

/// The tasks of a taskset of class `kind` whose rows come from files, one after the other. `locate` finds them when the
/// stream is first polled, on a blocking thread; `convert` makes the row of the taskset or says what is wrong with it.
/// The position (`idx`) and the identity are set here. Ends after the first error; files without a row are one.
pub fn tasks(
    kind: &str,
    locate: impl FnOnce() -> Result<Vec<Source>, TasksetError> + Send + 'static,
    convert: impl Fn(&Row) -> Result<TaskData, String> + Send + Sync + 'static,
) -> TaskStream {
    tasks_of(kind, move || locate().map(Table::of), convert)
}

/// The same for rows that `open` finds, on a blocking thread.
pub fn tasks_of(
    kind: &str,
    open: impl FnOnce() -> Result<Table, TasksetError> + Send + 'static,
    convert: impl Fn(&Row) -> Result<TaskData, String> + Send + Sync + 'static,
) -> TaskStream {
    let kind = kind.to_owned();
    let table = stream::once(async move { blocking(open).await.and_then(|opened| opened) });
    let convert = Arc::new(convert);
    table
        .flat_map(move |table| match table {
            Ok(table) => {
                let convert = Arc::clone(&convert);
                bites(Reader { kind: kind.clone(), table, convert, position: 0, bite: 1 })
            }
            Err(error) => stream::iter([Err(error)]).boxed(),
        })
        .boxed()
}

fn bites(reader: Reader<impl Fn(&Row) -> Result<TaskData, String> + Send + Sync + 'static>) -> TaskStream {
    stream::unfold(Some(reader), |reader| async move {
        let mut reader = reader?;
        match blocking(move || (reader.bite(), reader)).await {
            Ok((Bite { tasks, done }, reader)) => Some((stream::iter(tasks), (!done).then_some(reader))),
            Err(error) => Some((stream::iter(vec![Err(error)]), None)),
        }
    })
    .flatten()
    .boxed()
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, TasksetError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| TasksetError::Source(format!("reading the data was cut short: {error}")))
}

struct Reader<F> {
    kind: String,
    table: Table,
    convert: Arc<F>,
    position: u64,
    /// Rows of the next bite: few at first, so that the first task comes at once.
    bite: usize,
}

struct Bite {
    tasks: Vec<Result<Arc<TraceTask>, TasksetError>>,
    done: bool,
}

impl<F: Fn(&Row) -> Result<TaskData, String>> Reader<F> {
    fn bite(&mut self) -> Bite {
        let begun = Instant::now();
        let mut tasks = Vec::with_capacity(self.bite);
        while tasks.len() < self.bite && (tasks.is_empty() || begun.elapsed() < BITE_TIME) {
            match self.next() {
                None => {
                    if self.position == 0 {
                        tasks.push(Err(TasksetError::Source(format!("there are no rows in {}", self.table.name))));
                    }
                    return Bite { tasks, done: true };
                }
                Some(Err(error)) => {
                    tasks.push(Err(error));
                    return Bite { tasks, done: true };
                }
                Some(Ok(task)) => tasks.push(Ok(Arc::new(task))),
            }
        }
        self.bite = (self.bite * 2).min(BITE_ROWS);
        Bite { tasks, done: false }
    }

    fn next(&mut self) -> Option<Result<TraceTask, TasksetError>> {
        let (file, row) = match self.table.rows.next()? {
            Ok(found) => found,
            Err(error) => return Some(Err(error)),
        };
        let converted = (self.convert)(&row).map(|mut data| {
            data.idx = Some(self.position);
            self.position += 1;
            TraceTask::new(self.kind.as_str(), data)
        });
        Some(converted.map_err(|problem| TasksetError::Row { file: file.to_string(), row: row.number, problem }))
    }
}
