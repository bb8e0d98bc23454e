//! How alike two sequences are: the Ratcliff–Obershelp ratio as Python's `difflib` gives it, longest common
//! subsequence, edit distance, common prefix.

use std::{collections::HashMap, hash::Hash};

/// The Ratcliff–Obershelp ratio of two texts over their code points, 0 to 1: exactly what Python's
/// `difflib.SequenceMatcher(None, a, b).ratio()` gives, its rule for popular elements ("autojunk") included. The
/// order matters: `ratio(a, b)` and `ratio(b, a)` may differ.
///
/// Its time is that of difflib: about the number of equal pairs of code points per matching block. For texts of many
/// thousands of code points, score on a blocking thread.
pub fn ratio(a: &str, b: &str) -> f64 {
    ratio_of(&chars(a), &chars(b))
}

/// The Ratcliff–Obershelp ratio over lines, as `SequenceMatcher(None, a.split("\n"), b.split("\n")).ratio()`.
pub fn ratio_lines(a: &str, b: &str) -> f64 {
    ratio_of(&lines(a), &lines(b))
}

/// The Ratcliff–Obershelp ratio over words (runs of anything but white space).
pub fn ratio_words(a: &str, b: &str) -> f64 {
    ratio_of(&words(a), &words(b))
}

/// The Ratcliff–Obershelp ratio over any elements; 1 when both are empty.
pub fn ratio_of<T: Eq + Hash>(a: &[T], b: &[T]) -> f64 {
    let total = a.len() + b.len();
    if total == 0 { 1.0 } else { 2.0 * matches(a, b) as f64 / total as f64 }
}

/// The length of the longest common subsequence over code points.
pub fn lcs(a: &str, b: &str) -> usize {
    lcs_of(&chars(a), &chars(b))
}

/// Twice the length of the longest common subsequence over both lengths, 0 to 1; 1 when both are empty.
pub fn lcs_ratio(a: &str, b: &str) -> f64 {
    lcs_ratio_of(&chars(a), &chars(b))
}

/// [`lcs_ratio`] over words (runs of anything but white space).
pub fn lcs_ratio_words(a: &str, b: &str) -> f64 {
    lcs_ratio_of(&words(a), &words(b))
}

/// [`lcs_ratio`] over lines.
pub fn lcs_ratio_lines(a: &str, b: &str) -> f64 {
    lcs_ratio_of(&lines(a), &lines(b))
}

/// [`lcs_ratio`] over any elements.
pub fn lcs_ratio_of<T: Eq + Hash>(a: &[T], b: &[T]) -> f64 {
    let total = a.len() + b.len();
    if total == 0 { 1.0 } else { 2.0 * lcs_of(a, b) as f64 / total as f64 }
}

/// The Levenshtein distance over code points: the fewest insertions, deletions and replacements.
pub fn edit_distance(a: &str, b: &str) -> usize {
    edit_distance_of(&chars(a), &chars(b))
}

/// 1 less the edit distance over the longer length, 0 to 1; 1 when both are empty.
pub fn edit_similarity(a: &str, b: &str) -> f64 {
    edit_similarity_of(&chars(a), &chars(b))
}

/// [`edit_similarity`] over words (runs of anything but white space).
pub fn edit_similarity_words(a: &str, b: &str) -> f64 {
    edit_similarity_of(&words(a), &words(b))
}

/// [`edit_similarity`] over lines.
pub fn edit_similarity_lines(a: &str, b: &str) -> f64 {
    edit_similarity_of(&lines(a), &lines(b))
}

/// [`edit_similarity`] over any elements.
pub fn edit_similarity_of<T: Eq + Hash>(a: &[T], b: &[T]) -> f64 {
    let longer = a.len().max(b.len());
    if longer == 0 { 1.0 } else { 1.0 - edit_distance_of(a, b) as f64 / longer as f64 }
}

/// How many code points two texts have in common at their start.
pub fn common_prefix(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(left, right)| left == right).count()
}

fn chars(text: &str) -> Vec<char> {
    text.chars().collect()
}

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

fn lines(text: &str) -> Vec<&str> {
    text.split('\n').collect()
}

/// Numbers the elements of `b` from 0 and gives both sequences as such numbers, with where each number stands in `b`;
/// what `b` does not have gets the number behind the last.
fn numbered<T: Eq + Hash>(a: &[T], b: &[T]) -> (Vec<u32>, Vec<u32>, Vec<Vec<u32>>) {
    let mut numbers: HashMap<&T, u32> = HashMap::with_capacity(b.len().min(1024));
    let mut places: Vec<Vec<u32>> = Vec::new();
    let b: Vec<u32> = b
        .iter()
        .enumerate()
        .map(|(place, element)| {
            let number = *numbers.entry(element).or_insert_with(|| {
                places.push(Vec::new());
                places.len() as u32 - 1
            });
            places[number as usize].push(place as u32);
            number
        })
        .collect();
    let unknown = places.len() as u32;
    let a = a.iter().map(|element| numbers.get(element).copied().unwrap_or(unknown)).collect();
    places.push(Vec::new());
    (a, b, places)
}

