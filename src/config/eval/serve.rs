//! The block `serve`: how an env is served, and where.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;

use super::{ServeConfig, ServeRuntime, Workers, client::is_variable, read::Purpose};
use crate::config::Section;

/// Episodes that a worker of an elastic pool is meant to carry, as verifiers has it.
const MULTIPLEX: u32 = 128;
/// Workers of a static pool, as verifiers has it.
const WORKERS: u32 = 4;
/// How often a run is done again whose worker was lost.
const MAX_REDOS: u32 = 2;
/// A Python environment that loads a large data set takes minutes.
const STARTUP: Duration = Duration::from_secs(300);
/// Until a worker that is not needed is let go.
const IDLE: Duration = Duration::from_secs(60);
/// A worker that is only busy answers within this.
const STALLED: Duration = Duration::from_secs(60);
/// How long runs may take to end when a server is told to.
const GRACE: Duration = Duration::from_secs(10);
/// Processes and threads in a box: Python's libraries start dozens of threads.
const PIDS: u32 = 512;

/// Reads the block. That a pool is given says that there are workers at all, so one that is not is shown as none, unless all
/// keys are asked for.
pub(super) fn read_serve(block: &mut Section<'_>, purpose: Purpose) -> ServeConfig {
    let has_pool = block.has("pool") && !block.is_unset("pool");
    let workers = if has_pool || matches!(purpose, Purpose::Keys) {
        read_pool(&mut block.child("pool"))
    } else {
        block
            .doc("Workers of the run's own; those of verifiers where they are needed and nobody says how many")
            .open("pool");
        block.resolve("pool", Value::Null);
        Workers::Elastic { max_workers: None, multiplex: MULTIPLEX }
    };
    let address: Option<String> = block
        .doc("Where the env is served, as `tcp://HOST:PORT` or `ipc://PATH`; an eval connects there, an env-server listens")
        .get("address");
    if let Some(address) = &address
        && let Err(problem) = check_address(address)
    {
        block.fault("address", format!("{problem}; expected `tcp://HOST:PORT` or `ipc://PATH`"));
    }
    let max_concurrent = block.doc("Episodes in flight per worker").limit_in("max_concurrent", 1.., None);
    let runtime = read_runtime(&mut block.child("runtime"));
    let pass_env: Vec<String> =
        block.doc("Environment variables that the workers see, by their names").get_or("pass_env", Vec::new());
    if pass_env.iter().any(|name| !is_variable(name)) {
        // The value is not shown: people paste the secret itself here.
        block.fault("pass_env", "not the name of an environment variable; export it and name it here");
    }
    let doc = "What becomes of the runs of a worker that is lost: done again by another, or failed";
    let redo = block.doc(doc).choose("on_lost", &[("redo", true), ("fail", false)], true);
    let max_redos = block.doc("How often one run is done again").get_in("max_redos", 0..=100, MAX_REDOS);
    let startup = block.doc("Seconds until a worker must have loaded its env").duration("startup", Some(STARTUP));
    let idle = block
        .doc("Seconds until a worker of an elastic pool that is not needed is let go")
        .duration("idle", Some(IDLE));
    let stalled = block
        .doc("Seconds that a worker may leave a question for its health unanswered; one that is dead is noticed sooner")
        .duration("stalled", Some(STALLED));
    let grace = block.doc("Seconds that runs have to end when a server is told to").duration("grace", Some(GRACE));
    let python: Option<PathBuf> = block
        .doc("Interpreter of a Python environment; else that of `VIRTUAL_ENV`, of `.venv`, or what `env install` made")
        .get("python");
    ServeConfig {
        asks_for_workers: has_pool || matches!(runtime, ServeRuntime::Sandbox { .. }),
        workers,
        address,
        max_concurrent,
        runtime,
        pass_env: pass_env.into_iter().collect::<BTreeSet<_>>().into_iter().collect(),
        max_redos: if redo { max_redos } else { 0 },
        startup,
        idle,
        stalled,
        grace: grace.unwrap_or(GRACE),
        python,
    }
}

