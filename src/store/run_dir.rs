//! The directory of one run: its layout, who may write in it, and how it is begun, cleaned and resumed.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{Read, Seek, SeekFrom, Write},
    path::{Component, Path, PathBuf},
};

use super::{Results, RunState, StoreError, atomic::write_json, write_atomically};

/// How a run directory is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// A new run; refused where finished rollouts lie.
    Fresh,
    /// A new run; what an earlier run left there is deleted first.
    Clean,
    /// Go on with the run that lies there.
    Resume,
}

/// A run directory that this process alone may write to, until this value is dropped.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    // Held, never read: closing it frees the lock, also when the process is killed.
    _lock: File,
}

impl RunDir {
    /// Opens `<output_dir>/<run_dir>` and takes its lock. `run_dir` must be a plain relative path. Everything is tried
    /// before anything is spent: the folder is made and written to, so that a read-only or full disk is found here.
    pub fn open(output_dir: &Path, run_dir: &Path, opening: Opening) -> Result<Self, StoreError> {
        let plain = run_dir.components().all(|part| matches!(part, Component::Normal(_)));
        if !plain || run_dir.as_os_str().is_empty() {
            return Err(StoreError::Outside { dir: run_dir.to_owned(), output: output_dir.to_owned() });
        }
        Self::open_at(&output_dir.join(run_dir), opening)
    }

    /// Opens an existing run's directory to go on with it.
    pub fn resume(path: &Path) -> Result<Self, StoreError> {
        Self::open_at(path, Opening::Resume)
    }

