//! What a configuration comes to: plain values, no `Option` that means "default".

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use serde_json::{Map, Value};

use crate::config::RendererConfig;

/// Everything `rollhouse eval` does, resolved from files, flags and defaults.
#[derive(Clone, Debug)]
pub struct EvalConfig {
    /// What runs call the taskset: its id without owner and version, or the name of its folder.
    pub taskset: String,
    /// File whose text takes the place of every task's system prompt.
    pub system_prompt: Option<PathBuf>,
    /// Weights that take the place of those of the taskset, by the name of the reward.
    pub weights: BTreeMap<String, f64>,
    /// Model name sent to the endpoint.
    pub model: String,
    /// The endpoint; `None` starts the simulator in process.
    pub client: Option<ClientConfig>,
    /// Sampling fields, passed through as they are; `extra_body` hoisted, `max_completion_tokens` renamed.
    pub sampling: Map<String, Value>,
    /// Which tasks.
    pub select: Select,
    /// Episodes per task.
    pub num_rollouts: u32,
    /// Episodes in flight; `None` is no limit.
    pub max_concurrent: Option<usize>,
    /// The agent's seat.
    pub agent: AgentConfig,
    /// Deadline of a whole episode, teardown included.
    pub episode_deadline: Option<Duration>,
    /// Whole-episode retries.
    pub retries: RetryRules,
    /// Share of failed episodes above which the run fails, 0 to 1.
    pub max_error_rate: f64,
    /// Parent of the run directory.
    pub output_dir: PathBuf,
    /// The run's name; generated when absent from the config.
    pub run_name: Option<String>,
    /// The run's directory below `output_dir`; the name when absent.
    pub run_dir: Option<PathBuf>,
    /// Debug logs.
    pub verbose: bool,
    /// How the env is served, and where.
    pub serve: ServeConfig,
    /// The env is of another house: its block was taken as it is, and whoever runs it judges, retries and bounds by it.
    pub foreign: bool,
}

/// How an env is served, and where.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// The block names a pool or a box, so that also an env that could run in this process runs in workers.
    pub asks_for_workers: bool,
    /// The workers of a pool.
    pub workers: Workers,
    /// Where the env is served: an evaluation connects there, an env server listens.
    pub address: Option<String>,
    /// Episodes in flight per worker.
    pub max_concurrent: Option<usize>,
    /// What a worker runs in.
    pub runtime: ServeRuntime,
    /// Names of environment variables that workers see, sorted.
    pub pass_env: Vec<String>,
    /// How often a run is done again whose worker was lost; 0 fails it.
    pub max_redos: u32,
    /// Until a worker must be ready; `None` for ever.
    pub startup: Option<Duration>,
    /// Until a worker that is not needed is let go; `None` never.
    pub idle: Option<Duration>,
    /// Silence of a worker after which it is taken for stuck; `None` never.
    pub stalled: Option<Duration>,
    /// How long runs may take to end when the server is told to.
    pub grace: Duration,
    /// Interpreter of a Python environment.
    pub python: Option<PathBuf>,
}

/// How many workers a pool has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// As many as the episodes in flight ask for.
    Elastic {
        /// Most workers; `None` is no limit.
        max_workers: Option<u32>,
        /// Episodes that one is meant to carry.
        multiplex: u32,
    },
    /// This many.
    Static(u32),
}

/// What a worker runs in.
#[derive(Clone, Debug, PartialEq)]
pub enum ServeRuntime {
    /// A process of its own.
    Subprocess,
    /// A box without network and without the user's files.
    Sandbox {
        /// Bytes of memory.
        memory: Option<u64>,
        /// Processes and threads.
        pids: Option<u32>,
        /// More paths that it can read.
        read_only: Vec<PathBuf>,
        /// Paths that it can write to.
        writable: Vec<PathBuf>,
        /// Addresses that it can reach beside the endpoint.
        routes: Vec<(String, u16)>,
    },
}

/// The agent's seat.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Harness id; `null` is chat only.
    pub harness: String,
    /// Budgets.
    pub limits: Limits,
    /// Stage deadlines that replace the task's own.
    pub deadlines: StageDeadlines,
    /// Retries of one rollout.
    pub retries: RetryRules,
}

