//! The thread that children belong to. It never ends before the process does: a child dies with the thread that started it.

use std::{
    io,
    sync::{OnceLock, mpsc},
    thread,
};

use tokio::runtime::{Builder, Handle};
use tokio_util::task::AbortOnDropHandle;

static THREAD: OnceLock<Result<Handle, String>> = OnceLock::new();

/// The event loop of the thread, started at the first call.
fn handle() -> io::Result<&'static Handle> {
    let started = THREAD.get_or_init(|| start().map_err(|error| format!("no thread for child processes: {error}")));
    started.as_ref().map_err(|problem| io::Error::other(problem.clone()))
}

fn start() -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    thread::Builder::new()
        .name("processes".to_owned())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    Ok(handle)
}

/// Runs work on the thread of the processes, whatever drives the caller. Dropping the future drops the work.
///
/// # Errors
/// When the thread cannot be had, or the work panicked.
pub async fn run<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> io::Result<T> {
    AbortOnDropHandle::new(handle()?.spawn(work)).await.map_err(io::Error::other)
}

/// Runs work on the thread of the processes and blocks until it is done; needs no runtime here. The work brings its own
/// deadline. Not for use on the thread itself, which would wait for ever.
///
/// # Errors
/// As [`run`].
pub fn block_on<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> io::Result<T> {
    let (done, result) = mpsc::sync_channel(1);
    handle()?.spawn(async move {
        // Nobody listens only when the waiting thread is gone.
        let _ = done.send(work.await);
    });
    result.recv().map_err(|_| io::Error::other("work beside child processes panicked"))
}
