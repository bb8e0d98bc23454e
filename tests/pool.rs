//! Pools of env server workers: growing, shrinking, failing clearly, and ending.

mod pool_world;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::future::BoxFuture;
use nix::sys::signal::Signal;
use rollhouse::{
    config::{Redactor, Secret},
    serve::pool::{Crew, NotStarted, OnLost, PoolKind, PoolSettings, PoolStatus, Seat, Started, WorkerState, log_of},
};
use serde_json::json;

use self::pool_world::{Asker, Pretended, Shell, gone, pids, pool, settings, signal, soon, text, until};

#[test]
#[ignore = "a worker, started by pools"]
fn worker() {
    pool_world::worker();
}

fn fixed(num_workers: usize) -> PoolSettings {
    PoolSettings { kind: PoolKind::Static { num_workers }, ..settings() }
}

#[tokio::test]
async fn a_worker_that_cannot_start_is_told_at_once_with_its_last_lines_and_its_status() {
    let logs = tempfile::tempdir().unwrap();
    let settings = PoolSettings {
        logs: Some(logs.path().join("deep")),
        redactor: Redactor::new([&Secret::new("sk-very-secret".to_owned())]),
        ..fixed(2)
    };
    let script = "echo loading; echo 'ModuleNotFoundError: No module named sk-very-secret' >&2; exit 7";
    let pool = pool(settings, Arc::new(Shell(script))).await;
    let mut asker = Asker::new(&pool);
    asker.run("early", json!({})).await;
    let began = Instant::now();
    let error = text(&soon(pool.ready()).await.unwrap_err());
    assert!(began.elapsed() < Duration::from_secs(30), "far below the time it may take to start");
    assert!(error.contains(" did not start: it ended with exit status 7; its last lines:\n"), "{error}");
    assert!(error.contains("\n  loading") && error.contains("No module named [redacted]"), "{error}");
    asker.run("late", json!({})).await;
    asker.ask("health", "health", "").await;
    soon(asker.wait_all()).await;
    for id in ["early", "late", "health"] {
        assert_eq!(asker.got(id).error(), format!("NoWorkers: {error}"));
    }
    let log = std::fs::read_to_string(log_of(&logs.path().join("deep"), 0)).unwrap();
    assert!(log.contains("loading\n") && log.contains("[redacted]") && !log.contains("sk-very"), "{log}");
    soon(pool.shut_down(Duration::ZERO)).await;
}

#[tokio::test]
async fn a_program_that_is_not_there_is_named() {
    struct Nothing;
    impl Crew for Nothing {
        fn start<'a>(&'a self, _seat: &'a Seat) -> BoxFuture<'a, Result<Started, NotStarted>> {
            Box::pin(async { Err(NotStarted("cannot start `/no/python`: no such file".to_owned())) })
        }
    }
    let pool = pool(fixed(1), Arc::new(Nothing)).await;
    let error = text(&soon(pool.ready()).await.unwrap_err());
    assert_eq!(
        error,
        "env server worker 0 did not start: it could not be started: cannot start `/no/python`: no such file"
    );
}

#[tokio::test]
async fn requests_of_all_kinds_get_their_answers() {
    let pool = pool(fixed(2), Pretended::crew()).await;
    let (mut one, mut other) = (Asker::new(&pool), Asker::new(&pool));
    one.ask("h", "health", "").await;
    one.ask("x", "frobnicate", "").await;
    one.raw(vec![Bytes::from_static(b"two"), Bytes::from_static(b"frames")]).await;
    one.raw(vec![Bytes::from_static(b"\xff\xfe"), Bytes::from_static(b"nothing"), Bytes::new(), Bytes::new()]).await;
    // The same ids on both sides, which are two runs.
    for asker in [&mut one, &mut other] {
        asker.run("a", json!({"deltas": 3, "ms": 20})).await;
        asker.run("b", json!({})).await;
    }
    one.run("long", json!({"deltas": 1, "ms": 3_600_000})).await;
    soon(one.wait(&["h", "x", "a", "b"])).await;
    soon(other.wait_all()).await;
    assert_eq!(one.got("h").replies[0]["success"], true);
    assert_eq!(one.got("x").error(), "unknown method 'frobnicate'");
    for asker in [&one, &other] {
        assert!(asker.got("a").is_whole() && asker.got("b").is_whole(), "{:?}", asker.runs);
    }
    // Nobody cancels what is not theirs.
    other.cancel("c", "long").await;
    soon(other.wait_all()).await;
    assert_eq!(other.got("c").replies[0]["cancelled"], false);
    one.cancel("c", "long").await;
    one.cancel("again", "a").await;
    soon(one.wait_all()).await;
    assert_eq!(one.got("c").replies[0]["cancelled"], true);
    assert_eq!(one.got("again").replies[0]["cancelled"], false);
    assert_eq!(one.got("long").error(), "Cancelled: rollout aborted");
    let status = soon(until(&pool, |status| status.in_flight == 0 && status.ready() == 2)).await;
    assert_eq!((status.lost, status.redone), (0, 0));
    soon(pool.shut_down(Duration::ZERO)).await;
}

