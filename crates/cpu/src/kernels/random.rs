//! Counter-based random numbers: Philox 4x32-10 and what is drawn from it.
//!
//! Element `i` of stream `s` under key `k` comes from word `i % 4` of the block with counter
//! `(i / 4, s)` and key `k`, each a 64-bit number in two words, low word first. So any element can be made
//! alone, in any order and on any number of threads.
//!
//! - uniform: the top 24 bits, in `[0, 1)`.
//! - normal: Box-Muller on the word pairs (0, 1) and (2, 3), in f32: with `u = word_a * 2^-32` (rounded to f32,
//!   at least 2^-33) and `v` uniform from `word_b`, `sqrt(-2 ln u)` times `cos 2 pi v`, and times `sin 2 pi v`.
//!   Magnitudes end at 6.8. `ln`, `sin` and `cos` are those of the `libm` crate, the same bits everywhere.
//!
//! Source: Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3".

use crate::element::Element;
use crate::simd::vectorize;
use crate::{RngKey, par};

/// Blocks made at a time, one per SIMD lane.
const LANES: usize = 16;
/// Elements in [`LANES`] blocks.
const GROUP: usize = 4 * LANES;

/// The ten rounds on [`LANES`] counters at once; `counter[w][lane]` becomes word `w` of that lane's block.
#[inline(always)]
fn philox(counter: &mut [[u32; LANES]; 4], key: [u32; 2]) {
    let [mut k0, mut k1] = key;
    for _ in 0..10 {
        for lane in 0..LANES {
            let product0 = counter[0][lane] as u64 * 0xD251_1F53;
            let product1 = counter[2][lane] as u64 * 0xCD9E_8D57;
            let (c1, c3) = (counter[1][lane], counter[3][lane]);
            counter[0][lane] = (product1 >> 32) as u32 ^ c1 ^ k0;
            counter[1][lane] = product1 as u32;
            counter[2][lane] = (product0 >> 32) as u32 ^ c3 ^ k1;
            counter[3][lane] = product0 as u32;
        }
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
}

#[inline(always)]
fn halves(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

/// The words of elements `group * GROUP ..` of a stream.
#[inline(always)]
fn words(rng: RngKey, group: u64) -> [u32; GROUP] {
    let [s0, s1] = halves(rng.stream);
    let mut counter = [[0; LANES], [0; LANES], [s0; LANES], [s1; LANES]];
    for lane in 0..LANES {
        let block = (group * LANES as u64).wrapping_add(lane as u64);
        counter[0][lane] = block as u32;
        counter[1][lane] = (block >> 32) as u32;
    }
    philox(&mut counter, halves(rng.key));
    let mut words = [0; GROUP];
    for lane in 0..LANES {
        for (w, words_of) in counter.iter().enumerate() {
            words[4 * lane + w] = words_of[lane];
        }
    }
    words
}

/// A word as a number in `[0, 1)`.
#[inline(always)]
fn unit(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// Turns a group of words into standard normal numbers.
fn normals(words: &[u32; GROUP]) -> [f32; GROUP] {
    let mut out = [0.0; GROUP];
    for (out, words) in out.chunks_exact_mut(2).zip(words.chunks_exact(2)) {
        let u = (words[0] as f32 * (1.0 / 4_294_967_296.0)).max(1.0 / 8_589_934_592.0);
        let radius = (-2.0 * libm::logf(u)).sqrt();
        let (sin, cos) = libm::sincosf(unit(words[1]) * std::f32::consts::TAU);
        out[0] = radius * cos;
        out[1] = radius * sin;
    }
    out
}

/// `y = x / (1 - p)` where the element's uniform number is at least `p`, else 0.
pub(crate) fn dropout<T: Element>(x: &[T], p: f32, rng: RngKey, y: &mut [T]) {
    par::elementwise(y, |y, first| {
        dropout_piece(&x[first..][..y.len()], p, rng, first, y)
    });
}

pub(crate) fn fill_normal(out: &mut [f32], mean: f32, std: f32, rng: RngKey) {
    par::elementwise(out, |out, first| normal_piece(out, mean, std, rng, first));
}

pub(crate) fn fill_uniform(out: &mut [f32], low: f32, high: f32, rng: RngKey) {
    par::elementwise(out, |out, first| uniform_piece(out, low, high, rng, first));
}

// Pieces begin at an element `first` that is a multiple of GROUP.

vectorize! {
    fn dropout_piece<T: Element>(x: &[T], p: f32, rng: RngKey, first: usize, y: &mut [T]) {
        let scale = 1.0 / (1.0 - p);
        for (i, (y, x)) in y.chunks_mut(GROUP).zip(x.chunks(GROUP)).enumerate() {
            let words = words(rng, (first / GROUP + i) as u64);
            for ((y, x), word) in y.iter_mut().zip(x).zip(&words) {
                *y = T::round(if unit(*word) >= p { x.widen() * scale } else { 0.0 });
            }
        }
    }
}

vectorize! {
    fn normal_piece(out: &mut [f32], mean: f32, std: f32, rng: RngKey, first: usize) {
        for (i, out) in out.chunks_mut(GROUP).enumerate() {
            let normals = normals(&words(rng, (first / GROUP + i) as u64));
            for (out, normal) in out.iter_mut().zip(&normals) {
                *out = mean + std * normal;
            }
        }
    }
}

vectorize! {
    fn uniform_piece(out: &mut [f32], low: f32, high: f32, rng: RngKey, first: usize) {
        // Rounding may reach `high`, which the range excludes.
        let last = high.next_down();
        for (i, out) in out.chunks_mut(GROUP).enumerate() {
            let words = words(rng, (first / GROUP + i) as u64);
            for (out, word) in out.iter_mut().zip(&words) {
                *out = (low + (high - low) * unit(*word)).min(last);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that the authors publish with Random123 (kat_vectors, philox4x32 10).
    #[test]
    fn philox_gives_the_published_answers() {
        let cases = [
            (
                [0; 4],
                [0; 2],
                [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
            ),
            (
                [u32::MAX; 4],
                [u32::MAX; 2],
                [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
            ),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            let mut lanes = counter.map(|word| [word; LANES]);
            philox(&mut lanes, key);
            for lane in 0..LANES {
                assert_eq!(lanes.map(|words| words[lane]), expected);
            }
        }
    }

    #[test]
    fn a_stream_is_indexed_by_element() {
        let rng = RngKey {
            key: 7 << 40 | 3,
            stream: 9 << 33 | 1,
        };
        let mut block = [[0; LANES]; 4];
        // Element 4 * 21 + 2: word 2 of block 21.
        block[0] = [21; LANES];
        [block[2], block[3]] = halves(rng.stream).map(|word| [word; LANES]);
        philox(&mut block, halves(rng.key));
        assert_eq!(
            words(rng, (4 * 21 + 2) / GROUP as u64)[(4 * 21 + 2) % GROUP],
            block[2][0]
        );
    }
}
