//! Reading verdicts from what models really write.
//!
//! Reading is strict: a value must be named as one, and two that contradict each other are none. What cannot be read is asked
//! for again by the caller.

use std::{fmt::Write as _, sync::LazyLock};

use regex::Regex;
use serde_json::{Map, Value};

use super::verdict::{Criterion, Form, Verdict};
use crate::rubric::{boxed, strip_think, text::excerpt};

/// What stands before a value at the beginning of a line: the word, and what follows it.
static MARK: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r"(?im)^[ \t*_#`-]*(?:(?:my|the|final|overall|your)[ \t]+)*(verdict|judge?ment|decision|answer|score|rating|grade)[ \t*_`]*(?:is\b|:|=|-|–|—)[ \t*_`:]*([^\r\n]*)$",
    )
    .expect("a constant pattern")
});

/// A number, alone or of a whole: `8`, `8/10`, `8 out of 10`.
static NUMBER: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?i)^([-+]?\d+(?:\.\d+)?)(?:\s*(?:/|out\s+of)\s*(\d+(?:\.\d+)?))?$").expect("a constant pattern")
});

/// What stands between the marks of emphasis or in double brackets.
static EMPHASISED: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\*\*([^*\r\n]{1,80})\*\*|__([^_\r\n]{1,80})__|\[\[([^\]\r\n]{1,80})\]\]").expect("a constant pattern")
});

impl Form {
    /// Reads a verdict from the whole text of a judge's message, or says why there is none.
    pub(super) fn read(&self, text: &str) -> Result<Verdict, String> {
        let said = strip_think(text);
        if said.is_empty() {
            return Err("it is empty, or the thinking in it has no end".to_owned());
        }
        match self {
            Self::Criteria(criteria) => read_criteria(criteria, said),
            Self::Json { check, path, .. } => {
                let object = last_object(said, |_| true).ok_or("there is no JSON object in it")?;
                let fits = check.check(&object.to_string());
                if fits.value < 1.0 {
                    return Err(fits.why.unwrap_or_default());
                }
                let found = path.iter().try_fold(&object, |value, key| value.get(key));
                let score = self.score_of(found.unwrap_or(&Value::Null));
                let score = score.ok_or_else(|| format!("`{}` is not {}", path.join("."), self.bounds()))?;
                let why = ["reason", "reasoning", "explanation", "rationale"]
                    .iter()
                    .find_map(|key| object.get(*key)?.as_str().map(str::to_owned));
                Ok(Verdict { score, why: why.unwrap_or_else(|| line(&object.to_string())), parts: Vec::new() })
            }
            Self::Choice(_) | Self::Scale { .. } => {
                if let Some(object) = last_object(said, |object| object.contains_key("verdict")) {
                    // Judges quote what they judge, JSON too.
                    if let (Some((line, marked)), Some(json)) = (self.marked(said), self.score_of(&object["verdict"]))
                        && marked != json
                    {
                        return Err(format!("it says both `{}` and `{line}`", object["verdict"]));
                    }
                    let score = self.score_of(&object["verdict"]);
                    let score =
                        score.ok_or_else(|| format!("`{}` is no verdict", excerpt(&object["verdict"].to_string())))?;
                    let reason = object.get("reason").and_then(Value::as_str).unwrap_or_default();
                    return Ok(Verdict { score, why: self.why(&object["verdict"], reason), parts: Vec::new() });
                }
                let (value, score) = self.find(said)?;
                Ok(Verdict { score, why: self.why(&value.into(), said), parts: Vec::new() })
            }
        }
    }

    /// The verdict that stands in a text: behind the last mark such as `Verdict:`; else in the last box; else what the first
    /// line, the last line, its last sentence, the emphasised words and weaker marks say, if they agree.
    fn find(&self, text: &str) -> Result<(String, f64), String> {
        let (mut strong, mut found): (Option<String>, Vec<(String, f64)>) = (None, Vec::new());
        for marked in MARK.captures_iter(text) {
            // Some write the value below the mark.
            let below = text[marked.get(0).map_or(0, |mark| mark.end())..].lines().find(|line| !line.trim().is_empty());
            let value = if marked[2].trim().is_empty() { below.unwrap_or_default() } else { marked[2].trim() };
            match (marked[1].to_lowercase().as_str(), self) {
                // The task may have an answer, a score or a grade of its own.
                ("answer", Self::Scale { .. }) => {}
                ("answer" | "score" | "rating" | "grade", Self::Choice(_)) => found.extend(self.stated(value)),
                _ => strong = Some(value.to_owned()),
            }
        }
        if let Some(value) = strong {
            return self.stated(&value).ok_or_else(|| format!("`{}` is not {}", excerpt(&value), self.expected()));
        }
        if let Some(found) = boxed(text).and_then(|inner| self.value(inner)) {
            return Ok(found);
        }
        let mut lines = text.lines().filter(|line| !line.trim().is_empty());
        let first = lines.next().unwrap_or_default();
        let last = lines.next_back().unwrap_or(first);
        found.extend([first, last].iter().filter_map(|line| self.stated(line)));
        found.extend(last.rsplit(". ").next().and_then(|sentence| self.value(sentence)));
        for emphasised in EMPHASISED.captures_iter(text) {
            found.extend(emphasised.iter().skip(1).flatten().next().and_then(|part| self.value(part.as_str())));
        }
        let Some((value, score)) = found.first().cloned() else {
            return Err(format!("it does not say {}", self.expected()));
        };
        if let Some((other, _)) = found.iter().find(|(_, other)| *other != score) {
            return Err(format!("it says both `{value}` and `{other}`"));
        }
        Ok((value, score))
    }

