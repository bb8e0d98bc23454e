//! The server of an env: takes runs from any number of clients and streams each as it grows.
//!
//! One task owns the socket's guests and the table of runs; each run is a task of its own, which works and sends. A run is
//! known by its client and its id, so that two clients with one id do not meet.

use std::{collections::HashMap, panic::AssertUnwindSafe, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{
    FutureExt as _,
    future::{BoxFuture, maybe_done},
};
use tokio::{
    sync::Semaphore,
    task::{JoinSet, spawn_blocking, unconstrained},
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    links,
    message::{self, CANCEL, DELTA, HEALTH, REPLY, RUN, Refused, RunRequest},
    stream::{Stream, summaries},
};
use crate::{
    agent::Watch,
    trace::{Episode, Fault, FaultClass, wire},
    zmtp::{Address, BindError, Frames, Guests, PeerId, Router, Settings, Visit},
};

/// Answers that one client may leave unread before its further questions are dropped; runs do not count.
const ANSWERS: usize = 1024;
/// KiB of requests that runs in flight hold, and what each takes beside its request.
const HELD: usize = 1 << 20;
const RUN_COST: usize = 4;
/// How long the last replies may take to leave.
const LEAVING: Duration = Duration::from_secs(2);

/// What a server serves.
pub trait Host: Send + Sync {
    /// Does one run. `watch` is told of each change of its rollouts. A future that is dropped has its run aborted, down to
    /// the model call in flight.
    fn run<'a>(&'a self, request: RunRequest, watch: Arc<dyn Watch>) -> BoxFuture<'a, Result<Episode, Refused>>;
}

/// How a server works.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Runs that are worked on at a time, over all clients; the others wait. `None` is without bound.
    pub max_concurrent: Option<usize>,
    /// How long runs in flight may take to end once the server is asked to.
    pub drain: Duration,
    /// Bounds of the connections.
    pub link: Settings,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self { max_concurrent: None, drain: Duration::from_secs(10), link: Settings::default() }
    }
}

/// A server that listens.
pub struct Server {
    router: Router,
    guests: Guests,
    host: Arc<dyn Host>,
    settings: ServerSettings,
}

impl Server {
    /// Listens at an address; requests wait until [`Self::run`].
    ///
    /// # Errors
    /// The address cannot be had.
    pub async fn bind(address: &Address, settings: ServerSettings, host: Arc<dyn Host>) -> Result<Self, BindError> {
        let (router, guests) = links::bind(address, settings.link.clone()).await?;
        Ok(Self { router, guests, host, settings })
    }

    /// Where it listens, with the port that was chosen.
    pub fn address(&self) -> &Address {
        self.router.address()
    }

    /// Serves until it is asked to shut down: then it takes no more runs, lets those in flight end, and cancels those that
    /// take too long.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self { router, mut guests, host, settings } = self;
        let gate = settings.max_concurrent.map(|most| Arc::new(Semaphore::new(most)));
        let held = Arc::new(Semaphore::new(HELD));
        let mut floor = Floor { router, host, gate, held, peers: HashMap::new(), work: JoinSet::new(), closing: false };
        let mut asked = pin!(shutdown.cancelled());
        let mut end = None;
        loop {
            if floor.closing && floor.runs() == 0 {
                break;
            }
            let out_of_time = async {
                match end {
                    Some(end) => sleep_until(end).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // What came after the order to shut down is refused.
                biased;
                () = &mut asked, if !floor.closing => {
                    floor.closing = true;
                    end = Instant::now().checked_add(settings.drain);
                    tracing::info!(runs = floor.runs(), "the env server takes no more runs");
                }
                () = out_of_time => {
                    tracing::warn!(runs = floor.runs(), "runs took too long to end and are cancelled");
                    end = None;
                    floor.peers.values().flat_map(|peer| peer.runs.values()).for_each(CancellationToken::cancel);
                }
                Some(joined) = floor.work.join_next() => floor.ended(joined),
                visit = guests.recv() => match visit {
                    Some(visit) => floor.receive(visit),
                    None => break,
                },
            }
        }
        let Floor { router, mut work, .. } = floor;
        let leave = async {
            while work.join_next().await.is_some() {}
            router.close().await;
        };
        // A client that does not read is not waited for.
        let _ = timeout(LEAVING, leave).await;
    }
}

