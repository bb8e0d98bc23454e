//! The selection: which tasks of a taskset a run uses, read no further than needed.

use std::collections::HashSet;

use futures::{StreamExt, TryStreamExt, stream};

use super::{PythonRandom, Task, TaskStream, Taskset, TasksetError, TasksetSize};
use crate::config::{Select, TaskFilter};

/// The tasks that a selection picks, in the order `include`, `exclude`, `shuffle`, `skip`, `limit`.
///
/// Without a shuffle the taskset is read only as far as the last task picked. A shuffle is that of Python's
/// `random.Random(seed).shuffle` over the tasks kept so far, and holds one number for each of them; tasks themselves
/// are held only if they are picked. With a limit, a taskset of unknown size is read twice: once to count.
///
/// # Errors
/// When an endless taskset is not bounded, is to be shuffled, or is searched for names that may never come.
pub fn select(taskset: &dyn Taskset, select: &Select) -> Result<TaskStream, TasksetError> {
    check(taskset.size(), select)?;
    if !select.shuffle {
        let picked = kept(taskset, select).skip(to_usize(select.skip));
        return Ok(match select.limit {
            Some(limit) => picked.take(to_usize(limit)).boxed(),
            None => picked.boxed(),
        });
    }
    let count = kept_count(taskset.size(), select);
    // Streams do nothing until they are polled: the one that counts is polled only when the count is not known.
    let counting = kept(taskset, select);
    let reading = kept(taskset, select);
    let select = select.clone();
    let shuffled = async move {
        let tasks = match (count, select.limit) {
            (None, None) => shuffle_all(reading, &select).await?,
            (Some(count), _) => pick(reading, &permutation(count, &select)?).await?,
            (None, Some(_)) => {
                let count = counting.try_fold(0_u64, |count, _| std::future::ready(Ok(count + 1))).await?;
                pick(reading, &permutation(count, &select)?).await?
            }
        };
        Ok(stream::iter(tasks.into_iter().map(Ok)))
    };
    Ok(stream::once(shuffled).try_flatten().boxed())
}

/// How many tasks a selection picks, where that is known without reading: `None` for sizes or filters that only
/// reading decides.
pub fn planned(size: TasksetSize, select: &Select) -> Option<u64> {
    let limit = select.limit.unwrap_or(u64::MAX);
    match kept_count(size, select) {
        Some(count) => Some(count.saturating_sub(select.skip).min(limit)),
        None if size == TasksetSize::Infinite && !closed(&select.include) => select.limit,
        None => None,
    }
}

fn check(size: TasksetSize, select: &Select) -> Result<(), TasksetError> {
    if size != TasksetSize::Infinite || closed(&select.include) {
        return Ok(());
    }
    let refuse = |problem: &str| Err(TasksetError::Select(format!("this taskset is endless: {problem}")));
    if by_identity(&select.include) {
        return refuse(
            "looking for ids, keys or names may never end; name positions instead, for example with `--select.include.idx 0:1000`",
        );
    }
    let drops_the_rest = |range: &(u64, Option<u64>, u64)| range.1.is_none() && range.2 <= 1;
    if select.exclude.idx.iter().any(drops_the_rest) {
        return refuse("`select.exclude.idx` drops every task from some position on; close the range or use `limit`");
    }
    if select.shuffle {
        return refuse(
            "it cannot be shuffled as a whole; bound it first, for example with `--select.include.idx 0:1000`",
        );
    }
    if select.limit.is_none() {
        return refuse("say how many tasks to run with `-n` (`select.limit`)");
    }
    Ok(())
}

/// Names nothing.
fn is_empty(filter: &TaskFilter) -> bool {
    filter.idx.is_empty() && !by_identity(filter)
}

fn by_identity(filter: &TaskFilter) -> bool {
    !(filter.ids.is_empty() && filter.keys.is_empty() && filter.names.is_empty())
}

/// Names closed ranges of positions and nothing else: reading can stop behind the last one.
fn closed(filter: &TaskFilter) -> bool {
    !filter.idx.is_empty() && !by_identity(filter) && filter.idx.iter().all(|range| range.1.is_some())
}