    /// The value of the last line of the form `Verdict: …`, outside JSON.
    fn marked(&self, text: &str) -> Option<(String, f64)> {
        let verdict = |marked: &regex::Captures<'_>| marked[1].eq_ignore_ascii_case("verdict");
        MARK.captures_iter(text).filter(verdict).last().and_then(|marked| self.stated(marked[2].trim()))
    }

    /// Whether a text that was cut off ends in what may be the beginning of another value: `1` of `10`.
    pub(super) fn may_go_on(&self, text: &str) -> bool {
        let end = text.trim_end().to_lowercase();
        match self {
            Self::Scale { .. } => end.ends_with(|c: char| c.is_ascii_digit() || c == '.'),
            Self::Choice(choices) => choices.iter().any(|(name, _)| {
                let name = name.to_lowercase();
                let longer =
                    |(other, _): &(String, f64)| other.len() > name.len() && other.to_lowercase().starts_with(&name);
                end.ends_with(&name) && choices.iter().any(longer)
            }),
            // JSON that is cut off is none.
            Self::Json { .. } | Self::Criteria(_) => false,
        }
    }

    /// A text that is a value or begins with one.
    fn stated(&self, text: &str) -> Option<(String, f64)> {
        self.value(text).or_else(|| self.leading(text))
    }

    /// A text that is nothing but a value.
    fn value(&self, text: &str) -> Option<(String, f64)> {
        let bare = bare(text);
        match self {
            Self::Choice(choices) => {
                // `C#` is a value of its own beside `C`.
                let only = |fits: &dyn Fn(&str) -> bool| {
                    let mut same = choices.iter().filter(|(name, _)| fits(name));
                    same.next().filter(|_| same.next().is_none())
                };
                let exact = choices.iter().find(|(name, _)| name == text.trim());
                let trimmed = || only(&|name| name == bare || self::bare(name) == bare);
                let relaxed = || only(&|name| name.eq_ignore_ascii_case(bare));
                exact.or_else(trimmed).or_else(relaxed).cloned()
            }
            Self::Scale { low, high } | Self::Json { low, high, .. } => {
                let parts = NUMBER.captures(bare)?;
                let whole = parts.get(2).map(|whole| whole.as_str().parse::<f64>());
                if whole.is_some_and(|whole| whole != Ok(*high)) {
                    return None;
                }
                let number: f64 = parts[1].parse().ok()?;
                (*low..=*high).contains(&number).then(|| (bare.to_owned(), (number - low) / (high - low)))
            }
            Self::Criteria(_) => None,
        }
    }

    /// A text that begins with a value, set off by a sign: `Yes, it is.`, `A - the same`, `8/10: good`. A value that another
    /// one joins, as in `yes or no`, `yes, but no` and `7-8`, is none.
    fn leading(&self, text: &str) -> Option<(String, f64)> {
        let text = text.trim_start_matches(|c: char| c.is_whitespace() || "*_`\"'([#>".contains(c));
        let end = text.char_indices().find(|(at, c)| {
            let next = text[at + c.len_utf8()..].chars().next();
            let spaced = next.is_none_or(char::is_whitespace);
            (matches!(c, ',' | '.' | ':' | ';' | '!') && spaced)
                || (matches!(c, '*' | '_' | '`' | '"' | ')' | ']') && *at > 0)
                || (matches!(c, '-' | '–' | '—') && spaced && text[..*at].ends_with(' '))
                || *c == '('
                || *c == '—'
        });
        // What is said in another sentence is looked at for itself.
        let (head, rest) = text.split_at(end?.0);
        let found = self.value(head)?;
        let joined = rest.trim_start_matches(|c: char| !c.is_alphanumeric());
        let joined = joined
            .strip_prefix("or ")
            .or_else(|| joined.strip_prefix("and "))
            .or_else(|| joined.strip_prefix("but "))
            .map_or_else(
                || (!rest.starts_with('.')).then(|| self.value(joined)).flatten(),
                |rest| self.value(rest.split_whitespace().next().unwrap_or_default()),
            );
        joined.is_none_or(|other| other.1 == found.1).then_some(found)
    }

