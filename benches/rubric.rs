//! Scorers that run once per rollout: the ratio, mathematics, tags.

use std::hint::black_box;

use divan::Bencher;
use rollhouse::rubric::{math, similarity, tags};

fn main() {
    divan::main();
}

/// Two texts of a length in characters, of words, the second with every seventh word changed.
fn texts(length: usize) -> (String, String) {
    let words = ["rollout", "of", "a", "model", "that", "learns", "to", "sort", "names", "by", "their", "letters"];
    let text = |changed: &str| {
        let word = |at: usize| if at % 7 == 3 { changed } else { words[(at * 5 + at / 11) % words.len()] };
        let mut text = String::new();
        for at in 0.. {
            if text.len() >= length {
                break;
            }
            text.push_str(word(at));
            text.push(' ');
        }
        text.truncate(length);
        text
    };
    (text("slowly"), text("quick"))
}

#[divan::bench(args = [150, 500, 5000])]
fn ratio(bencher: Bencher<'_, '_>, length: usize) {
    let (a, b) = texts(length);
    bencher.bench(|| similarity::ratio(black_box(&a), black_box(&b)));
}

#[divan::bench(args = [500, 5000])]
fn lcs(bencher: Bencher<'_, '_>, length: usize) {
    let (a, b) = texts(length);
    bencher.bench(|| similarity::lcs(black_box(&a), black_box(&b)));
}

#[divan::bench(args = [500, 5000])]
fn edit_distance(bencher: Bencher<'_, '_>, length: usize) {
    let (a, b) = texts(length);
    bencher.bench(|| similarity::edit_distance(black_box(&a), black_box(&b)));
}

#[divan::bench(args = ["42", r"\frac{\sqrt{2}}{2}", r"(x+1)^5", r"\left(\frac{1}{2}, 3\right)"])]
fn equivalence(bencher: Bencher<'_, '_>, answer: &str) {
    let other = format!("{answer} ");
    bencher.bench(|| math::equivalent(black_box(answer), black_box(&other)));
}

#[divan::bench(args = [500, 50_000])]
fn tag_sequence(bencher: Bencher<'_, '_>, length: usize) {
    let text = format!("<think>{}</think>\n<answer>42</answer>", texts(length).0);
    bencher.bench(|| tags::sequence(black_box(&text), &["think", "answer"]).is_ok());
}
