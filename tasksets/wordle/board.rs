//! The rules of the game: words, hints, what counts as a guess.

use std::{collections::HashSet, sync::LazyLock};

use crate::rubric::tags::{TagFault, tag};

/// A word in lower case.
pub(super) type Word = [u8; LETTERS];

/// A hint for each letter.
pub(super) type Hints = [Hint; LETTERS];

const LETTERS: usize = 5;
const ANSWERS: &str = include_str!("answers.txt");
const GUESSES: &str = include_str!("guesses.txt");
const GUESS_LINE: &str = "Your guess: ";
const HINT_LINE: &str = "The hint:   ";

/// What the game says of one letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hint {
    /// Right, in its place.
    Green,
    /// In the word, elsewhere.
    Yellow,
    /// Not in the word, or not that often.
    Grey,
}

/// One game.
#[derive(Clone, Copy, Debug)]
pub(super) struct Game {
    pub(super) word: Word,
    pub(super) max_guesses: usize,
    pub(super) any_word: bool,
}

/// A guess that counts, with its hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) guess: Word,
    pub(super) hints: Hints,
}

/// Why an answer of the model is no guess.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("{0}")]
    Form(#[from] TagFault),
    #[error("`{0}` does not have exactly five letters from a to z")]
    Letters(String),
    #[error("`{0}` is not in the word list")]
    NotAWord(String),
}

/// The words that can be hidden.
pub(super) fn answers() -> &'static [Word] {
    static WORDS: LazyLock<Vec<Word>> = LazyLock::new(|| ANSWERS.split_whitespace().filter_map(word).collect());
    &WORDS
}

fn is_known(guess: &Word) -> bool {
    static WORDS: LazyLock<HashSet<Word>> =
        LazyLock::new(|| ANSWERS.split_whitespace().chain(GUESSES.split_whitespace()).filter_map(word).collect());
    WORDS.contains(guess)
}

/// A text as a word; `None` unless it has five letters.
pub(super) fn word(text: &str) -> Option<Word> {
    let lower = text.to_ascii_lowercase();
    let letters: Word = lower.as_bytes().try_into().ok()?;
    letters.iter().all(u8::is_ascii_lowercase).then_some(letters)
}

/// A word as text.
pub(super) fn text(word: &Word) -> String {
    word.iter().map(|letter| char::from(*letter)).collect()
}

impl Game {
    /// What an answer of the model comes to.
    pub(super) fn judge(&self, reply: &str) -> Result<Answer, Refusal> {
        let guess = tag(reply, "guess")?.trim();
        let shown: String = guess.chars().take(20).collect();
        let guess = word(guess).ok_or_else(|| Refusal::Letters(shown.clone()))?;
        if !self.any_word && !is_known(&guess) {
            return Err(Refusal::NotAWord(shown));
        }
        Ok(Answer { guess, hints: hints(&guess, &self.word) })
    }
}

impl Answer {
    pub(super) fn is_right(&self) -> bool {
        self.hints == [Hint::Green; LETTERS]
    }

    /// Letters known, in halves: two for one in its place, one for one elsewhere.
    pub(super) fn half_letters(&self) -> u32 {
        self.hints
            .iter()
            .map(|hint| match hint {
                Hint::Green => 2,
                Hint::Yellow => 1,
                Hint::Grey => 0,
            })
            .sum()
    }

    /// The hints as the game writes them.
    pub(super) fn hint_text(&self) -> String {
        self.hints.iter().map(|hint| hint.letter()).collect()
    }
}

impl Hint {
    fn letter(self) -> char {
        match self {
            Self::Green => 'G',
            Self::Yellow => 'Y',
            Self::Grey => 'X',
        }
    }

    fn of(letter: char) -> Option<Self> {
        [Self::Green, Self::Yellow, Self::Grey].into_iter().find(|hint| hint.letter() == letter)
    }
}

