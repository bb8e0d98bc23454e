//! The endpoint of a run: the one that is configured, or the simulator in process.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::{
    exit::Failure,
    oracle::{Player, Players},
};
use crate::{
    config::{EvalConfig, Redactor, Secret},
    inference::{Pool, PoolEvent, PoolObserver, PoolSettings},
    rubric::judge::Host,
    sim::{Policy, Settings, Simulator},
    store::Event,
    taskset::{TaskStream, Taskset},
    telemetry::raise_descriptor_limit,
};

/// Share of the simulated model's answers that are wrong when nobody says otherwise: enough that a first run shows
/// what a summary of a real one looks like.
const SIMULATED_ERROR_RATE: f64 = 0.3;

/// Descriptors that are not connections.
const RESERVED_DESCRIPTORS: usize = 512;

/// Where a run's model calls go.
pub(super) struct Endpoint {
    /// The pool over it.
    pub(super) pool: Pool,
    /// What people call it.
    pub(super) label: String,
    simulator: Option<Simulator>,
    secrets: Vec<Secret>,
}

impl Endpoint {
    /// Opens the configured endpoint and asks it for the model, or starts the simulator, which plays the taskset's tasks as
    /// they come by. The taskset's judges get what they ask. The tasks are handed back, to be read from here on.
    pub(super) async fn open(
        config: &EvalConfig,
        taskset: &Arc<dyn Taskset>,
        mut tasks: TaskStream,
        events: mpsc::Sender<Event>,
    ) -> Result<(Self, TaskStream), Failure> {
        let (settings, simulator) = match &config.client {
            Some(client) => (PoolSettings::from_config(client).map_err(Failure::usage)?, None),
            None => {
                let player = Arc::new(Player::new(Arc::clone(taskset)));
                tasks = player.watch(tasks);
                let simulator = simulate(config, player).await?;
                let mut settings = PoolSettings::new([simulator.base_url()]);
                // Both ends of a connection are open files of this process.
                let descriptors = raise_descriptor_limit().and_then(|limit| usize::try_from(limit).ok());
                settings.max_connections = descriptors.map(|limit| limit.saturating_sub(RESERVED_DESCRIPTORS) / 2);
                (settings, Some(simulator))
            }
        };
        let mut secrets: Vec<Secret> = settings.key.iter().chain(settings.secret_headers.values()).cloned().collect();
        let observer = observer(events);
        let pool = Pool::new(settings, Some(Arc::clone(&observer))).map_err(Failure::usage)?;
        let host =
            Host { pool: Some(pool.clone()), model: config.model.clone(), observer: Some(observer), ..Host::default() };
        secrets.extend(taskset.rubric().bind(&host).map_err(Failure::usage)?);
        secrets.extend(passed_secrets(taskset.as_ref(), &secrets)?);
        secrets.extend(named_secrets(&config.serve.pass_env));
        pool.check_model(&config.model).await.map_err(Failure::failed)?;
        taskset.rubric().check_judges(simulator.is_none()).await.map_err(Failure::failed)?;
        let label = match simulator {
            Some(_) => "the simulator".to_owned(),
            None => pool.endpoints().join(", "),
        };
        Ok((Self { pool, label, simulator, secrets }, tasks))
    }

    /// The addresses of the engines; that of the simulator where it answers.
    pub(super) fn base_urls(&self) -> Vec<String> {
        self.pool.endpoints().iter().map(ToString::to_string).collect()
    }

    /// Whether the model is simulated.
    pub(super) fn simulated(&self) -> bool {
        self.simulator.is_some()
    }

    /// Knows the key and the secret headers.
    pub(super) fn redactor(&self) -> Redactor {
        Redactor::new(&self.secrets)
    }

    /// Ends the simulator.
    pub(super) async fn close(self) {
        drop(self.pool);
        if let Some(simulator) = self.simulator {
            simulator.shutdown().await;
        }
    }
}

/// The secrets among the environment variables that a taskset's own functions see, by their names: an error of such a
/// function may quote them. `keys` are those of the endpoints, which the functions must not see.
pub(super) fn passed_secrets(taskset: &dyn Taskset, keys: &[Secret]) -> Result<Vec<Secret>, Failure> {
    for (name, variable) in taskset.passed_variables().iter().filter_map(|name| Some((name, value_of(name)?))) {
        if keys.contains(&variable) {
            let problem = format!(
                "env.taskset.pass_env: `{name}` holds the key of an endpoint of this run, which the taskset's functions must \
                 not see: leave it out, or give them a key of their own"
            );
            return Err(Failure::usage(anyhow::anyhow!(problem)));
        }
    }
    Ok(named_secrets(taskset.passed_variables()).collect())
}

/// The secrets among the environment variables of these names.
pub(super) fn named_secrets(names: &[String]) -> impl Iterator<Item = Secret> {
    let is_secret = |name: &&String| SECRET_NAMES.iter().any(|part| name.to_uppercase().contains(part));
    names.iter().filter(is_secret).filter_map(|name| value_of(name))
}

fn value_of(name: &str) -> Option<Secret> {
    std::env::var(name).ok().map(|value| Secret::new(value.trim().to_owned()))
}

/// What stands in the name of a variable that holds a secret.
const SECRET_NAMES: &[&str] = &["KEY", "TOKEN", "SECRET", "PASSW", "CREDENTIAL"];

async fn simulate(config: &EvalConfig, player: Arc<Player>) -> Result<Simulator, Failure> {
    let settings = Settings {
        model: config.model.clone(),
        policy: Policy::Oracle,
        error_rate: SIMULATED_ERROR_RATE,
        ..Settings::default()
    };
    Simulator::start(settings, Some(Arc::new(Players(vec![player])))).await.map_err(Failure::failed)
}

/// Tells retries on; the pool logs what happens in it. It must not wait for the display, so an event that finds the queue
/// full is left out of it.
fn observer(events: mpsc::Sender<Event>) -> PoolObserver {
    Arc::new(move |event| {
        if let PoolEvent::Retry { endpoint, cause, wait, .. } = event {
            let _ = events.try_send(Event::CallRetried { endpoint: endpoint.to_string(), cause, wait });
        }
    })
}
