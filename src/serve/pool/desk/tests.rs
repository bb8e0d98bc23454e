//! The desk against a world of pretended workers and clients.

use proptest::prelude::*;

use super::*;
use crate::{serve::message, trace::wire};

const REDO: OnLost = OnLost::Redo { max_redos: 2 };

/// Clients and workers as the desk sees them.
struct World {
    desk: Desk<u32>,
    now: Instant,
    /// Workers that live, and the runs each was given, by the id it knows.
    alive: BTreeMap<usize, (Name, bool, Vec<Bytes>)>,
    /// What each client got for each of its requests.
    got: HashMap<(u32, Bytes), Got>,
    asked: u64,
}

#[derive(Debug, Default)]
struct Got {
    traces: Vec<String>,
    replies: Vec<Bytes>,
}

impl World {
    fn new(kind: PoolKind, on_lost: OnLost) -> Self {
        let now = Instant::now();
        let desk = Desk::new(Rules { kind, on_lost, idle: Duration::from_secs(60) }, now);
        let mut world = Self { desk, now, alive: BTreeMap::new(), got: HashMap::new(), asked: 0 };
        world.act();
        world
    }

    fn act(&mut self) {
        while let Some(act) = self.desk.act() {
            match act {
                Act::Start(name) => _ = self.alive.insert(name.index, (name, false, Vec::new())),
                Act::End(name) => {
                    let (ended, _, runs) = self.alive.remove(&name.index).expect("it lives");
                    assert_eq!(ended, name);
                    assert!(
                        runs.is_empty() || self.desk.failed.is_some() || self.desk.closing,
                        "{name:?} ends with {runs:?}"
                    );
                }
                Act::Send(name, frames) => {
                    let (alive, ready, runs) = self.alive.get_mut(&name.index).expect("it lives");
                    assert!(*alive == name && *ready, "{name:?} is not ready");
                    if frames[1] == "run" {
                        runs.push(frames[0].clone());
                    }
                }
                Act::Answer(peer, frames) => {
                    let got = self.got.entry((peer, frames[0].clone())).or_default();
                    assert!(got.replies.is_empty(), "nothing follows the reply");
                    if frames[1] == "reply" {
                        got.replies.push(frames[2].clone());
                        continue;
                    }
                    match wire::trace_of(&frames[2]).unwrap() {
                        (trace, true) => got.traces.retain(|known| known != trace),
                        (trace, false) if got.traces.iter().any(|known| known == trace) => {}
                        (trace, false) => got.traces.push(trace.to_owned()),
                    }
                }
            }
        }
    }

    fn run(&mut self, peer: u32) -> Bytes {
        self.asked += 1;
        let id = Bytes::from(format!("r{}", self.asked));
        self.desk.asked(peer, id.clone(), Request::Run { payload: Bytes::from_static(b"payload") });
        self.act();
        id
    }

    fn ask(&mut self, peer: u32, request: Request) -> Bytes {
        self.asked += 1;
        let id = Bytes::from(format!("a{}", self.asked));
        self.desk.asked(peer, id.clone(), request);
        self.act();
        id
    }

    fn ready(&mut self, index: usize) {
        let (name, ready, _) = self.alive.get_mut(&index).expect("it lives");
        *ready = true;
        let name = *name;
        self.desk.ready(name);
        self.act();
    }

    fn all_ready(&mut self) {
        let starting: Vec<usize> =
            self.alive.iter().filter(|(_, (_, ready, _))| !ready).map(|(index, _)| *index).collect();
        for index in starting {
            self.ready(index);
        }
    }

    fn delta(&mut self, index: usize, run: usize, trace: &str) {
        let (name, _, runs) = &self.alive[&index];
        let payload = rmp_serde::to_vec_named(&serde_json::json!({"trace": trace, "open": {}})).unwrap();
        let frames = vec![runs[run].clone(), "delta".into(), payload.into()];
        self.desk.said(*name, frames).unwrap();
        self.act();
    }