    fn open_at(path: &Path, opening: Opening) -> Result<Self, StoreError> {
        let is_run = path.join("traces.jsonl").exists() || path.join("run.json").exists();
        if opening == Opening::Resume && !is_run {
            let problem = if path.exists() { "there is no `traces.jsonl` in it" } else { "there is no such folder" };
            return Err(StoreError::NotARun { path: path.to_owned(), problem: problem.to_owned() });
        }
        if opening == Opening::Clean && !is_run && !is_ours(path)? {
            return Err(StoreError::NotOurs { path: path.to_owned() });
        }
        fs::create_dir_all(path).map_err(StoreError::io("create", path))?;
        let run = Self { path: path.to_owned(), _lock: lock(path)? };
        match opening {
            Opening::Resume => {}
            Opening::Clean => run.delete_content()?,
            Opening::Fresh => {
                let length = |path: PathBuf| fs::metadata(path).map_or(0, |file| file.len());
                if length(run.traces()) > 0 || length(run.pending()) > 0 {
                    return Err(StoreError::NotEmpty { path: path.to_owned() });
                }
            }
        }
        run.probe()?;
        if opening != Opening::Resume {
            File::create(run.traces()).map_err(StoreError::io("write", &run.traces()))?;
        }
        Ok(run)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The journal.
    pub fn traces(&self) -> PathBuf {
        traces_of(&self.path)
    }

    /// The episodes that only lack their scores; the file may be missing.
    pub fn pending(&self) -> PathBuf {
        pending_of(&self.path)
    }

    /// The resolved config.
    pub fn resolved_config(&self) -> PathBuf {
        resolved_config_of(&self.path)
    }

    /// Writes the resolved config, atomically.
    pub fn save_resolved(&self, config: &serde_json::Value) -> Result<(), StoreError> {
        write_json(&self.resolved_config(), config)
    }

    /// Writes the resolved config of a replay, atomically.
    pub fn save_replay_config(&self, config: &serde_json::Value) -> Result<(), StoreError> {
        write_json(&self.path.join(RESOLVED).join("replay.json"), config)
    }

    /// Copies launch files verbatim: `configs/eval.toml`, further ones as `configs/eval_2.toml` and so on.
    pub fn save_launch_files(&self, files: &[PathBuf]) -> Result<(), StoreError> {
        for (index, file) in files.iter().enumerate() {
            let text = fs::read(file).map_err(StoreError::io("read", file))?;
            let extension = file.extension().and_then(|extension| extension.to_str()).unwrap_or("toml");
            let name = match index {
                0 => format!("eval.{extension}"),
                _ => format!("eval_{}.{extension}", index + 1),
            };
            write_atomically(&self.path.join("configs").join(name), &text)?;
        }
        Ok(())
    }

    /// The state, if one was saved.
    pub fn load_state(&self) -> Result<Option<RunState>, StoreError> {
        state_of(&self.path)
    }

    /// Writes the state, atomically.
    pub fn save_state(&self, state: &RunState) -> Result<(), StoreError> {
        state.save(&self.path.join("run.json"))
    }

    /// Writes `results.json`, atomically.
    pub fn save_results(&self, results: &Results) -> Result<(), StoreError> {
        write_json(&results_of(&self.path), results)
    }

    /// Begins a launch: makes `logs/attempt_<n>/`, switches `logs/latest` to it, and opens its log for writing. Returns n,
    /// from 1, and the log.
    pub fn begin_attempt(&self, command: &str) -> Result<(u32, File), StoreError> {
        let logs = self.path.join("logs");
        fs::create_dir_all(&logs).map_err(StoreError::io("create", &logs))?;
        let entries = fs::read_dir(&logs).map_err(StoreError::io("read", &logs))?;
        let taken = entries.flatten().filter_map(|entry| {
            entry
                .file_name()
                .to_str()
                .and_then(|name| name.strip_prefix("attempt_"))
                .and_then(|n| n.parse::<u32>().ok())
        });
        let number = taken.max().unwrap_or(0) + 1;
        let name = format!("attempt_{number}");
        let folder = self.logs_of(number);
        fs::create_dir(&folder).map_err(StoreError::io("create", &folder))?;
        point_latest(&logs, &name)?;
        let log = folder.join(format!("{command}.log"));
        let file = File::create(&log).map_err(StoreError::io("write", &log))?;
        Ok((number, file))
    }

    /// The folder of an attempt's logs.
    pub fn logs_of(&self, attempt: u32) -> PathBuf {
        self.path.join("logs").join(format!("attempt_{attempt}"))
    }

    /// Writes and removes a small file, so that a full or read-only disk is found before the first request.
    fn probe(&self) -> Result<(), StoreError> {
        let probe = || {
            let mut file = tempfile::tempfile_in(&self.path)?;
            file.write_all(&[b' '; 4096])?;
            file.sync_data()
        };
        probe().map_err(StoreError::io("write to", &self.path))
    }

    fn delete_content(&self) -> Result<(), StoreError> {
        let entries = fs::read_dir(&self.path).map_err(StoreError::io("read", &self.path))?;
        for entry in entries {
            let entry = entry.map_err(StoreError::io("read", &self.path))?;
            let path = entry.path();
            if entry.file_name() == LOCK {
                continue;
            }
            // A link is removed, never followed.
            let is_folder = entry.file_type().map_err(StoreError::io("read", &path))?.is_dir();
            let deleted = if is_folder { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            deleted.map_err(StoreError::io("delete", &path))?;
        }
        Ok(())
    }
}

const LOCK: &str = "run.lock";

/// Where resolved configs lie.
const RESOLVED: &str = "configs/resolved";

/// The journal of a run directory that is only read.
pub fn traces_of(run: &Path) -> PathBuf {
    run.join("traces.jsonl")
}

/// The pending episodes of a run directory that is only read; the file may be missing.
pub fn pending_of(run: &Path) -> PathBuf {
    run.join("pending.jsonl")
}

/// The resolved config of a run directory that is only read.
pub fn resolved_config_of(run: &Path) -> PathBuf {
    run.join(RESOLVED).join("eval.json")
}

/// The resolved config of a run directory, whichever command left it: an evaluation, a replay, or a command of verifiers,
/// which keeps its own at the same place.
pub fn saved_config_of(run: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(run.join(RESOLVED)).into_iter().flatten().flatten();
    let json = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "json");
    entries.map(|entry| entry.path()).filter(json).min()
}

/// The results of a run directory that is only read.
pub fn results_of(run: &Path) -> PathBuf {
    run.join("results.json")
}

/// The state of a run directory that is only read.
pub fn state_of(run: &Path) -> Result<Option<RunState>, StoreError> {
    RunState::load(&run.join("run.json"))
}

/// An absent or empty folder, or one that only a run that never began has touched.
fn is_ours(path: &Path) -> Result<bool, StoreError> {
    if !path.exists() {
        return Ok(true);
    }
    let mut entries = fs::read_dir(path).map_err(StoreError::io("read", path))?;
    Ok(entries.all(|entry| entry.is_ok_and(|entry| entry.file_name() == LOCK || entry.file_name() == "configs")))
}

fn lock(path: &Path) -> Result<File, StoreError> {
    let lock_path = path.join(LOCK);
    let mut file = OpenOptions::new()
        .create(true)
        .read(true)
        .write(true)
        .truncate(false)
        .open(&lock_path)
        .map_err(StoreError::io("write to", path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            let holder = match holder.trim() {
                "" => "another process".to_owned(),
                holder => holder.to_owned(),
            };
            return Err(StoreError::Locked { path: path.to_owned(), holder });
        }
        // Some network file systems have no locks; a run there is better than none.
        Err(TryLockError::Error(error)) if error.kind() == std::io::ErrorKind::Unsupported => {
            tracing::warn!(path = %path.display(), "this file system has no locks: start only one process per run");
        }
        Err(TryLockError::Error(error)) => return Err(StoreError::io("lock", &lock_path)(error)),
    }
    let holder = format!("process {} on {}\n", std::process::id(), host());
    let sign = |file: &mut File| {
        file.set_len(0)?;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(holder.as_bytes())
    };
    sign(&mut file).map_err(StoreError::io("write to", path))?;
    Ok(file)
}

fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "this host".to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(unix)]
fn point_latest(logs: &Path, target: &str) -> Result<(), StoreError> {
    let (latest, fresh) = (logs.join("latest"), logs.join(".latest"));
    let _ = fs::remove_file(&fresh);
    std::os::unix::fs::symlink(target, &fresh).map_err(StoreError::io("link", &fresh))?;
    fs::rename(&fresh, &latest).map_err(StoreError::io("link", &latest))
}

#[cfg(not(unix))]
fn point_latest(_logs: &Path, _target: &str) -> Result<(), StoreError> {
    Ok(())
}
