//! Pools whose workers, and whose owners, are killed and stopped at will.

mod pool_world;
mod served;
#[path = "support/venv.rs"]
mod venv;

use std::{
    env,
    io::{BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use nix::sys::signal::Signal;
use rollhouse::{
    runtime::{Child, Stream},
    serve::{
        Client, RunRequest,
        pool::{Crew, NotStarted, OnLost, Pool, PoolKind, PoolSettings, Seat, Started},
    },
    sim::{self, Oracle, Policy, Simulator},
    taskset::verifiers::{Environment, Search},
    trace::{Content, Message},
    zmtp,
};
use serde_json::{Map, Value, json};

use self::{
    pool_world::{Asker, Got, Pretended, gone, pids, pool, settings, signal, soon, until, vanished},
    served::python::Python,
};

#[test]
#[ignore = "a worker, started by pools"]
fn worker() {
    pool_world::worker();
}

fn fixed(num_workers: usize, max_redos: u32) -> PoolSettings {
    PoolSettings { kind: PoolKind::Static { num_workers }, on_lost: OnLost::Redo { max_redos }, ..settings() }
}

/// 200 runs over three workers, one of which is killed or stopped every 200 ms, whether it is ready or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_run_is_lost_and_none_ends_twice() {
    let pool = pool(fixed(3, 100), Pretended::crew()).await;
    soon(until(&pool, |status| status.ready() == 3)).await;
    let mut asker = Asker::new(&pool);
    for run in 0..200 {
        asker.run(&format!("r{run}"), json!({"ms": 100 + run * 10, "deltas": 5})).await;
    }
    let status = pool.status();
    let killing = tokio::spawn(async move {
        for round in 0..15 {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let alive = pids(&status.borrow());
            let Some(pid) = alive.get(round % 3).or(alive.first()) else { continue };
            signal(*pid, if round % 4 == 3 { Signal::SIGSTOP } else { Signal::SIGKILL });
        }
    });
    soon(asker.wait_all()).await;
    killing.await.unwrap();
    assert!(asker.runs.values().all(Got::is_whole));
    let status = soon(until(&pool, |status| status.in_flight == 0)).await;
    assert!(status.lost >= 5 && status.redone > 100, "{status:?}");
    soon(until(&pool, |status| status.ready() == 3)).await;
    soon(pool.shut_down(Duration::ZERO)).await;
}

/// The owner of the pool in the test below, in a process of its own.
#[tokio::test]
#[ignore = "started by another test"]
#[allow(clippy::print_stdout, reason = "the other test reads it")]
async fn owner() {
    let pool = Pool::start(&env::var("POOL_ADDRESS").unwrap().parse().unwrap(), fixed(2, 2), Pretended::crew()).await;
    let pool = pool.unwrap();
    let mut asker = Asker::new(&pool);
    asker.run("long", json!({"ms": 3_600_000})).await;
    let status = until(&pool, |status| status.ready() == 2 && status.waiting == 0 && status.in_flight == 1).await;
    println!("\nworkers {:?}", pids(&status));
    std::future::pending::<()>().await;
}

#[test]
#[allow(clippy::disallowed_methods, reason = "this process must not own it")]
fn killing_the_owner_of_a_pool_leaves_no_process_and_no_socket() {
    let folder = tempfile::tempdir().unwrap();
    let mut owner = std::process::Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "owner"])
        .env("POOL_ADDRESS", format!("ipc://{}", folder.path().join("front").display()))
        .env("TMPDIR", folder.path())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines().map(Result::unwrap);
    let workers = lines.find_map(|line| line.strip_prefix("workers ").map(str::to_owned)).unwrap();
    let workers: Vec<u32> = serde_json::from_str(&workers).unwrap();
    assert_eq!(workers.len(), 2);
    let sockets: Vec<PathBuf> = workers.iter().map(|pid| socket_of(*pid)).collect();
    assert!(sockets.iter().all(|socket| socket.starts_with(folder.path()) && socket.exists()), "{sockets:?}");
    owner.kill().unwrap();
    owner.wait().unwrap();
    workers.into_iter().for_each(gone);
    for socket in sockets {
        vanished(&socket);
        vanished(socket.ancestors().nth(2).unwrap());
    }
}

/// The socket that a pretended worker listens on.
fn socket_of(pid: u32) -> PathBuf {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    let mut variables = environment.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    variables.find_map(|variable| variable.strip_prefix("POOL_WORLD_ADDRESS=ipc://").map(PathBuf::from)).unwrap()
}

/// Env servers of verifiers.
struct Verifiers(Environment);

impl Crew for Verifiers {
    fn start<'a>(&'a self, seat: &'a Seat) -> BoxFuture<'a, Result<Started, NotStarted>> {
        let mut program = self.0.server(&seat.address.to_string(), None, &[]);
        (program.stdout, program.stderr) = (Stream::Piped, Stream::Piped);
        Child::start(program).map(|child| child.map(Into::into).map_err(|error| NotStarted(error.to_string()))).boxed()
    }
}

