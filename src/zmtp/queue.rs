//! A channel bounded by bytes: what stands on either side of a link.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, mpsc};

/// What a frame, a message and an event cost beyond their bytes, so that a million empty ones are bounded too.
const OVERHEAD: usize = 64;

/// What a message takes of a queue.
pub(super) fn cost(frames: &[Bytes]) -> usize {
    OVERHEAD + frames.iter().map(|frame| OVERHEAD + frame.len()).sum::<usize>()
}

/// A channel that holds items up to so many bytes; an item that is larger goes alone.
pub(super) fn channel<T>(bytes: usize) -> (Sender<T>, Receiver<T>) {
    let capacity = u32::try_from(bytes).unwrap_or(u32::MAX).max(1);
    let room = Arc::new(Semaphore::new(capacity as usize));
    // Bounded by `room`; only `Sender::push` goes past it.
    let (items, taken) = mpsc::unbounded_channel();
    (Sender { items, room: Arc::clone(&room), capacity }, Receiver { items: taken, room })
}

/// An item and the room it takes until this is dropped.
#[derive(Debug)]
pub(super) struct Held<T> {
    pub(super) item: T,
    pub(super) room: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
pub(super) struct Sender<T> {
    items: mpsc::UnboundedSender<Held<T>>,
    room: Arc<Semaphore>,
    capacity: u32,
}

/// By hand: the derive would ask that items can be cloned.
impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { items: self.items.clone(), room: Arc::clone(&self.room), capacity: self.capacity }
    }
}

/// Why an item was not taken.
#[derive(Debug)]
pub(super) enum Refused<T> {
    /// There is no room just now.
    Full(T),
    /// There is no receiver any more.
    Closed,
}

impl<T> Sender<T> {
    /// Waits for room, first come, first served. Dropping the future before it is ready sends nothing.
    pub(super) async fn send(self, item: T, cost: usize) -> Result<(), Refused<T>> {
        let Ok(room) = Arc::clone(&self.room).acquire_many_owned(self.share(cost)).await else {
            return Err(Refused::Closed);
        };
        self.items.send(Held { item, room: Some(room) }).map_err(|_| Refused::Closed)
    }

    /// Sends if there is room.
    pub(super) fn try_send(&self, item: T, cost: usize) -> Result<(), Refused<T>> {
        match Arc::clone(&self.room).try_acquire_many_owned(self.share(cost)) {
            Ok(room) => self.items.send(Held { item, room: Some(room) }).map_err(|_| Refused::Closed),
            Err(TryAcquireError::NoPermits) => Err(Refused::Full(item)),
            Err(TryAcquireError::Closed) => Err(Refused::Closed),
        }
    }

    /// Sends without room: for what is small and rare, and says why where it is used.
    pub(super) fn push(&self, item: T) {
        // Nobody listens only when the socket is going.
        let _ = self.items.send(Held { item, room: None });
    }

    /// Waits for room for an event, which has no bytes of its own.
    pub(super) async fn event(&self, item: T) {
        let _ = self.clone().send(item, OVERHEAD).await;
    }

    fn share(&self, cost: usize) -> u32 {
        u32::try_from(cost).unwrap_or(u32::MAX).min(self.capacity)
    }
}

/// The receiving end; what waits for room learns when it is gone.
#[derive(Debug)]
pub(super) struct Receiver<T> {
    items: mpsc::UnboundedReceiver<Held<T>>,
    room: Arc<Semaphore>,
}

impl<T> Receiver<T> {
    /// The next item; none when it is closed and empty. Cancel-safe.
    pub(super) async fn recv(&mut self) -> Option<Held<T>> {
        self.items.recv().await
    }

    /// The next item if there is one.
    pub(super) fn try_recv(&mut self) -> Option<Held<T>> {
        self.items.try_recv().ok()
    }

    /// Takes no more; what it holds can still be received.
    pub(super) fn close(&mut self) {
        self.items.close();
        self.room.close();
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(size: usize) -> Vec<Bytes> {
        vec![Bytes::from(vec![7; size])]
    }

    #[tokio::test]
    async fn bytes_bound_a_queue_and_a_larger_item_goes_alone() {
        let (sender, mut receiver) = channel(1_000);
        assert_eq!(cost(&frames(372)), 500);
        sender.try_send(1, 500).unwrap();
        sender.try_send(2, 500).unwrap();
        assert!(matches!(sender.try_send(3, 1), Err(Refused::Full(3))));
        drop(receiver.recv().await);
        assert!(matches!(sender.try_send(3, 5_000), Err(Refused::Full(3))), "not beside another");
        drop(receiver.recv().await);
        sender.try_send(3, 5_000).unwrap();
        assert!(matches!(sender.try_send(4, 1), Err(Refused::Full(4))));
    }

    #[tokio::test]
    async fn room_is_given_in_order_and_a_large_item_is_not_passed_by() {
        let (sender, mut receiver) = channel(1_000);
        sender.try_send("first", 600).unwrap();
        let mut large = Box::pin(sender.clone().send("large", 900));
        assert!(futures::poll!(&mut large).is_pending());
        assert!(matches!(sender.try_send("small", 100), Err(Refused::Full("small"))), "it would pass by");
        let held = receiver.recv().await.unwrap();
        assert!(futures::poll!(&mut large).is_pending(), "the item still takes its room");
        drop(held);
        large.await.unwrap();
    }

    #[tokio::test]
    async fn a_closed_queue_gives_out_what_it_holds_and_refuses_those_who_wait() {
        let (sender, mut receiver) = channel(100);
        sender.try_send(1, 100).unwrap();
        let waiting = tokio::spawn(sender.clone().send(2, 100));
        tokio::task::yield_now().await;
        receiver.close();
        assert!(matches!(waiting.await.unwrap(), Err(Refused::Closed)));
        assert_eq!(receiver.recv().await.unwrap().item, 1);
        assert!(receiver.recv().await.is_none());
        assert!(matches!(sender.try_send(3, 1), Err(Refused::Closed)));
    }
}
