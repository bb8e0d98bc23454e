//! What a pool of env server workers costs: per run, and per MB of traces that it relays.
//!
//! The worker is this program again, which answers at once; so each figure is that of the whole way, client to pool to
//! worker and back, in two processes. `cpu` lines give the processor time of the process with the client and the pool.
#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "a measuring program is a worker of its own")]

use std::{
    env,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use nix::sys::resource::{UsageWho, getrusage};
use rollhouse::{
    runtime::{Child, Program},
    serve::pool::{Crew, NotStarted, Pool, PoolKind, PoolSettings, Seat, Started},
    zmtp::{Address, Arrival, Dealer, Inbox, Router, Settings, Visit},
};

const ADDRESS: &str = "POOL_BENCH_ADDRESS";
const RUNS: usize = 20_000;
/// Runs in flight at a time.
const WINDOW: usize = 256;
const MIB: usize = 1 << 20;

fn main() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    match env::var(ADDRESS) {
        Ok(address) => runtime.block_on(worker(address.parse().expect("an address"))),
        Err(_) => runtime.block_on(measure()),
    }
}

/// Answers each run with as many deltas of as many bytes as its payload says.
async fn worker(address: Address) {
    let (router, mut guests) = Router::bind(&address, Settings::default()).await.expect("a socket");
    while let Some(visit) = guests.recv().await {
        let Visit::Message(peer, frames) = visit else { continue };
        if frames[1] == "run" {
            let order: Vec<usize> = String::from_utf8_lossy(&frames[2])
                .split(' ')
                .map(|number| number.parse().expect("a number"))
                .collect();
            let delta = delta(order[1]);
            for _ in 0..order[0] {
                let frames = vec![frames[0].clone(), Bytes::from_static(b"delta"), delta.clone()];
                router.send(peer, frames).await.expect("the pool is there");
            }
        }
        let reply = vec![frames[0].clone(), Bytes::from_static(b"reply"), Bytes::from_static(b"\x81\xa7success\xc3")];
        router.send(peer, reply).await.expect("the pool is there");
    }
}

/// A map of a trace and of so many bytes.
fn delta(bytes: usize) -> Bytes {
    let mut delta = b"\x82\xa5trace\xa4abcd\xa1x\xc6".to_vec();
    delta.extend_from_slice(&u32::try_from(bytes).expect("a frame").to_be_bytes());
    delta.resize(delta.len() + bytes, 0);
    delta.into()
}

struct Again;

impl Crew for Again {
    fn start<'a>(&'a self, seat: &'a Seat) -> BoxFuture<'a, Result<Started, NotStarted>> {
        let mut program = Program::new(env::current_exe().expect("this program"));
        program.environment.push((ADDRESS.into(), seat.address.to_string().into()));
        Child::start(program).map(|child| child.map(Into::into).map_err(|error| NotStarted(error.to_string()))).boxed()
    }
}

async fn measure() {
    let settings = PoolSettings { kind: PoolKind::Static { num_workers: 1 }, ..PoolSettings::default() };
    let loopback = "tcp://127.0.0.1:0".parse().expect("an address");
    let pool = Pool::start(&loopback, settings, Arc::new(Again)).await.expect("a pool");
    pool.ready().await.expect("a worker");
    let direct = tempfile::tempdir().expect("a folder");
    let seat = Seat {
        index: 0,
        address: format!("ipc://{}/s", direct.path().display()).parse().expect("an address"),
        folder: direct.path().to_owned(),
        max_concurrent: None,
    };
    let alone = Again.start(&seat).await.expect("a worker");
    for (way, address) in [("direct", &seat.address), ("pool", pool.address())] {
        let (dealer, mut inbox) = Dealer::connect(address.clone(), Settings::default());
        time(&format!("{way}: a run without deltas"), RUNS, "run", runs(&dealer, &mut inbox, RUNS, "0 0")).await;
        time(&format!("{way}: a run with 5 deltas of 2 KiB"), RUNS, "run", runs(&dealer, &mut inbox, RUNS, "5 2048"))
            .await;
        let order = format!("16 {MIB}");
        time(&format!("{way}: traces in deltas of 1 MiB"), 16 * 64, "MiB", runs(&dealer, &mut inbox, 64, &order)).await;
    }
    drop(alone);
    pool.shut_down(Duration::ZERO).await;
}

async fn time(what: &str, count: usize, unit: &str, work: impl Future<Output = ()>) {
    let (began, used) = (Instant::now(), cpu());
    work.await;
    let each = |time: Duration| time.as_secs_f64() * 1e6 / count as f64;
    println!("{what:<40} {:>8.1} us/{unit}   cpu {:>8.1} us/{unit}", each(began.elapsed()), each(cpu() - used));
}

async fn runs(dealer: &Dealer, inbox: &mut Inbox, count: usize, order: &str) {
    let order = Bytes::copy_from_slice(order.as_bytes());
    let (mut asked, mut ended) = (0, 0);
    while ended < count {
        while asked < count && asked - ended < WINDOW {
            let frames = vec![format!("r{asked}").into(), Bytes::from_static(b"run"), order.clone()];
            dealer.send(frames).await.expect("the pool is there");
            asked += 1;
        }
        if let Some(Arrival::Message(frames)) = inbox.recv().await {
            ended += usize::from(frames[1] == "reply");
        }
    }
}

fn cpu() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("a process has usage");
    let (user, system) = (usage.user_time(), usage.system_time());
    let micros = (user.tv_sec() + system.tv_sec()) * 1_000_000 + user.tv_usec() + system.tv_usec();
    Duration::from_micros(micros as u64)
}
