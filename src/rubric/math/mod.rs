//! Whether two answers are the same mathematics: arithmetic in exact rationals, roots, simple algebra, tuples, sets
//! and intervals.
//!
//! Both answers are read ([`Reading`] says how), brought to a normal form, and compared; values at a few points are the
//! second look. Equal means that the normal forms are the same and no point contradicts. Different means that the normal
//! forms prove it, or that the values differ at a point. Everything else is undecided, and never counts as equal.
//!
//! Conventions: `log` without a base is that to base 10, `ln` the natural one; `i` is the square root of -1; odd roots of
//! negative numbers are real; a degree sign is dropped; `12%` is 0.12; `x = 5` is the answer `5`; several answers with
//! commas between them are a set. Exact means exact: `0.333` is not `1/3`.

mod normal;
mod parse;
mod sample;
mod token;

use self::{
    normal::{Quotient, Workshop},
    parse::{Expr, Value, parse},
};
use super::Score;

/// Most members of a set, tuple or list.
const MEMBERS: usize = 64;

/// Whether two answers mean the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Equivalence {
    /// They do.
    Equal,
    /// They do not.
    Different,
    /// It could not be told, and why. Never counts as equal.
    Undecided(String),
}

/// How answers are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Units at the end of an answer are dropped: `\text{…}` behind an expression, common short units (`cm`, `kg`, …)
    /// behind a number. When they are kept, they must be the same.
    pub drop_units: bool,
}

/// Whether two answers, plain or LaTeX, mean the same, units kept. Takes a few milliseconds at most, whatever the input.
///
/// ```
/// use rollhouse::rubric::math::{Equivalence, equivalent};
///
/// assert_eq!(equivalent(r"\frac{\sqrt{2}}{2}", "1/sqrt(2)"), Equivalence::Equal);
/// assert_eq!(equivalent("(x+1)^2", "x^2+1"), Equivalence::Different);
/// ```
pub fn equivalent(left: &str, right: &str) -> Equivalence {
    equivalent_as(left, right, Reading::default())
}

/// [`equivalent`], read in a given way.
pub fn equivalent_as(left: &str, right: &str, reading: Reading) -> Equivalence {
    let parsed = parse(left, reading).and_then(|left| Ok((left, parse(right, reading)?)));
    match parsed {
        Ok((left, right)) => values(&left, &right, &mut Workshop::new()),
        // What cannot be read may still be written the same way.
        Err(_) if !left.trim().is_empty() && left.len() <= 4096 && left.trim() == right.trim() => Equivalence::Equal,
        Err(why) => Equivalence::Undecided(why),
    }
}

/// 1 when an answer means the same as the expected one, else 0.
pub fn check(answer: &str, expected: &str, reading: Reading) -> Score {
    let (answer_short, expected_short) = (super::text::excerpt(answer), super::text::excerpt(expected));
    match equivalent_as(answer, expected, reading) {
        Equivalence::Equal => Score::pass(format!("`{answer_short}` equals `{expected_short}`")),
        Equivalence::Different => Score::fail(format!("`{answer_short}` does not equal `{expected_short}`")),
        Equivalence::Undecided(why) => {
            Score::fail(format!("whether `{answer_short}` equals `{expected_short}` could not be told: {why}"))
        }
    }
}

fn values(left: &Value, right: &Value, workshop: &mut Workshop) -> Equivalence {
    match (left, right) {
        (Value::Single(left), Value::Single(right)) => expressions(left, right, workshop),
        (Value::Equation(a, b), Value::Equation(c, d)) => equations((a, b), (c, d), workshop),
        // `x = 5` answers what `5` answers.
        (Value::Equation(Expr::Variable(_), answer), other) => values(&Value::Single(answer.clone()), other, workshop),
        (other, Value::Equation(Expr::Variable(_), answer)) => values(other, &Value::Single(answer.clone()), workshop),
        (Value::Words(left), Value::Words(right)) if left == right => Equivalence::Equal,
        (Value::Words(word), Value::Single(Expr::Variable(letter)))
        | (Value::Single(Expr::Variable(letter)), Value::Words(word))
            if *word == letter.to_lowercase() =>
        {
            Equivalence::Equal
        }
        (Value::Set(left), Value::Set(right)) => sets(left, right, workshop),
        (Value::Set(members), other) if members.len() == 1 => values(&members[0], other, workshop),
        (other, Value::Set(members)) if members.len() == 1 => values(other, &members[0], workshop),
        (Value::Union(left), Value::Union(right)) => sets(left, right, workshop),
        (
            Value::Ordered { open, close, items },
            Value::Ordered { open: other_open, close: other_close, items: others },
        ) => {
            if (open, close, items.len()) != (other_open, other_close, others.len()) {
                return Equivalence::Different;
            }
            all(items.iter().zip(others).map(|(left, right)| values(left, right, workshop)))
        }
        _ => Equivalence::Different,
    }
}

