//! One table of a rubric: what all scorers have in common.

use std::{ops::RangeInclusive, sync::Arc};

use super::{
    parse,
    scorer::{self, Aim, Made},
};
use crate::{
    config::Section,
    rubric::{Answer, Scorer, clamp, compare::Shared, inverted, threshold},
};

/// A table, read.
pub(super) struct Seat {
    pub(super) name: String,
    pub(super) weight: f64,
    pub(super) bounds: Option<RangeInclusive<f64>>,
    pub(super) scorer: Arc<dyn Scorer>,
    /// How it takes the answer from the reply.
    pub(super) answer: Answer,
    pub(super) aim: Option<Aim>,
}

/// Reads a `[[reward]]`; `names` are those taken before.
pub(super) fn reward(table: &mut Section<'_>, default: &Answer, names: &mut Vec<String>) -> Option<Seat> {
    let weight = table.doc("Its share in the total; may be negative or 0").get_or("weight", 1.0);
    let bounds = table.doc("Lowest and highest raw score; outside of them the scoring failed");
    let bounds = range(bounds, "bounds");
    let seat = seat(table, default, names)?;
    Some(Seat { weight, bounds, ..seat })
}

/// Reads a `[[metric]]`.
pub(super) fn metric(table: &mut Section<'_>, default: &Answer, names: &mut Vec<String>) -> Option<Seat> {
    seat(table, default, names)
}

fn seat(table: &mut Section<'_>, default: &Answer, names: &mut Vec<String>) -> Option<Seat> {
    let given: Option<String> = table.doc("What the score is called; the scorer's name without it").get("name");
    let (kind, answer, Made { scorer, aim }) = scored(table, default)?;
    let name = given.unwrap_or_else(|| kind.to_owned());
    if name.trim().is_empty() {
        table.fault("name", "is empty; name it, or leave the key out");
        return None;
    }
    if names.contains(&name) {
        table.fault_hint(
            "name",
            format!("the name `{name}` is taken by another reward or metric"),
            format!("give this one its own, for example `name = \"{name}_2\"`"),
        );
        return None;
    }
    names.push(name.clone());
    Some(Seat { name, weight: 0.0, bounds: None, scorer, answer, aim })
}

/// Reads the scorer of a table, with what is done to its score; also of the tables below `of`.
pub(super) fn scored(table: &mut Section<'_>, default: &Answer) -> Option<(&'static str, Answer, Made)> {
    let kind = scorer::kind(table);
    let whole = Answer::whole();
    let answer = parse::read(table, if kind.is_some_and(|kind| kind.of_form) { &whole } else { default });
    let least: Option<f64> = table.doc("1 from this score on, else 0").get("threshold");
    table.doc("Lowest and highest score; one outside of them is moved to the nearer end");
    let limits = range(table, "clamp");
    let invert = table.doc("1 less the score, after `threshold` and `clamp`").get_or("invert", false);
    let Some(kind) = kind else {
        // The other keys of an unknown scorer cannot be judged.
        table.accept_rest();
        return None;
    };
    let Made { mut scorer, mut aim } = (kind.read)(table, &answer)?;
    if let Some(limits) = limits {
        scorer = Arc::new(clamp(limits, Shared(scorer)));
    }
    if let Some(least) = least {
        scorer = Arc::new(threshold(least, Shared(scorer)));
    }
    if invert {
        scorer = Arc::new(inverted(Shared(scorer)));
        aim = None;
    }
    Some((kind.name, answer, Made { scorer, aim }))
}

/// Two numbers, the lower first.
fn range(table: &mut Section<'_>, key: &str) -> Option<RangeInclusive<f64>> {
    match table.get::<Vec<f64>>(key)?[..] {
        [low, high] if low.is_finite() && high.is_finite() && low <= high => Some(low..=high),
        _ => {
            table.fault(key, "expected two numbers, the lower first, for example `[0, 1]`");
            None
        }
    }
}
