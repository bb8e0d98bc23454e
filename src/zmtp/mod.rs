//! ZeroMQ's wire protocol (ZMTP 3.1, mechanism NULL) for the sockets that rollhouse has: DEALER and ROUTER, over TCP and
//! Unix sockets.
//!
//! What enters is a message of frames, as [`bytes::Bytes`]; what leaves is the same at the other end, in order. A lost
//! connection is an event, never a silent queue: nothing that was sent over one link is sent again over the next.
//!
//! ```text
//! dealer, router   one task each: connects or accepts, and owns what follows
//!   link           one connection: both directions and the heartbeat, in one loop
//!     handshake    greeting and READY, or why not
//!     codec        bytes to frames to messages, and back
//!     command      what peers send each other beside messages
//!     queue        a channel bounded by bytes, on either side of a link
//!   socket         the door: what opens, listens and removes
//! ```

mod address;
mod codec;
mod command;
mod dealer;
mod fault;
mod handshake;
mod link;
mod queue;
mod router;
mod settings;
mod socket;

pub use address::{Address, AddressError};
pub use dealer::{Arrival, Dealer, Inbox};
pub use fault::{BindError, LinkError, Unsent};
pub use router::{Guests, PeerId, Router, Visit};
pub use settings::Settings;

/// One message: one frame or more, any of which may be empty.
pub type Frames = Vec<bytes::Bytes>;

/// Frames of one message at most, both ways: far above what anybody sends, and little memory if somebody does.
const MAX_FRAMES: usize = 1_024;
