//! The prefix cache: which beginnings of prompts the engine has seen.
//!
//! Kept at the ends of messages only, as hashes: the next turn of a conversation and another rollout of the same task
//! hit, two texts that part in the middle of a message do not hit beyond the message before. Hits are whole blocks, and at
//! least one token is always computed, as in vLLM.

use std::collections::{HashSet, VecDeque};

/// Tokens in a block.
pub(super) const BLOCK: usize = 16;
/// Beginnings remembered; the oldest go first. 32 bytes each.
const REMEMBERED: usize = 1 << 18;

#[derive(Debug, Default)]
pub(super) struct PrefixCache {
    known: HashSet<u64>,
    order: VecDeque<u64>,
}

impl PrefixCache {
    /// Tokens of a prompt that are cached; remembers its boundaries (hash and length, shortest first).
    pub(super) fn look_up(&mut self, boundaries: &[(u64, usize)], prompt_tokens: usize) -> usize {
        let known = boundaries.iter().rposition(|(hash, _)| self.known.contains(hash));
        let cached = known.map_or(0, |place| boundaries[place].1);
        for (hash, _) in &boundaries[known.map_or(0, |place| place + 1)..] {
            self.remember(*hash);
        }
        cached.min(prompt_tokens.saturating_sub(1)) / BLOCK * BLOCK
    }

    /// Remembers one beginning.
    pub(super) fn remember(&mut self, hash: u64) {
        if self.known.insert(hash) {
            self.order.push_back(hash);
            if self.order.len() > REMEMBERED
                && let Some(oldest) = self.order.pop_front()
            {
                self.known.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_whole_blocks_of_what_was_seen() {
        let mut cache = PrefixCache::default();
        assert_eq!(cache.look_up(&[(1, 40), (2, 100)], 110), 0);
        assert_eq!(cache.look_up(&[(1, 40), (2, 100)], 110), 96);
        assert_eq!(cache.look_up(&[(1, 40), (3, 100)], 110), 32);
        assert_eq!(cache.look_up(&[(1, 40), (3, 96)], 96), 80, "one token at least is computed");
    }
}
