//! The endpoint of a run: the one that is configured, or the simulator in process.

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::sync::mpsc;

use super::exit::Failure;
use crate::{
    config::{EvalConfig, Redactor, Secret},
    inference::{Pool, PoolEvent, PoolObserver, PoolSettings},
    sim::{Oracle, Policy, Settings, Simulator},
    store::Event,
    taskset::Taskset,
    telemetry::raise_descriptor_limit,
    trace::Message,
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
    /// Opens the configured endpoint and asks it for the model, or starts the simulator with the taskset as its oracle.
    pub(super) async fn open(
        config: &EvalConfig,
        taskset: &Arc<dyn Taskset>,
        events: mpsc::Sender<Event>,
    ) -> Result<Self, Failure> {
        let (settings, simulator) = match &config.client {
            Some(client) => (PoolSettings::from_config(client).map_err(Failure::usage)?, None),
            None => {
                let simulator = simulate(config, taskset).await?;
                let mut settings = PoolSettings::new([simulator.base_url()]);
                // Both ends of a connection are open files of this process.
                let descriptors = raise_descriptor_limit().and_then(|limit| usize::try_from(limit).ok());
                settings.max_connections = descriptors.map(|limit| limit.saturating_sub(RESERVED_DESCRIPTORS) / 2);
                (settings, Some(simulator))
            }
        };
        let secrets = settings.key.iter().chain(settings.secret_headers.values()).cloned().collect();
        let pool = Pool::new(settings, Some(observer(events))).map_err(Failure::usage)?;
        pool.check_model(&config.model).await.map_err(Failure::failed)?;
        let label = match simulator {
            Some(_) => "the simulator".to_owned(),
            None => pool.endpoints().join(", "),
        };
        Ok(Self { pool, label, simulator, secrets })
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

async fn simulate(config: &EvalConfig, taskset: &Arc<dyn Taskset>) -> Result<Simulator, Failure> {
    let settings = Settings {
        model: config.model.clone(),
        policy: Policy::Oracle,
        error_rate: SIMULATED_ERROR_RATE,
        ..Settings::default()
    };
    let oracle = Arc::new(Solver(vec![Arc::clone(taskset)]));
    Simulator::start(settings, Some(oracle)).await.map_err(Failure::failed)
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

/// Tasksets as the simulator's oracle: the first one that knows the conversation answers.
pub(super) struct Solver(pub(super) Vec<Arc<dyn Taskset>>);

impl Oracle for Solver {
    fn solve<'a>(&'a self, conversation: &'a [Message]) -> BoxFuture<'a, Option<String>> {
        Box::pin(std::future::ready(self.0.iter().find_map(|taskset| taskset.solve(conversation))))
    }
}
