//! The env of a run that is not in this process: served by workers of the run's own, or by a server elsewhere.

use std::{
    collections::HashMap,
    path::Path,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use serde_json::{Map, Value};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    agent::{Watch, client_block},
    cli::{
        crew::{Workplace, pool_settings},
        endpoint::Endpoint,
        exit::Failure,
        output,
    },
    config::{EvalConfig, Redactor, Resolved},
    envs::{Attempt, Env},
    runtime::PrivateFolder,
    serve::{
        Client, RemoteEnv, RemoteSettings,
        pool::{Pool, PoolStatus},
    },
    store::Event,
    taskset::{Task, Taskset, verifiers::Environment},
    trace::{Message, Trace},
    zmtp::{Address, Settings},
};

/// How long a server elsewhere may take to answer before the run begins, where the configuration does not say.
const ANSWER: Duration = Duration::from_secs(300);
/// How long that is before it is said that it is waited for.
const NOTED: Duration = Duration::from_secs(3);

/// An env that is served.
pub(super) struct Served {
    /// It, for episodes.
    pub(super) env: Arc<dyn Env>,
    /// What is known of the tokens of its rollouts.
    pub(super) kept: Arc<Kept>,
    client: Client,
    workers: Option<Crowd>,
}

/// Turns of rollouts to train on that came from elsewhere.
#[derive(Debug, Default)]
pub(super) struct Kept {
    turns: AtomicUsize,
    exact: AtomicUsize,
}

impl Kept {
    fn add(&self, trace: &Trace) {
        if !trace.agent.trainable {
            return;
        }
        for node in trace.graph.nodes().iter().filter(|node| node.sampled) {
            let sampled = node.tokens.mask().count();
            self.turns.fetch_add(1, Ordering::Relaxed);
            self.exact
                .fetch_add(usize::from(sampled > 0 && node.tokens.logprobs().len() == sampled), Ordering::Relaxed);
        }
    }

    /// All turns, and those that came with the ids and logprobs of what was sampled.
    pub(super) fn turns(&self) -> (usize, usize) {
        (self.turns.load(Ordering::Relaxed), self.exact.load(Ordering::Relaxed))
    }
}

/// Workers of the run's own.
struct Crowd {
    pool: Pool,
    grace: Duration,
    _teller: AbortOnDropHandle<()>,
    /// Where they are reached; gone after them.
    _folder: PrivateFolder,
}

/// What of a run an env is served for.
pub(super) struct Asked<'a> {
    pub(super) config: &'a EvalConfig,
    /// The resolved configuration, and as it is written down.
    pub(super) resolved: &'a Resolved,
    pub(super) dump: &'a Value,
    pub(super) taskset: &'a Arc<dyn Taskset>,
    pub(super) python: Option<&'a Arc<Environment>>,
    pub(super) endpoint: &'a Endpoint,
    /// Where the workers' logs go.
    pub(super) logs: &'a Path,
    pub(super) redactor: &'a Redactor,
    pub(super) events: &'a mpsc::Sender<Event>,
}

impl Asked<'_> {
    /// Whether the env runs outside of this process.
    pub(super) fn is_served(&self) -> bool {
        self.python.is_some() || self.config.serve.address.is_some() || self.config.serve.asks_for_workers
    }

    /// Starts what serves the env, or connects to it, and waits until it answers.
    ///
    /// # Errors
    /// Nothing answers, or no worker comes up: with its last words.
    pub(super) async fn serve(&self) -> Result<Served, Failure> {
        let serve = &self.config.serve;
        if let Some(address) = &serve.address {
            if serve.asks_for_workers {
                output::note(
                    "warning: serve: the server at serve.address has workers of its own; `pool` and `runtime` have no effect",
                );
            }
            if self.python.is_none() {
                tell_unheard(self.resolved);
            }
            let address = address.parse().map_err(|error| Failure::usage(anyhow::anyhow!("serve.address: {error}")))?;
            // Nothing else does a run anew whose server was lost.
            let served = self.connect(address, serve.max_redos, None);
            let client = served.client.clone();
            let mut ready = pin!(client.wait_ready(serve.startup.unwrap_or(ANSWER)));
            let ready = match timeout(NOTED, &mut ready).await {
                Ok(ready) => ready,
                Err(_) => {
                    let why = client.fault().unwrap_or_else(|| "it does not answer yet".to_owned());
                    output::note(&format!("waiting for the env server at {} ({why})", client.address()));
                    ready.await
                }
            };
            ready.map_err(Failure::failed)?;
            return Ok(served);
        }
        let workplace = Workplace {
            serve,
            client: self.config.client.as_ref(),
            base_urls: if self.config.client.is_none() { self.endpoint.base_urls() } else { Vec::new() },
            dump: self.dump,
            taskset: self.taskset,
            python: self.python,
        };
        let crew = workplace.crew().await?;
        let folder = PrivateFolder::new().await.map_err(Failure::failed)?;
        let settings = pool_settings(serve, Some(self.logs.to_owned()), self.redactor.clone());
        let front = Address::Ipc(folder.path().join("front"));
        let pool = Pool::start(&front, settings, crew).await.map_err(Failure::failed)?;
        let teller = AbortOnDropHandle::new(tokio::spawn(tell(pool.status(), self.events.clone())));
        pool.ready().await.map_err(Failure::failed)?;
        let address = pool.address().clone();
        let crowd = Crowd { pool, grace: serve.grace, _teller: teller, _folder: folder };
        Ok(self.connect(address, 0, Some(crowd)))
    }

    fn connect(&self, address: Address, max_redos: u32, workers: Option<Crowd>) -> Served {
        let client = Client::connect(address, Settings::default());
        let turns = Arc::new(Turns { events: self.events.clone(), seen: Mutex::default() });
        let env = |block: Map<String, Value>| {
            let settings = RemoteSettings {
                client: block,
                model: self.config.model.clone(),
                sampling: self.config.sampling.clone(),
                max_redos,
                // Workers of the run's own were told what to serve.
                env: workers.is_none().then(|| self.config.taskset.clone()),
            };
            RemoteEnv::new(client.clone(), settings, Some(Arc::clone(&turns) as Arc<dyn Watch>))
        };
        let urls = match &self.config.client {
            Some(client) => client.base_urls.clone(),
            None => self.endpoint.base_urls(),
        };
        let envs: Vec<RemoteEnv> = urls.iter().map(|url| env(self.block_of(url))).collect();
        let kept = Arc::new(Kept::default());
        let engines = Engines { envs, next: AtomicUsize::new(0), turns, kept: Arc::clone(&kept) };
        Served { env: Arc::new(engines), kept, client, workers }
    }

    /// The endpoint as a request names it: one of its addresses.
    fn block_of(&self, url: &str) -> Map<String, Value> {
        let seat = self.dump.pointer("/env/agent/client").filter(|client| client.is_object());
        let own = seat.filter(|_| self.python.is_none()).unwrap_or(&self.dump["client"]);
        let mut block = match client_block(own) {
            Value::Object(block) => block,
            _ => Map::new(),
        };
        block.insert("base_url".to_owned(), url.into());
        // Ours alone: verifiers refuses the key, rather than do something else than was asked for.
        if let Some(route) = own["route"].as_str().filter(|route| *route != "generate") {
            block.insert("route".to_owned(), route.into());
        }
        block
    }
}

