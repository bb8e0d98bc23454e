//! The commands that peers send each other beside messages.

use std::time::Duration;

use bytes::{Buf as _, Bytes};

use super::LinkError;

/// What a PING may ask to be echoed at most.
const LONGEST_CONTEXT: usize = 16;

/// A command, as far as it concerns us.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// The end of the handshake, with what the peer says of itself.
    Ready(Vec<(String, Bytes)>),
    /// Why the peer ends the connection.
    Error(String),
    /// A question for a sign of life, with what the answer repeats.
    Ping(Bytes),
    /// The answer; any traffic is as good.
    Pong,
    /// Subscriptions and what the future brings: nothing that we need.
    Other,
}

impl Command {
    /// Reads the body of a command frame.
    pub(super) fn read(mut body: Bytes) -> Result<Self, LinkError> {
        let name = take(&mut body, 1, "a command without its name")?;
        Ok(match &*name {
            b"READY" => Self::Ready(properties(body)?),
            b"ERROR" => {
                let reason = take(&mut body, 1, "an ERROR without its reason")?;
                Self::Error(readable(&reason))
            }
            b"PING" => {
                if body.len() < 2 || body.len() > 2 + LONGEST_CONTEXT {
                    return Err(LinkError::Malformed("a PING of the wrong length"));
                }
                Self::Ping(body.slice(2..))
            }
            b"PONG" => Self::Pong,
            _ => Self::Other,
        })
    }
}

/// What `size` bytes of length announce.
fn take(body: &mut Bytes, size: usize, fault: &'static str) -> Result<Bytes, LinkError> {
    if body.len() < size {
        return Err(LinkError::Malformed(fault));
    }
    let length = usize::try_from(body.get_uint(size)).ok().filter(|length| *length <= body.len());
    Ok(body.split_to(length.ok_or(LinkError::Malformed(fault))?))
}

fn properties(mut body: Bytes) -> Result<Vec<(String, Bytes)>, LinkError> {
    let mut found = Vec::new();
    while !body.is_empty() {
        let name = take(&mut body, 1, "metadata without a name")?;
        let value = take(&mut body, 4, "metadata without a value")?;
        found.push((readable(&name), value));
    }
    Ok(found)
}

/// A peer's text, fit for an error message.
pub(super) fn readable(text: &[u8]) -> String {
    String::from_utf8_lossy(text).chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// READY of a socket of some type, which announces no identity.
pub(super) fn ready(socket_type: &str) -> Vec<u8> {
    let mut body = b"\x05READY".to_vec();
    for (name, value) in [("Socket-Type", socket_type), ("Identity", "")] {
        body.push(name.len() as u8);
        body.extend_from_slice(name.as_bytes());
        body.extend_from_slice(&(value.len() as u32).to_be_bytes());
        body.extend_from_slice(value.as_bytes());
    }
    body
}

/// ERROR with a reason, as much of it as fits.
pub(super) fn error(reason: &str) -> Vec<u8> {
    let reason = &reason.as_bytes()[..reason.len().min(255)];
    [b"\x05ERROR", &[reason.len() as u8][..], reason].concat()
}

/// PING; a peer that hears nothing for `patience` may give us up.
pub(super) fn ping(patience: Duration) -> Vec<u8> {
    let tenths = u16::try_from(patience.as_millis() / 100).unwrap_or(u16::MAX);
    [b"\x04PING", &tenths.to_be_bytes()[..]].concat()
}

/// The answer to a PING.
pub(super) fn pong(context: &[u8]) -> Vec<u8> {
    [b"\x04PONG", context].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(body: Vec<u8>) -> Result<Command, LinkError> {
        Command::read(body.into())
    }

    #[test]
    fn what_is_written_is_read() {
        let Command::Ready(found) = read(ready("DEALER")).unwrap() else { panic!("READY") };
        assert_eq!(found[0], ("Socket-Type".to_owned(), Bytes::from_static(b"DEALER")));
        assert_eq!(found[1], ("Identity".to_owned(), Bytes::new()));
        assert_eq!(read(error("why")).unwrap(), Command::Error("why".to_owned()));
        assert_eq!(read(error(&"x".repeat(300))).unwrap(), Command::Error("x".repeat(255)));
        assert_eq!(ping(Duration::from_secs(10)), b"\x04PING\x00\x64");
        assert_eq!(read(ping(Duration::from_secs(10))).unwrap(), Command::Ping(Bytes::new()));
        assert_eq!(read(b"\x04PING\x00\x0acontext".to_vec()).unwrap(), Command::Ping(Bytes::from_static(b"context")));
        assert_eq!(read(pong(b"context")).unwrap(), Command::Pong);
        assert_eq!(read(b"\x09SUBSCRIBEtopic".to_vec()).unwrap(), Command::Other);
    }

    #[test]
    fn what_is_cut_short_or_too_long_is_refused() {
        for body in [
            &b""[..],
            b"\x05REA",
            b"\x05READY\x0bSocket-Type",
            b"\x05READY\x0bSocket-Type\xff\xff\xff\xffDEALER",
            b"\x05ERROR",
            b"\x05ERROR\x09why",
            b"\x04PING\x00",
            b"\x04PING\x00\x0a12345678901234567",
        ] {
            assert!(matches!(read(body.to_vec()), Err(LinkError::Malformed(_))), "{body:?}");
        }
        assert_eq!(read(b"\x05ERROR\x04a\x1b[m".to_vec()).unwrap(), Command::Error("a\u{fffd}[m".to_owned()));
    }

    proptest! {
        #[test]
        fn garbage_harms_nothing(body in proptest::collection::vec(any::<u8>(), 0..64), name in 0..5_usize) {
            let name: &[u8] = [&b""[..], b"\x05READY", b"\x05ERROR", b"\x04PING", b"\x04PONG"][name];
            let _ = read([name, &body].concat());
        }
    }
}
