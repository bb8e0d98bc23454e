//! Checks of one text against another, and of a text alone. Each gives 1 or 0 (or a share) with the reason.

use std::{borrow::Cow, ops::RangeInclusive, sync::LazyLock};

use regex::Regex;
use serde::Deserialize;

use super::{RubricError, Score};

/// What is evened out in both texts before they are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Normalise {
    /// White space at both ends is dropped.
    pub trim: bool,
    /// Upper and lower case are the same.
    pub ignore_case: bool,
    /// Each run of white space is one space.
    pub collapse_space: bool,
}

impl Normalise {
    /// Nothing is evened out.
    pub const NONE: Self = Self { trim: false, ignore_case: false, collapse_space: false };
    /// White space at both ends is dropped.
    pub const TRIM: Self = Self { trim: true, ..Self::NONE };
    /// Ends are trimmed, case is ignored, white space is collapsed.
    pub const RELAXED: Self = Self { trim: true, ignore_case: true, collapse_space: true };

    /// The text, evened out.
    pub fn apply(self, text: &str) -> Cow<'_, str> {
        let mut text = Cow::Borrowed(if self.trim { text.trim() } else { text });
        if self.collapse_space {
            text = Cow::Owned(collapse(&text));
        }
        if self.ignore_case {
            text = Cow::Owned(text.to_lowercase());
        }
        text
    }
}

fn collapse(text: &str) -> String {
    let mut collapsed = String::with_capacity(text.len());
    let mut in_space = false;
    for character in text.chars() {
        if !character.is_whitespace() {
            collapsed.push(character);
        } else if !in_space {
            collapsed.push(' ');
        }
        in_space = character.is_whitespace();
    }
    collapsed
}

/// Whether two texts are the same.
pub fn exact(answer: &str, expected: &str, normalise: Normalise) -> Score {
    let (found, wanted) = (normalise.apply(answer), normalise.apply(expected));
    verdict(
        found == wanted,
        || format!("`{}` is the expected answer", excerpt(&found)),
        || format!("`{}` is not the expected `{}`", excerpt(&found), excerpt(&wanted)),
    )
}

/// Whether a text contains another; nothing contains an empty one.
pub fn contains(answer: &str, part: &str, normalise: Normalise) -> Score {
    find(answer, part, normalise, "contain", |text, part| text.contains(part))
}

/// Whether a text starts with another; nothing starts with an empty one.
pub fn starts_with(answer: &str, part: &str, normalise: Normalise) -> Score {
    find(answer, part, normalise, "start with", |text, part| text.starts_with(part))
}

/// Whether a text ends with another; nothing ends with an empty one.
pub fn ends_with(answer: &str, part: &str, normalise: Normalise) -> Score {
    find(answer, part, normalise, "end with", |text, part| text.ends_with(part))
}

fn find(answer: &str, part: &str, normalise: Normalise, verb: &str, holds: fn(&str, &str) -> bool) -> Score {
    let (text, part) = (normalise.apply(answer), normalise.apply(part));
    if part.is_empty() {
        return Score::fail("the expected part is empty");
    }
    verdict(
        holds(&text, &part),
        || format!("it does {verb} `{}`", excerpt(&part)),
        || format!("`{}` does not {verb} `{}`", excerpt(&text), excerpt(&part)),
    )
}

/// A compiled regular expression (linear time, whatever the text).
#[derive(Clone, Debug)]
pub struct Pattern(Regex);

impl Pattern {
    /// Compiles a pattern in the syntax of the `regex` crate.
    pub fn new(pattern: &str) -> Result<Self, RubricError> {
        Regex::new(pattern).map(Self).map_err(|error| RubricError::Pattern {
            pattern: pattern.to_owned(),
            problem: error.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned(),
        })
    }

    /// Whether the pattern is found anywhere in the text.
    pub fn matches(&self, text: &str) -> Score {
        verdict(
            self.0.is_match(text),
            || format!("it matches `{}`", self.0),
            || format!("`{}` does not match `{}`", excerpt(text), self.0),
        )
    }

