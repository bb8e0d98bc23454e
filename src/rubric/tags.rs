//! Tags that a model is told to put round its answer, as `<answer>…</answer>`.
//!
//! The strict functions accept exactly one reading and otherwise say which rule failed. [`tag_lenient`] is apart and
//! called by its name. A tag is `<name>` or `</name>`, case-sensitive, without attributes or spaces; what stands inside
//! a fenced code block is code, not a tag.

use std::{collections::HashMap, ops::Range};

use super::fence::code_spans;

/// Which rule a text broke.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TagFault {
    /// There is no such tag.
    #[error("there is no `<{0}>`")]
    Missing(String),
    /// The tag stands in a code block only.
    #[error("`<{0}>` stands only inside a code block")]
    InCode(String),
    /// It is opened and never closed.
    #[error("`<{0}>` is never closed")]
    Unclosed(String),
    /// It is closed by the end of another tag.
    #[error("`<{name}>` is closed by `</{found}>`")]
    Mismatched {
        /// The tag.
        name: String,
        /// What closes it.
        found: String,
    },
    /// It is closed but was not opened.
    #[error("`</{0}>` closes what was never opened")]
    Unopened(String),
    /// The closing tag stands before the opening one.
    #[error("`</{0}>` stands before `<{0}>`")]
    Swapped(String),
    /// It is opened again before it is closed.
    #[error("`<{0}>` is opened inside itself")]
    Nested(String),
    /// There is more than one.
    #[error("`<{0}>` appears more than once")]
    Repeated(String),
    /// It closes outside of the tag in which it was opened, or the other way round.
    #[error("`<{name}>` and `<{other}>` overlap without one holding the other")]
    Crossed {
        /// The tag.
        name: String,
        /// The other tag.
        other: String,
    },
    /// The tags of a sequence are not one after another in its order.
    #[error("`<{second}>` does not follow `<{first}>`")]
    Order {
        /// The tag that comes first.
        first: String,
        /// The tag that comes next.
        second: String,
    },
    /// There is text outside of the tags of a sequence.
    #[error("there is text outside of the tags: `{0}`")]
    Outside(String),
}

/// One tag of a text.
struct Mark<'a> {
    name: &'a str,
    closing: bool,
    span: Range<usize>,
}

/// The content of the one `<name>…</name>` of a text, as written.
///
/// # Errors
/// When there is none or more than one, when it is nested in itself, crossed with another tag, closed before it is
/// opened, or stands in a code block.
pub fn tag<'a>(text: &'a str, name: &str) -> Result<&'a str, TagFault> {
    let (marks, in_code) = marks(text);
    Ok(&text[content(&marks, &in_code, name)?])
}

/// The contents of a text that consists of the named tags, each once, one after another, with nothing but white space
/// between and around them; for example `<think>…</think><answer>…</answer>`.
pub fn sequence<'a>(text: &'a str, names: &[&str]) -> Result<Vec<&'a str>, TagFault> {
    let (marks, in_code) = marks(text);
    let mut contents = Vec::with_capacity(names.len());
    for name in names {
        contents.push(content(&marks, &in_code, name)?);
    }
    let whole = |name: &str, content: &Range<usize>| {
        content.start - "<>".len() - name.len()..content.end + "</>".len() + name.len()
    };
    let spans: Vec<Range<usize>> = names.iter().zip(&contents).map(|(name, content)| whole(name, content)).collect();
    if let Some(at) = spans.windows(2).position(|pair| pair[1].start < pair[0].end) {
        return Err(TagFault::Order { first: names[at].to_owned(), second: names[at + 1].to_owned() });
    }
    let mut end = 0;
    for span in spans {
        refuse_text(&text[end..span.start])?;
        end = span.end;
    }
    refuse_text(&text[end..])?;
    Ok(contents.into_iter().map(|content| &text[content]).collect())
}

/// The content of a tag in a text that need not be well-formed: of the last complete pair, else from the last opening
/// tag to the end. Code blocks count as text. Never use it for a reward on form.
pub fn tag_lenient<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    if let Some(end) = text.rfind(&close)
        && let Some(start) = text[..end].rfind(&open)
    {
        return Some(&text[start + open.len()..end]);
    }
    text.rfind(&open).map(|start| &text[start + open.len()..])
}

