//! What tests of env servers need: shipped tasksets served to a simulated model, and hosts that do as they are told.
#![allow(unreachable_pub, dead_code, reason = "each test file uses a part of it")]

pub mod python;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{TryStreamExt as _, future::BoxFuture};
use rollhouse::{
    agent::Watch,
    config::{AgentConfig, Document, Layer, Limits, Reader, RetryRules, StageDeadlines},
    serve::{Client, Host, HostSettings, Refused, RunRequest, Server, ServerSettings, TasksetHost},
    sim::{Oracle, Policy, Simulator},
    taskset::{Task, Taskset},
    tasksets,
    trace::{EnvInfo, Episode, Message, Trace},
    zmtp::{Address, BindError, Settings},
};
use serde_json::{Map, Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A shipped taskset.
pub fn taskset(id: &str, config: Value) -> Arc<dyn Taskset> {
    let mut reader = Reader::new(Document::new([Layer::from_value(&config)]));
    let found = tasksets::find(id).unwrap();
    let taskset = (found.open)(&mut reader.root()).unwrap();
    reader.finish().unwrap();
    taskset
}

/// Its first tasks.
pub async fn tasks(taskset: &dyn Taskset, count: usize) -> Vec<Task> {
    use futures::StreamExt as _;
    taskset.tasks().take(count).try_collect().await.unwrap()
}

struct Solver(Arc<dyn Taskset>);

impl Oracle for Solver {
    fn solve<'a>(&'a self, conversation: &'a [Message]) -> BoxFuture<'a, Option<String>> {
        Box::pin(std::future::ready(self.0.solve(conversation)))
    }
}

/// A model that solves the tasks of a taskset.
pub async fn solver(taskset: &Arc<dyn Taskset>, settings: rollhouse::sim::Settings) -> Simulator {
    let settings = rollhouse::sim::Settings { policy: Policy::Oracle, ..settings };
    Simulator::start(settings, Some(Arc::new(Solver(Arc::clone(taskset))))).await.unwrap()
}

/// A host of a taskset with a plain seat.
pub fn host(taskset: &Arc<dyn Taskset>, id: &str) -> TasksetHost {
    TasksetHost::new(Arc::clone(taskset), host_settings(id))
}

pub fn host_settings(id: &str) -> HostSettings {
    HostSettings {
        env: EnvInfo { id: id.to_owned(), name: None },
        agent: AgentConfig {
            harness: "null".to_owned(),
            limits: Limits::default(),
            deadlines: StageDeadlines::default(),
            retries: RetryRules::default(),
        },
        block: json!({"harness": {"id": "null"}, "runtime": {"type": "subprocess"}, "max_turns": null}),
        model: None,
        client: None,
        sampling: Map::new(),
        deadline: None,
        retries: RetryRules::default(),
    }
}

pub fn map(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

pub fn client_block(base_url: &str) -> Map<String, Value> {
    map(json!({"type": "eval", "base_url": base_url}))
}

pub fn request(task: &Task, base_url: &str) -> RunRequest {
    RunRequest::new(&task.data, client_block(base_url), "sim", Map::new()).unwrap()
}

/// A request for hosts that do not look at it.
pub fn any_request() -> RunRequest {
    RunRequest { task_data: Map::new(), client: Map::new(), model: "m".to_owned(), sampling: Map::new() }
}

pub fn loopback() -> Address {
    "tcp://127.0.0.1:0".parse().unwrap()
}

/// A server at work.
pub struct Running {
    pub address: Address,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    pub async fn start(host: impl Host + 'static) -> Self {
        Self::with(host, &loopback(), ServerSettings::default()).await
    }

    pub async fn with(host: impl Host + 'static, address: &Address, settings: ServerSettings) -> Self {
        let host: Arc<dyn Host> = Arc::new(host);
        // One that was killed lets its address go a moment later.
        let server = within(async {
            loop {
                match Server::bind(address, settings.clone(), Arc::clone(&host)).await {
                    Err(BindError::InUse(_)) => tokio::time::sleep(Duration::from_millis(2)).await,
                    bound => return bound.unwrap(),
                }
            }
        })
        .await;
        let (address, stop) = (server.address().clone(), CancellationToken::new());
        let task = tokio::spawn(server.run(stop.clone()));
        Self { address, stop, task }
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address.clone(), Settings::default())
    }

    /// Asks it to shut down.
    pub fn ask_to_stop(&self) {
        self.stop.cancel();
    }

    /// Waits for its end.
    pub async fn ended(self) {
        within(self.task).await.unwrap();
    }

    pub async fn stop(self) {
        self.ask_to_stop();
        self.ended().await;
    }

    /// As a crash does: without a word.
    pub async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// Bounds what a test waits for.
pub async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), work).await.expect("it took too long")
}

/// Waits until something is so.
pub async fn until(mut so: impl FnMut() -> bool) {
    within(async {
        while !so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

type Play = dyn Fn(RunRequest, Arc<dyn Watch>, usize) -> BoxFuture<'static, Result<Episode, Refused>> + Send + Sync;

/// A host that does as it is told, and counts.
#[derive(Clone)]
pub struct Told {
    play: Arc<Play>,
    pub counts: Arc<Counts>,
}

/// Runs of a [`Told`] host.
#[derive(Default)]
pub struct Counts {
    pub begun: AtomicUsize,
    pub running: AtomicUsize,
    pub most: AtomicUsize,
}

impl Counts {
    pub fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    pub fn running(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }

    pub fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}

impl Told {
    /// `play` gets the request, who watches, and how many runs there were before.
    pub fn new<F: Future<Output = Result<Episode, Refused>> + Send + 'static>(
        play: impl Fn(RunRequest, Arc<dyn Watch>, usize) -> F + Send + Sync + 'static,
    ) -> Self {
        let play: Arc<Play> = Arc::new(move |request, watch, before| Box::pin(play(request, watch, before)));
        Self { play, counts: Arc::default() }
    }

    /// One whose runs never end.
    pub fn endless() -> Self {
        Self::new(|_, _, _| std::future::pending())
    }
}

struct Leave(Arc<Counts>);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Host for Told {
    fn run<'a>(&'a self, request: RunRequest, watch: Arc<dyn Watch>) -> BoxFuture<'a, Result<Episode, Refused>> {
        let before = self.counts.begun.fetch_add(1, Ordering::SeqCst);
        let running = self.counts.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.counts.most.fetch_max(running, Ordering::SeqCst);
        let leave = Leave(Arc::clone(&self.counts));
        let play = (self.play)(request, watch, before);
        Box::pin(async move {
            let _leave = leave;
            play.await
        })
    }
}

/// What a watcher saw of one run.
#[derive(Debug, Default)]
pub struct Seen {
    pub states: Mutex<Vec<State>>,
    pub discarded: Mutex<Vec<String>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct State {
    pub trace: String,
    pub nodes: usize,
    pub pending: usize,
}

impl Watch for Seen {
    fn changed(&self, trace: &Trace, pending: &[Message]) {
        let state = State { trace: trace.id.clone(), nodes: trace.graph.nodes().len(), pending: pending.len() };
        self.states.lock().unwrap().push(state);
    }

    fn discarded(&self, trace: &Trace) {
        self.discarded.lock().unwrap().push(trace.id.clone());
    }
}

/// An episode as its line.
pub fn line(episode: &Episode) -> Value {
    let mut line = Vec::new();
    episode.write_line(&mut line).unwrap();
    serde_json::from_slice(&line).unwrap()
}
