//! What bounds a socket, in time and in memory.

use std::time::Duration;

use super::{Frames, MAX_FRAMES, Unsent};

/// The bounds of a socket.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How often a link is asked for a sign of life: 500 ms by default.
    pub heartbeat: Duration,
    /// How long a link may give none before it is lost. Peers that know no heartbeat (before ZMTP 3.1) may be silent.
    /// By default 2 s.
    pub silence: Duration,
    /// How long one connection may take until it is up, and how long [`Dealer::send`](super::Dealer::send) waits for it.
    /// By default 5 s.
    pub connect: Duration,
    /// Bytes of one message at most, both ways. A peer that sends more is cut off. By default 1 GiB.
    pub max_message: usize,
    /// Bytes that wait at most, in each direction of each link; a message that is larger than that goes alone. By
    /// default 64 MiB.
    pub queue_bytes: usize,
    /// Whether the path of an `ipc://` address may be a link when connecting. Not where whoever shall listen there is not
    /// trusted: the link would lead us to a socket that only we reach.
    pub follow_links: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(500),
            silence: Duration::from_secs(2),
            connect: Duration::from_secs(5),
            max_message: 1 << 30,
            queue_bytes: 64 << 20,
            follow_links: true,
        }
    }
}

impl Settings {
    /// Whether a message may be sent. What a peer with the same bounds would cut us off for is not.
    pub(super) fn allow(&self, frames: &Frames) -> Result<(), Unsent> {
        let size = frames.iter().map(bytes::Bytes::len).sum();
        match frames.len() {
            1..=MAX_FRAMES if size <= self.max_message => Ok(()),
            1..=MAX_FRAMES => Err(Unsent::TooBig { size, limit: self.max_message }),
            count => Err(Unsent::Frames(count)),
        }
    }
}
