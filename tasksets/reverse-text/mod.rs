//! Single turn: write a text backwards.

use std::sync::Arc;

use serde_json::Value;

use super::conversation::{alike, instructions, last_reply, said_by_user};
use crate::{
    config::Section,
    rubric::{Rubric, Score, ScoreContext, tags::tag, text::excerpt},
    taskset::{PythonRandom, Shipped, TaskStream, Taskset, TasksetError, TasksetSize, generated},
    trace::{Fault, Message, Prompt, TaskData},
};

pub(super) const SHIPPED: Shipped = Shipped {
    id: "reverse-text",
    summary: "write a text backwards, character by character",
    readme: include_str!("README.md"),
    open,
};

const KIND: &str = "ReverseTextTask";
const TAG: &str = "reversed_text";
const INSTRUCTIONS: &str = "You write texts backwards. Take the user's text as it stands and put its characters, spaces \
    and punctuation too, in the opposite order, the last one first. Answer with the result between <reversed_text> and \
    </reversed_text>.";
const WORDS: &str = include_str!("words.txt");

struct ReverseText {
    words: (u64, u64),
    num_tasks: Option<u64>,
    seed: u64,
    rubric: Rubric,
}

fn open(section: &mut Section<'_>) -> Result<Arc<dyn Taskset>, TasksetError> {
    let fewest = section.doc("Fewest words of a text").get_in("min_words", 1..=200, 3_u64);
    let most = section.doc("Most words of a text").get_in("max_words", 1..=200, 8_u64);
    if fewest > most {
        section.fault("min_words", format!("is {fewest}, above max_words, which is {most}"));
    }
    let rubric = Rubric::new().reward("similarity", 1.0, similarity).metric("exact", exact);
    Ok(Arc::new(ReverseText {
        words: (fewest.min(most), most),
        num_tasks: super::num_tasks(section),
        seed: section.doc("Which texts are made").get_or("seed", 0),
        rubric,
    }))
}

impl Taskset for ReverseText {
    fn tasks(&self) -> TaskStream {
        self.tasks_from(0)
    }

    fn tasks_from(&self, position: u64) -> TaskStream {
        let ((fewest, most), seed) = (self.words, self.seed);
        let words: Vec<&str> = WORDS.split_whitespace().collect();
        generated(KIND, position, self.num_tasks, move |idx| {
            let mut random = PythonRandom::at(seed, idx);
            let text = sentence(&mut random, &words, fewest, most);
            let mut data = TaskData {
                prompt: Some(Prompt::Text(text.clone())),
                system_prompt: Some(INSTRUCTIONS.to_owned()),
                ..TaskData::default()
            };
            data.extra.insert("answer".to_owned(), Value::String(reversed(&text)));
            data
        })
    }

    fn size(&self) -> TasksetSize {
        self.num_tasks.map_or(TasksetSize::Infinite, TasksetSize::Finite)
    }

    fn rubric(&self) -> &Rubric {
        &self.rubric
    }

    fn solve(&self, conversation: &[Message]) -> Option<String> {
        if instructions(conversation) != INSTRUCTIONS {
            return None;
        }
        let text = said_by_user(conversation).pop()?;
        Some(format!("<{TAG}>{}</{TAG}>", reversed(&text)))
    }
}

fn sentence(random: &mut PythonRandom, words: &[&str], fewest: u64, most: u64) -> String {
    let mut sentence = String::new();
    let count = random.between(fewest, most);
    for place in 0..count {
        if place > 0 {
            sentence.push_str(if random.below(8) == 0 { ", " } else { " " });
        }
        if random.below(12) == 0 {
            sentence.push_str(&random.between(2, 999).to_string());
        } else {
            let word: &&str = random.choose(words);
            sentence.push_str(word);
        }
    }
    let first = sentence.remove(0).to_ascii_uppercase();
    sentence.insert(0, first);
    sentence.push(*random.choose(&['.', '.', '.', '!', '?']));
    sentence
}

fn reversed(text: &str) -> String {
    text.chars().rev().collect()
}

fn similarity(context: ScoreContext<'_>) -> Result<Score, Fault> {
    let expected = super::text(context.task, "answer")?;
    let reply = last_reply(context.trace);
    Ok(match tag(&reply, TAG) {
        Ok(answer) => {
            let score = alike(answer.trim(), expected);
            let why = if score == 1.0 {
                "every character is in its place".to_owned()
            } else {
                format!("expected `{}`, found `{}`", excerpt(expected), excerpt(answer.trim()))
            };
            Score::because(score, why)
        }
        Err(fault) => Score::because(0.0, fault.to_string()),
    })
}

fn exact(context: ScoreContext<'_>) -> Result<Score, Fault> {
    let expected = super::text(context.task, "answer")?;
    let reply = last_reply(context.trace);
    Ok(Score::from(f64::from(tag(&reply, TAG).is_ok_and(|answer| answer.trim() == expected))))
}
