//! One connection: both directions and the heartbeat, in one loop that owns all of it.
//!
//! *Life.* Every `heartbeat` the peer is sent a PING; anything it sends is a sign of life. It is lost when as many heartbeats
//! as make up `silence` passed without one. Heartbeats are counted, not clocks compared: when this process itself was stopped
//! or starved, one long gap counts once, and what came meanwhile is read before the next. While a PING waits behind a large
//! message, progress of that message is a sign of life too. The TTL of a peer's PING is not needed: we ask for ourselves.
//!
//! *A slow consumer.* When the inbox is full, nothing is read, so the kernel holds the peer back. Its PINGs cannot be seen then;
//! instead it is sent a PONG ten times a second, unasked: to every ZMTP peer any traffic is a sign of life. Its own silence is
//! not counted as long as nobody listens.
//!
//! *Bulk.* Commands go between messages, ahead of everything that is still queued.

use std::{io, time::Duration};

use bytes::{Buf as _, Bytes};
use futures::future::BoxFuture;
use tokio::{
    io::AsyncWriteExt as _,
    time::{Instant, MissedTickBehavior, interval, interval_at, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    Frames, LinkError, Settings,
    codec::{Decoder, Encoder, Unit},
    command::{Command, ping, pong},
    handshake::{Peer, Role, shake},
    queue::{Receiver, Refused, Sender, cost},
    socket::Stream,
};

/// Bytes that are taken out of the queue ahead of their writing.
const BATCH: usize = 64 << 10;
/// How often a peer that we do not read is told that we live.
const PULSE: Duration = Duration::from_millis(100);
/// Answers that wait to be written at most; who does not read them needs no more.
const WAITING_COMMANDS: usize = 64;
/// How much longer than we a peer should wait before it gives us up: it may be told to, and we may be the slower one.
const PATIENCE: u32 = 5;

/// A connection whose handshake is done.
pub(super) struct Link {
    stream: Stream,
    decoder: Decoder,
    pub(super) peer: Peer,
}

impl Link {
    /// Shakes hands, within [`Settings::connect`].
    pub(super) async fn open(mut stream: Stream, role: Role, settings: &Settings) -> Result<Self, LinkError> {
        let mut decoder = Decoder::new();
        let shaken = shake(&mut stream.reader, &mut stream.writer, &mut decoder, role);
        let peer = timeout(settings.connect, shaken).await.map_err(|_| LinkError::Slow(settings.connect))??;
        decoder.allow(settings.max_message);
        Ok(Self { stream, decoder, peer })
    }

    /// Runs until the link is lost, or was told to close and has written everything.
    pub(super) async fn run<T: Send + 'static>(
        self,
        settings: &Settings,
        mut outgoing: Receiver<Frames>,
        inbox: &Sender<T>,
        wrap: impl Fn(Frames) -> T,
        closing: &CancellationToken,
    ) -> LinkError {
        let Self { stream: Stream { mut reader, mut writer }, mut decoder, peer } = self;
        let mut encoder = Encoder::default();
        let mut life = Life::new(settings);
        let mut beat = interval_at(Instant::now() + settings.heartbeat, settings.heartbeat);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut pulse = interval(PULSE);
        pulse.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The message that waits for room in the inbox; it keeps its place among those of other peers.
        let mut stalled: Option<BoxFuture<'static, Result<(), Refused<T>>>> = None;
        // Why nothing can be written any more. What the peer sent before it went is still read.
        let mut deaf: Option<io::Error> = None;
        let mut told_to_close = std::pin::pin!(closing.cancelled());
        let mut is_closing = false;
        let mut is_drained = false;
        loop {
            while stalled.is_none() {
                match decoder.next() {
                    Ok(Some(Unit::Message(frames))) => {
                        let size = cost(&frames);
                        match inbox.try_send(wrap(frames), size) {
                            Ok(()) => {}
                            Err(Refused::Full(item)) => stalled = Some(Box::pin(inbox.clone().send(item, size))),
                            Err(Refused::Closed) => return LinkError::Ended,
                        }
                    }
                    Ok(Some(Unit::Command(body))) => match Command::read(body) {
                        Ok(Command::Ping(context)) => answer(&mut encoder, &context),
                        Ok(Command::Error(reason)) => return LinkError::Refused(reason),
                        Ok(_) => {}
                        Err(fault) => return fault,
                    },
                    Ok(None) => break,
                    Err(fault) => return fault,
                }
            }
            if is_drained && !encoder.has_remaining() {
                break;
            }
            tokio::select! {
                room = async { match &mut stalled { Some(waiting) => waiting.await, None => std::future::pending().await } } => {
                    stalled = None;
                    if room.is_err() {
                        return LinkError::Ended;
                    }
                }
                read = decoder.fill(&mut reader), if stalled.is_none() => match read {
                    Ok(0) => return LinkError::Closed,
                    Ok(_) => life.heard = true,
                    Err(fault) => return LinkError::Io(fault),
                },
                wrote = writer.write_buf(&mut encoder), if deaf.is_none() && encoder.has_remaining() => match wrote {
                    Ok(0) => deaf = Some(io::ErrorKind::WriteZero.into()),
                    Ok(_) => life.wrote = true,
                    Err(fault) => deaf = Some(fault),
                },
                next = outgoing.recv(), if deaf.is_none() && !is_drained && encoder.remaining() < BATCH => match next {
                    Some(held) => {
                        encoder.message(held.item, held.room);
                        while encoder.remaining() < BATCH && let Some(held) = outgoing.try_recv() {
                            encoder.message(held.item, held.room);
                        }
                    }
                    None => is_drained = true,
                },
                _ = beat.tick() => {
                    if stalled.is_some() {
                        life.pause();
                    } else if (peer.has_heartbeat || deaf.is_some()) && !life.beat(encoder.commands() > 0) {
                        return deaf.map_or(LinkError::Silent(settings.silence), LinkError::Io);
                    }
                    if peer.has_heartbeat && stalled.is_none() && encoder.commands() == 0 {
                        encoder.command(&ping(settings.silence * PATIENCE));
                    }
                }
                _ = pulse.tick(), if stalled.is_some() && peer.has_heartbeat => {
                    if encoder.commands() == 0 {
                        encoder.command(&pong(&[]));
                    }
                }
                () = &mut told_to_close, if !is_closing => {
                    is_closing = true;
                    outgoing.close();
                }
            }
            if deaf.is_some() {
                outgoing.close();
            }
        }
        // The peer closes its side when it has read everything; closing ours before, with something unread, would tear down
        // what is still under way.
        let _ = timeout(settings.silence, async {
            let _ = writer.shutdown().await;
            tokio::io::copy(&mut reader, &mut tokio::io::sink()).await
        })
        .await;
        LinkError::Ended
    }
}