fn read_pool(block: &mut Section<'_>) -> Workers {
    let elastic = block.doc("How many workers there are").choose("type", &[("elastic", true), ("static", false)], true);
    if elastic {
        let doc = "Most workers; as many as the episodes in flight ask for without it";
        let max_workers = block.doc(doc).limit_in("max_workers", 1.., None::<u32>);
        let multiplex = block.doc("Episodes that one worker is meant to carry").get_in("multiplex", 1.., MULTIPLEX);
        block.moved("num_workers", "an elastic pool has `max_workers`; or write `type = \"static\"`");
        Workers::Elastic { max_workers, multiplex }
    } else {
        block.moved("max_workers", "a static pool has `num_workers`");
        block.moved("multiplex", "a static pool has `num_workers`, and carries what comes");
        Workers::Static(block.doc("Workers").get_in("num_workers", 1..=1024, WORKERS))
    }
}

fn read_runtime(block: &mut Section<'_>) -> ServeRuntime {
    let doc = "What a worker runs in: a process of its own, or a box without network and without your files";
    if !block.doc(doc).choose("type", &[("subprocess", false), ("sandbox", true)], false) {
        for key in ["memory", "pids", "read_only", "writable", "routes"] {
            block.moved(key, "a subprocess has no walls; write `type = \"sandbox\"`");
        }
        return ServeRuntime::Subprocess;
    }
    let memory = block.doc("Memory of one worker in GB").limit_in("memory", 0.05..=16_384.0, None::<f64>);
    let pids = block.doc("Processes and threads of one worker").limit_in("pids", 8..=65_536, Some(PIDS));
    let read_only: Vec<PathBuf> = block.doc("More paths that it can read").get_or("read_only", Vec::new());
    let writable: Vec<PathBuf> = block.doc("Paths that it can write to").get_or("writable", Vec::new());
    for (key, paths) in [("read_only", &read_only), ("writable", &writable)] {
        for path in paths {
            if !path.exists() {
                block.fault(key, format!("there is no `{}`; make it, or leave it out", path.display()));
            } else if key == "writable" && path == Path::new("/") {
                block.fault(key, "`/` is everything; name the folder that it shall write to");
            }
        }
    }
    let doc = "Addresses that it can reach, as `HOST:PORT`; the endpoint of the run is always among them";
    let texts: Vec<String> = block.doc(doc).get_or("routes", Vec::new());
    let mut routes = Vec::new();
    for text in &texts {
        match host_and_port(text) {
            Some(route) => routes.push(route),
            None => block.fault("routes", format!("`{text}` is no address; expected `HOST:PORT`")),
        }
    }
    ServeRuntime::Sandbox {
        memory: memory.map(|gigabytes| (gigabytes * 1e9) as u64),
        pids,
        read_only,
        writable,
        routes,
    }
}

/// The host, without brackets, and the port.
fn host_and_port(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port > 0)?;
    let plain = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = |host: &str| !host.is_empty() && !host.contains(['/', ' ', '@', '?', '#']);
    match plain {
        Some(host) => is_host(host).then(|| (host.to_owned(), port)),
        None => (is_host(host) && !host.contains(':')).then(|| (host.to_owned(), port)),
    }
}

/// Says what keeps a text from being an address.
fn check_address(text: &str) -> Result<(), &'static str> {
    if let Some(path) = text.strip_prefix("ipc://") {
        return if path.is_empty() { Err("names no path") } else { Ok(()) };
    }
    let Some(place) = text.strip_prefix("tcp://") else { return Err("not an address") };
    match place.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(()),
        Some((_, port)) if port.parse::<u16>().is_err() => Err("the port is no number from 0 to 65535"),
        _ => Err("the host or the port is missing"),
    }
}
