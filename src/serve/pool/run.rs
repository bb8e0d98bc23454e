//! The one task that owns a pool: it asks the desk, and does what the desk says.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::{OwnedSemaphorePermit, mpsc, oneshot, watch},
    task::JoinSet,
    time,
};

use super::{
    Crew, PoolSettings, PoolStatus,
    desk::{Act, Desk, Loss, Name, Rules},
    front::{self, Front},
    worker::{Event, Post},
};
use crate::{
    runtime::PrivateFolder,
    telemetry::names::metric,
    zmtp::{Guests, PeerId, Router, Visit},
};

/// Events that wait: a worker that sends faster than this task reads waits too.
const EVENTS: usize = 1024;
/// How long clients may take to read their last answers.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// Nothing happens, as far as this task knows.
const LONG: Duration = Duration::from_secs(3600);

/// A pool at work.
pub(super) struct Run {
    desk: Desk<PeerId>,
    front: Front,
    posts: HashMap<Name, Post>,
    /// Workers that were asked to end.
    ending: JoinSet<()>,
    events: mpsc::Receiver<(Name, Event)>,
    telling: mpsc::Sender<(Name, Event)>,
    settings: PoolSettings,
    crew: Arc<dyn Crew>,
    folder: Arc<PrivateFolder>,
    status: watch::Sender<PoolStatus>,
    counted: (u64, u64),
}

/// The order to end, with the time that runs have to finish.
pub(super) type Close = oneshot::Receiver<Duration>;

impl Run {
    pub(super) fn new(
        settings: PoolSettings,
        crew: Arc<dyn Crew>,
        router: Router,
        folder: PrivateFolder,
        status: watch::Sender<PoolStatus>,
    ) -> Self {
        let rules = Rules { kind: settings.kind, on_lost: settings.on_lost, idle: settings.idle };
        let (telling, events) = mpsc::channel(EVENTS);
        Self {
            desk: Desk::new(rules, Instant::now()),
            front: Front::new(router),
            posts: HashMap::new(),
            ending: JoinSet::new(),
            events,
            telling,
            settings,
            crew,
            folder: Arc::new(folder),
            status,
            counted: (0, 0),
        }
    }

    /// Works until it is told to end, or nobody is left to tell it.
    pub(super) async fn work(mut self, mut guests: Guests, mut close: Close) {
        self.act(None);
        let mut deadline = None;
        loop {
            if deadline.is_some() && self.desk.is_empty() {
                break;
            }
            let wake = self.desk.next_tick().unwrap_or_else(|| Instant::now() + LONG);
            let wake = deadline.map_or(wake, |deadline: Instant| deadline.min(wake));
            tokio::select! {
                Some((name, event)) = self.events.recv() => self.happened(name, event),
                visit = guests.recv() => match visit {
                    Some(visit) => self.visited(visit),
                    None => break,
                },
                drain = &mut close, if deadline.is_none() => {
                    self.desk.close();
                    deadline = Some(Instant::now() + drain.unwrap_or_default());
                }
                () = time::sleep_until(wake.into()) => {
                    self.desk.at(Instant::now());
                    if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                        break;
                    }
                    self.desk.tick();
                    self.act(None);
                }
                Some(_) = self.ending.join_next() => {}
            }
        }
        self.end().await;
    }

    async fn end(mut self) {
        self.desk.end();
        self.act(None);
        let Self { front, mut ending, mut events, status, .. } = self;
        let workers = async {
            loop {
                tokio::select! {
                    ended = ending.join_next() => if ended.is_none() { break },
                    // Nobody cares any more, but they must be heard to go on.
                    Some(_) = events.recv() => {}
                }
            }
        };
        let clients = async { time::timeout(LAST_ANSWERS, front.close()).await };
        let _ = tokio::join!(workers, clients);
        drop(status);
    }

    fn visited(&mut self, visit: Visit) {
        self.desk.at(Instant::now());
        match visit {
            Visit::Came(peer) => return self.front.came(peer),
            Visit::Message(peer, frames) => {
                let Some((id, request)) = front::read(frames) else { return };
                let leave = self.front.leave(peer);
                if leave.is_some() {
                    self.desk.asked(peer, id, request);
                } else {
                    tracing::warn!(%peer, "a client of the pool asks and does not read; it is given up");
                    self.front.left(peer);
                    self.desk.left(peer);
                }
                return self.act(leave);
            }
            Visit::Left(peer, why) => {
                tracing::debug!(%peer, %why, "a client of the pool has gone");
                self.front.left(peer);
                self.desk.left(peer);
            }
        }
        self.act(None);
    }

    fn happened(&mut self, name: Name, event: Event) {
        self.desk.at(Instant::now());
        match event {
            Event::Started(pid) => self.desk.started(name, pid),
            Event::Ready => {
                tracing::info!(worker = name.index, "an env server worker is ready");
                self.desk.ready(name);
            }
            Event::Said(frames, leave) => {
                match self.desk.said(name, frames) {
                    // The common case by far, which changes nothing that anybody watches.
                    Ok(()) => return self.act(Some(leave)),
                    Err(nonsense) => {
                        let lines = self.posts.remove(&name).map(|post| post.log.last()).unwrap_or_default();
                        self.desk.lost(name, &Loss { how: format!("talked nonsense: {nonsense}"), lines });
                    }
                }
            }
            Event::Lost(loss) => {
                self.posts.remove(&name);
                self.desk.lost(name, &loss);
            }
        }
        self.act(None);
    }

    /// Does what is to be done. What a worker said, or a client asked, is under way until its answer is written.
    fn act(&mut self, mut leave: Option<OwnedSemaphorePermit>) {
        while let Some(act) = self.desk.act() {
            match act {
                Act::Answer(peer, frames) => self.front.answer(peer, frames, leave.take()),
                Act::Send(name, frames) => {
                    if let Some(post) = self.posts.get(&name) {
                        post.send(frames);
                    }
                }
                Act::Start(name) => {
                    let (crew, telling) = (self.crew.clone(), self.telling.clone());
                    self.posts.insert(name, Post::new(name, &self.settings, crew, &self.folder, telling));
                }
                Act::End(name) => {
                    if let Some(post) = self.posts.remove(&name) {
                        self.ending.spawn(post.end());
                    }
                }
            }
        }
        self.show();
    }

    /// Shows what has changed to who watches.
    fn show(&mut self) {
        if !self.desk.has_changed() {
            return;
        }
        let now = self.desk.status();
        let (lost, redone) = std::mem::replace(&mut self.counted, (now.lost, now.redone));
        metrics::counter!(metric::WORKERS_LOST).increment(now.lost - lost);
        metrics::counter!(metric::RUNS_REDONE).increment(now.redone - redone);
        #[allow(clippy::cast_precision_loss, reason = "small numbers")]
        metrics::gauge!(metric::WORKERS_READY).set(now.ready() as f64);
        self.status.send_replace(now);
    }
}
