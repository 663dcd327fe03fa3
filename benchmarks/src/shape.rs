//! What is trained: the model's shape, the batch and the number of steps, from `key=value` arguments.

use std::fmt;

use anyhow::{Context, Result, bail, ensure};

/// The defaults are those of `configs/model/size/small.yaml`, at 1,024 tokens a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub intermediate: usize,
    pub vocab: usize,
    pub batch: usize,
    pub seq: usize,
    pub warmup: usize,
    pub steps: usize,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            layers: 3,
            hidden: 512,
            heads: 8,
            kv_heads: 4,
            intermediate: 1024,
            vocab: 1024,
            batch: 4,
            seq: 256,
            warmup: 3,
            steps: 15,
        }
    }
}

impl Shape {
    pub fn from_args(args: impl Iterator<Item = String>) -> Result<Self> {
        let mut shape = Self::default();
        for arg in args {
            let (key, value) = arg
                .split_once('=')
                .with_context(|| format!("`{arg}`: no `=`"))?;
            let field = match key {
                "layers" => &mut shape.layers,
                "hidden" => &mut shape.hidden,
                "heads" => &mut shape.heads,
                "kv_heads" => &mut shape.kv_heads,
                "intermediate" => &mut shape.intermediate,
                "vocab" => &mut shape.vocab,
                "batch" => &mut shape.batch,
                "seq" => &mut shape.seq,
                "warmup" => &mut shape.warmup,
                "steps" => &mut shape.steps,
                _ => bail!(
                    "unknown key `{key}`; keys: layers, hidden, heads, kv_heads, intermediate, vocab, batch, \
                     seq, warmup, steps"
                ),
            };
            *field = value
                .parse()
                .with_context(|| format!("`{arg}`: not a number"))?;
        }
        ensure!(
            shape.steps > 0 && shape.tokens() > 0,
            "there is nothing to measure"
        );
        ensure!(
            shape.kv_heads > 0
                && shape.heads.is_multiple_of(shape.kv_heads)
                && shape.heads > 0
                && shape.hidden.is_multiple_of(2 * shape.heads),
            "heads must divide hidden into even parts, and kv_heads must divide heads"
        );
        Ok(shape)
    }

    pub fn head_dim(&self) -> usize {
        self.hidden / self.heads
    }

    /// Tokens a step.
    pub fn tokens(&self) -> usize {
        self.batch * self.seq
    }

    /// Parameters, the head tied to the embedding.
    pub fn parameters(&self) -> usize {
        let kv = self.kv_heads * self.head_dim();
        let attention = 2 * self.hidden * self.hidden + 2 * self.hidden * kv + self.hidden + 2 * kv;
        let mlp = 3 * self.hidden * self.intermediate;
        self.vocab * self.hidden + self.layers * (attention + mlp + 2 * self.hidden) + self.hidden
    }

    /// Token ids `[batch * seq]` and, one further on in the same sequence of numbers, their labels: the same for every side.
    pub fn ids_and_labels(&self) -> (Vec<u32>, Vec<u32>) {
        let mut state = 1u64;
        let mut next = || {
            // The multiplier and increment of Knuth's MMIX generator.
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            ((state >> 33) % self.vocab as u64) as u32
        };
        let numbers: Vec<u32> = (0..=self.tokens()).map(|_| next()).collect();
        (numbers[..self.tokens()].to_vec(), numbers[1..].to_vec())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "Qwen2, {:.1} M parameters: layers={} hidden={} heads={} kv_heads={} intermediate={} vocab={}; batch={} seq={}",
            self.parameters() as f64 / 1e6,
            self.layers,
            self.hidden,
            self.heads,
            self.kv_heads,
            self.intermediate,
            self.vocab,
            self.batch,
            self.seq,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_change_the_defaults() -> Result<()> {
        let shape = Shape::from_args(["layers=2".to_string(), "seq=64".to_string()].into_iter())?;
        assert_eq!(
            shape,
            Shape {
                layers: 2,
                seq: 64,
                ..Shape::default()
            }
        );
        Ok(())
    }

    #[test]
    fn an_unknown_key_or_a_shape_that_does_not_divide_is_an_error() {
        for arg in [
            "depth=2",
            "layers",
            "layers=two",
            "heads=7",
            "kv_heads=0",
            "steps=0",
        ] {
            assert!(
                Shape::from_args([arg.to_string()].into_iter()).is_err(),
                "{arg}"
            );
        }
    }
}
