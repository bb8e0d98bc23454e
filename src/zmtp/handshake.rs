//! How a connection becomes a link: a greeting each way, then READY each way; or why not.

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::{
    LinkError,
    codec::{Decoder, Unit, command},
    command::{Command, error, readable, ready},
};

const VERSION: [u8; 2] = [3, 1];
const MECHANISM: &[u8; 20] = b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
const LONGEST_IDENTITY: usize = 255;

/// What our socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Dealer,
    Router,
}

impl Role {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Dealer => "DEALER",
            Self::Router => "ROUTER",
        }
    }

    /// The types that the protocol lets it talk to.
    fn goes_with(self, theirs: &[u8]) -> bool {
        let known: &[&[u8]] = match self {
            Self::Dealer => &[b"ROUTER", b"DEALER", b"REP"],
            Self::Router => &[b"DEALER", b"ROUTER", b"REQ"],
        };
        known.contains(&theirs)
    }
}

/// What a peer said of itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Peer {
    /// Whether it answers PING.
    pub(super) has_heartbeat: bool,
    /// Empty when it announced none.
    pub(super) identity: Bytes,
}

/// Greets and is greeted. What the peer sent behind its READY stays in the decoder. The caller sets the deadline.
pub(super) async fn shake(
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
    decoder: &mut Decoder,
    role: Role,
) -> Result<Peer, LinkError> {
    writer.write_all(&greeting()).await.map_err(LinkError::Io)?;
    let minor = match greeted(reader).await {
        Ok(minor) => minor,
        Err(fault @ LinkError::Mechanism(_)) => {
            // It shall hear why; whether it listens is its own affair.
            let _ = writer.write_all(&command(&error(&fault.to_string()))).await;
            return Err(fault);
        }
        Err(fault) => return Err(fault),
    };
    writer.write_all(&command(&ready(role.name()))).await.map_err(LinkError::Io)?;
    let properties = loop {
        match decoder.next()? {
            Some(Unit::Command(body)) => match Command::read(body)? {
                Command::Ready(properties) => break properties,
                Command::Error(reason) => return Err(LinkError::Refused(reason)),
                _ => return Err(LinkError::Malformed("a command before READY")),
            },
            Some(Unit::Message(_)) => return Err(LinkError::Malformed("a message before READY")),
            None => {
                if decoder.fill(reader).await.map_err(LinkError::Io)? == 0 {
                    return Err(LinkError::Closed);
                }
            }
        }
    };
    let value = |wanted: &str| {
        properties.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.clone())
    };
    let socket_type = value("Socket-Type").ok_or(LinkError::Malformed("READY without Socket-Type"))?;
    if !role.goes_with(&socket_type) {
        let fault = LinkError::SocketType { theirs: readable(&socket_type), ours: role.name() };
        let _ = writer.write_all(&command(&error(&fault.to_string()))).await;
        return Err(fault);
    }
    let identity = value("Identity").unwrap_or_default();
    if identity.len() > LONGEST_IDENTITY {
        return Err(LinkError::Malformed("an identity of more than 255 bytes"));
    }
    Ok(Peer { has_heartbeat: minor >= 1, identity })
}

/// Signature, version, mechanism, and a filler: 64 bytes.
fn greeting() -> [u8; 64] {
    let mut greeting = [0; 64];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10..12].copy_from_slice(&VERSION);
    greeting[12..32].copy_from_slice(MECHANISM);
    greeting
}

/// Reads the peer's greeting and gives its minor version. Each part is judged when it is there: who is no ZeroMQ peer, or an
/// old one, does not send the whole.
async fn greeted(reader: &mut (impl AsyncRead + Unpin)) -> Result<u8, LinkError> {
    let first: [u8; 1] = read(reader).await?;
    if first != [0xff] {
        return Err(LinkError::Foreign);
    }
    let signature: [u8; 9] = read(reader).await?;
    if signature[8] & 1 == 0 {
        return Err(LinkError::Foreign);
    }
    let [major] = read(reader).await?;
    if major < VERSION[0] {
        // The byte after it may never come.
        return Err(LinkError::Version(major, 0));
    }
    let [minor] = read(reader).await?;
    let mechanism: [u8; 20] = read(reader).await?;
    if mechanism != *MECHANISM {
        let name = mechanism.split(|byte| *byte == 0).next().unwrap_or_default();
        return Err(LinkError::Mechanism(readable(name)));
    }
    let _: [u8; 32] = read(reader).await?;
    // A newer generation speaks ours to us.
    Ok(if major > VERSION[0] { VERSION[1] } else { minor })
}

