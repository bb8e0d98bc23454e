//! Who gets the next run, and how many workers there are: the rules of verifiers 0.4.0, and when one is too many.

use super::{PoolKind, WorkerState};

/// What the rules know of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    /// Its number.
    pub(super) index: usize,
    /// How far it is.
    pub(super) state: WorkerState,
    /// Runs it has, or will get when it is ready.
    pub(super) in_flight: usize,
}

/// The least busy worker, the one with the lowest number among equals. One that is only starting comes into question when
/// no other is ready, or when all that are have as many runs as they are good for: that is what it was started for.
pub(super) fn least_busy(kind: PoolKind, workers: impl Iterator<Item = Load>) -> Option<usize> {
    let least = |best: &mut Option<Load>, worker: Load| {
        if best.is_none_or(|best| (worker.in_flight, worker.index) < (best.in_flight, best.index)) {
            *best = Some(worker);
        }
    };
    let (mut ready, mut starting) = (None, None);
    for worker in workers {
        match worker.state {
            WorkerState::Ready => least(&mut ready, worker),
            WorkerState::Starting => least(&mut starting, worker),
            WorkerState::Draining | WorkerState::Dead => {}
        }
    }
    let good_for = match kind {
        PoolKind::Static { .. } => usize::MAX,
        PoolKind::Elastic { multiplex, .. } => multiplex,
    };
    let chosen = match (ready, starting) {
        (Some(ready), Some(starting)) if ready.in_flight >= good_for => {
            if (starting.in_flight, starting.index) < (ready.in_flight, ready.index) { starting } else { ready }
        }
        (Some(ready), _) => ready,
        (None, starting) => starting?,
    };
    Some(chosen.index)
}

/// How many workers a pool begins with.
pub(super) fn at_first(kind: PoolKind) -> usize {
    match kind {
        PoolKind::Static { num_workers } => num_workers,
        PoolKind::Elastic { .. } => 1,
    }
}

/// Whether a run that was just given out, the last of so many, asks for one more worker.
pub(super) fn grows(kind: PoolKind, workers: usize, in_flight: usize) -> bool {
    match kind {
        PoolKind::Static { .. } => false,
        PoolKind::Elastic { max_workers, multiplex } => {
            max_workers.is_none_or(|most| workers < most) && fills(workers, multiplex, in_flight)
        }
    }
}

/// Whether one worker less would not have grown again.
pub(super) fn has_surplus(kind: PoolKind, workers: usize, in_flight: usize) -> bool {
    match kind {
        PoolKind::Static { .. } => false,
        PoolKind::Elastic { multiplex, .. } => workers > 1 && !fills(workers - 1, multiplex, in_flight),
    }
}

/// Nine tenths of what the workers are good for, in whole numbers.
fn fills(workers: usize, multiplex: usize, in_flight: usize) -> bool {
    in_flight as u128 * 10 >= 9 * workers as u128 * multiplex as u128
}