    /// The score of a value in JSON.
    fn score_of(&self, value: &Value) -> Option<f64> {
        match (self, value) {
            (Self::Scale { low, high } | Self::Json { low, high, .. }, Value::Number(number)) => {
                let number = number.as_f64()?;
                (*low..=*high).contains(&number).then(|| (number - low) / (high - low))
            }
            (Self::Json { .. }, Value::Bool(holds)) => Some(f64::from(u8::from(*holds))),
            (Self::Choice(choices), Value::Bool(holds)) => {
                let word = if *holds { "yes" } else { "no" };
                choices.iter().find(|(name, _)| name == word).map(|(_, score)| *score)
            }
            (Self::Choice(_) | Self::Scale { .. }, Value::String(text)) => self.value(text).map(|(_, score)| score),
            _ => None,
        }
    }

    fn expected(&self) -> String {
        match self {
            Self::Choice(choices) => {
                let names: Vec<&str> = choices.iter().map(|(name, _)| name.as_str()).collect();
                format!("one of {}", names.join(", "))
            }
            _ => self.bounds(),
        }
    }

    fn why(&self, value: &Value, reason: &str) -> String {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        match line(reason) {
            reason if reason.is_empty() || reason == value => format!("says {value}"),
            reason => format!("says {value}: {reason}"),
        }
    }
}

/// A text without signs around it.
fn bare(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || "*_`\"'.,:;!()[]{}<>#“”‘’".contains(c))
}

/// Each criterion's answer, all of them and none twice.
fn read_criteria(criteria: &[Criterion], text: &str) -> Result<Verdict, String> {
    let object = last_object(text, |object| object.contains_key("verdicts"))
        .ok_or("there is no JSON object with `verdicts` in it")?;
    let entries = object["verdicts"].as_array().ok_or("`verdicts` is not a list")?;
    let field = |entry: &Value, key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default().trim().to_owned();
    if let Some(unknown) = entries
        .iter()
        .map(|entry| field(entry, "name"))
        .find(|name| !criteria.iter().any(|criterion| criterion.name == *name))
    {
        return Err(format!("there is no criterion `{}`", excerpt(&unknown)));
    }
    let (mut parts, mut sum, mut weights, mut why) = (Vec::new(), 0.0, 0.0, String::new());
    for Criterion { name, weight, choices, .. } in criteria {
        let mut own = entries.iter().filter(|entry| field(entry, "name") == *name);
        let entry = own.next().ok_or_else(|| format!("there is no verdict on `{name}`"))?;
        if own.next().is_some() {
            return Err(format!("there are several verdicts on `{name}`"));
        }
        let word = field(entry, "verdict");
        let place = choices.iter().position(|choice| *choice == word);
        let place = place.or_else(|| choices.iter().position(|choice| choice.eq_ignore_ascii_case(&word)));
        let place =
            place.ok_or_else(|| format!("`{}` on `{name}` is not one of {}", excerpt(&word), choices.join(", ")))?;
        let score = place as f64 / (choices.len() - 1) as f64;
        sum += weight * score;
        weights += weight;
        let separator = if why.is_empty() { "" } else { ", " };
        let _ = write!(why, "{separator}{name} {word}");
        let reason = line(&field(entry, "reason"));
        parts.push((score, if reason.is_empty() { format!("says {word}") } else { format!("says {word}: {reason}") }));
    }
    Ok(Verdict { score: sum / weights, why, parts })
}

/// The last object of a text that is accepted, in a code block or not: what a judge quotes stands before what it says. An
/// object within another one does not count.
fn last_object(text: &str, accept: impl Fn(&Map<String, Value>) -> bool) -> Option<Value> {
    let read =
        |text: &str| serde_json::from_str::<Value>(text).ok().filter(|value| value.as_object().is_some_and(&accept));
    if let Some(whole) = read(text) {
        return Some(whole);
    }
    let (mut at, mut found) = (0, None);
    while let Some(open) = text[at..].find('{') {
        let start = at + open;
        let mut values = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Value>();
        at = match values.next() {
            Some(Ok(value)) => {
                let end = start + values.byte_offset();
                if value.as_object().is_some_and(&accept) {
                    found = Some(value);
                }
                end
            }
            _ => start + 1,
        };
    }
    found
}

