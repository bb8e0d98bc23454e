//! Launches runs of a taskset made in the test, against a simulator in process that repeats what it is told.
#![allow(unreachable_pub, dead_code, reason = "each test file uses a part of it")]

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rollhouse::{
    agent::{Agent, seat},
    config::{Limits, Redactor, RetryRules, Select, StageDeadlines},
    envs::{self, Episodes, Scoring},
    eval::{Ended, Launch, Stops},
    harness::Null,
    inference::{Pool, PoolSettings},
    rubric::Rubric,
    store::{Event, Opening, RunDir, RunState, STATE_VERSION},
    taskset::{Hooks, TaskStream, Taskset, TasksetSize, User, generated},
    trace::{EnvInfo, Episode, Prompt, RunInfo, TaskData, TaskTimeout, TraceTask},
};
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::mpsc;

type MakeUser = Box<dyn Fn() -> Box<dyn User> + Send + Sync>;

/// Tasks "say 0", "say 1" and so on.
#[derive(Default)]
pub struct Sayings {
    pub rubric: Rubric,
    pub hooks: Option<Arc<dyn Hooks>>,
    pub user: Option<MakeUser>,
    pub timeout: TaskTimeout,
}

impl Taskset for Sayings {
    fn tasks(&self) -> TaskStream {
        let timeout = self.timeout;
        generated("SayingTask", 0, None, move |number| TaskData {
            prompt: Some(Prompt::Text(format!("say {number}"))),
            timeout,
            ..TaskData::default()
        })
    }

    fn size(&self) -> TasksetSize {
        TasksetSize::Infinite
    }

    fn rubric(&self) -> &Rubric {
        &self.rubric
    }

    fn user(&self, _task: &TraceTask) -> Option<Box<dyn User>> {
        self.user.as_ref().map(|user| user())
    }

    fn hooks(&self) -> Option<Arc<dyn Hooks>> {
        self.hooks.clone()
    }
}

/// A folder and the settings of its run.
pub struct Setup {
    pub dir: TempDir,
    pub base_url: String,
    pub tasks: u64,
    pub rollouts: u32,
    pub concurrent: usize,
    pub deadlines: StageDeadlines,
    pub episode_deadline: Option<Duration>,
    pub agent_retries: RetryRules,
    pub retries: RetryRules,
}

impl Setup {
    pub fn new(base_url: String, tasks: u64, rollouts: u32) -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            base_url,
            tasks,
            rollouts,
            concurrent: 8,
            deadlines: StageDeadlines::default(),
            episode_deadline: None,
            agent_retries: RetryRules::default(),
            retries: RetryRules::default(),
        }
    }

    pub fn run_path(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    /// Begins the run, or goes on with it.
    pub async fn launch(&self, taskset: Sayings) -> Ended {
        self.launch_with(taskset, Stops::default()).await
    }

    pub async fn launch_with(&self, taskset: Sayings, stops: Stops) -> Ended {
        let (events, mut received) = mpsc::channel::<Event>(64);
        let watcher = tokio::spawn(async move { while received.recv().await.is_some() {} });
        let ended = launch_in(&self.run_path(), self, taskset, events).run(stops).await;
        watcher.await.unwrap();
        ended
    }

    pub fn has_pending(&self) -> bool {
        self.run_path().join("pending.jsonl").exists()
    }

    pub fn episodes(&self) -> Vec<Episode> {
        episodes(&self.run_path())
    }
}

pub fn episodes(run: &Path) -> Vec<Episode> {
    let text = std::fs::read_to_string(run.join("traces.jsonl")).unwrap_or_default();
    text.lines().map(|line| Episode::from_line(line.as_bytes()).unwrap()).collect()
}

/// A launch and where it tells what happens.
pub struct Ready {
    launch: Launch,
    events: mpsc::Sender<Event>,
}

impl Ready {
    pub async fn run(self, stops: Stops) -> Ended {
        self.launch.run(self.events, stops).await.unwrap()
    }
}

pub fn launch_in(run: &Path, setup: &Setup, taskset: Sayings, events: mpsc::Sender<Event>) -> Ready {
    let name = Path::new(run.file_name().unwrap());
    let run_dir = if run.join("run.json").exists() || run.join("traces.jsonl").exists() {
        RunDir::resume(run).unwrap()
    } else {
        RunDir::open(run.parent().unwrap(), name, Opening::Fresh).unwrap()
    };
    let state = run_dir.load_state().unwrap().unwrap_or_else(|| RunState {
        version: STATE_VERSION,
        id: "0".repeat(32),
        name: "run".to_owned(),
        taskset: "sayings".to_owned(),
        model: "sim".to_owned(),
        simulated: true,
        num_rollouts: setup.rollouts,
        tasks: None,
        taskset_files: BTreeMap::new(),
        attempts: Vec::new(),
        source: None,
    });
    let none = json!({});
    let agent = Agent {
        harness: Arc::new(Null),
        pool: Pool::new(PoolSettings::new([setup.base_url.as_str()]), None).unwrap(),
        model: "sim".to_owned(),
        sampling: Arc::default(),
        tokens: None,
        limits: Limits { max_turns: Some(4), ..Limits::default() },
        deadlines: setup.deadlines,
        retries: setup.agent_retries.clone(),
        info: seat(&none, "sim", &none, &none).unwrap(),
        events: events.clone(),
        watch: None,
    };
    let select = Select { limit: Some(setup.tasks), ..Select::default() };
    let taskset: Arc<dyn Taskset> = Arc::new(taskset);
    let episodes = Episodes {
        scoring: Scoring {
            taskset: Arc::clone(&taskset),
            deadline: setup.deadlines.scoring,
            retries: [setup.agent_retries.clone(), setup.retries.clone()],
        },
        env: envs::for_taskset(Arc::clone(&taskset), Arc::new(agent)),
        info: EnvInfo { id: state.taskset.clone(), name: None },
        run: Some(RunInfo::Eval { id: state.id.clone(), name: Some(state.name.clone()) }),
        deadline: setup.episode_deadline,
        retries: setup.retries.clone(),
        watch: None,
    };
    let launch = Launch {
        title: "a test".to_owned(),
        attempt: state.attempts.len() as u32 + 1,
        run_dir,
        state,
        tasks: rollhouse::taskset::select(&*taskset, &select).unwrap(),
        select,
        episodes,
        max_concurrent: setup.concurrent,
        max_error_rate: 1.0,
        redactor: Redactor::default(),
    };
    Ready { launch, events }
}
