//! Where answers stand in a text.

use std::sync::LazyLock;

use regex::Regex;

/// The text behind the model's thinking, trimmed: what follows the last `</think>`, also where the opening tag was
/// part of the prompt. Thinking that never ends leaves nothing.
pub fn strip_think(text: &str) -> &str {
    let text = text.rfind("</think>").map_or(text, |at| &text[at + "</think>".len()..]);
    if text.contains("<think>") { "" } else { text.trim() }
}

/// The content of the last `\boxed{…}`, braces balanced (escaped ones do not count). `None` when there is none or the
/// last one is cut off.
pub fn boxed(text: &str) -> Option<&str> {
    const OPENING: &str = "\\boxed{";
    let content = &text[text.rfind(OPENING)? + OPENING.len()..];
    let (mut depth, mut escaped) = (1, false);
    for (at, byte) in content.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&content[..at]);
        }
    }
    None
}

/// What stands behind the last `####`, to the end of its line, trimmed: how GSM8K marks its answers. `None` when
/// nothing does.
pub fn after_hashes(text: &str) -> Option<&str> {
    let rest = &text[text.rfind("####")? + "####".len()..];
    let line = rest.lines().next().unwrap_or_default().trim();
    (!line.is_empty()).then_some(line)
}

/// The last number of a text, as written: sign, currency, grouping commas, decimals, exponent, fraction, percent sign.
/// Digits that anything but space joins belong to one number, even where that makes it none: `1,5` does not give a 5,
/// nor `3:30` a 30.
pub fn last_number(text: &str) -> Option<&str> {
    // Beside point and comma: what groups digits in other places, and what nobody sees.
    static NUMBER: LazyLock<Regex> = LazyLock::new(|| {
        const JOINTS: &str = r"[.,:^_'\u{a0}\u{ad}\u{2019}\u{2009}\u{200b}-\u{200f}\u{202f}\u{2060}\u{feff}]";
        let digits = format!(r"(?:\d+(?:{JOINTS}+\d+)*|\.\d+)");
        let pattern =
            format!(r"[-+\u{{2212}}]?[$€£¥]?(?:\d+\s\d+/\d+|{digits})(?:[eE][-+]?\d+)?(?:\s?/\s?{digits})*\\?%?");
        Regex::new(&pattern).expect("a constant pattern")
    });
    let found = NUMBER.find_iter(text).last()?;
    // A sign directly behind a word, a number or a bracket is an operator or a hyphen.
    let glued =
        text[..found.start()].chars().next_back().is_some_and(|before| before.is_alphanumeric() || before == ')');
    let number = found.as_str();
    Some(if glued { number.trim_start_matches(['-', '+', '\u{2212}']) } else { number })
}

/// The last line with anything on it, trimmed.
pub fn last_line(text: &str) -> Option<&str> {
    text.lines().rev().map(str::trim).find(|line| !line.is_empty())
}

/// The first line with anything on it, trimmed.
pub fn first_line(text: &str) -> Option<&str> {
    text.lines().map(str::trim).find(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn thinking_is_dropped() {
        assert_eq!(strip_think("<think>5?</think>\n 6 "), "6");
        assert_eq!(strip_think("5?</think> 6"), "6");
        assert_eq!(strip_think("<think>5 is the answer"), "");
        assert_eq!(strip_think("<think>a</think> b <think> c"), "");
        assert_eq!(strip_think("<think>a <think>b</think> c</think> 6"), "6");
        assert_eq!(strip_think(" 6"), "6");
    }

    #[test]
    fn boxed_is_the_last_and_balanced() {
        assert_eq!(boxed(r"\boxed{1} so \boxed{\frac{1}{2}}."), Some(r"\frac{1}{2}"));
        assert_eq!(boxed(r"\boxed{\{1, 2\}}"), Some(r"\{1, 2\}"));
        assert_eq!(boxed(r"\boxed{1} so \boxed{\frac{1}{2}"), None);
        assert_eq!(boxed("1"), None);
    }

    #[test]
    fn hashes() {
        assert_eq!(after_hashes("so\n#### 1,234\nend"), Some("1,234"));
        assert_eq!(after_hashes("####\n5"), None);
        assert_eq!(after_hashes("5"), None);
    }

    #[test]
    fn the_last_number_is_whole() {
        let cases = [
            ("it costs $1,234.50.", "$1,234.50"),
            ("from 3 to -4", "-4"),
            ("10-5", "5"),
            ("x = .5", ".5"),
            ("about 12%", "12%"),
            ("6.02e23 of them", "6.02e23"),
            ("one 7", "7"),
            ("1, 2", "2"),
            ("1,2", "1,2"),
            ("1,2345", "1,2345"),
            ("1.234,5", "1.234,5"),
            ("4\u{200b}2", "4\u{200b}2"),
            ("12\u{202f}345", "12\u{202f}345"),
            ("at 3:30", "3:30"),
            ("2^10", "2^10"),
            ("#### 3/4 cups", "3/4"),
            ("1 1/2 cups.", "1 1/2"),
            ("20 / 5.", "20 / 5"),
        ];
        for (text, number) in cases {
            assert_eq!(last_number(text), Some(number), "{text}");
        }
        assert_eq!(last_number("none"), None);
    }

    proptest! {
        #[test]
        fn never_panics(text in "(<think>|</think>|\\\\boxed\\{|\\}|\\{|\\\\|####|\n|-?1,?2|\\.5|é|%|\\$){0,30}") {
            let _ = (strip_think(&text), boxed(&text), after_hashes(&text), last_number(&text));
        }
    }
}
