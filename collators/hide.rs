//! Which tokens are hidden, and what stands in their place: for masked language modelling.
//!
//! All of it is a function of a seed (of the run, the epoch and the row of data) and of where a token stands in its row, so
//! that workers, parts of a row and a run that goes on have no say in it. A unit, which is a token or a whole word, is hidden
//! with one probability wherever it stands: a span of up to `max_ngrams` units begins at each with a chance that leads to
//! that. Special tokens are never hidden, and end a span.
//! Sources: Devlin et al. 2018, arXiv:1810.04805 (80, 10 and 10 %); google-research/bert, "whole word masking"; Megatron-LM,
//! whose spans of n words come with weight 1 / n.

use tt_data::{Words, mix_all};

use crate::field::IGNORE;

/// What a number is drawn for.
const BEGINS: u64 = 1;
const LENGTH: u64 = 2;
const STAND_IN: u64 = 3;
const RANDOM: u64 = 4;
/// Of spans that would have begun before the first unit.
const EARLIER: u64 = 5;

/// How tokens are hidden.
pub(crate) struct Hide {
    words: Words,
    mask_id: u32,
    whole_words: bool,
    mask_replace_prob: f64,
    random_replace_prob: f64,
    /// The chance that a span begins at a unit.
    begins: f64,
    /// Of a span of so many units or fewer, by their number less one.
    lengths: Vec<f64>,
}

/// Options of [`Hide`]: probabilities in `[0, 1]`, the first above 0.
pub(crate) struct HideOptions {
    pub(crate) mlm_probability: f64,
    pub(crate) mask_replace_prob: f64,
    pub(crate) random_replace_prob: f64,
    pub(crate) whole_words: bool,
    pub(crate) max_ngrams: usize,
}

/// Where hiding is in a row: what the next token's fate depends on besides its place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// The token before, as the data has it; none at the beginning and after a special one.
    before: Option<u32>,
    /// Units after this one that a span goes on for.
    left: u8,
    /// Whether the unit that `before` is of is hidden.
    is_hidden: bool,
}

impl Place {
    /// As a number, to be carried from part to part of a row.
    pub(crate) fn to_bits(self) -> u64 {
        let before = self.before.map_or(0, |id| u64::from(id) | (1 << 32));
        before | (u64::from(self.left) << 40) | (u64::from(self.is_hidden) << 48)
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Self {
            before: (bits & (1 << 32) != 0).then_some(bits as u32),
            left: (bits >> 40) as u8,
            is_hidden: bits & (1 << 48) != 0,
        }
    }
}

impl Hide {
    pub(crate) fn new(options: &HideOptions, words: Words, mask_id: u32) -> Self {
        let weights: Vec<f64> = (1..=options.max_ngrams).map(|n| 1.0 / n as f64).collect();
        let total: f64 = weights.iter().sum();
        let lengths: Vec<f64> = (weights.iter())
            .scan(0.0, |sum, weight| {
                *sum += weight / total;
                Some(*sum)
            })
            .collect();
        Self {
            begins: begins(options.mlm_probability, &lengths),
            words,
            mask_id,
            whole_words: options.whole_words,
            mask_replace_prob: options.mask_replace_prob,
            random_replace_prob: options.random_replace_prob,
            lengths,
        }
    }

    /// Hides some of `ids`, of which the first is token `first` of its row. `labels` are left where a token is hidden, and are
    /// [`IGNORE`] elsewhere; what has no label is not hidden.
    pub(crate) fn hide(
        &self,
        (seed, first): (u64, u64),
        place: &mut Place,
        ids: &mut [u32],
        labels: &mut [i64],
    ) {
        for ((at, id), label) in (first..).zip(ids).zip(labels) {
            let token = *id;
            if self.words.is_special(token) || *label == IGNORE {
                *place = Place::default();
                *label = IGNORE;
                continue;
            }
            if !self.goes_on(*place, token) {
                let earlier = match place.before {
                    Some(_) => place.left,
                    None => self.earlier(seed, at),
                };
                let begun = match unit(seed, at, BEGINS) < self.begins {
                    true => self.length(seed, at, LENGTH),
                    false => 0,
                };
                let units = earlier.max(begun);
                place.is_hidden = units > 0;
                place.left = units.saturating_sub(1);
            }
            place.before = Some(token);
            if place.is_hidden {
                *id = self.stand_in(seed, at, token);
            } else {
                *label = IGNORE;
            }
        }
    }

    fn goes_on(&self, place: Place, token: u32) -> bool {
        let before = place.before.filter(|_| self.whole_words);
        before.is_some_and(|before| self.words.goes_on(before, token))
    }

