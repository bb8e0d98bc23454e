//! One worker from its start to its end: its process, its folder, its link, its log, and the questions for its health.

use std::{path::PathBuf, process::ExitStatus, sync::Arc, time::Duration};

use bytes::Bytes;
use serde::Deserialize;
use tokio::{
    net::unix::pipe,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    task::JoinSet,
    time::{self, Instant},
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    Crew, PoolSettings, Seat, Started,
    desk::{Loss, Name},
    log::Log,
    log_of,
};
use crate::{
    runtime::{Child, PrivateFolder, Signal},
    serve::{links, message},
    zmtp::{self, Address, Arrival, Frames, Inbox, LinkError, Unsent},
};

/// Bytes that a worker has sent and no client has taken, at most; a message that is larger goes alone.
const UNDER_WAY: usize = 64 << 20;
/// How soon a worker that says that it is not healthy is asked again.
const AGAIN: Duration = Duration::from_secs(1);
/// A worker that is silent is asked at least so often.
const ASKED: Duration = Duration::from_secs(15);
/// How long the exit status, the last words and the last messages of a worker that goes are waited for.
const LAST: Duration = Duration::from_millis(500);
/// What the ids of our questions begin with; ids of runs are digits.
const HEALTH_ID: &[u8] = b"health-";

/// What a worker tells of itself.
#[derive(Debug)]
pub(super) enum Event {
    /// Its process has this id.
    Started(u32),
    /// It answers.
    Ready,
    /// It said something, and may say more when this was taken.
    Said(Frames, OwnedSemaphorePermit),
    /// It is gone, with all that it started.
    Lost(Loss),
}

/// A worker from outside. Dropping it kills it.
pub(super) struct Post {
    // Unbounded: requests of runs in flight, which the desk holds anyway, and their cancels.
    orders: mpsc::UnboundedSender<Frames>,
    end: Option<oneshot::Sender<()>>,
    pub(super) log: Log,
    task: AbortOnDropHandle<()>,
}

impl Post {
    /// Starts a worker. It tells what happens to it until it is lost, or was asked to end.
    pub(super) fn new(
        name: Name,
        settings: &PoolSettings,
        crew: Arc<dyn Crew>,
        folder: &Arc<PrivateFolder>,
        events: mpsc::Sender<(Name, Event)>,
    ) -> Self {
        let (orders, ordered) = mpsc::unbounded_channel();
        let (end, ended) = oneshot::channel();
        let path = settings.logs.as_deref().map(|logs| log_of(logs, name.index));
        let log = Log::open(path.as_deref(), settings.redactor.clone());
        let life = Life {
            name,
            crew,
            folder: folder.clone(),
            log: log.clone(),
            max_concurrent: settings.max_concurrent,
            startup: settings.startup,
            stalled: settings.stalled,
            grace: settings.grace,
            events,
        };
        let task = AbortOnDropHandle::new(tokio::spawn(life.live(orders.clone(), ordered, ended)));
        Self { orders, end: Some(end), log, task }
    }

    /// Hands it a message.
    pub(super) fn send(&self, frames: Frames) {
        // It is going, and says so.
        let _ = self.orders.send(frames);
    }

    /// Asks it to end, and waits until it has.
    pub(super) async fn end(mut self) {
        drop(self.end.take());
        let _ = (&mut self.task).await;
    }
}

struct Life {
    name: Name,
    crew: Arc<dyn Crew>,
    folder: Arc<PrivateFolder>,
    log: Log,
    max_concurrent: Option<usize>,
    startup: Duration,
    stalled: Duration,
    grace: Duration,
    events: mpsc::Sender<(Name, Event)>,
}

/// Why a worker does not live on.
#[derive(Debug)]
enum End {
    /// Its process has ended.
    Exited(Option<ExitStatus>),
    /// It must be ended, and why.
    Bad(String),
    /// We want it to.
    Asked,
}

