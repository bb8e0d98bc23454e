//! What a message between an env server and its client costs: ZeroMQ sockets of our own over loopback, both ends in this
//! process. Three frames each, as the protocol of env servers has them: an id, a word, a payload.
#![allow(clippy::expect_used, reason = "a measuring program")]

use bytes::Bytes;
use divan::{
    Bencher,
    counter::{BytesCount, ItemsCount},
};
use rollhouse::zmtp::{Arrival, Dealer, Frames, Guests, Inbox, PeerId, Router, Settings, Visit};
use tokio::runtime::Runtime;

/// Payload and how many of them are under way in a sample.
const LOADS: [(usize, usize); 4] = [(100, 20_000), (10_000, 5_000), (1_000_000, 200), (64_000_000, 4)];

fn main() {
    divan::main();
}

/// Both ends, connected.
struct Pair {
    runtime: Runtime,
    dealer: Dealer,
    inbox: Inbox,
    router: Router,
    guests: Guests,
    peer: PeerId,
    _folder: tempfile::TempDir,
}

impl Pair {
    fn new(transport: &str) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("runtime");
        let folder = tempfile::tempdir().expect("a folder");
        let address = match transport {
            "tcp" => "tcp://127.0.0.1:0".to_owned(),
            _ => format!("ipc://{}", folder.path().join("0").display()),
        };
        let (dealer, inbox, router, guests, peer) = runtime.block_on(async {
            let address = address.parse().expect("an address");
            let (router, mut guests) = Router::bind(&address, Settings::default()).await.expect("bound");
            let (dealer, mut inbox) = Dealer::connect(router.address().clone(), Settings::default());
            assert!(matches!(inbox.recv().await, Some(Arrival::Up)));
            let Some(Visit::Came(peer)) = guests.recv().await else { panic!("a peer comes first") };
            (dealer, inbox, router, guests, peer)
        });
        Self { runtime, dealer, inbox, router, guests, peer, _folder: folder }
    }
}

fn message(size: usize) -> Frames {
    vec![Bytes::from_static(b"0123456789abcdef0123456789abcdef"), Bytes::from_static(b"delta"), vec![7; size].into()]
}

async fn send_all(dealer: Dealer, message: Frames, count: usize) {
    for _ in 0..count {
        dealer.send(message.clone()).await.expect("sent");
    }
}

/// One way: as fast as they can be sent and received.
#[divan::bench(args = LOADS, consts = [false, true], sample_count = 5)]
fn one_way<const IPC: bool>(bencher: Bencher, (size, count): (usize, usize)) {
    let mut pair = Pair::new(if IPC { "ipc" } else { "tcp" });
    let message = message(size);
    bencher.counter(ItemsCount::new(count)).counter(BytesCount::new(count * size)).bench_local(|| {
        pair.runtime.block_on(async {
            let sending = tokio::spawn(send_all(pair.dealer.clone(), message.clone(), count));
            for _ in 0..count {
                let Some(Visit::Message(_, frames)) = pair.guests.recv().await else { panic!("a message") };
                assert_eq!(frames[2].len(), size);
            }
            sending.await.expect("sent");
        });
    });
}

/// There and back: the router answers each with the same.
#[divan::bench(args = LOADS, consts = [false, true], sample_count = 5)]
fn round_trips<const IPC: bool>(bencher: Bencher, (size, count): (usize, usize)) {
    let pair = Pair::new(if IPC { "ipc" } else { "tcp" });
    let message = message(size);
    let Pair { runtime, dealer, mut inbox, router, mut guests, peer, _folder } = pair;
    let echo = runtime.spawn(async move {
        while let Some(Visit::Message(from, frames)) = guests.recv().await {
            assert_eq!(from, peer);
            router.send(peer, frames).await.expect("sent");
        }
    });
    bencher.counter(ItemsCount::new(count)).counter(BytesCount::new(2 * count * size)).bench_local(|| {
        runtime.block_on(async {
            let sending = tokio::spawn(send_all(dealer.clone(), message.clone(), count));
            for _ in 0..count {
                let Some(Arrival::Message(frames)) = inbox.recv().await else { panic!("a message") };
                assert_eq!(frames[2].len(), size);
            }
            sending.await.expect("sent");
        });
    });
    echo.abort();
}