/// One past the last position that can match, `u64::MAX` when it may lie anywhere.
fn stop(filter: &TaskFilter) -> u64 {
    if is_empty(filter) || by_identity(filter) {
        return u64::MAX;
    }
    filter.idx.iter().map(|range| range.1.unwrap_or(u64::MAX)).max().unwrap_or(u64::MAX)
}

/// The first position that can match.
fn start(filter: &TaskFilter) -> u64 {
    if by_identity(filter) { 0 } else { filter.idx.iter().map(|range| range.0).min().unwrap_or(0) }
}

fn names_position(filter: &TaskFilter, position: u64) -> bool {
    filter.idx.iter().any(|(start, stop, step)| {
        position >= *start && position < stop.unwrap_or(u64::MAX) && (position - start).is_multiple_of((*step).max(1))
    })
}

/// How many tasks `include` and `exclude` keep, where positions alone decide it.
fn kept_count(size: TasksetSize, select: &Select) -> Option<u64> {
    let Select { include, exclude, .. } = select;
    if by_identity(include) || by_identity(exclude) {
        return None;
    }
    let end = match size {
        TasksetSize::Finite(count) => count.min(stop(include)),
        TasksetSize::Infinite if closed(include) => stop(include),
        TasksetSize::Infinite | TasksetSize::Unknown => return None,
    };
    if is_empty(include) && is_empty(exclude) {
        return Some(end);
    }
    let keeps = |position: &u64| {
        (is_empty(include) || names_position(include, *position)) && !names_position(exclude, *position)
    };
    Some((start(include)..end).filter(keeps).count() as u64)
}

/// The tasks that `include` and `exclude` keep, in order, read no further than the last position that can match.
fn kept(taskset: &dyn Taskset, select: &Select) -> TaskStream {
    let (include, exclude) = (&select.include, &select.exclude);
    let first = start(include);
    let reach = stop(include).saturating_sub(first);
    let tasks = if first == 0 { taskset.tasks() } else { taskset.tasks_from(first) };
    let tasks = if reach == u64::MAX { tasks } else { tasks.take(to_usize(reach)).boxed() };
    let mut include = (!is_empty(include)).then(|| Matcher::new(include));
    let mut exclude = (!is_empty(exclude)).then(|| Matcher::new(exclude));
    if include.is_none() && exclude.is_none() {
        return tasks;
    }
    tasks
        .try_filter(move |task| {
            let included = include.as_mut().is_none_or(|include| include.names(task));
            let excluded = exclude.as_mut().is_some_and(|exclude| exclude.names(task));
            std::future::ready(included && !excluded)
        })
        .boxed()
}

/// A filter made ready for many tasks; says at the end which of its names no task had.
struct Matcher {
    filter: TaskFilter,
    identities: [HashSet<String>; 3],
    missing: HashSet<String>,
}

impl Matcher {
    fn new(filter: &TaskFilter) -> Self {
        let identities = [&filter.ids, &filter.keys, &filter.names].map(|names| names.iter().cloned().collect());
        let missing = filter.ids.iter().chain(&filter.keys).chain(&filter.names).cloned().collect();
        Self { filter: filter.clone(), identities, missing }
    }

    fn names(&mut self, task: &Task) -> bool {
        let own = [task.data.id.as_deref(), task.key.as_deref(), task.data.name.as_deref()];
        let mut named = task.data.idx.is_some_and(|position| names_position(&self.filter, position));
        for (wanted, own) in self.identities.iter().zip(own) {
            if let Some(own) = own.filter(|own| wanted.contains(*own)) {
                self.missing.remove(own);
                named = true;
            }
        }
        named
    }
}

impl Drop for Matcher {
    fn drop(&mut self) {
        if !self.missing.is_empty() {
            let mut missing: Vec<&str> = self.missing.iter().map(String::as_str).collect();
            missing.sort_unstable();
            tracing::debug!(?missing, "names in the selection that no task read so far has");
        }
    }
}

