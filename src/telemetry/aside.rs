//! Work that would keep other tasks waiting.

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    task::{block_in_place, spawn_blocking},
};

/// Runs work in place; when it is `long` (more than a few milliseconds), the other tasks of this worker move to another
/// thread meanwhile, where the runtime has several. The work cannot be cut short: bound it.
pub fn aside<T>(long: bool, work: impl FnOnce() -> T) -> T {
    let movable = || Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if long && movable() { block_in_place(work) } else { work() }
}

/// Runs work that waits for a disk on a thread for blocking work. A panic in it goes on in the caller.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    #[test]
    fn other_tasks_go_on_during_long_work() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let done = runtime.block_on(runtime.spawn(async {
            let (sender, receiver) = mpsc::channel();
            let other = tokio::spawn(async move { sender.send(()) });
            // The only worker works; the other task must run all the same.
            let waited = aside(true, || receiver.recv_timeout(Duration::from_secs(30)));
            other.await.unwrap().unwrap();
            waited
        }));
        assert_eq!(done.unwrap(), Ok(()));
    }

    #[test]
    fn it_works_without_a_runtime_and_with_a_small_one() {
        assert_eq!(aside(true, || 1), 1);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert_eq!(runtime.block_on(async { aside(true, || 2) }), 2);
    }
}
