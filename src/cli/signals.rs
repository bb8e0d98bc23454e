//! Ctrl-C and SIGTERM: the first asks for a clean end, the second drops everything, a third leaves at once.

use std::time::Duration;

use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use crate::eval::Stops;

/// How long a run that was told twice to stop may take to print what it came to.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Listens until it is dropped.
pub(super) struct Signals {
    listener: JoinHandle<()>,
    over: CancellationToken,
    leave: CancellationToken,
}

impl Signals {
    /// Turns signals into stops.
    pub(super) fn listen(stops: Stops) -> std::io::Result<Self> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let (over, leave) = (CancellationToken::new(), CancellationToken::new());
        let (ended, last) = (over.clone(), leave.clone());
        let listener = tokio::spawn(async move {
            let killed = stops.kill.clone();
            let overdue = async {
                killed.cancelled().await;
                ended.cancelled().await;
                tokio::time::sleep(LAST_WORDS).await;
            };
            tokio::pin!(overdue);
            for token in [Some(stops.stop), Some(stops.kill), None] {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    () = &mut overdue => {}
                }
                match token {
                    Some(token) if !ended.is_cancelled() => token.cancel(),
                    _ => return last.cancel(),
                }
            }
        });
        Ok(Self { listener, over, leave })
    }

    /// The run is over: from now on the first signal leaves at once, so that nothing that hangs at the very end, such as
    /// a terminal that takes no output, can hold the program.
    pub(super) fn run_is_over(&self) {
        self.over.cancel();
    }

    /// Waits for the signal to leave, whatever still runs. What is acknowledged is in the journal; nothing is lost.
    pub(super) async fn leave(&self) {
        self.leave.cancelled().await;
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.listener.abort();
    }
}
