//! Asking an endpoint what it serves, before a run starts.

/// A model that an endpoint serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedModel {
    /// Its name.
    pub id: String,
    /// Its window in tokens, where the server says so (vLLM, SGLang).
    pub max_model_len: Option<u64>,
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
    #[error("{endpoint} does not accept the key ({message}); set `{variable}` to a valid one")]
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