/// The positions, among the kept tasks, of those picked, in the order they run.
fn permutation(count: u64, select: &Select) -> Result<Vec<u32>, TasksetError> {
    let count = u32::try_from(count).map_err(|_| {
        TasksetError::Select(format!("cannot shuffle {count} tasks; bound them with `select.include.idx`"))
    })?;
    let mut positions: Vec<u32> = (0..count).collect();
    PythonRandom::new(select.seed).shuffle(&mut positions);
    positions.drain(..to_usize(select.skip).min(positions.len()));
    positions.truncate(select.limit.map_or(usize::MAX, to_usize));
    positions.shrink_to_fit();
    Ok(positions)
}

/// The tasks at these positions of the stream, in the order of the positions.
async fn pick(mut tasks: TaskStream, positions: &[u32]) -> Result<Vec<Task>, TasksetError> {
    let mut wanted: Vec<(u32, usize)> =
        positions.iter().enumerate().map(|(slot, position)| (*position, slot)).collect();
    wanted.sort_unstable();
    let mut picked: Vec<Option<Task>> = vec![None; positions.len()];
    let mut wanted = wanted.into_iter().peekable();
    let mut position = 0;
    while wanted.peek().is_some() {
        let Some(task) = tasks.next().await else { break };
        let task = task?;
        if let Some((_, slot)) = wanted.next_if(|(next, _)| *next == position) {
            picked[slot] = Some(task);
        }
        position += 1;
    }
    Ok(picked.into_iter().flatten().collect())
}

async fn shuffle_all(tasks: TaskStream, select: &Select) -> Result<Vec<Task>, TasksetError> {
    let mut tasks: Vec<Task> = tasks.try_collect().await?;
    PythonRandom::new(select.seed).shuffle(&mut tasks);
    tasks.drain(..to_usize(select.skip).min(tasks.len()));
    Ok(tasks)
}

