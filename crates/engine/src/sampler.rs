//! Choosing the next token from logits: greedily, or by temperature and nucleus (top-p).
//!
//! Source for the nucleus: Holtzman et al. 2020, arXiv:1904.09751.

use tt_tensor::Seed;

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampling {
    /// The most likely token; the first one at a tie.
    Greedy,
    /// From the smallest set of tokens whose probability reaches `top_p`, after division of the logits by
    /// `temperature`, which is above 0.
    Nucleus { temperature: f32, top_p: f32 },
}

/// A sequence of choices.
pub struct Sampler {
    sampling: Sampling,
    seed: Seed,
    chosen: u64,
}

impl Sampler {
    pub fn new(sampling: Sampling, seed: Seed) -> Self {
        Self {
            sampling,
            seed,
            chosen: 0,
        }
    }

    /// A token id for `logits` `[vocab]`, which is not empty.
    pub fn choose(&mut self, logits: &[f32]) -> u32 {
        let draw = self.seed.fold(self.chosen).unit();
        self.chosen += 1;
        match self.sampling {
            Sampling::Greedy => argmax(logits),
            Sampling::Nucleus { temperature, top_p } => nucleus(logits, temperature, top_p, draw),
        }
    }
}

fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = id;
        }
    }
    best as u32
}

fn nucleus(logits: &[f32], temperature: f32, top_p: f32, draw: f64) -> u32 {
    let max = logits[argmax(logits) as usize];
    let weight = |logit: f32| f64::from((logit - max) / temperature).exp();
    let mut ranked: Vec<(usize, f64)> = logits.iter().map(|&l| weight(l)).enumerate().collect();
    // Stable: tokens of equal probability stay in the order of their ids.
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    let total: f64 = ranked.iter().map(|(_, weight)| weight).sum();
    let mut kept = 0.0;
    let within = ranked
        .iter()
        .take_while(|(_, weight)| {
            let before = kept;
            kept += weight;
            before < f64::from(top_p) * total
        })
        .count()
        .max(1);
    ranked.truncate(within);
    let mut left = draw * ranked.iter().map(|(_, weight)| weight).sum::<f64>();
    for (id, weight) in &ranked {
        left -= weight;
        if left < 0.0 {
            return *id as u32;
        }
    }
    ranked[within - 1].0 as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices(sampling: Sampling, logits: &[f32], count: usize) -> Vec<u32> {
        let mut sampler = Sampler::new(sampling, Seed::new(1));
        (0..count).map(|_| sampler.choose(logits)).collect()
    }

    #[test]
    fn greedy_takes_the_first_of_the_largest() {
        assert_eq!(choices(Sampling::Greedy, &[0.0, 3.0, 3.0], 2), [1, 1]);
    }

    #[test]
    fn nucleus_leaves_out_the_tail() {
        let sampling = Sampling::Nucleus {
            temperature: 1.0,
            top_p: 0.6,
        };
        // Probabilities 0.5, 0.25, 0.125, 0.125: the first two reach 0.6.
        let logits = [4f32, 2.0, 1.0, 1.0].map(f32::ln);
        let chosen = choices(sampling, &logits, 3000);
        assert!(chosen.iter().all(|&id| id < 2));
        let share = chosen.iter().filter(|&&id| id == 0).count() as f64 / 3000.0;
        assert!((share - 2.0 / 3.0).abs() < 0.05, "{share}");
    }

    #[test]
    fn a_temperature_divides_the_logits_however_large_they_are() {
        let sampling = Sampling::Nucleus {
            temperature: 2.0,
            top_p: 1.0,
        };
        // Odds of 9 to 1, of which a temperature of 2 takes the root.
        let logits = [1000.0, 1000.0 + 9f32.ln()];
        let chosen = choices(sampling, &logits, 3000);
        let share = chosen.iter().filter(|&&id| id == 1).count() as f64 / 3000.0;
        assert!((share - 0.75).abs() < 0.05, "{share}");
    }

    #[test]
    fn a_nucleus_ends_where_it_reaches_top_p_and_a_draw_falls_to_the_token_that_it_lies_in() {
        let logits = [0.0; 4];
        let of = |draw| nucleus(&logits, 1.0, 0.5, draw);
        assert_eq!([0.0, 0.49, 0.5, 0.99].map(of), [0, 0, 1, 1]);
        // What rounding leaves over is the last one's.
        assert_eq!(of(1.0), 1);
    }

    #[test]
    fn same_seed_gives_the_same_choices() {
        let sampling = Sampling::Nucleus {
            temperature: 0.8,
            top_p: 1.0,
        };
        let logits = [0.1, 0.4, 0.2, 0.3];
        assert_eq!(
            choices(sampling, &logits, 50),
            choices(sampling, &logits, 50)
        );
    }
}