impl Life {
    async fn live(
        self,
        orders: mpsc::UnboundedSender<Frames>,
        ordered: mpsc::UnboundedReceiver<Frames>,
        mut ended: oneshot::Receiver<()>,
    ) {
        let (seat, _folder) = match self.seat() {
            Ok(seat) => seat,
            Err(error) => return self.lost(format!("has no folder for its socket: {error}")).await,
        };
        let started = Instant::now();
        let starting = tokio::select! {
            starting = time::timeout(self.startup, self.crew.start(&seat)) => starting,
            _ = &mut ended => return,
        };
        let worker = match starting {
            Ok(Ok(worker)) => worker,
            Ok(Err(error)) => return self.lost(format!("could not be started: {error}")).await,
            Err(_) => return self.lost(format!("could not be started within {:?}", self.startup)).await,
        };
        let Started { mut child, address, keep } = worker;
        self.log.note(&format!("process {} begins", child.pid()));
        let mut streams = JoinSet::new();
        for stream in [child.stdout.take(), child.stderr.take()].into_iter().flatten() {
            match pipe::Receiver::from_owned_fd(stream) {
                Ok(stream) => _ = streams.spawn(self.log.clone().take(stream)),
                Err(error) => tracing::warn!(%error, "a stream of a worker cannot be read"),
            }
        }
        self.tell(Event::Started(child.pid())).await;
        let end = self.work(&child, address.unwrap_or(seat.address), started, orders, ordered, ended).await;
        let how = self.leave(child, end).await;
        // What it left behind may hold the streams open.
        let _ = time::timeout(LAST, async { while streams.join_next().await.is_some() {} }).await;
        drop(keep);
        self.log.note(&how);
        self.lost(how).await;
    }

    fn seat(&self) -> std::io::Result<(Seat, PrivateFolder)> {
        let folder = self.folder.within(&format!("{}-", self.name.index))?;
        let path: PathBuf = folder.path().to_owned();
        let address = Address::Ipc(path.join("s"));
        let seat = Seat { index: self.name.index, address, folder: path, max_concurrent: self.max_concurrent };
        Ok((seat, folder))
    }

    /// Serves until something ends it.
    async fn work(
        &self,
        child: &Child,
        address: Address,
        started: Instant,
        orders: mpsc::UnboundedSender<Frames>,
        mut ordered: mpsc::UnboundedReceiver<Frames>,
        ended: oneshot::Receiver<()>,
    ) -> End {
        let (dealer, inbox) =
            links::connect(address, zmtp::Settings { follow_links: false, ..zmtp::Settings::default() });
        let mut reading = std::pin::pin!(self.read(inbox, started, orders));
        let writing = async {
            while let Some(frames) = ordered.recv().await {
                match dealer.send(frames).await {
                    Ok(()) => {}
                    // No later message gets through either.
                    Err(Unsent::Closed) => break,
                    // It is told as lost, or is not up yet and sent nothing but a question.
                    Err(Unsent::Lost(_) | Unsent::Down { .. }) => {}
                    Err(error) => return End::Bad(format!("could not be given its run: {error}")),
                }
            }
            std::future::pending().await
        };
        let end = tokio::select! {
            // Dropped as a request.
            _ = ended => return End::Asked,
            end = &mut reading => end,
            end = writing => end,
            status = child.wait() => End::Exited(status.ok()),
        };
        if matches!(end, End::Exited(_)) {
            // What it said before counts.
            let _ = time::timeout(LAST, reading).await;
        }
        end
    }