impl Served {
    /// Ends the workers, if they are the run's own; runs that are still in flight were dropped, and are cancelled.
    pub(super) async fn close(self) {
        let Self { env, client, workers, kept: _ } = self;
        drop(env);
        client.close().await;
        if let Some(Crowd { pool, grace, _teller: teller, _folder: folder }) = workers {
            // That they go is no news.
            drop(teller);
            pool.shut_down(grace).await;
            drop(folder);
        }
    }

    /// Waits until the workers are given up; for ever where they are not ours.
    pub(super) async fn failed(&self) -> String {
        match &self.workers {
            Some(Crowd { pool, .. }) => pool.failed().await.to_string(),
            None => std::future::pending().await,
        }
    }
}

/// Several engines that serve one model: a request can name only one, so runs take them in turn.
struct Engines {
    envs: Vec<RemoteEnv>,
    next: AtomicUsize,
    turns: Arc<Turns>,
    kept: Arc<Kept>,
}

impl Env for Engines {
    fn run<'a>(&'a self, task: &'a Task, deadline: Option<Instant>) -> BoxFuture<'a, Attempt> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            let Some(env) = self.envs.get(turn % self.envs.len().max(1)) else { return Attempt::default() };
            let attempt = env.run(task, deadline).await;
            for trace in &attempt.traces {
                self.turns.discarded(trace);
                self.kept.add(trace);
            }
            attempt
        })
    }
}

/// Counts the model turns of rollouts that grow elsewhere.
struct Turns {
    events: mpsc::Sender<Event>,
    /// Calls that were told of each rollout in flight, and of those few whose run was dropped. Held for the time of a look.
    seen: Mutex<HashMap<String, usize>>,
}

impl Watch for Turns {
    fn changed(&self, trace: &Trace, _pending: &[Message]) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let told = seen.entry(trace.id.clone()).or_default();
        let new = trace.calls.get(*told..).unwrap_or_default();
        *told = trace.calls.len();
        for usage in new.iter().filter_map(|call| call.usage.as_ref()) {
            // The display may miss a turn; the trace does not.
            let _ = self.events.try_send(Event::TurnCompleted {
                input_tokens: usage.input_tokens(),
                output_tokens: usage.completion_tokens,
            });
        }
    }

    fn discarded(&self, trace: &Trace) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).remove(&trace.id);
    }
}

/// Says which keys of the env mean nothing to a server elsewhere, which has its own.
fn tell_unheard(resolved: &Resolved) {
    let is_unheard =
        |path: &str| ["env.agent.", "env.timeout.", "env.retries."].iter().any(|part| path.starts_with(part));
    let unheard =
        resolved.keys.iter().filter(|key| is_unheard(&key.path) && !key.value.is_null() && key.value != key.default);
    let unheard: Vec<&str> = unheard.map(|key| key.path.as_str()).collect();
    if !unheard.is_empty() {
        let keys = unheard.join(", ");
        output::note(&format!(
            "warning: serve.address: the server has limits and deadlines of its own; no effect have {keys}"
        ));
    }
}

/// Tells the display how the workers are.
async fn tell(mut status: watch::Receiver<PoolStatus>, events: mpsc::Sender<Event>) {
    loop {
        let now = {
            let status = status.borrow_and_update();
            Event::Workers {
                ready: status.ready(),
                all: status.workers.len(),
                lost: status.lost,
                redone: status.redone,
            }
        };
        if events.send(now).await.is_err() || status.changed().await.is_err() {
            return;
        }
    }
}
