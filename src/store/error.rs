//! Why a run directory could not be used, with what to change.

use std::{
    io,
    path::{Path, PathBuf},
};

/// A failure of the run directory or a file in it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system refused.
    #[error("cannot {action} {}: {source}{}", path.display(), hint(source))]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Another process writes here.
    #[error("{} is in use by {holder}; wait for it, stop it, or choose another run name", path.display())]
    Locked {
        /// The run directory.
        path: PathBuf,
        /// Process and host, as it left them in the lock file.
        holder: String,
    },
    /// A fresh run was asked for where finished rollouts lie.
    #[error("{} already holds finished rollouts; go on with `--resume {}`, start over with `--clean`, or choose another run name", path.display(), path.display())]
    NotEmpty {
        /// The run directory.
        path: PathBuf,
    },
    /// There is nothing to resume.
    #[error("{} is not a run directory: {problem}", path.display())]
    NotARun {
        /// The directory.
        path: PathBuf,
        /// What is missing.
        problem: String,
    },
    /// The run directory would lie outside the output directory, or be it.
    #[error("run directory `{}` must be a plain path below the output directory {}", dir.display(), output.display())]
    Outside {
        /// The run directory as given.
        dir: PathBuf,
        /// The output directory.
        output: PathBuf,
    },
    /// `--clean` met a directory that no run has written.
    #[error("{} does not look like a run directory; delete it by hand or choose another run name", path.display())]
    NotOurs {
        /// The directory.
        path: PathBuf,
    },
    /// A state file of another format version.
    #[error(
        "{} has format version {found}, this build reads up to {supported}; use a newer rollhouse to resume this run",
        path.display()
    )]
    Version {
        /// The state file.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// The newest that this build reads.
        supported: u32,
    },
    /// A file that cannot be understood.
    #[error("cannot read {}: {problem}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The journal failed before; nothing more is accepted.
    #[error("{} takes no more lines: {problem}", path.display())]
    JournalFailed {
        /// The journal.
        path: PathBuf,
        /// The first failure.
        problem: String,
    },
}

impl StoreError {
    /// Wraps an I/O error with what was tried and where.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }
}

/// What to do about it, to stand after the error.
pub(super) fn hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; free some space, then resume the run",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; choose a folder you may write to with `--output-dir`"
        }
        _ => "",
    }
}
