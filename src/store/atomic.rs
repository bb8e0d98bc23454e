//! Files that are either the old ones or the new ones, never half of each.

use std::{fs::File, io::Write, path::Path};

use super::StoreError;

/// Writes a file so that readers, and a crash at any moment, see the old content or the new one: a temporary file beside
/// it is written, synced and renamed over it. Missing parent directories are made.
pub fn write_atomically(path: &Path, content: &[u8]) -> Result<(), StoreError> {
    replace(path, |file| file.write_all(content))
}

/// Writes a value as JSON for people, atomically.
pub(super) fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), StoreError> {
    let mut text = serde_json::to_vec_pretty(value)
        .map_err(|error| StoreError::Format { path: path.to_owned(), problem: error.to_string() })?;
    text.push(b'\n');
    write_atomically(path, &text)
}

/// [`write_atomically`] for content that is produced while it is written.
pub(crate) fn replace(path: &Path, write: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<(), StoreError> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(StoreError::io("create", folder))?;
    let mut temporary =
        tempfile::Builder::new().prefix(".rollhouse-").tempfile_in(folder).map_err(StoreError::io("write", path))?;
    write(temporary.as_file_mut()).map_err(StoreError::io("write", path))?;
    // Temporary files are private by default; results are for everyone who may read the folder.
    share(temporary.as_file()).map_err(StoreError::io("write", path))?;
    temporary.as_file().sync_all().map_err(StoreError::io("write", path))?;
    temporary.persist(path).map_err(|error| StoreError::Io {
        action: "replace",
        path: path.to_owned(),
        source: error.error,
    })?;
    sync_folder(folder);
    Ok(())
}

#[cfg(unix)]
fn share(file: &File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn share(_file: &File) -> std::io::Result<()> {
    Ok(())
}

/// Makes a rename durable. Some file systems cannot sync a folder; the rename itself is still atomic there.
fn sync_folder(folder: &Path) {
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_and_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/results.json");
        write_atomically(&path, b"one").unwrap();
        write_atomically(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_failed_write_keeps_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.json");
        write_atomically(&path, b"old").unwrap();
        let error = replace(&path, |file| {
            file.write_all(b"half")?;
            Err(std::io::ErrorKind::StorageFull.into())
        })
        .unwrap_err();
        assert!(error.to_string().contains("free some space"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
