//! The thread that the connections of servers and clients belong to. A program whose own work takes every core for seconds
//! answers heartbeats all the same, and is not taken for dead.

use std::{io, sync::OnceLock, thread};

use tokio::runtime::{Builder, Handle};
use tokio_util::task::AbortOnDropHandle;

use crate::zmtp::{Address, BindError, Dealer, Guests, Inbox, Router, Settings};

/// `None` where the system gives no thread: connections then share that of their owners.
static THREAD: OnceLock<Option<Handle>> = OnceLock::new();

/// The event loop of the thread, started at the first call; it never ends before the process does.
fn handle() -> Option<&'static Handle> {
    let started = THREAD.get_or_init(|| {
        start().inspect_err(|error| tracing::warn!(%error, "connections have no thread of their own")).ok()
    });
    started.as_ref()
}

fn start() -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    thread::Builder::new()
        .name("connections".to_owned())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    Ok(handle)
}

/// [`Dealer::connect`], on the thread of the connections.
pub(super) fn connect(address: Address, settings: Settings) -> (Dealer, Inbox) {
    let _entered = handle().map(Handle::enter);
    Dealer::connect(address, settings)
}

/// [`Router::bind`], on the thread of the connections.
pub(super) async fn bind(address: &Address, settings: Settings) -> Result<(Router, Guests), BindError> {
    let Some(handle) = handle() else { return Router::bind(address, settings).await };
    let own = address.clone();
    let bound = AbortOnDropHandle::new(handle.spawn(async move { Router::bind(&own, settings).await }));
    bound.await.unwrap_or_else(|error| Err(BindError::Io { address: address.clone(), source: io::Error::other(error) }))
}
