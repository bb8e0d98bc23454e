//! One launch of an evaluation in its run directory: index, plan, run, summary.

use std::{sync::Arc, time::Instant};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Plan, Ran, RunEnd, Runner, Summary};
use crate::{
    config::{Redactor, Select},
    envs::Episodes,
    store::{Attempt, Event, Index, Journal, Pending, Results, RunDir, RunState, StoreError},
    taskset::{TaskStream, planned},
    telemetry::blocking,
    trace::now,
};

/// Everything a launch needs, resolved.
pub struct Launch {
    /// The run directory, opened fresh or to resume.
    pub run_dir: RunDir,
    /// What the run is; its attempts so far.
    pub state: RunState,
    /// The selected tasks in order.
    pub tasks: TaskStream,
    /// Which of them were selected.
    pub select: Select,
    /// Runs and scores them.
    pub episodes: Episodes,
    /// Episodes in flight.
    pub max_concurrent: usize,
    /// Share of planned episodes that may fail, 0 to 1.
    pub max_error_rate: f64,
    /// Headline for people.
    pub title: String,
    /// Takes secrets out of every line.
    pub redactor: Redactor,
    /// Number of this attempt, from 1.
    pub attempt: u32,
}

/// How a launch is ended from outside.
#[derive(Clone, Debug, Default)]
pub struct Stops {
    /// Start nothing more, finish what is in flight.
    pub stop: CancellationToken,
    /// Drop what is in flight.
    pub kill: CancellationToken,
}

/// What a launch came to.
pub struct Ended {
    /// The summary of the whole run.
    pub results: Results,
    /// Why it ended early, if it did.
    pub early: Option<RunEnd>,
}

impl Launch {
    /// Runs what the journal lacks and summarises the run.
    ///
    /// # Errors
    /// The run directory cannot be read or written; everything finished before is in it.
    pub async fn run(self, events: mpsc::Sender<Event>, stops: Stops) -> Result<Ended, StoreError> {
        let Self { run_dir, mut state, tasks: stream, episodes, max_error_rate, .. } = self;
        let started = Instant::now();
        let (traces, waiting) = (run_dir.traces(), run_dir.pending());
        let index = blocking(move || Index::open(&traces, &waiting)).await?;
        let (resumed, resumed_reward, to_score) = (index.finished(), index.reward(), index.pending());
        state.attempts.push(Attempt { number: self.attempt, started: now(), seconds: 0.0, resumed });
        run_dir.save_state(&state)?;
        let pending = Arc::new(Pending::new(&run_dir.pending(), self.redactor.clone()));
        let journal = Arc::new(Journal::open(&run_dir.traces(), self.redactor)?);

        let tasks = planned(episodes.scoring.taskset.size(), &self.select);
        let total = tasks.map(|tasks| tasks.saturating_mul(u64::from(state.num_rollouts)));
        tracing::info!(run = %self.title, planned = total, resumed, to_score, "run start");
        let _ = events
            .send(Event::RunStarted {
                title: self.title,
                planned: total,
                resumed,
                resumed_reward,
                pending: to_score,
                simulated: state.simulated,
            })
            .await;
        let runner = Runner {
            episodes: Arc::new(episodes),
            journal: Arc::clone(&journal),
            pending: Arc::clone(&pending),
            events: events.clone(),
            max_concurrent: self.max_concurrent,
            max_failed: allowed_failures(total, max_error_rate),
            stop: stops.stop,
            kill: stops.kill,
        };
        let mut plan = Plan::new(stream, state.num_rollouts, index);
        let Ran { end: mut early, replaced } = runner.run(&mut plan).await;
        drop(runner);

        let counts = plan.counts();
        let leftovers = plan.leftovers();
        if leftovers.is_some() {
            state.tasks = Some(counts.tasks);
        } else {
            state.tasks = state.tasks.or(tasks);
        }
        let complete = leftovers.is_some() && early.is_none();
        // A disk that is full now must not hide why the run ended, nor what it came to.
        let mut tried = |done: Result<(), StoreError>| {
            if let Err(error) = done {
                early.get_or_insert(RunEnd::Store(error));
            }
        };
        tried(journal.remove(leftovers.into_iter().flatten().chain(replaced).collect()).await);
        if let Some(journal) = Arc::into_inner(journal) {
            tried(journal.close().await);
        }
        if let Some(pending) = Arc::into_inner(pending) {
            tried(pending.close(complete).await);
        }
        if let Some(attempt) = state.attempts.last_mut() {
            attempt.seconds = started.elapsed().as_secs_f64();
        }
        tried(run_dir.save_state(&state));
        let path = run_dir.path().to_owned();
        let summarised = state.clone();
        let results = blocking(move || Summary::of_run(&path, &summarised)).await?;
        match &mut early {
            None => early = too_many_failures(&results, max_error_rate),
            // Those in flight have failed since, or not.
            Some(RunEnd::TooManyFailures { failed, .. }) => *failed = results.failed,
            Some(_) => {}
        }
        if let Err(error) = run_dir.save_results(&results) {
            early.get_or_insert(RunEnd::Store(error));
        }
        let _ = events.send(Event::RunFinished).await;
        Ok(Ended { results, early })
    }
}

/// Failures that a run may have before it cannot end within its error rate any more.
fn allowed_failures(planned: Option<u64>, max_error_rate: f64) -> u64 {
    let Some(planned) = planned else { return u64::MAX };
    let near = (planned as f64 * max_error_rate).round() as u64;
    // 29 of 100 are not more than 0.29, though 100 times 0.29 is less than 29.
    if exceeds(near, planned, max_error_rate) { near.saturating_sub(1) } else { near }
}

fn exceeds(failed: u64, of: u64, max_error_rate: f64) -> bool {
    of > 0 && failed as f64 / of as f64 > max_error_rate
}

fn too_many_failures(results: &Results, max_error_rate: f64) -> Option<RunEnd> {
    let ended = results.scored + results.failed;
    exceeds(results.failed, ended, max_error_rate).then(|| RunEnd::TooManyFailures {
        failed: results.failed,
        last: results.error_examples.values().next().map_or_else(String::new, |example| example.message.clone()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_rate_itself_is_allowed() {
        for hundredths in 0..=100_u32 {
            let rate = f64::from(hundredths) / 100.0;
            let allowed = allowed_failures(Some(100), rate);
            assert_eq!(allowed, u64::from(hundredths), "{rate}");
            assert!(!exceeds(allowed, 100, rate) && (allowed == 100 || exceeds(allowed + 1, 100, rate)), "{rate}");
        }
        assert_eq!([allowed_failures(Some(3), 0.5), allowed_failures(Some(0), 0.5)], [1, 0]);
        assert_eq!(allowed_failures(None, 0.0), u64::MAX);
    }
}