#[tokio::test]
async fn the_runs_of_a_client_that_leaves_are_cancelled() {
    let pool = pool(fixed(1), Pretended::crew()).await;
    let mut leaving = Asker::new(&pool);
    for run in 0..20 {
        leaving.run(&format!("r{run}"), json!({"ms": 3_600_000})).await;
    }
    let mut staying = Asker::new(&pool);
    staying.run("r0", json!({"ms": 100, "deltas": 1})).await;
    soon(until(&pool, |status| status.in_flight == 21 && status.waiting == 0)).await;
    drop(leaving);
    soon(staying.wait_all()).await;
    assert!(staying.got("r0").is_whole());
    soon(until(&pool, |status| status.in_flight == 0)).await;
    soon(pool.shut_down(Duration::ZERO)).await;
}

#[tokio::test]
async fn an_elastic_pool_grows_by_the_rule_and_shrinks_when_it_is_idle() {
    let kind = PoolKind::Elastic { max_workers: Some(3), multiplex: 10 };
    let pool = pool(PoolSettings { kind, idle: Duration::from_millis(200), ..settings() }, Pretended::crew()).await;
    let mut asker = Asker::new(&pool);
    for (runs, workers) in [(8, 1), (9, 2), (17, 2), (18, 3), (60, 3)] {
        for run in asker.runs.len()..runs {
            asker.run(&format!("r{run}"), json!({"ms": 3_600_000})).await;
        }
        let status = soon(until(&pool, |status| status.in_flight == runs)).await;
        assert_eq!(status.workers.len(), workers, "with {runs} runs");
    }
    let full = soon(until(&pool, |status| status.ready() == 3)).await;
    for run in 0..60 {
        asker.cancel(&format!("c{run}"), &format!("r{run}")).await;
    }
    let small = soon(until(&pool, |status| status.workers.len() == 1 && status.in_flight == 0)).await;
    assert_eq!((small.workers[0].index, small.workers[0].state, small.lost), (0, WorkerState::Ready, 0));
    for pid in pids(&full).into_iter().filter(|pid| !pids(&small).contains(pid)) {
        gone(pid);
    }
    soon(asker.wait_all()).await;
    asker.run("more", json!({})).await;
    soon(asker.wait_all()).await;
    assert!(asker.got("more").is_whole());
    soon(pool.shut_down(Duration::ZERO)).await;
}

