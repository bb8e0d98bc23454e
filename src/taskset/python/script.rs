//! A script and the workers that run it: asking its functions something.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, de::DeserializeOwned};

use super::{
    Call, CallFailure, FailureKind, Lane, Workers,
    body::Body,
    description::{Description, Function},
};
use crate::trace::{Fault, FaultClass};

/// An opened script.
pub(super) struct Script {
    /// What messages call it.
    pub(super) name: String,
    pub(super) description: Arc<Description>,
    pub(super) workers: Workers,
    /// For a call, where the function has no time of its own.
    pub(super) timeout: Duration,
}

/// What the bridge answers.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Answer<T> {
    Value(T),
    Error(AuthorError),
}

/// An error of the author's code.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct AuthorError {
    /// One line, with the place.
    pub(super) message: String,
    /// The author's frames, outermost first.
    pub(super) traceback: Vec<String>,
}

impl Script {
    /// Asks functions for something. Their failures are of the class; a worker that cannot start is the infrastructure's.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        op: &str,
        functions: &[Function],
        body: &Body,
        class: FaultClass,
    ) -> Result<T, Fault> {
        let lane = if functions.iter().all(|function| function.is_async) { Lane::Shared } else { Lane::Exclusive };
        let body = body.bytes()?;
        let call = Call { op, body: &body, deadline: self.patience(functions), lane };
        match self.workers.call::<Answer<T>>(call).await {
            Ok(Answer::Value(value)) => Ok(value),
            Ok(Answer::Error(error)) => Err(error.into_fault(class)),
            Err(failure) => Err(fault_of(failure, class, functions)),
        }
    }

    /// The time of a call: that of its most patient function.
    fn patience(&self, functions: &[Function]) -> Duration {
        let own = |function: &Function| function.timeout.and_then(|own| Duration::try_from_secs_f64(own).ok());
        functions.iter().map(|function| own(function).unwrap_or(self.timeout)).max().unwrap_or(self.timeout)
    }
}

impl AuthorError {
    /// The error as a fault of a class.
    pub(super) fn into_fault(self, class: FaultClass) -> Fault {
        let mut fault = Fault::new(class, self.message);
        fault.causes = self.traceback;
        fault
    }

    /// The error in full, for a taskset that cannot be read.
    pub(super) fn in_full(&self) -> String {
        std::iter::once(&self.message).chain(&self.traceback).map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}

fn fault_of(failure: CallFailure, class: FaultClass, functions: &[Function]) -> Fault {
    let class = if failure.kind == FailureKind::CannotStart { FaultClass::Infrastructure } else { class };
    let who = match functions {
        [only] => format!("`{}`", only.name),
        several => {
            let names: Vec<String> = several.iter().map(|function| format!("`{}`", function.name)).collect();
            format!("the call of {}", names.join(", "))
        }
    };
    failure.into_fault(class, &who)
}
