//! `rollhouse env-server`: serves an env until it is told to stop.

mod request;

use std::{io, net::IpAddr, process::ExitCode, sync::Arc};

use serde_json::Map;
use tokio_util::sync::CancellationToken;

use self::request::{Asked, Request};
use super::{
    crew::{Workplace, pool_settings},
    endpoint::{named_secrets, passed_secrets},
    exit::{self, Failure},
    output,
    signals::Signals,
};
use crate::{
    config::Redactor,
    eval::Stops,
    inference::{Pool as EndpointPool, PoolSettings},
    rubric::judge,
    serve::{HostSettings, Server, ServerSettings, TasksetHost, pool::Pool},
    telemetry,
    trace::EnvInfo,
    zmtp::Address,
};

/// Where an env is served that names no address, as verifiers has it.
const ADDRESS: &str = "tcp://127.0.0.1:5000";

/// Runs the command with the words after `env-server`.
pub(super) fn run(words: &[String]) -> Result<ExitCode, Failure> {
    let request = match request::read(words)? {
        Asked::Text(text) => {
            output::print(text)?;
            return Ok(exit::DONE.into());
        }
        Asked::Serve(request) => *request,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::failed)?;
    let code = match runtime.block_on(runtime.spawn(serve(request))) {
        Ok(code) => code,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    runtime.shutdown_background();
    code
}

async fn serve(request: Request) -> Result<ExitCode, Failure> {
    let address = request.config.serve.address.as_deref().unwrap_or(ADDRESS);
    let address: Address =
        address.parse().map_err(|error| Failure::usage(anyhow::anyhow!("serve.address: {error}")))?;
    warn_of_strangers(&address);
    let redactor = bind_judges(&request)?;
    let filter = std::env::var(telemetry::names::env::LOG).ok();
    telemetry::start_logging(Box::new(io::stderr()), request.config.verbose, filter.as_deref(), redactor.clone())
        .map_err(Failure::failed)?;
    let stops = Stops::default();
    let signals = Signals::listen(stops.clone()).map_err(Failure::failed)?;
    let in_this_process = request.python.is_none() && !request.config.serve.asks_for_workers;
    let served = async {
        if in_this_process {
            serve_here(&request, &address, stops.stop.clone()).await
        } else {
            serve_by_pool(&request, &address, redactor, stops.stop.clone()).await
        }
    };
    tokio::select! {
        served = served => served.map(|()| exit::DONE.into()),
        () = stops.kill.cancelled() => Ok(exit::INTERRUPTED.into()),
        () = signals.leave() => Ok(exit::INTERRUPTED.into()),
    }
}

/// Serves a taskset of rollhouse from this very process.
async fn serve_here(request: &Request, address: &Address, stop: CancellationToken) -> Result<(), Failure> {
    let Request { config, dump, taskset, .. } = request;
    let seat = dump.pointer("/env/agent").cloned().unwrap_or_default();
    let table = |key: &str| seat[key].as_object().cloned();
    let settings = HostSettings {
        env: EnvInfo { id: config.taskset.clone(), name: None },
        agent: config.agent.clone(),
        model: seat["model"].as_str().map(str::to_owned),
        client: table("client"),
        sampling: table("sampling").unwrap_or_else(Map::new),
        block: seat,
        deadline: config.episode_deadline,
        retries: config.retries.clone(),
    };
    let host = Arc::new(TasksetHost::new(Arc::clone(taskset), settings));
    let settings = ServerSettings {
        max_concurrent: config.serve.max_concurrent,
        drain: config.serve.grace,
        ..ServerSettings::default()
    };
    let server = Server::bind(address, settings, host).await.map_err(Failure::failed)?;
    tell_ready(&config.taskset, server.address(), "in this process")?;
    server.run(stop).await;
    Ok(())
}

/// Serves an env from workers behind one address.
async fn serve_by_pool(
    request: &Request,
    address: &Address,
    redactor: Redactor,
    stop: CancellationToken,
) -> Result<(), Failure> {
    let Request { config, dump, taskset, python } = request;
    let workplace = Workplace {
        serve: &config.serve,
        client: config.client.as_ref(),
        base_urls: Vec::new(),
        dump,
        taskset,
        python: python.as_ref(),
    };
    let crew = workplace.crew().await?;
    let pool =
        Pool::start(address, pool_settings(&config.serve, None, redactor), crew).await.map_err(Failure::failed)?;
    tokio::select! {
        ready = pool.ready() => ready.map_err(Failure::failed)?,
        () = stop.cancelled() => {
            pool.shut_down(config.serve.grace).await;
            return Ok(());
        }
    }
    tell_ready(&config.taskset, pool.address(), "by workers")?;
    tokio::select! {
        error = pool.failed() => Err(Failure::failed(error)),
        () = stop.cancelled() => {
            pool.shut_down(config.serve.grace).await;
            Ok(())
        }
    }
}

/// One line for programs, one for people: from now on runs are answered.
fn tell_ready(env: &str, address: &Address, how: &str) -> Result<(), Failure> {
    output::note(&format!("{env} is served at {address}, {how}; Ctrl-C ends it"));
    output::print(format!("{address}\n"))
}

/// Gives judges that name no endpoint that of the configuration; the secrets of all are kept out of the log.
fn bind_judges(request: &Request) -> Result<Redactor, Failure> {
    let mut secrets = Vec::new();
    let pool = match &request.config.client {
        Some(client) => {
            let settings = PoolSettings::from_config(client).map_err(Failure::usage)?;
            secrets.extend(settings.key.iter().chain(settings.secret_headers.values()).cloned());
            Some(EndpointPool::new(settings, None).map_err(Failure::usage)?)
        }
        None => None,
    };
    let host = judge::Host { pool, model: request.config.model.clone(), ..judge::Host::default() };
    secrets.extend(request.taskset.rubric().bind(&host).map_err(Failure::usage)?);
    secrets.extend(passed_secrets(request.taskset.as_ref(), &secrets)?);
    secrets.extend(named_secrets(&request.config.serve.pass_env));
    Ok(Redactor::new(&secrets))
}

/// The protocol knows no password.
fn warn_of_strangers(address: &Address) {
    let Address::Tcp { host, .. } = address else { return };
    let local = host.as_str() == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if !local {
        output::note(&format!(
            "warning: serve.address: whoever reaches {address} can run tasks here, on the keys of this process: the protocol has no \
             authentication; keep it behind a firewall, or serve at 127.0.0.1"
        ));
    }
}
