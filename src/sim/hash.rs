//! The source of all that is random here: a 64-bit hash that is the same on every machine and in every release.
//!
//! Folded multiplication over eight-byte words (the construction of wyhash); fast over long prompts, and not for
//! anything that an adversary chooses.

const FIRST: u64 = 0xa076_1d64_78bd_642f;
const SECOND: u64 = 0xe703_7ed1_a0b4_28db;

/// A hash in the making.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hash(u64);

impl Hash {
    pub(super) fn new(seed: u64) -> Self {
        Self(fold(seed ^ FIRST, SECOND))
    }

    /// With eight more bytes.
    pub(super) fn number(self, value: u64) -> Self {
        Self(fold(self.0 ^ value ^ SECOND, FIRST ^ value.rotate_left(32)))
    }

    /// With a text of any length; the length counts, so that neighbouring texts cannot run together.
    pub(super) fn bytes(self, bytes: &[u8]) -> Self {
        let mut state = self.number(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            state = Self(fold(state.0 ^ u64::from_le_bytes(*word), FIRST));
        }
        let mut last = [0_u8; 8];
        last[..rest.len()].copy_from_slice(rest);
        Self(fold(state.0 ^ u64::from_le_bytes(last), SECOND))
    }

    pub(super) fn value(self) -> u64 {
        fold(self.0 ^ SECOND, FIRST)
    }

    /// A number in 0..1, evenly spread.
    pub(super) fn unit(self) -> f64 {
        (self.value() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number below `bound`; 0 if the bound is 0.
    pub(super) fn below(self, bound: usize) -> usize {
        ((u128::from(self.value()) * bound as u128) >> 64) as usize
    }
}

fn fold(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    (product as u64) ^ ((product >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_same_for_ever() {
        assert_eq!(
            Hash::new(7).bytes(b"conversation").number(3).value(),
            Hash::new(7).bytes(b"conversation").number(3).value()
        );
        assert_ne!(Hash::new(7).bytes(b"conversation").value(), Hash::new(8).bytes(b"conversation").value());
        assert_ne!(Hash::new(7).bytes(b"a").bytes(b"b").value(), Hash::new(7).bytes(b"ab").value());
        assert_ne!(Hash::new(7).bytes(b"a").value(), Hash::new(7).bytes(b"a\0").value());
    }

    #[test]
    fn spreads_evenly() {
        let mean = (0..10_000).map(|index| Hash::new(1).number(index).unit()).sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.02, "mean {mean}");
        let mut counts = [0; 4];
        for index in 0..10_000 {
            counts[Hash::new(1).number(index).below(4)] += 1;
        }
        assert!(counts.iter().all(|count| (2_200..2_800).contains(count)), "{counts:?}");
    }
}