/// The elements in matching blocks, by difflib's rules.
fn matches<T: Eq + Hash>(a: &[T], b: &[T]) -> usize {
    let (a, b, mut places) = numbered(a, b);
    // An element that makes up more than a hundredth of a long `b` starts no block; blocks may still grow over it.
    if b.len() >= 200 {
        let popular = b.len() / 100 + 1;
        places.iter_mut().filter(|places| places.len() > popular).for_each(Vec::clear);
    }
    let mut search = Search { a: &a, b: &b, places: &places, row: vec![0; b.len() + 1], next: vec![0; b.len() + 1] };
    let (mut open, mut total) = (vec![(0, a.len(), 0, b.len())], 0);
    while let Some((a_low, a_high, b_low, b_high)) = open.pop() {
        let (at_a, at_b, size) = search.longest(a_low, a_high, b_low, b_high);
        if size == 0 {
            continue;
        }
        total += size;
        if a_low < at_a && b_low < at_b {
            open.push((a_low, at_a, b_low, at_b));
        }
        if at_a + size < a_high && at_b + size < b_high {
            open.push((at_a + size, a_high, at_b + size, b_high));
        }
    }
    total
}

struct Search<'a> {
    a: &'a [u32],
    b: &'a [u32],
    places: &'a [Vec<u32>],
    /// Length of the match that ends before each place of `b`, for the last element of `a` looked at; all 0 between
    /// searches.
    row: Vec<u32>,
    next: Vec<u32>,
}

impl Search<'_> {
    /// The longest matching block within a window, the earliest in `a`, then in `b`, of several: its place in both
    /// and its size.
    fn longest(&mut self, a_low: usize, a_high: usize, b_low: usize, b_high: usize) -> (usize, usize, usize) {
        let (mut at_a, mut at_b, mut size) = (a_low, b_low, 0);
        let mut filled: &[u32] = &[];
        for (index, &element) in self.a.iter().enumerate().take(a_high).skip(a_low) {
            let places = within(&self.places[element as usize], b_low, b_high);
            for &place in places {
                let place = place as usize;
                let length = self.row[place] + 1;
                self.next[place + 1] = length;
                if length as usize > size {
                    size = length as usize;
                    (at_a, at_b) = (index + 1 - size, place + 1 - size);
                }
            }
            for &place in filled {
                self.row[place as usize + 1] = 0;
            }
            filled = places;
            std::mem::swap(&mut self.row, &mut self.next);
        }
        for &place in filled {
            self.row[place as usize + 1] = 0;
        }
        while at_a > a_low && at_b > b_low && self.a[at_a - 1] == self.b[at_b - 1] {
            (at_a, at_b, size) = (at_a - 1, at_b - 1, size + 1);
        }
        while at_a + size < a_high && at_b + size < b_high && self.a[at_a + size] == self.b[at_b + size] {
            size += 1;
        }
        (at_a, at_b, size)
    }
}

fn within(places: &[u32], low: usize, high: usize) -> &[u32] {
    let start = places.partition_point(|&place| (place as usize) < low);
    let end = places.partition_point(|&place| (place as usize) < high);
    &places[start..end]
}

/// The length of the longest common subsequence over any elements, 64 places at a time (Hyyrö, "Bit-parallel LCS-length
/// computation revisited", 2004).
pub fn lcs_of<T: Eq + Hash>(a: &[T], b: &[T]) -> usize {
    let (a, b, places) = numbered(a, b);
    let mut unmatched = vec![u64::MAX; b.len().div_ceil(64)];
    let mut mask = vec![0_u64; unmatched.len()];
    for &element in &a {
        let places = &places[element as usize];
        if places.is_empty() {
            continue;
        }
        for &place in places {
            mask[place as usize / 64] |= 1 << (place % 64);
        }
        let mut carry = false;
        for (word, mask) in unmatched.iter_mut().zip(&mut mask) {
            let hit = *word & *mask;
            let (sum, first) = word.overflowing_add(hit);
            let (sum, second) = sum.overflowing_add(u64::from(carry));
            carry = first || second;
            *word = sum | (*word & !*mask);
            *mask = 0;
        }
    }
    (0..b.len()).filter(|place| unmatched[place / 64] >> (place % 64) & 1 == 0).count()
}

