//! Reading the rows, twice, and what makes them distinct.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::StreamExt as _;
use tokio::time::timeout;

use super::check::{Check, Checking, Row};
use crate::{
    taskset::{Task, Taskset, TasksetError},
    trace::TaskData,
};

/// The rows that are looked at.
#[derive(Default)]
pub(super) struct Loaded {
    pub(super) tasks: Vec<Task>,
    /// Whether there are no more.
    pub(super) all: bool,
}

/// Reads rows up to a limit, and finds those that share a key or an id.
pub(super) async fn load(taskset: &dyn Taskset, limit: u64, patience: Duration, checks: &mut Vec<Check>) -> Loaded {
    let mut loads = Checking::new("loads", "its rows load");
    let loaded = read(taskset, limit, patience).await.unwrap_or_else(|(loaded, problem)| {
        loads.fail(Row::NONE, problem);
        if !loaded.tasks.is_empty() {
            loads.note("what is behind it was not read");
        }
        loaded
    });
    loaded.tasks.iter().for_each(|_| loads.look());
    if loaded.tasks.is_empty() && !loads.has_failed() {
        loads.fail(Row::NONE, "there is no row at all");
    }
    checks.push(loads.done());

    let mut keys = Checking::new("keys", "keys are unique, and no row is there twice");
    let mut ids = Checking::new("ids", "ids are unique");
    let (mut keys_seen, mut ids_seen) = (HashMap::new(), HashMap::new());
    for task in &loaded.tasks {
        for (check, seen, what, value) in [
            (&mut keys, &mut keys_seen, "key", task.key.as_deref()),
            (&mut ids, &mut ids_seen, "id", task.data.id.as_deref()),
        ] {
            let Some(value) = value else { continue };
            check.look();
            let position = task.data.idx.unwrap_or_default();
            let first = *seen.entry(value).or_insert(position);
            if first != position {
                check.fail(task.into(), format!("has the {what} `{value}` of task {first}"));
            }
        }
    }
    let mut rows_seen = HashMap::new();
    for task in &loaded.tasks {
        // Its position is part of a row and of its key.
        let content = TaskData { idx: None, ..task.data.clone() }.hash();
        let position = task.data.idx.unwrap_or_default();
        let first = *rows_seen.entry(content).or_insert(position);
        if first != position {
            keys.warn(task.into(), format!("is task {first} once more"));
        }
    }
    if ids_seen.is_empty() {
        ids.note("no row has an id");
    }
    checks.extend([keys.done(), ids.done()]);
    loaded
}

/// Opens and reads it a second time, and finds the rows that differ.
pub(super) async fn load_again(
    open: &impl Fn() -> Result<Arc<dyn Taskset>, TasksetError>,
    loaded: &Loaded,
    patience: Duration,
    checks: &mut Vec<Check>,
) {
    let mut reload = Checking::new("reload", "a second load gives the same rows");
    let again = match open() {
        Ok(taskset) => {
            let limit = loaded.tasks.len() as u64 + u64::from(loaded.all);
            read(&*taskset, limit, patience).await.unwrap_or_else(|(again, problem)| {
                reload.fail(Row::NONE, problem);
                again
            })
        }
        Err(error) => {
            reload.fail(Row::NONE, format!("it does not open a second time: {error}"));
            return checks.push(reload.done());
        }
    };
    for (task, same) in loaded.tasks.iter().zip(&again.tasks) {
        reload.look();
        if task.hash != same.hash || task.key != same.key {
            reload.fail(task.into(), format!("is another row at the second load: {}", difference(task, same)));
        }
    }
    let (first, second) = (loaded.tasks.len(), again.tasks.len());
    if first != second && (loaded.all || second < first) {
        reload.fail(Row::NONE, format!("the first load gave {first} rows, the second {second}"));
    }
    checks.push(reload.done());
}

/// The first field that two rows differ in.
fn difference(one: &Task, other: &Task) -> String {
    let fields = |task: &Task| serde_json::to_value(&task.data).unwrap_or_default();
    let (one, other) = (fields(one), fields(other));
    let names = one.as_object().into_iter().chain(other.as_object()).flatten().map(|(name, _)| name);
    names.into_iter().find(|name| one.get(name) != other.get(name)).map_or_else(
        || "its key differs".to_owned(),
        |name| format!("`{name}` differs; seed what is random, and order what has no order"),
    )
}

/// Reads up to `limit` rows. What was read before a failure comes with it.
async fn read(taskset: &dyn Taskset, limit: u64, patience: Duration) -> Result<Loaded, (Loaded, String)> {
    let mut tasks = taskset.tasks();
    let mut loaded = Loaded::default();
    loop {
        // One more is asked for, to know whether that was all.
        match timeout(patience, tasks.next()).await {
            Ok(None) => {
                loaded.all = true;
                return Ok(loaded);
            }
            Ok(Some(_)) if loaded.tasks.len() as u64 >= limit => return Ok(loaded),
            Ok(Some(Ok(task))) => loaded.tasks.push(task),
            Ok(Some(Err(error))) => return Err((loaded, error.to_string())),
            Err(_) => {
                let problem = format!("row {} did not come within {patience:?}", loaded.tasks.len());
                return Err((loaded, problem));
            }
        }
    }
}