    /// The first group of the pattern's last match in the text; the whole match when there is no group.
    pub fn capture<'a>(&self, text: &'a str) -> Option<&'a str> {
        let captures = self.0.captures_iter(text).last()?;
        captures.get(1).or_else(|| captures.get(0)).map(|found| found.as_str())
    }

    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// A text that [`Self::capture`] takes the answer from: for a pattern of one group between plain words, these words
    /// round the answer; else the answer itself where the pattern captures it. `None` for all others.
    pub fn filled(&self, answer: &str) -> Option<String> {
        let plainly = answer.to_owned();
        let framed = self.frame().map(|(before, after)| format!("{before}{answer}{after}"));
        [framed, Some(plainly)].into_iter().flatten().find(|text| self.capture(text) == Some(answer))
    }

    /// The plain words before and behind the only group; `None` where they are not plain.
    fn frame(&self) -> Option<(String, String)> {
        let pattern = self.as_str();
        let flags = if pattern.starts_with("(?") { pattern.find(')')? + 1 } else { 0 };
        let pattern = &pattern[flags..];
        let (open, close) = (pattern.find('(')?, pattern.rfind(')')?);
        Some((plain_words(pattern.get(..open)?)?, plain_words(pattern.get(close + 1..)?)?))
    }
}

/// What a piece of a pattern matches, if it is but words, escaped characters, spaces (`\\s*`) and anchors; what may be left
/// out (`:?`) is left in.
fn plain_words(piece: &str) -> Option<String> {
    let mut words = String::new();
    let mut characters = piece.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next()? {
                's' => words.push(' '),
                'b' => {}
                escaped if !escaped.is_alphanumeric() => words.push(escaped),
                _ => return None,
            },
            '^' | '$' | '?' | '*' | '+' => {}
            '.' | '[' | ']' | '(' | ')' | '{' | '}' | '|' => return None,
            plain => words.push(plain),
        }
    }
    Some(words)
}

/// How far a number may lie from the expected one: within either bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Tolerance {
    /// Absolute distance.
    pub absolute: f64,
    /// Distance as a share of the expected number's size.
    pub relative: f64,
}

impl Tolerance {
    /// The number itself, but for rounding in the last binary digits.
    pub const EXACT: Self = Self { absolute: 0.0, relative: 4.0 * f64::EPSILON };
}

/// Whether two texts are the same number, within a tolerance. Both are read by [`parse_number`].
pub fn numeric(answer: &str, expected: &str, tolerance: Tolerance) -> Score {
    let Some(wanted) = parse_number(expected) else {
        return Score::fail(format!("the expected `{}` is not a number", excerpt(expected)));
    };
    let Some(found) = parse_number(answer) else {
        return Score::fail(format!("`{}` is not a number", excerpt(answer)));
    };
    let near = (found - wanted).abs() <= tolerance.absolute.max(tolerance.relative * wanted.abs());
    verdict(near, || format!("{found} is the expected {wanted}"), || format!("{found} is not the expected {wanted}"))
}

/// Reads a whole text as one number: `-1,234.5`, `$5`, `12%` (0.12), `3/4`, `1 1/2`, `6e-3`, `6.02 x 10^23`.
/// A comma must group three digits. `None` for anything else and for what is not finite.
pub fn parse_number(text: &str) -> Option<f64> {
    static POWER_OF_TEN: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"^(.*?)\s*(?:[xX×*·]|\\times|\\cdot)\s*10\s*(?:\^|\*\*)\s*[{(]?\s*([-+]?\d{1,4})\s*[)}]?$")
            .expect("a constant pattern")
    });
    let text = text.trim().replace('\u{2212}', "-");
    let (text, divisor) = match text.strip_suffix("\\%").or_else(|| text.strip_suffix('%')) {
        Some(text) => (text.trim_end(), 100.0),
        None => (text.as_str(), 1.0),
    };
    let (negative, text) = match text.strip_prefix(['-', '+']) {
        Some(rest) => (text.starts_with('-'), rest.trim_start()),
        None => (false, text),
    };
    let text = text.strip_prefix("\\$").unwrap_or(text);
    let text = text.strip_prefix(['$', '€', '£', '¥']).unwrap_or(text).trim_start();
    let size = if let Some(parts) = POWER_OF_TEN.captures(text) {
        // Read as one literal, so that it is rounded once.
        let digits = plain_digits(parts.get(1)?.as_str())?;
        format!("{digits}e{}", parts.get(2)?.as_str()).parse().ok()?
    } else if let Some((numerator, denominator)) = text.split_once('/') {
        let denominator: f64 = plain_digits(denominator.trim_start())?.parse().ok()?;
        let numerator = numerator.trim_end();
        let (whole, numerator) = numerator.split_once(char::is_whitespace).unwrap_or(("0", numerator));
        let whole: f64 = plain_digits(whole)?.parse().ok()?;
        whole + plain_digits(numerator.trim_start())?.parse::<f64>().ok()? / denominator
    } else {
        let (digits, exponent) = match text.find(['e', 'E']) {
            Some(at) => (&text[..at], &text[at + 1..]),
            None => (text, "0"),
        };
        let bare = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        if bare.is_empty() || !bare.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        format!("{}e{exponent}", plain_digits(digits)?).parse().ok()?
    };
    let value: f64 = if negative { -size / divisor } else { size / divisor };
    value.is_finite().then_some(value)
}