    fn reply(&mut self, index: usize, run: usize) {
        let (name, _, runs) = self.alive.get_mut(&index).expect("it lives");
        let (name, id) = (*name, runs.remove(run));
        self.desk.said(name, vec![id, "reply".into(), Bytes::from_static(b"\x81\xa2ok\xc3")]).unwrap();
        self.act();
    }

    fn lose(&mut self, index: usize) {
        let (name, ..) = self.alive.remove(&index).expect("it lives");
        self.desk.lost(name, &Loss { how: "was killed by SIGKILL".to_owned(), lines: vec!["last words".to_owned()] });
        self.act();
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.desk.at(self.now);
        self.desk.tick();
        self.act();
    }

    /// How many runs each worker has.
    fn loads(&self) -> Vec<usize> {
        self.alive.values().map(|(.., runs)| runs.len()).collect()
    }

    fn error(&self, peer: u32, id: &Bytes) -> String {
        let reply = &self.got[&(peer, id.clone())].replies[0];
        let error: message::Standing = rmp_serde::from_slice(reply).unwrap();
        assert!(!error.success);
        error.error.unwrap()
    }

    fn is_open(&self, peer: u32, id: &Bytes) -> bool {
        self.got.get(&(peer, id.clone())).is_none_or(|got| got.replies.is_empty())
    }
}

fn fixed(num_workers: usize) -> PoolKind {
    PoolKind::Static { num_workers }
}

#[test]
fn runs_wait_for_the_first_worker_and_health_does_too() {
    let mut world = World::new(fixed(2), REDO);
    let health = world.ask(1, Request::Health);
    for _ in 0..6 {
        world.run(1);
    }
    assert!(world.is_open(1, &health));
    world.ready(1);
    assert_eq!(world.loads(), [0, 3], "the other three wait for theirs");
    assert!(!world.is_open(1, &health));
    world.reply(1, 0);
    assert_eq!(world.loads(), [0, 3], "it takes one of those that wait");
    world.ready(0);
    assert_eq!(world.loads(), [2, 3]);
    assert_eq!(world.desk.status().waiting, 0);
    let late = World::new(fixed(1), REDO);
    assert!(late.desk.next_tick().is_none());
}

#[test]
fn a_question_for_health_is_not_answered_after_it_was_given_up() {
    let mut world = World::new(fixed(1), REDO);
    let health = world.ask(1, Request::Health);
    assert!(world.desk.next_tick().is_some());
    world.pass(HEALTH + Duration::from_millis(1));
    world.ready(0);
    assert!(world.is_open(1, &health));
}

#[test]
fn runs_of_a_lost_worker_are_begun_anew_without_what_was_seen_of_them() {
    let mut world = World::new(fixed(2), REDO);
    world.all_ready();
    let ids: Vec<Bytes> = (0..4).map(|_| world.run(1)).collect();
    world.delta(0, 0, "a");
    world.delta(0, 0, "b");
    world.delta(1, 0, "c");
    let old = world.alive[&0].2.clone();
    world.lose(0);
    assert_eq!(world.loads(), [0, 4], "the successor is starting already, and the others do not wait for it");
    assert!(world.got[&(1, ids[0].clone())].traces.is_empty());
    assert_eq!(world.got[&(1, ids[1].clone())].traces, ["c"]);
    assert!(world.alive[&1].2.iter().all(|id| !old.contains(id)), "they have new ids");
    assert_eq!((world.desk.status().redone, world.desk.status().lost), (2, 1));
    for _ in 0..4 {
        world.reply(1, 0);
    }
    assert!(ids.iter().all(|id| world.got[&(1, id.clone())].replies.len() == 1));
    assert!(world.desk.is_empty());
}

#[test]
fn by_policy_they_fail_with_the_reason_and_that_another_attempt_can_help() {
    let mut world = World::new(fixed(1), OnLost::Fail);
    world.all_ready();
    let id = world.run(1);
    world.lose(0);
    let error = world.error(1, &id);
    assert_eq!(
        error,
        "WorkerLost: env server worker 0 was lost: it was killed by SIGKILL, with this run in flight; another attempt can \
         succeed; its last lines:\n  last words"
    );
}

