//! Episodes whose agents are done and whose scores may yet be lost: `pending.jsonl`.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use tokio::sync::OnceCell;

use super::{Journal, Span, StoreError, scan::load_episode};
use crate::{config::Redactor, trace::Episode};

/// The episodes that wait for their scores, in the form of the journal. A line is done with once the journal has the same
/// episode; until the run is complete the file only grows, and opening an [`super::Index`] thins it out. It is at most as large as
/// the journal will be, or twice that where groups are compared, and nothing of it is in memory: so it is not thinned in
/// between. A run that writes nothing here has no such file.
pub struct Pending {
    path: PathBuf,
    redactor: Redactor,
    lines: OnceCell<Journal>,
}

impl Pending {
    /// The pending episodes of a run, as [`super::RunDir::pending`] names their file.
    pub fn new(path: &Path, redactor: Redactor) -> Self {
        Self { path: path.to_owned(), redactor, lines: OnceCell::new() }
    }

    /// Writes an episode down. When this returns `Ok`, its line survives the death of the process. Of several lines of
    /// one episode the last counts.
    pub async fn append(&self, episode: &Episode) -> Result<(), StoreError> {
        let open = async || Journal::open(&self.path, self.redactor.clone());
        self.lines.get_or_try_init(open).await?.append_copy(episode).await.map(drop)
    }

    /// Reads an episode that an [`super::Index`] found here.
    pub async fn load(&self, line: Span) -> Result<Episode, StoreError> {
        load_episode(&self.path, line).await
    }

    /// Closes the file, and removes it if nothing waits any more.
    pub async fn close(self, complete: bool) -> Result<(), StoreError> {
        if let Some(lines) = self.lines.into_inner() {
            lines.close().await?;
        }
        if !complete {
            return Ok(());
        }
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::io("delete", &self.path)(error)),
            _ => Ok(()),
        }
    }
}
