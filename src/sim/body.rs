//! Bodies of answers: whole, cut off in the middle, or in pieces over time.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use futures::stream::{BoxStream, StreamExt};
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::refusal::Refusal;

/// The largest request body that is read, in bytes; a conversation of a million tokens with images fits.
const LARGEST: usize = 256 << 20;

/// The body of an answer.
pub(super) enum Answer {
    /// All of it at once, with its length announced.
    Whole(Bytes),
    /// All of it at once, in chunks as a stream.
    Events(Bytes),
    /// Pieces that come over time; an error breaks the connection.
    Pieces(BoxStream<'static, io::Result<Bytes>>),
    /// The first bytes of a body that was announced to be longer; then the connection breaks.
    Broken {
        /// What is sent.
        bytes: Bytes,
        /// What was announced, if anything was.
        announced: Option<u64>,
    },
    /// Everything was sent.
    Done,
    /// The connection must break, but what was sent so far must leave first: it does while a body is pending.
    Flush,
    /// The connection must break.
    Break,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let (sent, next) = match &mut *self {
            Self::Whole(bytes) | Self::Events(bytes) => (std::mem::take(bytes), Self::Done),
            Self::Broken { bytes, .. } => (std::mem::take(bytes), Self::Flush),
            Self::Pieces(pieces) => {
                let piece = ready!(pieces.poll_next_unpin(context));
                return Poll::Ready(piece.map(|piece| piece.map(Frame::data)));
            }
            Self::Done => return Poll::Ready(None),
            Self::Flush => {
                *self = Self::Break;
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            Self::Break => return Poll::Ready(Some(Err(io::Error::other("injected cut")))),
        };
        *self = next;
        Poll::Ready(Some(Ok(Frame::data(sent))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Done => true,
            _ => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Broken { announced: Some(length), .. } => SizeHint::with_exact(*length),
            Self::Done => SizeHint::with_exact(0),
            _ => SizeHint::default(),
        }
    }
}

/// Reads a request's body; without a copy where it came in one piece.
pub(super) async fn read(mut body: Incoming) -> Result<Bytes, ReadFault> {
    let mut first = Bytes::new();
    let mut joined = BytesMut::new();
    while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let Ok(data) = frame.map_err(|_| ReadFault::Gone)?.into_data() else { continue };
        if first.len() + joined.len() + data.len() > LARGEST {
            return Err(ReadFault::TooLarge(Refusal::too_large()));
        }
        if first.is_empty() && joined.is_empty() {
            first = data;
        } else {
            if joined.is_empty() {
                joined.extend_from_slice(&std::mem::take(&mut first));
            }
            joined.extend_from_slice(&data);
        }
    }
    Ok(if joined.is_empty() { first } else { joined.freeze() })
}

/// Why a request's body was not read.
pub(super) enum ReadFault {
    /// The client went away.
    Gone,
    /// It is too large.
    TooLarge(Refusal),
}
