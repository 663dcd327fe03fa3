//! What a model has to beat: the loss of two models that only count, in nats per token.

use std::collections::HashMap;

use crate::batch::Batch;

/// Over the validation targets, at the positions that the loss counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Baselines {
    /// Entropy of the validation targets under their own frequencies: the best that a model can do
    /// which looks at nothing.
    pub unigram_nats: f64,
    /// The share of the most frequent target: the most that such a model can have right.
    pub unigram_accuracy: f64,
    /// Cross-entropy under a bigram model counted on training data: about the best that a model
    /// can do which looks at one token.
    pub bigram_nats: f64,
}

/// The targets' own frequencies: the best that a model can do which looks at nothing.
pub(crate) struct Unigram {
    /// Entropy, in nats per token.
    pub(crate) nats: f64,
    /// Share of the most frequent one.
    pub(crate) accuracy: f64,
}

impl Unigram {
    pub(crate) fn of(batches: &[Batch], vocab_size: usize) -> Self {
        let mut counts = vec![0_u64; vocab_size];
        for (_, target) in batches.iter().flat_map(Batch::targets) {
            counts[target as usize] += 1;
        }
        let total = counts.iter().sum::<u64>() as f64;
        let seen = counts.into_iter().filter(|&count| count > 0);
        let shares = seen.map(|count| count as f64 / total);
        Self {
            nats: shares.clone().map(|p| -p * p.ln()).sum(),
            accuracy: shares.fold(0.0, f64::max),
        }
    }
}

/// Counts of neighbouring tokens.
///
/// A pair's probability is interpolated with that of its second token, the more the more different
/// tokens have come after the first; the second token's own is one added to each count.
/// Source: Witten and Bell 1991, as in Chen and Goodman 1999, section 2.4.
pub(crate) struct Bigrams {
    pairs: HashMap<(u32, u32), u64>,
    /// Targets after a token, and how many different ones.
    after: Vec<(u64, u64)>,
    counts: Vec<u64>,
    total: u64,
}

impl Bigrams {
    pub(crate) fn new(vocab_size: usize) -> Self {
        Self {
            pairs: HashMap::new(),
            after: vec![(0, 0); vocab_size],
            counts: vec![0; vocab_size],
            total: 0,
        }
    }

    pub(crate) fn add(&mut self, batch: &Batch) {
        for (previous, target) in batch.targets() {
            let pair = self.pairs.entry((previous, target)).or_default();
            let (tokens, kinds) = &mut self.after[previous as usize];
            *tokens += 1;
            *kinds += u64::from(*pair == 0);
            *pair += 1;
            self.counts[target as usize] += 1;
            self.total += 1;
        }
    }

    fn probability(&self, previous: u32, target: u32) -> f64 {
        let vocab_size = self.counts.len() as f64;
        let unigram = (self.counts[target as usize] + 1) as f64 / (self.total as f64 + vocab_size);
        let (tokens, kinds) = self.after[previous as usize];
        if tokens == 0 {
            return unigram;
        }
        let pair = self.pairs.get(&(previous, target)).copied().unwrap_or(0);
        (pair as f64 + kinds as f64 * unigram) / (tokens + kinds) as f64
    }

    /// Cross-entropy of the targets, in nats per token.
    pub(crate) fn nats(&self, batches: &[Batch]) -> f64 {
        let (mut nats, mut total) = (0.0, 0_u64);
        for (previous, target) in batches.iter().flat_map(Batch::targets) {
            nats -= self.probability(previous, target).ln();
            total += 1;
        }
        nats / total as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::Example;
    use crate::spec::BatchSpec;

    /// One row, one segment.
    fn batch(ids: &[u32]) -> Batch {
        let mut example = Example {
            input_ids: ids.to_vec(),
            ..Example::default()
        };
        example.label_all();
        let mut batch = Batch::default();
        batch.clear((1, ids.len()), 0, &BatchSpec::default());
        batch.put(0, (1, 0), &example, 0..ids.len());
        batch
    }

    #[test]
    fn unigrams_have_the_entropy_and_the_greatest_share_of_the_targets() {
        // Targets, without the first token: 1, 1, 2, 3.
        let expected = 0.5 * 2_f64.ln() + 0.5 * 4_f64.ln();
        let Unigram { nats, accuracy } = Unigram::of(&[batch(&[9, 1, 1, 2, 3])], 10);
        assert!((nats - expected).abs() < 1e-12, "{nats}");
        assert!((accuracy - 0.5).abs() < 1e-12, "{accuracy}");
    }

    #[test]
    fn bigram_probabilities_after_a_token_sum_to_one() {
        let mut bigrams = Bigrams::new(5);
        bigrams.add(&batch(&[0, 1, 2, 1, 2, 1, 3]));
        for previous in 0..5 {
            let sum: f64 = (0..5)
                .map(|target| bigrams.probability(previous, target))
                .sum();
            assert!((sum - 1.0).abs() < 1e-12, "after {previous}: {sum}");
        }
    }

    #[test]
    fn bigrams_know_what_comes_after_what() {
        let ids: Vec<u32> = (0..400).map(|i| i % 4).collect();
        let mut bigrams = Bigrams::new(4);
        bigrams.add(&batch(&ids));
        let validation = [batch(&ids[..40])];
        assert!(bigrams.nats(&validation) < 0.05);
        assert!((Unigram::of(&validation, 4).nats - 4_f64.ln()).abs() < 0.01);
    }
}