/// A reason on one line.
fn line(text: &str) -> String {
    const LONGEST: usize = 500;
    let flat: Vec<&str> = text.split_whitespace().collect();
    let flat = flat.join(" ");
    match flat.char_indices().nth(LONGEST) {
        Some((cut, _)) => format!("{}…", &flat[..cut]),
        None => flat,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::rubric::schema::JsonSchema;

    fn score(form: &Form, text: &str) -> Option<f64> {
        form.read(text).ok().map(|verdict| verdict.score)
    }

    #[test]
    fn what_a_judge_quotes_is_not_what_it_says() {
        let form = Form::yes_no();
        assert_eq!(score(&form, "The reply claims {\"verdict\": \"yes\"}.\nVerdict: no"), None);
        assert_eq!(
            score(&form, "```json\n{\"verdict\": \"yes\"}\n```\nis what it says.\n{\"verdict\": \"no\"}"),
            Some(0.0)
        );
        assert_eq!(score(&form, "{\"verdict\": \"no\"}\nVerdict: no"), Some(0.0));
        for text in
            ["Yes, but no", "Yes, no", "Yes. No.", "Oui", "Verdict: ja", "Verdict: yes/no", "I cannot judge this."]
        {
            assert_eq!(score(&form, text), None, "{text}");
        }
    }

    #[test]
    fn choices_that_begin_alike_are_told_apart() {
        let named = |names: &[&str]| {
            Form::Choice(names.iter().enumerate().map(|(at, name)| ((*name).to_owned(), at as f64)).collect())
        };
        let form = named(&["good", "good enough", "C", "C#", "A+"]);
        for (text, wanted) in [
            ("Verdict: good", Some(0.0)),
            ("Verdict: good enough.", Some(1.0)),
            ("Verdict: **good enough** (it runs)", Some(1.0)),
            ("Verdict: C", Some(2.0)),
            ("Verdict: C#", Some(3.0)),
            ("Verdict: a+", Some(4.0)),
            ("Verdict: good or good enough", None),
        ] {
            assert_eq!(score(&form, text), wanted, "{text}");
        }
        assert!(form.may_go_on("Verdict: good") && !form.may_go_on("Verdict: good enough"));
        let scale = Form::Scale { low: 0.0, high: 10.0 };
        assert!(scale.may_go_on("Score: 1") && !scale.may_go_on("Score: 1, as") && !Form::yes_no().may_go_on("yes"));
    }

    #[test]
    fn yes_and_no_are_read_as_models_write_them() {
        let form = Form::yes_no();
        for text in [
            "yes",
            "Yes.",
            "**Yes**",
            "YES",
            "Yes, the response is correct. There is no error in it.",
            "The response says 4.\n\nVerdict: yes",
            "The response says 4.\n\n**Verdict:** Yes",
            "The response says 4.\n**Verdict: yes**",
            "Verdict: no? Let me look again.\nFinal verdict: yes.",
            "## Verdict\n\nReasons.\n\nAnswer: \"yes\"",
            "Verdict:\nyes",
            "My answer is yes.",
            "The answer is 42, as in the reference.\n\nYes",
            "<think>no, no</think>\nyes",
            "They mean the same.\n\nYes",
            "They mean the same. **Yes**",
            "It is right. Yes.",
            r"So \boxed{yes}",
            r#"{"reason": "same", "verdict": "yes"}"#,
            "Here you are:\n```json\n{\"reason\": \"same\", \"verdict\": \"Yes\"}\n```",
            r#"{"verdict": true}"#,
            "Yes — they agree",
            "[[yes]]",
        ] {
            assert_eq!(score(&form, text), Some(1.0), "{text}");
        }
        for text in ["no", "No, it says 5.", "Verdict: No - it says 5", "> Verdict: yes was claimed.\nVerdict: no"] {
            assert_eq!(score(&form, text), Some(0.0), "{text}");
        }
        for text in [
            "",
            "<think>yes",
            "I cannot say.",
            "It is correct.",
            "yes or no",
            "Verdict: yes or no",
            "Verdict: maybe",
            "Yes\n\nNo",
            "**Yes** and **No**",
            "Yes, at first sight. But it says 5.\n\nNo.",
            "There is no error, and yes it is fine",
            "The answer is no, it should be.\n\nYes",
            "> Verdict: yes",
            "Nothing",
            "Yesterday.",
        ] {
            assert_eq!(score(&form, text), None, "{text}");
        }
    }

    #[test]
    fn numbers_must_lie_on_the_scale() {
        let form = Form::Scale { low: 0.0, high: 10.0 };
        for text in
            ["8", "8/10", "8 out of 10", "Score: 8", "**Score:** 8/10", "Good.\n\nVerdict: 8.0", "8/10: good", "**8**"]
        {
            assert_eq!(score(&form, text), Some(0.8), "{text}");
        }
        assert_eq!(score(&Form::Scale { low: 1.0, high: 5.0 }, "Rating: 2"), Some(0.25));
        for text in [
            "11",
            "-1",
            "8/5",
            "Score: 7-8",
            "Score: 7 or 8",
            "eight",
            "80%",
            "It has 3 errors",
            "The answer is 8",
            "7\n\n8",
            "Verdict: 1e1",
        ] {
            assert_eq!(score(&form, text), None, "{text}");
        }
    }

    #[test]
    fn choices_keep_their_case_where_it_matters() {
        let form = Form::Choice(vec![("A".to_owned(), 1.0), ("B".to_owned(), 0.5), ("C".to_owned(), 0.0)]);
        for (text, wanted) in [
            ("B", Some(0.5)),
            ("(B)", Some(0.5)),
            ("Verdict: B", Some(0.5)),
            ("Verdict: b.", Some(0.5)),
            ("B: partly right", Some(0.5)),
            ("A good answer would say more. I choose\n\nC", Some(0.0)),
            ("A good answer.", None),
            ("Between A and B", None),
        ] {
            assert_eq!(score(&form, text), wanted, "{text}");
        }
    }

    #[test]
    fn json_must_fit_and_hold_the_score() {
        let schema = json!({"type": "object", "required": ["quality"], "properties": {"quality": {"type": "object"}}});
        let check = JsonSchema::new(&schema).unwrap();
        let path = vec!["quality".to_owned(), "overall".to_owned()];
        let form = Form::Json { schema, check, path, low: 0.0, high: 5.0 };
        assert_eq!(score(&form, r#"Here: {"quality": {"overall": 4}, "reason": "x"}"#), Some(0.8));
        assert_eq!(form.read(r#"{"quality": {"overall": 4}, "reason": "x"}"#).unwrap().why, "x");
        let problem = |text| form.read(text).unwrap_err();
        assert_eq!(problem(r#"{"quality": {"overall": 6}}"#), "`quality.overall` is not a number from 0 to 5");
        assert!(problem(r#"{"quality": 4}"#).starts_with("it does not fit the schema at `/quality`"));
        assert_eq!(problem("4"), "there is no JSON object in it");
        assert_eq!(score(&form, &form.full_marks(true)), Some(1.0));
    }

    #[test]
    fn criteria_are_all_answered_once() {
        let criterion = |name: &str, weight, choices: &[&str]| Criterion {
            name: name.to_owned(),
            text: "is it?".to_owned(),
            weight,
            choices: choices.iter().map(|choice| (*choice).to_owned()).collect(),
        };
        let form = Form::Criteria(vec![
            criterion("clear", 1.0, &["no", "yes"]),
            criterion("deep", 3.0, &["poor", "fair", "good"]),
        ]);
        let said = r#"Sure: {"verdicts": [{"name": "deep", "reason": "some", "verdict": "fair"},
            {"name": "clear", "reason": "", "verdict": "Yes"}]}"#;
        let verdict = form.read(said).unwrap();
        assert_eq!(verdict.score, 0.625);
        assert_eq!(verdict.parts, [(1.0, "says Yes".to_owned()), (0.5, "says fair: some".to_owned())]);
        for (text, problem) in [
            (r#"{"verdicts": [{"name": "clear", "verdict": "yes"}]}"#, "there is no verdict on `deep`"),
            (r#"{"verdicts": [{"name": "nice", "verdict": "yes"}]}"#, "there is no criterion `nice`"),
            ("yes", "there is no JSON object with `verdicts` in it"),
        ] {
            assert_eq!(form.read(text).unwrap_err(), problem);
        }
        assert_eq!(score(&form, &form.full_marks(false)), Some(1.0));
    }

    #[test]
    fn full_marks_are_read_as_full_marks() {
        let forms = [
            Form::yes_no(),
            Form::Scale { low: 1.0, high: 10.0 },
            Form::Choice(vec![("B".to_owned(), 0.0), ("A".to_owned(), 1.0)]),
        ];
        for form in forms {
            for structured in [false, true] {
                assert_eq!(score(&form, &form.full_marks(structured)), Some(1.0), "{form:?}");
            }
        }
    }
}
