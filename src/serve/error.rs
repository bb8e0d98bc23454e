//! Why a run, or a server, does not answer; whose fault it is, and whether trying again can help.

use std::time::Duration;

use super::message::{BUSY, CANCELLED, POOL_BUSY, POOL_CLOSED, Refused, SHUT_DOWN, Unsendable, VALIDATION};
use crate::{
    trace::{Fault, FaultClass},
    zmtp::Address,
};

/// Why a run has no episode.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RunError {
    /// The connection went while the run was in flight.
    #[error("the env server at {address} was lost during the run: {reason}")]
    Lost {
        /// Where the server was.
        address: Address,
        /// How the connection went.
        reason: String,
    },
    /// The request never left.
    #[error("the env server cannot be reached: {reason}")]
    Unreached {
        /// Where it should be.
        address: Address,
        /// Why not.
        reason: String,
    },
    /// The task cannot be sent.
    #[error(transparent)]
    Unsendable(#[from] Unsendable),
    /// The server refused the run, or failed to do it.
    #[error("the env server refused the run: {0}")]
    Refused(Refused),
    /// The server aborted the run, and nobody here has asked for it.
    #[error("the env server aborted the run")]
    Cancelled,
    /// The server serves something else, whose rewards are not those of this taskset.
    #[error("the env server at {address} serves `{theirs}`, not `{ours}`; correct `serve.address` or the taskset")]
    OtherEnv {
        /// Where it is.
        address: Address,
        /// What it serves.
        theirs: String,
        /// What was to be run.
        ours: String,
    },
    /// What the server sent does not hold together.
    #[error("the episode could not be put together: {0}")]
    Assembly(String),
    /// The client was closed.
    #[error("the client of the env server was closed")]
    Closed,
}

/// Why a server is not healthy.
#[derive(Clone, Debug, thiserror::Error)]
pub enum HealthError {
    /// There is no connection.
    #[error("the env server cannot be reached: {0}")]
    Unreached(String),
    /// It does not answer in time.
    #[error("the env server does not answer")]
    Silent,
    /// It answers with an error.
    #[error("the env server says that it is not healthy: {0}")]
    Refused(Refused),
    /// The client was closed.
    #[error("the client of the env server was closed")]
    Closed,
}

/// Why a server did not become ready.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NotReady {
    /// Nothing listens there.
    #[error("there is no env server at {address} ({reason}), after {} s; start it, or correct `serve.address`", within.as_secs_f64())]
    NoServer {
        /// Where it should be.
        address: Address,
        /// How long it was waited for.
        within: Duration,
        /// Why not.
        reason: String,
    },
    /// What is there is no env server.
    #[error("what listens at {address} is no env server ({reason}); correct `serve.address`")]
    Stranger {
        /// Where it is.
        address: Address,
        /// Why not.
        reason: String,
    },
    /// It is there and does not answer.
    #[error(
        "the env server at {address} takes connections and does not answer, after {} s; it may still load its environment: see \
         its log",
        within.as_secs_f64()
    )]
    Silent {
        /// Where it is.
        address: Address,
        /// How long it was waited for.
        within: Duration,
    },
    /// It answers with an error.
    #[error("the env server at {address} is not healthy: {refused}")]
    Refused {
        /// Where it is.
        address: Address,
        /// What it says.
        refused: Refused,
    },
}

/// Exceptions that say that the request or the env is wrong: the next attempt meets them again.
const LASTING: &[&str] = &[
    VALIDATION,
    "AssertionError",
    "AttributeError",
    "ExtraData",
    "FormatError",
    "ImportError",
    "IndexError",
    "KeyError",
    "ModuleNotFoundError",
    "NameError",
    "NotImplementedError",
    "OverflowError",
    "StackError",
    "SyntaxError",
    "TypeError",
    "UnicodeDecodeError",
    "UnicodeEncodeError",
    "ValueError",
];

impl RunError {
    /// Whether the server went, or was not there: the run itself did nothing wrong.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. } | Self::Unreached { .. })
    }

    /// Whether the server is about to go: another one, or the same when it is back, can do the run.
    pub(super) fn is_leaving(&self) -> bool {
        match self {
            Self::Refused(refused) => [SHUT_DOWN, POOL_CLOSED].contains(&&*refused.class),
            // It was not asked to.
            Self::Cancelled => true,
            _ => false,
        }
    }

    /// Whether the server has no room for the run before others have ended.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self, Self::Refused(refused) if [BUSY, POOL_BUSY].contains(&&*refused.class))
    }

    /// Whether the same run may succeed when it is asked for again.
    pub fn retry_helps(&self) -> bool {
        match self {
            Self::Lost { .. } | Self::Unreached { .. } | Self::Cancelled | Self::Assembly(_) => true,
            Self::Refused(refused) => !refused.class.is_empty() && !LASTING.contains(&refused.class.as_str()),
            Self::Unsendable(_) | Self::OtherEnv { .. } | Self::Closed => false,
        }
    }

    /// The failure as an episode records it. A remote exception keeps its class.
    pub fn fault(&self) -> Fault {
        let fault = match self {
            Self::Refused(refused) if !refused.class.is_empty() => {
                let mut fault = Fault::of_kind(&refused.class, self.to_string());
                if self.retry_helps() && fault.class == FaultClass::Task {
                    // What is no fault of the task: memory, files, sockets of the server.
                    fault.class = FaultClass::Infrastructure;
                }
                fault
            }
            Self::Refused(_) | Self::Unsendable(_) => Fault::new(FaultClass::Task, self.to_string()),
            Self::Cancelled => Fault::new(FaultClass::Cancelled, self.to_string()),
            Self::Lost { .. } | Self::Unreached { .. } | Self::OtherEnv { .. } | Self::Assembly(_) | Self::Closed => {
                Fault::new(FaultClass::Infrastructure, self.to_string())
            }
        };
        fault.retryable(self.retry_helps())
    }

    pub(super) fn refused(refused: Refused) -> Self {
        if refused.class == CANCELLED { Self::Cancelled } else { Self::Refused(refused) }
    }
}
