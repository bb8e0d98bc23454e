//! Asking an endpoint what it serves, before a run starts.

use std::time::Duration;

use futures::future::join_all;
use serde::Deserialize;
use serde_json::Value;

use super::{Pool, failure::AttemptError};

/// A model that an endpoint serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedModel {
    /// Its name.
    pub id: String,
    /// Its window in tokens, where the server says so (vLLM, SGLang).
    pub max_model_len: Option<u64>,
    /// The server takes any name for it (llama.cpp).
    pub answers_any_name: bool,
}

/// Why a run against this endpoint cannot work.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ProbeFailure {
    /// Nothing answers.
    #[error("no endpoint at {endpoint}: {cause}; start the server or correct the base URL")]
    Unreachable {
        /// Base URL.
        endpoint: String,
        /// Why, in a line.
        cause: String,
    },
    /// The key is not accepted.
    #[error("{endpoint} does not accept the key ({message}); set the environment variable `{variable}` to a valid one")]
    Unauthorized {
        /// Base URL.
        endpoint: String,
        /// What the server says.
        message: String,
        /// The variable that should hold the key.
        variable: String,
    },
    /// The model is not served.
    #[error("{endpoint} does not serve `{model}`; it serves {}", served.join(", "))]
    UnknownModel {
        /// Base URL.
        endpoint: String,
        /// The model wanted.
        model: String,
        /// What it serves.
        served: Vec<String>,
    },
}

impl Pool {
    /// What the engines serve, each model once; `None` when they do not say (not every server has the list).
    ///
    /// # Errors
    /// When no engine answers, or one does not accept the key. An engine among several that does not answer is taken
    /// for dead.
    pub async fn models(&self) -> Result<Option<Vec<ServedModel>>, ProbeFailure> {
        let mut all: Option<Vec<ServedModel>> = None;
        for (_, models) in self.lists().await? {
            let known = all.get_or_insert_default();
            for model in models {
                if !known.contains(&model) {
                    known.push(model);
                }
            }
        }
        Ok(all)
    }

    /// Checks, before a run, that an engine answers, takes the key and serves the model; the model's entry, where there
    /// is one.
    ///
    /// # Errors
    /// As [`Pool::models`], and when an engine lists its models and this one is not among them.
    pub async fn check_model(&self, model: &str) -> Result<Option<ServedModel>, ProbeFailure> {
        let mut entry = None;
        for (endpoint, models) in self.lists().await? {
            // Ollama lists `name:latest` and answers to `name`.
            let found = models.iter().find(|served| {
                served.id == model || served.id.strip_suffix(":latest").is_some_and(|name| name == model)
            });
            match found {
                Some(found) => entry = Some(found.clone()),
                // llama.cpp answers to any name.
                None if models.iter().any(|served| served.answers_any_name) => {}
                None => {
                    let served = models.into_iter().map(|served| served.id).collect();
                    return Err(ProbeFailure::UnknownModel { endpoint, model: model.to_owned(), served });
                }
            }
        }
        Ok(entry)
    }

    /// The list of each engine that has one.
    async fn lists(&self) -> Result<Vec<(String, Vec<ServedModel>)>, ProbeFailure> {
        let inner = &self.inner;
        let asked = inner.engines.iter().map(|engine| async move { (engine, engine.get("/models", PROBE).await) });
        let mut lists = Vec::new();
        let (mut alive, mut unreachable) = (false, None);
        for (engine, outcome) in join_all(asked).await {
            let endpoint = engine.endpoint.to_string();
            let redact = |error: &AttemptError| inner.redactor.redact(&error.to_string()).into_owned();
            match outcome {
                Err(error @ (AttemptError::Connection { .. } | AttemptError::Deadline { .. })) => {
                    let cause = redact(&error);
                    inner.failed(engine, &cause);
                    unreachable = Some(ProbeFailure::Unreachable { endpoint, cause });
                }
                Err(AttemptError::Status { status: status @ (401 | 403), body, .. }) => {
                    let message = format!("status {status}: {}", inner.redactor.redact(&body.message));
                    let variable = inner.api_key_var.clone();
                    return Err(ProbeFailure::Unauthorized { endpoint, message, variable });
                }
                Err(error) => {
                    tracing::debug!(endpoint, error = redact(&error), "the engine does not list its models");
                    alive = true;
                }
                Ok(body) => {
                    alive = true;
                    lists.extend(read_models(&body).map(|models| (endpoint, models)));
                }
            }
        }
        match unreachable {
            Some(failure) if !alive => Err(failure),
            _ => Ok(lists),
        }
    }
}

/// How long a list of models may take.
const PROBE: Duration = Duration::from_secs(30);

fn read_models(body: &[u8]) -> Option<Vec<ServedModel>> {
    #[derive(Deserialize)]
    struct List {
        data: Vec<Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        id: String,
        #[serde(default)]
        max_model_len: Value,
        /// OpenRouter's name for it.
        #[serde(default)]
        context_length: Value,
        #[serde(default)]
        owned_by: Value,
    }
    let list: List = serde_json::from_slice(body).ok()?;
    let models: Vec<ServedModel> = list
        .data
        .into_iter()
        .map(|entry| ServedModel {
            id: entry.id,
            max_model_len: entry.max_model_len.as_u64().or_else(|| entry.context_length.as_u64()),
            answers_any_name: entry.owned_by == "llamacpp",
        })
        .collect();
    // An empty list says nothing: some proxies fill it on first use.
    (!models.is_empty()).then_some(models)
}
