//! `run.json`: what a run is and which attempts worked on it, with a format version.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use serde::{Deserialize, Serialize};

use super::{StoreError, atomic::write_json};

/// Format version that this build writes. Older ones are read as long as they can be mended.
pub const STATE_VERSION: u32 = 1;

/// What a run is; enough to summarise it without loading its taskset.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    /// Format version.
    pub version: u32,
    /// The run's id, as on every line.
    pub id: String,
    /// The run's name.
    pub name: String,
    /// Taskset id.
    pub taskset: String,
    /// Model name.
    pub model: String,
    /// The model is the built-in simulator.
    pub simulated: bool,
    /// Episodes per task.
    pub num_rollouts: u32,
    /// Selected tasks; absent while not all were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<u64>,
    /// The files that a taskset of the user's own is made of, each with a digest of what is in it, as they were when the run
    /// began.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub taskset_files: BTreeMap<String, String>,
    /// Launches, in order.
    #[serde(default)]
    pub attempts: Vec<Attempt>,
    /// The run whose rollouts these are, scored anew; absent for a run that made its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceRun>,
}

/// The run that a replay took its rollouts from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SourceRun {
    /// Its folder, as it was named.
    pub run_dir: String,
    /// Its id, where it has a `run.json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its name, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// One launch of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Number, from 1; its log lies in `logs/attempt_<number>`.
    pub number: u32,
    /// When it began, epoch seconds.
    pub started: f64,
    /// How long it ran, seconds; 0 when it was killed.
    #[serde(default)]
    pub seconds: f64,
    /// Finished episodes it found.
    #[serde(default)]
    pub resumed: u64,
}

impl RunState {
    /// Wall time of all attempts that ended by themselves, seconds.
    pub fn wall_seconds(&self) -> f64 {
        self.attempts.iter().map(|attempt| attempt.seconds).sum()
    }

    /// The files of the taskset that are not what they were when the run began: changed, gone or new, by name. None for a run
    /// that recorded none.
    pub fn changed_files(&self, now: &BTreeMap<String, String>) -> Vec<String> {
        if self.taskset_files.is_empty() {
            return Vec::new();
        }
        let names: BTreeSet<&String> = self.taskset_files.keys().chain(now.keys()).collect();
        names.into_iter().filter(|name| self.taskset_files.get(*name) != now.get(*name)).cloned().collect()
    }

    pub(crate) fn load(path: &Path) -> Result<Option<Self>, StoreError> {
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StoreError::io("read", path)(error)),
        };
        let malformed = |problem: String| StoreError::Format {
            path: path.to_owned(),
            problem: format!("not a run state: {problem}"),
        };
        let value: serde_json::Value = serde_json::from_slice(&text).map_err(|error| malformed(error.to_string()))?;
        // The version is looked at before anything else, so that a newer file is named as such.
        let found = value.get("version").and_then(serde_json::Value::as_u64);
        let found = found.ok_or_else(|| malformed("it has no `version`".to_owned()))?;
        if found > u64::from(STATE_VERSION) {
            return Err(StoreError::Version { path: path.to_owned(), found, supported: STATE_VERSION });
        }
        serde_json::from_value(value).map(Some).map_err(|error| malformed(error.to_string()))
    }

    pub(crate) fn save(&self, path: &Path) -> Result<(), StoreError> {
        write_json(path, self)
    }
}
