//! The socket of a client: one peer, connected to again whenever the link is lost.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::AbortOnDropHandle,
};
use tracing::debug;

use super::{
    Address, Frames, LinkError, Settings, Unsent,
    handshake::Role,
    link::Link,
    queue::{self, Receiver, Sender, cost},
    socket::connect,
};

/// Pauses between attempts to connect; each is drawn from between half of it and all of it.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The sending half of a DEALER; clones send over the same link. The connection ends when the last clone, or the
/// [`Inbox`], is dropped; what was not written by then is lost: [`Dealer::close`] waits for it.
#[derive(Clone, Debug)]
pub struct Dealer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    address: Address,
    settings: Settings,
    state: watch::Receiver<State>,
    closing: CancellationToken,
    /// Cancelled when the owner of the link is gone.
    over: CancellationToken,
    _owner: AbortOnDropHandle<()>,
}

/// Where the link stands.
#[derive(Debug, Default)]
struct State {
    link: Option<Sender<Frames>>,
    /// A loss that the inbox was not asked for yet; until then no message goes over the next link.
    is_loss_untold: bool,
    /// Losses that the inbox was asked for.
    losses: u64,
    /// Why the last attempt to connect failed.
    fault: Option<Arc<LinkError>>,
    /// The link was lost while the socket was closing.
    is_cut: bool,
}

impl State {
    /// The link, if messages may go over it.
    fn open(&self) -> Option<&Sender<Frames>> {
        self.link.as_ref().filter(|_| !self.is_loss_untold)
    }
}

/// What arrives at a [`Dealer`].
#[derive(Debug)]
pub struct Inbox {
    arrivals: Receiver<Arrival>,
    state: Arc<watch::Sender<State>>,
    _gone: DropGuard,
}

/// What happened at a [`Dealer`], in order.
#[derive(Debug)]
pub enum Arrival {
    /// The link is up (again).
    Up,
    /// A message came.
    Message(Frames),
    /// The link was lost, with everything that was under way over it. It is opened again by itself; a first link that
    /// does not come up is no event, but the fault of [`Unsent::Down`].
    Lost(LinkError),
}

