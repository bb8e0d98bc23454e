//! Where the library `huggingface_hub` keeps its files for this user.

use std::{ffi::OsString, path::PathBuf};

/// Its folder: `HF_HOME`, else `XDG_CACHE_HOME/huggingface`, else `~/.cache/huggingface`.
pub fn hub_home(variable: impl Fn(&'static str) -> Option<OsString>) -> PathBuf {
    let folder = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    folder("HF_HOME").unwrap_or_else(|| {
        let cache = folder("XDG_CACHE_HOME").unwrap_or_else(|| folder("HOME").unwrap_or_default().join(".cache"));
        cache.join("huggingface")
    })
}

/// Its cache of models and data sets: `HF_HUB_CACHE`, else `hub` in its folder.
pub fn hub_cache(variable: impl Fn(&'static str) -> Option<OsString>) -> PathBuf {
    let folder = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let root = folder("HF_HUB_CACHE").or_else(|| folder("HUGGINGFACE_HUB_CACHE"));
    root.unwrap_or_else(|| hub_home(&variable).join("hub"))
}
