//! A run that is killed over and over loses no finished rollout and repeats none.
#![allow(clippy::disallowed_methods, reason = "tests look at files and end processes of their own")]

mod program;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    process::Stdio,
    thread,
    time::Duration,
};

use program::{Folder, Simulator, episodes};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

const KILLS: usize = 200;
const TASKS: usize = 400;
const ROLLOUTS: usize = 2;

#[test]
fn two_hundred_kills_lose_and_repeat_nothing() {
    let simulator = Simulator::start(&["--policy", "oracle", "--ttft-ms", "10"]);
    let mut random = StdRng::seed_from_u64(7);
    let mut kills = 0;
    let mut resumed_after_a_kill = 0;
    while kills < KILLS {
        let folder = Folder::new();
        let mut finished: BTreeSet<Vec<u8>> = BTreeSet::new();
        loop {
            let run = run_of(&folder);
            let mut child = start(&folder, &simulator, run.as_ref());
            thread::sleep(Duration::from_micros(random.random_range(1_000..250_000)));
            let ended = child.try_wait().unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            if ended.is_some_and(|status| status.success()) {
                break;
            }
            kills += 1;
            let Some(run) = run_of(&folder) else { continue };
            let text = fs::read(run.join("traces.jsonl")).unwrap_or_default();
            let whole: BTreeSet<Vec<u8>> = text
                .split_inclusive(|byte| *byte == b'\n')
                .filter(|line| line.ends_with(b"\n"))
                .map(<[u8]>::to_vec)
                .collect();
            assert!(finished.is_subset(&whole), "a finished rollout was lost after kill {kills}");
            resumed_after_a_kill += usize::from(!finished.is_empty());
            finished = whole;
            if kills >= KILLS {
                break;
            }
        }
        let run = run_of(&folder).expect("a run that could start has a folder");
        folder.run(&["eval", "--resume", run.to_str().unwrap()]).expect(0);
        let text = fs::read(run.join("traces.jsonl")).unwrap();
        let lines: BTreeSet<Vec<u8>> = text.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        assert!(finished.is_subset(&lines), "a finished rollout was lost");
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        for episode in episodes(&run) {
            assert_eq!(episode["ok"], true);
            *counts.entry(episode["task"]["data"]["idx"].as_u64().unwrap()).or_default() += 1;
        }
        assert_eq!(
            counts.values().copied().collect::<Vec<_>>(),
            vec![ROLLOUTS; TASKS],
            "a rollout was repeated or is missing"
        );
    }
    assert!(resumed_after_a_kill > 20, "only {resumed_after_a_kill} kills hit a run with finished rollouts");
}

fn start(folder: &Folder, simulator: &Simulator, run: Option<&PathBuf>) -> std::process::Child {
    let tasks = TASKS.to_string();
    let rollouts = ROLLOUTS.to_string();
    let arguments = match run {
        Some(run) => vec!["eval", "--resume", run.to_str().unwrap()],
        None => {
            vec![
                "eval",
                "reverse-text",
                "-m",
                "sim",
                "-b",
                &simulator.base_url,
                "-n",
                &tasks,
                "-r",
                &rollouts,
                "-c",
                "2",
            ]
        }
    };
    folder.command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// The run folder, once its resolved config is there to resume from.
fn run_of(folder: &Folder) -> Option<PathBuf> {
    folder.runs().into_iter().find(|run| run.join("configs/resolved/eval.json").exists())
}
