//! The register of shipped tasksets: what is known of one before it is opened.

use std::{borrow::Cow, path::PathBuf, sync::Arc};

use super::{Taskset, TasksetError, local};
use crate::config::{self, Section};

/// A taskset that ships with the program.
#[derive(Clone, Copy)]
pub struct Shipped {
    /// Its name, in kebab case.
    pub id: &'static str,
    /// One line: what the model has to do.
    pub summary: &'static str,
    /// Its card, in Markdown.
    pub readme: &'static str,
    /// Opens it from its block of the configuration, each key with its meaning ([`Section::doc`]); reads no data and asks
    /// for no secret. Faults of the configuration are recorded in the section and do not fail the call.
    pub open: fn(&mut Section<'_>) -> Result<Arc<dyn Taskset>, TasksetError>,
}

/// A taskset that was found by its id and is not open yet.
#[derive(Clone)]
pub struct Found {
    /// What runs and messages call it.
    pub id: String,
    /// One line: what the model has to do.
    pub summary: String,
    /// Its card, in Markdown.
    pub card: Cow<'static, str>,
    /// The folder it was found in; `None` for one that ships.
    pub folder: Option<PathBuf>,
    /// Opens it, as [`Shipped::open`] does.
    pub open: Opener,
}

/// Opens a taskset from its block of the configuration.
pub type Opener = Arc<dyn Fn(&mut Section<'_>) -> Result<Arc<dyn Taskset>, TasksetError> + Send + Sync>;

impl From<&Shipped> for Found {
    fn from(shipped: &Shipped) -> Self {
        Self {
            id: shipped.id.to_owned(),
            summary: shipped.summary.to_owned(),
            card: Cow::Borrowed(shipped.readme),
            folder: None,
            open: Arc::new(shipped.open),
        }
    }
}

/// Finds a taskset by name. Case and `_` for `-` do not matter, an owner before a slash, a version after an `@` and a
/// `-v1` at the end are left aside: `PrimeIntellect/Alphabet_Sort@0.1.2` is `alphabet-sort`.
pub fn find_in<'a>(shipped: &'a [Shipped], id: &str) -> Result<&'a Shipped, TasksetError> {
    let plain = plain_name(id);
    let unversioned = plain.trim_end_matches(|c: char| c.is_ascii_digit()).strip_suffix("-v").unwrap_or(&plain);
    shipped
        .iter()
        .find(|taskset| taskset.id == plain)
        .or_else(|| shipped.iter().find(|taskset| taskset.id == unversioned))
        .ok_or_else(|| TasksetError::Unknown {
            id: id.to_owned(),
            nearest: nearest(shipped, unversioned),
            folder: local::folder_like(id),
        })
}

fn plain_name(id: &str) -> String {
    let id = id.trim();
    let name = id.rsplit('/').next().unwrap_or(id);
    let name = name.split('@').next().unwrap_or(name);
    name.to_lowercase().replace(['_', ' '], "-")
}

/// The names most like a mistyped one, else those that hold it or are held by it, else all.
fn nearest(shipped: &[Shipped], name: &str) -> Vec<String> {
    let ids = || shipped.iter().map(|taskset| taskset.id);
    let mut found = config::nearest(name, ids());
    if found.is_empty() && name.len() > 2 {
        found = ids().filter(|id| id.contains(name) || name.contains(id)).collect();
    }
    if found.is_empty() {
        found = ids().collect();
    }
    found.into_iter().map(str::to_owned).collect()
}

/// The end of the message about an unknown name.
pub(super) fn suggestion(nearest: &[String]) -> String {
    match nearest {
        [] => String::new(),
        [only] => format!(": did you mean `{only}`?"),
        names => {
            let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            format!(": expected one of {}", names.join(", "))
        }
    }
}

/// Where a folder has nearly the name that was asked for.
pub(super) fn folder_hint(folder: Option<&str>) -> String {
    folder.map_or_else(String::new, |folder| {
        let ending = if local::is_taskset(folder) { "" } else { ", once it has a taskset.toml or taskset.py" };
        format!("; there is a folder `{folder}`: write `./{folder}`{ending}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped() -> Vec<Shipped> {
        let open = |_: &mut Section<'_>| Err(TasksetError::Source("not opened here".to_owned()));
        ["alphabet-sort", "reverse-text", "gsm8k", "wordle"]
            .map(|id| Shipped { id, summary: "", readme: "", open })
            .to_vec()
    }

    #[track_caller]
    fn found(id: &str, expected: &str) {
        assert_eq!(find_in(&shipped(), id).map(|taskset| taskset.id), Ok(expected));
    }

    #[test]
    fn names_are_found_in_every_spelling() {
        found("alphabet-sort", "alphabet-sort");
        found("Alphabet_Sort", "alphabet-sort");
        found("primeintellect/alphabet-sort@0.1.2", "alphabet-sort");
        found("alphabet-sort-v1", "alphabet-sort");
        found("owner/alphabet_sort_v12@latest", "alphabet-sort");
        found("GSM8K", "gsm8k");
    }

    #[test]
    fn an_unknown_name_suggests_the_nearest() {
        let message = |id: &str| find_in(&shipped(), id).err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(message("alfabet-sort"), "unknown taskset `alfabet-sort`: did you mean `alphabet-sort`?");
        assert_eq!(message("wordl"), "unknown taskset `wordl`: did you mean `wordle`?");
        assert!(message("zzzzzzzzzzzzzzzzzzzz").contains("`gsm8k`"));
    }
}
