//! What part of a rollout is its answer.

use std::borrow::Cow;

use super::{
    extract::{after_hashes, boxed, first_line, last_line, last_number, strip_think},
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
    LastCode(Option<String>),
    Boxed,
    Hashes,
    LastNumber,
    FirstLine,
    LastLine,
    After(String),
    Strip(String),
    Capture(Pattern),
    Normalise(Normalise),
    FirstOf(Vec<Answer>),
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

    /// The last fenced code block, or the last of a language: see [`fence::last`].
    #[must_use]
    pub fn last_code(self, language: Option<&str>) -> Self {
        self.then(Step::LastCode(language.map(str::to_owned)))
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

    /// The first line with anything on it, trimmed.
    #[must_use]
    pub fn first_line(self) -> Self {
        self.then(Step::FirstLine)
    }

    /// The last line with anything on it, trimmed.
    #[must_use]
    pub fn last_line(self) -> Self {
        self.then(Step::LastLine)
    }

    /// What stands behind the last occurrence of a marker such as `Answer:`, trimmed.
    #[must_use]
    pub fn after(self, marker: &str) -> Self {
        self.then(Step::After(marker.to_owned()))
    }

    /// Drops white space and these characters at both ends.
    #[must_use]
    pub fn strip(self, characters: &str) -> Self {
        self.then(Step::Strip(characters.to_owned()))
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

    /// What the first of several ways finds that finds anything.
    #[must_use]
    pub fn first_of(self, ways: Vec<Answer>) -> Self {
        self.then(Step::FirstOf(ways))
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

    /// A reply from which this answer is taken, as a model would write it: `<answer>4</answer>`, `\boxed{4}`, `#### 4`, a
    /// code block, or the answer itself. `None` where there is none, for example for a pattern that captures something
    /// else. What the last steps even out is evened out in the answer, too: of `lower`, the answer `Yes` is `yes`.
    pub fn inverse(&self, answer: &str) -> Option<String> {
        let evening = self.steps.iter().rev().take_while(|step| step.evens()).count();
        let mut wanted = Cow::Borrowed(answer);
        for step in &self.steps[self.steps.len() - evening..] {
            wanted = Cow::Owned(step.apply(&wanted).ok()?.into_owned());
        }
        let mut reply = answer.to_owned();
        for step in self.steps.iter().rev() {
            reply = step.inverse(reply)?;
        }
        // Each step has its own inverse, but a later one may spoil what an earlier one looks for.
        let taken = self.of_text(&reply).is_ok_and(|taken| taken == wanted);
        taken.then_some(reply)
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
            Self::LastCode(language) => {
                Some(fence::last(text, language.as_deref()).map_err(|fault| fault.to_string())?.code)
            }
            Self::Boxed => boxed(text),
            Self::Hashes => after_hashes(text),
            Self::LastNumber => last_number(text),
            Self::FirstLine => first_line(text),
            Self::LastLine => last_line(text),
            Self::After(marker) => text.rfind(marker.as_str()).map(|at| text[at + marker.len()..].trim()),
            Self::Strip(characters) => {
                Some(text.trim_matches(|found: char| found.is_whitespace() || characters.contains(found)))
            }
            Self::Capture(pattern) => pattern.capture(text),
            Self::Normalise(normalise) => return Ok(normalise.apply(text)),
            Self::FirstOf(ways) => return first_of(ways, text),
        };
        found.map(Cow::Borrowed).ok_or_else(|| format!("there is no {} in `{}`", self.sought(), excerpt(text)))
    }

    fn sought(&self) -> String {
        match self {
            Self::Boxed => "closed `\\boxed{…}` at the end".to_owned(),
            Self::Hashes => "`####` with an answer behind it".to_owned(),
            Self::LastNumber => "number".to_owned(),
            Self::FirstLine | Self::LastLine => "line with anything on it".to_owned(),
            Self::After(marker) => format!("`{marker}`"),
            Self::Capture(pattern) => format!("match of `{}`", pattern.as_str()),
            _ => "answer".to_owned(),
        }
    }

    /// Whether it only evens out what is already the answer.
    fn evens(&self) -> bool {
        matches!(self, Self::Normalise(_) | Self::Strip(_))
    }

    /// A text from which this step alone would most likely take the answer.
    fn inverse(&self, answer: String) -> Option<String> {
        let language = |language: &Option<String>| language.clone().unwrap_or_default();
        Some(match self {
            Self::Tag(name) | Self::TagLenient(name) => format!("<{name}>{answer}</{name}>"),
            Self::Code(name) | Self::LastCode(name) => format!("```{}\n{answer}\n```", language(name)),
            Self::Boxed => format!("\\boxed{{{answer}}}"),
            Self::Hashes => format!("#### {answer}"),
            Self::After(marker) => format!("{marker} {answer}"),
            Self::Capture(pattern) => pattern.filled(&answer)?,
            Self::FirstOf(ways) => ways.iter().find_map(|way| way.inverse(&answer))?,
            Self::StripThink
            | Self::LastNumber
            | Self::FirstLine
            | Self::LastLine
            | Self::Strip(_)
            | Self::Normalise(_) => answer,
        })
    }
}

fn first_of<'a>(ways: &[Answer], text: &'a str) -> Result<Cow<'a, str>, String> {
    let mut problems = Vec::new();
    for way in ways {
        match way.of_text(text) {
            Ok(found) => return Ok(found),
            Err(problem) => problems.push(problem),
        }
    }
    Err(problems.join("; nor: "))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn steps_follow_one_another() {
        let answer = Answer::whole().strip_think().tag("answer").boxed().normalise(Normalise::TRIM);
        assert_eq!(answer.of_text(r"<think>5</think><answer>is \boxed{ 6 }</answer>").unwrap(), "6");
        assert_eq!(answer.of_text(r"\boxed{6}").unwrap_err(), "there is no `<answer>`");
        let error = answer.of_text("<answer>6</answer>").unwrap_err();
        assert_eq!(error, "there is no closed `\\boxed{…}` at the end in `6`");
    }

    #[test]
    fn the_first_way_that_finds_anything_counts() {
        let ways = vec![Answer::whole().after_hashes(), Answer::whole().boxed(), Answer::whole().last_number()];
        let answer = Answer::whole().strip_think().first_of(ways);
        assert_eq!(answer.of_text("5 then #### 6").unwrap(), "6");
        assert_eq!(answer.of_text("5 then \\boxed{7} of 8").unwrap(), "7");
        assert_eq!(answer.of_text("5 then 8").unwrap(), "8");
        let error = answer.of_text("none").unwrap_err();
        assert!(error.contains("`####`") && error.contains("nor: there is no number"), "{error}");
    }

    #[test]
    fn lines_markers_and_strips() {
        assert_eq!(Answer::whole().last_line().of_text("a\n b \n\n").unwrap(), "b");
        assert_eq!(Answer::whole().first_line().of_text("\n a \nb").unwrap(), "a");
        assert_eq!(Answer::whole().after("Answer:").of_text("Answer: 3\nAnswer: 4 ").unwrap(), "4");
        assert_eq!(Answer::whole().strip(".*").of_text(" **4**. ").unwrap(), "4");
        assert_eq!(Answer::whole().after("Answer:").of_text("4").unwrap_err(), "there is no `Answer:` in `4`");
        assert_eq!(Answer::whole().last_code(None).of_text("```\n1\n```\n```\n2\n```").unwrap(), "2");
    }

    #[test]
    fn a_perfect_reply_is_written_as_a_model_would_write_it() {
        let pattern = |text| Pattern::new(text).unwrap();
        let cases = [
            (Answer::whole(), "4"),
            (Answer::whole().strip_think().tag("answer"), "<answer>4</answer>"),
            (Answer::whole().tag_lenient("answer").boxed(), "<answer>\\boxed{4}</answer>"),
            (Answer::whole().after_hashes().last_number(), "#### 4"),
            (Answer::whole().code(Some("python")), "```python\n4\n```"),
            (Answer::whole().after("Answer:").strip("."), "Answer: 4"),
            (Answer::whole().first_of(vec![Answer::whole().boxed(), Answer::whole()]), "\\boxed{4}"),
            (Answer::whole().capture(pattern(r"(\d+)")), "4"),
            (Answer::whole().capture(pattern(r"(?i)^The answer is:?\s*(\d+)\.$")), "The answer is: 4."),
        ];
        for (answer, reply) in cases {
            assert_eq!(answer.inverse("4").as_deref(), Some(reply), "{answer:?}");
        }
        assert_eq!(Answer::whole().capture(pattern(r"([a-z]+) is it")).inverse("4"), None);
        assert_eq!(Answer::whole().last_number().inverse("four"), None);
        assert_eq!(Answer::whole().tag("answer").inverse("a</answer>"), None);
        let lower = Answer::whole().boxed().normalise(Normalise::RELAXED);
        assert_eq!(lower.inverse(" Yes ").as_deref(), Some("\\boxed{ Yes }"));
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            Just(Step::StripThink),
            Just(Step::Boxed),
            Just(Step::Hashes),
            Just(Step::LastNumber),
            Just(Step::FirstLine),
            Just(Step::LastLine),
            Just(Step::Tag("answer".to_owned())),
            Just(Step::TagLenient("a".to_owned())),
            Just(Step::Code(Some("python".to_owned()))),
            Just(Step::LastCode(None)),
            Just(Step::After("Answer:".to_owned())),
            Just(Step::Capture(Pattern::new(r"is \$?(-?\d+)").expect("a pattern"))),
            Just(Step::FirstOf(vec![Answer::whole().boxed(), Answer::whole().after_hashes()])),
        ]
    }

    proptest! {
        #[test]
        fn the_answer_is_taken_from_its_own_inverse(
            steps in prop::collection::vec(any_step(), 0..4),
            answer in "(-?[0-9]{1,4}|[a-z]{1,5}| |\n|\\{|\\}|<a>|</answer>|####|```\n|Answer:|</think>){0,4}",
        ) {
            let parser = Answer { steps };
            if let Some(reply) = parser.inverse(&answer) {
                let taken = parser.of_text(&reply).map(Cow::into_owned);
                prop_assert_eq!(taken, Ok(answer));
            }
        }

        #[test]
        fn a_number_has_an_inverse_through_every_step(step in any_step(), number in 0_u32..100_000) {
            let parser = Answer { steps: vec![step] };
            prop_assert!(parser.inverse(&number.to_string()).is_some());
        }
    }
}
