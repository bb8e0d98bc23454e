//! A taskset of rollhouse as something that a server serves.

use std::sync::{Arc, Mutex, PoisonError};

use futures::{StreamExt as _, future::BoxFuture};
use indexmap::IndexMap;
use serde_json::{Map, Value, json};
use tokio::sync::{OnceCell, mpsc};

use super::{
    message::{Refused, RunRequest},
    server::Host,
};
use crate::{
    agent::{Agent, TokenIn, Watch, seat},
    config::{
        AgentConfig, ClientConfig, Document, Faults, Layer, Reader, RetryRules, TrainClient, read_endpoint,
        read_sampling, read_train,
    },
    envs::{self, Episodes, Scoring},
    harness::Null,
    inference::{Pool, PoolSettings},
    taskset::{Task, Taskset, type_name},
    telemetry::blocking,
    trace::{AgentInfo, EnvInfo, Episode, TaskData, TraceTask},
};

/// Endpoints whose connections are kept; of a training run whose requests name many, those used last.
const POOLS: usize = 16;
/// Seats that are kept written out.
const SEATS: usize = 64;

/// What every run of a host has in common.
pub struct HostSettings {
    /// How episodes name the env: as a rule the id of its taskset.
    pub env: EnvInfo,
    /// The agent's seat.
    pub agent: AgentConfig,
    /// The seat's block of the resolved configuration, as traces record it.
    pub block: Value,
    /// The seat's own model, if it has one, instead of the request's.
    pub model: Option<String>,
    /// The seat's own endpoint, if it has one, instead of the request's.
    pub client: Option<Map<String, Value>>,
    /// Sampling fields that the seat lays over the request's; a null takes one away.
    pub sampling: Map<String, Value>,
    /// Bound on one episode.
    pub deadline: Option<std::time::Duration>,
    /// Retries of a whole episode.
    pub retries: RetryRules,
}

/// Serves a taskset with one seat, to whichever model a request names.
pub struct TasksetHost {
    taskset: Arc<dyn Taskset>,
    settings: HostSettings,
    /// The class name of its tasks, read off the first one.
    kind: OnceCell<String>,
    /// Held for the time of a look, by each run once.
    seats: Mutex<Seats>,
}

#[derive(Default)]
struct Seats {
    pools: IndexMap<String, Pool>,
    seats: IndexMap<String, Seat>,
    speeches: IndexMap<String, Arc<OnceCell<Arc<TokenIn>>>>,
}

/// A seat with what a request fills in.
#[derive(Clone)]
struct Seat {
    pool: Pool,
    sampling: Arc<Map<String, Value>>,
    info: AgentInfo,
    train: Option<TrainClient>,
}

impl TasksetHost {
    /// A host of a taskset.
    pub fn new(taskset: Arc<dyn Taskset>, settings: HostSettings) -> Self {
        Self { taskset, settings, kind: OnceCell::new(), seats: Mutex::default() }
    }

    async fn play(&self, request: RunRequest, watch: Arc<dyn Watch>) -> Result<Episode, Refused> {
        let task = self.task(request.task_data).await?;
        let settings = &self.settings;
        let model = settings.model.clone().unwrap_or(request.model);
        let client = settings.client.clone().unwrap_or(request.client);
        let Seat { pool, sampling, info, train } = self.seat(client, &model, request.sampling)?;
        let tokens = match train {
            Some(train) => Some(self.speech(train, &model, &sampling, &pool).await?),
            None => None,
        };
        let agent = Agent {
            harness: Arc::new(Null),
            pool,
            model,
            sampling,
            tokens,
            limits: settings.agent.limits,
            deadlines: settings.agent.deadlines,
            retries: settings.agent.retries.clone(),
            info,
            // Nobody listens: what happens is told by the traces.
            events: mpsc::channel(1).0,
            watch: Some(Arc::clone(&watch)),
        };
        let episodes = Episodes {
            env: envs::for_taskset(Arc::clone(&self.taskset), Arc::new(agent)),
            scoring: Scoring {
                taskset: Arc::clone(&self.taskset),
                deadline: settings.agent.deadlines.scoring,
                retries: [settings.agent.retries.clone(), settings.retries.clone()],
            },
            info: settings.env.clone(),
            run: None,
            deadline: settings.deadline,
            retries: settings.retries.clone(),
            watch: Some(watch),
        };
        let played = episodes.play(&task).await;
        Ok(episodes.score(played).await)
    }

