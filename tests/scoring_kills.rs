//! A run whose judge fails now and then, killed over and over while it judges and compares, loses no agent's work, repeats
//! none, and compares whole groups in the end.
#![allow(clippy::disallowed_methods, reason = "tests start and end processes of their own")]

mod launch;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use launch::{Sayings, Setup, episodes, launch_in};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use rollhouse::{
    eval::Stops,
    rubric::{GroupScorer, RewardLine, Rubric, Score, ScoreContext, asynchronous},
    sim::{Settings, Simulator},
    store::Event,
    trace::{Fault, FaultClass, TaskData, Trace},
};
use tokio::sync::mpsc;

const KILLS: usize = 40;
const TASKS: u64 = 30;
const ROLLOUTS: u32 = 3;
const PLANNED: u64 = TASKS * ROLLOUTS as u64;
const RUN: &str = "ROLLHOUSE_TEST_RUN";
const ENDPOINT: &str = "ROLLHOUSE_TEST_ENDPOINT";

/// The size of the group, for each of its members.
struct Size;

impl GroupScorer for Size {
    fn score<'a>(&'a self, _: &'a TaskData, group: &'a [&'a Trace]) -> BoxFuture<'a, Result<Vec<Score>, Fault>> {
        Box::pin(async { Ok(vec![Score::from(group.len() as f64); group.len()]) })
    }
}

fn setup(base_url: String) -> Setup {
    Setup { concurrent: 4, ..Setup::new(base_url, TASKS, ROLLOUTS) }
}

/// The process that is killed: one launch of the run that the environment names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a process of the test below"]
async fn one_launch() {
    let run = PathBuf::from(std::env::var(RUN).unwrap());
    let judged = asynchronous(|_: ScoreContext<'_>| {
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            if rand::rng().random_bool(0.1) {
                return Err(Fault::new(FaultClass::Judge, "no verdict"));
            }
            Ok(Score::from(1.0))
        })
    });
    let rubric = Rubric::new().reward("judged", 1.0, judged).group_reward(RewardLine::new("size", 1.0), Arc::new(Size));
    let (events, mut received) = mpsc::channel::<Event>(64);
    tokio::spawn(async move { while received.recv().await.is_some() {} });
    let taskset = Sayings { rubric: rubric.build().unwrap(), ..Sayings::default() };
    let ended = launch_in(&run, &setup(std::env::var(ENDPOINT).unwrap()), taskset, events).run(Stops::default()).await;
    let results = ended.results;
    assert_eq!((results.scored + results.failed, results.not_run), (PLANNED, 0));
}

/// Episodes whose agents' work is on the disk.
fn kept(run: &std::path::Path) -> BTreeSet<String> {
    let lines = |name: &str| std::fs::read_to_string(run.join(name)).unwrap_or_default();
    let text = lines("traces.jsonl") + &lines("pending.jsonl");
    let id = |line: &str| Some(serde_json::from_str::<serde_json::Value>(line).ok()?["id"].as_str()?.to_owned());
    text.lines().filter_map(id).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_while_judging_cost_no_agents_work() {
    let simulator = Simulator::start(Settings::default(), None).await.unwrap();
    let mut random = StdRng::seed_from_u64(11);
    let (mut kills, mut while_pending, mut failed) = (0, 0, 0);
    while kills < KILLS {
        let setup = setup(simulator.base_url());
        let run = setup.run_path();
        let answered = simulator.stats().completed;
        let mut before = BTreeSet::new();
        let mut dropped = 0;
        loop {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "one_launch", "--ignored"])
                .envs([(RUN, run.as_os_str()), (ENDPOINT, simulator.base_url().as_ref())])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            if kills < KILLS {
                std::thread::sleep(Duration::from_micros(random.random_range(10_000..300_000)));
                let _ = child.kill();
            }
            let status = child.wait().unwrap();
            let now = kept(&run);
            assert!(before.is_subset(&now), "the work of an agent was lost after kill {kills}");
            before = now;
            if status.success() {
                assert!(!setup.has_pending(), "a complete run leaves nothing pending");
                let grown = episodes(&run);
                failed += grown.iter().filter(|episode| !episode.ok).count();
                assert_eq!(grown.len() as u64, PLANNED, "counts add up to the plan");
                if grown.iter().all(|episode| episode.ok) {
                    break;
                }
                continue;
            }
            assert_eq!(status.code(), None, "a launch failed by itself after kill {kills}");
            kills += 1;
            while_pending += usize::from(setup.has_pending());
            // Those in flight when it died: at most as many as run at once had been answered and not yet written.
            dropped += setup.concurrent as u64;
        }
        let episodes = episodes(&run);
        let mut of_task: BTreeMap<u64, u32> = BTreeMap::new();
        for episode in &episodes {
            *of_task.entry(episode.task.data.idx.unwrap()).or_default() += 1;
            assert_eq!(episode.traces[0].rewards["size"].unwrap().score, f64::from(ROLLOUTS));
        }
        assert_eq!(of_task.into_values().collect::<Vec<_>>(), vec![ROLLOUTS; TASKS as usize]);
        assert_eq!(episodes.iter().map(|episode| &episode.id).collect::<BTreeSet<_>>().len(), episodes.len());
        let spent = simulator.stats().completed - answered;
        assert!(spent <= PLANNED + dropped, "{spent} answers for {} rollouts", episodes.len());
    }
    assert!(failed > 0, "some launches end with groups that grow later");
    assert!(while_pending > KILLS / 4, "only {while_pending} kills hit a run with pending episodes");
}
