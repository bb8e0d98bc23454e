//! Python's random numbers: the same seed gives the same shuffle and the same draws as `random.Random` does there.

use rand_mt::Mt;

/// A Mersenne Twister that draws as CPython's `random.Random` (3.2 and later) does: seeded through `init_by_array`, and
/// whole numbers below a bound by `getrandbits` with rejection.
pub struct PythonRandom {
    twister: Mt,
}

impl PythonRandom {
    /// `random.Random(seed)` for a whole number of at most 64 bits.
    pub fn new(seed: u64) -> Self {
        // CPython splits the seed into 32-bit digits, least significant first, at least one.
        Self::from_digits(&[seed as u32, (seed >> 32) as u32])
    }

    /// The generator of one position in a seeded sequence: positions can be visited in any order. Equals
    /// `random.Random(seed + (position + 1) * 2**64)`.
    pub fn at(seed: u64, position: u64) -> Self {
        let position = position.wrapping_add(1);
        Self::from_digits(&[seed as u32, (seed >> 32) as u32, position as u32, (position >> 32) as u32])
    }

    fn from_digits(digits: &[u32]) -> Self {
        let length = digits.iter().rposition(|digit| *digit != 0).map_or(1, |last| last + 1);
        let digits = &digits[..length];
        Self { twister: Mt::new_with_key(digits.iter().copied()) }
    }

    /// A whole number of `bits` random bits, 1 to 64 (`getrandbits`).
    fn bits(&mut self, bits: u32) -> u64 {
        if bits <= 32 {
            return u64::from(self.twister.next_u32() >> (32 - bits));
        }
        let low = u64::from(self.twister.next_u32());
        let high = u64::from(self.twister.next_u32() >> (64 - bits));
        high << 32 | low
    }

    /// A whole number from 0 to below `bound` (`randrange`); 0 when the bound is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 {
            return 0;
        }
        let bits = u64::BITS - bound.leading_zeros();
        loop {
            let drawn = self.bits(bits);
            if drawn < bound {
                return drawn;
            }
        }
    }

    /// A whole number from `low` to `high`, both included (`randint`).
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// A position in a list of this length.
    pub fn position(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// One of the items (`choice`); the list must not be empty.
    pub fn choose<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.position(items.len())]
    }

    /// Shuffles in place (`shuffle`).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let j = self.position(i + 1);
            items.swap(i, j);
        }
    }
}
