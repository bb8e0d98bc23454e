//! A folder that holds generations of something big, and a link to the one that counts.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use super::StoreError;

/// The link to the generation that counts.
const CURRENT: &str = "current";
/// Held by whoever changes the folder.
const LOCK: &str = ".lock";

/// A folder of generations that this process alone may change, until this value is dropped.
#[derive(Debug)]
pub struct Generations {
    folder: PathBuf,
    // Held, never read: closing it frees the lock, also when the process is killed.
    _lock: File,
}

/// A generation that is being made, at the path where it will stay. Dropped before it counts, it is gone.
#[derive(Debug)]
pub struct Generation<'a> {
    generations: &'a Generations,
    folder: tempfile::TempDir,
}

impl Generations {
    /// Opens a folder, which is made if it is not there, and waits for whoever changes it. What a killed process left half
    /// made is removed.
    ///
    /// # Errors
    /// When it cannot be made, locked or cleaned.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        let path = folder.join(LOCK);
        loop {
            fs::create_dir_all(folder).map_err(StoreError::io("create", folder))?;
            let lock = File::create(&path).map_err(StoreError::io("write", &path))?;
            lock.lock().map_err(StoreError::io("lock", &path))?;
            // Whoever had it before may have removed all of it.
            let same = |file: fs::Metadata| lock.metadata().is_ok_and(|own| own.ino() == file.ino());
            if fs::metadata(&path).is_ok_and(same) {
                let generations = Self { folder: folder.to_owned(), _lock: lock };
                generations.clean()?;
                return Ok(generations);
            }
        }
    }

    /// The generation that counts, by its own path.
    pub fn current(&self) -> Option<PathBuf> {
        fs::canonicalize(self.folder.join(CURRENT)).ok()
    }

    /// Begins a new one.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn begin(&self) -> Result<Generation<'_>, StoreError> {
        let folder = tempfile::Builder::new().prefix("made-").tempdir_in(&self.folder);
        let folder = folder.map_err(StoreError::io("create", &self.folder))?;
        Ok(Generation { generations: self, folder })
    }

    /// Removes every generation that does not count.
    fn clean(&self) -> Result<(), StoreError> {
        let current = self.current();
        for entry in fs::read_dir(&self.folder).map_err(StoreError::io("read", &self.folder))?.flatten() {
            let made = entry.file_name().to_string_lossy().starts_with("made-");
            if made && fs::canonicalize(entry.path()).ok() != current {
                fs::remove_dir_all(entry.path()).map_err(StoreError::io("remove", &entry.path()))?;
            }
        }
        Ok(())
    }
}

impl Drop for Generations {
    /// Where nothing was finished ever, nothing stays.
    fn drop(&mut self) {
        if self.current().is_none() {
            let _ = fs::remove_file(self.folder.join(LOCK));
            let _ = fs::remove_dir(&self.folder);
        }
    }
}

impl Generation<'_> {
    /// Where it is made.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a small file into it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, file: &Path, text: &str) -> Result<(), StoreError> {
        let path = self.path().join(file);
        fs::write(&path, text).map_err(StoreError::io("write", &path))
    }

    /// Has it count from now on, at once for all who look; the one before is removed.
    ///
    /// # Errors
    /// When the link cannot be changed; the one before counts still.
    pub fn finish(self) -> Result<PathBuf, StoreError> {
        let link = self.generations.folder.join(CURRENT);
        let next = self.generations.folder.join(".next");
        let name = self.path().file_name().map(PathBuf::from).unwrap_or_default();
        let failed = StoreError::io("replace", &link);
        let made: io::Result<()> = (|| {
            let _ = fs::remove_file(&next);
            std::os::unix::fs::symlink(name, &next)?;
            fs::rename(&next, &link)
        })();
        made.map_err(failed)?;
        let generations = self.generations;
        let path = self.folder.keep();
        generations.clean()?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_counts_when_it_is_finished_and_not_before() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("deep/mine");
        let generations = Generations::open(&folder).unwrap();
        drop(generations.begin().unwrap());
        assert_eq!(generations.current(), None);
        drop(generations);
        assert!(!folder.exists(), "a first one that failed leaves nothing");
        let generations = Generations::open(&folder).unwrap();
        let first = generations.begin().unwrap();
        first.write(Path::new("a"), "1").unwrap();
        let first = first.finish().unwrap();
        assert_eq!(fs::read_to_string(folder.join("current/a")).unwrap(), "1");
        let failed = generations.begin().unwrap();
        failed.write(Path::new("a"), "half").unwrap();
        drop(failed);
        assert_eq!(fs::read_to_string(folder.join("current/a")).unwrap(), "1");
        let second = generations.begin().unwrap();
        second.write(Path::new("a"), "2").unwrap();
        second.finish().unwrap();
        assert_eq!(fs::read_to_string(folder.join("current/a")).unwrap(), "2");
        assert!(!first.exists());
        // What a kill leaves.
        fs::create_dir(folder.join("made-half")).unwrap();
        drop(generations);
        let generations = Generations::open(&folder).unwrap();
        assert!(!folder.join("made-half").exists() && generations.current().is_some());
    }
}
