//! Verdicts by content: what was asked once is not asked again.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::Mutex as Turn;

use super::verdict::Verdict;
use crate::trace::Fault;

/// Verdicts that are kept; the oldest go first. Equal questions come from rollouts of one task, which run at about the same
/// time.
const KEPT: usize = 10_000;

/// A judge's answer and how it was read.
#[derive(Clone, Debug)]
pub(super) struct Answered {
    pub(super) text: String,
    pub(super) verdict: Verdict,
}

type Outcome = Result<Arc<Answered>, Fault>;

/// The verdicts of a run.
#[derive(Default)]
pub(super) struct Cache(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    slots: HashMap<String, Slot>,
    order: VecDeque<String>,
}

/// One question; whoever holds its turn asks it, the others wait.
type Slot = Arc<Turn<Option<Outcome>>>;

impl Cache {
    /// The answer to a question and whether it was there already. Of equal questions that come at once one is asked; who
    /// waits for it shares its failure too, and who comes later asks anew. If the one who asks is dropped, the next one
    /// in turn asks.
    pub(super) async fn once(&self, key: &str, ask: impl Future<Output = Outcome>) -> (Outcome, bool) {
        let slot = self.slot(key);
        let mut turn = slot.lock().await;
        if let Some(outcome) = &*turn {
            return (outcome.clone(), true);
        }
        let outcome = ask.await;
        if outcome.is_err() {
            self.forget(key, &slot);
        }
        *turn = Some(outcome.clone());
        (outcome, false)
    }

    fn slot(&self, key: &str) -> Slot {
        let mut kept = self.kept();
        if let Some(slot) = kept.slots.get(key) {
            return Arc::clone(slot);
        }
        if kept.order.len() >= KEPT
            && let Some(oldest) = kept.order.pop_front()
        {
            kept.slots.remove(&oldest);
        }
        let slot = Slot::default();
        kept.slots.insert(key.to_owned(), Arc::clone(&slot));
        kept.order.push_back(key.to_owned());
        slot
    }

    fn forget(&self, key: &str, slot: &Slot) {
        let mut kept = self.kept();
        if kept.slots.get(key).is_some_and(|known| Arc::ptr_eq(known, slot)) {
            kept.slots.remove(key);
            kept.order.retain(|known| known != key);
        }
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        // Nothing panics half-way through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;

    use super::*;
    use crate::trace::FaultClass;

    fn answered() -> Outcome {
        let verdict = Verdict { score: 1.0, why: String::new(), parts: Vec::new() };
        Ok(Arc::new(Answered { text: "yes".to_owned(), verdict }))
    }

    #[tokio::test]
    async fn equal_questions_at_once_are_asked_once() {
        let (cache, asked) = (Cache::default(), AtomicUsize::new(0));
        let ask = |outcome: fn() -> Outcome| {
            let asked = &asked;
            async move {
                asked.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                outcome()
            }
        };
        let outcomes = join_all((0..5).map(|_| cache.once("a", ask(answered)))).await;
        assert_eq!((asked.load(Ordering::Relaxed), outcomes.iter().filter(|(_, cached)| *cached).count()), (1, 4));

        let failed = || Err(Fault::new(FaultClass::Judge, "down"));
        let outcomes = join_all((0..5).map(|_| cache.once("b", ask(failed)))).await;
        assert!(outcomes.iter().all(|(outcome, _)| outcome.is_err()));
        assert_eq!(asked.load(Ordering::Relaxed), 2, "who waits shares the failure");
        assert!(cache.once("b", ask(answered)).await.0.is_ok(), "who comes later asks anew");
        assert_eq!(asked.load(Ordering::Relaxed), 3);
    }

    #[tokio::test]
    async fn who_is_dropped_while_asking_leaves_the_turn_to_the_next() {
        let cache = Cache::default();
        let mut first = Box::pin(cache.once("a", std::future::pending()));
        assert!(futures::poll!(&mut first).is_pending());
        let mut second = Box::pin(cache.once("a", async { answered() }));
        assert!(futures::poll!(&mut second).is_pending());
        drop(first);
        assert!(!second.await.1);
    }
}
