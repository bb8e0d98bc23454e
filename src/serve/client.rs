//! The client of an env server: many runs over one connection, each put together from its deltas.
//!
//! One task owns the connection's inbox and hands each answer to the run it belongs to. Frames that came and are not
//! applied yet have a budget over all runs, so that a server that is faster than this program is slowed down.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use serde::Deserialize;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::spawn_blocking,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::{
    error::{HealthError, NotReady, RunError},
    links,
    message::{self, CANCEL, DELTA, HEALTH, REPLY, RUN, Refused, RunRequest},
};
use crate::{
    agent::Watch,
    trace::{
        Episode,
        wire::{self, Applied, Assembly, Head, TraceSummary},
    },
    zmtp::{Address, Arrival, Dealer, Inbox, Settings},
};

/// A frame up to this size is applied where its run is; a larger one on a thread of its own.
const INLINE: usize = 32 << 10;
/// What may wait to be applied, in units of [`UNIT`] bytes.
const BUDGET: usize = 256 << 10;
const UNIT: usize = 1 << 10;
/// How long cancels may take to leave when a client is closed.
const CLOSING: Duration = Duration::from_secs(2);

/// A connection to an env server, which is made again when it is lost. Cheap to clone; with the last clone the connection
/// goes, and its runs with it.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    address: Address,
    dealer: Dealer,
    desk: Desk,
    clerk: Clerk,
    _owner: AbortOnDropHandle<()>,
}

/// Names a request on the wire: 32 hex digits.
type Id = Bytes;

/// Where the owner is told of requests. Unbounded: two orders at most for each request that somebody waits for.
type Desk = mpsc::UnboundedSender<Order>;

enum Order {
    Open(Id, mpsc::UnboundedSender<Mail>),
    Forget(Id),
}

/// What comes for one request. The channel is unbounded, and small: its frames are under the budget.
enum Mail {
    Delta(Bytes, OwnedSemaphorePermit),
    Reply(Bytes, OwnedSemaphorePermit),
    Lost(String),
}

impl fmt::Debug for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Client").field(&self.inner.address).finish()
    }
}

impl Client {
    /// A client of the server at an address, which need not be there yet. Must be called within a tokio runtime.
    pub fn connect(address: Address, settings: Settings) -> Self {
        let (dealer, inbox) = links::connect(address.clone(), settings);
        let (desk, orders) = mpsc::unbounded_channel();
        let clerk = Clerk::start(dealer.clone());
        let owner = AbortOnDropHandle::new(tokio::spawn(own(inbox, orders)));
        Self { inner: Arc::new(Inner { address, dealer, desk, clerk, _owner: owner }) }
    }

    /// Where the server is.
    pub fn address(&self) -> &Address {
        &self.inner.address
    }

    /// Runs one task and returns its episode. `watch` sees each change as it comes. A future that is dropped has its run
    /// cancelled.
    ///
    /// # Errors
    /// The server is gone or refused the run, or what it sent does not hold together.
    pub async fn run(&self, request: &RunRequest, watch: Option<Arc<dyn Watch>>) -> Result<Episode, RunError> {
        let mut asked = self.ask();
        let (work, mail) = (self.address().clone(), asked.take_mail());
        let mut assembling = AbortOnDropHandle::new(tokio::spawn(assemble(work, mail, watch)));
        let frames = vec![asked.id.clone(), Bytes::from_static(RUN), request.pack()];
        asked.cancels = true;
        // A link that is lost while the request waits for its turn ends the run, too.
        let ended = tokio::select! {
            biased;
            ended = &mut assembling => ended,
            sent = self.inner.dealer.send(frames) => match sent {
                Ok(()) => (&mut assembling).await,
                Err(unsent) => {
                    asked.cancels = false;
                    return Err(RunError::Unreached { address: self.address().clone(), reason: unsent.to_string() });
                }
            },
        };
        let ended = ended.unwrap_or_else(|error| Err(RunError::Assembly(error.to_string())));
        // What was answered is over; anything else may still go on over there.
        asked.cancels = matches!(ended, Err(RunError::Lost { .. } | RunError::Assembly(_)));
        ended
    }

    /// Asks whether the server answers.
    ///
    /// # Errors
    /// It does not, within this time.
    pub async fn health(&self, within: Duration) -> Result<(), HealthError> {
        self.health_by(Instant::now() + within).await
    }

    /// Waits until the server answers. One that starts has its requests wait, so it is asked once.
    ///
    /// # Errors
    /// There is no server, or it is there and does not answer; at once where something else is there.
    pub async fn wait_ready(&self, within: Duration) -> Result<(), NotReady> {
        tokio::select! {
            ready = self.asked_ready(within) => ready,
            fault = self.inner.dealer.stranger() => {
                Err(NotReady::Stranger { address: self.address().clone(), reason: fault.to_string() })
            }
        }
    }

    /// Why there is no connection just now, where that is known.
    pub fn fault(&self) -> Option<String> {
        self.inner.dealer.fault().map(|fault| fault.to_string())
    }

    /// How often the connection was lost.
    pub(super) fn losses(&self) -> u64 {
        self.inner.dealer.losses()
    }

