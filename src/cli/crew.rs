//! The workers of a pool: which program each of them is, what it sees of this machine, and how the pool keeps them.

use std::{
    collections::BTreeSet,
    env,
    ffi::OsString,
    os::fd::{AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::{exit::Failure, output};
use crate::{
    config::{ClientConfig, Redactor, SIMULATED_MODEL, ServeConfig, ServeRuntime, Workers},
    runtime::{Child, Limits, Program, Route, Sandbox, SandboxError, Stream},
    serve::pool::{Crew, NotStarted, OnLost, PoolKind, PoolSettings, Seat, Started},
    taskset::{
        Taskset,
        local::{self, Definition},
        python::Interpreter,
        verifiers::Environment,
    },
    telemetry::{names::env::LOG, raise_descriptor_limit},
    zmtp::Address,
};

/// A patience without end.
const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64);

/// What every worker of rollhouse's own sees of the environment; all else must be passed by name.
const PASSED: &[&str] = &[
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TMPDIR",
    "TZ",
    "VIRTUAL_ENV",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_ENDPOINT",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    LOG,
];

/// What the workers of an env have in common.
pub(super) struct Workplace<'a> {
    pub(super) serve: &'a ServeConfig,
    /// The endpoint that their runs will ask, where that is known: its variables are passed, and its address is a way out of
    /// the box.
    pub(super) client: Option<&'a ClientConfig>,
    /// Addresses of endpoints, in place of those of `client`.
    pub(super) base_urls: Vec<String>,
    /// The resolved configuration.
    pub(super) dump: &'a Value,
    pub(super) taskset: &'a Arc<dyn Taskset>,
    pub(super) python: Option<&'a Arc<Environment>>,
}

/// Starts the workers of one env.
struct Worker {
    kind: Kind,
    sandbox: Option<Sandbox>,
    pass_env: Vec<String>,
}

enum Kind {
    /// Python serves a package.
    Python(Arc<Environment>),
    /// This program serves a taskset of its own.
    Own { words: Vec<OsString>, folder: Option<PathBuf> },
}

impl Workplace<'_> {
    /// Who starts the workers. A box is tried first, so that what is missing is known before anything depends on it.
    ///
    /// # Errors
    /// There can be no such box here.
    pub(super) async fn crew(&self) -> Result<Arc<dyn Crew>, Failure> {
        let sandbox = self.sandbox()?;
        let in_python = self.python.is_none() && is_script(&self.dump["env"]);
        if sandbox.is_some() && in_python && self.taskset.rubric().compares_groups() {
            let problem = "serve.runtime: a sandbox does not hold rewards for a whole group: they look at rollouts of several \
                           workers, and so run outside of it; leave `runtime` out if you trust the taskset";
            return Err(Failure::usage(anyhow::anyhow!(problem)));
        }
        if let Some(sandbox) = &sandbox {
            // Each connection through a route takes two.
            raise_descriptor_limit();
            for weak in sandbox.check().await.map_err(not_possible)? {
                output::note(&format!(
                    "warning: serve.runtime: the limit of {} does not hold here: {}",
                    weak.limit, weak.reason
                ));
            }
        }
        let kind = match self.python {
            Some(python) => Kind::Python(Arc::clone(python)),
            None => Kind::Own { words: self.words(), folder: env::current_dir().ok().filter(|_| sandbox.is_none()) },
        };
        Ok(Arc::new(Worker { kind, sandbox, pass_env: self.passed() }))
    }

    /// What this program is told to serve the env; judges that name no endpoint ask that of the run.
    fn words(&self) -> Vec<OsString> {
        let mut client = self.dump["client"].clone();
        if !self.base_urls.is_empty() {
            client["base_url"] = self.base_urls.clone().into();
        }
        let env = in_place(self.dump["env"].clone());
        let mut words = vec![OsString::from("env-server"), format!("--env={env}").into()];
        if !client["base_url"].is_null() {
            let model = self.dump["model"].as_str().unwrap_or(SIMULATED_MODEL);
            words.extend([format!("--client={client}").into(), format!("--model={model}").into()]);
        }
        words
    }

    /// The names of the variables that they see: those of the block, those of the endpoint, and the taskset's own.
    fn passed(&self) -> Vec<String> {
        let endpoint = self
            .client
            .into_iter()
            .flat_map(|client| std::iter::once(&client.api_key_var).chain(client.headers_from_env.values()));
        let names = self.serve.pass_env.iter().chain(endpoint).chain(self.taskset.passed_variables());
        names.cloned().collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn sandbox(&self) -> Result<Option<Sandbox>, Failure> {
        let ServeRuntime::Sandbox { memory, pids, read_only, writable, routes } = &self.serve.runtime else {
            return Ok(None);
        };
        let mut ways: Vec<Route> = Vec::new();
        for (host, port) in routes {
            ways.push(Route { host: host.clone(), port: *port });
        }
        let configured = self.client.into_iter().flat_map(|client| &client.base_urls);
        for url in self.base_urls.iter().chain(configured) {
            ways.push(route_of(url).ok_or_else(|| {
                Failure::usage(anyhow::anyhow!("client.base_url: `{url}` has no host that a sandbox could reach"))
            })?);
        }
        ways.dedup();
        let needed = match self.python {
            Some(python) => python.paths(),
            None => own_paths(&self.dump["env"]),
        };
        let homes = homes();
        if let Some(open) = needed.iter().find(|path| homes.iter().any(|home| home.starts_with(path))) {
            return Err(Failure::usage(anyhow::anyhow!(
                "serve.runtime: the taskset or its Python lies in {}, and a sandbox that reads all of that sees your home; give \
                 it a folder of its own",
                open.display()
            )));
        }
        let read_only = read_only.iter().map(|path| absolute(path)).chain(needed).collect();
        let limits = Limits { memory: *memory, processes: pids.map(u64::from), ..Limits::default() };
        let writable = writable.iter().map(|path| absolute(path)).collect();
        Ok(Some(Sandbox { read_only, writable, routes: ways, limits, ..Sandbox::new() }))
    }
}

