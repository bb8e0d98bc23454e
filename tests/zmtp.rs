//! ZeroMQ sockets of our own against each other, and against the real ones of pyzmq.
#![allow(clippy::disallowed_methods, reason = "tests start peers of their own")]

#[path = "zmtp/peers.rs"]
mod peers;

use std::time::{Duration, Instant};

use bytes::Bytes;
use nix::sys::signal::Signal;
use peers::{Folder, Python, bind, came, frames, lost, message, noise, patient, reply, up};
use rollhouse::zmtp::{Dealer, LinkError, Settings, Unsent, Visit};

/// A frame of 64 MB, which must arrive byte for byte.
const LARGE: usize = 64_000_000;
const SECOND: Duration = Duration::from_secs(1);

fn text(number: usize) -> Bytes {
    number.to_string().into()
}

#[tokio::test]
async fn messages_pass_both_ways_over_every_transport() {
    let folder = Folder::new();
    for address in ["tcp://127.0.0.1:0".to_owned(), "tcp://[::1]:0".to_owned(), folder.socket("own")] {
        let (router, mut guests) = bind(&address, Settings::default()).await;
        let (dealer, mut inbox) = Dealer::connect(router.address().clone(), Settings::default());
        // No waiting for the link: sending waits.
        dealer.send(frames(&["id", "", "payload"])).await.unwrap();
        let peer = came(&mut guests).await;
        assert_eq!(router.identity(peer), None);
        assert_eq!(message(&mut guests).await, (peer, frames(&["id", "", "payload"])));
        router.send(peer, frames(&["", "back", ""])).await.unwrap();
        up(&mut inbox).await;
        assert_eq!(reply(&mut inbox).await, frames(&["", "back", ""]));
        dealer.close().await.unwrap();
        assert!(inbox.recv().await.is_none());
        assert!(matches!(guests.recv().await, Some(Visit::Left(gone, LinkError::Closed)) if gone == peer));
        assert!(matches!(router.send(peer, frames(&["late"])).await, Err(Unsent::Gone(gone)) if gone == peer));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dealer_talks_to_the_router_of_pyzmq() {
    let folder = Folder::new();
    for address in ["tcp://127.0.0.1:*".to_owned(), folder.socket("py")] {
        let python = Python::router(&address, "{}");
        let (dealer, mut inbox) = Dealer::connect(python.address.parse().unwrap(), Settings::default());
        up(&mut inbox).await;
        // Empty frames, in the middle too.
        let odd = vec![Bytes::from_static(b"echo"), Bytes::new(), noise(300, 1), Bytes::new()];
        dealer.send(odd.clone()).await.unwrap();
        assert_eq!(reply(&mut inbox).await, odd);
        // The largest frames, both ways, byte for byte; each of them alone is over the bound of the queue.
        let large = vec![text_of("echo"), noise(LARGE, 2), Bytes::new(), noise(70_000, 3)];
        for _ in 0..3 {
            dealer.send(large.clone()).await.unwrap();
        }
        for _ in 0..3 {
            assert!(reply(&mut inbox).await == large);
        }
        // Many small ones, in order, with thousands in flight: none is read before 5,000 are sent.
        let sending = dealer.clone();
        let (middle, reached) = tokio::sync::oneshot::channel();
        let sent = tokio::spawn(async move {
            let mut middle = Some(middle);
            for number in 0..20_000 {
                sending.send(vec![text_of("echo"), Bytes::new(), text(number)]).await.unwrap();
                if number == 5_000 {
                    middle.take().unwrap().send(()).unwrap();
                }
            }
        });
        patient(reached).await.unwrap();
        for number in 0..20_000 {
            assert_eq!(reply(&mut inbox).await[2], text(number));
        }
        sent.await.unwrap();
        dealer.close().await.unwrap();
    }
}

fn text_of(word: &'static str) -> Bytes {
    Bytes::from_static(word.as_bytes())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dealer_of_pyzmq_talks_to_a_router() {
    let folder = Folder::new();
    for (address, identity) in [("tcp://127.0.0.1:0".to_owned(), None), (folder.socket("own"), Some("named"))] {
        let (router, mut guests) = bind(&address, Settings::default()).await;
        let options = identity.map_or("{}".to_owned(), |name| format!("{{\"IDENTITY\": \"{name}\"}}"));
        let _python = Python::dealer(&router.address().to_string(), &options);
        let peer = came(&mut guests).await;
        assert_eq!(router.identity(peer), identity.map(text_of));
        assert_eq!(message(&mut guests).await, (peer, frames(&["hello"])));
        let odd = vec![Bytes::from_static(b"echo"), Bytes::new(), noise(300, 1), Bytes::new()];
        router.send(peer, odd.clone()).await.unwrap();
        assert_eq!(message(&mut guests).await, (peer, odd));
        let large = vec![text_of("echo"), noise(LARGE, 2), Bytes::new(), noise(70_000, 3)];
        for _ in 0..3 {
            router.send(peer, large.clone()).await.unwrap();
        }
        for _ in 0..3 {
            assert!(message(&mut guests).await == (peer, large.clone()));
        }
        let sending = router.clone();
        let (middle, reached) = tokio::sync::oneshot::channel();
        let sent = tokio::spawn(async move {
            let mut middle = Some(middle);
            for number in 0..20_000 {
                sending.send(peer, vec![text_of("echo"), Bytes::new(), text(number)]).await.unwrap();
                if number == 5_000 {
                    middle.take().unwrap().send(()).unwrap();
                }
            }
        });
        patient(reached).await.unwrap();
        for number in 0..20_000 {
            assert_eq!(message(&mut guests).await.1[2], text(number));
        }
        sent.await.unwrap();
        router.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_interpreter_is_not_taken_for_dead_nor_a_slow_consumer() {
    // libzmq asks us ten times a second and waits three tenths for a sign of life.
    let strict = r#"{"HEARTBEAT_IVL": 100, "HEARTBEAT_TIMEOUT": 300, "HEARTBEAT_TTL": 300}"#;
    let narrow = Settings { queue_bytes: 1 << 20, ..Settings::default() };
    let python = Python::router("tcp://127.0.0.1:*", strict);
    let (dealer, mut inbox) = Dealer::connect(python.address.parse().unwrap(), narrow.clone());
    let (router, mut guests) = bind("tcp://127.0.0.1:0", narrow).await;
    let _other = Python::dealer(&router.address().to_string(), strict);
    up(&mut inbox).await;
    let peer = came(&mut guests).await;
    assert_eq!(message(&mut guests).await.1, frames(&["hello"]));
    // Much more than there is room for, and nobody takes it for ten times their patience.
    for count in [20, 200] {
        dealer.send(frames(&["flood", &count.to_string(), "500000"])).await.unwrap();
        router.send(peer, frames(&["flood", &count.to_string(), "500000"])).await.unwrap();
        tokio::time::sleep(3 * SECOND).await;
        for number in 0..count {
            let expected = [text(number), vec![(number % 251) as u8; 500_000].into()];
            assert!(reply(&mut inbox).await == expected);
            assert!(message(&mut guests).await.1 == expected);
        }
    }
    // Both interpreters hold their lock for five seconds.
    dealer.send(frames(&["busy", "5"])).await.unwrap();
    router.send(peer, frames(&["busy", "5"])).await.unwrap();
    assert_eq!(reply(&mut inbox).await, frames(&["busy", "5"]), "no loss before");
    assert!(matches!(patient(guests.recv()).await, Some(Visit::Message(from, _)) if from == peer), "nobody left");
    // They lost us as little as we lost them.
    dealer.send(frames(&["events"])).await.unwrap();
    router.send(peer, frames(&["events"])).await.unwrap();
    assert_eq!(reply(&mut inbox).await, frames(&["events", "0", "1"]));
    assert_eq!(message(&mut guests).await.1, frames(&["events", "0", "1"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_peer_is_noticed_and_talked_to_again_when_it_goes_on() {
    let python = Python::router("tcp://127.0.0.1:*", "{}");
    let (dealer, mut inbox) = Dealer::connect(python.address.parse().unwrap(), Settings::default());
    let (router, mut guests) = bind("tcp://127.0.0.1:0", Settings::default()).await;
    let other = Python::dealer(&router.address().to_string(), "{}");
    up(&mut inbox).await;
    let peer = came(&mut guests).await;
    assert_eq!(message(&mut guests).await.1, frames(&["hello"]));
    let bulk = noise(LARGE, 4);
    for stopped in [&python, &other] {
        stopped.signal(Signal::SIGSTOP);
    }
    let began = Instant::now();
    // The kernel takes some of it and no more.
    let sending = dealer.clone();
    let sent = tokio::spawn(async move {
        loop {
            if let Err(unsent) = sending.send(vec![text_of("echo"), bulk.clone()]).await {
                return unsent;
            }
        }
    });
    let loss = lost(&mut inbox).await;
    // Two seconds after the last sign of life, and slack for a loaded machine.
    let noticed = began.elapsed();
    assert!(matches!(loss, LinkError::Silent(_)), "{loss}");
    assert!(noticed > SECOND && noticed < 6 * SECOND, "{noticed:?}");
    let left = patient(guests.recv()).await;
    assert!(matches!(&left, Some(Visit::Left(gone, LinkError::Silent(_))) if *gone == peer), "{left:?}");
    assert!(began.elapsed() < 6 * SECOND, "{:?}", began.elapsed());
    assert!(matches!(patient(sent).await.unwrap(), Unsent::Lost(_) | Unsent::Down { .. }));
    for stopped in [&python, &other] {
        stopped.signal(Signal::SIGCONT);
    }
    up(&mut inbox).await;
    // Nothing of what was under way comes over the next link.
    dealer.send(frames(&["echo", "again"])).await.unwrap();
    assert_eq!(reply(&mut inbox).await, frames(&["echo", "again"]));
    // pyzmq connects anew by itself and knows nothing of a loss.
    let back = came(&mut guests).await;
    assert_ne!(back, peer);
    router.send(back, frames(&["echo", "again"])).await.unwrap();
    assert_eq!(message(&mut guests).await, (back, frames(&["echo", "again"])));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_peer_is_noticed_at_once_and_talked_to_when_it_is_back() {
    let folder = Folder::new();
    for address in ["tcp://127.0.0.1:*".to_owned(), folder.socket("py")] {
        let python = Python::router(&address, "{}");
        let address = python.address.clone();
        let patience = Settings { connect: SECOND / 2, ..Settings::default() };
        let (dealer, mut inbox) = Dealer::connect(address.parse().unwrap(), patience);
        up(&mut inbox).await;
        python.kill();
        let loss = lost(&mut inbox).await;
        assert!(matches!(loss, LinkError::Closed | LinkError::Io(_)), "{loss}");
        let unsent = dealer.send(frames(&["echo"])).await.unwrap_err();
        assert!(matches!(&unsent, Unsent::Down { .. }), "{unsent}");
        assert!(unsent.to_string().contains("efused"), "it says why: {unsent}");
        let _back = Python::router(&address, "{}");
        up(&mut inbox).await;
        dealer.send(frames(&["echo", "again"])).await.unwrap();
        assert_eq!(reply(&mut inbox).await, frames(&["echo", "again"]));
    }
}

#[tokio::test]
async fn nothing_goes_over_the_next_link_before_the_loss_was_taken() {
    let (router, mut guests) = bind("tcp://127.0.0.1:0", Settings::default()).await;
    let address = router.address().clone();
    let patience = Settings { connect: SECOND, ..Settings::default() };
    let (dealer, mut inbox) = Dealer::connect(address.clone(), patience);
    up(&mut inbox).await;
    came(&mut guests).await;
    drop((router, guests));
    // Back at the same port, and connected to; but the loss lies untaken in the inbox.
    let (_router, mut guests) = patient(async {
        loop {
            if let Ok(bound) = rollhouse::zmtp::Router::bind(&address, Settings::default()).await {
                return bound;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    came(&mut guests).await;
    assert!(matches!(dealer.send(frames(&["early"])).await, Err(Unsent::Down { .. })));
    lost(&mut inbox).await;
    dealer.send(frames(&["now"])).await.unwrap();
    assert_eq!(message(&mut guests).await.1, frames(&["now"]));
    up(&mut inbox).await;
}
