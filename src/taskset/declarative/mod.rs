//! Tasksets that are declared: a `taskset.toml` with data, templates and scorers, no code. `tasksets/DECLARATIVE.md` is the page
//! for its author.
//!
//! The file is read when the taskset is opened, its rows when its tasks are asked for. What enters is a path; what leaves is
//! a [`Taskset`].

mod data;
mod few_shot;
mod keys;
mod names;
mod open;
mod read;
mod row;
mod user;

pub(super) use open::found;