/// Which worker goes when one is too many: the least busy, the one with the highest number among equals.
pub(super) fn least_needed(workers: impl Iterator<Item = Load>) -> Option<usize> {
    let may_go = workers.filter(|worker| worker.state != WorkerState::Draining);
    may_go.min_by_key(|worker| (worker.in_flight, usize::MAX - worker.index)).map(|worker| worker.index)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The original in its own terms: a list of counts, which only grows.
    struct Original {
        active: Vec<usize>,
        max_workers: Option<usize>,
        multiplex: usize,
    }

    impl Original {
        fn run(&mut self) -> usize {
            let least = *self.active.iter().min().unwrap();
            let worker = self.active.iter().position(|active| *active == least).unwrap();
            self.active[worker] += 1;
            let in_flight: usize = self.active.iter().sum();
            let capped = self.max_workers.is_some_and(|most| self.active.len() >= most);
            if !capped && in_flight as f64 >= 0.9 * self.active.len() as f64 * self.multiplex as f64 {
                self.active.push(0);
            }
            worker
        }
    }

    fn loads(active: &[usize]) -> impl Iterator<Item = Load> {
        let load =
            |(index, in_flight): (usize, &usize)| Load { index, state: WorkerState::Ready, in_flight: *in_flight };
        active.iter().enumerate().map(load)
    }

    proptest! {
        /// Where every worker is ready at once, each run goes where the original sends it, and the pool grows when the
        /// original does.
        #[test]
        fn it_is_the_rule_of_the_original(
            max_workers in prop::option::of(2_usize..6),
            multiplex in 1_usize..140,
            steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..600),
        ) {
            let kind = PoolKind::Elastic { max_workers, multiplex };
            let mut original = Original { active: vec![0], max_workers, multiplex };
            let mut active = vec![0_usize];
            let mut runs = Vec::new();
            for (begins, which) in steps {
                if begins || runs.is_empty() {
                    let chosen = least_busy(kind, loads(&active)).unwrap();
                    active[chosen] += 1;
                    runs.push(chosen);
                    if grows(kind, active.len(), runs.len()) {
                        active.push(0);
                    }
                    prop_assert_eq!(chosen, original.run());
                } else {
                    let ended = runs.swap_remove(which.index(runs.len()));
                    active[ended] -= 1;
                    original.active[ended] -= 1;
                }
                prop_assert_eq!(&active, &original.active);
            }
        }

        /// What is given back is not taken again by the next run.
        #[test]
        fn shrinking_does_not_make_it_grow(workers in 2_usize..20, multiplex in 1_usize..200, in_flight in 0_usize..4000) {
            let kind = PoolKind::Elastic { max_workers: None, multiplex };
            if has_surplus(kind, workers, in_flight) {
                prop_assert!(!grows(kind, workers - 1, in_flight));
            }
        }
    }

    #[test]
    fn the_second_worker_comes_with_run_116() {
        let kind = PoolKind::default();
        assert_eq!((grows(kind, 1, 115), grows(kind, 1, 116)), (false, true));
        assert!(grows(PoolKind::Elastic { max_workers: Some(4), multiplex: 1 }, 1, 1));
        assert!(!grows(PoolKind::Elastic { max_workers: Some(1), multiplex: 1 }, 1, 9));
        assert!(!grows(PoolKind::Static { num_workers: 1 }, 1, 1000));
        assert_eq!((at_first(kind), at_first(PoolKind::Static { num_workers: 3 })), (1, 3));
    }

    #[test]
    fn a_starting_worker_gets_what_is_too_much_for_the_others() {
        use WorkerState::{Dead, Draining, Ready, Starting};
        let kind = PoolKind::Elastic { max_workers: None, multiplex: 4 };
        let workers = |all: &[(WorkerState, usize)]| {
            let load = |(index, (state, in_flight)): (usize, &(WorkerState, usize))| Load {
                index,
                state: *state,
                in_flight: *in_flight,
            };
            all.iter().enumerate().map(load).collect::<Vec<_>>().into_iter()
        };
        assert_eq!(least_busy(kind, workers(&[(Ready, 3), (Starting, 0)])), Some(0));
        assert_eq!(least_busy(kind, workers(&[(Ready, 4), (Starting, 0)])), Some(1));
        assert_eq!(least_busy(kind, workers(&[(Ready, 4), (Starting, 4)])), Some(0));
        let fixed = PoolKind::Static { num_workers: 2 };
        assert_eq!(least_busy(fixed, workers(&[(Ready, 400), (Starting, 0)])), Some(0), "it may never be ready");
        assert_eq!(least_busy(fixed, workers(&[(Starting, 1), (Starting, 0)])), Some(1));
        assert_eq!(least_busy(fixed, workers(&[(Draining, 0), (Dead, 0)])), None);
        assert_eq!(least_needed(workers(&[(Ready, 1), (Ready, 0), (Starting, 0), (Draining, 0)])), Some(2));
    }
}
