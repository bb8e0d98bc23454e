//! What the loss of a worker means: for its successor, for the pool, and for the runs it had.
//!
//! *Its successor* comes at once; after two lives in a row that brought nothing, after a pause that doubles. *The pool*
//! gives up when its first worker does not come up, as that needs a hand; when none comes up any more; and when workers
//! that come up keep dying without a single answer. *The runs* it had may be the cause, and which one of them was cannot
//! be seen. So only those are blamed that were there at most losses before: the others are redone as often as it takes.
//! The innocent part from the guilty with every redo, as each goes to the least busy worker. A run that was there every
//! time has its last chance without others that were: who then falls with its worker has brought it down.

use std::time::{Duration, Instant};

use super::OnLost;

/// The first pause, and the longest.
const PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A life of this length is not part of a loop.
const LONG_LIFE: Duration = Duration::from_secs(30);
/// Starts that may fail in a row.
const FAILED_STARTS: u32 = 5;
/// Lives that may bring nothing in a row, at least; a run that kills its workers is found before.
const FRUITLESS: u32 = 6;

/// How a worker lived.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Life {
    /// Since when it has been ready.
    pub(super) ready: Option<Instant>,
    /// Whether it has answered a run.
    pub(super) answered: bool,
}

impl Life {
    fn is_fruitless(&self, now: Instant) -> bool {
        !self.answered && self.ready.is_none_or(|since| now.duration_since(since) < LONG_LIFE)
    }
}

/// How a pool has fared.
#[derive(Debug, Default)]
pub(super) struct Fortune {
    was_ready: bool,
    failed_starts: u32,
    fruitless: u32,
}

/// What follows from a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Another one, after a pause.
    Replace(Duration),
    /// No worker has ever come up.
    CannotStart,
    /// Starts have failed so often.
    StartsNoMore(u32),
    /// So many lives in a row have brought nothing.
    Loop(u32),
}

impl Fortune {
    /// A worker is ready.
    pub(super) fn ready(&mut self) {
        self.was_ready = true;
        self.failed_starts = 0;
    }

    /// A run has its answer: there is progress.
    pub(super) fn answered(&mut self) {
        self.fruitless = 0;
    }

    /// A worker was lost, the last of so many short lives on its seat, which are counted here.
    pub(super) fn lost(&mut self, life: Life, short: &mut u32, others: bool, policy: OnLost, now: Instant) -> Verdict {
        if life.ready.is_none() {
            self.failed_starts += 1;
        }
        if life.is_fruitless(now) {
            self.fruitless += 1;
            *short += 1;
        } else {
            *short = 0;
        }
        let patience = match policy {
            OnLost::Redo { max_redos } => FRUITLESS.max(max_redos.saturating_add(3)),
            OnLost::Fail => FRUITLESS,
        };
        if !self.was_ready {
            Verdict::CannotStart
        } else if !others && self.failed_starts >= FAILED_STARTS {
            Verdict::StartsNoMore(self.failed_starts)
        } else if !others && self.fruitless >= patience {
            Verdict::Loop(self.fruitless)
        } else {
            Verdict::Replace(pause(*short))
        }
    }
}

/// The pause after so many short lives in a row.
fn pause(short: u32) -> Duration {
    match short {
        0 | 1 => Duration::ZERO,
        more => PAUSE.saturating_mul(1 << (more - 2).min(16)).min(LONGEST_PAUSE),
    }
}

/// The count of losses that a run must have to be blamed for one more: the highest among those that were there.
pub(super) fn blamed(losses: impl Iterator<Item = u32>) -> u32 {
    losses.max().unwrap_or_default()
}

/// Whether a run that was there at so many losses is begun anew.
pub(super) fn is_redone(policy: OnLost, losses: u32) -> bool {
    match policy {
        OnLost::Redo { max_redos } => losses <= max_redos,
        OnLost::Fail => false,
    }
}

/// Whether a run shares no worker with others like it: it has its last chance, and there were enough before to tell chance
/// from guilt.
pub(super) fn is_suspect(policy: OnLost, losses: u32) -> bool {
    matches!(policy, OnLost::Redo { max_redos } if losses >= max_redos.max(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REDO: OnLost = OnLost::Redo { max_redos: 2 };

    #[test]
    fn a_first_start_that_fails_is_the_end() {
        let verdict = Fortune::default().lost(Life::default(), &mut 0, false, REDO, Instant::now());
        assert_eq!(verdict, Verdict::CannotStart);
    }

    #[test]
    fn the_pauses_double_and_end() {
        let mut fortune = Fortune::default();
        fortune.ready();
        let (mut short, now) = (0, Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..10 {
            match fortune.lost(Life::default(), &mut short, true, REDO, now) {
                Verdict::Replace(pause) => pauses.push(pause.as_millis()),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(pauses, [0, 500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000], "with others it goes on");
        let verdict = fortune.lost(Life::default(), &mut short, false, REDO, now);
        assert_eq!(verdict, Verdict::StartsNoMore(11));
        let long = Life { ready: Some(now), answered: true };
        fortune.ready();
        fortune.answered();
        assert_eq!(fortune.lost(long, &mut short, false, REDO, now), Verdict::Replace(Duration::ZERO));
    }

    #[test]
    fn lives_without_an_answer_end_the_pool_and_answers_save_it() {
        let mut fortune = Fortune::default();
        let (mut short, now) = (0, Instant::now());
        let life = Life { ready: Some(now), answered: false };
        for round in 0..20 {
            fortune.ready();
            if round % 5 == 4 {
                fortune.answered();
            }
            assert!(matches!(fortune.lost(life, &mut short, false, REDO, now), Verdict::Replace(_)), "{round}");
        }
        let ends = (0..).find(|_| {
            fortune.ready();
            matches!(fortune.lost(life, &mut short, false, REDO, now), Verdict::Loop(_))
        });
        assert_eq!(ends, Some(4), "one loss stood on the count already");
    }

    #[test]
    fn the_last_chance_is_taken_apart() {
        assert!(is_redone(REDO, 2) && !is_redone(REDO, 3) && !is_redone(OnLost::Fail, 1));
        assert!(!is_suspect(REDO, 1) && is_suspect(REDO, 2));
        let once = OnLost::Redo { max_redos: 1 };
        assert!(!is_suspect(once, 0) && !is_suspect(once, 1) && !is_redone(once, 2));
        assert_eq!(blamed([0, 2, 1].into_iter()), 2);
    }
}
