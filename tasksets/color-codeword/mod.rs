//! Images in the prompt: read a code word from a row of coloured squares by a legend given in the text.

mod picture;

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;

use self::picture::{COLOURS, colours_of, draw};
use super::conversation::{instructions, replies, turns};
use crate::{
    config::Section,
    rubric::{Rubric, Score, ScoreContext, tags::tag, text::excerpt},
    taskset::{
        Exchange, PythonRandom, Shipped, TaskStream, Taskset, TasksetError, TasksetSize, User, UserTurn, generated,
    },
    trace::{Content, ContentPart, Fault, ImageUrl, Message, Prompt, TaskData, TraceTask, UserMessage},
};

pub(super) const SHIPPED: Shipped = Shipped {
    id: "color-codeword",
    summary: "read a code word from coloured squares in a picture",
    readme: include_str!("README.md"),
    open,
};

const KIND: &str = "ColorCodewordTask";
const TAG: &str = "codeword";
const INSTRUCTIONS: &str = "Each picture shows coloured squares in a row, to be read from left to right. Every colour \
    stands for a letter. Answer with the letters read so far, those of earlier pictures first, between <codeword> and \
    </codeword>, without spaces.";
const LEGEND: &str = "Legend:";
const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ";

struct ColorCodeword {
    letters: (u64, u64),
    num_turns: u64,
    num_tasks: Option<u64>,
    seed: u64,
    rubric: Rubric,
}

fn open(section: &mut Section<'_>) -> Result<Arc<dyn Taskset>, TasksetError> {
    let fewest = section.doc("Fewest squares of a picture").get_in("min_letters", 1..=20, 3_u64);
    let most = section.doc("Most squares of a picture").get_in("max_letters", 1..=20, 6_u64);
    if fewest > most {
        section.fault("min_letters", format!("is {fewest}, above max_letters, which is {most}"));
    }
    let rubric = Rubric::new().reward("codeword", 1.0, codeword).metric("letters", letters).metric("format", format);
    Ok(Arc::new(ColorCodeword {
        letters: (fewest.min(most), most),
        num_turns: section.doc("Turns, each with a picture that goes on with the word").get_in(
            "num_turns",
            1..=20,
            1_u64,
        ),
        num_tasks: super::num_tasks(section),
        seed: section.doc("Which words and legends are made").get_or("seed", 0),
        rubric,
    }))
}

impl Taskset for ColorCodeword {
    fn tasks(&self) -> TaskStream {
        self.tasks_from(0)
    }

    fn tasks_from(&self, position: u64) -> TaskStream {
        let (letters, num_turns, seed) = (self.letters, self.num_turns, self.seed);
        generated(KIND, position, self.num_tasks, move |idx| row(&mut PythonRandom::at(seed, idx), letters, num_turns))
    }

    fn size(&self) -> TasksetSize {
        self.num_tasks.map_or(TasksetSize::Infinite, TasksetSize::Finite)
    }

    fn rubric(&self) -> &Rubric {
        &self.rubric
    }

    fn user(&self, task: &TraceTask) -> Option<Box<dyn User>> {
        // A task of one picture needs no user.
        let pictures = super::texts(&task.data, "pictures").ok().filter(|pictures| !pictures.is_empty())?;
        Some(Box::new(Projector { pictures }))
    }

    fn solve(&self, conversation: &[Message]) -> Option<String> {
        if instructions(conversation) != INSTRUCTIONS {
            return None;
        }
        let mut legend: Vec<(usize, char)> = Vec::new();
        let mut word = String::new();
        for message in conversation {
            let Message::User(message) = message else { continue };
            let Content::Parts(parts) = &message.content else { continue };
            for part in parts {
                match part {
                    ContentPart::Text { text } => legend.extend(read_legend(text)),
                    ContentPart::ImageUrl { image_url } => {
                        for colour in colours_of(&image_url.url)? {
                            word.push(legend.iter().find(|(of, _)| *of == colour)?.1);
                        }
                    }
                }
            }
        }
        Some(format!("<{TAG}>{word}</{TAG}>"))
    }
}

