//! Scoring the rollouts of a run anew: the same transcripts under the rubric, the keys and the rows of today.
//!
//! What enters is a run folder that is only read; what leaves is what changed, and a run folder of its own where one is
//! asked for. Rollouts are taken task by task, in the order in which the tasks first stand in the source, and written in
//! that order, so that two replays of a run differ in their ids and times only.

mod change;
mod index;
mod report;
mod rescore;
mod rows;

use std::{
    collections::VecDeque,
    path::PathBuf,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::task::AbortOnDropHandle;

pub use report::{Change, Example, Failures, Reason, ReplayReport, RolloutCounts, RowCounts, Side, TaskChange};

use self::{
    change::Tally,
    index::{Line, SourceIndex},
    rescore::{Rescored, Rescorer},
    rows::Rows,
};
use super::Stops;
use crate::{
    config::Redactor,
    envs::Scoring,
    store::{Event, Journal, RunDir, RunState, StoreError, traces_of},
    taskset::{Task, Taskset, TasksetError},
    telemetry::blocking,
    trace::{Outcome, RunInfo},
};

/// Lines handed to the journal and not yet acknowledged.
const WRITING: usize = 256;

/// Rollouts that may be ahead of the one that is written next, as a multiple of those that are scored at once: one slow
/// judge then holds back nobody.
const AHEAD: usize = 2;

/// A replay, resolved.
pub struct Replay {
    /// The folder of the source run.
    pub source: PathBuf,
    /// What scores.
    pub taskset: Arc<dyn Taskset>,
    /// Score with the rows that stand in the rollouts, not with those of the taskset.
    pub stored_rows: bool,
    /// What the replay is as a run: its identity, its source, and the plan of the source.
    pub state: RunState,
    /// Where it is written; `None` writes nothing.
    pub run_dir: Option<RunDir>,
    /// Deadline of the scoring of one rollout; `None` leaves the task's own, if any.
    pub scoring_deadline: Option<Duration>,
    /// Rollouts scored at once.
    pub max_concurrent: usize,
    /// How many of the tasks that changed most the report names.
    pub most_tasks: usize,
    /// Takes secrets out of every line.
    pub redactor: Redactor,
}

/// What a replay came to.
pub struct Replayed {
    /// What changed.
    pub report: ReplayReport,
    /// It was stopped before all rollouts were scored.
    pub interrupted: bool,
}

/// Why a replay could not be done.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A run folder cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The taskset's rows cannot be read.
    #[error("{0}; mend that, or score with the rows that stand in the rollouts: `--stored-rows`")]
    Tasks(#[from] TasksetError),
    /// There is nothing to score.
    #[error("{} holds no rollout", .0.display())]
    Empty(PathBuf),
}

/// Rollouts of one task that are scored together: all of them where the rubric compares them, else one.
struct Job {
    number: usize,
    task: Option<Task>,
    lines: Vec<Line>,
}

impl Replay {
    /// Scores every rollout of the source that has something to score.
    ///
    /// # Errors
    /// The source or the taskset cannot be read, or the new folder cannot be written; what was written stays.
    pub async fn run(self, events: mpsc::Sender<Event>, stops: Stops) -> Result<Replayed, ReplayError> {
        let started = Instant::now();
        let Self { source, taskset, mut state, run_dir, max_concurrent, .. } = self;
        let folder = source.clone();
        let index = blocking(move || SourceIndex::read(&folder)).await?;
        if index.rollouts == 0 {
            return Err(ReplayError::Empty(traces_of(&source)));
        }
        state.num_rollouts = state.num_rollouts.max(index.most_rollouts);
        let rows = if self.stored_rows {
            Rows::stored(&index)
        } else {
            Rows::find(taskset.as_ref(), &index, &traces_of(&source)).await?
        };
        tracing::info!(
            source = %source.display(),
            rollouts = index.rollouts,
            rows = ?rows.counts,
            malformed = index.malformed,
            "replay start"
        );
        if let Some(run_dir) = &run_dir {
            run_dir.save_state(&state)?;
        }
        let title = format!("{} scored anew from {}", state.taskset, source.display());
        let _ = events
            .send(Event::RunStarted {
                title,
                planned: Some(index.rollouts),
                resumed: 0,
                resumed_reward: 0.0,
                pending: 0,
                simulated: state.simulated,
            })
            .await;

        let journal = run_dir.as_ref().map(|run_dir| Journal::open(&run_dir.traces(), self.redactor)).transpose()?;
        let together = taskset.rubric().compares_groups();
        let rescorer = Arc::new(Rescorer {
            scoring: Scoring { taskset, deadline: self.scoring_deadline, retries: Default::default() },
            traces: traces_of(&source),
            run: RunInfo::Eval { id: state.id.clone(), name: Some(state.name.clone()) },
            permits: Semaphore::new(max_concurrent.clamp(1, Semaphore::MAX_PERMITS)),
        });
        let mut tally = Tally::new(state.num_rollouts, self.most_tasks);
        let mut writing = VecDeque::new();
        let stop = stops.stop.clone();
        let work = jobs(&index, &rows, together).take_while(|_| !stop.is_cancelled()).map(|job| {
            let rescorer = Arc::clone(&rescorer);
            AbortOnDropHandle::new(tokio::spawn(async move { (job.number, rescorer.work(job.task, job.lines).await) }))
        });
        let mut work = stream::iter(work).buffered(max_concurrent.saturating_mul(AHEAD).max(1));
        let mut killed = pin!(stops.kill.cancelled());
        loop {
            let (number, scored) = tokio::select! {
                biased;
                () = &mut killed => break,
                done = work.next() => match done {
                    None => break,
                    Some(Ok((number, scored))) => (number, scored?),
                    Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                    Some(Err(_)) => break,
                },
            };
            for rescored in scored {
                let Some(rescored) = rescored else {
                    tally.unreadable += 1;
                    continue;
                };
                let _ = events.send(finished(&rescored)).await;
                tally.add(number, &rescored);
                if let Some(journal) = &journal {
                    writing.push_back(journal.submit(rescored.episode).await?);
                    if writing.len() > WRITING
                        && let Some(first) = writing.pop_front()
                    {
                        first.await?;
                    }
                }
            }
        }
        drop(work);
        for line in writing {
            line.await?;
        }
        if let Some(journal) = journal {
            journal.close().await?;
        }
        let interrupted = tally.met() < index.rollouts;
        if let Some(attempt) = state.attempts.last_mut() {
            attempt.seconds = started.elapsed().as_secs_f64();
        }
        let (before, after, mut report) = tally.finish(&source, run_dir.as_ref().map(RunDir::path), &state);
        report.rows = rows.counts;
        report.rollouts.malformed += index.malformed;
        report.rollouts.repeated = index.repeated;
        report.rollouts.pending = index.pending;
        report.compare(&before, &after);
        if let Some(run_dir) = &run_dir {
            run_dir.save_state(&state)?;
            run_dir.save_results(&after)?;
        }
        let _ = events.send(Event::RunFinished).await;
        Ok(Replayed { report, interrupted })
    }
}

fn jobs<'a>(index: &'a SourceIndex, rows: &'a Rows, together: bool) -> impl Iterator<Item = Job> + 'a {
    index.tasks.iter().enumerate().flat_map(move |(number, task)| {
        let size = if together { task.lines.len().max(1) } else { 1 };
        task.lines.chunks(size).map(move |lines| Job { number, task: rows.changed(number), lines: lines.to_vec() })
    })
}

fn finished(rescored: &Rescored) -> Event {
    let after = &rescored.after;
    Event::EpisodeFinished {
        outcome: match &after.fault {
            None => Outcome::Scored(after.reward),
            Some(fault) => Outcome::Failed(fault.class),
        },
        fault: after.fault.as_ref().map(|fault| (fault.class, fault.message.clone())),
        truncated: after.truncated,
        seconds: rescored.seconds,
    }
}
