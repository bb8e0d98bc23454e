//! Runs and scores the episodes of a plan: so many at once, each journalled as it ends or with its group, until all are
//! done or something stops it.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    Assignment, Plan,
    group::{Group, Groups, Member},
};
use crate::{
    envs::Episodes,
    store::{Event, Journal, Pending, Span, StoreError},
    taskset::{Task, TasksetError},
    trace::{Episode, Fault, FaultClass, Outcome},
};

/// Requests that are refused for what they say, one after the other and with nothing scored, before a run gives up: a setting
/// that no request can be served with, most likely.
const REFUSED_AT_FIRST: u64 = 20;

/// What a run needs.
pub struct Runner {
    /// Runs and scores one episode.
    pub episodes: Arc<Episodes>,
    /// Where finished episodes go.
    pub journal: Arc<Journal>,
    /// Where episodes wait whose scores may be lost.
    pub pending: Arc<Pending>,
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

/// What a run came to.
#[derive(Debug)]
pub struct Ran {
    /// The reason for an early end.
    pub end: Option<RunEnd>,
    /// Lines of the journal that newer ones of the same episodes stand for, to be taken out.
    pub replaced: Vec<Span>,
}

/// What is to be done for one episode.
enum Work {
    /// Let the agents work, then score.
    Play,
    /// Score what is written down.
    Score(Span),
}

/// What became of it.
enum Done {
    /// In the journal; of groups, several, some in place of older lines.
    Journalled { ends: Vec<EpisodeEnd>, replaced: Vec<Span> },
    /// Waits for its group.
    Member(Box<Member>),
}

impl Runner {
    /// Runs and scores every episode of the plan. Whatever the reason for an early end, episodes in flight are finished and
    /// journalled first, unless the run is killed; everything acknowledged by the journal stays.
    pub async fn run(&self, plan: &mut Plan) -> Ran {
        let compares = self.episodes.scoring.taskset.rubric().compares_groups();
        let mut groups = Groups::default();
        let mut next: Option<Assignment> = None;
        let mut exhausted = false;
        // The position of the task, for an episode; nothing for a group.
        let mut running: JoinSet<(Option<u64>, Result<Done, StoreError>)> = JoinSet::new();
        let mut tally = Tally::default();
        let mut ran = Ran { end: None, replaced: Vec::new() };
        let mut asked = false;
        // Made once: each registers with its token.
        let mut killed = pin!(self.kill.cancelled());
        let mut stopped = pin!(self.stop.cancelled());
        loop {
            let draining = exhausted || ran.end.is_some();
            if draining && running.is_empty() {
                return ran;
            }
            tokio::select! {
                biased;
                () = &mut killed => {
                    running.shutdown().await;
                    ran.end.get_or_insert(RunEnd::Interrupted);
                    return ran;
                }
                () = &mut stopped, if !asked => {
                    asked = true;
                    let reason = self.stopping(RunEnd::Interrupted, running.len()).await;
                    // When nothing is left to start, the run may still come to its end.
                    if !draining {
                        ran.end = Some(reason);
                    }
                }
                Some(joined) = running.join_next() => {
                    let reason = match joined {
                        Ok((position, Ok(done))) => {
                            let (ends, member) = match done {
                                Done::Journalled { ends, replaced } => {
                                    ran.replaced.extend(replaced);
                                    (ends, None)
                                }
                                Done::Member(member) => (Vec::new(), Some(*member)),
                            };
                            if let Some(group) = position.and_then(|position| groups.ended(position, member)) {
                                let scoring = self.group(group);
                                running.spawn(async { (None, scoring.await) });
                            }
                            let verdicts = ends.into_iter().map(|ended| ended.verdict(&mut tally, self.max_failed));
                            verdicts.fold(None, Option::or)
                        }
                        Ok((_, Err(error))) => Some(RunEnd::Store(error)),
                        Err(error) => Some(RunEnd::Hopeless(Fault::from_error(FaultClass::Infrastructure, &error))),
                    };
                    if let Some(reason) = reason.filter(|_| ran.end.is_none()) {
                        ran.end = Some(self.stopping(reason, running.len()).await);
                    }
                }
                planned = plan.next(), if !draining && next.is_none() => match planned {
                    None => exhausted = true,
                    Some(Ok(assignment)) => {
                        if compares {
                            groups.open(&assignment);
                        }
                        next = Some(assignment);
                    }
                    Some(Err(error)) => ran.end = Some(self.stopping(error.into(), running.len()).await),
                },
                () = std::future::ready(()), if !draining && next.is_some() && running.len() < self.max_concurrent => {
                    if let Some(mut assignment) = next.take() {
                        let work = match assignment.pending.pop() {
                            Some(line) => Work::Score(line),
                            None => {
                                assignment.missing -= 1;
                                Work::Play
                            }
                        };
                        let position = assignment.position;
                        let episode = self.episode(Arc::clone(&assignment.task), work, compares);
                        running.spawn(async move { (Some(position), episode.await) });
                        next = (assignment.missing > 0 || !assignment.pending.is_empty()).then_some(assignment);
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

    /// Runs one episode up to its own scores. One whose scores may be lost is written down before it is scored.
    fn episode(
        &self,
        task: Task,
        work: Work,
        compares: bool,
    ) -> impl Future<Output = Result<Done, StoreError>> + Send + 'static {
        let Self { episodes, journal, pending, events, .. } = self;
        let (episodes, pending) = (Arc::clone(episodes), Arc::clone(pending));
        let (journal, events) = (Arc::clone(journal), events.clone());
        async move {
            let started = Instant::now();
            let waits = episodes.scoring.taskset.rubric().waits();
            // A closed channel means that nobody watches.
            let _ = events.send(Event::EpisodeStarted).await;
            let played = match work {
                Work::Play => episodes.play(&task).await,
                Work::Score(line) => episodes.reopen(pending.load(line).await?, &task),
            };
            if matches!(work, Work::Play) && played.episode.ok && (waits || compares) {
                pending.append(&played.episode).await?;
            }
            let episode = episodes.score(played).await;
            if !(compares && episode.ok) {
                let ended = end(&journal, &events, episode, started.elapsed()).await?;
                return Ok(Done::Journalled { ends: vec![ended], replaced: Vec::new() });
            }
            if waits {
                // What it was given need not be asked for again.
                pending.append(&episode).await?;
            }
            Ok(Done::Member(Box::new(Member { episode, spent: started.elapsed() })))
        }
    }

    /// Scores a group and journals it. Its members that were finished before are scored and written anew, first: as long
    /// as one is pending, a resumed run sees that the group is not complete. When the group cannot be scored, they keep
    /// what they have.
    fn group(&self, group: Group) -> impl Future<Output = Result<Done, StoreError>> + Send + 'static {
        let Self { episodes, journal, events, .. } = self;
        let (episodes, journal, events) = (Arc::clone(episodes), Arc::clone(journal), events.clone());
        async move {
            let Group { task, finished, members, .. } = group;
            let mut all = Vec::with_capacity(finished.len() + members.len());
            for line in &finished {
                all.push(episodes.reopen(journal.load(*line).await?, &task).episode);
            }
            let (fresh, spent): (Vec<Episode>, Vec<Duration>) =
                members.into_iter().map(|member| (member.episode, member.spent)).unzip();
            all.extend(fresh);
            let scored = episodes.score_group(&mut all).await.is_ok();
            let fresh = all.split_off(finished.len());
            let mut replaced = Vec::new();
            if scored {
                for (episode, line) in all.into_iter().zip(finished) {
                    journal.append(episode).await?;
                    replaced.push(line);
                }
            }
            let mut ends = Vec::with_capacity(fresh.len());
            for (episode, spent) in fresh.into_iter().zip(spent) {
                ends.push(end(&journal, &events, episode, spent).await?);
            }
            Ok(Done::Journalled { ends, replaced })
        }
    }
}

/// Journals an episode and tells how it ended.
async fn end(
    journal: &Journal,
    events: &mpsc::Sender<Event>,
    episode: Episode,
    spent: Duration,
) -> Result<EpisodeEnd, StoreError> {
    let mut ended = EpisodeEnd { outcome: episode.outcome(), fault: episode.fault().cloned() };
    if let Some(fault) = &mut ended.fault {
        // It is shown, and may be why the run stops.
        fault.message = journal.redacted(&fault.message).into_owned();
    }
    let finished = Event::EpisodeFinished {
        outcome: ended.outcome,
        fault: match ended.outcome {
            Outcome::Scored(_) => None,
            Outcome::Failed(class) => {
                Some((class, ended.fault.as_ref().map_or_else(String::new, |fault| fault.message.clone())))
            }
        },
        truncated: truncated(&episode),
        seconds: spent.as_secs_f64(),
    };
    journal.append(episode).await?;
    let _ = events.send(finished).await;
    Ok(ended)
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
        // A missing key or credit hits every call, a judge's too. 403 and 404 may mean one prompt that the provider will not serve, but
        // not while nothing at all has worked.
        let retryable = self.fault.as_ref().is_some_and(|fault| fault.retryable);
        let shared = match self.fault.as_ref().and_then(|fault| fault.status_code) {
            Some(401 | 402) => true,
            Some(403 | 404) => tally.scored == 0,
            Some(400..=499) => tally.scored == 0 && tally.failed >= REFUSED_AT_FIRST && !retryable,
            _ => false,
        };
        match self.fault {
            Some(fault) if matches!(class, FaultClass::Provider | FaultClass::Judge) && shared => {
                Some(RunEnd::Hopeless(fault))
            }
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
