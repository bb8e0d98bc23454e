//! The shipped tasksets, one folder each: the code, its card (`README.md`) and its data. A new one is a folder and a
//! line in [`shipped`].

use crate::taskset::{Shipped, TasksetError, find_in};

/// Every shipped taskset, by name.
pub fn shipped() -> &'static [Shipped] {
    &[]
}

/// The shipped taskset of this name, in any of its spellings (see [`find_in`]).
///
/// # Errors
/// When there is none; the message suggests the nearest names.
pub fn find(id: &str) -> Result<&'static Shipped, TasksetError> {
    find_in(shipped(), id)
}
