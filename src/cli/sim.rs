//! `rollhouse sim`: serves the simulated model until it is told to stop.

use std::{env, net::IpAddr, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Result, anyhow, bail};
use clap::{Args, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};

use super::{
    exit::{self, Failure},
    oracle::{Player, Players},
    output,
    package::find,
    taskset::open,
};
use crate::{
    sim::{ApiKey, FaultRule, Oracle, Policy, Settings, SimError, Simulator},
    tasksets::shipped,
};

/// Context window where none is asked for.
const DEFAULT_WINDOW: usize = 32_768;

/// Serve a simulated model behind an OpenAI-compatible endpoint.
#[derive(Args, Clone, Debug)]
#[command(allow_negative_numbers = true)]
pub(super) struct SimArgs {
    /// Port to listen on; 0 takes any free one.
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// Name of the model served.
    #[arg(long, default_value = "sim")]
    pub model: String,
    /// Taskset whose tasks the policy `oracle` solves beside the shipped ones: a name, or the path of one of your own. Can be
    /// given several times.
    #[arg(long = "taskset", value_name = "ID_OR_PATH")]
    pub tasksets: Vec<String>,
    /// What everything random is derived from.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Where answers come from.
    #[arg(long, value_enum, default_value_t = PolicyName::Oracle)]
    pub policy: PolicyName,
    /// The answer of the policy `fixed`.
    #[arg(long, required_if_eq("policy", "fixed"))]
    pub text: Option<String>,
    /// Share of the oracle's answers that are made wrong, 0 to 1.
    #[arg(long, default_value_t = 0.0)]
    pub error_rate: f64,
    /// Milliseconds to the first token.
    #[arg(long, default_value_t = 0.0)]
    pub ttft_ms: f64,
    /// Milliseconds from each token to the next.
    #[arg(long, default_value_t = 0.0)]
    pub itl_ms: f64,
    /// Tokens (bytes) that the key-value cache holds; requests wait when it is full. No limit if not given.
    #[arg(long)]
    pub kv_tokens: Option<usize>,
    /// Requests that run at once; more wait. No limit if not given.
    #[arg(long)]
    pub max_running: Option<usize>,
    /// Requests that may wait; more are refused with 503. No limit if not given.
    #[arg(long)]
    pub max_queue: Option<usize>,
    /// Context window, prompt and completion, in tokens (bytes); 32768, or what --kv-tokens holds, if not given.
    #[arg(long)]
    pub max_model_len: Option<usize>,
    /// Share of requests that go wrong in one way: 429, 500, 503, reset, hang, malformed, cut, slow-headers, wrong-usage, wrong-tokens,
    /// overflow or empty. Can be given several times.
    #[arg(long = "fault", value_name = "KIND:SHARE[@ROUTE]")]
    pub faults: Vec<FaultRule>,
    /// Seconds in the Retry-After header of injected 429s.
    #[arg(long, default_value_t = 1)]
    pub retry_after: u64,
    /// Milliseconds by which slow headers are late.
    #[arg(long, default_value_t = 2000.0)]
    pub slow_headers_ms: f64,
    /// Environment variable with the key that callers must present.
    #[arg(long, value_name = "VARIABLE")]
    pub api_key_var: Option<String>,
}

/// Policies as they are written on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PolicyName {
    /// Right answers to tasksets, some made wrong by --error-rate.
    Oracle,
    /// The last user message, again.
    Echo,
    /// Always --text.
    Fixed,
    /// Random words.
    Random,
}

/// Serves until SIGINT or SIGTERM.
///
/// # Errors
/// Bad values (usage); tasks that cannot be read, no runtime, no signal handlers, an address that is taken (failed).
pub(super) fn run(mut args: SimArgs) -> Result<ExitCode, Failure> {
    let tasksets = std::mem::take(&mut args.tasksets);
    let settings = settings(args).map_err(Failure::usage)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::failed)?;
    runtime.block_on(async {
        let players = players(&tasksets).await?;
        serve(settings, Arc::new(players)).await
    })
}

/// The tasksets that are named, with their tasks, and every shipped one; all with their defaults.
async fn players(ids: &[String]) -> Result<Players, Failure> {
    let mut players = Vec::new();
    for id in ids {
        let (taskset, _) = open(&find(id).map_err(Failure::usage)?, "{}")?;
        players.push(Arc::new(Player::with_tasks(taskset).await.map_err(Failure::failed)?));
    }
    for shipped in shipped() {
        let (taskset, _) = open(&shipped.into(), "{}")?;
        players.push(Arc::new(Player::new(taskset)));
    }
    Ok(Players(players))
}