fn row(random: &mut PythonRandom, letters: (u64, u64), num_turns: u64) -> TaskData {
    let mut alphabet = ALPHABET.to_vec();
    random.shuffle(&mut alphabet);
    let legend = &alphabet[..COLOURS.len()];
    let mut word = String::new();
    let mut words: Vec<Value> = Vec::new();
    let mut pictures: Vec<String> = Vec::new();
    for _ in 0..num_turns {
        let squares: Vec<usize> =
            (0..random.between(letters.0, letters.1)).map(|_| random.position(legend.len())).collect();
        word.extend(squares.iter().map(|colour| char::from(legend[*colour])));
        words.push(word.as_str().into());
        pictures.push(draw(&squares));
    }
    let prompt = vec![ContentPart::Text { text: write_legend(legend) }, image(&pictures[0])];
    let mut data = TaskData {
        prompt: Some(Prompt::Messages(vec![said(prompt)])),
        system_prompt: Some(INSTRUCTIONS.to_owned()),
        ..TaskData::default()
    };
    data.extra.insert("answers".to_owned(), Value::Array(words));
    data.extra.insert("pictures".to_owned(), pictures.into_iter().skip(1).map(Value::from).collect());
    data
}

fn said(parts: Vec<ContentPart>) -> Message {
    Message::User(UserMessage { content: Content::Parts(parts) })
}

fn image(url: &str) -> ContentPart {
    ContentPart::ImageUrl { image_url: ImageUrl { url: url.to_owned() } }
}

fn write_legend(letters: &[u8]) -> String {
    let lines: Vec<String> =
        COLOURS.iter().zip(letters).map(|((name, _), letter)| format!("{name} = {}", char::from(*letter))).collect();
    format!("{LEGEND}\n{}\n\nWhich word do the squares spell?", lines.join("\n"))
}

fn read_legend(text: &str) -> Vec<(usize, char)> {
    let Some(lines) = text.strip_prefix(LEGEND) else { return Vec::new() };
    lines
        .lines()
        .filter_map(|line| {
            let (name, letter) = line.split_once(" = ")?;
            Some((COLOURS.iter().position(|colour| colour.0 == name)?, letter.chars().next()?))
        })
        .collect()
}

/// Shows the next picture after each answer, then leaves.
struct Projector {
    pictures: Vec<String>,
}

impl User for Projector {
    fn reply<'a>(&'a mut self, exchange: Exchange<'a>) -> BoxFuture<'a, Result<UserTurn, Fault>> {
        let next = turns(exchange.conversation).checked_sub(1).and_then(|turn| self.pictures.get(turn));
        let turn = next.map_or(UserTurn::Close, |picture| {
            let text = "The word goes on. Give all of it, from the first picture on.".to_owned();
            UserTurn::Say(vec![said(vec![ContentPart::Text { text }, image(picture)])])
        });
        Box::pin(std::future::ready(Ok(turn)))
    }
}

/// The expected word of a turn, and the one found or why there is none.
type ReadTurn = (String, Result<String, String>);

fn read(context: ScoreContext<'_>) -> Result<Vec<ReadTurn>, Fault> {
    let replies = replies(context.trace);
    let answers = super::texts(context.task, "answers")?;
    let found = |turn: usize| match replies.get(turn) {
        None => Err("not answered".to_owned()),
        // Letters that only look the part (`ſ` is an S in capitals) are wrong.
        Some(reply) => tag(reply, TAG).map(|word| word.trim().to_ascii_uppercase()).map_err(|fault| fault.to_string()),
    };
    Ok(answers.into_iter().enumerate().map(|(turn, expected)| (expected, found(turn))).collect())
}

/// The share of turns whose word is right.
fn codeword(context: ScoreContext<'_>) -> Result<Score, Fault> {
    let turns = read(context)?;
    let right = turns.iter().filter(|(expected, found)| found.as_ref() == Ok(expected)).count();
    let why: Vec<String> = turns
        .iter()
        .enumerate()
        .map(|(turn, (expected, found))| match found {
            Ok(found) if found == expected => format!("turn {}: `{expected}` is right", turn + 1),
            Ok(found) => format!("turn {}: expected `{expected}`, found `{}`", turn + 1, excerpt(found)),
            Err(fault) => format!("turn {}: expected `{expected}`; {fault}", turn + 1),
        })
        .collect();
    Ok(Score::because(right as f64 / turns.len().max(1) as f64, why.join("; ")))
}

/// The share of the last turn's letters that stand in their place, of the longer of both words.
fn letters(context: ScoreContext<'_>) -> Result<Score, Fault> {
    let turns = read(context)?;
    let Some((expected, Ok(found))) = turns.last() else { return Ok(Score::from(0.0)) };
    let right = expected.chars().zip(found.chars()).filter(|(expected, found)| expected == found).count();
    Ok(Score::from(right as f64 / expected.chars().count().max(found.chars().count()).max(1) as f64))
}

/// The share of turns with one well-formed code word.
fn format(context: ScoreContext<'_>) -> Result<Score, Fault> {
    let turns = read(context)?;
    Ok(Score::from(turns.iter().filter(|(_, found)| found.is_ok()).count() as f64 / turns.len().max(1) as f64))
}
