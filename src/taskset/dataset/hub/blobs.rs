//! Writing the cache. This file is a door for files: `store` writes the directories of runs, this the cache of another
//! program, in that program's layout and under its locks.
//!
//! Nothing half is ever taken for whole: a content is written under another name, checked, synced and renamed; a link is
//! made when its content is there.

#![expect(clippy::disallowed_methods, reason = "a door for files: the cache belongs to huggingface_hub, see above")]

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::TasksetError;

/// What is there of one content, held against other writers until it is dropped.
pub(super) struct Blob {
    path: PathBuf,
    partial: PathBuf,
    file: File,
    /// Bytes written.
    pub(super) length: u64,
    _lock: File,
}

impl Blob {
    /// The content of this name in a cache folder; `None` when it is there whole. Waits for another process that writes it.
    pub(super) fn open(folder: &Path, locks: &Path, hash: &str) -> Result<Option<Self>, TasksetError> {
        let path = folder.join("blobs").join(hash);
        if path.is_file() {
            return Ok(None);
        }
        make_folder(&folder.join("blobs"))?;
        let lock = lock(locks, &format!("{hash}.lock"))?;
        // Who held the lock may have written it.
        if path.is_file() {
            return Ok(None);
        }
        let partial = folder.join("blobs").join(format!("{hash}.incomplete"));
        let file = OpenOptions::new().read(true).append(true).create(true).open(&partial);
        let file = file.map_err(|error| fault("write", &partial, &error))?;
        let length = file.metadata().map_err(|error| fault("read", &partial, &error))?.len();
        Ok(Some(Self { path, partial, file, length, _lock: lock }))
    }

    /// Adds what came.
    pub(super) fn add(&mut self, bytes: &[u8]) -> Result<(), TasksetError> {
        self.file.write_all(bytes).map_err(|error| fault("write", &self.partial, &error))?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Begins anew.
    pub(super) fn clear(&mut self) -> Result<(), TasksetError> {
        self.file.set_len(0).map_err(|error| fault("write", &self.partial, &error))?;
        self.length = 0;
        Ok(())
    }

    /// SHA-256 of what is there, 64 lowercase hex digits.
    pub(super) fn sha256(&mut self) -> Result<String, TasksetError> {
        let mut digest = Sha256::new();
        let mut chunk = vec![0; 1 << 16];
        let read = |error: &io::Error| fault("read", &self.partial, error);
        self.file.seek(SeekFrom::Start(0)).map_err(|error| read(&error))?;
        loop {
            match self.file.read(&mut chunk).map_err(|error| read(&error))? {
                0 => break,
                count => digest.update(&chunk[..count]),
            }
        }
        Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Puts the whole content in its place.
    pub(super) fn finish(self) -> Result<(), TasksetError> {
        self.file.sync_all().map_err(|error| fault("write", &self.partial, &error))?;
        fs::rename(&self.partial, &self.path).map_err(|error| fault("write", &self.path, &error))
    }
}

/// Puts the files of a commit into its snapshot, all of them or a mark that some are missing, and makes the revision stand
/// for the commit. `files` are paths with `/` and the names of their contents.
pub(super) fn link(
    folder: &Path,
    locks: &Path,
    (revision, commit): (&str, &str),
    mark: &str,
    files: &[(String, String)],
) -> Result<(), TasksetError> {
    let _lock = lock(locks, "snapshot.lock")?;
    let mark = locks.join(mark);
    File::create(&mark).map_err(|error| fault("write", &mark, &error))?;
    for (path, hash) in files {
        let place = folder.join("snapshots").join(commit).join(path);
        if place.exists() {
            continue;
        }
        let up = "../".repeat(2 + path.matches('/').count());
        place_file(folder, &place, Path::new(&format!("{up}blobs/{hash}")), hash)?;
    }
    if revision != commit {
        let place = folder.join("refs").join(revision);
        replace(&place, |temporary| fs::write(temporary, commit))?;
    }
    fs::remove_file(&mark).map_err(|error| fault("remove", &mark, &error))
}

#[cfg(unix)]
fn place_file(_: &Path, place: &Path, target: &Path, _: &str) -> Result<(), TasksetError> {
    replace(place, |temporary| std::os::unix::fs::symlink(target, temporary))
}

/// Without links the file itself moves, as `huggingface_hub` does it there.
#[cfg(not(unix))]
fn place_file(folder: &Path, place: &Path, _: &Path, hash: &str) -> Result<(), TasksetError> {
    replace(place, |temporary| fs::copy(folder.join("blobs").join(hash), temporary).map(drop))
}

/// Makes a file beside its place and moves it there.
fn replace(place: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), TasksetError> {
    let folder = place.parent().unwrap_or(Path::new("."));
    make_folder(folder)?;
    let temporary = folder.join(format!(".{}", uuid::Uuid::new_v4().simple()));
    make(&temporary).and_then(|()| fs::rename(&temporary, place)).map_err(|error| fault("write", place, &error))
}

fn lock(locks: &Path, name: &str) -> Result<File, TasksetError> {
    make_folder(locks)?;
    let path = locks.join(name);
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
    let file = file.map_err(|error| fault("write", &path, &error))?;
    if file.try_lock().is_err() {
        tracing::info!(lock = %path.display(), "waiting for another process that downloads the same");
        file.lock().map_err(|error| fault("lock", &path, &error))?;
    }
    Ok(file)
}

fn make_folder(folder: &Path) -> Result<(), TasksetError> {
    fs::create_dir_all(folder).map_err(|error| fault("make", folder, &error))
}

fn fault(action: &str, path: &Path, error: &io::Error) -> TasksetError {
    let hint = "make room or rights there, or name another cache with HF_HUB_CACHE";
    TasksetError::Source(format!("cannot {action} {}: {error}; {hint}", path.display()))
}