fn content(marks: &[Mark<'_>], in_code: &[Mark<'_>], name: &str) -> Result<Range<usize>, TagFault> {
    let own: Vec<usize> = (0..marks.len()).filter(|&index| marks[index].name == name).collect();
    let owned = || name.to_owned();
    let closing: Vec<bool> = own.iter().map(|&index| marks[index].closing).collect();
    match closing[..] {
        [] if in_code.iter().any(|mark| mark.name == name) => return Err(TagFault::InCode(owned())),
        [] => return Err(TagFault::Missing(owned())),
        [false, true] => {}
        [false] => {
            return Err(match stray_closing(&marks[own[0] + 1..]) {
                Some(found) => TagFault::Mismatched { name: owned(), found: found.to_owned() },
                None => TagFault::Unclosed(owned()),
            });
        }
        [true, ..] if closing.contains(&false) => return Err(TagFault::Swapped(owned())),
        [true, ..] => return Err(TagFault::Unopened(owned())),
        [false, false, ..] => return Err(TagFault::Nested(owned())),
        [false, true, true, ..] => return Err(TagFault::Unopened(owned())),
        [false, true, false, ..] => return Err(TagFault::Repeated(owned())),
    }
    let (first, last) = (own[0], own[1]);
    let inside = &marks[first + 1..last];
    // Crossed: closed inside though opened before, or opened inside and closed behind.
    if let Some(other) = stray_closing(inside)
        && leaves_open(&marks[..first], other)
    {
        return Err(TagFault::Crossed { name: owned(), other: other.to_owned() });
    }
    if let Some(other) = stray_closing(&marks[last + 1..])
        && leaves_open(inside, other)
    {
        return Err(TagFault::Crossed { name: owned(), other: other.to_owned() });
    }
    Ok(marks[first].span.end..marks[last].span.start)
}

/// The first tag that is closed here without having been opened here.
fn stray_closing<'a>(marks: &[Mark<'a>]) -> Option<&'a str> {
    let mut open: HashMap<&str, usize> = HashMap::new();
    for mark in marks {
        if !mark.closing {
            *open.entry(mark.name).or_default() += 1;
            continue;
        }
        match open.get_mut(mark.name) {
            Some(count) if *count > 0 => *count -= 1,
            _ => return Some(mark.name),
        }
    }
    None
}

