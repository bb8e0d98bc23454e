//! A player who knows the words that can be hidden and uses every hint.

use super::board::{Answer, Hints, Word, answers, hints};

/// The first guess: five common letters.
const OPENER: Word = *b"stare";

/// With at most this many words in doubt, a guess that cannot be the answer may tell them apart better.
const FEW: usize = 16;

/// The guess that leaves the fewest words in doubt, given the hints so far.
pub(super) fn best_guess(known: &[Answer]) -> Word {
    let fits = |word: &&Word| known.iter().all(|answer| hints(&answer.guess, word) == answer.hints);
    let candidates: Vec<&Word> = answers().iter().filter(fits).collect();
    match candidates.as_slice() {
        [] => OPENER,
        [only] | [only, _] => **only,
        _ if known.is_empty() => OPENER,
        several => {
            // A word that can be the answer is preferred; among equals the first, so that the choice is always the same.
            let own = several.iter().copied().map(|word| (groups(word, several), 1, word));
            let others = answers().iter().filter(|_| several.len() <= FEW).map(|word| (groups(word, several), 0, word));
            let mut best = (0, 0, several[0]);
            for guess in own.chain(others) {
                if (guess.0, guess.1) > (best.0, best.1) {
                    best = guess;
                }
            }
            *best.2
        }
    }
}

/// How many different hints a guess can get from these words.
fn groups(guess: &Word, words: &[&Word]) -> usize {
    let mut seen = [false; 243];
    for word in words {
        seen[usize::from(code(hints(guess, word)))] = true;
    }
    seen.into_iter().filter(|seen| *seen).count()
}

fn code(hints: Hints) -> u8 {
    hints.iter().fold(0, |code, hint| code * 3 + *hint as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hidden_word_is_found_in_six_guesses() {
        for word in answers() {
            let mut known = Vec::new();
            while known.len() < 6 {
                let guess = best_guess(&known);
                known.push(Answer { guess, hints: hints(&guess, word) });
                if guess == *word {
                    break;
                }
            }
            assert_eq!(known.last().map(|answer| answer.guess), Some(*word));
        }
    }
}