/// The same runs begin and end at the broker of verifiers and here: each run goes to the same worker, and the pool grows at
/// the same run.
#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "the peer in a process")]
async fn it_sends_runs_where_the_broker_of_verifiers_does_and_grows_when_that_does() {
    let (mut steps, mut open, mut begun, mut draw) = (Vec::new(), Vec::new(), 0, 7_usize);
    for _ in 0..80 {
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if open.is_empty() || draw >> 40 & 7 < 5 {
            open.push(begun);
            begun += 1;
            steps.push(None);
        } else {
            steps.push(Some(open.swap_remove((draw >> 44) % open.len())));
        }
    }
    let python = std::env::var("ROLLHOUSE_TEST_PYTHON")
        .expect("ROLLHOUSE_TEST_PYTHON names no interpreter with verifiers: run the tests with `tests/run`");
    let order = json!({"multiplex": 4, "max_workers": 4, "steps": steps}).to_string();
    let peer = std::thread::spawn(move || {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/pool_peer.py");
        std::process::Command::new(python).args([script, &order]).output().unwrap()
    });
    let kind = PoolKind::Elastic { max_workers: Some(4), multiplex: 4 };
    let pool = pool(PoolSettings { kind, ..settings() }, Pretended::crew()).await;
    let mut asker = Asker::new(&pool);
    let (mut counts, mut begun, mut in_flight) = (Vec::new(), 0, 0);
    for step in &steps {
        match step {
            None => {
                asker.run(&format!("r{begun}"), json!({"ms": 3_600_000})).await;
                (begun, in_flight) = (begun + 1, in_flight + 1);
            }
            Some(run) => {
                asker.cancel(&format!("c{run}"), &format!("r{run}")).await;
                in_flight -= 1;
            }
        }
        let settled = |status: &PoolStatus| status.in_flight == in_flight && status.ready() == status.workers.len();
        let status = soon(until(&pool, settled)).await;
        counts.push(status.workers.iter().map(|worker| worker.in_flight).collect::<Vec<_>>());
    }
    let peer = peer.join().unwrap();
    let expected: Vec<Vec<usize>> =
        serde_json::from_slice(&peer.stdout).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&peer.stderr)));
    assert_eq!(counts, expected);
    assert_eq!(counts.last().unwrap().len(), 4, "it has grown to its bound");
    soon(pool.shut_down(Duration::ZERO)).await;
}

#[tokio::test]
async fn workers_that_die_again_and_again_end_the_pool_with_what_they_said() {
    let crew = Pretended::with(|start| if start == 0 { "" } else { "dies at once" });
    let pool = pool(fixed(1), crew.clone()).await;
    soon(pool.ready()).await.unwrap();
    let mut asker = Asker::new(&pool);
    asker.run("waits", json!({"ms": 3_600_000})).await;
    let status = soon(until(&pool, |status| status.in_flight == 1)).await;
    signal(pids(&status)[0], Signal::SIGKILL);
    soon(asker.wait_all()).await;
    let error = asker.got("waits").error();
    assert!(
        error.starts_with("NoWorkers: env server worker 0 did not start: it ended with exit status 101"),
        "{error}"
    );
    assert!(error.contains("start 5 in a row that failed") && error.contains("this one does not come up"), "{error}");
    assert_eq!(crew.starts(), 6);
    assert!(text(&soon(pool.failed()).await).contains("does not come up"));
    soon(pool.shut_down(Duration::ZERO)).await;
}

#[tokio::test]
async fn a_run_that_kills_its_workers_fails_and_no_other_does() {
    let pool = pool(fixed(2), Pretended::crew()).await;
    let mut asker = Asker::new(&pool);
    for run in 0..10 {
        asker.run(&format!("r{run}"), json!({"ms": 400, "deltas": 4})).await;
    }
    asker.run("poison", json!({"do": "die"})).await;
    for run in 10..20 {
        asker.run(&format!("r{run}"), json!({"ms": 400, "deltas": 4})).await;
    }
    soon(asker.wait_all()).await;
    let error = asker.got("poison").error().to_owned();
    assert!(error.contains("was killed by SIGABRT, with this run in flight; so were 2 workers before it"), "{error}");
    asker.runs.remove("poison");
    assert!(asker.runs.values().all(pool_world::Got::is_whole), "{:?}", asker.runs);
    let status = soon(until(&pool, |status| status.ready() == 2)).await;
    assert_eq!((status.lost, status.in_flight), (3, 0));
    soon(pool.shut_down(Duration::ZERO)).await;
}