/// The Levenshtein distance over any elements, 64 places at a time (Myers 1999, in the block form of Hyyrö 2003).
pub fn edit_distance_of<T: Eq + Hash>(a: &[T], b: &[T]) -> usize {
    if b.is_empty() {
        return a.len();
    }
    let (a, b, places) = numbered(a, b);
    let blocks = b.len().div_ceil(64);
    let last = 1_u64 << ((b.len() - 1) % 64);
    // Per block: where the distance rises (`plus`) or falls (`minus`) by one from a place to the next.
    let (mut plus, mut minus, mut mask) = (vec![u64::MAX; blocks], vec![0_u64; blocks], vec![0_u64; blocks]);
    let mut distance = b.len();
    for &element in &a {
        for &place in &places[element as usize] {
            mask[place as usize / 64] |= 1 << (place % 64);
        }
        let (mut plus_carry, mut minus_carry) = (1_u64, 0_u64);
        for block in 0..blocks {
            let equal = mask[block] | minus_carry;
            let diagonal = ((equal & plus[block]).wrapping_add(plus[block]) ^ plus[block]) | equal | minus[block];
            let rises = minus[block] | !(diagonal | plus[block]);
            let falls = diagonal & plus[block];
            if block + 1 == blocks {
                distance += usize::from(rises & last != 0);
                distance -= usize::from(falls & last != 0);
            }
            let (rises_in, falls_in) = (rises << 1 | plus_carry, falls << 1 | minus_carry);
            (plus_carry, minus_carry) = (rises >> 63, falls >> 63);
            plus[block] = falls_in | !(diagonal | rises_in);
            minus[block] = rises_in & diagonal;
            mask[block] = 0;
        }
    }
    distance
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slow_lcs(a: &[char], b: &[char]) -> usize {
        let mut row = vec![0; b.len() + 1];
        for x in a {
            let mut corner = 0;
            for (j, y) in b.iter().enumerate() {
                let above = row[j + 1];
                row[j + 1] = if x == y { corner + 1 } else { above.max(row[j]) };
                corner = above;
            }
        }
        row[b.len()]
    }

    fn slow_distance(a: &[char], b: &[char]) -> usize {
        let mut row: Vec<usize> = (0..=b.len()).collect();
        for (i, x) in a.iter().enumerate() {
            let mut corner = i;
            row[0] = i + 1;
            for (j, y) in b.iter().enumerate() {
                let above = row[j + 1];
                row[j + 1] = (corner + usize::from(x != y)).min(above + 1).min(row[j] + 1);
                corner = above;
            }
        }
        row[b.len()]
    }

    #[test]
    fn known_figures() {
        assert_eq!(ratio("abcd", "bcde"), 0.75);
        assert_eq!(ratio("tide", "diet"), 0.25);
        assert_eq!(ratio("diet", "tide"), 0.5);
        assert_eq!(ratio("", ""), 1.0);
        assert_eq!(ratio("", "a"), 0.0);
        assert_eq!(ratio_lines("a\nb\nc", "a\nx\nc"), 2.0 / 3.0);
        assert_eq!(lcs("AGGTAB", "GXTXAYB"), 4);
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_similarity("", ""), 1.0);
        assert_eq!(common_prefix("größe", "größer"), 5);
        assert_eq!(lcs_ratio_words("the red cat", "the cat"), 0.8);
    }

    #[test]
    fn a_popular_element_starts_no_block() {
        // 200 equal characters: each is popular, so that only the start of both windows can match.
        let b = "a".repeat(200);
        assert_eq!(ratio("ba", &b), 0.0);
        assert_eq!(ratio("ab", &b), 2.0 / 202.0);
        assert_eq!(ratio("ba", &b[1..]), 2.0 / 201.0);
    }

    proptest! {
        #[test]
        fn bit_parallel_is_the_same_as_the_table(a in "[abcé]{0,200}", b in "[abcé]{0,200}") {
            let (x, y) = (chars(&a), chars(&b));
            prop_assert_eq!(lcs(&a, &b), slow_lcs(&x, &y));
            prop_assert_eq!(edit_distance(&a, &b), slow_distance(&x, &y));
        }

        #[test]
        fn laws(a in "[ab\u{1f600}]{0,90}", b in "[ab\u{1f600}]{0,90}", c in "[ab\u{1f600}]{0,90}") {
            let (length_a, length_b) = (a.chars().count(), b.chars().count());
            prop_assert!(lcs(&a, &b) <= length_a.min(length_b));
            prop_assert_eq!(lcs(&a, &b), lcs(&b, &a));
            prop_assert_eq!(edit_distance(&a, &b), edit_distance(&b, &a));
            prop_assert_eq!(edit_distance(&a, &b) == 0, a == b);
            prop_assert!(edit_distance(&a, &c) <= edit_distance(&a, &b) + edit_distance(&b, &c));
            prop_assert!(length_a + length_b - 2 * lcs(&a, &b) >= edit_distance(&a, &b));
            // What Ratcliff-Obershelp matches is a common subsequence, and a text matches itself whole.
            prop_assert!(ratio(&a, &b) <= lcs_ratio(&a, &b));
            prop_assert_eq!(ratio(&a, &a), 1.0);
            prop_assert!(common_prefix(&a, &b) <= lcs(&a, &b));
        }
    }
}
