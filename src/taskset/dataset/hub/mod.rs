//! Data sets of the Hugging Face hub: from the cache on this machine, else downloaded into it.
//!
//! The cache is that of `huggingface_hub`, in its layout: `<cache>/datasets--<owner>--<name>/` with `blobs/` (the contents,
//! named by their hash), `snapshots/<commit>/…` (links to them under the names of that commit) and `refs/<revision>` (the
//! commit of a branch or tag). What one program has downloaded the other finds.

mod blobs;
mod cache;
mod card;
mod download;
mod files;
mod web;

use std::{env, ffi::OsString, path::PathBuf, sync::OnceLock};

pub use cache::HubCache;

use self::web::Web;
use super::TasksetError;
use crate::{config::Secret, telemetry::hub_home};

/// Who is told how far downloads are.
static WAITING: OnceLock<fn(&str)> = OnceLock::new();

/// Has the progress of downloads told, a line now and then, to whoever waits for them; the first call counts. It is in the
/// log, too, once there is one.
pub fn tell_progress(waiting: fn(&str)) {
    let _ = WAITING.set(waiting);
}

fn tell(progress: &str) {
    tracing::info!("{progress}");
    if let Some(waiting) = WAITING.get() {
        waiting(progress);
    }
}

/// Which files of which data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubDataset {
    /// `owner/name`.
    pub repo: String,
    /// Configuration (subset), for example `main`; empty for the default one.
    pub config: String,
    /// For example `train`.
    pub split: String,
    /// A branch, tag or commit; `main` by habit.
    pub revision: String,
}

/// The hub as this user has it.
#[derive(Clone)]
pub struct Hub {
    cache: HubCache,
    endpoint: String,
    token: Option<Secret>,
    offline: bool,
}

impl Hub {
    /// By the variables of `huggingface_hub`: the cache ([`HubCache::of_user`]), `HF_ENDPOINT` (<https://huggingface.co>
    /// without it), `HF_HUB_OFFLINE`, and the token in `HF_TOKEN`, else in the file `HF_TOKEN_PATH`, else in
    /// `HF_HOME/token`; no token with `HF_HUB_DISABLE_IMPLICIT_TOKEN`.
    pub fn of_user() -> Self {
        Self::from_variables(env::var_os)
    }

    fn from_variables(variable: impl Fn(&'static str) -> Option<OsString>) -> Self {
        let set = |name| variable(name).filter(|value| !value.is_empty());
        let on = |name| {
            let value = set(name).unwrap_or_default().to_string_lossy().to_uppercase();
            ["1", "ON", "YES", "TRUE"].contains(&value.as_str())
        };
        let text = |name| set(name).map(|value| value.to_string_lossy().trim().to_owned());
        let file = set("HF_TOKEN_PATH").map(PathBuf::from).unwrap_or_else(|| hub_home(&variable).join("token"));
        let token = text("HF_TOKEN").or_else(|| text("HUGGING_FACE_HUB_TOKEN"));
        let token = token.or_else(|| Some(std::fs::read_to_string(file).ok()?.trim().to_owned()));
        Self {
            cache: HubCache::from_variables(&variable),
            endpoint: text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned()),
            token: token.filter(|token| !token.is_empty() && !on("HF_HUB_DISABLE_IMPLICIT_TOKEN")).map(Secret::new),
            offline: on("HF_HUB_OFFLINE") || on("HF_DATASETS_OFFLINE"),
        }
    }

    /// A hub of one's own, for example a mirror.
    pub fn at(endpoint: &str, cache: HubCache, token: Option<Secret>) -> Self {
        Self { cache, endpoint: endpoint.to_owned(), token, offline: false }
    }

    /// The same, asked nothing: only what is in the cache is there.
    #[must_use]
    pub fn offline(self) -> Self {
        Self { offline: true, ..self }
    }

    /// The data files of one split. What the cache holds whole is taken from there without a question to the hub, also of
    /// a branch that has moved on since; else it is downloaded. Blocking.
    ///
    /// # Errors
    /// When there is no such data set, revision, configuration or split, the hub cannot be reached or refuses, or the files
    /// are of a format that this build cannot read. The message says what to change.
    pub fn dataset(&self, dataset: &HubDataset) -> Result<Vec<PathBuf>, TasksetError> {
        let missing = match self.cache.dataset(dataset) {
            Ok(files) => return Ok(files),
            Err(error) => error,
        };
        cache::check_names(dataset)?;
        if self.offline {
            let problem = "HF_HUB_OFFLINE is set, so it is not downloaded";
            return Err(TasksetError::Source(format!("{missing}; {problem}")));
        }
        tracing::debug!(%missing, "asking the hub");
        let web = Web::new(&self.endpoint, self.token.clone())?;
        // A thread of its own, since a runtime cannot be entered from a worker of another.
        let downloaded = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let runtime = runtime.map_err(|error| TasksetError::Source(format!("cannot download: {error}")))?;
                runtime.block_on(download::download(&self.cache, &web, dataset))
            });
            thread.join()
        });
        downloaded.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_says_where_the_hub_is_and_who_asks() {
        let folder = tempfile::tempdir().expect("a folder");
        let token = folder.path().join("token");
        #[expect(clippy::disallowed_methods, reason = "the test writes what it reads")]
        std::fs::write(&token, "hf_of_the_file\n").expect("a file");
        let with = |set: &[(&str, &str)]| {
            Hub::from_variables(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
        };
        let shown = |hub: &Hub| hub.token.as_ref().map(|token| token.expose().to_owned());
        let home = folder.path().to_str().expect("text");
        let hub = with(&[("HF_HOME", home)]);
        assert_eq!((hub.endpoint.as_str(), hub.offline), ("https://huggingface.co", false));
        assert_eq!(shown(&hub).as_deref(), Some("hf_of_the_file"));
        let hub = with(&[("HF_HOME", home), ("HF_TOKEN", "hf_given"), ("HF_ENDPOINT", "http://mirror/")]);
        assert_eq!((hub.endpoint.as_str(), shown(&hub).as_deref()), ("http://mirror/", Some("hf_given")));
        let hub = with(&[("HF_HOME", home), ("HF_HUB_OFFLINE", "1"), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "true")]);
        assert_eq!((hub.offline, shown(&hub)), (true, None));
    }
}
