//! What a program of ours writes on its standard streams, kept up to a bound.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use super::StoreError;

/// A log that keeps the newest: when the file is full it becomes `<name>.1`, in place of what was so before.
#[derive(Debug)]
pub struct OutputLog {
    path: PathBuf,
    file: File,
    size: u64,
    largest: u64,
}

impl OutputLog {
    /// Goes on with a log, or begins it; missing parents are made. Two files of `largest` bytes are kept at most.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn open(path: &Path, largest: u64) -> Result<Self, StoreError> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(StoreError::io("create", parent))?;
        }
        let file = append(path).map_err(StoreError::io("write", path))?;
        let size = file.metadata().map_err(StoreError::io("read", path))?.len();
        Ok(Self { path: path.to_owned(), file, size, largest })
    }

    /// Appends a piece.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn append(&mut self, piece: &[u8]) -> Result<(), StoreError> {
        if self.size > 0 && self.size + piece.len() as u64 > self.largest {
            let mut full = self.path.clone().into_os_string();
            full.push(".1");
            fs::rename(&self.path, full).map_err(StoreError::io("rename", &self.path))?;
            self.file = append(&self.path).map_err(StoreError::io("write", &self.path))?;
            self.size = 0;
        }
        self.file.write_all(piece).map_err(StoreError::io("write", &self.path))?;
        self.size += piece.len() as u64;
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    File::options().append(true).create(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_is_kept_and_no_more_than_twice_the_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/worker-0.log");
        for round in 0..10 {
            let mut log = OutputLog::open(&path, 20).unwrap();
            log.append(format!("line {round}\n").as_bytes()).unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "line 8\nline 9\n");
        assert_eq!(fs::read_to_string(path.with_extension("log.1")).unwrap(), "line 6\nline 7\n");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 2);
    }
}