    /// Units that spans which began before the first unit would go on for: without them the first ones were hidden less often.
    fn earlier(&self, seed: u64, at: u64) -> u8 {
        let before = 1..self.lengths.len() as u64;
        let reach = before.filter_map(|units| {
            let seed = mix_all(&[seed, EARLIER, units]);
            let begins = unit(seed, at, BEGINS) < self.begins;
            let length = u64::from(self.length(seed, at, LENGTH));
            (begins && length > units).then(|| (length - units) as u8)
        });
        reach.max().unwrap_or(0)
    }

    fn length(&self, seed: u64, at: u64, what: u64) -> u8 {
        let drawn = unit(seed, at, what);
        let shorter = self.lengths.iter().take_while(|upto| **upto <= drawn);
        (shorter.count() + 1).min(self.lengths.len()) as u8
    }

    fn stand_in(&self, seed: u64, at: u64, token: u32) -> u32 {
        let drawn = unit(seed, at, STAND_IN);
        if drawn < self.mask_replace_prob {
            return self.mask_id;
        }
        let ordinary = self.words.ordinary();
        if drawn < self.mask_replace_prob + self.random_replace_prob && !ordinary.is_empty() {
            let drawn = u128::from(mix_all(&[seed, at, RANDOM]));
            return ordinary[((drawn * ordinary.len() as u128) >> 64) as usize];
        }
        token
    }
}

/// Uniform in `[0, 1)`, of the token `at` of its row.
fn unit(seed: u64, at: u64, what: u64) -> f64 {
    (mix_all(&[seed, at, what]) >> 11) as f64 / (1u64 << 53) as f64
}

