//! What can go wrong, and what the user can do about it.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use super::{Address, router::PeerId};

/// Why a link was lost, or never came up.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The peer closed the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// The connection could not be opened, or broke.
    #[error("{0}")]
    Io(#[source] io::Error),
    /// Nothing came for too long: the peer is hung, stopped or cut off.
    #[error("the peer gave no sign of life for {0:?}")]
    Silent(Duration),
    /// The connection was open, but the handshake did not end.
    #[error("no ZeroMQ handshake within {0:?}")]
    Slow(Duration),
    /// What is there does not speak ZMTP.
    #[error("the peer is no ZeroMQ socket")]
    Foreign,
    /// It speaks an older generation.
    #[error("the peer speaks ZMTP {0}.{1}; 3.0 or newer is needed")]
    Version(u8, u8),
    /// It wants another security mechanism.
    #[error("the peer wants the security mechanism `{0}`; only NULL is supported")]
    Mechanism(String),
    /// It is a socket of a type that does not go with ours.
    #[error("the peer is a {theirs} socket, which does not go with {ours}")]
    SocketType {
        /// What the peer says it is.
        theirs: String,
        /// What this socket is.
        ours: &'static str,
    },
    /// It refused the connection and said why.
    #[error("the peer refused the connection: {0}")]
    Refused(String),
    /// A message is larger than [`Settings::max_message`](super::Settings::max_message).
    #[error("the peer sent a message of at least {size} bytes; at most {limit} are taken")]
    TooBig {
        /// Bytes that were announced.
        size: u64,
        /// Bytes that are taken.
        limit: usize,
    },
    /// A message has more frames than anything sensible.
    #[error("the peer sent a message of more than {0} frames")]
    TooManyFrames(usize),
    /// Its bytes break the rules of the protocol.
    #[error("the peer broke the protocol: {0}")]
    Malformed(&'static str),
    /// Another connection announced the same identity, and took its place.
    #[error("another peer took over the identity")]
    Replaced,
    /// This side closed it.
    #[error("the socket was closed here")]
    Ended,
}

impl LinkError {
    /// Whether what is there is no peer of ours, and will be none as long as it is the same program.
    pub fn is_lasting(&self) -> bool {
        matches!(
            self,
            Self::Foreign | Self::Version(..) | Self::Mechanism(_) | Self::SocketType { .. } | Self::Refused(_)
        )
    }
}

/// Why a message was not sent.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Unsent {
    /// There is no link, and none came up in time.
    #[error("no connection to {address} within {waited:?}{}", because(.fault))]
    Down {
        /// Where to.
        address: Address,
        /// How long it was waited for.
        waited: Duration,
        /// Why the last attempt failed.
        fault: Option<Arc<LinkError>>,
    },
    /// The link was lost while the message waited for room.
    #[error("the connection to {0} was lost")]
    Lost(Address),
    /// The peer is not, or no more, there.
    #[error("peer {0} is gone")]
    Gone(PeerId),
    /// The message is larger than [`Settings::max_message`](super::Settings::max_message).
    #[error("a message of {size} bytes is not sent; at most {limit} are")]
    TooBig {
        /// Bytes of the message.
        size: usize,
        /// Bytes that may be sent.
        limit: usize,
    },
    /// A message has at least one frame, and not too many.
    #[error("a message of {0} frames is not sent; it has from 1 to {limit}", limit = super::MAX_FRAMES)]
    Frames(usize),
    /// The socket was closed.
    #[error("the socket is closed")]
    Closed,
}

fn because(fault: &Option<Arc<LinkError>>) -> String {
    fault.as_ref().map_or_else(String::new, |fault| format!(": {fault}"))
}

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process listens there.
    #[error("{0} is in use by another process")]
    InUse(Address),
    /// Something lies at the path that is no socket, and is not overwritten.
    #[error("{} is there already and is no socket: choose another path or remove it", .0.display())]
    NotASocket(PathBuf),
    /// The system refused.
    #[error("cannot listen on {address}: {source}")]
    Io {
        /// Where.
        address: Address,
        /// Why.
        #[source]
        source: io::Error,
    },
}