async fn read<const N: usize>(reader: &mut (impl AsyncRead + Unpin)) -> Result<[u8; N], LinkError> {
    let mut bytes = [0; N];
    match reader.read_exact(&mut bytes).await {
        Ok(_) => Ok(bytes),
        Err(fault) if fault.kind() == std::io::ErrorKind::UnexpectedEof => Err(LinkError::Closed),
        Err(fault) => Err(LinkError::Io(fault)),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{duplex, split};

    use super::*;

    /// What a router makes of a peer that says this and no more, and what it says itself.
    async fn answer(said: &[u8]) -> (Result<Peer, LinkError>, Vec<u8>) {
        let (ours, theirs) = duplex(1 << 16);
        let (mut reader, mut writer) = split(ours);
        let (mut hearing, mut saying) = split(theirs);
        saying.write_all(said).await.unwrap();
        saying.shutdown().await.unwrap();
        let peer = shake(&mut reader, &mut writer, &mut Decoder::new(), Role::Router).await;
        drop((reader, writer));
        let mut heard = Vec::new();
        hearing.read_to_end(&mut heard).await.unwrap();
        (peer, heard)
    }

    fn hello(change: impl Fn(&mut [u8; 64])) -> Vec<u8> {
        let mut bytes = greeting();
        change(&mut bytes);
        bytes.to_vec()
    }

    fn with(metadata: &[(&str, &[u8])]) -> Vec<u8> {
        let mut body = b"\x05READY".to_vec();
        for (name, value) in metadata {
            body.push(name.len() as u8);
            body.extend_from_slice(name.as_bytes());
            body.extend_from_slice(&(value.len() as u32).to_be_bytes());
            body.extend_from_slice(value);
        }
        [hello(|_| ()), command(&body)].concat()
    }

    #[tokio::test]
    async fn peers_are_understood() {
        let peer = |has_heartbeat, identity| Peer { has_heartbeat, identity: Bytes::from_static(identity) };
        let plain = [hello(|_| ()), command(&ready("DEALER"))].concat();
        let (found, heard) = answer(&plain).await;
        assert_eq!(found.unwrap(), peer(true, b""));
        assert_eq!(heard, [hello(|_| ()), command(&ready("ROUTER"))].concat());
        let older = [hello(|bytes| bytes[11] = 0), command(&ready("DEALER"))].concat();
        assert_eq!(answer(&older).await.0.unwrap(), peer(false, b""));
        let newer = [hello(|bytes| bytes[10..12].copy_from_slice(&[4, 0])), command(&ready("REQ"))].concat();
        assert_eq!(answer(&newer).await.0.unwrap(), peer(true, b""));
        let named = with(&[("socket-type", b"DEALER"), ("X-Other", b"\xff"), ("IDENTITY", b"\x01me")]);
        assert_eq!(answer(&named).await.0.unwrap(), peer(true, b"\x01me"));
    }

    #[tokio::test]
    async fn who_is_no_peer_of_ours_is_told_why() {
        let mechanism = hello(|bytes| bytes[12..17].copy_from_slice(b"PLAIN"));
        let message = [hello(|_| ()), vec![0, 0]].concat();
        let ping = [hello(|_| ()), command(b"\x04PING\0\0")].concat();
        let refusal = [hello(|_| ()), command(&error("not today"))].concat();
        let huge = [hello(|_| ()), vec![6, 0, 0, 0, 1, 0, 0, 0, 0]].concat();
        let long = "x".repeat(256);
        for (said, why) in [
            (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "no ZeroMQ socket"),
            (vec![0xff; 8], "closed the connection"),
            ([&[0xff][..], &[0; 63]].concat(), "no ZeroMQ socket"),
            // ZMTP 2.0 waits for an answer after these.
            (b"\xff\0\0\0\0\0\0\0\x01\x7f\x01".to_vec(), "ZMTP 1.0; 3.0 or newer"),
            (mechanism.clone(), "mechanism `PLAIN`"),
            (message, "message before READY"),
            (ping, "command before READY"),
            (refusal, "refused the connection: not today"),
            (huge, "too long"),
            (with(&[("Socket-Type", b"PUB")]), "a PUB socket, which does not go with ROUTER"),
            (with(&[("Identity", b"a")]), "without Socket-Type"),
            (with(&[("Socket-Type", b"DEALER"), ("Identity", long.as_bytes())]), "255 bytes"),
            (hello(|_| ()), "closed the connection"),
            (vec![], "closed the connection"),
        ] {
            let fault = answer(&said).await.0.unwrap_err().to_string();
            assert!(fault.contains(why), "{fault}, not {why}");
        }
        // Those who can hear are told.
        for said in [mechanism, with(&[("Socket-Type", b"PUB")])] {
            let heard = answer(&said).await.1;
            assert!(heard.windows(6).any(|bytes| bytes == b"\x05ERROR"), "{heard:?}");
        }
    }
}
