//! The rollouts of one run as frames that follow their growth.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::{
    agent::Watch,
    trace::{
        Episode, Message, Trace,
        wire::{Sent, TraceSummary, WireError, discard},
    },
};

/// Frames that wait for a peer. More than a rollout makes between two waits of its own; where a slow peer leaves no room,
/// states are passed over, because the next frame holds all that came since the last one.
const FRAMES: usize = 16;

/// Cuts the frames of one run.
pub(super) struct Stream {
    /// Held for the time of one frame, by whoever changes a rollout; those of one run seldom meet.
    cursor: Mutex<Cursor>,
}

#[derive(Default)]
struct Cursor {
    /// What of each trace has been sent.
    sent: HashMap<String, Sent>,
    /// Traces that the client has yet to forget.
    given_up: Vec<String>,
    /// Closed at the end of the run.
    frames: Option<mpsc::Sender<Bytes>>,
}

impl Stream {
    /// A stream, and where its frames come out.
    pub(super) fn open() -> (Self, mpsc::Receiver<Bytes>) {
        let (frames, out) = mpsc::channel(FRAMES);
        let cursor = Cursor { frames: Some(frames), ..Cursor::default() };
        (Self { cursor: Mutex::new(cursor) }, out)
    }

    /// The frames that bring the client to the end of the episode.
    pub(super) fn last(&self, episode: &Episode) -> Result<Vec<Bytes>, WireError> {
        let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        let mut frames: Vec<Bytes> = cursor.given_up.drain(..).map(|id| discard(&id)).collect();
        for trace in &episode.traces {
            frames.extend(cursor.sent.entry(trace.id.clone()).or_default().delta(trace, &[])?);
        }
        Ok(frames)
    }

    /// Whether nothing of some trace has been sent, so that its frame is the whole trace.
    pub(super) fn is_behind(&self, episode: &Episode) -> bool {
        let cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        episode.traces.iter().any(|trace| !cursor.sent.contains_key(&trace.id))
    }

    /// Takes no more changes; the last frames go where this leads.
    pub(super) fn close(&self) -> Option<mpsc::Sender<Bytes>> {
        self.cursor.lock().unwrap_or_else(PoisonError::into_inner).frames.take()
    }
}

impl Cursor {
    /// Sends what the client has yet to forget. Returns whether there was room for all of it.
    fn forget(&mut self, frames: &mpsc::Sender<Bytes>) -> bool {
        while let Some(id) = self.given_up.last() {
            if frames.try_send(discard(id)).is_err() {
                return false;
            }
            self.given_up.pop();
        }
        true
    }
}

impl Watch for Stream {
    fn changed(&self, trace: &Trace, pending: &[Message]) {
        let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(frames) = cursor.frames.clone() else { return };
        if !cursor.forget(&frames) {
            return;
        }
        // One frame as a rule, two at most.
        let Ok(room) = frames.try_reserve_many(2) else { return };
        match cursor.sent.entry(trace.id.clone()).or_default().delta(trace, pending) {
            Ok(made) => room.zip(made).for_each(|(room, frame)| room.send(frame)),
            // The end of the run meets it again, and fails the run.
            Err(error) => tracing::warn!(trace = %trace.id, %error, "a state of a rollout could not be sent"),
        }
    }

    fn discarded(&self, trace: &Trace) {
        let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        if cursor.sent.remove(&trace.id).is_some() {
            cursor.given_up.push(trace.id.clone());
        }
        if let Some(frames) = cursor.frames.clone() {
            cursor.forget(&frames);
        }
    }
}

/// The sizes of an episode's traces.
pub(super) fn summaries(episode: &Episode) -> Vec<TraceSummary> {
    episode.traces.iter().map(TraceSummary::of).collect()
}
