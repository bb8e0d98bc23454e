//! Which rows of some sources are read, and in which order.

use std::{collections::HashMap, sync::Arc};

use super::{NamedRows, Places, Row, Rows, Source, TasksetError};
use crate::taskset::PythonRandom;

/// Makes a row ready, for example renames its columns, and tells whether it counts; an error follows file and row.
pub type Look = Arc<dyn Fn(&mut Row) -> Result<bool, String> + Send + Sync>;

/// A selection of rows: those that count, shuffled, cut.
#[derive(Clone, Default)]
pub struct Order {
    /// Which rows count; all as they are without it.
    pub look: Option<Look>,
    /// The seed of a shuffle as Python's `random.Random(seed).shuffle` does it; in the order of the sources without it.
    /// A shuffle first reads all rows once and remembers where those are that it will give: 24 bytes a row. Only of
    /// Parquet it holds the rows themselves, those it will give.
    pub shuffle: Option<u64>,
    /// How many rows at most.
    pub limit: Option<u64>,
}

impl Order {
    /// The rows of the sources in this order; nothing is opened before the first is asked for.
    pub(super) fn rows(self, sources: Vec<Source>) -> NamedRows {
        let Self { look, shuffle, limit } = self;
        let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        match shuffle {
            None => {
                let mut rows = InOrder { sources: sources.into_iter(), current: None, look };
                Box::new(until_error(move || rows.read()).take(limit))
            }
            Some(seed) => {
                let mut rows = Shuffled { sources, look, seed, limit, found: None };
                Box::new(until_error(move || rows.read()))
            }
        }
    }
}

/// What `read` gives, up to the first error.
fn until_error<T>(
    mut read: impl FnMut() -> Result<Option<T>, TasksetError>,
) -> impl Iterator<Item = Result<T, TasksetError>> {
    let mut failed = false;
    std::iter::from_fn(move || {
        let item = if failed { Ok(None) } else { read() };
        failed |= item.is_err();
        item.transpose()
    })
}

/// Whether a row counts.
fn counts(look: Option<&Look>, name: &str, row: &mut Row) -> Result<bool, TasksetError> {
    let Some(look) = look else { return Ok(true) };
    let number = row.number;
    look(row).map_err(|problem| TasksetError::Row { file: name.to_owned(), row: number, problem })
}

struct InOrder {
    sources: std::vec::IntoIter<Source>,
    current: Option<(Arc<str>, Rows)>,
    look: Option<Look>,
}

impl InOrder {
    fn read(&mut self) -> Result<Option<(Arc<str>, Row)>, TasksetError> {
        loop {
            let Some((name, rows)) = &mut self.current else {
                let Some(source) = self.sources.next() else { return Ok(None) };
                self.current = Some((source.name().into(), source.rows()?));
                continue;
            };
            match rows.next().transpose()? {
                Some(mut row) => {
                    if counts(self.look.as_ref(), name, &mut row)? {
                        return Ok(Some((Arc::clone(name), row)));
                    }
                }
                None => self.current = None,
            }
        }
    }
}

/// Where a row is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Spot {
    place: u64,
    number: u64,
    source: u32,
}

struct Shuffled {
    sources: Vec<Source>,
    look: Option<Look>,
    seed: u64,
    limit: usize,
    /// `None` before the first row.
    found: Option<Found>,
}

struct Found {
    names: Vec<Arc<str>>,
    spots: std::vec::IntoIter<Spot>,
    /// Open sources that go to a place.
    open: Vec<Option<Box<dyn Places>>>,
    /// Rows of those that do not.
    held: HashMap<Spot, Row>,
}

impl Shuffled {
    fn read(&mut self) -> Result<Option<(Arc<str>, Row)>, TasksetError> {
        let mut found = match self.found.take() {
            Some(found) => found,
            None => self.search()?,
        };
        let row = found.spots.next().map(|spot| found.row(spot, &self.sources)).transpose();
        self.found = Some(found);
        let Some((name, mut row)) = row? else { return Ok(None) };
        counts(self.look.as_ref(), &name, &mut row)?;
        Ok(Some((name, row)))
    }

    /// Reads all sources once.
    fn search(&self) -> Result<Found, TasksetError> {
        let names: Vec<Arc<str>> = self.sources.iter().map(|source| source.name().into()).collect();
        let mut spots = Vec::new();
        let mut fixed = Vec::new();
        for (number, (source, name)) in (0..).zip(self.sources.iter().zip(&names)) {
            if let Some(mut rows) = source.places()? {
                while let Some(mut row) = rows.next().transpose()? {
                    if counts(self.look.as_ref(), name, &mut row)? {
                        spots.push(Spot { place: rows.place(), number: row.number, source: number });
                    }
                }
                continue;
            }
            fixed.push(number);
            for row in source.rows()? {
                let mut row = row?;
                if counts(self.look.as_ref(), name, &mut row)? {
                    spots.push(Spot { place: row.number, number: row.number, source: number });
                }
            }
        }
        PythonRandom::new(self.seed).shuffle(&mut spots);
        spots.truncate(self.limit);
        spots.shrink_to_fit();
        let held = self.hold(&fixed, &spots)?;
        let open = self.sources.iter().map(|_| None).collect();
        Ok(Found { names, spots: spots.into_iter(), open, held })
    }

    /// The rows at these spots of sources that cannot go to a place.
    fn hold(&self, fixed: &[u32], spots: &[Spot]) -> Result<HashMap<Spot, Row>, TasksetError> {
        let mut held = HashMap::new();
        for &source in fixed {
            let mut wanted: Vec<Spot> = spots.iter().filter(|spot| spot.source == source).copied().collect();
            wanted.sort_unstable_by_key(|spot| spot.number);
            let mut wanted = wanted.into_iter().peekable();
            let mut rows = self.sources[source as usize].rows()?;
            while wanted.peek().is_some() {
                let Some(row) = rows.next().transpose()? else { break };
                if let Some(spot) = wanted.next_if(|spot| spot.number == row.number) {
                    held.insert(spot, row);
                }
            }
        }
        Ok(held)
    }
}

impl Found {
    fn row(&mut self, spot: Spot, sources: &[Source]) -> Result<(Arc<str>, Row), TasksetError> {
        let source = spot.source as usize;
        let name = Arc::clone(&self.names[source]);
        if let Some(row) = self.held.remove(&spot) {
            return Ok((name, row));
        }
        let gone = || TasksetError::Row {
            file: name.to_string(),
            row: spot.number,
            problem: "the row is not there any more; leave the file alone while it is read".to_owned(),
        };
        if self.open[source].is_none() {
            self.open[source] = sources[source].places()?;
        }
        let rows = self.open[source].as_mut().ok_or_else(gone)?;
        rows.go(spot.place, spot.number)?;
        let row = rows.next().ok_or_else(gone)??;
        Ok((name, row))
    }
}