#[test]
fn a_first_start_that_fails_fails_all_that_waits_at_once() {
    let mut world = World::new(fixed(2), REDO);
    let (run, health) = (world.run(1), world.ask(2, Request::Health));
    world.lose(1);
    for error in [world.error(1, &run), world.error(2, &health)] {
        let why = "env server worker 1 did not start: it was killed by SIGKILL; its last lines:\n  last words";
        assert_eq!(error, format!("NoWorkers: {why}"));
    }
    assert!(world.alive.is_empty(), "the other is ended");
    let late = world.run(1);
    assert!(world.error(1, &late).starts_with("NoWorkers: "));
}

#[test]
fn a_crash_loop_ends_and_nothing_hangs() {
    let mut world = World::new(fixed(1), REDO);
    world.all_ready();
    world.lose(0);
    let id = world.run(1);
    let mut starts = 0;
    while world.is_open(1, &id) {
        if world.alive.is_empty() {
            let tick = world.desk.next_tick().expect("it starts again");
            world.pass(tick - world.now);
        }
        starts += 1;
        world.lose(0);
    }
    assert_eq!(starts, 5);
    assert!(world.error(1, &id).contains("start 5 in a row that failed; its last lines"), "{}", world.error(1, &id));
    assert!(world.now - Instant::now() < Duration::from_secs(30));
}

/// One run kills whatever worker has it. It fails alone, whatever the number of workers and of others.
#[test]
fn a_run_that_kills_its_workers_is_found_and_takes_nobody_with_it() {
    for workers in [1, 2, 3] {
        for others in [0, 1, 7, 40] {
            let mut world = World::new(fixed(workers), REDO);
            world.all_ready();
            let poison = world.run(666);
            let ids: Vec<Bytes> = (0..others).map(|_| world.run(1)).collect();
            let mut losses = 0;
            for round in 0..10_000 {
                if world.desk.runs.is_empty() {
                    break;
                }
                assert!(round < 9_999, "{workers} workers, {others} others");
                let has_poison = |name: &Name| {
                    let key = world.desk.by_client.get(&(666, poison.clone()));
                    key.is_some_and(|key| world.desk.sent_to(*key) == Some(*name))
                };
                let killed = world.alive.values().find(|(name, ..)| has_poison(name)).map(|(name, ..)| name.index);
                if let Some(index) = killed {
                    world.lose(index);
                    losses += 1;
                } else if let Some(index) =
                    world.alive.iter().find(|(_, (.., runs))| !runs.is_empty()).map(|(index, _)| *index)
                {
                    world.reply(index, 0);
                } else if let Some(tick) = world.desk.next_tick() {
                    world.pass(tick.saturating_duration_since(world.now));
                }
                world.all_ready();
            }
            assert!(world.error(666, &poison).contains("so were 2 workers before it that had this run"));
            assert_eq!(losses, 3);
            let answer = Bytes::from_static(b"\x81\xa2ok\xc3");
            assert!(
                ids.iter().all(|id| world.got[&(1, id.clone())].replies == [&answer]),
                "{workers} workers, {others} others"
            );
        }
    }
}

