//! Wrong answers that look like right ones: what the simulator makes its mistakes of, and what a rubric is tried with.

use std::sync::LazyLock;

use regex::Regex;

/// Finds what graders look at: the last of `\boxed{…}`, `#### …` and `<tag>…</tag>`.
static ANSWER: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?s)\\boxed\{([^{}]*)\}|####[ \t]*([^\n]+)|<[A-Za-z_][\w-]*>([^<]*)</").expect("the pattern is valid")
});

/// A plausible wrong version of a reply, in its form: lines out of order, another digit, letters swapped. `below` draws a
/// number below its argument. Never the reply itself; `None` where nothing in it can be changed so.
pub fn corrupted(answer: &str, below: impl Fn(usize) -> usize) -> Option<String> {
    if answer.contains("<tool_call>") {
        return None;
    }
    let place = ANSWER
        .captures_iter(answer)
        .last()
        .and_then(|found| found.iter().skip(1).flatten().next().map(|part| part.range()))
        .unwrap_or(0..answer.len());
    let (before, core, after) = (&answer[..place.start], &answer[place.clone()], &answer[place.end..]);
    let wrong = reordered_lines(core, &below)
        .or_else(|| other_digit(core, &below))
        .or_else(|| swapped_letters(core, &below))?;
    Some(format!("{before}{wrong}{after}"))
}

/// Exchanges two neighbouring lines that differ.
fn reordered_lines(text: &str, below: impl Fn(usize) -> usize) -> Option<String> {
    let mut lines: Vec<&str> = text.split('\n').collect();
    let filled: Vec<usize> = (0..lines.len()).filter(|index| !lines[*index].trim().is_empty()).collect();
    let pairs: Vec<(usize, usize)> = filled
        .windows(2)
        .map(|pair| (pair[0], pair[1]))
        .filter(|(first, second)| lines[*first].trim() != lines[*second].trim())
        .collect();
    let (first, second) = *pairs.get(below(pairs.len()))?;
    lines.swap(first, second);
    Some(lines.join("\n"))
}

/// Changes the last digit into another.
fn other_digit(text: &str, below: impl Fn(usize) -> usize) -> Option<String> {
    let place = text.rfind(|letter: char| letter.is_ascii_digit())?;
    let digit = text.as_bytes()[place] - b'0';
    let other = (usize::from(digit) + 1 + below(9)) % 10;
    Some(format!("{}{other}{}", &text[..place], &text[place + 1..]))
}

/// Exchanges two neighbouring letters that differ.
fn swapped_letters(text: &str, below: impl Fn(usize) -> usize) -> Option<String> {
    let mut letters: Vec<char> = text.chars().collect();
    let pairs: Vec<usize> = (1..letters.len())
        .filter(|index| {
            let (left, right) = (letters[index - 1], letters[*index]);
            left.is_alphanumeric() && right.is_alphanumeric() && left.to_lowercase().ne(right.to_lowercase())
        })
        .collect();
    let place = *pairs.get(below(pairs.len()))?;
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
                let wrong = corrupted(answer, |bound| if bound == 0 { 0 } else { index % bound }).unwrap();
                assert_ne!(wrong, answer);
                assert!(wrong.starts_with(head) && wrong.ends_with(tail), "{wrong}");
            }
        };
        check("2 + 2 makes 4.\n#### 4", "2 + 2 makes 4.\n#### ", "");
        check(r"So \boxed{12}.", r"So \boxed{1", "}.");
        check("<sorted>\nAda\nBob\nCy\n</sorted>", "<sorted>\n", "\n</sorted>");
        check("<guess>crane</guess>", "<guess>", "</guess>");
        check("olleh", "", "");
    }

    #[test]
    fn what_cannot_be_spoiled_is_left_alone() {
        for answer in ["", "a", "aaa", "!?", "<tool_call>{}</tool_call>"] {
            assert_eq!(corrupted(answer, |_| 0), None, "{answer}");
        }
    }
}