/// Says the last message back.
struct Echo;

impl Oracle for Echo {
    fn solve<'a>(&'a self, conversation: &'a [Message]) -> BoxFuture<'a, Option<String>> {
        let answer = match conversation.last() {
            Some(Message::User(user)) => match &user.content {
                Content::Text(text) => Some(text.clone()),
                Content::Parts(_) => None,
            },
            _ => None,
        };
        std::future::ready(answer).boxed()
    }
}

/// The real verifiers behind a pool, and before it: its servers are killed and stopped under load of our client, its client
/// waits for the pool to come up, runs and cancels.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_of_verifiers_are_killed_and_its_client_sees_nothing_of_it() {
    let home = tempfile::tempdir().unwrap();
    let python = venv::with_test_packages(home.path());
    let block =
        json!({"taskset": {"id": "rh-env", "task": {"slow": 1.0}}, "agent": {"runtime": {"type": "subprocess"}}});
    let environment = tokio::task::spawn_blocking(move || {
        let package = Search { python: Some(python), pass_env: Vec::new() }.find("rh-env").unwrap();
        package.open(&block).unwrap()
    });
    let environment = environment.await.unwrap();
    let logs = tempfile::tempdir().unwrap();
    let settings = PoolSettings { logs: Some(logs.path().to_owned()), ..fixed(2, 5) };
    let pool = pool(settings, Arc::new(Verifiers(environment))).await;
    let address = pool.address().to_string();
    let simulator =
        Simulator::start(sim::Settings { policy: Policy::Oracle, ..sim::Settings::default() }, Some(Arc::new(Echo)));
    let simulator = simulator.await.unwrap();
    let run_of = |number: u64| {
        let text = format!("say {number} and nothing else");
        let task = json!({"idx": number, "prompt": text, "answer": text, "name": "say"});
        RunRequest {
            task_data: served::map(task),
            client: served::client_block(&simulator.base_url()),
            model: "sim".to_owned(),
            sampling: Map::new(),
        }
    };
    let mut theirs = tokio::task::spawn_blocking(|| Python::start(&[])).await.unwrap();
    let startup = json!({"address": address, "seconds": 100});
    assert_eq!(tokio::task::block_in_place(|| theirs.ask("startup", startup)), json!({"raised": null}));
    assert!(pool.status().borrow().ready() > 0, "it was not told before");

    let client = Client::connect(pool.address().clone(), zmtp::Settings::default());
    let requests: Vec<RunRequest> = (0..40).map(run_of).collect();
    let runs = futures::future::join_all(requests.iter().map(|request| client.run(request, None)));
    let killing = async {
        for how in [Signal::SIGKILL, Signal::SIGSTOP] {
            let status = soon(until(&pool, |status| status.ready() == 2)).await;
            let busy = status.workers.iter().max_by_key(|worker| worker.in_flight).and_then(|worker| worker.pid);
            tokio::time::sleep(Duration::from_millis(300)).await;
            signal(busy.unwrap(), how);
            soon(until(&pool, |now| now.lost > status.lost)).await;
            gone(busy.unwrap());
        }
    };
    let theirs = tokio::task::spawn_blocking({
        let request = asked(&run_of(7), &address);
        move || {
            let many = theirs.ask("many", merged(&request, json!({"count": 20})));
            (theirs, many, request)
        }
    });
    let (episodes, ()) = soon(futures::future::join(runs, killing)).await;
    let rewards: Vec<f64> = episodes.into_iter().map(|episode| episode.unwrap().reward()).collect();
    assert_eq!(rewards, [1.0; 40]);
    let (mut theirs, many, request) = soon(theirs).await.unwrap();
    assert_eq!((&many["ended"], &many["failed"]), (&json!(20), &json!([])), "{many}");
    let status = pool.status().borrow().clone();
    assert!(status.lost == 2 && status.redone > 0, "{status:?}");

    let cancelled = tokio::task::block_in_place(|| theirs.ask("cancel", request.clone()));
    assert_eq!(cancelled, json!({"raised": "CancelledError", "healthy": true}));
    tokio::task::block_in_place(|| theirs.ask("leave", request));
    soon(until(&pool, |status| status.in_flight == 0)).await;
    tokio::task::block_in_place(|| theirs.end());
    client.close().await;
    let last = pids(&pool.status().borrow());
    soon(pool.shut_down(Duration::ZERO)).await;
    last.into_iter().for_each(gone);
    let log = std::fs::read_to_string(logs.path().join("worker-0.log")).unwrap();
    assert!(log.contains("[rollhouse] process ") && log.contains("EnvServer up"), "{log}");
    simulator.shutdown().await;
}

fn asked(request: &RunRequest, address: &str) -> Value {
    merged(&serde_json::to_value(request).unwrap(), json!({"address": address}))
}

fn merged(one: &Value, more: Value) -> Value {
    let mut one = one.clone();
    one.as_object_mut().unwrap().extend(served::map(more));
    one
}
