//! Runs the episodes of a plan: so many at once, each journalled as it ends, until all are done or something stops it.

use std::{pin::pin, sync::Arc, time::Instant};

use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{Assignment, Plan};
use crate::{
    envs::Episodes,
    store::{Event, Journal, StoreError},
    taskset::{Task, TasksetError},
    trace::{Episode, Fault, FaultClass, Outcome},
};

/// Requests that are refused for what they say, one after the other and with nothing scored, before a run gives up: a setting
/// that no request can be served with, most likely.
const REFUSED_AT_FIRST: u64 = 20;

/// What a run needs.
pub struct Runner {
    /// Runs one episode.
    pub episodes: Arc<Episodes>,
    /// Where finished episodes go.
    pub journal: Arc<Journal>,
    /// Where what happens is told.
    pub events: mpsc::Sender<Event>,
    /// Episodes in flight.
    pub max_concurrent: usize,
    /// Failed episodes that the run may have, those found on resume not counted; one more stops it.
    pub max_failed: u64,
    /// Asks the run to start nothing more and to finish what is in flight.
    pub stop: CancellationToken,
    /// Drops what is in flight.
    pub kill: CancellationToken,
}

/// How a run ended.
#[derive(Debug, thiserror::Error)]
pub enum RunEnd {
    /// The user stopped it.
    #[error("stopped on request")]
    Interrupted,
    /// Too many episodes failed.
    #[error("failed rollouts: {failed}, more than `max_error_rate` allows; one of them: {last}")]
    TooManyFailures {
        /// Failed episodes.
        failed: u64,
        /// The last failure.
        last: String,
    },
    /// A failure that every other episode would share.
    #[error("{0}")]
    Hopeless(Fault),
    /// The journal does not take lines any more.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Tasks cannot be read.
    #[error(transparent)]
    Tasks(#[from] TasksetError),
}

impl Runner {
    /// Runs every `(task, count)` of the plan.
    ///
    /// # Errors
    /// The reason for an early end. Whatever the reason, episodes in flight are finished and journalled first, unless
    /// the run is killed; everything acknowledged by the journal stays.
    pub async fn run(&self, plan: &mut Plan) -> Result<(), RunEnd> {
        let mut next: Option<(Task, u32)> = None;
        let mut exhausted = false;
        let mut running: JoinSet<Result<EpisodeEnd, StoreError>> = JoinSet::new();
        let mut tally = Tally::default();
        let mut end: Option<RunEnd> = None;
        let mut asked = false;
        // Made once: each registers with its token.
        let mut killed = pin!(self.kill.cancelled());
        let mut stopped = pin!(self.stop.cancelled());
        loop {
            let draining = exhausted || end.is_some();
            if draining && running.is_empty() {
                return end.map_or(Ok(()), Err);
            }
            tokio::select! {
                biased;
                () = &mut killed => {
                    running.shutdown().await;
                    return Err(end.unwrap_or(RunEnd::Interrupted));
                }
                () = &mut stopped, if !asked => {
                    asked = true;
                    let reason = self.stopping(RunEnd::Interrupted, running.len()).await;
                    // When nothing is left to start, the run may still come to its end.
                    if !draining {
                        end = Some(reason);
                    }
                }
                Some(ended) = running.join_next() => {
                    let reason = match ended {
                        Ok(Ok(ended)) => ended.verdict(&mut tally, self.max_failed),
                        Ok(Err(error)) => Some(RunEnd::Store(error)),
                        Err(error) => Some(RunEnd::Hopeless(Fault::from_error(FaultClass::Infrastructure, &error))),
                    };
                    if let Some(reason) = reason.filter(|_| end.is_none()) {
                        end = Some(self.stopping(reason, running.len()).await);
                    }
                }
                planned = plan.next(), if !draining && next.is_none() => match planned {
                    None => exhausted = true,
                    Some(Ok(Assignment { task, missing, .. })) => next = Some((task, missing)),
                    Some(Err(error)) => end = Some(self.stopping(error.into(), running.len()).await),
                },
                () = std::future::ready(()), if !draining && next.is_some() && running.len() < self.max_concurrent => {
                    if let Some((task, left)) = next.take() {
                        running.spawn(self.episode(Arc::clone(&task)));
                        next = (left > 1).then(|| (task, left - 1));
                    }
                }
            }
        }
    }

    async fn stopping(&self, reason: RunEnd, in_flight: usize) -> RunEnd {
        let again = if matches!(reason, RunEnd::Interrupted) { "; once more drops them" } else { "" };
        let text = format!("{reason}; finishing {in_flight} rollouts in flight{again}");
        let _ = self.events.send(Event::Stopping { reason: text }).await;
        reason
    }