    /// How a training client speaks, opened once for all runs that speak so to the same engines: they have a window.
    async fn speech(
        &self,
        train: TrainClient,
        model: &str,
        sampling: &Arc<Map<String, Value>>,
        pool: &Pool,
    ) -> Result<Arc<TokenIn>, Refused> {
        let kwargs = sampling.get("chat_template_kwargs").cloned().unwrap_or_default();
        let key = format!("{train:?} {model:?} {kwargs} {:?}", pool.endpoints());
        let cell = {
            let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
            match seats.speeches.get(&key) {
                Some(cell) => Arc::clone(cell),
                None => {
                    let cell = Arc::new(OnceCell::new());
                    keep(&mut seats.speeches, key, Arc::clone(&cell), SEATS);
                    cell
                }
            }
        };
        let (model, sampling) = (model.to_owned(), Arc::clone(sampling));
        let opened = cell.get_or_try_init(|| async {
            let opened = blocking(move || TokenIn::open(&train, &model, &sampling)).await;
            opened
                .map(Arc::new)
                .map_err(|error| Refused::invalid("RunRequest", [("client.renderer", error.to_string())]))
        });
        opened.await.cloned()
    }

    /// The task of a row.
    async fn task(&self, row: Map<String, Value>) -> Result<Task, Refused> {
        let first = || async {
            match self.taskset.tasks().next().await {
                Some(Ok(task)) => task.kind.clone(),
                // A server may have no data: its clients send the rows.
                _ => format!("{}Task", type_name(&self.settings.env.id)),
            }
        };
        let kind = self.kind.get_or_init(first).await;
        let data: TaskData = serde_json::from_value(Value::Object(row)).map_err(|error| {
            let error = error.to_string();
            let (key, problem) = error.split_once(": ").unwrap_or(("", &error));
            Refused::invalid(kind, [(key, problem)])
        })?;
        Ok(Arc::new(TraceTask::new(kind.as_str(), data)))
    }

    /// The seat for an endpoint, a model and sampling fields.
    fn seat(&self, client: Map<String, Value>, model: &str, sampling: Map<String, Value>) -> Result<Seat, Refused> {
        let asked = json!({"client": client, "sampling": sampling});
        let (place, whole) = (asked["client"].to_string(), json!([model, asked]).to_string());
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seat) = seats.seats.get(&whole) {
            return Ok(seat.clone());
        }
        let (config, mut sampling) = read(&asked)?;
        for (key, value) in &self.settings.sampling {
            if value.is_null() {
                sampling.shift_remove(key);
            } else {
                sampling.insert(key.clone(), value.clone());
            }
        }
        let pool = match seats.pools.get(&place) {
            Some(pool) => pool.clone(),
            None => {
                let invalid =
                    |error: &dyn std::error::Error| Refused::invalid("RunRequest", [("client", error.to_string())]);
                let settings = PoolSettings::from_config(&config).map_err(|error| invalid(&error))?;
                let pool = Pool::new(settings, None).map_err(|error| invalid(&error))?;
                keep(&mut seats.pools, place, pool.clone(), POOLS);
                pool
            }
        };
        let info = seat(&self.settings.block, model, &asked["client"], &Value::Object(sampling.clone()))
            .map_err(|error| Refused::new("ValueError", error.to_string()))?;
        let seat = Seat { pool, sampling: Arc::new(sampling), info, train: config.train };
        keep(&mut seats.seats, whole, seat.clone(), SEATS);
        Ok(seat)
    }
}

impl Host for TasksetHost {
    fn run<'a>(&'a self, request: RunRequest, watch: Arc<dyn Watch>) -> BoxFuture<'a, Result<Episode, Refused>> {
        Box::pin(self.play(request, watch))
    }
}

/// Keeps something, and forgets the oldest where there are too many.
fn keep<T>(kept: &mut IndexMap<String, T>, key: String, value: T, most: usize) {
    if kept.len() >= most {
        kept.shift_remove_index(0);
    }
    kept.insert(key, value);
}

/// Reads endpoint and sampling of a request by the rules of a configuration.
fn read(asked: &Value) -> Result<(ClientConfig, Map<String, Value>), Refused> {
    let invalid = |key: &str, problem: &str| Refused::invalid("RunRequest", [(key, problem)]);
    let trains = match asked["client"]["type"].as_str() {
        Some("eval") => false,
        Some("train") => true,
        _ => return Err(invalid("client.type", "Field required: `eval` or `train`")),
    };
    let mut reader = Reader::new(Document::new([Layer::from_value(asked)]));
    let mut root = reader.root();
    let mut block = root.child("client");
    block.get::<String>("type");
    let train = trains.then(|| read_train(&mut block));
    let config = read_endpoint(&mut block).map(|client| ClientConfig { train, ..client });
    let sampling = read_sampling(&mut root);
    reader.finish().map_err(|faults| refused(&faults))?;
    let config =
        config.ok_or_else(|| invalid("client.base_url", "Field required: this server has no default endpoint"))?;
    Ok((config, sampling))
}

fn refused(faults: &Faults) -> Refused {
    let told = faults.iter().map(|fault| {
        let mut problem = fault.problem.clone();
        for more in [fault.expected.as_ref().map(|allowed| format!("expected {allowed}")), fault.hint.clone()]
            .into_iter()
            .flatten()
        {
            problem.push_str("; ");
            problem.push_str(&more);
        }
        (fault.key.clone(), problem)
    });
    Refused::invalid("RunRequest", told.collect::<Vec<_>>())
}
