//! Tasksets that lie in files: what a path names, and which files a taskset is made of.

use std::{
    collections::BTreeMap,
    env,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use sha2::{Digest, Sha256};

use super::{Found, TasksetError, declarative, python};
use crate::config;

/// The file that makes a folder a declarative taskset.
pub const DECLARATION: &str = "taskset.toml";
/// The file that makes a folder a taskset in Python.
pub const PYTHON: &str = "taskset.py";

/// What defines the taskset at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Definition {
    /// A declaration: this TOML file.
    Declared(PathBuf),
    /// Functions in Python: this file.
    Python(PathBuf),
    /// A Rust package of its own: this folder.
    Package(PathBuf),
}

impl Definition {
    /// The file or folder.
    pub fn place(&self) -> &Path {
        match self {
            Self::Declared(place) | Self::Python(place) | Self::Package(place) => place,
        }
    }
}

/// Whether an id is a path whatever lies there: it begins with `.`, `/` or `~`, or ends in `.toml` or `.py`.
pub fn is_path(id: &str) -> bool {
    id.starts_with(['.', '/', '~']) || [".toml", ".py"].iter().any(|ending| id.ends_with(ending))
}

/// Whether a folder holds a taskset, or a file is one.
pub fn is_taskset(id: &str) -> bool {
    definition(id).is_ok()
}

/// What lies at a path: a folder with `taskset.toml` or `taskset.py`, such a file itself, or a Rust package. `~` at the
/// beginning is the home folder; other paths are relative to the current folder.
///
/// # Errors
/// When nothing lies there, or no taskset; says what is missing.
pub fn definition(id: &str) -> Result<Definition, TasksetError> {
    let path = expanded(id);
    let refused = |problem: String| Err(TasksetError::Source(problem));
    if path.is_file() {
        return match path.extension().and_then(|extension| extension.to_str()) {
            Some("toml") if path.file_name().is_some_and(|name| name == "Cargo.toml") => {
                Ok(Definition::Package(path.parent().map(Path::to_owned).unwrap_or_default()))
            }
            Some("toml") => Ok(Definition::Declared(path)),
            Some("py") => Ok(Definition::Python(path)),
            _ => refused(format!("`{id}` is no taskset: expected a folder, or a file that ends in .toml or .py")),
        };
    }
    if !path.is_dir() {
        return refused(format!("there is no taskset at `{id}`: nothing lies there; `rollhouse init {id}` makes one"));
    }
    let (declared, python) = (path.join(DECLARATION), path.join(PYTHON));
    match (declared.is_file(), python.is_file()) {
        (true, true) => {
            refused(format!("the folder `{id}` has both {DECLARATION} and {PYTHON}: name the file that is meant"))
        }
        (true, false) => Ok(Definition::Declared(declared)),
        (false, true) => Ok(Definition::Python(python)),
        (false, false) if path.join("Cargo.toml").is_file() => Ok(Definition::Package(path)),
        (false, false) => refused(format!(
            "the folder `{id}` has no {DECLARATION} or {PYTHON}; `rollhouse init {id}` makes a taskset there"
        )),
    }
}

/// The taskset at a path; see [`definition`].
///
/// # Errors
/// Those of [`definition`]; a Rust package, which is not part of this program.
pub fn find_at(id: &str) -> Result<Found, TasksetError> {
    match definition(id)? {
        Definition::Declared(file) => Ok(declarative::found(&file)),
        Definition::Python(file) => Ok(python::found(&file)),
        Definition::Package(folder) => Err(TasksetError::Package { folder }),
    }
}

/// The folders directly below a folder that hold a declarative or Python taskset, by name.
pub fn below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let holds = |path: &PathBuf| path.join(DECLARATION).is_file() || path.join(PYTHON).is_file();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(holds).collect();
    found.sort();
    found
}

/// The folder of the current one that an id nearly names: the same name but for case, `_` and `-`.
pub(super) fn folder_like(id: &str) -> Option<String> {
    let wanted = config::taskset_label(id);
    let entries = fs::read_dir(".").into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter(|entry| entry.path().is_dir())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| !name.starts_with('.') && config::taskset_label(name) == wanted)
        .collect();
    names.sort();
    names.into_iter().next()
}

/// Most files of a taskset that are looked at, and how deep its folders may be.
const MOST_FILES: usize = 1000;
const DEEPEST: usize = 4;
/// A larger file is told by its size and the time of its last change, so that a run does not wait for its data.
const LARGEST_READ: u64 = 1 << 20;

/// The files that a taskset is made of, each with a digest of what is in it; by their names relative to its folder. A
/// taskset that is a folder is made of all files in it but cards, cases, hidden ones and what runs leave; one that is a
/// file, of that file.
pub fn fingerprint(definition: &Definition) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let (file, name) = match definition {
        Definition::Declared(file) => (file, DECLARATION),
        Definition::Python(file) => (file, PYTHON),
        Definition::Package(folder) => {
            add_folder(folder, "", DEEPEST, &mut files);
            return files;
        }
    };
    let folder = file.parent().unwrap_or(Path::new(""));
    if file.file_name().is_some_and(|own| own == name) {
        add_folder(if folder.as_os_str().is_empty() { Path::new(".") } else { folder }, "", DEEPEST, &mut files);
    } else {
        add_file(file, file.file_name().unwrap_or_default().to_string_lossy().into_owned(), &mut files);
    }
    files
}

fn add_folder(folder: &Path, below: &str, depth: usize, files: &mut BTreeMap<String, String>) {
    let mut entries: Vec<_> = fs::read_dir(folder).into_iter().flatten().flatten().collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let left_out = ["README.md", "cases.jsonl", "outputs", "target", "__pycache__"].contains(&name.as_str());
        if left_out || name.starts_with('.') || files.len() >= MOST_FILES {
            continue;
        }
        let path = entry.path();
        let shown = format!("{below}{name}");
        if path.is_dir() {
            if depth > 0 {
                add_folder(&path, &format!("{shown}/"), depth - 1, files);
            }
        } else {
            add_file(&path, shown, files);
        }
    }
}

fn add_file(path: &Path, name: String, files: &mut BTreeMap<String, String>) {
    // What cannot be read is no reason to stop here: whoever needs it says so.
    if let Ok(digest) = digest(path) {
        files.insert(name, digest);
    }
}

fn digest(path: &Path) -> io::Result<String> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    if metadata.len() > LARGEST_READ {
        let changed = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        return Ok(format!("{} bytes, changed {}", metadata.len(), changed.as_millis()));
    }
    let mut hasher = Sha256::new();
    io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok(hasher.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

/// A path with the home folder in place of a `~` at its beginning.
pub(super) fn expanded(id: &str) -> PathBuf {
    match id.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/')) {
        Some(rest) => PathBuf::from(env::var_os("HOME").unwrap_or_default()).join(rest.trim_start_matches('/')),
        None => PathBuf::from(id),
    }
}
