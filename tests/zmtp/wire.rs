//! Peers of a ZeroMQ socket that a test plays byte by byte.
#![allow(unreachable_pub, reason = "a module of one test")]

use std::net::SocketAddr;

use rollhouse::zmtp::Address;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// The 64 bytes of a greeting: ZMTP 3.1, NULL.
pub fn greeting() -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[0] = 0xff;
    bytes[9..12].copy_from_slice(&[0x7f, 3, 1]);
    bytes[12..16].copy_from_slice(b"NULL");
    bytes
}

/// A frame of at most 255 bytes.
pub fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    [&[flags, u8::try_from(body.len()).unwrap()], body].concat()
}

/// The header of a long frame.
pub fn long(flags: u8, length: u64) -> Vec<u8> {
    [&[flags | 2][..], &length.to_be_bytes()].concat()
}

pub fn ready(socket_type: &str, identity: &[u8]) -> Vec<u8> {
    let mut body = b"\x05READY".to_vec();
    for (name, value) in [("Socket-Type", socket_type.as_bytes()), ("Identity", identity)] {
        body.push(name.len() as u8);
        body.extend_from_slice(name.as_bytes());
        body.extend_from_slice(&(value.len() as u32).to_be_bytes());
        body.extend_from_slice(value);
    }
    frame(4, &body)
}

/// A connection of such a peer.
pub struct Raw(TcpStream);

impl Raw {
    pub async fn connect(address: &Address) -> Self {
        let Address::Tcp { host, port } = address else { panic!("tcp") };
        Self(TcpStream::connect((host.as_str(), *port)).await.unwrap())
    }

    pub async fn accept(listener: &TcpListener) -> (Self, SocketAddr) {
        let (stream, from) = listener.accept().await.unwrap();
        (Self(stream), from)
    }

    /// One that did its part of the handshake, as a dealer.
    pub async fn shaken(address: &Address, identity: &[u8]) -> Self {
        let mut raw = Self::connect(address).await;
        raw.say(&[greeting(), ready("DEALER", identity)].concat()).await;
        let mut heard = vec![0; 64];
        raw.0.read_exact(&mut heard).await.unwrap();
        assert_eq!(raw.hear_frame().await, (4, ready("ROUTER", b"")[2..].to_vec()));
        raw
    }

    pub async fn say(&mut self, bytes: &[u8]) {
        // The other side may have had enough already.
        let _ = self.0.write_all(bytes).await;
    }

    /// Flags and body of a short frame.
    pub async fn hear_frame(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 2];
        self.0.read_exact(&mut head).await.unwrap();
        let mut body = vec![0; head[1] as usize];
        self.0.read_exact(&mut body).await.unwrap();
        (head[0], body)
    }

    /// Waits until the other side closed it.
    pub async fn end(&mut self) {
        let mut rest = [0; 4096];
        while matches!(self.0.read(&mut rest).await, Ok(1..)) {}
    }
}
