//! Workers that do what the request of a run says, and clients that count what they get.
#![allow(
    unreachable_pub,
    dead_code,
    clippy::disallowed_methods,
    reason = "each test file uses a part of it; a pretended worker is a program of its own"
)]

use std::{
    collections::HashMap,
    env,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rollhouse::{
    runtime::{Child, Program, Stream},
    serve::pool::{Crew, NotStarted, Pool, PoolError, PoolSettings, PoolStatus, Seat, Started},
    trace::wire,
    zmtp::{self, Address, Arrival, Dealer, Frames, Inbox, Router, Visit},
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

const ADDRESS: &str = "POOL_WORLD_ADDRESS";
const MODE: &str = "POOL_WORLD_MODE";

/// The crew of pretended workers: this test program, with the test `worker` of its own.
pub struct Pretended {
    pub starts: AtomicUsize,
    /// How worker number so many of all lives.
    pub mode: Box<dyn Fn(usize) -> &'static str + Send + Sync>,
}

impl Pretended {
    pub fn crew() -> Arc<Self> {
        Self::with(|_| "")
    }

    pub fn with(mode: impl Fn(usize) -> &'static str + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { starts: AtomicUsize::new(0), mode: Box::new(mode) })
    }

    pub fn starts(&self) -> usize {
        self.starts.load(Ordering::SeqCst)
    }
}

impl Crew for Pretended {
    fn start<'a>(&'a self, seat: &'a Seat) -> BoxFuture<'a, Result<Started, NotStarted>> {
        let mode = (self.mode)(self.starts.fetch_add(1, Ordering::SeqCst));
        async move {
            let mut program = Program::new(env::current_exe().unwrap());
            program.arguments = ["--ignored", "--exact", "--nocapture", "worker"].map(Into::into).into();
            program.environment.push((ADDRESS.into(), seat.address.to_string().into()));
            program.environment.push((MODE.into(), mode.into()));
            (program.stdout, program.stderr) = (Stream::Piped, Stream::Piped);
            Child::start(program).await.map(Started::from).map_err(|error| NotStarted(error.to_string()))
        }
        .boxed()
    }
}

/// A crew of one shell script.
pub struct Shell(pub &'static str);

impl Crew for Shell {
    fn start<'a>(&'a self, _seat: &'a Seat) -> BoxFuture<'a, Result<Started, NotStarted>> {
        async {
            let mut program = Program::new("/bin/sh");
            program.arguments = ["-c".into(), self.0.into()].into();
            program.environment.push(("PATH".into(), "/usr/bin:/bin".into()));
            (program.stdout, program.stderr) = (Stream::Piped, Stream::Piped);
            Child::start(program).await.map(Started::from).map_err(|error| NotStarted(error.to_string()))
        }
        .boxed()
    }
}

/// The body of the test `worker`: serves until it is killed.
pub fn worker() {
    let Ok(address) = env::var(ADDRESS) else { return };
    match env::var(MODE).unwrap().as_str() {
        "" => {}
        "dies at once" => panic!("this one does not come up"),
        mode => panic!("{mode}?"),
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(serve(address.parse().unwrap()));
}

async fn serve(address: Address) {
    let (router, mut guests) = Router::bind(&address, zmtp::Settings::default()).await.unwrap();
    let mut runs = JoinSet::new();
    let mut cancels = HashMap::new();
    let mut deaf = false;
    while let Some(visit) = guests.recv().await {
        while runs.try_join_next().is_some() {}
        let Visit::Message(peer, frames) = visit else { continue };
        if deaf {
            continue;
        }
        let (id, payload) = (frames[0].clone(), frames[2].clone());
        let reply =
            |value: Value| vec![id.clone(), "reply".into(), Bytes::from(rmp_serde::to_vec_named(&value).unwrap())];
        match &*frames[1] {
            b"health" => router.send(peer, reply(json!({"success": true, "error": null}))).await.unwrap(),
            b"cancel" => {
                let asked: Value = rmp_serde::from_slice(&payload).unwrap();
                let run: Option<tokio::task::AbortHandle> = cancels.remove(asked["request_id"].as_str().unwrap());
                let cancelled = run.is_some();
                router
                    .send(peer, reply(json!({"success": true, "error": null, "cancelled": cancelled})))
                    .await
                    .unwrap();
                if let Some(run) = run {
                    run.abort();
                    let refused =
                        rmp_serde::to_vec_named(&json!({"success": false, "error": "Cancelled: rollout aborted"}));
                    let id = Bytes::copy_from_slice(asked["request_id"].as_str().unwrap().as_bytes());
                    router.send(peer, vec![id, "reply".into(), refused.unwrap().into()]).await.unwrap();
                }
            }
            b"run" => {
                let order: Value = serde_json::from_slice(&payload).unwrap();
                match order["do"].as_str().unwrap_or_default() {
                    "die" => std::process::abort(),
                    "stop" => kill(Pid::this(), Signal::SIGSTOP).unwrap(),
                    "stall" => {
                        deaf = true;
                        runs.abort_all();
                    }
                    "garbage" => router.send(peer, vec!["what".into(), "is".into(), "this".into()]).await.unwrap(),
                    "many frames" => router.send(peer, vec![Bytes::new(); 7]).await.unwrap(),
                    _ => {
                        let key = String::from_utf8(id.to_vec()).unwrap();
                        let run = runs.spawn(run(router.clone(), peer, id, order));
                        cancels.insert(key, run);
                    }
                }
            }
            _ => panic!("{frames:?}"),
        }
    }
}

/// Sends as many deltas as the order says, over as many milliseconds, and answers.
async fn run(router: Router, peer: zmtp::PeerId, id: Bytes, order: Value) {
    let deltas = order["deltas"].as_u64().unwrap_or_default();
    let pause = Duration::from_millis(order["ms"].as_u64().unwrap_or_default() / (deltas + 1));
    let filling = Bytes::from(vec![7; usize::try_from(order["bytes"].as_u64().unwrap_or_default()).unwrap()]);
    let trace = format!("{}-{}", std::process::id(), String::from_utf8_lossy(&id));
    for number in 0..deltas {
        tokio::time::sleep(pause).await;
        let delta = if filling.is_empty() {
            rmp_serde::to_vec_named(&json!({"trace": trace, "n": number})).unwrap()
        } else {
            // A map of the trace and of bytes.
            let mut delta = [&b"\x82\xa5trace"[..], &rmp_serde::to_vec(&trace).unwrap(), b"\xa1x\xc6"].concat();
            delta.extend_from_slice(&u32::try_from(filling.len()).unwrap().to_be_bytes());
            delta.extend_from_slice(&filling);
            delta
        };
        router.send(peer, vec![id.clone(), "delta".into(), delta.into()]).await.unwrap();
    }
    tokio::time::sleep(pause).await;
    let reply = rmp_serde::to_vec_named(
        &json!({"success": true, "error": null, "pid": std::process::id(), "trace": trace, "deltas": deltas}),
    );
    router.send(peer, vec![id, "reply".into(), reply.unwrap().into()]).await.unwrap();
}

/// A client that keeps what it gets.
pub struct Asker {
    dealer: Dealer,
    inbox: Inbox,
    pub runs: HashMap<String, Got>,
}

/// What came of one request.
#[derive(Clone, Debug, Default)]
pub struct Got {
    /// Deltas of each trace that was not discarded.
    pub traces: HashMap<String, u64>,
    pub discards: usize,
    pub replies: Vec<Value>,
}

impl Got {
    pub fn error(&self) -> &str {
        let [reply] = self.replies.as_slice() else { panic!("{self:?}") };
        assert_eq!(reply["success"], false, "{reply}");
        reply["error"].as_str().unwrap()
    }

    /// One reply, and exactly the deltas of the attempt that gave it.
    pub fn is_whole(&self) -> bool {
        let [reply] = self.replies.as_slice() else { return false };
        let (trace, deltas) =
            (reply["trace"].as_str().unwrap_or_default(), reply["deltas"].as_u64().unwrap_or_default());
        reply["success"] == true
            && if deltas == 0 {
                self.traces.is_empty()
            } else {
                self.traces == HashMap::from([(trace.to_owned(), deltas)])
            }
    }
}

impl Asker {
    pub fn new(pool: &Pool) -> Self {
        let (dealer, inbox) = Dealer::connect(pool.address().clone(), zmtp::Settings::default());
        Self { dealer, inbox, runs: HashMap::new() }
    }

    pub async fn ask(&mut self, id: &str, route: &str, payload: impl Into<Bytes>) {
        self.raw(vec![id.to_owned().into(), route.to_owned().into(), payload.into()]).await;
        self.runs.entry(id.to_owned()).or_default();
    }

    pub async fn raw(&self, frames: Frames) {
        self.dealer.send(frames).await.unwrap();
    }

    pub async fn run(&mut self, id: &str, order: Value) {
        self.ask(id, "run", serde_json::to_vec(&order).unwrap()).await;
    }

    pub async fn cancel(&mut self, id: &str, run: &str) {
        self.ask(id, "cancel", rmp_serde::to_vec_named(&json!({"request_id": run})).unwrap()).await;
    }

    /// Takes one message.
    pub async fn take(&mut self) {
        match self.inbox.recv().await.unwrap() {
            Arrival::Up => {}
            Arrival::Lost(error) => panic!("{error}"),
            Arrival::Message(frames) => {
                let [id, kind, payload] = <[Bytes; 3]>::try_from(frames).unwrap();
                let got = self.runs.get_mut(std::str::from_utf8(&id).unwrap()).unwrap();
                assert!(got.replies.is_empty(), "something follows the reply: {id:?} {kind:?} {payload:?}");
                if kind == "reply" {
                    got.replies.push(rmp_serde::from_slice(&payload).unwrap());
                    return;
                }
                let (trace, discards) = wire::trace_of(&payload).unwrap();
                if discards {
                    got.discards += 1;
                    assert!(got.traces.remove(trace).is_some(), "a discard of what was never seen");
                } else {
                    *got.traces.entry(trace.to_owned()).or_default() += 1;
                }
            }
        }
    }

    /// Waits for the replies to some requests.
    pub async fn wait(&mut self, ids: &[&str]) {
        while ids.iter().any(|id| self.runs[*id].replies.is_empty()) {
            self.take().await;
        }
    }

    /// Waits for all replies.
    pub async fn wait_all(&mut self) {
        let mut open = self.runs.values().filter(|got| got.replies.is_empty()).count();
        while open > 0 {
            self.take().await;
            open = self.runs.values().filter(|got| got.replies.is_empty()).count();
        }
    }

    pub fn got(&self, id: &str) -> &Got {
        &self.runs[id]
    }
}

/// Settings for tests: short where nothing is proved by waiting.
pub fn settings() -> PoolSettings {
    PoolSettings { startup: Duration::from_secs(60), grace: Duration::from_secs(5), ..PoolSettings::default() }
}

pub async fn pool(settings: PoolSettings, crew: Arc<dyn Crew>) -> Pool {
    Pool::start(&"tcp://127.0.0.1:0".parse().unwrap(), settings, crew).await.unwrap()
}

/// Waits until the pool looks as wanted.
pub async fn until(pool: &Pool, wanted: impl FnMut(&PoolStatus) -> bool) -> PoolStatus {
    pool.status().wait_for(wanted).await.unwrap().clone()
}

/// Fails when something takes longer than anything should.
pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(120), what).await.expect("it does not hang")
}

pub fn pids(status: &PoolStatus) -> Vec<u32> {
    status.workers.iter().filter_map(|worker| worker.pid).collect()
}

pub fn signal(pid: u32, signal: Signal) {
    // It may have ended.
    let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
}

/// Waits until a process is no more, or a zombie that nobody here can reap.
pub fn gone(pid: u32) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(')').next()?.trim_start().chars().next()
    };
    while !matches!(state(), None | Some('Z' | 'X')) {
        assert!(Instant::now() < deadline, "process {pid} stays");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn vanished(path: &Path) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while path.exists() {
        assert!(Instant::now() < deadline, "{} stays", path.display());
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn text(error: &PoolError) -> String {
    error.to_string()
}
