//! An env that runs elsewhere.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep, timeout_at};

use super::{Client, RunError, RunRequest};
use crate::{
    agent::Watch,
    envs::{Attempt, Env},
    taskset::Task,
    trace::{Fault, FaultClass},
};

/// How long a server that takes no more runs may take to go.
const LEAVING: Duration = Duration::from_secs(15);
/// How soon one that has no room is asked again.
const BUSY: Duration = Duration::from_secs(1);

/// What every run is asked with.
#[derive(Clone, Debug, Default)]
pub struct RemoteSettings {
    /// The endpoint, with its `type`, as the server shall reach it.
    pub client: Map<String, Value>,
    /// The model.
    pub model: String,
    /// Sampling fields.
    pub sampling: Map<String, Value>,
    /// How often a run is asked for anew when the server was lost, or is shut down.
    pub max_redos: u32,
    /// The id of the taskset that the server is to serve; `None` where it can only be the right one.
    pub env: Option<String>,
}

/// The env of a server elsewhere: its traces come back scored.
pub struct RemoteEnv {
    client: Client,
    settings: RemoteSettings,
    watch: Option<Arc<dyn Watch>>,
}

impl RemoteEnv {
    /// The env that this client's server serves. `watch` sees the rollouts grow.
    pub fn new(client: Client, settings: RemoteSettings, watch: Option<Arc<dyn Watch>>) -> Self {
        Self { client, settings, watch }
    }

    async fn ask(&self, task: &Task) -> Attempt {
        let RemoteSettings { client, model, sampling, max_redos, env } = &self.settings;
        let request = match RunRequest::new(&task.data, client.clone(), model, sampling.clone()) {
            Ok(request) => request,
            Err(unsendable) => return failed(&unsendable.into()),
        };
        let mut redos = 0;
        loop {
            let losses = self.client.losses();
            match self.client.run(&request, self.watch.clone()).await {
                Ok(episode) => {
                    let theirs = &episode.env.id;
                    if let Some(ours) = env.as_deref().filter(|ours| !is_same_env(ours, theirs)) {
                        let address = self.client.address().clone();
                        return failed(&RunError::OtherEnv { address, theirs: theirs.clone(), ours: ours.to_owned() });
                    }
                    let mut traces = episode.traces;
                    for trace in &mut traces {
                        // Nearly always the same row: keep it once.
                        if *trace.task == **task {
                            trace.task = Arc::clone(task);
                        }
                    }
                    return Attempt { traces, errors: episode.errors, is_timeout: episode.is_timeout };
                }
                Err(error) if (error.is_lost() || error.is_leaving()) && redos < *max_redos => {
                    redos += 1;
                    tracing::warn!(%error, redos, task = task.data.idx, "a run is asked for anew");
                    if error.is_leaving() {
                        // It would refuse this one, too.
                        self.client.lost_since(losses, LEAVING).await;
                    }
                }
                Err(error) if error.is_busy() => {
                    tracing::warn!(%error, task = task.data.idx, "a run waits for room");
                    sleep(BUSY).await;
                }
                Err(error) => return failed(&error),
            }
        }
    }
}

impl Env for RemoteEnv {
    fn run<'a>(&'a self, task: &'a Task, deadline: Option<Instant>) -> BoxFuture<'a, Attempt> {
        Box::pin(async move {
            let Some(deadline) = deadline else { return self.ask(task).await };
            // Dropping the run cancels it over there.
            timeout_at(deadline, self.ask(task)).await.unwrap_or_else(|_| {
                let message = "the env server did not end the episode by its deadline; it was cancelled there";
                let errors = vec![Fault::new(FaultClass::Infrastructure, message)];
                Attempt { errors, is_timeout: true, ..Attempt::default() }
            })
        })
    }
}

/// Whether two ids name the same taskset: an owner, a folder, a version and the env that is paired with it are no part of
/// its name. A server need not say what it serves.
fn is_same_env(ours: &str, theirs: &str) -> bool {
    let name = |id: &str| {
        let id = id.rsplit_once('+').map_or(id, |(_, taskset)| taskset);
        let id = id.split_once('@').map_or(id, |(id, _)| id);
        let last = id.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        last.trim_end_matches(".toml").replace('_', "-").to_lowercase()
    };
    theirs.is_empty() || name(ours) == name(theirs)
}

fn failed(error: &RunError) -> Attempt {
    Attempt { errors: vec![error.fault()], ..Attempt::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taskset_has_one_name_wherever_it_lies() {
        for (ours, theirs) in [
            ("gsm8k", "gsm8k"),
            ("org/alphabet-sort@1.2", "alphabet_sort"),
            ("./tasks/My-Task/", "/srv/my_task"),
            ("gsm8k-v1", "best-of-n+org/gsm8k-v1"),
            ("gsm8k", ""),
        ] {
            assert!(is_same_env(ours, theirs), "{ours} {theirs}");
        }
        assert!(!is_same_env("reverse-text", "alphabet-sort"));
    }
}
