//! The known word that a mistyped one most likely meant.

/// The candidates within a few typing slips of `word`, nearest first. Case, `-` and `_` do not count.
///
/// Distance is the optimal string alignment distance (insert, delete, replace, swap of neighbours); at most a third of
/// the word's length, and at least one slip, is allowed.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let wanted = spelled(word);
    let allowed = (wanted.len() / 3).max(1);
    let mut found: Vec<(usize, &str)> = candidates
        .into_iter()
        .map(|candidate| (distance(&wanted, &spelled(candidate)), candidate))
        .filter(|(slips, candidate)| *slips <= allowed && *slips < candidate.chars().count())
        .collect();
    found.sort();
    found.dedup();
    found.into_iter().map(|(_, candidate)| candidate).collect()
}

fn spelled(word: &str) -> Vec<char> {
    word.chars().map(|letter| if letter == '-' { '_' } else { letter.to_ascii_lowercase() }).collect()
}

fn distance(left: &[char], right: &[char]) -> usize {
    let width = right.len() + 1;
    let mut before_last: Vec<usize> = vec![0; width];
    let mut last: Vec<usize> = (0..width).collect();
    for row in 1..=left.len() {
        let mut current = vec![row; width];
        for column in 1..width {
            let replace = last[column - 1] + usize::from(left[row - 1] != right[column - 1]);
            let mut best = replace.min(last[column] + 1).min(current[column - 1] + 1);
            let swapped =
                row > 1 && column > 1 && left[row - 1] == right[column - 2] && left[row - 2] == right[column - 1];
            if swapped {
                best = best.min(before_last[column - 2] + 1);
            }
            current[column] = best;
        }
        before_last = std::mem::replace(&mut last, current);
    }
    last[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_comes_first_and_strangers_are_left_out() {
        let known = ["max_turns", "max_total_tokens", "model", "retries"];
        assert_eq!(nearest("max_trun", known), ["max_turns"]);
        assert_eq!(nearest("Max-Turns", known), ["max_turns"]);
        assert_eq!(nearest("modle", known), ["model"]);
        assert!(nearest("temperature", known).is_empty());
    }
}
