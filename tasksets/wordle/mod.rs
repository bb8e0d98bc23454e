//! Multi-turn: guess a hidden five-letter word from coloured hints; the game is the user.

mod board;
mod player;

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;

use self::board::{Answer, Game, Refusal, Word, show};
use super::conversation::{instructions, replies, said_by_user, turns};
use crate::{
    config::Section,
    rubric::{Rubric, Score, ScoreContext, strip_think},
    taskset::{
        Exchange, PythonRandom, Shipped, TaskStream, Taskset, TasksetError, TasksetSize, User, UserTurn, generated,
    },
    trace::{Fault, Message, Prompt, TaskData, TraceTask},
};

pub(super) const SHIPPED: Shipped = Shipped {
    id: "wordle",
    summary: "find a hidden five-letter word from the hints of a game",
    readme: include_str!("README.md"),
    open,
};

const KIND: &str = "WordleTask";
const INSTRUCTIONS: &str = "You are playing a word game. A five-letter English word is hidden; find it in as few guesses \
    as you can. Make exactly one guess in each answer, between <guess> and </guess>, for example <guess>tonic</guess>. \
    The game shows a hint below each letter of the guess: G means the letter is right and in the right place, Y means \
    the word has this letter in another place, X means the word does not have it (any more often than the other hints \
    show). A guess that is no English word of five letters, or is not between the tags, is used up without a hint.";
const START: &str = "The word is hidden. Guesses you have: ";

struct Wordle {
    max_guesses: u64,
    any_word: bool,
    count: u64,
    seed: u64,
    rubric: Rubric,
}

fn open(section: &mut Section<'_>) -> Result<Arc<dyn Taskset>, TasksetError> {
    let max_guesses = section.doc("Guesses in a game").get_in("max_guesses", 1..=50, 6_u64);
    let any_word =
        section.doc("Take any five letters as a guess, not only words of the list").get_or("any_word", false);
    let speed_weight = section
        .doc("Weight of the reward `speed`; at 0 there is no such reward, and a well-played game earns exactly 1")
        .get_in("speed_weight", 0.0..=1.0, 0.0);
    // The weights add up to exactly 1 as binary fractions: a solved, well-formed game counts as correct in pass@k.
    let mut rubric = Rubric::new()
        .reward("solved", 0.625, solved)
        .reward("letters", 0.25, letters)
        .reward("format", 0.125, format)
        .metric("guesses", guesses);
    if speed_weight > 0.0 {
        rubric = rubric.reward("speed", speed_weight, speed);
    }
    let words = board::answers().len() as u64;
    Ok(Arc::new(Wordle {
        max_guesses,
        any_word,
        count: super::num_tasks(section).map_or(words, |count| count.min(words)),
        seed: section.doc("The order of the words").get_or("seed", 0),
        rubric,
    }))
}

impl Taskset for Wordle {
    fn tasks(&self) -> TaskStream {
        self.tasks_from(0)
    }

    fn tasks_from(&self, position: u64) -> TaskStream {
        let (max_guesses, any_word) = (self.max_guesses, self.any_word);
        let mut words: Vec<Word> = board::answers().to_vec();
        PythonRandom::new(self.seed).shuffle(&mut words);
        generated(KIND, position, Some(self.count), move |idx| {
            let mut data = TaskData {
                prompt: Some(Prompt::Text(format!("{START}{max_guesses}."))),
                system_prompt: Some(INSTRUCTIONS.to_owned()),
                ..TaskData::default()
            };
            data.extra.insert("answer".to_owned(), Value::String(board::text(&words[idx as usize])));
            data.extra.insert("max_guesses".to_owned(), max_guesses.into());
            data.extra.insert("any_word".to_owned(), any_word.into());
            data
        })
    }

    fn size(&self) -> TasksetSize {
        TasksetSize::Finite(self.count)
    }

    fn rubric(&self) -> &Rubric {
        &self.rubric
    }

    fn user(&self, task: &TraceTask) -> Option<Box<dyn User>> {
        Some(Box::new(Referee { game: game_of(&task.data) }))
    }

    fn solve(&self, conversation: &[Message]) -> Option<String> {
        if instructions(conversation) != INSTRUCTIONS {
            return None;
        }
        let hints: Vec<_> = said_by_user(conversation).iter().filter_map(|text| board::read(text)).collect();
        Some(format!("<guess>{}</guess>", board::text(&player::best_guess(&hints))))
    }
}

fn game_of(task: &TaskData) -> Result<Game, Fault> {
    let answer = super::text(task, "answer")?;
    let word = board::word(answer).ok_or_else(|| super::broken_row("answer", "a word of five letters"))?;
    let number = |field: &str| task.extra.get(field).and_then(Value::as_u64);
    let max_guesses = number("max_guesses").ok_or_else(|| super::broken_row("max_guesses", "a whole number"))?;
    let any_word = task.extra.get("any_word").and_then(Value::as_bool).unwrap_or(false);
    Ok(Game { word, max_guesses: max_guesses as usize, any_word })
}