    fn episode(&self, task: Task) -> impl Future<Output = Result<EpisodeEnd, StoreError>> + Send + 'static {
        let episodes = Arc::clone(&self.episodes);
        let journal = Arc::clone(&self.journal);
        let events = self.events.clone();
        async move {
            let started = Instant::now();
            // A closed channel means that nobody watches.
            let _ = events.send(Event::EpisodeStarted).await;
            let episode = episodes.run(&task).await;
            let ended = EpisodeEnd { outcome: episode.outcome(), fault: episode.fault().cloned() };
            let finished = Event::EpisodeFinished {
                outcome: ended.outcome,
                fault: match ended.outcome {
                    Outcome::Scored(_) => None,
                    Outcome::Failed(class) => {
                        Some((class, ended.fault.as_ref().map_or_else(String::new, |fault| fault.message.clone())))
                    }
                },
                truncated: truncated(&episode),
                seconds: started.elapsed().as_secs_f64(),
            };
            journal.append(episode).await?;
            let _ = events.send(finished).await;
            Ok(ended)
        }
    }
}

/// Episodes of this attempt that ended.
#[derive(Debug, Default)]
struct Tally {
    scored: u64,
    failed: u64,
}

/// How an episode ended.
struct EpisodeEnd {
    outcome: Outcome,
    fault: Option<Fault>,
}

impl EpisodeEnd {
    /// Counts a failure, and says whether the run must end for it.
    fn verdict(self, tally: &mut Tally, max_failed: u64) -> Option<RunEnd> {
        let Outcome::Failed(class) = self.outcome else {
            tally.scored += 1;
            return None;
        };
        tally.failed += 1;
        // A missing key or credit hits every call. 403 and 404 may mean one prompt that the provider will not serve, but
        // not while nothing at all has worked.
        let retryable = self.fault.as_ref().is_some_and(|fault| fault.retryable);
        let shared = match self.fault.as_ref().and_then(|fault| fault.status_code) {
            Some(401 | 402) => true,
            Some(403 | 404) => tally.scored == 0,
            Some(400..=499) => tally.scored == 0 && tally.failed >= REFUSED_AT_FIRST && !retryable,
            _ => false,
        };
        match self.fault {
            Some(fault) if class == FaultClass::Provider && shared => Some(RunEnd::Hopeless(fault)),
            fault if tally.failed > max_failed => {
                let last = fault.map_or_else(|| class.to_string(), |fault| fault.to_string());
                Some(RunEnd::TooManyFailures { failed: tally.failed, last })
            }
            _ => None,
        }
    }
}

fn truncated(episode: &Episode) -> bool {
    episode.traces.iter().any(|trace| trace.is_truncated())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(status: u16, scored: u64, ends: bool) {
        let fault = Fault::new(FaultClass::Provider, "no").with_status(Some(status));
        let ended = EpisodeEnd { outcome: Outcome::Failed(FaultClass::Provider), fault: Some(fault) };
        let verdict = ended.verdict(&mut Tally { scored, failed: 0 }, 100);
        assert_eq!(matches!(verdict, Some(RunEnd::Hopeless(_))), ends, "{status} after {scored} scored");
    }

    #[test]
    fn a_failure_that_all_would_share_ends_the_run_and_one_prompts_refusal_does_not() {
        check(401, 5, true);
        check(402, 5, true);
        check(403, 0, true);
        check(403, 5, false);
        check(404, 0, true);
        check(404, 5, false);
        check(500, 0, false);
        check(400, 0, false);
        let refused = || EpisodeEnd {
            outcome: Outcome::Failed(FaultClass::Provider),
            fault: Some(Fault::new(FaultClass::Provider, "max_tokens is too large").with_status(Some(400))),
        };
        let mut tally = Tally { scored: 0, failed: REFUSED_AT_FIRST - 1 };
        assert!(matches!(refused().verdict(&mut tally, 100), Some(RunEnd::Hopeless(_))));
        let mut tally = Tally { scored: 1, failed: REFUSED_AT_FIRST - 1 };
        assert!(refused().verdict(&mut tally, 100).is_none());
    }

    #[test]
    fn one_failure_more_than_allowed_ends_the_run() {
        let mut tally = Tally::default();
        let failed = || EpisodeEnd { outcome: Outcome::Failed(FaultClass::Scoring), fault: None };
        assert!(failed().verdict(&mut tally, 1).is_none());
        assert!(matches!(failed().verdict(&mut tally, 1), Some(RunEnd::TooManyFailures { failed: 2, .. })));
    }
}