/// The chance that a span begins at a unit with which a unit is in any with probability `p`. `lengths[n - 1]` is that of a
/// span of `n` units or fewer.
fn begins(p: f64, lengths: &[f64]) -> f64 {
    let in_none = |q: f64| -> f64 {
        let shorter = [0.0].into_iter().chain(lengths.iter().copied());
        let reaches = shorter.take(lengths.len()).map(|shorter| 1.0 - shorter);
        reaches.map(|reaches| 1.0 - q * reaches).product()
    };
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..64 {
        let middle = (low + high) / 2.0;
        if in_none(middle) > 1.0 - p {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use tt_data::Tokenizer;

    use super::*;

    fn hide(mlm_probability: f64, max_ngrams: usize, whole_words: bool) -> Hide {
        let tokenizer = Tokenizer::stand_in().unwrap();
        let options = HideOptions {
            mlm_probability,
            mask_replace_prob: 0.8,
            random_replace_prob: 0.1,
            whole_words,
            max_ngrams,
        };
        Hide::new(
            &options,
            Words::of(&tokenizer),
            tokenizer.mask_id().unwrap(),
        )
    }

    /// Bytes as tokens, 0 is the end of a text.
    fn tokens(text: &str) -> Vec<u32> {
        text.bytes().map(|byte| 1 + u32::from(byte)).collect()
    }

    /// The tokens after hiding, and the labels.
    fn hidden(hide: &Hide, seed: u64, ids: &[u32]) -> (Vec<u32>, Vec<i64>) {
        let mut labels: Vec<i64> = ids.iter().map(|&id| id.into()).collect();
        let mut ids = ids.to_vec();
        hide.hide((seed, 0), &mut Place::default(), &mut ids, &mut labels);
        (ids, labels)
    }

    /// Shares of `count`, within four deviations.
    #[track_caller]
    fn assert_share(found: usize, count: usize, expected: f64, spread: f64) {
        let deviation = spread * (expected * (1.0 - expected) / count as f64).sqrt();
        let share = found as f64 / count as f64;
        assert!(
            (share - expected).abs() < 4.0 * deviation,
            "{share} of {count}, expected {expected}"
        );
    }

    /// As in the paper: of all hidden ones and not of what earlier draws have left, which would make the last share 18 %.
    #[test]
    fn fifteen_of_a_hundred_are_hidden_eighty_ten_and_ten_by_mask_another_and_themselves() {
        let ids = vec![100; 200_000];
        let (after, labels) = hidden(&hide(0.15, 1, false), 7, &ids);
        let targets = labels.iter().filter(|label| **label != IGNORE).count();
        assert_share(targets, ids.len(), 0.15, 1.0);
        let [mut masks, mut same, mut random] = [0; 3];
        for (id, label) in after.iter().zip(&labels) {
            match (*id, *label) {
                (100, IGNORE) => {}
                (257, 100) => masks += 1,
                (100, 100) => same += 1,
                (1..=256, 100) => random += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_share(masks, targets, 0.8, 1.0);
        // One in 256 of the random ones is the token itself.
        assert_share(random, targets, 0.1 * 255.0 / 256.0, 1.0);
        assert_share(same, targets, 0.1 + 0.1 / 256.0, 1.0);
    }

    /// No place is hidden more often than another, whatever the spans: the first units of a text are not left out.
    #[test]
    fn spans_hide_as_much_as_they_are_asked_to_at_every_place() {
        for (p, max_ngrams) in [(0.15, 3), (0.15, 10), (0.5, 4), (1.0, 3)] {
            let hide = hide(p, max_ngrams, false);
            let ids = vec![100; 12];
            let mut counts = [0; 12];
            let trials = 20_000;
            let mut longest = 0;
            for seed in 0..trials {
                let (_, labels) = hidden(&hide, seed, &ids);
                let mut run = 0;
                for (count, label) in counts.iter_mut().zip(labels) {
                    let is_hidden = label != IGNORE;
                    *count += usize::from(is_hidden);
                    run = if is_hidden { run + 1 } else { 0 };
                    longest = longest.max(run);
                }
            }
            for count in counts {
                if p == 1.0 {
                    assert_eq!(count, trials as usize);
                } else {
                    assert_share(count, trials as usize, p, 1.0);
                }
            }
            assert!(longest >= max_ngrams, "{longest} of {max_ngrams}");
        }
    }

    #[test]
    fn a_word_is_hidden_whole_or_not_at_all() {
        let text = "A little bear said: don't stop at 1024! ".repeat(200);
        let ids = tokens(&text);
        let (_, labels) = hidden(&hide(0.3, 1, true), 3, &ids);
        let mut words = 0;
        let mut at = 0;
        for word in text.split_inclusive(|c: char| !c.is_alphanumeric()) {
            let end = at + word.trim_end_matches(|c: char| !c.is_alphanumeric()).len();
            let of_word = labels[at..end].iter().filter(|label| **label != IGNORE);
            let count = of_word.count();
            assert!(count == 0 || count == end - at, "{word:?}: {count}");
            words += usize::from(count > 1);
            at += word.len();
        }
        assert!(words > 300, "{words}");
        let whole = labels.iter().filter(|label| **label != IGNORE).count();
        assert!((0.2..0.4).contains(&(whole as f64 / ids.len() as f64)));
    }

    #[test]
    fn what_is_special_or_has_no_label_is_never_hidden() {
        let hide = hide(1.0, 3, true);
        let mut ids = [tokens("ab c"), vec![0, 0], tokens("de"), vec![257]].concat();
        let before = ids.clone();
        let mut labels: Vec<i64> = ids.iter().map(|&id| id.into()).collect();
        labels[1] = IGNORE;
        hide.hide((1, 0), &mut Place::default(), &mut ids, &mut labels);
        let is_hidden: Vec<bool> = labels.iter().map(|label| *label != IGNORE).collect();
        let [t, f] = [true, false];
        assert_eq!(is_hidden, [t, f, t, t, f, f, t, t, f]);
        for i in [1, 4, 5, 8] {
            assert_eq!(ids[i], before[i]);
        }
    }

    /// Nor is one put in the place of another: a padding token in the middle of a text ends it, for what reads it back.
    #[test]
    fn what_stands_in_is_never_special_but_for_the_mask() {
        let tokenizer = Tokenizer::stand_in().unwrap();
        let options = HideOptions {
            mlm_probability: 1.0,
            mask_replace_prob: 0.0,
            random_replace_prob: 1.0,
            whole_words: false,
            max_ngrams: 1,
        };
        let hide = Hide::new(&options, Words::of(&tokenizer), 257);
        let (after, _) = hidden(&hide, 0, &vec![100; 20_000]);
        assert!(after.iter().all(|id| (1..=256).contains(id)));
        let mut seen: Vec<_> = after;
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 256);
    }

    #[test]
    fn rows_hidden_in_parts_of_any_length_are_hidden_alike() {
        let text = "One bear, two pears and 1234 kites. \n".repeat(12);
        let ids = [tokens(&text), vec![0], tokens(&text)].concat();
        for whole_words in [false, true] {
            let hide = hide(0.4, 5, whole_words);
            let whole = hidden(&hide, 11, &ids);
            for step in [1, 2, 7, 100] {
                let mut labels: Vec<i64> = ids.iter().map(|&id| id.into()).collect();
                let mut parts = ids.clone();
                let (mut bits, mut first) = (0, 0);
                for (ids, labels) in parts.chunks_mut(step).zip(labels.chunks_mut(step)) {
                    let mut place = Place::from_bits(bits);
                    hide.hide((11, first), &mut place, ids, labels);
                    bits = place.to_bits();
                    first += ids.len() as u64;
                }
                assert_eq!((parts, labels), whole, "{step}");
            }
            assert_ne!(hidden(&hide, 12, &ids), whole, "another seed");
        }
    }
}
