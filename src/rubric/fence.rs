//! Fenced code blocks, by the rules of CommonMark 0.31 (section 4.5).

use std::ops::Range;

/// One fenced block of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence<'a> {
    /// What stands behind the opening fence, trimmed; often a language.
    pub info: &'a str,
    /// The lines between the fences, as written, without the last line's end.
    pub code: &'a str,
    /// The whole block with its fences, in bytes of the text.
    pub span: Range<usize>,
}

/// Why no code was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FenceFault {
    /// The last block has no closing fence.
    #[error("the code block that opens at line {line} is never closed")]
    Unclosed {
        /// The line of its opening fence, from 1.
        line: usize,
    },
    /// There is no block (of the language asked for).
    #[error("there is no code block{}", of_language(.language))]
    Missing {
        /// The language asked for.
        language: Option<String>,
    },
    /// There are several blocks (of the language asked for).
    #[error("there are {count} code blocks{} where one is expected", of_language(.language))]
    Several {
        /// How many.
        count: usize,
        /// The language asked for.
        language: Option<String>,
    },
}

fn of_language(language: &Option<String>) -> String {
    language.as_ref().map(|language| format!(" of language `{language}`")).unwrap_or_default()
}

impl Fence<'_> {
    /// The first word of the info string, lowercased; empty when there is none.
    pub fn language(&self) -> String {
        self.info.split_whitespace().next().unwrap_or_default().to_lowercase()
    }
}

/// All fenced blocks of a text, in order; a block without an end is an error.
pub fn blocks(text: &str) -> Result<Vec<Fence<'_>>, FenceFault> {
    let (blocks, unclosed) = scan(text);
    match unclosed {
        Some(start) => Err(FenceFault::Unclosed { line: 1 + text[..start].matches('\n').count() }),
        None => Ok(blocks),
    }
}

/// The one block of a text, or its one block of a language (compared without case).
pub fn only<'a>(text: &'a str, language: Option<&str>) -> Result<Fence<'a>, FenceFault> {
    let mut found = of(text, language)?;
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err(FenceFault::Missing { language: language.map(str::to_owned) }),
        count => Err(FenceFault::Several { count, language: language.map(str::to_owned) }),
    }
}

/// The last block of a text, or its last block of a language (compared without case).
pub fn last<'a>(text: &'a str, language: Option<&str>) -> Result<Fence<'a>, FenceFault> {
    of(text, language)?.pop().ok_or_else(|| FenceFault::Missing { language: language.map(str::to_owned) })
}

fn of<'a>(text: &'a str, language: Option<&str>) -> Result<Vec<Fence<'a>>, FenceFault> {
    let mut found = blocks(text)?;
    if let Some(language) = language {
        let language = language.to_lowercase();
        found.retain(|fence| fence.language() == language);
    }
    Ok(found)
}

/// The byte ranges that are code: closed blocks, and from an unclosed fence to the end.
pub(super) fn code_spans(text: &str) -> Vec<Range<usize>> {
    let (blocks, unclosed) = scan(text);
    let mut spans: Vec<Range<usize>> = blocks.into_iter().map(|fence| fence.span).collect();
    spans.extend(unclosed.map(|start| start..text.len()));
    spans
}

/// The closed blocks, and where an unclosed one begins.
fn scan(text: &str) -> (Vec<Fence<'_>>, Option<usize>) {
    struct Open<'a> {
        mark: char,
        length: usize,
        info: &'a str,
        start: usize,
        code: usize,
    }
    let (mut blocks, mut open, mut at) = (Vec::new(), None::<Open<'_>>, 0);
    for line in text.split_inclusive('\n') {
        let (start, end) = (at, at + line.len());
        at = end;
        let Some((mark, length, rest)) = fence_line(line) else { continue };
        match &open {
            None => {
                // A backtick behind backticks makes the line inline code.
                if mark == '~' || !rest.contains('`') {
                    open = Some(Open { mark, length, info: rest.trim(), start, code: end });
                }
            }
            Some(fence) if fence.mark == mark && length >= fence.length && rest.trim().is_empty() => {
                let code = &text[fence.code..start];
                let code = code.strip_suffix('\n').map_or(code, |code| code.strip_suffix('\r').unwrap_or(code));
                blocks.push(Fence { info: fence.info, code, span: fence.start..end });
                open = None;
            }
            Some(_) => {}
        }
    }
    (blocks, open.map(|fence| fence.start))
}

fn fence_line(line: &str) -> Option<(char, usize, &str)> {
    let inner = line.trim_start_matches(' ');
    let mark = inner.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
    let rest = inner.trim_start_matches(mark);
    let length = inner.len() - rest.len();
    (line.len() - inner.len() <= 3 && length >= 3).then_some((mark, length, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_kinds_of_fence() {
        let text = "a\n```Python title=x\nprint(1)\n\n```\nb\n~~~~\n```\nnot a fence\n~~~~\n";
        let blocks = blocks(text).unwrap();
        assert_eq!(blocks.len(), 2);
        assert_eq!(blocks[0].language(), "python");
        assert_eq!(blocks[0].code, "print(1)\n");
        assert_eq!(blocks[1].code, "```\nnot a fence");
        assert_eq!(only(text, Some("PYTHON")).unwrap().code, "print(1)\n");
        assert_eq!(last(text, None).unwrap().info, "");
    }

    #[test]
    fn empty_and_inline_code() {
        assert_eq!(blocks("```\n```").unwrap()[0].code, "");
        assert_eq!(blocks("``` inline ``` code").unwrap(), []);
        assert_eq!(blocks("    ```\nindented by four").unwrap(), []);
    }

    #[test]
    fn faults_say_what_is_wrong() {
        assert_eq!(
            blocks("a\n```rust\nfn").unwrap_err().to_string(),
            "the code block that opens at line 2 is never closed"
        );
        assert_eq!(only("plain", Some("sql")).unwrap_err().to_string(), "there is no code block of language `sql`");
        let two = "```\na\n```\n```\nb\n```";
        assert_eq!(only(two, None).unwrap_err().to_string(), "there are 2 code blocks where one is expected");
    }
}
