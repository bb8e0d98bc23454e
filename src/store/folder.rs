//! New folders with files of the user's own.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::StoreError;

/// Makes a folder that was not there, with files in it, whole or not at all; missing parents are made.
///
/// # Errors
/// When something lies at the path, which is then left as it is, or it cannot be written.
pub fn make_folder(path: &Path, files: &[(PathBuf, String)]) -> Result<(), StoreError> {
    let empty = path.read_dir().is_ok_and(|mut entries| entries.next().is_none());
    if path.symlink_metadata().is_ok() && !empty {
        return Err(StoreError::io("make", path)(io::ErrorKind::AlreadyExists.into()));
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(StoreError::io("make", parent))?;
    let building = tempfile::Builder::new().prefix(".rollhouse-").tempdir_in(parent);
    let building = building.map_err(StoreError::io("make", path))?;
    let made = building.path().join("made");
    for (name, text) in files {
        let file = made.join(name);
        let folder = file.parent().unwrap_or(&made);
        fs::create_dir_all(folder).map_err(StoreError::io("make", path))?;
        fs::write(&file, text).map_err(StoreError::io("write", &path.join(name)))?;
    }
    // An empty folder is all that a rename could replace.
    fs::rename(&made, path).map_err(StoreError::io("make", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_made_whole_and_never_over_another() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("deep/new");
        let files = |text: &str| vec![(PathBuf::from("a.txt"), text.to_owned()), ("b/c.txt".into(), text.to_owned())];
        make_folder(&path, &files("one")).unwrap();
        assert_eq!(fs::read_to_string(path.join("b/c.txt")).unwrap(), "one");
        let error = make_folder(&path, &files("two")).unwrap_err().to_string();
        assert!(error.contains("exists"), "{error}");
        assert_eq!(fs::read_to_string(path.join("a.txt")).unwrap(), "one");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing is left behind");
    }
}
