//! The peers of these tests, and what they say.
#![allow(unreachable_pub, dead_code, reason = "each test file uses a part of it")]

use std::{
    env,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    time::Duration,
};

use bytes::Bytes;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rollhouse::zmtp::{Arrival, Frames, Guests, Inbox, LinkError, PeerId, Router, Settings, Visit};

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits, but not for ever.
pub async fn patient<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("done in time")
}

pub fn frames(texts: &[&str]) -> Frames {
    texts.iter().map(|text| Bytes::copy_from_slice(text.as_bytes())).collect()
}

/// Bytes of which no two places look alike.
pub fn noise(size: usize, seed: u64) -> Bytes {
    let mut bytes = vec![0; size.next_multiple_of(8)];
    let mut state = seed;
    for place in bytes.chunks_exact_mut(8) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        place.copy_from_slice(&(state ^ (state >> 29)).to_le_bytes());
    }
    bytes.truncate(size);
    bytes.into()
}

pub async fn bind(address: &str, settings: Settings) -> (Router, Guests) {
    Router::bind(&address.parse().unwrap(), settings).await.unwrap()
}

pub async fn up(inbox: &mut Inbox) {
    let arrival = patient(inbox.recv()).await;
    assert!(matches!(arrival, Some(Arrival::Up)), "{arrival:?}");
}

/// What a dealer receives next; it must be a message.
pub async fn reply(inbox: &mut Inbox) -> Frames {
    match patient(inbox.recv()).await {
        Some(Arrival::Message(frames)) => frames,
        other => panic!("no message but {other:?}"),
    }
}

/// Why the link is lost; messages before it are passed over.
pub async fn lost(inbox: &mut Inbox) -> LinkError {
    patient(async {
        loop {
            match inbox.recv().await {
                Some(Arrival::Lost(fault)) => return fault,
                Some(_) => {}
                None => panic!("the dealer is closed"),
            }
        }
    })
    .await
}

/// The peer that comes next.
pub async fn came(guests: &mut Guests) -> PeerId {
    let visit = patient(guests.recv()).await;
    let Some(Visit::Came(peer)) = visit else { panic!("nobody came but {visit:?}") };
    peer
}

/// The peer that leaves next, and why; messages before it are passed over.
pub async fn left(guests: &mut Guests) -> (PeerId, LinkError) {
    patient(async {
        loop {
            match guests.recv().await {
                Some(Visit::Left(peer, fault)) => return (peer, fault),
                Some(_) => {}
                None => panic!("the router is closed"),
            }
        }
    })
    .await
}

/// The next message, whatever comes and goes before it.
pub async fn message(guests: &mut Guests) -> (PeerId, Frames) {
    patient(async {
        loop {
            match guests.recv().await {
                Some(Visit::Message(peer, frames)) => return (peer, frames),
                Some(_) => {}
                None => panic!("the router is closed"),
            }
        }
    })
    .await
}

/// A folder for sockets, gone at the end.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn socket(&self, name: &str) -> String {
        format!("ipc://{}", self.0.path().join(name).display())
    }
}

/// A socket of pyzmq in a process of its own.
pub struct Python {
    child: Child,
    _stdin: ChildStdin,
    /// Where a router listens.
    pub address: String,
}

impl Python {
    pub fn router(address: &str, options: &str) -> Self {
        let mut peer = Self::start("router", address, options);
        let mut line = String::new();
        BufReader::new(peer.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        peer.address = line.trim().to_owned();
        assert!(!peer.address.is_empty(), "the peer did not start");
        peer
    }

    pub fn dealer(address: &str, options: &str) -> Self {
        Self::start("dealer", address, options)
    }

    fn start(kind: &str, address: &str, options: &str) -> Self {
        let python = env::var("ROLLHOUSE_TEST_PYTHON").expect("run the tests by tests/run, which sets up a Python");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/zmtp_peer.py");
        let mut child = Command::new(python)
            .arg(script)
            .args([kind, address, options])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        Self { child, _stdin: stdin, address: String::new() }
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