/// The hints for a guess. A letter earns as many hints as the word has it: places first, then from left to right.
pub(super) fn hints(guess: &Word, word: &Word) -> Hints {
    let mut left = [0_u8; 26];
    for (guessed, hidden) in guess.iter().zip(word) {
        if guessed != hidden {
            left[usize::from(hidden - b'a')] += 1;
        }
    }
    let mut hints = [Hint::Grey; LETTERS];
    for ((hint, guessed), hidden) in hints.iter_mut().zip(guess).zip(word) {
        let left = &mut left[usize::from(guessed - b'a')];
        if guessed == hidden {
            *hint = Hint::Green;
        } else if *left > 0 {
            *hint = Hint::Yellow;
            *left -= 1;
        }
    }
    hints
}

/// A guess and its hints as the game shows them, letters apart so that a tokenizer sees each.
pub(super) fn show(answer: &Answer) -> String {
    let apart = |letters: &mut dyn Iterator<Item = char>| {
        let letters: Vec<String> = letters.map(String::from).collect();
        letters.join(" ")
    };
    let guess = apart(&mut answer.guess.iter().map(|letter| char::from(*letter).to_ascii_uppercase()));
    let hints = apart(&mut answer.hints.iter().map(|hint| hint.letter()));
    format!("{GUESS_LINE}{guess}\n{HINT_LINE}{hints}")
}

/// A guess and its hints as the game showed them; `None` for other texts.
pub(super) fn read(shown: &str) -> Option<Answer> {
    let mut lines = shown.lines();
    let guess: String = lines.next()?.strip_prefix(GUESS_LINE)?.split(' ').collect();
    let hints: Vec<Hint> = lines.next()?.strip_prefix(HINT_LINE)?.chars().filter_map(Hint::of).collect();
    Some(Answer { guess: word(&guess)?, hints: hints.try_into().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_lists_hold_words_of_five_letters_each_once() {
        let listed: Vec<&str> = ANSWERS.split_whitespace().chain(GUESSES.split_whitespace()).collect();
        let distinct: HashSet<&str> = listed.iter().copied().collect();
        assert_eq!(distinct.len(), listed.len());
        assert!(listed.iter().all(|listed| word(listed).is_some_and(|word| text(&word) == *listed)));
        assert!(answers().len() > 700);
    }

    #[track_caller]
    fn hinted(guess: &str, hidden: &str, expected: &str) {
        let (guess, hidden) = (word(guess).expect("a word"), word(hidden).expect("a word"));
        let answer = Answer { guess, hints: hints(&guess, &hidden) };
        assert_eq!(answer.hint_text(), expected);
        assert_eq!(read(&format!("{}\nTwo guesses are left.", show(&answer))), Some(answer));
    }

    #[test]
    fn letters_that_come_twice_are_hinted_as_often_as_the_word_has_them() {
        hinted("crane", "crane", "GGGGG");
        hinted("speed", "erase", "YXYYX");
        hinted("allow", "llama", "YGYXX");
        hinted("geese", "those", "XXXGG");
        hinted("eerie", "crane", "XXYXG");
        hinted("sissy", "swiss", "GYYGX");
        hinted("array", "radar", "YYYGX");
        hinted("mound", "fizzy", "XXXXX");
    }

    #[test]
    fn what_is_no_guess_is_refused_with_the_reason() {
        let game = Game { word: *b"crane", max_guesses: 6, any_word: false };
        let refusal = |reply: &str| game.judge(reply).err().map(|refusal| refusal.to_string()).unwrap_or_default();
        assert_eq!(game.judge("I think <guess> Crane </guess>").map(|answer| answer.is_right()), Ok(true));
        assert_eq!(refusal("<guess>cran</guess>"), "`cran` does not have exactly five letters from a to z");
        assert_eq!(refusal("<guess>zzzzz</guess>"), "`zzzzz` is not in the word list");
        assert!(refusal("<guess>crane</gues>").contains("guess"));
        assert!(refusal("<guess>crane</guess> or <guess>slate</guess>").contains("more than once"));
        assert!(Game { any_word: true, ..game }.judge("<guess>zzzzz</guess>").is_ok());
    }
}
