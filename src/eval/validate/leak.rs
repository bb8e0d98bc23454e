//! Whether a prompt gives its answer away.
//!
//! An answer that a prompt mentions is often right: a text to read, options to choose from, a number that comes out of
//! others. It is wrong for sure where the prompt says that it is the answer; a long answer that merely stands there is
//! doubtful; short ones are let be. A line that other prompts have too is an instruction and tells nothing of this task.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use super::{
    check::{Check, Checking},
    play::Play,
};
use crate::{rubric::text::excerpt, taskset::Task, trace::Message};

/// Characters from which on an answer that stands in the prompt is doubtful.
const LONG: usize = 8;
/// Prompts that a line is looked for in.
const NEIGHBOURS: usize = 8;

/// What stands before an answer that is called one.
static CUE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"(?i)\b(answer|solution|ground[ _]truth)\b["'`*]*\s*(is|=|:)?\s*(\\boxed\{|<\w+>|####)?["'`*(\[\s]*$"#)
        .expect("the pattern is valid")
});
/// A line that offers an option.
static OPTION: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?m)^\s*(?:[-*]\s*)?\(?[A-Za-z1-9][.):]\s*\S").expect("the pattern is valid"));

/// Looks for each answer in its prompt.
pub(super) fn answers_in_prompts(tasks: &[Task], references: &[Play]) -> Check {
    let mut check = Checking::new("leak", "the answer does not stand in the prompt");
    let prompts: Vec<String> = tasks.iter().map(prompt).collect();
    let mut looked = false;
    for (position, task) in tasks.iter().enumerate() {
        let answer = match task.data.extra.get("answer") {
            Some(Value::String(answer)) => answer.trim().to_owned(),
            Some(Value::Number(answer)) => answer.to_string(),
            _ => String::new(),
        };
        let reply = match references.get(position) {
            Some(Play::Scored(scored)) => scored.replies.first().map_or("", |reply| reply.trim()),
            _ => "",
        };
        if answer.is_empty() && reply.is_empty() {
            continue;
        }
        check.look();
        looked = true;
        if asked_before(task) {
            check.fail(task.into(), "an example in the prompt asks the same, and answers it");
        }
        let prompt = &prompts[position];
        let others = || prompts.iter().cycle().skip(position + 1).take(NEIGHBOURS.min(prompts.len() - 1));
        let own_line = |at: usize| {
            let line = line_at(prompt, at);
            !others().any(|other| other.lines().any(|theirs| theirs == line))
        };
        match find(prompt, &answer, reply, is_option(task, prompt, &answer), own_line) {
            Some((true, told)) => check.fail(task.into(), format!("the prompt says the answer: `{}`", excerpt(told))),
            Some((false, told)) => {
                check.warn(task.into(), format!("the answer `{}` stands in the prompt", excerpt(told)));
            }
            None => {}
        }
    }
    if !looked {
        check.note("no row has a field `answer` or a reference answer");
    }
    check.done()
}

/// What a prompt tells of the answer, and whether it is sure.
fn find<'a>(
    prompt: &str,
    answer: &'a str,
    reply: &'a str,
    option: bool,
    own_line: impl Fn(usize) -> bool,
) -> Option<(bool, &'a str)> {
    let dressed = reply.len() > answer.len() && !answer.is_empty() && reply.contains(answer);
    if dressed && words(prompt, reply).any(&own_line) {
        return Some((true, reply));
    }
    if answer.is_empty() || option {
        return None;
    }
    let mut doubtful = false;
    for at in words(prompt, answer).filter(|at| own_line(*at)) {
        let after = prompt[at + answer.len()..].trim_start_matches(['"', '\'', '`', '*', ')', ']']);
        let one_of_several = [",", "/", "|", " or "].iter().any(|sign| after.starts_with(sign));
        if CUE.is_match(&prompt[..at]) && !one_of_several {
            return Some((true, answer));
        }
        doubtful |= answer.chars().count() >= LONG;
    }
    doubtful.then_some((false, answer))
}

/// What the model reads of this task: instructions, and what the user says after the last example.
fn prompt(task: &Task) -> String {
    let opening = task.data.opening();
    let examples = opening.iter().rposition(|message| matches!(message, Message::Assistant(_))).map_or(0, |at| at + 1);
    let read =
        opening.iter().enumerate().filter(|(at, message)| *at >= examples || matches!(message, Message::System(_)));
    read.map(|(_, message)| message.text()).collect::<Vec<_>>().join("\n")
}

