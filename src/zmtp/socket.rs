//! The door of this room: what opens a connection, listens, and removes the file of a socket.

use std::{
    fs, io,
    net::SocketAddr,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixSocket, UnixStream, lookup_host},
};

use super::{Address, BindError};

/// Connections that may wait to be accepted; a burst of thousands must not be refused by the kernel.
const BACKLOG: u32 = 4096;

/// A connection, as its two directions.
pub(super) struct Stream {
    pub(super) reader: Box<dyn AsyncRead + Send + Unpin>,
    pub(super) writer: Box<dyn AsyncWrite + Send + Unpin>,
}

impl Stream {
    pub(super) fn new(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        Self { reader: Box::new(reader), writer: Box::new(writer) }
    }

    fn tcp(stream: TcpStream) -> io::Result<Self> {
        // Small messages go at once.
        stream.set_nodelay(true)?;
        let (reader, writer) = stream.into_split();
        Ok(Self::new(reader, writer))
    }

    fn unix(stream: UnixStream) -> Self {
        let (reader, writer) = stream.into_split();
        Self::new(reader, writer)
    }
}

/// What listens.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    /// The file goes before the listener does: as long as somebody listens nobody takes its place, or its inode.
    Unix {
        _file: Removal,
        listener: UnixListener,
    },
}

impl Listener {
    pub(super) async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => Stream::tcp(listener.accept().await?.0),
            Self::Unix { listener, .. } => Ok(Stream::unix(listener.accept().await?.0)),
        }
    }
}

/// The file of a socket that we listen on; another that took its place is not ours.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    which: (u64, u64),
    is_gone: AtomicBool,
}

impl SocketFile {
    /// Removes it, once: a later one may have its inode.
    fn remove(&self) {
        if !self.is_gone.swap(true, Ordering::AcqRel) && which(&self.path).is_ok_and(|now| now == self.which) {
            // What cannot be removed is stale, and the next listener replaces it.
            let _ = Door::remove(&self.path);
        }
    }
}

/// One owner of a file: with the first of them the file goes.
#[derive(Debug)]
pub(super) struct Removal(Arc<SocketFile>);

impl Drop for Removal {
    fn drop(&mut self) {
        self.0.remove();
    }
}

fn which(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Opens the connection of a client.
pub(super) async fn connect(address: &Address, follow_links: bool) -> io::Result<Stream> {
    match address {
        Address::Tcp { host, port } => {
            if host == "*" {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "`*` is a host to listen on, not to connect to",
                ));
            }
            Stream::tcp(Door::connect(host, *port).await?)
        }
        Address::Ipc(path) if follow_links => Ok(Stream::unix(UnixStream::connect(path).await?)),
        Address::Ipc(path) => Ok(Stream::unix(connect_to_itself(path).await?)),
    }
}

/// Connects to the very file at a path, and to nothing that a link there leads to.
#[cfg(target_os = "linux")]
async fn connect_to_itself(path: &Path) -> io::Result<UnixStream> {
    use std::os::fd::AsRawFd as _;

    use rustix::fs::{Mode, OFlags, open};

    let file = fs::File::from(open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?);
    refuse_link(&file.metadata()?)?;
    // A path to what was opened, whatever lies at its name by now.
    UnixStream::connect(format!("/proc/self/fd/{}", file.as_raw_fd())).await
}

#[cfg(not(target_os = "linux"))]
async fn connect_to_itself(path: &Path) -> io::Result<UnixStream> {
    refuse_link(&fs::symlink_metadata(path)?)?;
    UnixStream::connect(path).await
}

fn refuse_link(found: &fs::Metadata) -> io::Result<()> {
    if found.is_symlink() {
        return Err(io::Error::other("it is a link, where a socket should be"));
    }
    Ok(())
}

/// Listens, and says where; the file lives as long as the listener's owner wants.
pub(super) async fn listen(address: &Address) -> Result<(Listener, Address, Option<Removal>), BindError> {
    let fault = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse(address.clone()),
        _ => BindError::Io { address: address.clone(), source },
    };
    match address {
        Address::Tcp { host, port } => {
            let host = if host == "*" { "0.0.0.0" } else { host };
            let listener = listen_tcp(host, *port).await.map_err(fault)?;
            let found = listener.local_addr().map_err(fault)?;
            let at = Address::Tcp { host: found.ip().to_string(), port: found.port() };
            Ok((Listener::Tcp(listener), at, None))
        }
        Address::Ipc(path) => {
            if let Ok(found) = fs::symlink_metadata(path) {
                if !found.file_type().is_socket() {
                    return Err(BindError::NotASocket(path.clone()));
                }
                // Only a refusal proves that nobody listens: a busy listener answers with something else.
                match UnixStream::connect(path).await {
                    Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => {
                        Door::remove(path).or_else(gone).map_err(fault)?;
                    }
                    // Whoever listened there has just ended.
                    Err(ended) if ended.kind() == io::ErrorKind::NotFound => {}
                    _ => return Err(BindError::InUse(address.clone())),
                }
            }
            let listener = Door::listen_unix(path).map_err(fault)?;
            let which = which(path).map_err(fault)?;
            let file = Arc::new(SocketFile { path: path.clone(), which, is_gone: AtomicBool::new(false) });
            let listener = Listener::Unix { _file: Removal(Arc::clone(&file)), listener };
            Ok((listener, address.clone(), Some(Removal(file))))
        }
    }
}

/// A file that is not there need not be removed.
fn gone(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

async fn listen_tcp(host: &str, port: u16) -> io::Result<TcpListener> {
    let mut fault = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in lookup_host((host, port)).await? {
        match Door::listen_tcp(address) {
            Ok(listener) => return Ok(listener),
            Err(refused) => fault = refused,
        }
    }
    Err(fault)
}

struct Door;

#[allow(clippy::disallowed_methods, reason = "the door through which ZeroMQ sockets connect and listen")]
impl Door {
    async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
        TcpStream::connect((host, port)).await
    }

    fn listen_tcp(address: SocketAddr) -> io::Result<TcpListener> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // A server that starts again need not wait for the kernel to forget the old one's connections.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    }

    fn listen_unix(path: &Path) -> io::Result<UnixListener> {
        let socket = UnixSocket::new_stream()?;
        socket.bind(path)?;
        socket.listen(BACKLOG)
    }

    fn remove(path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }
}
