//! The block that selects tasks.

use serde_json::Value;

use super::{Select, TaskFilter};
use crate::config::{FromValue, Section};

/// Reads the block.
pub(super) fn read_select(block: &mut Section<'_>) -> Select {
    Select {
        include: read_filter(&mut block.child("include")),
        exclude: read_filter(&mut block.child("exclude")),
        shuffle: block.doc("Shuffle the tasks as Python's random.Random(seed).shuffle").get_or("shuffle", false),
        seed: block.doc("Seed of the shuffle").get_or("seed", 0),
        skip: block.doc("Leave out the first tasks").get_or("skip", 0),
        limit: block.doc("At most this many tasks").limit_in("limit", 1.., None),
    }
}

fn read_filter(block: &mut Section<'_>) -> TaskFilter {
    let ranges: Vec<Ranges> = block.doc("Positions, 3 or \"start:stop:step\"").get_or("idx", Vec::new());
    TaskFilter {
        idx: ranges.into_iter().flat_map(|ranges| ranges.0).collect(),
        ids: block.doc("Ids of the source").get_or("ids", Vec::new()),
        keys: block.doc("Task keys").get_or("keys", Vec::new()),
        names: block.doc("Task names").get_or("names", Vec::new()),
    }
}

/// Positions as one word gives them: `3`, `"2:10"`, `"0:100:7,200"`.
struct Ranges(Vec<(u64, Option<u64>, u64)>);

impl FromValue for Ranges {
    const EXPECTED: &'static str = "a position such as 3 or \"start:stop:step\"";
    const EXPECTED_MANY: &'static str = "positions such as 3 or \"start:stop:step\", from 0";

    fn from_value(value: &Value) -> Option<Self> {
        if let Some(position) = value.as_u64() {
            return Some(Self(vec![(position, Some(position.checked_add(1)?), 1)]));
        }
        value.as_str()?.split(',').map(|part| range(part.trim())).collect::<Option<Vec<_>>>().map(Self)
    }

    fn to_value(&self) -> Value {
        let texts: Vec<String> = self
            .0
            .iter()
            .map(|(start, stop, step)| {
                format!("{start}:{}:{step}", stop.map(|stop| stop.to_string()).unwrap_or_default())
            })
            .collect();
        Value::from(texts.join(","))
    }
}

fn range(text: &str) -> Option<(u64, Option<u64>, u64)> {
    let number = |text: &str, empty: u64| if text.is_empty() { Some(empty) } else { text.parse().ok() };
    let parts: Vec<&str> = text.split(':').collect();
    match parts.as_slice() {
        [position] => {
            let position: u64 = position.parse().ok()?;
            Some((position, Some(position.checked_add(1)?), 1))
        }
        [start, stop, rest @ ..] if rest.len() <= 1 => {
            let step = number(rest.first().copied().unwrap_or_default(), 1)?;
            let stop = if stop.is_empty() { None } else { Some(stop.parse().ok()?) };
            (step > 0).then_some((number(start, 0)?, stop, step))
        }
        _ => None,
    }
}