/// Whether the last that the user says stood in the prompt before, with an answer behind it.
fn asked_before(task: &Task) -> bool {
    let opening = task.data.opening();
    let Some((Message::User(_), before)) = opening.split_last() else { return false };
    let asked = opening[before.len()].text();
    let pairs = before.windows(2);
    !asked.trim().is_empty()
        && pairs.into_iter().any(|pair| {
            matches!(pair, [Message::User(_), Message::Assistant(_)]) && pair[0].text().trim() == asked.trim()
        })
}

/// Whether the answer is one of several that the prompt offers.
fn is_option(task: &Task, prompt: &str, answer: &str) -> bool {
    let listed = |value: &Value| match value {
        Value::Array(items) => items.iter().any(|item| item.as_str().is_some_and(|item| item.trim() == answer)),
        _ => false,
    };
    task.data.extra.values().any(listed) || OPTION.find_iter(prompt).nth(1).is_some()
}

/// Where a text stands as whole words.
fn words<'a>(text: &'a str, sought: &'a str) -> impl Iterator<Item = usize> + 'a {
    let alike = |one: Option<char>, other: Option<char>| {
        one.zip(other).is_some_and(|(one, other)| one.is_alphanumeric() && other.is_alphanumeric())
    };
    text.match_indices(sought).map(|(at, _)| at).filter(move |at| {
        let (before, after) = (&text[..*at], &text[at + sought.len()..]);
        !alike(before.chars().next_back(), sought.chars().next())
            && !alike(sought.chars().next_back(), after.chars().next())
    })
}

fn line_at(text: &str, at: usize) -> &str {
    let begin = text[..at].rfind('\n').map_or(0, |end| end + 1);
    let end = text[at..].find('\n').map_or(text.len(), |end| at + end);
    &text[begin..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Prompt, TaskData, TraceTask};

    fn told(prompt: &str, answer: &str, reply: &str) -> Option<bool> {
        find(prompt, answer, reply, OPTION.find_iter(prompt).nth(1).is_some(), |_| true).map(|(sure, _)| sure)
    }

    #[test]
    fn a_prompt_that_says_the_answer_is_found_out() {
        assert_eq!(told("What is 2 + 2? The answer is 4.", "4", "#### 4"), Some(true));
        assert_eq!(told("What is 20 + 22? Hint: Answer: 42", "42", "42"), Some(true));
        assert_eq!(told("What is 20 + 22?\nWrite #### 42", "42", "#### 42"), Some(true));
        assert_eq!(told("Who wrote it?\n**Answer:** \"Jane Austen\"", "Jane Austen", ""), Some(true));
    }

    #[test]
    fn what_may_be_right_is_no_more_than_doubtful() {
        assert_eq!(told("Jane Austen wrote Emma. Who wrote Emma?", "Jane Austen", ""), Some(false));
        assert_eq!(told("What is 4 + 0?", "4", "#### 4"), None);
        assert_eq!(told("What is 142 + 0?", "42", "#### 42"), None);
        assert_eq!(told("Answer yes or no: is it so?", "yes", "yes"), None);
        assert_eq!(told("The answer is yes, no or maybe.", "yes", "yes"), None);
        assert_eq!(told("Which is a bird?\nA) a crow\nB) a carp\nAnswer: A", "A", "A"), None);
    }

    #[test]
    fn an_example_that_is_the_question_itself_is_found_out() {
        let task = |example: &str| {
            let said = [Message::user(example), Message::assistant("4"), Message::user("What is 2 + 2?")];
            let data = TaskData { prompt: Some(Prompt::Messages(said.to_vec())), ..TaskData::default() };
            Task::new(TraceTask::new("T", data))
        };
        assert!(asked_before(&task(" What is 2 + 2?\n")));
        assert!(!asked_before(&task("What is 2 + 3?")));
    }

    #[test]
    fn whole_words_only() {
        assert_eq!(words("cat concat cat.", "cat").collect::<Vec<_>>(), [0, 11]);
        assert_eq!(line_at("one\ntwo\nthree", 5), "two");
    }
}
