//! What a run gives its judges: the endpoint and the model of those that name none.

use std::sync::Arc;

use futures::future::join_all;

use super::Judge;
use crate::{
    config::{Secret, SecretError},
    inference::{Pool, PoolError, PoolObserver, ProbeFailure},
};

/// What judges without an endpoint or a model of their own use.
#[derive(Clone, Default)]
pub struct Host {
    /// The run's endpoint.
    pub pool: Option<Pool>,
    /// Who is asked.
    pub asking: Asking,
    /// The run's model.
    pub model: String,
    /// Told of what happens at endpoints that belong to judges.
    pub observer: Option<PoolObserver>,
}

/// Which judges are asked. Who is not asked keeps to the verdicts that traces record; a question without one is a failure of
/// the rollout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Asking {
    /// All; one that cannot be asked is refused.
    #[default]
    All,
    /// Those that can be.
    Possible,
    /// None, whatever endpoints they have.
    Nobody,
}

/// Why judges cannot be asked, all of them at once.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.lines().join("\n"))]
pub struct BindError(Vec<(String, Cause)>);

/// Why one judge cannot be asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum Cause {
    #[error("it names no endpoint and the run has none; give it a `base_url`, or name one with `-b` and `-m`")]
    NoEndpoint,
    #[error("it names no model; give it a `model`, or the command `-m`")]
    NoModel,
    #[error("the environment variable `{0}` is not set; export it, or name another one with the judge's `api_key_var`")]
    NoKey(String),
    #[error(transparent)]
    Secret(SecretError),
    #[error(transparent)]
    Pool(PoolError),
    #[error(transparent)]
    Probe(ProbeFailure),
}

impl BindError {
    /// One line for each judge.
    fn lines(&self) -> Vec<String> {
        self.0.iter().map(|(judge, cause)| format!("judge `{judge}`: {cause}")).collect()
    }
}

/// Gives judges what they ask; they share what they were answered. The secrets that are sent come back.
pub(in crate::rubric) fn bind(judges: &[Arc<Judge>], host: &Host) -> Result<Vec<Secret>, BindError> {
    let cache = Arc::default();
    let (mut secrets, mut causes) = (Vec::new(), Vec::new());
    for judge in judges {
        match judge.bind(host, Arc::clone(&cache)) {
            Ok(own) => secrets.extend(own),
            Err(cause) => causes.push((judge.spec().name.clone(), cause)),
        }
    }
    if causes.is_empty() { Ok(secrets) } else { Err(BindError(causes)) }
}

/// Asks the endpoints of all judges at once for their models.
pub(in crate::rubric) async fn check(judges: &[Arc<Judge>], at_host: bool) -> Result<(), BindError> {
    let checks = judges.iter().map(|judge| async move { (judge.spec().name.clone(), judge.check(at_host).await) });
    let failed =
        join_all(checks).await.into_iter().filter_map(|(name, check)| Some((name, Cause::Probe(check.err()?))));
    let failed: Vec<(String, Cause)> = failed.collect();
    if failed.is_empty() { Ok(()) } else { Err(BindError(failed)) }
}
