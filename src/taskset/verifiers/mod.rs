//! Tasksets and envs of the Python package `verifiers`: finding an installed one, reading its rows, and the program that
//! serves its env.
//!
//! A [`Package`] is found in an interpreter by its id ([`Search`]), and opens with a whole `env` block, which the package's
//! own classes check. Its [`Environment`] is a [`Taskset`](super::Taskset) with an empty rubric: it is the server that
//! scores. All talk with Python goes through `bridge.py`, which runs in a process of its own: what a package prints, a crash
//! and a hang come back as an error with its last lines.

mod bridge;
mod describe;
mod environment;
mod find;
mod found;
mod rows;

pub use bridge::BridgeError;
pub use describe::{Description, Installed, Key, Seat};
pub use environment::{BlockFault, Environment, OpenError};
pub use find::{FindError, InstalledIn, Looked, Package, Search, current, data_folder, module_name};