/// All parts equal; else different if one is, else the first that is undecided.
fn all(parts: impl Iterator<Item = Equivalence>) -> Equivalence {
    let mut undecided = None;
    for part in parts {
        match part {
            Equivalence::Equal => {}
            Equivalence::Different => return Equivalence::Different,
            Equivalence::Undecided(why) => undecided = undecided.or(Some(why)),
        }
    }
    undecided.map_or(Equivalence::Equal, Equivalence::Undecided)
}

/// Sets are equal when each member of one has an equal in the other.
fn sets(left: &[Value], right: &[Value], workshop: &mut Workshop) -> Equivalence {
    if left.len().max(right.len()) > MEMBERS {
        return Equivalence::Undecided(format!("more than {MEMBERS} members"));
    }
    let mut within = |member: &Value, others: &[Value]| {
        let mut undecided = None;
        for other in others {
            match values(member, other, workshop) {
                Equivalence::Equal => return Equivalence::Equal,
                Equivalence::Different => {}
                Equivalence::Undecided(why) => undecided = Some(why),
            }
        }
        undecided.map_or(Equivalence::Different, Equivalence::Undecided)
    };
    let forth = all(left.iter().map(|member| within(member, right)));
    match forth {
        Equivalence::Equal => all(right.iter().map(|member| within(member, left))),
        other => other,
    }
}

/// Equations are equal when their differences of both sides are, but for a number that multiplies them.
fn equations(left: (&Expr, &Expr), right: (&Expr, &Expr), workshop: &mut Workshop) -> Equivalence {
    let result = difference(left, workshop).and_then(|left| {
        let right = difference(right, workshop)?;
        let same = match (left.is_zero(), right.is_zero()) {
            (false, false) => proportional(&left, &right, workshop)?,
            (left, right) => left == right,
        };
        Ok((same, decisive(&left, &right)))
    });
    match result {
        Ok((true, _)) => Equivalence::Equal,
        Ok((false, true)) => Equivalence::Different,
        Ok((false, false)) => Equivalence::Undecided("neither shown equal nor different".to_owned()),
        Err(why) => Equivalence::Undecided(why),
    }
}

fn difference((left, right): (&Expr, &Expr), workshop: &mut Workshop) -> Result<Quotient, String> {
    let (left, right) = (workshop.normal(left)?, workshop.normal(right)?);
    workshop.less(&left, &right)
}

/// Whether one is a number times the other, for quotients that do not cancel by themselves.
fn proportional(left: &Quotient, right: &Quotient, workshop: &mut Workshop) -> Result<bool, String> {
    let Some(factor) = left.leading_over(right) else { return Ok(false) };
    let scaled = workshop.scaled(right, factor)?;
    workshop.same(left, &scaled)
}

fn expressions(left: &Expr, right: &Expr, workshop: &mut Workshop) -> Equivalence {
    if let Some(equal) = infinities(left, right) {
        return if equal { Equivalence::Equal } else { Equivalence::Different };
    }
    let differing = (0..sample::POINTS)
        .filter_map(|point| sample::differ(sample::value(left, point), sample::value(right, point)))
        .fold((false, 0), |(any, seen), differs| (any || differs, seen + 1));
    let exact = workshop.normal(left).and_then(|left| {
        let right = workshop.normal(right)?;
        Ok((workshop.same(&left, &right)?, decisive(&left, &right)))
    });
    match (exact, differing) {
        (Ok((true, _)), (false, _)) => Equivalence::Equal,
        (Ok((true, _)), (true, _)) => Equivalence::Undecided("the normal forms agree and the values do not".to_owned()),
        (Ok((false, true)), _) | (_, (true, _)) => Equivalence::Different,
        (Ok((false, false)), (false, 0)) => {
            Equivalence::Undecided("neither has a value that could be compared".to_owned())
        }
        (Ok((false, false)), _) => Equivalence::Undecided("the values agree and the normal forms do not".to_owned()),
        (Err(why), _) => Equivalence::Undecided(why),
    }
}

/// Whether different normal forms prove different values.
fn decisive(left: &Quotient, right: &Quotient) -> bool {
    let ((plain, pi, euler), (other_plain, other_pi, other_euler)) = (left.decisive_kinds(), right.decisive_kinds());
    plain && other_plain && !((pi || other_pi) && (euler || other_euler))
}

/// Compares infinities, alone or with a sign; `None` when there are none.
fn infinities(left: &Expr, right: &Expr) -> Option<bool> {
    let (left_sign, right_sign) = (infinite(left), infinite(right));
    (left_sign.is_some() || right_sign.is_some()).then(|| left_sign == right_sign)
}

fn infinite(expr: &Expr) -> Option<bool> {
    match expr {
        Expr::Infinity => Some(true),
        expr if *expr == parse::negate(Expr::Infinity) => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
