//! The cache, as it is read.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use super::{
    HubDataset, TasksetError,
    files::{choose, missing_shard},
};
use crate::telemetry::hub_cache;

/// A cache folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubCache {
    root: PathBuf,
}

impl HubCache {
    /// The cache of this user: `HF_HUB_CACHE`, else `HF_HOME/hub`, else `XDG_CACHE_HOME/huggingface/hub`, else
    /// `~/.cache/huggingface/hub`.
    pub fn of_user() -> Self {
        Self::from_variables(env::var_os)
    }

    pub(super) fn from_variables(variable: impl Fn(&'static str) -> Option<OsString>) -> Self {
        Self { root: hub_cache(variable) }
    }

    /// The cache in this folder.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The data files of one split in the cache: by the card of the data set, where it has one with `configs`, else by
    /// their names. A file belongs to a split when its name has the split's as a word (`train-00000-of-00001.parquet`,
    /// `main_train.jsonl`) or it lies in a folder of that name; and to a configuration when it lies in a folder of that
    /// name or its name begins with it.
    ///
    /// # Errors
    /// When the data set, the revision or the split is not in the cache, or not whole; says how to get it.
    pub fn dataset(&self, dataset: &HubDataset) -> Result<Vec<PathBuf>, TasksetError> {
        let snapshot = self.snapshot(dataset)?;
        let mut files = Vec::new();
        list(&snapshot, "", &mut files);
        files.sort();
        let card = fs::read_to_string(snapshot.join("README.md")).ok();
        let fault = |problem: String| {
            let (repo, place, way) = (&dataset.repo, snapshot.display(), how_to_get(dataset));
            TasksetError::Source(format!("data set `{repo}` in {place}: {problem}; {way}"))
        };
        let chosen = choose(&files, card.as_deref(), dataset).map_err(fault)?;
        if let Some(short) = missing_shard(&chosen) {
            return Err(fault(format!("only {short} are there")));
        }
        Ok(chosen.iter().map(|file| snapshot.join(file)).collect())
    }

    /// The folder of a data set.
    pub(super) fn folder(&self, repo: &str) -> PathBuf {
        self.root.join(name_of(repo))
    }

    /// The folder where those who write to the folder of a data set wait for each other.
    pub(super) fn locks(&self, repo: &str) -> PathBuf {
        self.root.join(".locks").join(name_of(repo))
    }

    fn snapshot(&self, dataset: &HubDataset) -> Result<PathBuf, TasksetError> {
        check_names(dataset)?;
        let HubDataset { repo, revision, .. } = dataset;
        let folder = self.folder(repo);
        if !folder.is_dir() {
            return Err(TasksetError::Source(format!(
                "data set `{repo}` is not in the Hugging Face cache {}; {}",
                self.root.display(),
                how_to_get(dataset),
            )));
        }
        let commit = fs::read_to_string(folder.join("refs").join(revision));
        let commit = commit.map_or_else(|_| revision.clone(), |commit| commit.trim().to_owned());
        let snapshot = folder.join("snapshots").join(&commit);
        let half = self.locks(repo).join(linking(&commit)).exists();
        if is_revision(&commit) && snapshot.is_dir() && !half {
            return Ok(snapshot);
        }
        Err(TasksetError::Source(format!(
            "revision `{revision}` of data set `{repo}` is not in the Hugging Face cache {}; {}",
            self.root.display(),
            how_to_get(dataset),
        )))
    }
}

/// The mark that a snapshot is being filled: while it is there, some files of a split may still be missing.
pub(super) fn linking(commit: &str) -> String {
    format!("{commit}.linking")
}

fn name_of(repo: &str) -> String {
    format!("datasets--{}", repo.replace('/', "--"))
}

/// Whether the names are those of a data set and a revision.
pub(super) fn check_names(HubDataset { repo, revision, .. }: &HubDataset) -> Result<(), TasksetError> {
    if is_repo(repo) && is_revision(revision) {
        return Ok(());
    }
    Err(TasksetError::Source(format!(
        "`{repo}` at `{revision}` is no data set on the hub: expected `owner/name` and a branch, tag or commit"
    )))
}

fn how_to_get(dataset: &HubDataset) -> String {
    format!(
        "fetch it once with `hf download --repo-type dataset --revision {} {}`, or point HF_HOME at a cache that has it",
        dataset.revision, dataset.repo
    )
}

fn is_repo(repo: &str) -> bool {
    let name = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    match repo.split_once('/') {
        Some((owner, rest)) => name(owner) && name(rest),
        None => name(repo),
    }
}

fn is_revision(revision: &str) -> bool {
    !revision.is_empty() && revision.split('/').all(|part| !part.is_empty() && !part.starts_with('.'))
}

/// The files below a folder, as paths relative to it with `/`. Files of a snapshot are links into the blobs.
fn list(folder: &Path, below: &str, files: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let relative = format!("{below}{name}");
        match entry.file_type() {
            _ if name.starts_with('.') => {}
            Ok(kind) if kind.is_dir() => list(&entry.path(), &format!("{relative}/"), files),
            // A link whose blob is gone is no file.
            Ok(_) if entry.path().exists() => files.push(relative),
            _ => {}
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests write the cache that they read")]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn gsm8k(split: &str, revision: &str) -> HubDataset {
        HubDataset {
            repo: "openai/gsm8k".to_owned(),
            config: "main".to_owned(),
            split: split.to_owned(),
            revision: revision.to_owned(),
        }
    }

    fn cache(files: &[&str]) -> (tempfile::TempDir, HubCache) {
        let root = tempfile::tempdir().expect("a temporary folder");
        let folder = root.path().join("datasets--openai--gsm8k");
        fs::create_dir_all(folder.join("refs")).expect("a folder");
        fs::write(folder.join("refs/main"), COMMIT).expect("a file");
        for file in files {
            let path = folder.join("snapshots").join(COMMIT).join(file);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            fs::write(path, "").expect("a file");
        }
        let cache = HubCache::at(root.path());
        (root, cache)
    }

    #[track_caller]
    fn finds(files: &[&str], split: &str, expected: &[&str]) {
        let (_root, cache) = cache(files);
        let found = cache.dataset(&gsm8k(split, "main")).expect("files");
        let found: Vec<String> = found
            .iter()
            .map(|file| file.display().to_string().split(&format!("{COMMIT}/")).nth(1).expect("inside").to_owned())
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn files_are_found_in_every_usual_layout() {
        let parquet = [
            "README.md",
            "main/test-00000-of-00001.parquet",
            "main/train-00000-of-00002.parquet",
            "main/train-00001-of-00002.parquet",
            "socratic/train-00000-of-00001.parquet",
        ];
        finds(&parquet, "test", &["main/test-00000-of-00001.parquet"]);
        finds(&parquet, "train", &["main/train-00000-of-00002.parquet", "main/train-00001-of-00002.parquet"]);
        finds(&["main/test/0000.parquet", "main/train/0000.parquet"], "test", &["main/test/0000.parquet"]);
        finds(&["main_test.jsonl", "main_train.jsonl"], "test", &["main_test.jsonl"]);
        finds(&["main/test.jsonl", "main/testing.jsonl"], "test", &["main/test.jsonl"]);
    }

    #[test]
    fn a_commit_names_itself() {
        let (_root, cache) = cache(&["main/test.jsonl"]);
        assert_eq!(cache.dataset(&gsm8k("test", COMMIT)).map(|files| files.len()), Ok(1));
    }

    #[test]
    fn what_is_missing_is_said_with_the_way_to_get_it() {
        let (_root, cache) = cache(&["main/test.jsonl"]);
        let message = |cache: &HubCache, dataset: HubDataset| {
            cache.dataset(&dataset).err().map(|error| error.to_string()).unwrap_or_default()
        };
        let split = message(&cache, gsm8k("validation", "main"));
        assert!(split.contains("split `validation`") && split.contains("main/test.jsonl"), "{split}");
        let revision = message(&cache, gsm8k("test", "v2"));
        assert!(revision.contains("revision `v2`") && revision.contains("hf download"), "{revision}");
        let absent = message(&HubCache::at("/nonexistent"), gsm8k("test", "main"));
        assert!(absent.contains("not in the Hugging Face cache /nonexistent"), "{absent}");
        let outside = message(&cache, gsm8k("test", "../../.."));
        assert!(outside.contains("no data set on the hub"), "{outside}");
    }

    #[test]
    fn the_users_cache_follows_the_variables() {
        let with = |set: &'static [(&str, &str)]| {
            HubCache::from_variables(move |name| {
                set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
            })
        };
        assert_eq!(with(&[("HOME", "/h")]), HubCache::at("/h/.cache/huggingface/hub"));
        assert_eq!(with(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]), HubCache::at("/x/huggingface/hub"));
        assert_eq!(with(&[("HOME", "/h"), ("HF_HOME", "/f")]), HubCache::at("/f/hub"));
        assert_eq!(with(&[("HF_HUB_CACHE", "/c"), ("HF_HOME", "/f")]), HubCache::at("/c"));
    }
}