#[test]
fn a_cancel_reaches_the_worker_that_has_the_run_and_nobody_elses_run() {
    let mut world = World::new(fixed(1), REDO);
    world.all_ready();
    let mine = world.run(1);
    let cancel = |target: &Bytes| Request::Cancel { target: Some(target.clone()) };
    let foreign = world.ask(2, cancel(&mine));
    let answer: message::Standing = rmp_serde::from_slice(&world.got[&(2, foreign)].replies[0]).unwrap();
    assert!(answer.success);
    let (name, _, runs) = world.alive[&0].clone();
    world.desk.asked(1, "c".into(), cancel(&mine));
    let Some(Act::Send(_, frames)) = world.desk.act() else { panic!("nothing is sent") };
    assert_eq!((&*frames[1], &*frames[2]), (&b"cancel"[..], &*message::cancel(std::str::from_utf8(&runs[0]).unwrap())));
    world.desk.said(name, vec![frames[0].clone(), "reply".into(), message::cancelled(true)]).unwrap();
    world.act();
    assert_eq!(world.got[&(1, "c".into())].replies, [message::cancelled(true)]);
    // The worker was told once, however often a client asks.
    world.desk.asked(1, "again".into(), cancel(&mine));
    assert_eq!(
        world.desk.act(),
        Some(Act::Answer(1, super::clients::answer("again".into(), message::cancelled(true))))
    );
    assert_eq!((world.desk.act(), world.desk.cancels.len()), (None, 0));
    assert!(world.is_open(1, &mine), "its own reply comes from the worker too");
    world.lose(0);
    assert_eq!(world.error(1, &mine), "Cancelled: rollout aborted", "it is not begun anew");
    assert!(world.desk.runs.is_empty() && world.desk.held == 0);
}

#[test]
fn a_cancel_of_what_has_not_begun_is_answered_here() {
    let mut world = World::new(fixed(1), REDO);
    let id = world.run(1);
    let cancel = world.ask(1, Request::Cancel { target: Some(id.clone()) });
    assert_eq!(world.got[&(1, cancel)].replies, [message::cancelled(true)]);
    assert_eq!(world.error(1, &id), "Cancelled: rollout aborted");
    world.all_ready();
    assert_eq!(world.loads(), [0]);
    let again = world.ask(1, Request::Cancel { target: Some(id) });
    assert_eq!(world.got[&(1, again)].replies, [message::cancelled(false)]);
}

#[test]
fn a_client_that_leaves_takes_its_runs_along() {
    let mut world = World::new(fixed(1), REDO);
    world.all_ready();
    let (_, kept) = (world.run(1), world.run(2));
    world.desk.left(1);
    let Some(Act::Send(_, frames)) = world.desk.act() else { panic!("nothing is sent") };
    assert_eq!(frames[1], "cancel");
    assert_eq!(world.desk.status().in_flight, 2, "the worker still has it");
    world.reply(0, 0);
    world.reply(0, 0);
    assert_eq!(world.got.len(), 1);
    assert!(!world.is_open(2, &kept) && world.desk.runs.is_empty());
}

#[test]
fn it_grows_as_the_original_and_shrinks_when_it_has_been_too_large_for_long() {
    let kind = PoolKind::Elastic { max_workers: Some(3), multiplex: 10 };
    let mut world = World::new(kind, REDO);
    world.all_ready();
    let mut sizes = Vec::new();
    for _ in 0..30 {
        world.run(1);
        world.all_ready();
        sizes.push(world.alive.len());
    }
    let expected: Vec<usize> = (1..=30)
        .map(|runs| {
            if runs < 9 {
                1
            } else if runs < 18 {
                2
            } else {
                3
            }
        })
        .collect();
    assert_eq!(sizes, expected);
    for index in [0, 1, 2] {
        while world.alive[&index].2.len() > 1 {
            world.reply(index, 0);
        }
    }
    world.pass(Duration::from_secs(59));
    assert_eq!(world.desk.staying(), 3);
    world.pass(Duration::from_secs(1));
    assert_eq!((world.desk.staying(), world.loads()), (2, vec![1, 1, 1]), "it may end what it has");
    world.reply(2, 0);
    assert_eq!(world.loads(), [1, 1], "and goes");
    world.pass(Duration::from_secs(60));
    assert_eq!(world.desk.staying(), 1);
    for _ in 0..8 {
        world.run(1);
    }
    assert_eq!((world.desk.staying(), world.loads()), (2, vec![8, 2]), "one that has not gone yet comes back");
    for _ in 0..4 {
        world.pass(Duration::from_secs(100));
    }
    while let Some(index) = world.alive.iter().find(|(_, (.., runs))| !runs.is_empty()).map(|(index, _)| *index) {
        world.reply(index, 0);
    }
    for _ in 0..4 {
        world.pass(Duration::from_secs(100));
    }
    assert_eq!(world.loads(), [0], "one stays");
}