/// Answers each guess with its hint; leaves when the game is over.
struct Referee {
    game: Result<Game, Fault>,
}

impl User for Referee {
    fn reply<'a>(&'a mut self, exchange: Exchange<'a>) -> BoxFuture<'a, Result<UserTurn, Fault>> {
        Box::pin(std::future::ready(self.game.clone().map(|game| referee(&game, exchange.conversation))))
    }
}

fn referee(game: &Game, conversation: &[Message]) -> UserTurn {
    let played = turns(conversation);
    let reply = conversation.iter().rev().find_map(|message| match message {
        Message::Assistant(_) => Some(message.text()),
        _ => None,
    });
    let answer = game.judge(strip_think(&reply.unwrap_or_default()));
    let over = played >= game.max_guesses || matches!(&answer, Ok(answer) if answer.is_right());
    if over {
        return UserTurn::Close;
    }
    let left = game.max_guesses - played;
    let left = if left == 1 { "One guess is left.".to_owned() } else { format!("{left} guesses are left.") };
    let said = match answer {
        Ok(answer) => format!("{}\n{left}", show(&answer)),
        Err(refusal) => format!("That guess was used up: {refusal}. {left}"),
    };
    UserTurn::Say(vec![Message::user(said)])
}

/// The game as it went: what each answer of the model came to.
fn played(context: ScoreContext<'_>) -> Result<(Game, Vec<Result<Answer, Refusal>>), Fault> {
    let game = game_of(context.task)?;
    let mut answers = Vec::new();
    for reply in replies(context.trace).iter().take(game.max_guesses) {
        let answer = game.judge(reply);
        let right = matches!(&answer, Ok(answer) if answer.is_right());
        answers.push(answer);
        if right {
            break;
        }
    }
    Ok((game, answers))
}

fn is_solved(answers: &[Result<Answer, Refusal>]) -> bool {
    matches!(answers.last(), Some(Ok(answer)) if answer.is_right())
}

fn solved(context: ScoreContext<'_>) -> Result<Score, Fault> {
    let (game, answers) = played(context)?;
    let tried: Vec<String> = answers
        .iter()
        .map(|answer| match answer {
            Ok(answer) => board::text(&answer.guess),
            Err(refusal) => format!("({refusal})"),
        })
        .collect();
    Ok(if is_solved(&answers) {
        Score::because(1.0, format!("found `{}` with guess {}", board::text(&game.word), answers.len()))
    } else {
        let tried = if tried.is_empty() { "nothing".to_owned() } else { tried.join(", ") };
        Score::because(0.0, format!("did not find `{}`; tried {tried}", board::text(&game.word)))
    })
}

/// The best guess: a letter in its place counts whole, one in another place half, over five.
fn letters(context: ScoreContext<'_>) -> Result<Score, Fault> {
    let (_, answers) = played(context)?;
    let best = answers.iter().flatten().max_by_key(|answer| answer.half_letters());
    Ok(match best {
        Some(best) => Score::because(
            f64::from(best.half_letters()) / 10.0,
            format!("best guess `{}`: {}", board::text(&best.guess), best.hint_text()),
        ),
        None => Score::because(0.0, "no guess was taken"),
    })
}

/// The share of answers with exactly one well-formed pair of tags around five letters.
fn format(context: ScoreContext<'_>) -> Result<Score, Fault> {
    let (_, answers) = played(context)?;
    if answers.is_empty() {
        return Ok(Score::because(0.0, "no answer"));
    }
    let fault = |answer: &Result<Answer, Refusal>| match answer {
        Err(refusal) if !matches!(refusal, Refusal::NotAWord(_)) => Some(refusal.to_string()),
        _ => None,
    };
    let faults: Vec<String> = answers
        .iter()
        .enumerate()
        .filter_map(|(turn, answer)| Some(format!("turn {}: {}", turn + 1, fault(answer)?)))
        .collect();
    let value = (answers.len() - faults.len()) as f64 / answers.len() as f64;
    let why = if faults.is_empty() { "every answer was well-formed".to_owned() } else { faults.join("; ") };
    Ok(Score::because(value, why))
}

/// 1 for a first guess that is right, then evenly less; 0 when the word was not found.
fn speed(context: ScoreContext<'_>) -> Result<Score, Fault> {
    let (game, answers) = played(context)?;
    if !is_solved(&answers) {
        return Ok(Score::because(0.0, "not found"));
    }
    let value = (game.max_guesses - answers.len() + 1) as f64 / game.max_guesses as f64;
    Ok(Score::because(value, format!("{} of {} guesses used", answers.len(), game.max_guesses)))
}

fn guesses(context: ScoreContext<'_>) -> Result<Score, Fault> {
    Ok(Score::from(played(context)?.1.len() as f64))
}
