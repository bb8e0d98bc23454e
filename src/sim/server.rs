//! The running server: listening, connections, shutting down.

use std::{
    error::Error,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinHandle,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Oracle, SimError,
    fault::FaultRule,
    metrics::Stats,
    model::Model,
    route::{Reset, handle},
    settings::{Settings, check_shares},
};
use crate::telemetry::raise_descriptor_limit;

/// Connections that may wait to be accepted; a burst of thousands must not be refused by the kernel.
const BACKLOG: u32 = 4096;
/// How long connections may take to finish what they are at when the server stops.
const GRACE: Duration = Duration::from_millis(200);

/// A running simulator. [`Simulator::shutdown`] ends and joins all of it; dropping it stops it without waiting.
#[derive(Debug)]
pub struct Simulator {
    address: SocketAddr,
    model: Arc<Model>,
    stop: CancellationToken,
    tasks: TaskTracker,
    accepting: Option<JoinHandle<()>>,
}

impl Simulator {
    /// Starts to listen; requests are answered from the moment this returns.
    ///
    /// `oracle` is what [`Policy::Oracle`](super::Policy::Oracle) asks; without one that policy knows no task. Must be called
    /// within a tokio runtime, whose tasks then serve the connections.
    ///
    /// # Errors
    /// A setting out of bounds, or an address that cannot be listened on.
    pub async fn start(settings: Settings, oracle: Option<Arc<dyn Oracle>>) -> Result<Self, SimError> {
        settings.validate()?;
        // Each connection is an open file; the soft limit is often 1,024.
        raise_descriptor_limit();
        let asked = SocketAddr::new(settings.host, settings.port);
        let listener = listen(asked).map_err(|source| SimError::Listen { address: asked, source })?;
        let address = listener.local_addr().map_err(|source| SimError::Listen { address: asked, source })?;
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let model = Arc::new(Model::new(settings, oracle, stop.clone()));
        if model.engine.is_limited() {
            tasks.spawn(Arc::clone(&model.engine).run(stop.clone()));
        }
        let accepting = tokio::spawn(accept(listener, Arc::clone(&model), stop.clone(), tasks.clone()));
        Ok(Self { address, model, stop, tasks, accepting: Some(accepting) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What an OpenAI client takes as its base URL: `http://HOST:PORT/v1`.
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Name of the model served.
    pub fn model(&self) -> &str {
        &self.model.settings.model
    }

    /// What it has done so far.
    pub fn stats(&self) -> Stats {
        self.model.stats()
    }

    /// Puts other faults in the place of those injected so far, from the next request on; an empty list ends an outage.
    ///
    /// # Errors
    /// Shares that add up to more than 1; the faults then stay as they were.
    pub fn set_faults(&self, faults: Vec<FaultRule>) -> Result<(), SimError> {
        check_shares(&faults)?;
        self.model.set_faults(faults);
        Ok(())
    }

    /// Stops listening, lets connections finish for a fifth of a second, closes them, and waits until all tasks ended.
    pub async fn shutdown(mut self) {
        self.stop.cancel();
        if let Some(accepting) = self.accepting.take() {
            // It only fails by panicking, which has been reported by then.
            let _ = accepting.await;
        }
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[expect(clippy::disallowed_methods, reason = "this is a server room, with a backlog of its own")]
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn accept(listener: TcpListener, model: Arc<Model>, stop: CancellationToken, tasks: TaskTracker) {
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                // Without this a streamed token may wait for the acknowledgement of the one before.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "could not switch off delayed sending");
                }
                tasks.spawn(serve(stream, Arc::clone(&model), stop.clone()));
            }
            Err(error) => {
                // Out of files, as a rule: others must close before this can go on.
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, model: Arc<Model>, stop: CancellationToken) {
    let reset = Arc::new(AtomicBool::new(false));
    let socket = Socket { stream, reset: Arc::clone(&reset) };
    let service = service_fn(move |request| handle(Arc::clone(&model), request));
    let connection = http1::Builder::new().serve_connection(TokioIo::new(socket), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(GRACE, &mut connection).await {
                Ok(ended) => ended,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = ended {
        // Injected, unlike clients that went away, and bodies that are cut: of those, what was written shall arrive.
        if error.source().is_some_and(|source| source.is::<Reset>()) {
            reset.store(true, Ordering::Relaxed);
        }
        tracing::debug!(%error, "connection ended");
    }
}

/// A connection that can end in a reset instead of an orderly close.
struct Socket {
    stream: TcpStream,
    reset: Arc<AtomicBool>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.reset.load(Ordering::Relaxed)
            && let Err(error) = self.stream.set_zero_linger()
        {
            tracing::debug!(%error, "could not reset a connection");
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