fn to_usize(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    };

    use proptest::prelude::*;

    use super::*;
    use crate::{rubric::Rubric, taskset::generated, trace::TaskData};

    /// Numbered tasks that count how many were made.
    struct Numbers {
        size: TasksetSize,
        count: Option<u64>,
        made: Arc<AtomicU64>,
        rubric: Rubric,
    }

    fn numbers(size: TasksetSize, count: u64) -> Numbers {
        let count = (size != TasksetSize::Infinite).then_some(count);
        Numbers { size, count, made: Arc::default(), rubric: Rubric::new() }
    }

    impl Taskset for Numbers {
        fn tasks(&self) -> TaskStream {
            let made = Arc::clone(&self.made);
            generated("Number", 0, self.count, move |idx| {
                made.fetch_add(1, Ordering::Relaxed);
                TaskData { id: Some(format!("id{idx}")), name: Some(format!("name{}", idx % 3)), ..TaskData::default() }
            })
        }

        fn size(&self) -> TasksetSize {
            self.size
        }

        fn rubric(&self) -> &Rubric {
            &self.rubric
        }
    }

    async fn positions(taskset: &Numbers, select_with: &Select) -> Vec<u64> {
        let tasks: Vec<Task> = select(taskset, select_with).expect("allowed").try_collect().await.expect("tasks");
        tasks.iter().filter_map(|task| task.data.idx).collect()
    }

    fn idx(ranges: &[(u64, Option<u64>, u64)]) -> TaskFilter {
        TaskFilter { idx: ranges.to_vec(), ..TaskFilter::default() }
    }

    #[tokio::test]
    async fn only_what_is_needed_is_read() {
        let reads = async |size, select_with: Select| {
            let taskset = numbers(size, 1000);
            let picked = positions(&taskset, &select_with).await;
            (picked, taskset.made.load(Ordering::Relaxed))
        };
        let limit = |limit| Select { limit: Some(limit), ..Select::default() };
        assert_eq!(reads(TasksetSize::Infinite, limit(3)).await, (vec![0, 1, 2], 3));
        assert_eq!(reads(TasksetSize::Unknown, Select { skip: 5, ..limit(2) }).await, (vec![5, 6], 7));
        let closed = Select { include: idx(&[(4, Some(6), 1), (8, Some(9), 1)]), ..Select::default() };
        assert_eq!(reads(TasksetSize::Infinite, closed.clone()).await, (vec![4, 5, 8], 9));
        let shuffled = Select { shuffle: true, seed: 3, ..closed };
        assert_eq!(reads(TasksetSize::Infinite, shuffled).await.1, 9);
        // A known size is read up to the last task picked, an unknown one is counted first.
        let few = Select { shuffle: true, ..limit(2) };
        let (picked, read) = reads(TasksetSize::Finite(1000), few.clone()).await;
        assert_eq!(read, picked.iter().max().expect("two") + 1);
        assert_eq!(reads(TasksetSize::Unknown, few).await, (picked, 1000 + read));
    }

    #[test]
    fn an_endless_taskset_is_refused_what_never_ends() {
        let refused = |select_with: Select| {
            let error = select(&numbers(TasksetSize::Infinite, 0), &select_with).err();
            error.map(|error| error.to_string()).unwrap_or_default()
        };
        let limit = Select { limit: Some(3), ..Select::default() };
        let named = TaskFilter { names: vec!["name1".to_owned()], ..TaskFilter::default() };
        assert!(refused(Select::default()).contains("`-n`"));
        assert!(refused(Select { shuffle: true, ..limit.clone() }).contains("shuffled"));
        assert!(refused(Select { include: named.clone(), ..limit.clone() }).contains("may never end"));
        assert!(refused(Select { exclude: idx(&[(10, None, 1)]), ..limit.clone() }).contains("drops every task"));
        assert_eq!(refused(Select { exclude: named, ..limit.clone() }), "");
        assert_eq!(refused(Select { include: idx(&[(10, None, 2)]), ..limit }), "");
    }

    fn any_filter() -> impl Strategy<Value = TaskFilter> {
        let range = (0_u64..40, prop::option::of(0_u64..60), 1_u64..5);
        let ids = prop::collection::vec((0_u64..50).prop_map(|id| format!("id{id}")), 0..3);
        let names = prop::collection::vec((0_u64..4).prop_map(|name| format!("name{name}")), 0..2);
        (prop::collection::vec(range, 0..3), ids, names).prop_map(|(idx, ids, names)| TaskFilter {
            idx,
            ids,
            names,
            keys: Vec::new(),
        })
    }

    fn any_select() -> impl Strategy<Value = Select> {
        (any_filter(), any_filter(), any::<bool>(), 0_u64..5, 0_u64..20, prop::option::of(1_u64..30)).prop_map(
            |(include, exclude, shuffle, seed, skip, limit)| Select { include, exclude, shuffle, seed, skip, limit },
        )
    }

    /// The whole list, filtered and shuffled in memory.
    fn plainly(count: u64, select_with: &Select) -> Vec<u64> {
        let names = |filter: &TaskFilter, position: u64| {
            names_position(filter, position)
                || filter.ids.contains(&format!("id{position}"))
                || filter.names.contains(&format!("name{}", position % 3))
        };
        let mut kept: Vec<u64> = (0..count)
            .filter(|position| is_empty(&select_with.include) || names(&select_with.include, *position))
            .filter(|position| !names(&select_with.exclude, *position))
            .collect();
        if select_with.shuffle {
            PythonRandom::new(select_with.seed).shuffle(&mut kept);
        }
        let limit = select_with.limit.unwrap_or(u64::MAX);
        kept.into_iter().skip(to_usize(select_with.skip)).take(to_usize(limit)).collect()
    }

    proptest! {
        #[test]
        fn every_way_of_reading_picks_the_same_tasks(count in 0_u64..50, select_with in any_select()) {
            let expected = plainly(count, &select_with);
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            for size in [TasksetSize::Finite(count), TasksetSize::Unknown] {
                let picked = runtime.block_on(positions(&numbers(size, count), &select_with));
                prop_assert_eq!(&picked, &expected);
                if let Some(planned) = planned(size, &select_with) {
                    prop_assert_eq!(planned, expected.len() as u64);
                }
            }
        }
    }
}
