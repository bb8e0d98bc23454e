//! What part of a rollout is its answer.

use std::{borrow::Cow, sync::LazyLock};

use regex::Regex;

use super::{
    fence, tags,
    text::{Normalise, Pattern, excerpt},
};
use crate::trace::Trace;

/// How the answer is taken from the model's last reply: a chain of steps, each on what the one before left.
///
/// The last reply is the visible text of the newest sampled message, trimmed ([`Trace::last_reply`]); reasoning that
/// the server keeps apart (`reasoning_content`) is no part of it.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
enum Step {
    StripThink,
    Tag(String),
    TagLenient(String),
    Code(Option<String>),
    Boxed,
    Hashes,
    LastNumber,
    Capture(Pattern),
    Normalise(Normalise),
}

impl Answer {
    /// The whole last reply.
    pub fn whole() -> Self {
        Self::default()
    }

    /// Drops the model's thinking: see [`strip_think`].
    #[must_use]
    pub fn strip_think(self) -> Self {
        self.then(Step::StripThink)
    }

    /// The content of the one tag of this name, strictly: see [`tags::tag`].
    #[must_use]
    pub fn tag(self, name: &str) -> Self {
        self.then(Step::Tag(name.to_owned()))
    }

    /// The content of the last tag of this name, however malformed: see [`tags::tag_lenient`].
    #[must_use]
    pub fn tag_lenient(self, name: &str) -> Self {
        self.then(Step::TagLenient(name.to_owned()))
    }

    /// The one fenced code block, or the one of a language: see [`fence::only`].
    #[must_use]
    pub fn code(self, language: Option<&str>) -> Self {
        self.then(Step::Code(language.map(str::to_owned)))
    }

    /// What stands in the last `\boxed{…}`: see [`boxed`].
    #[must_use]
    pub fn boxed(self) -> Self {
        self.then(Step::Boxed)
    }

    /// What stands behind the last `####`: see [`after_hashes`].
    #[must_use]
    pub fn after_hashes(self) -> Self {
        self.then(Step::Hashes)
    }

    /// The last number: see [`last_number`].
    #[must_use]
    pub fn last_number(self) -> Self {
        self.then(Step::LastNumber)
    }

    /// The first group of a pattern's last match.
    #[must_use]
    pub fn capture(self, pattern: Pattern) -> Self {
        self.then(Step::Capture(pattern))
    }

    /// Evens the text out.
    #[must_use]
    pub fn normalise(self, normalise: Normalise) -> Self {
        self.then(Step::Normalise(normalise))
    }

    /// The answer of a rollout, or why it has none.
    pub fn of(&self, trace: &Trace) -> Result<String, String> {
        match trace.last_reply() {
            "" => Err("the model gave no reply".to_owned()),
            reply => self.of_text(reply).map(Cow::into_owned),
        }
    }

    /// The answer in a reply, or why it has none.
    pub fn of_text<'a>(&self, reply: &'a str) -> Result<Cow<'a, str>, String> {
        let mut text = Cow::Borrowed(reply);
        for step in &self.steps {
            text = match text {
                Cow::Borrowed(text) => step.apply(text)?,
                Cow::Owned(text) => Cow::Owned(step.apply(&text)?.into_owned()),
            };
        }
        Ok(text)
    }

    fn then(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }
}

impl Step {
    fn apply<'a>(&self, text: &'a str) -> Result<Cow<'a, str>, String> {
        let found = match self {
            Self::StripThink => Some(strip_think(text)),
            Self::Tag(name) => Some(tags::tag(text, name).map_err(|fault| fault.to_string())?),
            Self::TagLenient(name) => {
                Some(tags::tag_lenient(text, name).ok_or_else(|| format!("there is no `<{name}>`"))?)
            }
            Self::Code(language) => {
                Some(fence::only(text, language.as_deref()).map_err(|fault| fault.to_string())?.code)
            }
            Self::Boxed => boxed(text),
            Self::Hashes => after_hashes(text),
            Self::LastNumber => last_number(text),
            Self::Capture(pattern) => pattern.capture(text),
            Self::Normalise(normalise) => return Ok(normalise.apply(text)),
        };
        found.map(Cow::Borrowed).ok_or_else(|| format!("there is no {} in `{}`", self.sought(), excerpt(text)))
    }

    fn sought(&self) -> String {
        match self {
            Self::Boxed => "closed `\\boxed{…}` at the end".to_owned(),
            Self::Hashes => "`####` with an answer behind it".to_owned(),
            Self::LastNumber => "number".to_owned(),
            Self::Capture(pattern) => format!("match of `{}`", pattern.as_str()),
            _ => "answer".to_owned(),
        }
    }
}

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

    #[test]
    fn steps_follow_one_another() {
        let answer = Answer::whole().strip_think().tag("answer").boxed().normalise(Normalise::TRIM);
        assert_eq!(answer.of_text(r"<think>5</think><answer>is \boxed{ 6 }</answer>").unwrap(), "6");
        assert_eq!(answer.of_text(r"\boxed{6}").unwrap_err(), "there is no `<answer>`");
        let error = answer.of_text("<answer>6</answer>").unwrap_err();
        assert_eq!(error, "there is no closed `\\boxed{…}` at the end in `6`");
    }

    proptest! {
        #[test]
        fn never_panics(text in "(<think>|</think>|\\\\boxed\\{|\\}|\\{|\\\\|####|\n|-?1,?2|\\.5|é|%|\\$){0,30}") {
            let _ = (strip_think(&text), boxed(&text), after_hashes(&text), last_number(&text));
        }
    }
}
