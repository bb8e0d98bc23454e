//! How many words two texts share.

use std::collections::HashMap;

use super::Score;

/// The F1 of the words of an answer with regard to the expected ones, 0 to 1, as reading comprehension is scored (SQuAD):
/// case, ASCII punctuation and the articles `a`, `an`, `the` do not count. 1 when neither has words.
pub fn f1(answer: &str, expected: &str) -> Score {
    let (found, wanted) = (words(answer), words(expected));
    if found.is_empty() || wanted.is_empty() {
        return f64::from(found.is_empty() && wanted.is_empty()).into();
    }
    let mut left: HashMap<&str, usize> = HashMap::new();
    for word in &wanted {
        *left.entry(word).or_default() += 1;
    }
    let mut shared = 0;
    for word in &found {
        if let Some(count) = left.get_mut(word.as_str()).filter(|count| **count > 0) {
            *count -= 1;
            shared += 1;
        }
    }
    let value = 2.0 * f64::from(shared) / (found.len() + wanted.len()) as f64;
    Score::because(value, format!("{shared} shared words of {} and {}", found.len(), wanted.len()))
}

fn words(text: &str) -> Vec<String> {
    let plain: String = text.to_lowercase().chars().filter(|character| !character.is_ascii_punctuation()).collect();
    let words = plain.split_whitespace().filter(|word| !matches!(*word, "a" | "an" | "the"));
    words.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_counted_once_each() {
        let value = |answer, expected| f1(answer, expected).value;
        assert_eq!(value("The Eiffel Tower.", "eiffel tower"), 1.0);
        assert_eq!(value("in the tower", "tower"), 2.0 / 3.0);
        assert_eq!(value("x x x", "x"), 0.5);
        assert_eq!(value("no", "yes"), 0.0);
        assert_eq!(value("the", "a"), 1.0);
        assert_eq!(value("", "a b"), 0.0);
    }
}