    /// Waits until the connection was lost more often than that, for so long at most.
    pub(super) async fn lost_since(&self, losses: u64, within: Duration) {
        let _ = timeout(within, self.inner.dealer.lost_since(losses)).await;
    }

    async fn asked_ready(&self, within: Duration) -> Result<(), NotReady> {
        let end = Instant::now() + within;
        loop {
            let error = match self.health_by(end).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let address = self.address().clone();
            match error {
                HealthError::Refused(refused) => return Err(NotReady::Refused { address, refused }),
                HealthError::Silent if Instant::now() >= end => return Err(NotReady::Silent { address, within }),
                HealthError::Unreached(reason) if Instant::now() >= end => {
                    return Err(NotReady::NoServer { address, within, reason });
                }
                HealthError::Closed => return Err(NotReady::NoServer { address, within, reason: error.to_string() }),
                // The link went; it may come back in time.
                HealthError::Silent | HealthError::Unreached(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    async fn health_by(&self, end: Instant) -> Result<(), HealthError> {
        let mut asked = self.ask();
        let mut mail = asked.take_mail();
        let frames = vec![asked.id.clone(), Bytes::from_static(HEALTH), message::health()];
        match timeout_at(end, self.inner.dealer.send(frames)).await {
            Ok(Ok(())) => {}
            Ok(Err(unsent)) => return Err(HealthError::Unreached(unsent.to_string())),
            Err(_) => {
                let reason = self.fault().unwrap_or_else(|| "there is no connection".to_owned());
                return Err(HealthError::Unreached(reason));
            }
        }
        loop {
            match timeout_at(end, mail.recv()).await {
                Err(_) => return Err(HealthError::Silent),
                Ok(None) => return Err(HealthError::Closed),
                Ok(Some(Mail::Lost(reason))) => return Err(HealthError::Unreached(reason)),
                Ok(Some(Mail::Delta(..))) => {}
                Ok(Some(Mail::Reply(reply, _))) => {
                    let standing: message::Standing = wire::read(&reply)
                        .map_err(|error| HealthError::Refused(Refused::new("", error.to_string())))?;
                    return standing.verdict().map_err(HealthError::Refused);
                }
            }
        }
    }

    /// Lets the cancels of dropped runs leave before the connection goes. Runs in flight fail.
    pub async fn close(self) {
        let done = self.inner.clerk.drain();
        // A server that takes nothing any more is not waited for.
        let _ = timeout(CLOSING, done).await;
    }

    fn ask(&self) -> Asked {
        let id = Bytes::from(Uuid::new_v4().simple().to_string());
        let (letters, mail) = mpsc::unbounded_channel();
        // Where the owner is gone, the mail ends.
        let _ = self.inner.desk.send(Order::Open(id.clone(), letters));
        let desk = self.inner.desk.clone();
        Asked { id, desk, clerk: self.inner.clerk.clone(), mail: Some(mail), cancels: false }
    }
}

/// A request in flight. Dropped, the owner forgets it, and a run that may still go on is cancelled.
struct Asked {
    id: Id,
    desk: Desk,
    clerk: Clerk,
    mail: Option<mpsc::UnboundedReceiver<Mail>>,
    cancels: bool,
}

impl Asked {
    fn take_mail(&mut self) -> mpsc::UnboundedReceiver<Mail> {
        self.mail.take().unwrap_or_else(|| mpsc::unbounded_channel().1)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let _ = self.desk.send(Order::Forget(self.id.clone()));
        if self.cancels {
            self.clerk.cancel(self.id.clone());
        }
    }
}

/// Sends cancels, one after the other, so that nobody waits for them. Its queue is unbounded, and small: at most one id for
/// each run that was in flight.
#[derive(Clone)]
struct Clerk {
    orders: mpsc::UnboundedSender<Cancel>,
    _task: Arc<AbortOnDropHandle<()>>,
}

enum Cancel {
    Run(Id),
    Told(tokio::sync::oneshot::Sender<()>),
}

impl Clerk {
    fn start(dealer: Dealer) -> Self {
        let (orders, mut received) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            while let Some(order) = received.recv().await {
                match order {
                    Cancel::Run(run) => {
                        let id = Bytes::from(Uuid::new_v4().simple().to_string());
                        let run = String::from_utf8_lossy(&run);
                        let frames = vec![id, Bytes::from_static(CANCEL), message::cancel(&run)];
                        if let Err(unsent) = dealer.send(frames).await {
                            tracing::debug!(%run, %unsent, "a run could not be cancelled");
                        }
                    }
                    Cancel::Told(done) => {
                        let _ = done.send(());
                    }
                }
            }
        });
        Self { orders, _task: Arc::new(AbortOnDropHandle::new(task)) }
    }

    fn cancel(&self, run: Id) {
        let _ = self.orders.send(Cancel::Run(run));
    }

    /// Ends when all cancels until now have left.
    fn drain(&self) -> impl Future<Output = ()> + use<> {
        let (done, told) = tokio::sync::oneshot::channel();
        let _ = self.orders.send(Cancel::Told(done));
        async {
            let _ = told.await;
        }
    }
}

/// Hands what comes to the requests it belongs to, until nobody asks any more.
async fn own(mut inbox: Inbox, mut orders: mpsc::UnboundedReceiver<Order>) {
    let budget = Arc::new(Semaphore::new(BUDGET));
    let mut waiting: HashMap<Id, mpsc::UnboundedSender<Mail>> = HashMap::new();
    loop {
        tokio::select! {
            // Orders first: a request is opened before it is sent, and so before its answer is looked at.
            biased;
            order = orders.recv() => match order {
                None => return,
                Some(Order::Open(id, letters)) => {
                    waiting.insert(id, letters);
                }
                Some(Order::Forget(id)) => {
                    waiting.remove(&id);
                }
            },
            arrival = inbox.recv() => match arrival {
                None => return,
                Some(Arrival::Up) => tracing::debug!("connected to the env server"),
                Some(Arrival::Lost(error)) => {
                    tracing::warn!(%error, runs = waiting.len(), "the env server is lost");
                    for (_, letters) in waiting.drain() {
                        let _ = letters.send(Mail::Lost(error.to_string()));
                    }
                }
                Some(Arrival::Message(frames)) => hand_out(frames, &mut waiting, &budget).await,
            },
        }
    }
}

async fn hand_out(frames: Vec<Bytes>, waiting: &mut HashMap<Id, mpsc::UnboundedSender<Mail>>, budget: &Arc<Semaphore>) {
    let Ok([id, kind, payload]) = <[Bytes; 3]>::try_from(frames) else {
        tracing::warn!("an answer of the env server has not three frames; it is dropped");
        return;
    };
    // Of a run that nobody waits for any more.
    let Some(letters) = waiting.get(&id) else { return };
    let units = u32::try_from((payload.len() / UNIT + 1).min(BUDGET)).unwrap_or(u32::MAX);
    let Ok(permit) = Arc::clone(budget).acquire_many_owned(units).await else { return };
    if kind == DELTA {
        let _ = letters.send(Mail::Delta(payload, permit));
    } else {
        if kind != REPLY {
            tracing::debug!(kind = %String::from_utf8_lossy(&kind), "an answer of an unknown kind is taken for the reply");
        }
        let _ = letters.send(Mail::Reply(payload, permit));
        waiting.remove(&id);
    }
}

/// The reply to a run; a refusal has neither head nor traces.
#[derive(Deserialize)]
struct RunReply {
    #[serde(default)]
    head: Option<Head>,
    #[serde(default)]
    traces: Vec<TraceSummary>,
}

/// Puts one run's episode together.
async fn assemble(
    address: Address,
    mut mail: mpsc::UnboundedReceiver<Mail>,
    watch: Option<Arc<dyn Watch>>,
) -> Result<Episode, RunError> {
    let mut assembly = Assembly::default();
    loop {
        match mail.recv().await {
            None => return Err(RunError::Closed),
            Some(Mail::Lost(reason)) => return Err(RunError::Lost { address, reason }),
            Some(Mail::Delta(frame, _permit)) if frame.len() <= INLINE => apply(&mut assembly, &frame, watch.as_ref())?,
            Some(Mail::Delta(frame, permit)) => {
                let watch = watch.clone();
                let applied = spawn_blocking(move || {
                    let _permit = permit;
                    apply(&mut assembly, &frame, watch.as_ref()).map(|()| assembly)
                });
                assembly = applied.await.map_err(|error| RunError::Assembly(error.to_string()))??;
            }
            Some(Mail::Reply(frame, _permit)) if frame.len() <= INLINE => return finish(assembly, &frame),
            Some(Mail::Reply(frame, permit)) => {
                let finished = spawn_blocking(move || {
                    let _permit = permit;
                    finish(assembly, &frame)
                });
                return finished.await.map_err(|error| RunError::Assembly(error.to_string()))?;
            }
        }
    }
}

fn apply(assembly: &mut Assembly, frame: &Bytes, watch: Option<&Arc<dyn Watch>>) -> Result<(), RunError> {
    let applied = assembly.apply(frame).map_err(|error| RunError::Assembly(error.to_string()))?;
    match (applied, watch) {
        (Applied::Changed(trace, pending), Some(watch)) => watch.changed(trace, pending),
        (Applied::Discarded(Some(trace)), Some(watch)) => watch.discarded(&trace),
        _ => {}
    }
    Ok(())
}

fn finish(assembly: Assembly, frame: &Bytes) -> Result<Episode, RunError> {
    let unreadable = |error: rmp_serde::decode::Error| RunError::Assembly(format!("the reply cannot be read: {error}"));
    let standing: message::Standing = wire::read(frame).map_err(unreadable)?;
    standing.verdict().map_err(RunError::refused)?;
    let RunReply { head, traces } = wire::read(frame).map_err(unreadable)?;
    let head = head.ok_or_else(|| RunError::Assembly("the reply has no head".to_owned()))?;
    assembly.finish(head, &traces).map_err(|error| RunError::Assembly(error.to_string()))
}
