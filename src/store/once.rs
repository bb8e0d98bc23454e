//! Each episode of a journal once.

use std::{
    collections::{HashMap, hash_map::Entry},
    path::Path,
};

use super::{Fingerprint, Row, Scan, StoreError, scan};

/// Whether a line takes the place of an earlier one of the same episode. The last one counts, but a failure never counts
/// above scores. [`super::Index`] keeps lines by the same rule: it takes those that are not finished out.
fn counts(finished: bool, earlier_finished: bool) -> bool {
    finished || !earlier_finished
}

/// [`scan`], but `visit` sees only the line of each episode that counts, in file order; `made` is what it gathers into.
/// Also returns how many lines others stand for. A journal in which no episode stands twice, as every run leaves it that
/// was not killed, is read once; another one twice.
pub fn scan_once<T>(
    path: &Path,
    made: impl Fn() -> T,
    mut visit: impl FnMut(&mut T, Row),
) -> Result<(T, Scan, u64), StoreError> {
    let mut counting: HashMap<Fingerprint, (u64, bool)> = HashMap::new();
    let mut repeated = 0;
    let mut gathered = made();
    let found = scan(path, |row| {
        match counting.entry(Fingerprint::of(&row.id)) {
            Entry::Vacant(entry) => drop(entry.insert((row.line, row.finished))),
            Entry::Occupied(mut entry) => {
                repeated += 1;
                if counts(row.finished, entry.get().1) {
                    entry.insert((row.line, row.finished));
                }
            }
        }
        if repeated == 0 {
            visit(&mut gathered, row);
        }
    })?;
    if repeated == 0 {
        return Ok((gathered, found, 0));
    }
    gathered = made();
    scan(path, |row| {
        if counting.get(&Fingerprint::of(&row.id)).is_some_and(|(line, _)| *line == row.line) {
            visit(&mut gathered, row);
        }
    })?;
    Ok((gathered, found, repeated))
}
