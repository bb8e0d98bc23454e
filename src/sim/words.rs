//! Words for answers that mean nothing.

use super::hash::Hash;

const WORDS: [&str; 48] = [
    "amber", "and", "anchor", "basin", "birch", "bright", "canal", "cedar", "cloud", "copper", "dawn", "delta",
    "ember", "fern", "field", "flint", "garnet", "glade", "harbor", "hazel", "in", "iron", "ivy", "juniper", "lantern",
    "ledge", "maple", "meadow", "mist", "north", "oak", "of", "opal", "pebble", "pine", "quartz", "reed", "ridge",
    "river", "slate", "spruce", "stone", "the", "tide", "under", "valley", "willow", "with",
];

/// `count` words in one line.
pub(super) fn words(count: usize, draw: Hash) -> String {
    let mut text = String::with_capacity(count * 6);
    for index in 0..count {
        if index > 0 {
            text.push(' ');
        }
        text.push_str(WORDS[draw.number(index as u64).below(WORDS.len())]);
    }
    text
}
