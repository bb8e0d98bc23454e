//! One conversation: which names come when, what the user says, and the right lists.

use serde_json::Value;

use crate::{
    taskset::PythonRandom,
    trace::{Prompt, TaskData},
};

/// Most names that one conversation can have: first names and last names are each used once in it, so that the order
/// is never in doubt.
pub(super) const MOST_NAMES: u64 = 100;

/// The tag of the first list.
pub(super) const FIRST_TAG: &str = "alphabetical_sorted";
/// The tag of every later list.
pub(super) const LATER_TAG: &str = "combined_alphabetical_sorted";

const NEW: &str = " // new name!";
const FIRST_NAMES: &str = include_str!("first_names.txt");
const LAST_NAMES: &str = include_str!("last_names.txt");

const OPENING: &str = "Put these names in alphabetical order by ";
const NEXT: &str = "Here are more names: ";

/// How long a conversation may be, ends included.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    /// Turns.
    pub(super) turns: (u64, u64),
    /// Names in a turn.
    pub(super) names: (u64, u64),
}

/// Which part of a name orders it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SortBy {
    First,
    Last,
}

/// A conversation before it is held.
pub(super) struct Episode {
    turns: Vec<Vec<String>>,
    by: SortBy,
}

impl Episode {
    /// The conversation at a position.
    pub(super) fn draw(seed: u64, position: u64, bounds: Bounds) -> Self {
        let mut random = PythonRandom::at(seed, position);
        let by = *random.choose(&[SortBy::First, SortBy::Last]);
        let counts: Vec<u64> = (0..random.between(bounds.turns.0, bounds.turns.1))
            .map(|_| random.between(bounds.names.0, bounds.names.1))
            .collect();
        let mut first: Vec<&str> = FIRST_NAMES.split_whitespace().collect();
        let mut last: Vec<&str> = LAST_NAMES.split_whitespace().collect();
        random.shuffle(&mut first);
        random.shuffle(&mut last);
        let mut names = first.iter().zip(&last).map(|(first, last)| format!("{first}{last}"));
        let turns = counts.iter().map(|count| names.by_ref().take(*count as usize).collect()).collect();
        Self { turns, by }
    }

    /// The row: the first turn is the prompt, the user says the others.
    pub(super) fn into_row(self) -> TaskData {
        let follow_ups: Vec<Value> = (1..self.turns.len()).map(|turn| self.follow_up(turn).into()).collect();
        let ground_truths: Vec<Value> = (0..self.turns.len())
            .map(|turn| sorted(&self.turns[..=turn], self.by).into_iter().map(Value::from).collect())
            .collect();
        let mut data = TaskData { prompt: Some(Prompt::Text(self.opening())), ..TaskData::default() };
        data.extra.insert("num_turns".to_owned(), self.turns.len().into());
        data.extra.insert("follow_ups".to_owned(), Value::Array(follow_ups));
        data.extra.insert("ground_truths".to_owned(), Value::Array(ground_truths));
        data
    }

    fn opening(&self) -> String {
        let (label, other) = match self.by {
            SortBy::First => ("FIRST", "first"),
            SortBy::Last => ("LAST", "last"),
        };
        format!(
            "{OPENING}{label} name: {}\n\nA name is a first name and a last name written as one word; only the {other} \
             name counts for the order. Answer with one name a line, written as above, in this form:\n<{FIRST_TAG}>\n\
             NameA\nNameB\n</{FIRST_TAG}>",
            self.turns[0].join(", ")
        )
    }

    fn follow_up(&self, turn: usize) -> String {
        let names = self.turns[turn].join(", ");
        if turn > 1 {
            return format!("{NEXT}{names}\n\nPut them into the list in the same way and form.");
        }
        format!(
            "{NEXT}{names}\n\nPut them into your list and give the whole list, still in alphabetical order by the same \
             part of the name. Mark the names that this message brought with `{}` behind the name, and only those, in \
             this form:\n<{LATER_TAG}>\nNameA\nNameB{NEW}\n</{LATER_TAG}>",
            NEW.trim_start()
        )
    }
}

/// What the first message asks to sort by; `None` if it is not the first message of this taskset.
pub(super) fn sort_by(opening: &str) -> Option<SortBy> {
    let label = opening.strip_prefix(OPENING)?;
    if label.starts_with("FIRST name: ") {
        Some(SortBy::First)
    } else if label.starts_with("LAST name: ") {
        Some(SortBy::Last)
    } else {
        None
    }
}

/// The names that a message of the user brings.
pub(super) fn names_said(text: &str) -> Vec<String> {
    let line = text.lines().next().unwrap_or_default();
    let names = line.split_once(": ").map_or("", |(_, names)| names);
    names.split(", ").map(str::to_owned).filter(|name| !name.is_empty()).collect()
}

/// The right answer to the last of these turns, in its tags.
pub(super) fn perfect_reply(turns: &[Vec<String>], by: SortBy) -> String {
    let tag = if turns.len() == 1 { FIRST_TAG } else { LATER_TAG };
    format!("<{tag}>\n{}\n</{tag}>", sorted(turns, by).join("\n"))
}

/// All names so far in order, those of the last turn marked unless it is the first.
fn sorted(turns: &[Vec<String>], by: SortBy) -> Vec<String> {
    let last = turns.len().saturating_sub(1);
    let mut names: Vec<(&str, bool)> = turns
        .iter()
        .enumerate()
        .flat_map(|(turn, names)| names.iter().map(move |name| (name.as_str(), turn > 0 && turn == last)))
        .collect();
    names.sort_by(|left, right| part(left.0, by).cmp(part(right.0, by)));
    names.into_iter().map(|(name, new)| format!("{name}{}", if new { NEW } else { "" })).collect()
}

/// The part of a name that orders it; the last name begins at the first capital after the start.
fn part(name: &str, by: SortBy) -> &str {
    let cut = name.char_indices().skip(1).find(|(_, c)| c.is_uppercase()).map_or(name.len(), |(cut, _)| cut);
    match by {
        SortBy::First => &name[..cut],
        SortBy::Last => &name[cut..],
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn there_are_enough_names_and_each_once() {
        for list in [FIRST_NAMES, LAST_NAMES] {
            let names: Vec<&str> = list.split_whitespace().collect();
            let distinct: HashSet<&str> = names.iter().copied().collect();
            assert_eq!(distinct.len(), names.len());
            assert!(names.len() as u64 >= MOST_NAMES, "{}", names.len());
            let plain = |name: &&str| {
                name.chars().enumerate().all(|(at, c)| c.is_ascii_alphabetic() && (c.is_uppercase() == (at == 0)))
            };
            assert!(names.iter().all(plain));
        }
    }

    #[test]
    fn later_lists_mark_the_new_names_only() {
        let turns = [vec!["AnnaZell".to_owned()], vec!["ZoeAbel".to_owned()], vec!["MiaKern".to_owned()]];
        assert_eq!(sorted(&turns[..1], SortBy::First), ["AnnaZell"]);
        assert_eq!(sorted(&turns[..2], SortBy::First), ["AnnaZell", "ZoeAbel // new name!"]);
        assert_eq!(sorted(&turns, SortBy::Last), ["ZoeAbel", "MiaKern // new name!", "AnnaZell"]);
    }
}
