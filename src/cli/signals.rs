//! Ctrl-C and SIGTERM: the first asks for a clean end, the second drops everything.

use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinHandle,
};

use crate::eval::Stops;

/// Listens until it is dropped.
pub(super) struct Signals(JoinHandle<()>);

impl Signals {
    /// Turns signals into stops.
    pub(super) fn listen(stops: Stops) -> std::io::Result<Self> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        Ok(Self(tokio::spawn(async move {
            for token in [stops.stop, stops.kill] {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                token.cancel();
            }
        })))
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.0.abort();
    }
}