/// Budgets of one rollout; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Model turns.
    pub max_turns: Option<u64>,
    /// New input tokens over all calls.
    pub max_input_tokens: Option<u64>,
    /// Sampled tokens.
    pub max_output_tokens: Option<u64>,
    /// Both.
    pub max_total_tokens: Option<u64>,
}

/// Deadlines per stage; `None` leaves the task's own, if any.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageDeadlines {
    /// Task and harness setup.
    pub setup: Option<Duration>,
    /// The harness; waiting for the user does not count.
    pub rollout: Option<Duration>,
    /// Collecting results.
    pub finalize: Option<Duration>,
    /// Rewards and metrics.
    pub scoring: Option<Duration>,
}

/// Which failures are tried again, and how often.
#[derive(Clone, Debug, Default)]
pub struct RetryRules {
    /// Budget for failures that no rule matches.
    pub max_retries: u32,
    /// First match owns the failure.
    pub rules: Vec<RetryRule>,
}

/// One rule; every given field must match.
#[derive(Clone, Debug)]
pub struct RetryRule {
    /// Exact error type name.
    pub kind: Option<String>,
    /// Statuses or classes such as `5xx`.
    pub status: Vec<StatusMatch>,
    /// Searched in the message.
    pub message: Option<regex::Regex>,
    /// Budget of this rule; 0 forbids.
    pub max_retries: u32,
}

/// A status code or a class of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusMatch {
    /// One code.
    Code(u16),
    /// Hundreds: 5 is `5xx`.
    Class(u16),
}

/// An OpenAI-compatible endpoint.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// One or more base URLs that serve the same model, each ending in `/v1` as a rule.
    pub base_urls: Vec<String>,
    /// Name of the variable that holds the key.
    pub api_key_var: String,
    /// Static headers.
    pub headers: BTreeMap<String, String>,
    /// Header to variable; a set variable wins over the static header.
    pub headers_from_env: BTreeMap<String, String>,
    /// Waiting for a connection.
    pub connect: Duration,
    /// Waiting for the first byte of an answer; `None` for ever.
    pub first_byte: Option<Duration>,
    /// Waiting between two reads; `None` for ever.
    pub idle: Option<Duration>,
    /// Attempts after the first one.
    pub max_retries: u32,
    /// Budget of one call over all attempts and waits; `None` is no limit.
    pub call_budget: Option<Duration>,
    /// Stream the answers.
    pub stream: bool,
    /// The client speaks in exact tokens, for training; `None` speaks in text.
    pub train: Option<TrainClient>,
}

/// How a training client speaks in exact tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainClient {
    /// The renderer.
    pub renderer: RendererConfig,
    /// Folder or model of the tokenizer; `None` is the request's model.
    pub renderer_model: Option<String>,
    /// Which way the tokens go.
    pub route: TokenRoute,
}

/// Which way tokens go between client and engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenRoute {
    /// Tokens in, tokens out: `/inference/v1/generate`. What was sampled is sent again as it was.
    #[default]
    Generate,
    /// Chat completions with `return_token_ids` and `logprobs`: any vLLM. The server tokenizes the history of each turn anew;
    /// where that gives other tokens, the turn starts a branch.
    Chat,
}

/// Which tasks run: include, exclude, shuffle, skip, limit, in this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Select {
    /// Keep only these; empty keeps all.
    pub include: TaskFilter,
    /// Leave these out.
    pub exclude: TaskFilter,
    /// Shuffle as Python's `random.Random(seed).shuffle`.
    pub shuffle: bool,
    /// Seed of the shuffle.
    pub seed: u64,
    /// Leave out the first ones.
    pub skip: u64,
    /// At most this many.
    pub limit: Option<u64>,
}

/// Names tasks; one match is enough.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskFilter {
    /// Positions: `start`, `stop` (exclusive, `None` is open), `step`.
    pub idx: Vec<(u64, Option<u64>, u64)>,
    /// Ids of the source.
    pub ids: Vec<String>,
    /// Task keys.
    pub keys: Vec<String>,
    /// Names.
    pub names: Vec<String>,
}