#[test]
fn what_no_worker_says_is_told() {
    let mut world = World::new(fixed(1), REDO);
    world.all_ready();
    world.run(1);
    let (name, _, runs) = world.alive[&0].clone();
    let (id, ok) = (runs[0].clone(), Bytes::from_static(b"\x80"));
    let mut said = |frames: Vec<Bytes>| world.desk.said(name, frames);
    assert_eq!(said(vec![id.clone()]), Err(Nonsense::Frames(1)));
    for strange in ["", "ffffffffffffffff", "0000000000000000", "+000000000000001", "r1"] {
        assert_eq!(said(vec![strange.into(), "reply".into(), ok.clone()]), Err(Nonsense::Id), "{strange}");
    }
    assert_eq!(said(vec![id.clone(), "answer".into(), ok.clone()]), Err(Nonsense::Kind));
    for delta in [&b"\xc1\xff"[..], b"", b"\x80", b"\x81\xa5trace\x01"] {
        assert_eq!(
            said(vec![id.clone(), "delta".into(), Bytes::from_static(delta)]),
            Err(Nonsense::Delta),
            "{delta:?}"
        );
    }
    let of = |trace: String| rmp_serde::to_vec_named(&serde_json::json!({"trace": trace})).unwrap();
    assert_eq!(said(vec![id.clone(), "delta".into(), of("t".repeat(1_025)).into()]), Err(Nonsense::Trace));
    for number in 0..super::workers::TRACES {
        assert_eq!(said(vec![id.clone(), "delta".into(), of(number.to_string()).into()]), Ok(()));
    }
    assert_eq!(said(vec![id.clone(), "delta".into(), of("0".to_owned()).into()]), Ok(()), "it is known");
    assert_eq!(said(vec![id.clone(), "delta".into(), of("one more".to_owned()).into()]), Err(Nonsense::Trace));
    assert_eq!(said(vec![id.clone(), "reply".into(), Bytes::from_static(b"ok")]), Err(Nonsense::Reply));
    assert_eq!(said(vec![id.clone(), "reply".into(), ok.clone()]), Ok(()));
    assert_eq!(said(vec![id, "reply".into(), ok]), Ok(()), "what has ended is passed over");
}

#[test]
fn the_end_leaves_nobody_waiting() {
    let mut world = World::new(fixed(2), REDO);
    world.ready(0);
    let run = world.run(1);
    world.desk.close();
    let (late, health) = (world.run(1), world.ask(1, Request::Health));
    for refused in [&late, &health] {
        assert!(world.error(1, refused).starts_with("PoolClosed: "));
    }
    assert!(!world.desk.is_empty());
    world.desk.end();
    world.act();
    assert!(world.error(1, &run).starts_with("PoolClosed: "));
    assert!(world.alive.is_empty() && world.desk.is_empty());
}