impl Dealer {
    /// Starts to connect, and goes on until it is dropped. Must be called within a tokio runtime.
    pub fn connect(address: Address, settings: Settings) -> (Self, Inbox) {
        let (inbox, arrivals) = queue::channel(settings.queue_bytes);
        let (state, seen) = watch::channel(State::default());
        let state = Arc::new(state);
        let (closing, over, gone) = (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
        let owner = Owner {
            address: address.clone(),
            settings: settings.clone(),
            state: Arc::clone(&state),
            inbox,
            closing: closing.clone(),
        };
        let is_gone = gone.clone();
        let is_over = over.clone().drop_guard();
        let owner = AbortOnDropHandle::new(tokio::spawn(async move {
            let _is_over = is_over;
            is_gone.run_until_cancelled(owner.run()).await;
        }));
        let shared = Shared { address, settings, state: seen, closing, over, _owner: owner };
        (Self { shared: Arc::new(shared) }, Inbox { arrivals, state, _gone: gone.drop_guard() })
    }

    /// Hands a message to the link: waits for the link, up to [`Settings::connect`], and for room in its queue. What was
    /// handed over is written unless the link is lost, which [`Arrival::Lost`] then tells; it is never sent over a later link.
    ///
    /// After a loss no message goes over the next link before [`Arrival::Lost`] was taken from the inbox: so a run that
    /// was sent is either told lost or lives. Dropping the future before it is ready sends nothing.
    ///
    /// # Errors
    /// [`Unsent`]: nothing was sent.
    pub async fn send(&self, frames: Frames) -> Result<(), Unsent> {
        let Shared { address, settings, state, closing, over, .. } = &*self.shared;
        settings.allow(&frames)?;
        let open = state.borrow().open().cloned();
        let link = if let Some(link) = open {
            link
        } else {
            let mut state = state.clone();
            tokio::select! {
                () = closing.cancelled() => return Err(Unsent::Closed),
                () = over.cancelled() => return Err(Unsent::Closed),
                up = timeout(settings.connect, state.wait_for(|state| state.open().is_some())) => {
                    // In the other case the owner is just gone.
                    up.ok().and_then(|up| up.ok()?.open().cloned())
                }
            }
            .ok_or_else(|| {
                let fault = self.shared.state.borrow().fault.clone();
                Unsent::Down { address: address.clone(), waited: settings.connect, fault }
            })?
        };
        let size = cost(&frames);
        link.send(frames, size).await.map_err(|_| {
            let is_closed = closing.is_cancelled() || over.is_cancelled();
            if is_closed { Unsent::Closed } else { Unsent::Lost(address.clone()) }
        })
    }

    /// Why the last attempt to connect failed; none while there is a link, and before the first attempt has ended.
    pub fn fault(&self) -> Option<Arc<LinkError>> {
        self.shared.state.borrow().fault.clone()
    }

    /// Waits until what is there turns out to be no peer of ours; for ever where it is one, or where nothing is there.
    pub async fn stranger(&self) -> Arc<LinkError> {
        let mut state = self.shared.state.clone();
        let strange = |state: &State| state.fault.as_ref().is_some_and(|fault| fault.is_lasting());
        let found = state.wait_for(strange).await.ok().and_then(|state| state.fault.clone());
        match found {
            Some(fault) => fault,
            // The socket is gone, and finds nothing out any more.
            None => std::future::pending().await,
        }
    }

    /// How many losses were taken from the inbox.
    pub fn losses(&self) -> u64 {
        self.shared.state.borrow().losses
    }

    /// Waits until more losses than these were taken from the inbox.
    pub async fn lost_since(&self, losses: u64) {
        let mut state = self.shared.state.clone();
        // In the other case the socket is gone, and its link with it.
        let _ = state.wait_for(|state| state.losses > losses).await;
    }

    /// Sends no more, also not by clones, waits until all that was handed over is written and read by the peer's side, and
    /// closes the connection. A peer that does not read holds this up: give it a deadline.
    ///
    /// # Errors
    /// The link was lost before all was written.
    pub async fn close(self) -> Result<(), Unsent> {
        self.shared.closing.cancel();
        self.shared.over.cancelled().await;
        let is_cut = self.shared.state.borrow().is_cut;
        if is_cut { Err(Unsent::Lost(self.shared.address.clone())) } else { Ok(()) }
    }
}

impl Inbox {
    /// The next event; none when the dealer is closed or its last clone was dropped. Cancel-safe.
    pub async fn recv(&mut self) -> Option<Arrival> {
        let arrival = self.arrivals.recv().await?.item;
        if matches!(arrival, Arrival::Lost(_)) {
            self.state.send_modify(|state| {
                state.is_loss_untold = false;
                state.losses += 1;
            });
        }
        Some(arrival)
    }
}

/// Owns the link.
struct Owner {
    address: Address,
    settings: Settings,
    state: Arc<watch::Sender<State>>,
    inbox: Sender<Arrival>,
    closing: CancellationToken,
}

impl Owner {
    async fn run(self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let Some(opened) = self.closing.run_until_cancelled(self.open()).await else { return };
            match opened {
                Ok(link) => {
                    let began = Instant::now();
                    if self.serve(link).await {
                        return;
                    }
                    if began.elapsed() > LONGEST_PAUSE {
                        pause = FIRST_PAUSE;
                    }
                }
                Err(fault) => {
                    debug!(address = %self.address, %fault, "no connection");
                    self.state.send_modify(|state| state.fault = Some(Arc::new(fault)));
                }
            }
            let drawn = pause.mul_f64(0.5 + 0.5 * rand::random::<f64>());
            if self.closing.run_until_cancelled(sleep(drawn)).await.is_none() {
                return;
            }
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    async fn open(&self) -> Result<Link, LinkError> {
        let settings = &self.settings;
        let stream = timeout(settings.connect, connect(&self.address, settings.follow_links)).await;
        let stream = stream.map_err(|_| LinkError::Slow(settings.connect))?.map_err(LinkError::Io)?;
        Link::open(stream, Role::Dealer, settings).await
    }

    /// Runs a link, and says whether the socket is closed.
    async fn serve(&self, link: Link) -> bool {
        let (sender, outgoing) = queue::channel(self.settings.queue_bytes);
        // Takes no room: there is one of these between two losses, which do.
        self.inbox.push(Arrival::Up);
        self.state.send_modify(|state| {
            state.link = Some(sender);
            state.fault = None;
        });
        let end = link.run(&self.settings, outgoing, &self.inbox, Arrival::Message, &self.closing).await;
        let is_ended = matches!(end, LinkError::Ended);
        self.state.send_modify(|state| {
            state.link = None;
            state.is_loss_untold = !is_ended;
            state.is_cut = !is_ended && self.closing.is_cancelled();
        });
        if is_ended {
            return true;
        }
        debug!(address = %self.address, fault = %end, "connection lost");
        self.inbox.event(Arrival::Lost(end)).await;
        self.closing.is_cancelled()
    }
}
