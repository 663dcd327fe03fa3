//! A mixing function and a counter-based generator on top of it.
//!
//! Everything random about data is a pure function of its coordinates: no generator is carried
//! from row to row, so any row can be made first.
//! Source: SplitMix64, Steele et al. 2014, "Fast splittable pseudorandom number generators".

const GOLDEN_GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// Mixes 64 bits so that each input bit affects each output bit.
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(GOLDEN_GAMMA);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// One number from several coordinates, each bit of it a function of all of theirs; their order counts.
pub fn mix_all(values: &[u64]) -> u64 {
    values.iter().fold(0, |key, &value| mix(key ^ mix(value)))
}

/// Random numbers of one key.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(key: &[u64]) -> Self {
        Self(mix_all(key))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN_GAMMA);
        mix(self.0)
    }

    /// Uniform in `0..bound`; the bias, under `bound / 2^64`, is out of sight.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }
}