/// What is in flight.
struct Floor {
    router: Router,
    host: Arc<dyn Host>,
    gate: Option<Arc<Semaphore>>,
    /// What more of requests may be held; a run has its share until it has ended.
    held: Arc<Semaphore>,
    peers: HashMap<PeerId, Peer>,
    /// Runs, and answers on their way to clients that are slow to read.
    work: JoinSet<(PeerId, Option<Bytes>)>,
    closing: bool,
}

#[derive(Default)]
struct Peer {
    runs: HashMap<Bytes, CancellationToken>,
    answers: usize,
}

impl Floor {
    fn runs(&self) -> usize {
        self.peers.values().map(|peer| peer.runs.len()).sum()
    }

    fn receive(&mut self, visit: Visit) {
        match visit {
            Visit::Came(peer) => {
                tracing::debug!(%peer, "a client came");
                self.peers.insert(peer, Peer::default());
            }
            Visit::Left(peer, error) => {
                let gone = self.peers.remove(&peer).unwrap_or_default();
                tracing::debug!(%peer, %error, runs = gone.runs.len(), "a client left; its runs are cancelled");
                gone.runs.values().for_each(CancellationToken::cancel);
            }
            Visit::Message(peer, frames) => self.request(peer, frames),
        }
    }

    fn request(&mut self, peer: PeerId, frames: Frames) {
        let count = frames.len();
        let Ok([id, route, payload]) = <[Bytes; 3]>::try_from(frames) else {
            tracing::warn!(%peer, "a message of {count} frames instead of three is dropped");
            return;
        };
        if !message::is_named(&id, &route) {
            return;
        }
        match &route[..] {
            RUN => self.start(peer, id, payload),
            HEALTH => {
                let reply = match super::payload::read(&payload) {
                    Ok(_) => message::healthy(),
                    Err(refused) => message::refusal(&refused),
                };
                self.answer(peer, id, reply);
            }
            CANCEL => {
                let reply = match super::payload::named_id(&payload) {
                    Some(run) => {
                        let found = self.peers.get(&peer).and_then(|known| known.runs.get(&run[..]));
                        found.inspect(|run| run.cancel());
                        message::cancelled(found.is_some())
                    }
                    None => message::refusal(&Refused::nameless_cancel(&payload)),
                };
                self.answer(peer, id, reply);
            }
            _ => {
                let refused = super::payload::read(&payload).err();
                let refused = refused.unwrap_or_else(|| Refused::unknown_method(&route));
                self.answer(peer, id, message::refusal(&refused));
            }
        }
    }

    fn answer(&mut self, peer: PeerId, id: Bytes, reply: Bytes) {
        let Some(known) = self.peers.get_mut(&peer) else { return };
        if known.answers >= ANSWERS {
            tracing::warn!(%peer, "a client asks and does not read; its question is dropped");
            return;
        }
        known.answers += 1;
        let router = self.router.clone();
        self.work.spawn(async move {
            send(&router, peer, id, REPLY, reply).await;
            (peer, None)
        });
    }

    fn start(&mut self, peer: PeerId, id: Bytes, payload: Bytes) {
        let Some(known) = self.peers.get_mut(&peer) else { return };
        let share = u32::try_from((payload.len() / 1024 + RUN_COST).min(HELD)).unwrap_or(u32::MAX);
        let share = if self.closing {
            Err(Refused::new(message::SHUT_DOWN, "the env server is shutting down"))
        } else if known.runs.contains_key(&id) {
            Err(Refused::new("ValueError", "a run with this request id is in flight"))
        } else {
            Arc::clone(&self.held).try_acquire_many_owned(share).map_err(|_| {
                let why = "the requests of runs in flight take all the memory there is for them; ask again";
                Refused::new(message::BUSY, why)
            })
        };
        let share = match share {
            Ok(share) => share,
            Err(refused) => return self.answer(peer, id, message::refusal(&refused)),
        };
        let cancel = CancellationToken::new();
        known.runs.insert(id.clone(), cancel.clone());
        let run = Run { router: self.router.clone(), host: Arc::clone(&self.host), peer, id };
        // Asked for here, so that runs get their seats in the order they came.
        let gate = self.gate.clone();
        let mut seat = Box::pin(maybe_done(unconstrained(async move { gate?.acquire_owned().await.ok() })));
        let _ = (&mut seat).now_or_never();
        self.work.spawn(async move {
            let reply = tokio::select! {
                biased;
                () = cancel.cancelled() => message::refusal(&Refused::cancelled()),
                reply = run.work(&payload, seat) => reply,
            };
            drop((payload, share));
            let Run { router, id, .. } = run;
            send(&router, peer, id.clone(), REPLY, reply).await;
            (peer, Some(id))
        });
    }