impl Crew for Worker {
    fn start<'a>(&'a self, seat: &'a Seat) -> BoxFuture<'a, Result<Started, NotStarted>> {
        Box::pin(async move {
            let mut program = match &self.kind {
                Kind::Python(environment) => {
                    let most = seat.max_concurrent.and_then(|most| u32::try_from(most).ok());
                    environment.server(&seat.address.to_string(), most, &self.pass_env)
                }
                Kind::Own { words, folder } => self.own(words, folder.clone(), seat),
            };
            (program.stdout, program.stderr) = (Stream::Piped, Stream::Piped);
            if let Some(sandbox) = &self.sandbox {
                let mut sandbox = sandbox.clone();
                // At the path of that outside, which it never sees.
                sandbox.shared = Some(seat.folder.clone());
                program = sandbox.enclose(program);
            }
            let mut child = Child::start(program).await.map_err(|error| NotStarted(error.to_string()))?;
            let Some(shared) = child.shared.take() else { return Ok(Started::from(child)) };
            let address = reached_through(&shared, &seat.address);
            Ok(Started { child, address, keep: Box::new(shared) })
        })
    }
}

impl Worker {
    /// This program, as the server of the env at a seat.
    fn own(&self, words: &[OsString], folder: Option<PathBuf>, seat: &Seat) -> Program {
        let serve = json!({"address": seat.address.to_string(), "max_concurrent": seat.max_concurrent});
        let names = PASSED.iter().copied().chain(self.pass_env.iter().map(String::as_str));
        Program {
            arguments: words.iter().cloned().chain([format!("--serve={serve}").into()]).collect(),
            folder,
            environment: names.filter_map(|name| Some((OsString::from(name), env::var_os(name)?))).collect(),
            ..Program::new(env::current_exe().unwrap_or_default())
        }
    }
}

/// Why there is no such box.
fn not_possible(error: SandboxError) -> Failure {
    let is_of_the_user = error.is_of_the_user();
    let error = anyhow::anyhow!("serve.runtime: {error}");
    if is_of_the_user { Failure::usage(error) } else { Failure::failed(error) }
}

/// The address of a socket in a folder that is open here; that of its name there means another folder.
fn reached_through(folder: &OwnedFd, address: &Address) -> Option<Address> {
    let Address::Ipc(path) = address else { return None };
    let open = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
    Some(Address::Ipc(open.join(path.file_name()?)))
}

/// Whether the taskset's functions are Python.
fn is_script(env: &Value) -> bool {
    let id = env["taskset"]["id"].as_str();
    id.and_then(|id| local::definition(id).ok()).is_some_and(|found| matches!(found, Definition::Python(_)))
}