async fn serve(settings: Settings, oracle: Arc<dyn Oracle>) -> Result<ExitCode, Failure> {
    // Before the line that says we are ready, so that a signal right after it is not lost.
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::failed)?;
    let simulator = Simulator::start(settings, Some(oracle)).await.map_err(|error| match error {
        SimError::Settings(error) => Failure::usage(error),
        error => Failure::failed(error),
    })?;
    // The one line that callers wait for.
    output::print(format!("listening on {} model={}\n", simulator.base_url(), simulator.model()))?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    simulator.shutdown().await;
    Ok(exit::DONE.into())
}

fn settings(args: SimArgs) -> Result<Settings> {
    let policy = match (args.policy, args.text) {
        (PolicyName::Fixed, Some(text)) => Policy::Fixed(text),
        (PolicyName::Fixed, None) => bail!("--policy fixed needs --text"),
        (_, Some(_)) => bail!("--text is only for --policy fixed"),
        (PolicyName::Oracle, None) => Policy::Oracle,
        (PolicyName::Echo, None) => Policy::Echo,
        (PolicyName::Random, None) => Policy::Random,
    };
    let api_key = match args.api_key_var {
        None => None,
        Some(variable) => match env::var(&variable) {
            Ok(key) => Some(ApiKey::new(key)),
            Err(_) => bail!("--api-key-var: the environment variable {variable} is not set"),
        },
    };
    Ok(Settings {
        host: args.host,
        port: args.port,
        model: args.model,
        seed: args.seed,
        policy,
        error_rate: args.error_rate,
        time_to_first_token: milliseconds("--ttft-ms", args.ttft_ms)?,
        inter_token_latency: milliseconds("--itl-ms", args.itl_ms)?,
        kv_tokens: args.kv_tokens,
        max_running: args.max_running,
        max_queue: args.max_queue,
        max_model_len: args.max_model_len.unwrap_or(DEFAULT_WINDOW.min(args.kv_tokens.unwrap_or(DEFAULT_WINDOW))),
        faults: args.faults,
        retry_after: Duration::from_secs(args.retry_after),
        slow_headers: milliseconds("--slow-headers-ms", args.slow_headers_ms)?,
        api_key,
    })
}

fn milliseconds(flag: &str, value: f64) -> Result<Duration> {
    /// A day: longer than anything that is meant.
    const LONGEST: f64 = 86_400_000.0;
    if (0.0..=LONGEST).contains(&value) {
        Ok(Duration::from_secs_f64(value / 1e3))
    } else {
        Err(anyhow!("{flag} {value} is not a time between 0 and {LONGEST} ms"))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: SimArgs,
    }

    fn parse(line: &str) -> Result<Settings> {
        let words = std::iter::once("sim").chain(line.split_whitespace());
        settings(Program::try_parse_from(words)?.args)
    }

    #[test]
    fn flags_become_settings() {
        let parsed =
            parse("--port 0 --ttft-ms 2.5 --kv-tokens 40000 --fault 429:0.1 --fault cut:0.2@chat").expect("valid");
        assert_eq!(parsed.time_to_first_token, Duration::from_micros(2500));
        assert_eq!((parsed.kv_tokens, parsed.max_model_len), (Some(40_000), 32_768));
        assert_eq!(parse("--kv-tokens 5000").expect("valid").max_model_len, 5_000);
        assert_eq!(parsed.faults.len(), 2);
        assert_eq!(parsed.policy, Policy::Oracle);
        assert_eq!(parse("--policy fixed --text yes").expect("valid").policy, Policy::Fixed("yes".to_owned()));
    }

    #[test]
    fn bad_values_are_named() {
        let check = |line: &str, expected: &str| {
            let error = parse(line).err().unwrap_or_else(|| panic!("{line} is refused"));
            assert!(error.to_string().contains(expected), "{error}");
        };
        check("--ttft-ms -1", "--ttft-ms -1 is not a time");
        check("--fault teapot:1", "unknown fault kind `teapot`");
        check("--policy fixed", "--text");
        check("--policy echo --text x", "only for --policy fixed");
        check("--policy wise", "possible values: oracle, echo, fixed, random");
        check("--api-key-var SURELY_NOT_SET_ANYWHERE", "SURELY_NOT_SET_ANYWHERE is not set");
    }
}
