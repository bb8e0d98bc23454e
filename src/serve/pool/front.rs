//! Where clients come to: requests in, answers out, a slow client holding up no other.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::task::AbortOnDropHandle;

use super::desk::Request;
use crate::{
    serve::message::{self, Refused},
    zmtp::{Frames, PeerId, Router},
};

/// Answers to questions of its own that one client may leave unread. Then it is given up: one that reads has none.
const UNREAD: usize = 16 << 10;

/// What waits to be written to one client, with the leave of the worker that sent it, or of the client that asked.
type Letter = (Frames, Option<OwnedSemaphorePermit>);

/// The writing side.
pub(super) struct Front {
    router: Router,
    clients: HashMap<PeerId, Client>,
}

struct Client {
    // Unbounded: what workers send is bounded by their leave, what was asked here by that of the client, and the rest is
    // little for each run in flight.
    letters: mpsc::UnboundedSender<Letter>,
    writing: AbortOnDropHandle<()>,
    unread: Arc<Semaphore>,
}

impl Front {
    pub(super) fn new(router: Router) -> Self {
        Self { router, clients: HashMap::new() }
    }

    /// A client has come.
    pub(super) fn came(&mut self, peer: PeerId) {
        let (letters, mut waiting) = mpsc::unbounded_channel::<Letter>();
        let router = self.router.clone();
        let writing = AbortOnDropHandle::new(tokio::spawn(async move {
            while let Some((frames, leave)) = waiting.recv().await {
                if let Err(error) = router.send(peer, frames).await {
                    tracing::debug!(%error, "an answer was not sent");
                }
                drop(leave);
            }
        }));
        self.clients.insert(peer, Client { letters, writing, unread: Arc::new(Semaphore::new(UNREAD)) });
    }

    /// The leave of a client to ask one thing more; `None` when it leaves too much unread, or was given up for that.
    pub(super) fn leave(&self, peer: PeerId) -> Option<OwnedSemaphorePermit> {
        let unread = &self.clients.get(&peer)?.unread;
        Arc::clone(unread).try_acquire_owned().ok()
    }

    /// A client has gone.
    pub(super) fn left(&mut self, peer: PeerId) {
        self.clients.remove(&peer);
    }

    /// Writes to a client, if it is still there.
    pub(super) fn answer(&self, peer: PeerId, frames: Frames, leave: Option<OwnedSemaphorePermit>) {
        if let Some(client) = self.clients.get(&peer) {
            let _ = client.letters.send((frames, leave));
        }
    }

    /// Waits until all is written, and closes.
    pub(super) async fn close(self) {
        let Self { router, clients } = self;
        for Client { letters, writing, .. } in clients.into_values() {
            drop(letters);
            let _ = writing.await;
        }
        router.close().await;
    }
}

/// Reads a request, without its payload; `None` when the message is none, which is logged.
pub(super) fn read(frames: Frames) -> Option<(Bytes, Request)> {
    let [id, route, payload] = match <[Bytes; 3]>::try_from(frames) {
        Ok(frames) => frames,
        Err(frames) => {
            tracing::warn!("dropped a request of {} frames, expected 3", frames.len());
            return None;
        }
    };
    if !message::is_named(&id, &route) {
        return None;
    }
    let request = match &*route {
        message::HEALTH => Request::Health,
        message::CANCEL => Request::Cancel { target: target(&payload) },
        message::RUN => Request::Run { payload },
        other => Request::Refused(Refused::unknown_method(other)),
    };
    Some((id, request))
}

/// The run that is to be cancelled; none when the payload does not say.
fn target(payload: &[u8]) -> Option<Bytes> {
    #[derive(Deserialize)]
    struct Cancel {
        request_id: String,
    }
    rmp_serde::from_slice::<Cancel>(payload).ok().map(|cancel| cancel.request_id.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(parts: &[&[u8]]) -> Frames {
        parts.iter().map(|part| Bytes::copy_from_slice(part)).collect()
    }

    #[test]
    fn requests_are_told_apart_by_their_route_alone() {
        let cancel = message::cancel("r1");
        let read = |parts: &[&[u8]]| read(frames(parts)).map(|(_, request)| request);
        assert_eq!(read(&[b"\xff", b"health", b"junk"]), Some(Request::Health));
        assert_eq!(read(&[b"a", b"run", b"junk"]), Some(Request::Run { payload: Bytes::from_static(b"junk") }));
        assert_eq!(
            read(&[b"a", b"cancel", &cancel]),
            Some(Request::Cancel { target: Some(Bytes::from_static(b"r1")) })
        );
        for junk in [&b""[..], b"\xc1", b"\x80", b"\x81\xaarequest_id\x01"] {
            assert_eq!(read(&[b"a", b"cancel", junk]), Some(Request::Cancel { target: None }));
        }
        let refused = Request::Refused(Refused::new("", "unknown method 'frobnicate'"));
        assert_eq!(read(&[b"a", b"frobnicate", b""]), Some(refused));
        assert_eq!((read(&[&[b'a'; 1_025], b"health", b""]), read(&[b"a", &[b'h'; 1_025], b""])), (None, None));
        assert_eq!((read(&[b"a", b"run"]), read(&[b"a", b"run", b"", b""]), read(&[])), (None, None, None));
    }
    #[tokio::test]
    async fn a_client_that_reads_nothing_has_leave_for_so_many_questions() {
        let folder = tempfile::tempdir().unwrap();
        let address = crate::zmtp::Address::Ipc(folder.path().join("front"));
        let bind = || Router::bind(&address, crate::zmtp::Settings::default());
        let (router, mut guests) = bind().await.unwrap();
        let (_dealer, _inbox) = crate::zmtp::Dealer::connect(address.clone(), crate::zmtp::Settings::default());
        let Some(crate::zmtp::Visit::Came(peer)) = guests.recv().await else { panic!("a client comes") };
        let mut front = Front::new(router);
        assert!(front.leave(peer).is_none(), "it is not known yet");
        front.came(peer);
        let mut leaves: Vec<_> = std::iter::from_fn(|| front.leave(peer)).collect();
        assert_eq!(leaves.len(), UNREAD);
        // What is written is read, or on its way.
        front.answer(peer, vec![Bytes::from_static(b"answer")], leaves.pop());
        while front.leave(peer).is_none() {
            tokio::task::yield_now().await;
        }
        drop(leaves);
        front.left(peer);
        assert!(front.leave(peer).is_none());
    }
}
