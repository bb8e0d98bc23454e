//! Engines, sessions and calls.

use super::{ChatCall, ChatFailure, ChatReply, PoolObserver, PoolSettings, ProbeFailure, ServedModel};

/// Settings that no pool can be made from.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// No base URL.
    #[error("no base URL given; name at least one endpoint")]
    NoEndpoint,
}

/// One or more engines that serve the same model. Cheap to clone.
#[derive(Clone)]
pub struct Pool {}

/// One rollout's seat at an engine; dropping it gives the seat back.
pub struct Session {}

impl Pool {
    /// A pool over the settings' engines. No connection is opened yet; it must be made inside a tokio runtime.
    pub fn new(settings: PoolSettings, observer: Option<PoolObserver>) -> Result<Self, PoolError> {
        let _ = (settings, observer);
        Err(PoolError::NoEndpoint)
    }

    /// A new session, at the engine with the least load. The id is sent with every request of the session.
    pub fn session(&self, id: &str) -> Session {
        let _ = id;
        Session {}
    }

    /// What the engines serve; `None` when they do not say.
    pub async fn models(&self) -> Result<Option<Vec<ServedModel>>, ProbeFailure> {
        Ok(None)
    }

    /// Checks, before a run, that an engine answers, takes the key and serves the model; its entry, where it has one.
    pub async fn check_model(&self, model: &str) -> Result<Option<ServedModel>, ProbeFailure> {
        let _ = model;
        Ok(None)
    }
}

impl Session {
    /// One chat call with its retries.
    pub async fn chat(&self, call: &ChatCall<'_>) -> Result<ChatReply, ChatFailure> {
        let _ = call;
        Err(ChatFailure { kind: super::FailureKind::Unavailable, failed: Vec::new() })
    }
}