/// Whether a tag of this name is opened here and not closed here.
fn leaves_open(marks: &[Mark<'_>], name: &str) -> bool {
    let mut open = 0_usize;
    for mark in marks.iter().filter(|mark| mark.name == name) {
        open = if mark.closing { open.saturating_sub(1) } else { open + 1 };
    }
    open > 0
}

fn refuse_text(outside: &str) -> Result<(), TagFault> {
    let outside = outside.trim();
    if outside.is_empty() { Ok(()) } else { Err(TagFault::Outside(super::text::excerpt(outside))) }
}

/// The tags of a text: those outside of code, and those inside.
fn marks(text: &str) -> (Vec<Mark<'_>>, Vec<Mark<'_>>) {
    let code = code_spans(text);
    let (mut outside, mut inside, mut at) = (Vec::new(), Vec::new(), 0);
    while let Some(found) = text[at..].find('<') {
        let start = at + found;
        at = start + 1;
        let closing = text[at..].starts_with('/');
        let name_start = at + usize::from(closing);
        let rest = &text[name_start..];
        let length = rest
            .bytes()
            .take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b':'))
            .count();
        if length == 0 || rest.as_bytes().get(length) != Some(&b'>') {
            continue;
        }
        let span = start..name_start + length + 1;
        at = span.end;
        let next = code.partition_point(|span| span.end <= start);
        let fenced = code.get(next).is_some_and(|span| span.start <= start);
        let mark = Mark { name: &rest[..length], closing, span };
        if fenced { inside.push(mark) } else { outside.push(mark) }
    }
    (outside, inside)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fault(text: &str) -> String {
        tag(text, "answer").unwrap_err().to_string()
    }

    #[test]
    fn only_the_well_formed_of_four_completions_earns_the_format_reward() {
        let format = |text| sequence(text, &["think", "answer"]);
        assert_eq!(format("<think>2+2</think>\n<answer>4</answer>\n").unwrap(), ["2+2", "4"]);
        let swapped = format("<think>2+2</tool>\n<answer>4</answer>").unwrap_err();
        assert_eq!(swapped.to_string(), "`<think>` is closed by `</tool>`");
        let fenced = format("<think>2+2</think>\n```\n<answer>4</answer>\n```").unwrap_err();
        assert_eq!(fenced.to_string(), "`<answer>` stands only inside a code block");
        let nested = format("<think><think>2+2</think></think><answer>4</answer>").unwrap_err();
        assert_eq!(nested.to_string(), "`<think>` is opened inside itself");
    }

    #[test]
    fn one_tag_by_the_rules() {
        assert_eq!(tag("so <answer> 4 </answer>.", "answer").unwrap(), " 4 ");
        assert_eq!(tag("<answer></answer>", "answer").unwrap(), "");
        assert_eq!(tag("<answer>a < b <br> </p></answer>", "answer").unwrap(), "a < b <br> </p>");
        assert_eq!(fault("4"), "there is no `<answer>`");
        assert_eq!(fault("<Answer>4</Answer>"), "there is no `<answer>`");
        assert_eq!(fault("<answer >4</answer>"), "`</answer>` closes what was never opened");
        assert_eq!(fault("<answer>4"), "`<answer>` is never closed");
        assert_eq!(fault("<answer>4</Answer>"), "`<answer>` is closed by `</Answer>`");
        assert_eq!(fault("</answer>4<answer>"), "`</answer>` stands before `<answer>`");
        assert_eq!(fault("<answer>4</answer><answer>5</answer>"), "`<answer>` appears more than once");
        assert_eq!(fault("<answer><answer>4</answer></answer>"), "`<answer>` is opened inside itself");
        assert_eq!(fault("<answer>4</answer></answer>"), "`</answer>` closes what was never opened");
        let crossed = "`<answer>` and `<think>` overlap without one holding the other";
        assert_eq!(fault("<think><answer>4</think></answer>"), crossed);
        assert_eq!(fault("<answer>4<think></answer></think>"), crossed);
        assert_eq!(fault("```\n<answer>4</answer>"), "`<answer>` stands only inside a code block");
    }

    #[test]
    fn code_in_an_answer_is_content() {
        let text = "<answer>\n```html\n<answer>x</answer>\n```\n</answer>";
        assert_eq!(tag(text, "answer").unwrap(), "\n```html\n<answer>x</answer>\n```\n");
    }

    #[test]
    fn a_sequence_is_all_there_is() {
        let fault = |text| sequence(text, &["think", "answer"]).unwrap_err().to_string();
        assert_eq!(fault("<answer>4</answer><think>x</think>"), "`<answer>` does not follow `<think>`");
        assert_eq!(fault("<think><answer>4</answer></think>"), "`<answer>` does not follow `<think>`");
        assert_eq!(fault("<think>x</think><answer>4</answer> done"), "there is text outside of the tags: `done`");
        assert_eq!(fault("<think>x</think>: <answer>4</answer>"), "there is text outside of the tags: `:`");
        assert_eq!(fault("<think>x</think>"), "there is no `<answer>`");
        assert_eq!(sequence(" \n", &[]).unwrap(), Vec::<&str>::new());
    }

    #[test]
    fn lenient_is_lenient() {
        assert_eq!(tag_lenient("<answer>3</answer> or <answer>4</answer>", "answer"), Some("4"));
        assert_eq!(tag_lenient("<answer>4", "answer"), Some("4"));
        assert_eq!(tag_lenient("4</answer>", "answer"), None);
    }

    proptest! {
        #[test]
        fn never_panics(text in "(<|>|/|a|think|answer|</answer>|<answer>|```\n|~~~|\n|é|\u{1f600}| ){0,40}") {
            let _ = (tag(&text, "answer"), sequence(&text, &["think", "answer"]), tag_lenient(&text, "answer"));
            let _ = crate::rubric::fence::blocks(&text);
        }

        #[test]
        fn what_is_wrapped_comes_back(content in "[^<`~]{0,40}") {
            let text = format!("<answer>{content}</answer>");
            prop_assert_eq!(tag(&text, "answer").unwrap(), &content);
        }
    }
}
