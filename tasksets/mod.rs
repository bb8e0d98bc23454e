//! The shipped tasksets, one folder each: the code, its card (`README.md`) and its data. `README.md` beside this file says how
//! to add one.

#[path = "alphabet-sort/mod.rs"]
mod alphabet_sort;
#[path = "color-codeword/mod.rs"]
mod color_codeword;
mod conversation;
mod gsm8k;
#[path = "reasoning-gym/mod.rs"]
mod reasoning_gym;
#[path = "reverse-text/mod.rs"]
mod reverse_text;
mod wordle;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use serde_json::Value;

use crate::{
    config::Section,
    taskset::{Found, Shipped, TasksetError, find_in, local},
    trace::{Fault, FaultClass, TaskData},
};

const SHIPPED: &[Shipped] =
    &[alphabet_sort::SHIPPED, color_codeword::SHIPPED, gsm8k::SHIPPED, reverse_text::SHIPPED, wordle::SHIPPED];

/// What a program of someone else's adds.
static OWN: OnceLock<Own> = OnceLock::new();

struct Own {
    /// Those of the program, then those that ship.
    all: Vec<Shipped>,
    count: usize,
    /// The package that the program was built from, where that is known.
    package: Option<PathBuf>,
}

/// Every taskset of this program, by name: its own, then those that ship.
pub fn shipped() -> &'static [Shipped] {
    OWN.get().map_or(SHIPPED, |own| own.all.as_slice())
}

/// Adds a program's own tasksets, before anything is looked for; the first call counts. A path to `package`, the folder of
/// its Cargo.toml, then means its own taskset.
pub fn register(own: &[Shipped], package: Option<&Path>) {
    let all = own.iter().chain(SHIPPED).copied().collect();
    let package = package.and_then(|folder| folder.canonicalize().ok());
    let _ = OWN.set(Own { all, count: own.len(), package });
}

/// The taskset of the program that was built from a package: its only one, or that of the folder's name.
fn of_package(folder: &Path) -> Option<Found> {
    let own = OWN.get().filter(|own| own.package.is_some() && folder.canonicalize().ok() == own.package)?;
    let id = match &own.all[..own.count] {
        [only] => only.id,
        _ => folder.file_name()?.to_str()?,
    };
    let shipped = find_in(&own.all[..own.count], id).ok()?;
    Some(Found { folder: Some(folder.to_owned()), ..Found::from(shipped) })
}

/// The families of tasksets that other programs make: how their ids look, and what they are.
pub fn families() -> &'static [(&'static str, &'static str)] {
    const VERIFIERS: (&str, &str) =
        ("my-env, owner/my-env", "environments of verifiers, Python packages; `rollhouse env list` names them");
    &[reasoning_gym::ABOUT, VERIFIERS]
}

/// The taskset of this id. An id that is a path ([`local::is_path`]) is what lies there; any other is one that ships, in any
/// spelling of its name (see [`find_in`]), a dataset of reasoning-gym (`reasoning-gym/leg_counting`), or else a folder of that name which holds a taskset.
///
/// # Errors
/// When there is none; the message suggests the nearest names, or says what the folder lacks.
pub fn find(id: &str) -> Result<Found, TasksetError> {
    if local::is_path(id) {
        return find_at(id);
    }
    if let Some(found) = reasoning_gym::find(id) {
        return Ok(found);
    }
    match find_in(shipped(), id) {
        Ok(shipped) => Ok(shipped.into()),
        Err(_) if local::is_taskset(id) => find_at(id),
        Err(unknown) => Err(unknown),
    }
}

/// What lies at a path; a Rust package only where it is this program's own.
fn find_at(id: &str) -> Result<Found, TasksetError> {
    match local::find_at(id) {
        Err(TasksetError::Package { folder }) => of_package(&folder).ok_or(TasksetError::Package { folder }),
        found => found,
    }
}

/// The files that the taskset of this id is made of, with digests (see [`local::fingerprint`]); none for one that ships.
pub fn fingerprint(id: &str) -> BTreeMap<String, String> {
    definition(id).as_ref().map(local::fingerprint).unwrap_or_default()
}

/// Whether two ids name one taskset, however they are written: `./sums`, `sums/` and `sums/taskset.toml`.
pub fn same(one: &str, other: &str) -> bool {
    let place = |id| definition(id)?.place().canonicalize().ok();
    let ships = |id| find_in(shipped(), id).ok().map(|shipped| shipped.id);
    one == other
        || match (place(one), place(other)) {
            (None, None) => {
                !local::is_path(one) && !local::is_path(other) && ships(one).is_some() && ships(one) == ships(other)
            }
            (one, other) => one == other,
        }
}

/// What defines the taskset of this id where it lies in files of the user's own.
fn definition(id: &str) -> Option<local::Definition> {
    let ships = reasoning_gym::find(id).is_some() || find_in(shipped(), id).is_ok();
    (local::is_path(id) || !ships).then(|| local::definition(id).ok()).flatten()
}

/// The key `num_tasks` of tasksets that make their tasks.
fn num_tasks(section: &mut Section<'_>) -> Option<u64> {
    let count: Option<u64> =
        section.doc("How many tasks there are; as many as there can be without it").get("num_tasks");
    if count == Some(0) {
        section.fault("num_tasks", "is 0; give at least 1, or leave it out");
        return None;
    }
    count
}

/// A text field of a row.
fn text<'a>(task: &'a TaskData, field: &str) -> Result<&'a str, Fault> {
    task.text(field).ok_or_else(|| broken_row(field, "text"))
}

/// A field of a row that is a list of texts.
fn texts(task: &TaskData, field: &str) -> Result<Vec<String>, Fault> {
    task.extra.get(field).and_then(list).ok_or_else(|| broken_row(field, "a list of texts"))
}

/// A field of a row that is a list of lists of texts, none of them missing.
fn lists(task: &TaskData, field: &str) -> Result<Vec<Vec<String>>, Fault> {
    let lists = task.extra.get(field).and_then(Value::as_array).filter(|lists| !lists.is_empty());
    lists
        .and_then(|lists| lists.iter().map(list).collect())
        .ok_or_else(|| broken_row(field, "a list of lists of texts"))
}

fn list(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
}

/// A row that this taskset did not make.
fn broken_row(field: &str, expected: &str) -> Fault {
    Fault::new(FaultClass::Task, format!("the task's field `{field}` must be {expected}"))
}