/// The block with absolute paths: a worker in a box runs elsewhere.
fn in_place(mut env: Value) -> Value {
    let taskset = &mut env["taskset"];
    let is_file = |id: &str| local::is_path(id) || local::is_taskset(id);
    for (key, is_path) in [
        ("id", &is_file as &dyn Fn(&str) -> bool),
        ("system_prompt", &|_| true),
        ("python", &|python| python.contains('/')),
    ] {
        let path =
            taskset[key].as_str().filter(|text| !text.starts_with('~') && is_path(text)).map(Path::new).map(absolute);
        if let Some(path) = path.as_deref().and_then(Path::to_str) {
            taskset[key] = path.into();
        }
    }
    env
}

/// What a worker of rollhouse's own reads: this program, the files of its taskset, and the interpreter of a taskset in Python.
fn own_paths(env: &Value) -> Vec<PathBuf> {
    let taskset = &env["taskset"];
    let mut paths: Vec<PathBuf> = env::current_exe().into_iter().collect();
    paths.extend(taskset["system_prompt"].as_str().map(|file| absolute(Path::new(file))));
    if let Some(definition) = taskset["id"].as_str().and_then(|id| local::definition(id).ok()) {
        let place = absolute(definition.place());
        let folder = if place.is_file() { place.parent().map(Path::to_owned).unwrap_or(place) } else { place };
        if matches!(definition, Definition::Python(_)) {
            let explicit = taskset["python"].as_str().map(Path::new);
            let found = Interpreter::find(explicit, &folder, &[]).map(|interpreter| interpreter.program);
            for program in
                found.iter().flat_map(|program| [Some(program.clone()), program.canonicalize().ok()]).flatten()
            {
                paths.extend(program.parent().and_then(Path::parent).map(Path::to_owned));
            }
        }
        paths.push(folder);
    }
    // Root would be everything; what the system has is seen anyway.
    paths.retain(|path| path.exists() && path != Path::new("/") && !path.starts_with("/usr"));
    paths
}

/// The home of this user, as it is named and where that leads.
fn homes() -> Vec<PathBuf> {
    let home = env::home_dir().filter(|home| home.is_absolute() && home != Path::new("/"));
    home.iter().flat_map(|home| [Some(home.clone()), home.canonicalize().ok()]).flatten().collect()
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The host and the port of a URL.
fn route_of(url: &str) -> Option<Route> {
    let (scheme, rest) = url.split_once("://")?;
    let place = rest.split(['/', '?', '#']).next()?.rsplit('@').next()?;
    let with_port = match place.rsplit_once(':') {
        Some((_, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => place.to_owned(),
        _ => format!("{place}:{}", if scheme.eq_ignore_ascii_case("https") { 443 } else { 80 }),
    };
    with_port.parse().ok()
}

/// How a pool keeps its workers.
pub(super) fn pool_settings(serve: &ServeConfig, logs: Option<PathBuf>, redactor: Redactor) -> PoolSettings {
    let count = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
    PoolSettings {
        kind: match serve.workers {
            Workers::Static(num_workers) => PoolKind::Static { num_workers: count(num_workers) },
            Workers::Elastic { max_workers, multiplex } => {
                PoolKind::Elastic { max_workers: max_workers.map(count), multiplex: count(multiplex) }
            }
        },
        max_concurrent: serve.max_concurrent,
        on_lost: if serve.max_redos > 0 { OnLost::Redo { max_redos: serve.max_redos } } else { OnLost::Fail },
        idle: serve.idle.unwrap_or(FOR_EVER),
        startup: serve.startup.unwrap_or(FOR_EVER),
        stalled: serve.stalled.unwrap_or(FOR_EVER),
        grace: serve.grace,
        logs,
        redactor,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoint_is_a_way_out_of_the_box() {
        for (url, expected) in [
            ("http://127.0.0.1:8000/v1", Some("127.0.0.1:8000")),
            ("https://api.example.com/v1", Some("api.example.com:443")),
            ("HTTP://user@host/v1?x=y:1", Some("host:80")),
            ("http://[::1]:9/v1", Some("[::1]:9")),
            ("http://[::1]/v1", Some("[::1]:80")),
            ("nonsense", None),
        ] {
            assert_eq!(route_of(url).map(|route| route.to_string()).as_deref(), expected, "{url}");
        }
    }
}
