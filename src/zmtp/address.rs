//! Where a socket listens, or connects to.

use std::{fmt, path::PathBuf, str::FromStr};

/// What a Unix socket's path may be long at most, in bytes.
const LONGEST_PATH: usize = 107;

/// An address as ZeroMQ writes it: `tcp://HOST:PORT` or `ipc://PATH`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A host and a port. The host `*` listens on all IPv4 addresses; port 0 (also written `*`) on a free port. An IPv6
    /// host stands in brackets when written, here without.
    Tcp {
        /// A name or an address.
        host: String,
        /// The port; 0 for any that is free.
        port: u16,
    },
    /// The path of a Unix socket.
    Ipc(PathBuf),
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let fault = |why| AddressError { address: text.to_owned(), why };
        if let Some(path) = text.strip_prefix("ipc://") {
            return match path {
                "" => Err(fault("it names no path")),
                "*" => Err(fault("`ipc://*` is not supported: name a path")),
                _ if path.starts_with('@') => Err(fault("abstract sockets are not supported: name a path")),
                _ if path.contains('\0') => Err(fault("a path holds no zero byte")),
                _ if path.len() > LONGEST_PATH => Err(fault("the path of a socket has at most 107 bytes")),
                _ => Ok(Self::Ipc(path.into())),
            };
        }
        let Some(place) = text.strip_prefix("tcp://") else {
            return Err(fault("it must begin with `tcp://` or `ipc://`"));
        };
        let (host, port) = place.rsplit_once(':').ok_or_else(|| fault("it has no port: write `tcp://HOST:PORT`"))?;
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(inner) if inner.contains(':') => inner,
            Some(_) => return Err(fault("only an IPv6 address stands in brackets")),
            None if host.contains(':') => {
                return Err(fault("an IPv6 address stands in brackets: write `tcp://[HOST]:PORT`"));
            }
            None => host,
        };
        if host.is_empty() {
            return Err(fault("it has no host; `*` stands for all addresses of this machine"));
        }
        if let Some(odd) = host.chars().find(|c| c.is_whitespace() || c.is_control() || "/;@[]".contains(*c)) {
            return Err(fault(match odd {
                ';' => "a source address before `;` is not supported",
                _ => "the host holds a character that no host has",
            }));
        }
        let port = match port {
            "*" => 0,
            // `parse` alone would take `+80`.
            _ if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => {
                port.parse().map_err(|_| fault("a port is at most 65535"))?
            }
            _ => return Err(fault("the port is no number")),
        };
        Ok(Self::Tcp { host: host.to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
            Self::Ipc(path) => write!(f, "ipc://{}", path.display()),
        }
    }
}

/// A text that is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{address}` is no address: {why}")]
pub struct AddressError {
    address: String,
    why: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.to_owned(), port }
    }

    #[test]
    fn addresses_are_read_as_zeromq_writes_them() {
        for (text, address) in [
            ("tcp://127.0.0.1:5000", tcp("127.0.0.1", 5000)),
            ("tcp://*:0", tcp("*", 0)),
            ("tcp://localhost:*", tcp("localhost", 0)),
            ("tcp://[::1]:65535", tcp("::1", 65535)),
            ("tcp://my-host.example:80", tcp("my-host.example", 80)),
            ("ipc:///run/a b/0", Address::Ipc("/run/a b/0".into())),
            ("ipc://relative/0", Address::Ipc("relative/0".into())),
        ] {
            let read: Address = text.parse().unwrap();
            assert_eq!(read, address);
            assert_eq!(read.to_string().parse::<Address>().unwrap(), address, "{text}");
        }
        assert_eq!("tcp://[::1]:7".parse::<Address>().unwrap().to_string(), "tcp://[::1]:7");
    }

    #[test]
    fn what_is_no_address_says_why() {
        let long = format!("ipc:///{}", "x".repeat(107));
        for (text, why) in [
            ("", "begin with"),
            ("127.0.0.1:5000", "begin with"),
            ("udp://a:1", "begin with"),
            ("tcp://localhost", "no port"),
            ("tcp://:5000", "no host"),
            ("tcp://a:", "no number"),
            ("tcp://a:+80", "no number"),
            ("tcp://a:http", "no number"),
            ("tcp://a:65536", "at most 65535"),
            ("tcp://::1:80", "brackets"),
            ("tcp://[a]:80", "brackets"),
            ("tcp://a/b:80", "character"),
            ("tcp://1.2.3.4;5.6.7.8:80", "source address"),
            ("ipc://", "no path"),
            ("ipc://*", "name a path"),
            ("ipc://@name", "abstract"),
            ("ipc://a\0b", "zero byte"),
            (&long, "107 bytes"),
        ] {
            let said = text.parse::<Address>().unwrap_err().to_string();
            assert!(said.contains(why), "{text}: {said}");
        }
    }
}
