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

/// The dotted keys that a mistyped name may have meant: at most three of the same name elsewhere, else one that is nearly
/// spelled like it `beside` it (`place` gives its dotted key), else one that is anywhere.
pub(super) fn meant<'a>(
    name: &str,
    known: impl Iterator<Item = &'a str> + Clone,
    beside: impl IntoIterator<Item = &'a str>,
    place: impl Fn(&str) -> String,
) -> Vec<String> {
    let wanted = name.replace('-', "_");
    let same: Vec<String> = known.clone().filter(|path| last(path) == wanted).take(3).map(str::to_owned).collect();
    if !same.is_empty() {
        return same;
    }
    if let Some(near) = nearest(name, beside).first() {
        return vec![place(near)];
    }
    let far = nearest(name, known.clone().map(last)).first().copied();
    far.and_then(|near| known.clone().find(|path| last(path) == near)).map(str::to_owned).into_iter().collect()
}

/// What to write instead, as a hint; `None` when nothing is near.
pub(super) fn did_you_mean(near: &[String]) -> Option<String> {
    (!near.is_empty()).then(|| format!("did you mean `{}`?", near.join("` or `")))
}

/// The name at the end of a dotted key.
pub(super) fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
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