#[derive(Clone, Debug)]
enum Step {
    Run(u32),
    Ready(prop::sample::Index),
    Delta(prop::sample::Index, prop::sample::Index, u8),
    Reply(prop::sample::Index, prop::sample::Index),
    Lose(prop::sample::Index),
    Cancel(prop::sample::Index),
    Pass(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let any = any::<prop::sample::Index>;
    prop_oneof![
        6 => (0_u32..3).prop_map(Step::Run),
        3 => any().prop_map(Step::Ready),
        4 => (any(), any(), 0_u8..3).prop_map(|(worker, run, trace)| Step::Delta(worker, run, trace)),
        4 => (any(), any()).prop_map(|(worker, run)| Step::Reply(worker, run)),
        1 => any().prop_map(Step::Lose),
        1 => any().prop_map(Step::Cancel),
        1 => (1_u16..20_000).prop_map(Step::Pass),
    ]
}

proptest! {
    /// Whatever happens, every run gets one reply, sees no traces of attempts that were abandoned, and all counts add up.
    #[test]
    fn every_run_gets_one_reply(
        kind in prop_oneof![
            (1_usize..4).prop_map(fixed),
            (prop::option::of(1_usize..4), 1_usize..6)
                .prop_map(|(max_workers, multiplex)| PoolKind::Elastic { max_workers, multiplex }),
        ],
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut world = World::new(kind, OnLost::Redo { max_redos: 3 });
        world.ready(0);
        let (mut runs, mut cancelled) = (Vec::new(), HashSet::new());
        let mut traces: HashMap<Bytes, Vec<String>> = HashMap::new();
        let busy_left = |world: &mut World, worker: &prop::sample::Index, run: &prop::sample::Index| {
            let busy: Vec<usize> = world.alive.iter().filter(|(_, (.., runs))| !runs.is_empty()).map(|(index, _)| *index).collect();
            (!busy.is_empty()).then(|| {
                let index = busy[worker.index(busy.len())];
                (index, run.index(world.alive[&index].2.len()))
            })
        };
        for step in steps {
            match step {
                Step::Run(peer) => runs.push((peer, world.run(peer))),
                Step::Ready(which) => {
                    let starting: Vec<usize> = world.alive.iter().filter(|(_, (_, ready, _))| !ready).map(|(index, _)| *index).collect();
                    if !starting.is_empty() {
                        world.ready(starting[which.index(starting.len())]);
                    }
                }
                Step::Delta(worker, run, trace) => if let Some((index, run)) = busy_left(&mut world, &worker, &run) {
                    let id = world.alive[&index].2[run].clone();
                    let trace = format!("{}-{trace}", String::from_utf8_lossy(&id));
                    world.delta(index, run, &trace);
                    let known = traces.entry(id).or_default();
                    if !known.contains(&trace) { known.push(trace); }
                },
                Step::Reply(worker, run) => if let Some((index, run)) = busy_left(&mut world, &worker, &run) {
                    let id = world.alive[&index].2[run].clone();
                    let key = read_id(&id).unwrap();
                    let client = world.desk.runs[&key].client.clone().unwrap();
                    world.reply(index, run);
                    prop_assert_eq!(&world.got[&client].traces, &traces.remove(&id).unwrap_or_default());
                },
                Step::Lose(which) => if world.alive.len() > 1 {
                    let indices: Vec<usize> = world.alive.keys().copied().collect();
                    world.lose(indices[which.index(indices.len())]);
                },
                Step::Cancel(which) => if !runs.is_empty() {
                    let (peer, id): &(u32, Bytes) = &runs[which.index(runs.len())];
                    if world.is_open(*peer, id) && cancelled.insert(id.clone()) {
                        world.ask(*peer, Request::Cancel { target: Some(id.clone()) });
                    }
                },
                Step::Pass(millis) => world.pass(Duration::from_millis(millis.into())),
            }
            let held: usize = world.desk.runs.values().map(super::Run::cost).sum();
            prop_assert_eq!(world.desk.held, held);
            let seated: usize = world.desk.workers.values().map(|worker| worker.runs.len()).sum();
            prop_assert_eq!(seated + world.desk.waiting.len(), world.desk.runs.len());
            prop_assert_eq!(world.desk.by_client.len(), world.desk.runs.len());
        }
        for _ in 0..10_000 {
            if world.desk.runs.is_empty() { break; }
            world.all_ready();
            match world.alive.iter().find(|(_, (.., runs))| !runs.is_empty()).map(|(index, _)| *index) {
                Some(index) => world.reply(index, 0),
                None => world.pass(Duration::from_secs(31)),
            }
        }
        for (peer, id) in runs {
            prop_assert_eq!(world.got[&(peer, id)].replies.len(), 1);
        }
        prop_assert!(world.desk.is_empty() && world.desk.waiting.is_empty());
    }
}