/// Each way to be lost that is no death, once, with a run beside it that is redone.
#[tokio::test]
async fn workers_that_stall_stop_or_talk_nonsense_are_replaced_and_their_runs_redone() {
    for (order, how) in [
        ("stall", "stalled: it left a question for its health unanswered"),
        ("stop", "stopped answering: the peer gave no sign of life"),
        ("garbage", "talked nonsense: it answered what nobody asked"),
        ("many frames", "talked nonsense: it sent a message of 7 frames"),
    ] {
        // One that is stopped does not answer either, which is not what is proved then.
        let stalled = Duration::from_millis(if order == "stall" { 1000 } else { 60_000 });
        let settings = PoolSettings { stalled, ..fixed(1) };
        let pool = pool(settings, Pretended::crew()).await;
        let mut asker = Asker::new(&pool);
        asker.run("beside", json!({"ms": 1000, "deltas": 20})).await;
        while asker.got("beside").traces.is_empty() {
            soon(asker.take()).await;
        }
        let before = pids(&pool.status().borrow());
        asker.run("bad", json!({"do": order})).await;
        soon(asker.wait_all()).await;
        let error = asker.got("bad").error();
        assert!(error.contains(how) && error.contains("so were 2 workers before"), "{order}: {error}");
        assert!(asker.got("beside").is_whole() && asker.got("beside").discards > 0, "{order}");
        gone(before[0]);
        soon(pool.shut_down(Duration::ZERO)).await;
    }
}

#[tokio::test]
async fn by_policy_the_runs_of_a_lost_worker_fail_at_once() {
    let pool = pool(PoolSettings { on_lost: OnLost::Fail, ..fixed(2) }, Pretended::crew()).await;
    let mut asker = Asker::new(&pool);
    soon(until(&pool, |status| status.ready() == 2)).await;
    asker.run("a", json!({"do": "die"})).await;
    asker.run("b", json!({"ms": 300})).await;
    soon(asker.wait_all()).await;
    assert!(asker.got("a").error().contains("another attempt can succeed"));
    assert!(asker.got("b").is_whole());
    asker.run("c", json!({})).await;
    soon(asker.wait_all()).await;
    assert!(asker.got("c").is_whole());
}

#[tokio::test]
async fn a_shut_down_lets_runs_finish_refuses_new_ones_and_cancels_the_rest() {
    let pool = pool(fixed(2), Pretended::crew()).await;
    let mut asker = Asker::new(&pool);
    asker.run("short", json!({"ms": 500, "deltas": 2})).await;
    asker.run("long", json!({"ms": 3_600_000, "deltas": 2})).await;
    let status = soon(until(&pool, |status| status.in_flight == 2 && status.waiting == 0 && status.ready() == 2)).await;
    let end = tokio::spawn(pool.shut_down(Duration::from_secs(3)));
    // Until the order is heard a run is taken, and then it ends in time.
    while asker.runs.values().filter(|got| !got.replies.is_empty()).count() < 3 {
        let id = format!("late{}", asker.runs.len());
        asker.run(&id, json!({})).await;
        soon(asker.wait(&[&id])).await;
    }
    soon(asker.wait(&["short", "long"])).await;
    assert!(asker.got("short").is_whole());
    assert!(asker.got("long").error().starts_with("PoolClosed: "));
    let refused = asker.runs.iter().filter(|(id, got)| id.starts_with("late") && got.replies[0]["success"] == false);
    assert!(refused.count() > 0);
    soon(end).await.unwrap();
    pids(&status).into_iter().for_each(gone);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_runs_in_flight_end_each_once() {
    let pool = pool(fixed(2), Pretended::crew()).await;
    let mut asker = Asker::new(&pool);
    for run in 0..5000 {
        asker.run(&format!("r{run}"), json!({"ms": 3_600_000, "deltas": 0})).await;
    }
    let status = soon(until(&pool, |status| status.in_flight == 5000 && status.waiting == 0)).await;
    assert!(status.workers.iter().all(|worker| worker.in_flight > 0), "{status:?}");
    for run in 0..5000 {
        match run % 2 {
            0 => asker.cancel(&format!("c{run}"), &format!("r{run}")).await,
            _ => asker.run(&format!("s{run}"), json!({"ms": 1000, "deltas": 2})).await,
        }
    }
    for run in (1..5000).step_by(2) {
        asker.cancel(&format!("c{run}"), &format!("r{run}")).await;
    }
    soon(asker.wait_all()).await;
    for (id, got) in &asker.runs {
        match id.as_bytes()[0] {
            b'r' => assert_eq!(got.error(), "Cancelled: rollout aborted"),
            b'c' => assert_eq!(got.replies[0]["cancelled"], true),
            _ => assert!(got.is_whole(), "{id}: {got:?}"),
        }
    }
    soon(until(&pool, |status| status.in_flight == 0)).await;
    soon(pool.shut_down(Duration::ZERO)).await;
}