    /// Takes its messages, and asks for its health while it has none.
    async fn read(&self, mut inbox: Inbox, started: Instant, orders: mpsc::UnboundedSender<Frames>) -> End {
        let under_way = Arc::new(Semaphore::new(UNDER_WAY));
        let (mut heard, mut asked, mut questions) = (Instant::now(), None, 0_u64);
        let (mut is_up, mut is_ready, mut again) = (false, false, None);
        let mut unhealthy = None;
        let patience = self.stalled.min(ASKED);
        loop {
            let wake = match (is_ready, asked) {
                (true, None) => heard + patience,
                (true, Some(since)) => since + self.stalled,
                (false, _) => again.unwrap_or(started + self.startup).min(started + self.startup),
            };
            let arrival = tokio::select! {
                biased;
                arrival = inbox.recv() => arrival,
                () = time::sleep_until(wake) => {
                    if !is_ready && Instant::now() >= started + self.startup {
                        let why = if is_up { "did not get ready" } else { "did not open its socket" };
                        let said = unhealthy.map(|said| format!("; it says: {said}")).unwrap_or_default();
                        return End::Bad(format!("{why} within {:?}{said}", self.startup));
                    }
                    if is_ready && asked.is_some() {
                        return End::Bad(format!("stalled: it left a question for its health unanswered for {:?}", self.stalled));
                    }
                    again = None;
                    asked = Some(Instant::now());
                    questions += 1;
                    let _ = orders.send(question(questions));
                    continue;
                }
            };
            heard = Instant::now();
            match arrival {
                None => return End::Bad("has no link any more".to_owned()),
                Some(Arrival::Up) => {
                    is_up = true;
                    again = Some(heard);
                }
                Some(Arrival::Lost(error)) => return End::Bad(lost_link(&error)),
                Some(Arrival::Message(frames)) => {
                    asked = None;
                    if !frames.first().is_some_and(|id| id.starts_with(HEALTH_ID)) {
                        let bytes: usize = frames.iter().map(Bytes::len).sum();
                        let permits = u32::try_from(bytes.clamp(1, UNDER_WAY)).unwrap_or(u32::MAX);
                        // While this waits, the worker cannot be heard, which is none of its faults.
                        let Ok(permit) = under_way.clone().acquire_many_owned(permits).await else { continue };
                        self.tell(Event::Said(frames, permit)).await;
                        heard = Instant::now();
                        continue;
                    }
                    match frames.get(2).and_then(|reply| rmp_serde::from_slice::<Health>(reply).ok()) {
                        Some(Health { success: true, .. }) => {
                            if !std::mem::replace(&mut is_ready, true) {
                                self.tell(Event::Ready).await;
                            }
                        }
                        Some(Health { error, .. }) => {
                            unhealthy = error;
                            again = Some(heard + AGAIN);
                        }
                        None => return End::Bad("answered a question for its health with nonsense".to_owned()),
                    }
                }
            }
        }
    }

    /// Sees that it is gone; how it went.
    async fn leave(&self, child: Child, end: End) -> String {
        match end {
            End::Exited(Some(status)) => described(status),
            End::Exited(None) => "ended".to_owned(),
            End::Asked => {
                let status = child.end(self.grace).await.map_or_else(|error| error.to_string(), described);
                format!("{status}, as it was asked to")
            }
            End::Bad(why) => {
                // One that crashes closes its socket before it can be waited for.
                if let Ok(Ok(status)) = time::timeout(LAST, child.wait()).await {
                    return described(status);
                }
                child.signal(Signal::SIGKILL);
                let _ = time::timeout(self.grace, child.wait()).await;
                why
            }
        }
    }

    async fn lost(&self, how: String) {
        self.tell(Event::Lost(Loss { how, lines: self.log.last() })).await;
    }

    async fn tell(&self, event: Event) {
        // Nobody listens when the pool is being dropped.
        let _ = self.events.send((self.name, event)).await;
    }
}

/// A reply to a question for health.
#[derive(Deserialize)]
struct Health {
    #[serde(default)]
    success: bool,
    #[serde(default)]
    error: Option<String>,
}

fn question(number: u64) -> Frames {
    let mut id = HEALTH_ID.to_vec();
    id.extend(number.to_string().bytes());
    vec![id.into(), Bytes::from_static(message::HEALTH), message::health()]
}

fn lost_link(error: &LinkError) -> String {
    match error {
        LinkError::Closed => "closed its connection".to_owned(),
        LinkError::Silent(_) => format!("stopped answering: {error}"),
        _ => format!("broke its connection: {error}"),
    }
}

fn described(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.code(), status.signal().map(Signal::try_from)) {
        (Some(code), _) => format!("ended with exit status {code}"),
        (_, Some(Ok(Signal::SIGKILL))) => "was killed by SIGKILL, as the system does when memory runs out".to_owned(),
        (_, Some(Ok(signal))) => format!("was killed by {signal}"),
        _ => format!("ended: {status}"),
    }
}