fn answer(encoder: &mut Encoder, context: &Bytes) {
    if encoder.commands() < WAITING_COMMANDS {
        encoder.command(&pong(context));
    }
}

/// The signs of life of a peer.
struct Life {
    heard: bool,
    wrote: bool,
    quiet: u32,
    limit: u32,
}

impl Life {
    fn new(settings: &Settings) -> Self {
        let beats = settings.silence.as_secs_f64() / settings.heartbeat.as_secs_f64().max(1e-3);
        Self { heard: false, wrote: false, quiet: 0, limit: (beats.ceil() as u32).max(1) }
    }

    /// Counts a heartbeat and says whether the peer lives.
    fn beat(&mut self, is_command_waiting: bool) -> bool {
        let is_alive = self.heard || (self.wrote && is_command_waiting);
        self.quiet = if is_alive { 0 } else { self.quiet + 1 };
        (self.heard, self.wrote) = (false, false);
        self.quiet < self.limit
    }

    /// Nobody listens: nothing is known.
    fn pause(&mut self) {
        (self.heard, self.wrote, self.quiet) = (false, false, 0);
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, DuplexStream, ReadHalf, WriteHalf, duplex, split},
        time::{advance, sleep},
    };
    use tokio_util::task::AbortOnDropHandle;

    use super::*;
    use crate::zmtp::{
        codec::command,
        command::{error, ready},
        queue::{Held, channel},
    };

    /// A peer that the test plays, and the link to it. The pipe between them holds 4 KiB each way.
    struct Scene {
        hear: ReadHalf<DuplexStream>,
        say: WriteHalf<DuplexStream>,
        decoder: Decoder,
        outgoing: Sender<Frames>,
        inbox: Receiver<Frames>,
        closing: CancellationToken,
        link: AbortOnDropHandle<LinkError>,
        began: Instant,
    }

    fn settings() -> Settings {
        Settings { max_message: 4 << 20, queue_bytes: 1 << 20, ..Settings::default() }
    }

    impl Scene {
        async fn new(settings: Settings) -> Self {
            Self::of(settings, 1).await
        }

        async fn of(settings: Settings, minor: u8) -> Self {
            let (ours, theirs) = duplex(4 << 10);
            let (reader, writer) = split(ours);
            let (mut hear, mut say) = split(theirs);
            let mut greeting = [0; 64];
            greeting[0] = 0xff;
            greeting[9..12].copy_from_slice(&[0x7f, 3, minor]);
            greeting[12..16].copy_from_slice(b"NULL");
            say.write_all(&greeting).await.unwrap();
            say.write_all(&command(&ready("ROUTER"))).await.unwrap();
            let link = Link::open(Stream::new(reader, writer), Role::Dealer, &settings).await.unwrap();
            hear.read_exact(&mut greeting).await.unwrap();
            let (outgoing, to_send) = channel(settings.queue_bytes);
            let (arrivals, inbox) = channel(settings.queue_bytes);
            let closing = CancellationToken::new();
            let is_closing = closing.clone();
            let began = Instant::now();
            let link = AbortOnDropHandle::new(tokio::spawn(async move {
                link.run(&settings, to_send, &arrivals, |frames| frames, &is_closing).await
            }));
            let mut decoder = Decoder::new();
            decoder.allow(usize::MAX);
            let mut scene = Self { hear, say, decoder, outgoing, inbox, closing, link, began };
            assert!(matches!(scene.hear().await, Heard::Other));
            scene
        }

        /// What the link sends next.
        async fn hear(&mut self) -> Heard {
            loop {
                match self.decoder.next().unwrap() {
                    Some(Unit::Message(frames)) => return Heard::Message(frames),
                    Some(Unit::Command(body)) if body.starts_with(b"\x04PONG") => return Heard::Pong(body.slice(5..)),
                    Some(Unit::Command(body)) if body.starts_with(b"\x04PING") => return Heard::Ping(body),
                    Some(Unit::Command(_)) => return Heard::Other,
                    None => {
                        // An hour of a paused clock is nothing.
                        let read = timeout(3600 * SECOND, self.decoder.fill(&mut self.hear)).await;
                        if read.expect("it says something").unwrap() == 0 {
                            return Heard::End;
                        }
                    }
                }
            }
        }

        async fn say(&mut self, bytes: &[u8]) {
            self.say.write_all(bytes).await.unwrap();
        }

        async fn say_message(&mut self, size: usize) {
            self.say(&message(size)).await;
        }

        async fn send(&self, size: usize) {
            let frames = vec![Bytes::from(vec![1; size])];
            self.outgoing.clone().send(frames, size).await.unwrap();
        }

        /// How the link ended, and after how long.
        async fn end(self) -> (LinkError, Duration) {
            (self.link.await.unwrap(), self.began.elapsed())
        }
    }

    #[derive(Debug, PartialEq, Eq)]
    enum Heard {
        Message(Frames),
        Ping(Bytes),
        Pong(Bytes),
        Other,
        End,
    }

    fn message(size: usize) -> Vec<u8> {
        let mut encoder = Encoder::default();
        encoder.message(vec![vec![1; size].into()], None);
        encoder.copy_to_bytes(encoder.remaining()).into()
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_answers_lives_and_one_that_does_not_is_lost_in_time() {
        let mut scene = Scene::new(settings()).await;
        for beat in 1..=20_u32 {
            // Asked every half second, told to wait five times as long as we do.
            assert_eq!(scene.hear().await, Heard::Ping(Bytes::from_static(b"\x04PING\x00\x64")));
            assert_eq!(scene.began.elapsed(), beat * SECOND / 2);
            scene.say(&command(&pong(&[]))).await;
        }
        let (end, after) = scene.end().await;
        assert!(matches!(end, LinkError::Silent(silence) if silence == 2 * SECOND), "{end}");
        assert_eq!(after, 12 * SECOND + SECOND / 2, "the last sign came after the beat at 10 s");
    }

    #[tokio::test(start_paused = true)]
    async fn an_older_peer_is_not_asked_and_may_be_silent() {
        let mut scene = Scene::of(settings(), 0).await;
        sleep(600 * SECOND).await;
        assert!(!scene.link.is_finished());
        scene.send(5).await;
        assert!(matches!(scene.hear().await, Heard::Message(_)), "and no PING before it");
        // But it may ask.
        scene.say(&command(b"\x04PING\x00\x00context")).await;
        assert_eq!(scene.hear().await, Heard::Pong(Bytes::from_static(b"context")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_message_under_way_is_a_sign_of_life_in_both_directions() {
        // It comes: a few bytes every 1.5 seconds, and no answer to a PING.
        let mut scene = Scene::new(settings()).await;
        for piece in message(200).chunks(10) {
            scene.say(piece).await;
            sleep(3 * SECOND / 2).await;
        }
        assert_eq!(scene.inbox.recv().await.unwrap().item[0].len(), 200);
        scene.say(&command(&pong(&[]))).await;
        // It goes: the peer takes a little every 1.5 seconds and cannot see a PING behind it.
        scene.send(1 << 20).await;
        let mut taken = vec![0; 16 << 10];
        for _ in 0..60 {
            scene.hear.read_exact(&mut taken).await.unwrap();
            sleep(3 * SECOND / 2).await;
        }
        assert!(!scene.link.is_finished());
        // It takes no more.
        let stopped = scene.began.elapsed();
        let (end, after) = scene.end().await;
        assert!(matches!(end, LinkError::Silent(_)), "{end}");
        assert!(after - stopped <= 5 * SECOND / 2, "{:?}", after - stopped);
    }

    #[tokio::test(start_paused = true)]
    async fn small_messages_that_a_stopped_peer_cannot_read_are_no_sign_of_life() {
        let scene = Scene::new(settings()).await;
        let outgoing = scene.outgoing.clone();
        let _sending = AbortOnDropHandle::new(tokio::spawn(async move {
            // The pipe takes them for longer than the peer may be silent.
            while outgoing.clone().send(vec![Bytes::from_static(b"x")], 1).await.is_ok() {
                sleep(SECOND / 10).await;
            }
        }));
        let (end, after) = scene.end().await;
        assert!(matches!(end, LinkError::Silent(_)), "{end}");
        assert_eq!(after, 2 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn a_gap_of_our_own_is_not_held_against_the_peer() {
        let mut scene = Scene::new(settings()).await;
        for _ in 0..50 {
            // Its answer lies there, but this process stood still: the gap and the answer are seen at the same time.
            scene.say(&command(&pong(&[]))).await;
            advance(60 * SECOND).await;
            while !matches!(scene.hear().await, Heard::Ping(_)) {}
        }
        assert!(!scene.link.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_passes_by_what_is_queued() {
        // Large messages and small ones.
        for (size, count, at_most) in [(100 << 10, 10, 200 << 10), (1 << 10, 1_000, 80 << 10)] {
            let mut scene = Scene::new(settings()).await;
            for _ in 0..count {
                scene.send(size).await;
            }
            scene.say(&command(b"\x04PING\x00\x00ctx")).await;
            let mut before = 0;
            loop {
                match scene.hear().await {
                    Heard::Message(frames) => before += frames[0].len(),
                    Heard::Pong(context) => break assert_eq!(&*context, b"ctx"),
                    Heard::Ping(_) => {}
                    other => panic!("{other:?}"),
                }
            }
            assert!(before <= at_most, "{before} bytes of {} came first", size * count);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_asks_and_does_not_read_costs_little() {
        let mut scene = Scene::new(settings()).await;
        for _ in 0..10_000 {
            scene.say(&command(b"\x04PING\x00\x001234567890123456")).await;
        }
        scene.closing.cancel();
        let mut answers = 0;
        while scene.hear().await != Heard::End {
            answers += 1;
        }
        // What the pipe holds in each direction, and what may wait.
        assert!(answers <= 2 * 4_096 / 23 + WAITING_COMMANDS + 1, "{answers}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_consumer_holds_the_peer_back_and_still_gives_signs_of_life() {
        let mut scene = Scene::new(settings()).await;
        let mut say = std::mem::replace(&mut scene.say, split(duplex(1).0).1);
        let bulk = message(200 << 10);
        let saying = AbortOnDropHandle::new(tokio::spawn(async move {
            for _ in 0..20 {
                say.write_all(&bulk).await.unwrap();
            }
            say
        }));
        // Far longer than anybody's patience, and the peer says nothing that could be read.
        let mut pulses = 0;
        while scene.began.elapsed() < 30 * SECOND {
            match scene.hear().await {
                Heard::Pong(_) => pulses += 1,
                Heard::Ping(_) => {}
                other => panic!("{other:?}"),
            }
        }
        assert!((290..=301).contains(&pulses), "{pulses}");
        assert!(!saying.is_finished(), "no more was read than there is room for");
        let mut held = 0;
        for _ in 0..20 {
            let Held { item, .. } = scene.inbox.recv().await.unwrap();
            held += item[0].len();
        }
        assert_eq!(held, 20 * (200 << 10));
        // Now that it is listened to, it is asked again, and its silence counts.
        let _say = saying.await.unwrap();
        let listened = scene.began.elapsed();
        let (end, after) = scene.end().await;
        assert!(matches!(end, LinkError::Silent(_)), "{end}");
        assert!(after - listened >= 2 * SECOND && after - listened <= 3 * SECOND, "{:?}", after - listened);
    }

    #[tokio::test(start_paused = true)]
    async fn closing_writes_what_was_handed_over_and_waits_until_it_is_read() {
        let mut scene = Scene::new(settings()).await;
        for _ in 0..10 {
            scene.send(50 << 10).await;
        }
        scene.closing.cancel();
        let mut messages = 0;
        loop {
            match scene.hear().await {
                Heard::Message(_) => messages += 1,
                Heard::End => break,
                _ => {}
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(messages, 10);
        assert!(scene.outgoing.clone().send(vec![], 1).await.is_err(), "nothing more is taken");
        assert!(!scene.link.is_finished(), "the peer's end is still open");
        drop((scene.hear, scene.say));
        assert!(matches!(scene.link.await.unwrap(), LinkError::Ended));
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_peer_said_before_it_went_is_delivered() {
        let mut scene = Scene::new(settings()).await;
        scene.say_message(10).await;
        scene.say_message(20).await;
        scene.send(2 << 20).await;
        drop((scene.hear, scene.say));
        for size in [10, 20] {
            assert_eq!(scene.inbox.recv().await.unwrap().item[0].len(), size);
        }
        assert!(matches!(scene.link.await.unwrap(), LinkError::Closed | LinkError::Io(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_breaks_the_rules_is_lost_with_the_reason() {
        let huge = [&[2][..], &(5_u64 << 20).to_be_bytes()].concat();
        for (said, why) in [
            (command(&error("go away")), "refused the connection: go away"),
            (command(b"\x04PING"), "a PING of the wrong length"),
            (vec![0x80], "flags"),
            (huge, "at least 5242880 bytes; at most 4194304"),
            ([1, 0].repeat(1_025), "more than 1024 frames"),
        ] {
            let mut scene = Scene::new(settings()).await;
            scene.say_message(1).await;
            scene.say(&said).await;
            assert!(scene.inbox.recv().await.is_some(), "what came before it counts");
            let (end, _) = scene.end().await;
            assert!(end.to_string().contains(why), "{end}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_does_not_greet_is_given_up() {
        let (ours, mut theirs) = duplex(1 << 10);
        let (reader, writer) = split(ours);
        theirs.write_all(&[0xff, 0, 0]).await.unwrap();
        let began = Instant::now();
        let opened = Link::open(Stream::new(reader, writer), Role::Router, &settings()).await;
        assert!(matches!(opened.err(), Some(LinkError::Slow(_))));
        assert_eq!(began.elapsed(), settings().connect);
    }
}
