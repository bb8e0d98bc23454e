//! The socket of a server: many peers, each with a queue of its own.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{sync::Semaphore, task::JoinSet, time::sleep};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::AbortOnDropHandle,
};
use tracing::{debug, warn};

use super::{
    Address, BindError, Frames, LinkError, Settings, Unsent,
    handshake::Role,
    link::Link,
    queue::{self, Receiver, Sender, cost},
    socket::{Listener, Removal, Stream, listen},
};

/// Connections at once, from their acceptance until their end was told.
const MOST_PEERS: usize = 10_000;
/// How long to wait when the system has no descriptor for the next connection.
const OUT_OF_DESCRIPTORS: Duration = Duration::from_millis(100);

/// One connection of a peer to a [`Router`], never used again: a peer that comes back has a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(u64);

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The sending half of a ROUTER; clones send over the same links. It listens until the last clone, or [`Guests`], is
/// dropped; what was not written by then is lost: [`Router::close`] waits for it.
#[derive(Clone, Debug)]
pub struct Router {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    address: Address,
    settings: Settings,
    peers: Arc<Mutex<Peers>>,
    closing: CancellationToken,
    /// Cancelled when nothing listens any more and all links are gone.
    over: CancellationToken,
    /// Goes before the listener, which the task below owns.
    _file: Option<Removal>,
    _accepting: AbortOnDropHandle<()>,
}

/// Who is there. Behind a lock since every sender looks in; it is held for a look-up, never over an await.
#[derive(Debug, Default)]
struct Peers {
    by_id: HashMap<PeerId, Seat>,
    by_identity: HashMap<Bytes, PeerId>,
}

#[derive(Debug)]
struct Seat {
    outgoing: Sender<Frames>,
    identity: Bytes,
    /// Ends the link, when another takes over its identity.
    cut: CancellationToken,
}

/// What arrives at a [`Router`].
#[derive(Debug)]
pub struct Guests {
    visits: Receiver<Visit>,
    _gone: DropGuard,
}

/// What happened at a [`Router`]; in order for each peer.
#[derive(Debug)]
pub enum Visit {
    /// A peer is connected.
    Came(PeerId),
    /// It sent a message.
    Message(PeerId, Frames),
    /// It is gone, with everything that was under way to it.
    Left(PeerId, LinkError),
}

