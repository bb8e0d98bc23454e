//! What the simulated model says.

use std::sync::LazyLock;

use regex::Regex;

use super::{
    hash::Hash, model::Model, request::OfferedTool, schema, settings::Policy, template::push_call, words::words,
};
use crate::trace::Message;

/// Said where the oracle has no answer.
pub(super) const UNKNOWN: &str = "I am a simulated model and do not know an answer to this.";

/// What all choices of one request are drawn from.
pub(super) enum Source {
    /// The right answer.
    Right(String),
    /// One text for all.
    Same(String),
    /// Random words.
    Words,
}

impl Source {
    /// Asks the policy. The closures are called only where the policy looks at the conversation.
    pub(super) async fn of(
        model: &Model,
        last_user: impl FnOnce() -> String,
        all: impl FnOnce() -> Vec<Message>,
    ) -> Self {
        match &model.settings.policy {
            Policy::Echo => Self::Same(last_user()),
            Policy::Fixed(text) => Self::Same(text.clone()),
            Policy::Random => Self::Words,
            Policy::Oracle => {
                let right = match &model.oracle {
                    Some(oracle) => oracle.solve(&all()).await,
                    None => None,
                };
                right.map_or_else(|| Self::Same(UNKNOWN.to_owned()), Self::Right)
            }
        }
    }

    /// The text of one choice.
    pub(super) fn text(&self, error_rate: f64, draw: Hash) -> String {
        match self {
            Self::Right(answer) if draw.number(1).unit() < error_rate => corrupted(answer, draw.number(2)),
            Self::Right(text) | Self::Same(text) => text.clone(),
            Self::Words => words(8 + draw.number(3).below(56), draw.number(4)),
        }
    }
}

/// A call of a tool with arguments that its schema allows.
pub(super) fn call(tool: &OfferedTool, draw: Hash) -> String {
    let arguments = match &tool.function.parameters {
        Some(parameters) => schema::fill(parameters, draw),
        None => serde_json::Value::Object(serde_json::Map::new()),
    };
    let mut text = String::new();
    push_call(&mut text, &tool.function.name, &arguments.to_string());
    text
}

/// Finds what graders look at: the last of `\boxed{…}`, `#### …` and `<tag>…</tag>`.
static ANSWER: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?s)\\boxed\{([^{}]*)\}|####[ \t]*([^\n]+)|<[A-Za-z_][\w-]*>([^<]*)</").expect("the pattern is valid")
});

/// A plausible wrong version of an answer: lines out of order, another digit, letters swapped. Never the answer itself.
fn corrupted(answer: &str, draw: Hash) -> String {
    if answer.contains("<tool_call>") {
        return UNKNOWN.to_owned();
    }
    let place = ANSWER
        .captures_iter(answer)
        .last()
        .and_then(|found| found.iter().skip(1).flatten().next().map(|part| part.range()))
        .unwrap_or(0..answer.len());
    let (before, core, after) = (&answer[..place.start], &answer[place.clone()], &answer[place.end..]);
    let wrong = reordered_lines(core, draw)
        .or_else(|| other_digit(core, draw))
        .or_else(|| swapped_letters(core, draw))
        .unwrap_or_else(|| words(1, draw));
    format!("{before}{wrong}{after}")
}

/// Exchanges two neighbouring lines that differ.
fn reordered_lines(text: &str, draw: Hash) -> Option<String> {
    let mut lines: Vec<&str> = text.split('\n').collect();
    let filled: Vec<usize> = (0..lines.len()).filter(|index| !lines[*index].trim().is_empty()).collect();
    let pairs: Vec<(usize, usize)> = filled
        .windows(2)
        .map(|pair| (pair[0], pair[1]))
        .filter(|(first, second)| lines[*first].trim() != lines[*second].trim())
        .collect();
    let (first, second) = *pairs.get(draw.below(pairs.len()))?;
    lines.swap(first, second);
    Some(lines.join("\n"))
}

/// Changes the last digit into another.
fn other_digit(text: &str, draw: Hash) -> Option<String> {
    let place = text.rfind(|letter: char| letter.is_ascii_digit())?;
    let digit = text.as_bytes()[place] - b'0';
    let other = (usize::from(digit) + 1 + draw.below(9)) % 10;
    Some(format!("{}{other}{}", &text[..place], &text[place + 1..]))
}

/// Exchanges two neighbouring letters that differ.
fn swapped_letters(text: &str, draw: Hash) -> Option<String> {
    let mut letters: Vec<char> = text.chars().collect();
    let pairs: Vec<usize> = (1..letters.len())
        .filter(|index| {
            let (left, right) = (letters[index - 1], letters[*index]);
            left.is_alphanumeric() && right.is_alphanumeric() && left.to_lowercase().ne(right.to_lowercase())
        })
        .collect();
    let place = *pairs.get(draw.below(pairs.len()))?;
    letters.swap(place - 1, place);
    Some(letters.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_answers_keep_the_form_and_are_wrong() {
        let check = |answer: &str, head: &str, tail: &str| {
            for index in 0..50 {
                let wrong = corrupted(answer, Hash::new(index));
                assert_ne!(wrong, answer);
                assert!(wrong.starts_with(head) && wrong.ends_with(tail), "{wrong}");
                assert_eq!(wrong, corrupted(answer, Hash::new(index)));
            }
        };
        check("2 + 2 makes 4.\n#### 4", "2 + 2 makes 4.\n#### ", "");
        check(r"So \boxed{12}.", r"So \boxed{1", "}.");
        check("<sorted>\nAda\nBob\nCy\n</sorted>", "<sorted>\n", "\n</sorted>");
        check("<guess>crane</guess>", "<guess>", "</guess>");
        check("olleh", "", "");
        check("a", "", "");
    }

    #[test]
    fn wrong_answers_come_at_the_rate() {
        let source = Source::Right("olleh".to_owned());
        let wrong = (0..10_000).filter(|index| source.text(0.3, Hash::new(*index)) != "olleh").count();
        assert!((2_800..3_200).contains(&wrong), "{wrong}");
        assert_eq!(source.text(0.0, Hash::new(1)), "olleh");
    }
}