    fn ended(&mut self, joined: Result<(PeerId, Option<Bytes>), tokio::task::JoinError>) {
        match joined {
            Ok((peer, run)) => {
                let Some(known) = self.peers.get_mut(&peer) else { return };
                match run {
                    Some(id) => {
                        known.runs.remove(&id);
                    }
                    None => known.answers -= 1,
                }
            }
            // Panics of the host are caught where it is called.
            Err(error) => tracing::error!(%error, "a request was lost"),
        }
    }
}

/// One run on the floor.
struct Run {
    router: Router,
    host: Arc<dyn Host>,
    peer: PeerId,
    id: Bytes,
}

impl Run {
    /// Does it, and returns the reply; all its deltas are on their way by then.
    async fn work(&self, payload: &[u8], seat: impl Future) -> Bytes {
        match self.play(payload, seat).await {
            Ok(reply) => reply,
            Err(refused) => {
                tracing::warn!(peer = %self.peer, %refused, "a run was refused");
                message::refusal(&refused)
            }
        }
    }

    /// `seat` is ready when it is this run's turn, and holds its place as long as it lives.
    async fn play(&self, payload: &[u8], seat: impl Future) -> Result<Bytes, Refused> {
        let request = RunRequest::read(payload)?;
        let mut seat = pin!(seat);
        seat.as_mut().await;
        let (stream, mut frames) = Stream::open();
        let stream = Arc::new(stream);
        let work = async {
            let run = AssertUnwindSafe(self.host.run(request, Arc::clone(&stream) as Arc<dyn Watch>)).catch_unwind();
            let ended = run.await.unwrap_or_else(|panic| Err(panicked(panic.as_ref())));
            let outlet = stream.close();
            let (last, reply) = conclude(stream, ended?).await?;
            if let Some(outlet) = outlet {
                for frame in last {
                    // A client that is gone has its run cancelled elsewhere.
                    let _ = outlet.send(frame).await;
                }
            }
            Ok(reply)
        };
        // The work goes on while a frame waits for room; it closes the stream at its end.
        let relay = async {
            while let Some(frame) = frames.recv().await {
                send(&self.router, self.peer, self.id.clone(), DELTA, frame).await;
            }
        };
        tokio::join!(work, relay).0
    }
}

/// The last frames of an episode and the reply, made on a thread of its own where that is much.
async fn conclude(stream: Arc<Stream>, episode: Episode) -> Result<(Vec<Bytes>, Bytes), Refused> {
    let much = stream.is_behind(&episode);
    let make = move || {
        let unsendable = |error: &dyn std::error::Error| Refused::new("ValueError", error.to_string());
        let last = stream.last(&episode).map_err(|error| unsendable(&error))?;
        let reply = message::done(&wire::head(&episode), &summaries(&episode)).map_err(|error| unsendable(&error))?;
        Ok((last, reply))
    };
    if !much {
        return make();
    }
    spawn_blocking(make).await.unwrap_or_else(|error| Err(Refused::new("RuntimeError", error.to_string())))
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Refused {
    Refused::new("RuntimeError", Fault::from_panic(FaultClass::Task, "the env", panic).message)
}

/// Sends one answer; a client that is gone gets none.
async fn send(router: &Router, peer: PeerId, id: Bytes, kind: &'static [u8], payload: Bytes) {
    if let Err(unsent) = router.send(peer, vec![id, Bytes::from_static(kind), payload]).await {
        tracing::debug!(%peer, %unsent, "an answer could not be sent");
    }
}