impl Router {
    /// Listens on an address; a socket file that a dead process left is replaced. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The address is taken or cannot be had.
    pub async fn bind(address: &Address, settings: Settings) -> Result<(Self, Guests), BindError> {
        let (listener, address, file) = listen(address).await?;
        let (inbox, visits) = queue::channel(settings.queue_bytes);
        let (closing, over, gone) = (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
        let peers = Arc::new(Mutex::new(Peers::default()));
        let house = Arc::new(House {
            settings: settings.clone(),
            peers: Arc::clone(&peers),
            inbox,
            closing: closing.clone(),
            next: AtomicU64::new(0),
        });
        let is_gone = gone.clone();
        let is_over = over.clone().drop_guard();
        let accepting = AbortOnDropHandle::new(tokio::spawn(async move {
            let _is_over = is_over;
            is_gone.run_until_cancelled(house.accept(listener)).await;
        }));
        let shared = Shared { address, settings, peers, closing, over, _file: file, _accepting: accepting };
        Ok((Self { shared: Arc::new(shared) }, Guests { visits, _gone: gone.drop_guard() }))
    }

    /// Where it listens, with the port that was chosen.
    pub fn address(&self) -> &Address {
        &self.shared.address
    }

    /// The identity that a connected peer announced; none when it announced none, or is gone.
    pub fn identity(&self, peer: PeerId) -> Option<Bytes> {
        let peers = lock(&self.shared.peers);
        peers.by_id.get(&peer).map(|seat| seat.identity.clone()).filter(|identity| !identity.is_empty())
    }

    /// Hands a message to a peer: waits for room in that peer's queue, and for no other peer. What was handed over is written
    /// unless the peer goes, which [`Visit::Left`] then tells. Dropping the future before it is ready sends nothing.
    ///
    /// # Errors
    /// [`Unsent::Gone`], or a message that may not be sent.
    pub async fn send(&self, peer: PeerId, frames: Frames) -> Result<(), Unsent> {
        self.shared.settings.allow(&frames)?;
        let outgoing = lock(&self.shared.peers).by_id.get(&peer).map(|seat| seat.outgoing.clone());
        let size = cost(&frames);
        outgoing
            .ok_or(Unsent::Gone(peer))?
            .send(frames, size)
            .await
            .map_err(|_| if self.shared.closing.is_cancelled() { Unsent::Closed } else { Unsent::Gone(peer) })
    }

    /// Takes no more connections and messages, waits until all that was handed over is written and read by the peers' sides,
    /// and closes all connections. A peer that does not read holds this up: give it a deadline.
    pub async fn close(self) {
        self.shared.closing.cancel();
        self.shared.over.cancelled().await;
    }
}

impl Guests {
    /// The next event; none when the router is closed or its last clone was dropped. Cancel-safe.
    pub async fn recv(&mut self) -> Option<Visit> {
        Some(self.visits.recv().await?.item)
    }
}

/// A panic elsewhere leaves no half-made entry.
fn lock(peers: &Mutex<Peers>) -> MutexGuard<'_, Peers> {
    peers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Owns the listener and all links.
struct House {
    settings: Settings,
    peers: Arc<Mutex<Peers>>,
    inbox: Sender<Visit>,
    closing: CancellationToken,
    next: AtomicU64,
}

impl House {
    async fn accept(self: Arc<Self>, listener: Listener) {
        let places = Arc::new(Semaphore::new(MOST_PEERS));
        let mut links = JoinSet::new();
        loop {
            let next = async {
                let place = Arc::clone(&places).acquire_owned().await;
                (listener.accept().await, place)
            };
            tokio::select! {
                () = self.closing.cancelled() => break,
                Some(_) = links.join_next() => {}
                (accepted, place) = next => match accepted {
                    Ok(stream) => {
                        let house = Arc::clone(&self);
                        links.spawn(async move {
                            let _place = place;
                            house.host(stream).await;
                        });
                    }
                    Err(fault) => {
                        warn!(%fault, "a connection was not accepted");
                        sleep(OUT_OF_DESCRIPTORS).await;
                    }
                },
            }
        }
        drop(listener);
        while links.join_next().await.is_some() {}
    }

    /// One connection, from its acceptance until its end was told.
    async fn host(&self, stream: Stream) {
        let opened = self.closing.run_until_cancelled(Link::open(stream, Role::Router, &self.settings)).await;
        let link = match opened {
            Some(Ok(link)) => link,
            Some(Err(fault)) => return debug!(%fault, "a connection came to nothing"),
            None => return,
        };
        let (sender, outgoing) = queue::channel(self.settings.queue_bytes);
        let id = PeerId(self.next.fetch_add(1, Ordering::Relaxed));
        let cut = CancellationToken::new();
        self.seat(id, Seat { outgoing: sender, identity: link.peer.identity.clone(), cut: cut.clone() });
        // Takes no room: each connection has one, and its place until it is told that it ended, which does.
        self.inbox.push(Visit::Came(id));
        let run = link.run(&self.settings, outgoing, &self.inbox, |frames| Visit::Message(id, frames), &self.closing);
        let end = cut.run_until_cancelled(run).await.unwrap_or(LinkError::Replaced);
        self.unseat(id);
        debug!(peer = %id, fault = %end, "a peer left");
        self.inbox.event(Visit::Left(id, end)).await;
    }

    /// Gives a peer its place. One that comes back may know that its old connection is gone before we do: so the newer one
    /// gets the identity, and the older one goes.
    fn seat(&self, id: PeerId, seat: Seat) {
        let mut peers = lock(&self.peers);
        if !seat.identity.is_empty()
            && let Some(older) = peers.by_identity.insert(seat.identity.clone(), id)
            && let Some(older) = peers.by_id.remove(&older)
        {
            older.cut.cancel();
        }
        peers.by_id.insert(id, seat);
    }

    fn unseat(&self, id: PeerId) {
        let mut peers = lock(&self.peers);
        if let Some(seat) = peers.by_id.remove(&id)
            && peers.by_identity.get(&seat.identity) == Some(&id)
        {
            peers.by_identity.remove(&seat.identity);
        }
    }
}
