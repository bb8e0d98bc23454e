//! ZeroMQ sockets of our own among peers that are slow, foreign, greedy or gone, and places that are taken.
#![allow(clippy::disallowed_methods, reason = "tests play the peers themselves")]

#[path = "zmtp/peers.rs"]
mod peers;
#[path = "zmtp/wire.rs"]
mod wire;

use std::{fs, os::unix::net::UnixListener, time::Duration};

use bytes::Bytes;
use futures::future::join_all;
use peers::{Folder, bind, came, frames, left, lost, message, noise, patient, reply, up};
use rollhouse::zmtp::{Address, BindError, Dealer, Frames, LinkError, Router, Settings, Unsent, Visit};
use tokio::net::TcpListener;
use wire::{Raw, frame, greeting, long, ready};

const SECOND: Duration = Duration::from_secs(1);
const ANY: &str = "tcp://127.0.0.1:0";

/// Peers that the test plays itself answer no PING.
fn unhurried() -> Settings {
    Settings { heartbeat: 3600 * SECOND, silence: 7200 * SECOND, ..Settings::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_and_half_open_connections_are_harmless() {
    let settings = Settings { connect: SECOND, max_message: 100_000, ..Settings::default() };
    let (router, mut guests) = bind(ANY, settings).await;
    let (dealer, mut inbox) = Dealer::connect(router.address().clone(), Settings::default());
    let peer = came(&mut guests).await;
    up(&mut inbox).await;
    // These say nothing, or stop in the middle.
    let mut half_open = Vec::new();
    for number in 0..300 {
        let mut raw = Raw::connect(router.address()).await;
        raw.say(&[greeting(), ready("DEALER", b"")].concat()[..number % 90]).await;
        half_open.push(raw);
    }
    // These are cut off at once.
    for garbage in [
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        noise(5_000, 1).to_vec(),
        [greeting(), ready("PUB", b"")].concat(),
        [greeting(), frame(4, b"\x05READY\xff")].concat(),
        [greeting(), long(4, 1 << 30)].concat(),
        [greeting(), frame(0, b"early")].concat(),
    ] {
        let mut raw = Raw::connect(router.address()).await;
        raw.say(&garbage).await;
        patient(raw.end()).await;
    }
    // These are guests first, then break the rules.
    for (garbage, why) in [
        (long(0, 100_001), "at least 100001 bytes; at most 100000"),
        (long(0, u64::MAX), "at most 100000"),
        ([frame(1, &[7; 200])].concat().repeat(501), "at least 100200 bytes"),
        ([1, 0].repeat(1_100), "more than 1024 frames"),
        (frame(5, b"\x04PONG"), "flags"),
        (noise(5_000, 3).to_vec(), "flags"),
        (frame(4, b"\x04PING"), "PING"),
        (frame(4, b"\x05ERROR\x03why"), "why"),
    ] {
        let mut raw = Raw::shaken(router.address(), b"").await;
        let foe = came(&mut guests).await;
        raw.say(&garbage).await;
        let (gone, fault) = left(&mut guests).await;
        assert_eq!(gone, foe);
        assert!(fault.to_string().contains(why), "{fault}, not {why}");
        patient(raw.end()).await;
    }
    // All the while the honest one is served, and the half-open ones are gone after their second.
    dealer.send(frames(&["still", "", "here"])).await.unwrap();
    assert_eq!(message(&mut guests).await, (peer, frames(&["still", "", "here"])));
    for mut raw in half_open {
        patient(raw.end()).await;
    }
    router.send(peer, frames(&["indeed"])).await.unwrap();
    assert_eq!(reply(&mut inbox).await, frames(&["indeed"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_does_not_read_holds_up_nobody_else() {
    const QUEUE: usize = 1 << 20;
    let (router, mut guests) = bind(ANY, Settings { queue_bytes: QUEUE, ..unhurried() }).await;
    let _deaf = Raw::shaken(router.address(), b"").await;
    let deaf = came(&mut guests).await;
    // The kernel takes some, the queue its bound; then the sender waits.
    let piece = noise(100_000, 1);
    let mut sent = 0;
    while let Ok(done) = tokio::time::timeout(SECOND, router.send(deaf, vec![piece.clone()])).await {
        done.unwrap();
        sent += piece.len();
        assert!(sent < 64 << 20, "nothing bounds it");
    }
    assert!(sent >= QUEUE - piece.len());
    let (dealer, mut inbox) = Dealer::connect(router.address().clone(), unhurried());
    let peer = came(&mut guests).await;
    up(&mut inbox).await;
    for number in 0..1_000_usize {
        let frames = vec![Bytes::from(number.to_string()), piece.slice(..1_000)];
        dealer.send(frames.clone()).await.unwrap();
        assert_eq!(message(&mut guests).await, (peer, frames.clone()));
        router.send(peer, frames.clone()).await.unwrap();
        assert_eq!(reply(&mut inbox).await, frames);
    }
    // Who waits for room learns that the peer went.
    let sending = router.clone();
    let waiting = tokio::spawn(async move { sending.send(deaf, vec![piece]).await });
    tokio::task::yield_now().await;
    drop(_deaf);
    assert!(matches!(patient(waiting).await.unwrap(), Err(Unsent::Gone(gone)) if gone == deaf));
    assert_eq!(left(&mut guests).await.0, deaf);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_consumer_holds_its_peers_back() {
    let narrow = Settings { queue_bytes: 1 << 20, ..Settings::default() };
    let (router, mut guests) = bind(ANY, narrow.clone()).await;
    let (dealer, _inbox) = Dealer::connect(router.address().clone(), narrow);
    let piece = noise(100_000, 1);
    let mut sent = 0;
    // Nobody takes what came: both queues and the kernel fill up, and the sender waits, for longer than a dead link would live.
    while let Ok(done) = tokio::time::timeout(3 * SECOND, dealer.send(vec![piece.clone()])).await {
        done.unwrap();
        sent += 1;
        assert!(sent < 640, "nothing bounds it");
    }
    let peer = came(&mut guests).await;
    for _ in 0..sent {
        assert!(message(&mut guests).await == (peer, vec![piece.clone()]));
    }
    dealer.send(frames(&["after"])).await.unwrap();
    assert_eq!(message(&mut guests).await, (peer, frames(&["after"])), "over the same link");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_writes_everything_first() {
    let folder = Folder::new();
    for address in [ANY.to_owned(), folder.socket("own")] {
        let (router, mut guests) = bind(&address, Settings::default()).await;
        let (dealer, mut inbox) = Dealer::connect(router.address().clone(), Settings::default());
        up(&mut inbox).await;
        let peer = came(&mut guests).await;
        let piece = noise(1_000_000, 1);
        for _ in 0..50 {
            dealer.send(vec![piece.clone()]).await.unwrap();
            router.send(peer, vec![piece.clone()]).await.unwrap();
        }
        // What comes in is not what is waited for, but is there while it comes.
        let closing = tokio::spawn(dealer.clone().close());
        for _ in 0..50 {
            assert!(message(&mut guests).await == (peer, vec![piece.clone()]));
        }
        patient(closing).await.unwrap().unwrap();
        assert!(matches!(dealer.send(frames(&["late"])).await, Err(Unsent::Closed)));
        assert_eq!(left(&mut guests).await.0, peer);
        // And the other way.
        let (_dealer, mut inbox) = Dealer::connect(router.address().clone(), Settings::default());
        let peer = came(&mut guests).await;
        for _ in 0..50 {
            router.send(peer, vec![piece.clone()]).await.unwrap();
        }
        let clone = router.clone();
        let closing = tokio::spawn(router.close());
        up(&mut inbox).await;
        for _ in 0..50 {
            assert!(reply(&mut inbox).await == [piece.clone()]);
        }
        patient(closing).await.unwrap();
        assert!(clone.send(peer, frames(&["late"])).await.is_err());
        assert!(matches!(lost(&mut inbox).await, LinkError::Closed));
    }
}

#[tokio::test]
async fn a_dealer_that_cannot_connect_says_why() {
    let settings = Settings { connect: SECOND / 2, ..Settings::default() };
    let folder = Folder::new();
    let mut plain = greeting();
    plain[12..17].copy_from_slice(b"CURVE");
    let mut old = greeting();
    old[10] = 1;
    for (said, why) in [
        (plain, "security mechanism `CURVE`"),
        (old, "ZMTP 1.0"),
        (b"220 mail.example ESMTP\r\n".to_vec(), "no ZeroMQ socket"),
        ([greeting(), ready("PUB", b"")].concat(), "a PUB socket, which does not go with DEALER"),
        ([greeting(), frame(4, b"\x05ERROR\x04full")].concat(), "refused the connection: full"),
        (greeting(), "no ZeroMQ handshake within 500ms"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("tcp://{}", listener.local_addr().unwrap());
        let (dealer, _inbox) = Dealer::connect(address.parse().unwrap(), settings.clone());
        let (mut raw, _) = patient(async { Raw::accept(&listener).await }).await;
        raw.say(&said).await;
        patient(raw.end()).await;
        let unsent = dealer.send(frames(&["x"])).await.unwrap_err().to_string();
        assert!(unsent.starts_with(&format!("no connection to {address} within 500ms: ")), "{unsent}");
        assert!(unsent.contains(why), "{unsent}, not {why}");
    }
    for (address, why) in [
        (folder.socket("nobody"), "No such file"),
        ("tcp://*:5000".to_owned(), "a host to listen on"),
        ("tcp://127.0.0.1:1".to_owned(), "refused"),
    ] {
        let (dealer, _inbox) = Dealer::connect(address.parse().unwrap(), settings.clone());
        let unsent = dealer.send(frames(&["x"])).await.unwrap_err().to_string();
        assert!(unsent.contains(why), "{unsent}, not {why}");
    }
}

#[tokio::test]
async fn a_message_that_no_peer_would_take_is_not_sent() {
    let settings = Settings { max_message: 1_000, ..Settings::default() };
    let (router, mut guests) = bind(ANY, settings.clone()).await;
    let (dealer, mut inbox) = Dealer::connect(router.address().clone(), settings);
    up(&mut inbox).await;
    let peer = came(&mut guests).await;
    let many: Frames = vec![Bytes::new(); 1_025];
    for (wrong, why) in [
        (vec![noise(500, 1), noise(501, 2)], "a message of 1001 bytes is not sent; at most 1000 are"),
        (Frames::new(), "a message of 0 frames is not sent; it has from 1 to 1024"),
        (many.clone(), "a message of 1025 frames"),
    ] {
        assert!(dealer.send(wrong.clone()).await.unwrap_err().to_string().contains(why), "{why}");
        assert!(router.send(peer, wrong).await.unwrap_err().to_string().contains(why), "{why}");
    }
    // What is just allowed arrives.
    for right in [vec![noise(500, 1), noise(500, 2)], many[1..].to_vec()] {
        dealer.send(right.clone()).await.unwrap();
        assert!(message(&mut guests).await == (peer, right));
    }
}

#[tokio::test]
async fn the_newer_of_two_peers_has_the_identity() {
    let (router, mut guests) = bind(ANY, unhurried()).await;
    let mut older = Raw::shaken(router.address(), b"me").await;
    let first = came(&mut guests).await;
    assert_eq!(router.identity(first).as_deref(), Some(&b"me"[..]));
    let mut newer = Raw::shaken(router.address(), b"me").await;
    let mut other = Raw::shaken(router.address(), b"you").await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        match patient(guests.recv()).await {
            Some(Visit::Came(peer)) => seen.push(peer),
            Some(Visit::Left(peer, LinkError::Replaced)) => assert_eq!(peer, first),
            other => panic!("{other:?}"),
        }
    }
    patient(older.end()).await;
    assert_eq!(router.identity(first), None);
    assert!(matches!(router.send(first, frames(&["x"])).await, Err(Unsent::Gone(_))));
    for (raw, peer) in [(&mut newer, "me"), (&mut other, "you")] {
        let id = *seen.iter().find(|id| router.identity(**id).as_deref() == Some(peer.as_bytes())).unwrap();
        raw.say(&frame(0, b"hello")).await;
        assert_eq!(message(&mut guests).await, (id, frames(&["hello"])));
        router.send(id, frames(&[peer])).await.unwrap();
        assert_eq!(raw.hear_frame().await, (0, peer.as_bytes().to_vec()));
    }
}

#[tokio::test]
async fn the_file_of_a_socket_is_replaced_only_when_nobody_listens_and_gone_at_the_end() {
    let folder = Folder::new();
    let address: Address = folder.socket("0").parse().unwrap();
    let path = folder.path().join("0");
    // A dead process left it: the file stays when a listener of the standard library is dropped.
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let (router, mut guests) = bind(&address.to_string(), Settings::default()).await;
    let refused = Router::bind(&address, Settings::default()).await.err();
    assert!(matches!(refused, Some(BindError::InUse(_))), "{refused:?}");
    let (dealer, _inbox) = Dealer::connect(address.clone(), Settings::default());
    dealer.send(frames(&["x"])).await.unwrap();
    assert_eq!(message(&mut guests).await.1, frames(&["x"]), "the look of the second did the first no harm");
    drop((router, guests));
    assert!(!path.exists(), "gone at once");
    // One that took the place of ours is not ours to remove.
    let (router, _guests) = bind(&address.to_string(), Settings::default()).await;
    fs::remove_file(&path).unwrap();
    let successor = UnixListener::bind(&path).unwrap();
    drop(router);
    assert!(path.exists());
    drop(successor);
    // What is no socket is nobody's to remove.
    fs::remove_file(&path).unwrap();
    fs::write(&path, "dear").unwrap();
    let refused = Router::bind(&address, Settings::default()).await.err();
    assert!(matches!(refused, Some(BindError::NotASocket(_))), "{refused:?}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "dear");
    let nowhere: Address = folder.socket("no/such/folder").parse().unwrap();
    let refused = Router::bind(&nowhere, Settings::default()).await.err().unwrap().to_string();
    assert!(refused.contains("cannot listen on ipc://") && refused.contains("No such file"), "{refused}");
    // Ports too.
    let (router, _guests) = bind(ANY, Settings::default()).await;
    let refused = Router::bind(router.address(), Settings::default()).await.err();
    assert!(matches!(refused, Some(BindError::InUse(_))), "{refused:?}");
    let refused = Router::bind(&"tcp://no.such.host.invalid:0".parse().unwrap(), Settings::default()).await.err();
    assert!(matches!(refused, Some(BindError::Io { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_link_in_the_place_of_a_socket_leads_nowhere_unless_it_may() {
    let folder = Folder::new();
    let (_router, mut guests) = bind(&folder.socket("own"), Settings::default()).await;
    let path = |name| folder.socket(name).strip_prefix("ipc://").unwrap().to_owned();
    std::os::unix::fs::symlink(path("own"), path("link")).unwrap();
    let strict = Settings { follow_links: false, connect: SECOND / 2, ..Settings::default() };
    let (dealer, _inbox) = Dealer::connect(folder.socket("link").parse().unwrap(), strict.clone());
    let refused = dealer.send(frames(&["x"])).await.unwrap_err();
    assert!(refused.to_string().contains("it is a link"), "{refused}");
    drop(dealer);
    for (name, settings) in [("own", strict), ("link", Settings::default())] {
        let (_dealer, mut inbox) = Dealer::connect(folder.socket(name).parse().unwrap(), settings);
        up(&mut inbox).await;
        let peer = came(&mut guests).await;
        drop(inbox);
        assert_eq!(left(&mut guests).await.0, peer);
    }
}

#[tokio::test]
async fn what_is_dropped_is_gone() {
    let (router, mut guests) = bind(ANY, Settings::default()).await;
    // A dealer goes with its last clone, or with its inbox.
    let (dealer, mut inbox) = Dealer::connect(router.address().clone(), Settings::default());
    let clone = dealer.clone();
    let peer = came(&mut guests).await;
    up(&mut inbox).await;
    drop(dealer);
    clone.send(frames(&["x"])).await.unwrap();
    assert_eq!(message(&mut guests).await, (peer, frames(&["x"])));
    drop(clone);
    assert_eq!(left(&mut guests).await.0, peer);
    assert!(patient(inbox.recv()).await.is_none());
    let (dealer, inbox) = Dealer::connect(router.address().clone(), Settings::default());
    let peer = came(&mut guests).await;
    drop(inbox);
    assert_eq!(left(&mut guests).await.0, peer);
    assert!(matches!(patient(dealer.send(frames(&["x"]))).await, Err(Unsent::Closed)));
    // A router goes with its guests, and takes all links with it.
    let (_dealer, mut inbox) = Dealer::connect(router.address().clone(), Settings::default());
    up(&mut inbox).await;
    drop(guests);
    lost(&mut inbox).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_peers_come_at_once() {
    const PEERS: usize = 400;
    let folder = Folder::new();
    for address in [ANY.to_owned(), folder.socket("own")] {
        let (router, mut guests) = bind(&address, Settings::default()).await;
        let at = router.address().clone();
        let serving = tokio::spawn(async move {
            for _ in 0..PEERS {
                let (peer, frames) = message(&mut guests).await;
                router.send(peer, frames).await.unwrap();
            }
            // The links live until all were answered.
            (router, guests)
        });
        let calls = (0..PEERS).map(|number| {
            let (dealer, mut inbox) =
                Dealer::connect(at.clone(), Settings { connect: 60 * SECOND, ..Settings::default() });
            async move {
                let asked = vec![Bytes::from(number.to_string())];
                dealer.send(asked.clone()).await.unwrap();
                up(&mut inbox).await;
                assert_eq!(reply(&mut inbox).await, asked);
            }
        });
        join_all(calls).await;
        serving.await.unwrap();
    }
}