/// Digits with at most one point, grouping commas checked and dropped.
fn plain_digits(text: &str) -> Option<Cow<'_, str>> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if (whole.is_empty() && part.is_empty()) || !digits(part) {
        return None;
    }
    if digits(whole) {
        return Some(Cow::Borrowed(text));
    }
    let mut groups = whole.split(',');
    let first = groups.next()?;
    let grouped = (1..=3).contains(&first.len()) && digits(first);
    (grouped && groups.all(|group| group.len() == 3 && digits(group))).then(|| Cow::Owned(text.replace(',', "")))
}

/// What the length of a text is counted in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Code points.
    #[default]
    Chars,
    /// Runs of anything but white space.
    Words,
    /// Lines; a line's end at the very end begins no new one.
    Lines,
}

impl Unit {
    /// The length of a text in this unit.
    pub fn count(self, text: &str) -> usize {
        match self {
            Self::Chars => text.chars().count(),
            Self::Words => text.split_whitespace().count(),
            Self::Lines => text.lines().count(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Chars => "characters",
            Self::Words => "words",
            Self::Lines => "lines",
        }
    }
}

/// Whether a text's length lies within bounds, ends included.
pub fn length(text: &str, unit: Unit, bounds: RangeInclusive<usize>) -> Score {
    let count = unit.count(text);
    let said = format!("{count} {}, allowed are {} to {}", unit.name(), bounds.start(), bounds.end());
    verdict(bounds.contains(&count), || said.clone(), || said.clone())
}

/// 1 up to `free` units of length, then falling in a straight line to 0 at `limit`.
pub fn length_penalty(text: &str, unit: Unit, free: usize, limit: usize) -> Score {
    let count = unit.count(text);
    let value = if count <= free {
        1.0
    } else if count >= limit {
        0.0
    } else {
        (limit - count) as f64 / (limit - free) as f64
    };
    Score::because(value, format!("{count} {}, full up to {free}, nothing from {limit}", unit.name()))
}

/// Whether a text is one JSON value.
pub fn valid_json(text: &str) -> Score {
    match serde_json::from_str::<serde::de::IgnoredAny>(text) {
        Ok(_) => Score::pass("it is valid JSON"),
        Err(error) => Score::fail(format!("it is not valid JSON: {error}")),
    }
}

fn verdict(holds: bool, pass: impl FnOnce() -> String, fail: impl FnOnce() -> String) -> Score {
    if holds { Score::pass(pass()) } else { Score::fail(fail()) }
}

/// At most 60 characters of a text on one line, for a reason: a reply may be megabytes long.
pub fn excerpt(text: &str) -> String {
    const LONGEST: usize = 60;
    let flat = |character: char| if character.is_control() { ' ' } else { character };
    let mut short: String = text.chars().take(LONGEST).map(flat).collect();
    if text.chars().nth(LONGEST).is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn exact_evens_out_what_it_is_told_to() {
        assert_eq!(exact(" a", "a", Normalise::NONE).value, 0.0);
        assert_eq!(exact(" a\n", "a", Normalise::TRIM).value, 1.0);
        assert_eq!(exact("Straße \t 5", "straße 5", Normalise::RELAXED).value, 1.0);
        assert_eq!(exact("b", "a", Normalise::NONE).why.unwrap(), "`b` is not the expected `a`");
    }

    #[test]
    fn parts() {
        assert_eq!(contains("the Cat", "cat", Normalise::RELAXED).value, 1.0);
        assert_eq!(contains("the Cat", "cat", Normalise::NONE).value, 0.0);
        assert_eq!(contains("x", "", Normalise::NONE).value, 0.0);
        assert_eq!(starts_with("abc", "ab", Normalise::NONE).value, 1.0);
        assert_eq!(ends_with("abc", "ab", Normalise::NONE).why.unwrap(), "`abc` does not end with `ab`");
    }

    #[test]
    fn patterns() {
        let pattern = Pattern::new(r"answer is (\d+)").unwrap();
        assert_eq!(pattern.capture("answer is 3, no, answer is 42."), Some("42"));
        assert_eq!(pattern.capture("none"), None);
        assert_eq!(pattern.matches("answer is 3").value, 1.0);
        assert!(Pattern::new("(").unwrap_err().to_string().contains("`(` is not a regular expression: unclosed group"));
    }

    #[test]
    fn numbers() {
        let good = [
            ("42", 42.0),
            (" -1,234.5 ", -1234.5),
            ("$5", 5.0),
            ("-$5.50", -5.5),
            ("\\$1,000,000", 1e6),
            ("12%", 0.12),
            ("12.5\\%", 0.125),
            ("3/4", 0.75),
            ("-3 / 4", -0.75),
            ("1 1/2", 1.5),
            ("6e-3", 0.006),
            ("6.02 x 10^23", 6.02e23),
            ("6.02\\times10^{-5}", 6.02e-5),
            (".5", 0.5),
            ("5.", 5.0),
            ("\u{2212}7", -7.0),
        ];
        for (text, number) in good {
            assert_eq!(parse_number(text), Some(number), "{text}");
        }
        for text in [
            "", "-", ".", "nan", "inf", "1e999", "1,23", "1,2345", "12,", "1.2.3", "1/0", "0/0", "4 apples", "--5",
            "1e", "%",
        ] {
            assert_eq!(parse_number(text), None, "{text}");
        }
    }

    #[test]
    fn numeric_within_tolerance() {
        let near = Tolerance { absolute: 0.01, relative: 0.0 };
        assert_eq!(numeric("3.14", "3.1416", near).value, 1.0);
        assert_eq!(numeric("3.14", "3.1416", Tolerance::default()).value, 0.0);
        assert_eq!(numeric("1/3", "0.3333333333333333", Tolerance::EXACT).value, 1.0);
        assert_eq!(numeric("101", "100", Tolerance { absolute: 0.0, relative: 0.01 }).value, 1.0);
        assert_eq!(numeric("four", "4", near).why.unwrap(), "`four` is not a number");
    }

    #[test]
    fn lengths() {
        assert_eq!(length("a b c", Unit::Words, 1..=3).value, 1.0);
        assert_eq!(length("a\nb\n", Unit::Lines, 3..=9).why.unwrap(), "2 lines, allowed are 3 to 9");
        assert_eq!(length_penalty("äöü", Unit::Chars, 2, 4).value, 0.5);
        assert_eq!(length_penalty("äöü", Unit::Chars, 3, 3).value, 1.0);
        assert_eq!(length_penalty("äöüä", Unit::Chars, 3, 3).value, 0.0);
    }

    #[test]
    fn json() {
        assert_eq!(valid_json(r#"{"a": [1]}"#).value, 1.0);
        assert_eq!(valid_json("{} {}").value, 0.0);
    }

    proptest! {
        #[test]
        fn number_parsing_never_panics(text in "\\PC{0,20}") {
            let _ = parse_number(&text);
        }

        #[test]
        fn a_printed_number_reads_back(number in proptest::num::f64::NORMAL) {
            prop_assert_eq!(parse_number(&format!("{number}")), Some(number));
            prop_assert_eq!(parse_number(&format!("{number:e}")), Some(number));
        }
    }
}
