//! What is trained: the shape of a Qwen2 model with tied embeddings, and of its one batch.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

/// Under the names of Hugging Face's config, so that its classes take them as they are.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shape {
    #[serde(rename = "num_hidden_layers")]
    pub layers: usize,
    #[serde(rename = "hidden_size")]
    pub hidden: usize,
    #[serde(rename = "num_attention_heads")]
    pub heads: usize,
    #[serde(rename = "num_key_value_heads")]
    pub kv_heads: usize,
    #[serde(rename = "intermediate_size")]
    pub intermediate: usize,
    #[serde(rename = "vocab_size")]
    pub vocab: usize,
    #[serde(skip)]
    pub batch: usize,
    #[serde(rename = "max_position_embeddings")]
    pub seq: usize,
}

/// As `configs/bench/s.yaml`, 5.1 M parameters.
const S: Shape = Shape {
    layers: 4,
    hidden: 256,
    heads: 4,
    kv_heads: 2,
    intermediate: 704,
    vocab: 8192,
    batch: 8,
    seq: 256,
};

/// As `configs/bench/m.yaml`, 26.8 M.
const M: Shape = Shape {
    layers: 8,
    hidden: 512,
    heads: 8,
    kv_heads: 2,
    intermediate: 1408,
    vocab: 8192,
    batch: 4,
    seq: 512,
};

/// As `configs/bench/l.yaml`, 88 M.
const L: Shape = Shape {
    layers: 4,
    hidden: 896,
    heads: 14,
    kv_heads: 2,
    intermediate: 4864,
    vocab: 32000,
    batch: 2,
    seq: 512,
};

/// As SmolLM2 135M, but for Qwen2's biases.
const SMOLLM2: Shape = Shape {
    layers: 30,
    hidden: 576,
    heads: 9,
    kv_heads: 3,
    intermediate: 1536,
    vocab: 49152,
    batch: 2,
    seq: 256,
};

impl FromStr for Shape {
    type Err = anyhow::Error;

    /// `s`, `m`, `l` or `smollm2`, with changes behind it: `m,seq=1024,batch=2`.
    fn from_str(text: &str) -> Result<Self> {
        let mut words = text.split(',');
        let mut shape = match words.next() {
            Some("s") => S,
            Some("m") => M,
            Some("l") => L,
            Some("smollm2") => SMOLLM2,
            other => bail!(
                "`{}`: the shapes are s, m, l and smollm2",
                other.unwrap_or_default()
            ),
        };
        for word in words {
            let (key, value) = word
                .split_once('=')
                .with_context(|| format!("`{word}`: no `=`"))?;
            let field = match key {
                "layers" => &mut shape.layers,
                "hidden" => &mut shape.hidden,
                "heads" => &mut shape.heads,
                "kv_heads" => &mut shape.kv_heads,
                "intermediate" => &mut shape.intermediate,
                "vocab" => &mut shape.vocab,
                "batch" => &mut shape.batch,
                "seq" => &mut shape.seq,
                _ => bail!(
                    "unknown key `{key}`; keys: layers, hidden, heads, kv_heads, intermediate, vocab, batch, seq"
                ),
            };
            *field = value
                .parse()
                .with_context(|| format!("`{word}`: not a number"))?;
        }
        ensure!(shape.tokens() > 0, "`{text}`: there is nothing to measure");
        ensure!(
            shape.kv_heads > 0
                && shape.heads > 0
                && shape.heads.is_multiple_of(shape.kv_heads)
                && shape.hidden.is_multiple_of(2 * shape.heads),
            "`{text}`: heads must divide hidden into even parts, and kv_heads must divide heads"
        );
        Ok(shape)
    }
}

impl Shape {
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

    /// Token ids `[batch * seq]`, the same for every side.
    pub fn ids(&self) -> Vec<u32> {
        let mut state = 1u64;
        let next = || {
            // The multiplier and increment of Knuth's MMIX generator.
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            ((state >> 33) % self.vocab as u64) as u32
        };
        std::iter::repeat_with(next).take(self.tokens()).collect()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "{:.1} M parameters: layers={} hidden={} heads={} kv_heads={} intermediate={} vocab={}; batch={} seq={}",
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
    fn what_stands_behind_a_name_changes_its_shape() {
        let shape: Shape = "m,layers=2,seq=64".parse().unwrap();
        let expected = Shape {
            layers: 2,
            seq: 64,
            ..M
        };
        assert_eq!(shape, expected);
    }

    #[test]
    fn an_unknown_key_or_a_shape_that_does_not_divide_is_an_error() {
        for text in [
            "",
            "xl",
            "s,depth=2",
            "s,layers",
            "s,layers=two",
            "s,heads=7",
            "s,kv_heads=0",
            "s,batch=0",
        ] {
            assert!(text.parse::<Shape>().is_err(), "{text}");
        }
    }
}
