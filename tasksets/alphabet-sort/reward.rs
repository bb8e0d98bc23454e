//! How the lists are graded.
//!
//! A turn's similarity is Python's `difflib.SequenceMatcher(None, answer, expected).ratio()` over the lowercased lines,
//! and the same rules for several attempts in one answer apply as in the original environment: they count only if each
//! is better than the one before.

use super::episode::{FIRST_TAG, LATER_TAG};
use crate::{
    rubric::{Score, ScoreContext, tags::tag, text::excerpt},
    tasksets::conversation::{alike, replies},
    trace::{Fault, TaskData, Trace},
};

/// How similarity becomes reward.
#[derive(Clone, Copy)]
pub(super) struct Grading {
    /// The power it is raised to.
    pub(super) power: u32,
    /// Raise each turn, not the average.
    pub(super) per_turn: bool,
}

/// One graded turn.
struct Graded {
    similarity: f64,
    why: String,
}

impl Grading {
    pub(super) fn score(self, context: ScoreContext<'_>) -> Result<Score, Fault> {
        let turns = grade(context.task, context.trace)?;
        let powered = |similarity: f64| similarity.powi(self.power.cast_signed());
        let count = turns.len() as f64;
        let value = if self.per_turn {
            turns.iter().map(|turn| powered(turn.similarity)).sum::<f64>() / count
        } else {
            powered(turns.iter().map(|turn| turn.similarity).sum::<f64>() / count)
        };
        let why: Vec<String> =
            turns.iter().enumerate().map(|(turn, graded)| format!("turn {}: {}", turn + 1, graded.why)).collect();
        Ok(Score::because(value, why.join("; ")))
    }
}

/// The share of turns whose list is right to the letter, case aside.
pub(super) fn perfect_turns(context: ScoreContext<'_>) -> Result<Score, Fault> {
    let turns = grade(context.task, context.trace)?;
    Ok(Score::from(turns.iter().filter(|turn| turn.similarity == 1.0).count() as f64 / turns.len() as f64))
}

/// The share of turns whose answer has the list once, in a well-formed pair of tags, and in no code block.
pub(super) fn format(context: ScoreContext<'_>) -> Result<Score, Fault> {
    let turns = expected(context.task)?.len();
    let replies = replies(context.trace);
    let well_formed = |turn: &usize| replies.get(*turn).is_some_and(|reply| tag(reply, tag_of(*turn)).is_ok());
    Ok(Score::from((0..turns).filter(well_formed).count() as f64 / turns as f64))
}

fn expected(task: &TaskData) -> Result<Vec<Vec<String>>, Fault> {
    crate::tasksets::lists(task, "ground_truths")
}

fn grade(task: &TaskData, trace: &Trace) -> Result<Vec<Graded>, Fault> {
    let replies = replies(trace);
    let graded = expected(task)?
        .iter()
        .enumerate()
        .map(|(turn, expected)| match replies.get(turn) {
            Some(reply) => grade_turn(reply, tag_of(turn), expected),
            None => Graded { similarity: 0.0, why: "not answered".to_owned() },
        })
        .collect();
    Ok(graded)
}

fn tag_of(turn: usize) -> &'static str {
    if turn == 0 { FIRST_TAG } else { LATER_TAG }
}

fn grade_turn(reply: &str, tag: &str, expected: &[String]) -> Graded {
    let attempts: Vec<String> = attempts(reply, tag).map(plain).collect();
    let expected_text = plain(&expected.join("\n"));
    let similarities: Vec<f64> =
        attempts.iter().map(|attempt| if attempt.is_empty() { 0.0 } else { alike(attempt, &expected_text) }).collect();
    match similarities.as_slice() {
        [] => Graded { similarity: 0.0, why: format!("no list between <{tag}> and </{tag}>") },
        several if several.windows(2).any(|pair| pair[1] <= pair[0]) => {
            Graded { similarity: 0.0, why: format!("{} lists, and not each better than the one before", several.len()) }
        }
        [.., last] => {
            let found = attempts.last().map_or("", String::as_str);
            Graded { similarity: *last, why: reason(*last, found, expected) }
        }
    }
}

/// The texts between the tags.
fn attempts<'a>(reply: &'a str, tag: &str) -> impl Iterator<Item = &'a str> {
    let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
    let mut rest = reply;
    std::iter::from_fn(move || {
        let begin = rest.find(&open)? + open.len();
        let end = begin + rest[begin..].find(&close)?;
        let content = &rest[begin..end];
        rest = &rest[end + close.len()..];
        Some(content)
    })
}

/// Lowercased, without blank lines or space at the ends of lines.
fn plain(text: &str) -> String {
    let lines: Vec<String> =
        text.lines().map(|line| line.trim().to_lowercase()).filter(|line| !line.is_empty()).collect();
    lines.join("\n")
}

fn reason(similarity: f64, found: &str, expected: &[String]) -> String {
    if similarity == 1.0 {
        return "right".to_owned();
    }
    let found: Vec<&str> = found.lines().collect();
    let wrong =
        expected.iter().enumerate().find(|(at, line)| found.get(*at).is_none_or(|found| *found != line.to_lowercase()));
    match wrong {
        Some((at, line)) => format!(
            "similarity {similarity:.3}, line {} should be `{line}` and is {}",
            at + 1,
            found.get(at).map_or("missing".to_owned(), |found| format!("`{}`", excerpt(found)))
        ),
        None => format!("similarity {similarity:.3}, {} lines too many", found.len().saturating_sub(expected.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn similarity(reply: &str) -> f64 {
        grade_turn(reply, FIRST_TAG, &["AnnaZell".to_owned(), "ZoeAbel".to_owned()]).similarity
    }

    #[test]
    fn a_right_list_is_right_whatever_the_case_and_spacing() {
        assert_eq!(similarity("<alphabetical_sorted>\nAnnaZell\nZoeAbel\n</alphabetical_sorted>"), 1.0);
        assert_eq!(similarity("Sure!\n<alphabetical_sorted>\n\n  annazell \r\nZOEABEL</alphabetical_sorted>"), 1.0);
    }

    #[test]
    fn what_is_missing_or_broken_earns_nothing() {
        assert_eq!(similarity(""), 0.0);
        assert_eq!(similarity("AnnaZell\nZoeAbel"), 0.0);
        assert_eq!(similarity("<alphabetical_sorted></alphabetical_sorted>"), 0.0);
        assert_eq!(similarity("<alphabetical_sorted>\nAnnaZell\nZoeAbel\n</combined_alphabetical_sorted>"), 0.0);
    }

    #[test]
    fn several_lists_count_only_while_they_get_better() {
        let right = "<alphabetical_sorted>\nAnnaZell\nZoeAbel\n</alphabetical_sorted>";
        let wrong = "<alphabetical_sorted>\nZoeAbel\nAnnaZell\n</alphabetical_sorted>";
        assert_eq!(similarity(&format!("{wrong}{right}")), 1.0);
        assert_eq!(similarity(&format!("{right}{wrong}")), 0.0);
        assert_eq!(similarity(&format!("{right}{right}")), 0.0);
    }

    #[test]
    fn the_reason_names_the_first_wrong_line() {
        let graded = grade_turn(
            "<alphabetical_sorted>\nZoeAbel\nAnnaZell\n</alphabetical_sorted>",
            FIRST_TAG,
            &["AnnaZell".to_owned(), "ZoeAbel".to_owned()],
        );
        assert!(graded.why.contains("line 1 should be `AnnaZell` and is `zoeabel`"), "{}", graded.why);
    }
}
