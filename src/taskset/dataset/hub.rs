//! The Hugging Face hub cache, read only: finds the files of a data set that was downloaded before. Never downloads.
//!
//! Layout, as `huggingface_hub` writes it: `<cache>/datasets--<owner>--<name>/refs/<revision>` holds a commit, and
//! `snapshots/<commit>/…` the files of that commit.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use super::TasksetError;

/// A cache folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubCache {
    root: PathBuf,
}

/// Which files of which data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubDataset {
    /// `owner/name`.
    pub repo: String,
    /// Configuration (subset), for example `main`; empty for a data set that has only one.
    pub config: String,
    /// For example `train`.
    pub split: String,
    /// A branch, tag or commit; `main` by habit.
    pub revision: String,
}

impl HubCache {
    /// The cache of this user: `HF_HUB_CACHE`, else `HF_HOME/hub`, else `XDG_CACHE_HOME/huggingface/hub`, else
    /// `~/.cache/huggingface/hub`.
    pub fn of_user() -> Self {
        Self::from_variables(env::var_os)
    }

    fn from_variables(variable: impl Fn(&'static str) -> Option<OsString>) -> Self {
        let folder = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let root = folder("HF_HUB_CACHE").or_else(|| folder("HUGGINGFACE_HUB_CACHE")).unwrap_or_else(|| {
            let home = folder("HF_HOME").unwrap_or_else(|| {
                let cache =
                    folder("XDG_CACHE_HOME").unwrap_or_else(|| folder("HOME").unwrap_or_default().join(".cache"));
                cache.join("huggingface")
            });
            home.join("hub")
        });
        Self { root }
    }

    /// The cache in this folder.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The data files of one split, Parquet before JSON lines, in the order of their names. A file belongs to a split
    /// when its name begins with it (`train-00000-of-00001.parquet`, `train.jsonl`), also behind the configuration's name
    /// (`main_train.jsonl`), or when it lies in a folder of that name; and to a configuration when it lies in a folder of
    /// that name or its name begins with it.
    ///
    /// # Errors
    /// When the data set, the revision or the split is not in the cache; says how to get it.
    pub fn dataset(&self, dataset: &HubDataset) -> Result<Vec<PathBuf>, TasksetError> {
        let snapshot = self.snapshot(dataset)?;
        let mut files = Vec::new();
        list(&snapshot, Path::new(""), &mut files);
        files.sort();
        let of_config: Vec<&PathBuf> = files.iter().filter(|file| in_config(file, &dataset.config)).collect();
        let found: Vec<&PathBuf> = of_config.into_iter().filter(|file| in_split(file, dataset)).collect();
        let readable = |extension: &str| -> Vec<PathBuf> {
            found.iter().filter(|file| has_extension(file, extension)).map(|file| snapshot.join(file)).collect()
        };
        for extension in ["parquet", "jsonl", "ndjson", "json"] {
            let files = readable(extension);
            if !files.is_empty() {
                return Ok(files);
            }
        }
        let HubDataset { repo, config, split, .. } = dataset;
        let there: Vec<String> = files.iter().take(8).map(|file| file.display().to_string()).collect();
        Err(TasksetError::Source(format!(
            "no data file for configuration `{config}`, split `{split}` of `{repo}` in {}; files there: {}; {}",
            snapshot.display(),
            if there.is_empty() { "none".to_owned() } else { there.join(", ") },
            how_to_get(dataset),
        )))
    }

    fn snapshot(&self, dataset: &HubDataset) -> Result<PathBuf, TasksetError> {
        let HubDataset { repo, revision, .. } = dataset;
        if !is_repo(repo) || !is_revision(revision) {
            return Err(TasksetError::Source(format!(
                "`{repo}` at `{revision}` is no data set on the hub: expected `owner/name` and a branch, tag or commit"
            )));
        }
        let folder = self.root.join(format!("datasets--{}", repo.replace('/', "--")));
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
        if is_revision(&commit) && snapshot.is_dir() {
            return Ok(snapshot);
        }
        Err(TasksetError::Source(format!(
            "revision `{revision}` of data set `{repo}` is not in the Hugging Face cache {}; {}",
            self.root.display(),
            how_to_get(dataset),
        )))
    }
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

/// The files below a folder, as paths relative to it. Files of a snapshot are links into the blobs.
fn list(snapshot: &Path, below: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(snapshot.join(below)) else { return };
    for entry in entries.flatten() {
        let relative = below.join(entry.file_name());
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && !hidden => list(snapshot, &relative, files),
            Ok(kind) if !kind.is_dir() && !hidden => files.push(relative),
            _ => {}
        }
    }
}

fn has_extension(file: &Path, extension: &str) -> bool {
    file.extension().is_some_and(|found| found.eq_ignore_ascii_case(extension))
}

fn folders(file: &Path) -> impl Iterator<Item = &str> {
    file.parent().into_iter().flat_map(Path::components).filter_map(|part| part.as_os_str().to_str())
}

fn stem(file: &Path) -> &str {
    file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default()
}

/// The rest of a file's name behind a word and its separator; empty when the word is the whole name.
fn behind<'a>(name: &'a str, word: &str) -> Option<&'a str> {
    let rest = name.strip_prefix(word)?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix(['-', '_', '.']) }
}

fn in_config(file: &Path, config: &str) -> bool {
    if config.is_empty() {
        return true;
    }
    if folders(file).any(|folder| folder == config) || behind(stem(file), config).is_some() {
        return true;
    }
    // The hub calls the only configuration of a data set `default` and leaves it out of the paths.
    config == "default" && folders(file).all(|folder| folder == "data")
}

fn in_split(file: &Path, dataset: &HubDataset) -> bool {
    let HubDataset { config, split, .. } = dataset;
    let stem = stem(file);
    folders(file).any(|folder| folder == split)
        || behind(stem, split).is_some()
        || behind(stem, config).is_some_and(|rest| behind(rest, split).is_some())
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
