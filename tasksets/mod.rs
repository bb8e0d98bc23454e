//! The shipped tasksets, one folder each: the code, its card (`README.md`) and its data. `README.md` beside this file says how
//! to add one.

#[path = "alphabet-sort/mod.rs"]
mod alphabet_sort;
#[path = "color-codeword/mod.rs"]
mod color_codeword;
mod conversation;
mod gsm8k;
#[path = "reverse-text/mod.rs"]
mod reverse_text;
mod wordle;

use serde_json::Value;

use crate::{
    config::Section,
    taskset::{Found, Shipped, TasksetError, find_in},
    trace::{Fault, FaultClass, TaskData},
};

/// Every shipped taskset, by name.
pub fn shipped() -> &'static [Shipped] {
    &[alphabet_sort::SHIPPED, color_codeword::SHIPPED, gsm8k::SHIPPED, reverse_text::SHIPPED, wordle::SHIPPED]
}

/// The taskset of this id: one that ships, in any spelling of its name (see [`find_in`]).
///
/// # Errors
/// When there is none; the message suggests the nearest names.
pub fn find(id: &str) -> Result<Found, TasksetError> {
    find_in(shipped(), id).map(Found::from)
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
