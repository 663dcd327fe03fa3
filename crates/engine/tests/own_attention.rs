//! A model with attention of its own generates the same tokens whether it keeps a cache, does not, or only in a part.

use serde_json::{Value, json};
use tt_engine::{Limits, Sampler, Sampling, generate};
use tt_models::{Generation, Input, Model, Result};
use tt_nn::{Embedding, Forward, Linear, ModulePath, ParamSpec, ParamTree, PositionEmbedding};
use tt_tensor::{Device, Seed, Tensor};

const VOCAB: usize = 17;
const WIDTH: usize = 8;

/// Two blocks of attention by hand, on learned positions.
struct Toy {
    tokens: Embedding,
    positions: PositionEmbedding,
    blocks: Vec<Block>,
    generation: Generation,
}

#[derive(Clone)]
struct Block {
    path: ModulePath,
    qkv: [Linear; 3],
    keeps_cache: bool,
}

impl Toy {
    fn new(keep_cache: [bool; 2], generation: Generation) -> Self {
        let root = ModulePath::root();
        let block = |layer: usize| {
            let path = root.join("blocks").join(layer);
            let linear = |name| Linear::new(path.join(name), WIDTH, WIDTH).with_std(0.5);
            Block {
                qkv: ["q", "k", "v"].map(linear),
                keeps_cache: keep_cache[layer],
                path,
            }
        };
        Self {
            tokens: Embedding::new(root.join("tokens"), VOCAB, WIDTH, 1.0),
            positions: PositionEmbedding::new(root.join("positions"), 64, WIDTH, 1.0),
            blocks: (0..2).map(block).collect(),
            generation,
        }
    }

    fn params(&self) -> ParamTree {
        ParamTree::init(&Model::params(self), Seed::new(4), Device::Cpu).unwrap()
    }

    fn continues(&self, prompt: &[u32]) -> Vec<u32> {
        let mut sampler = Sampler::new(Sampling::Greedy, Seed::new(0));
        let limits = Limits {
            max_new_tokens: 24,
            ends: Vec::new(),
        };
        generate(self, &self.params(), prompt, &mut sampler, &limits).unwrap()
    }
}

impl Block {
    /// `x` `[B, T, WIDTH]` to the same shape: one head, scores held whole.
    fn forward(&self, fwd: &Forward, x: &Tensor) -> tt_nn::Result<Tensor> {
        let [b, t, _] = x.dims_of("toy")?;
        let project = |linear: &Linear| linear.forward(fwd, x)?.reshape((b, t, 1, WIDTH));
        let (q, k, v) = (
            project(&self.qkv[0])?,
            project(&self.qkv[1])?,
            project(&self.qkv[2])?,
        );
        let (k, v) = match fwd.cache().filter(|_| self.keeps_cache) {
            Some(cache) => cache.extend(&self.path, k, v)?, // [B, seen + T, 1, WIDTH]
            None => (k, v),
        };
        let keys = k.dims()[1];
        let rows = |tensor: &Tensor, len: usize| tensor.reshape((b, len, WIDTH));
        let scores = rows(&q, t)?.matmul(&rows(&k, keys)?.transpose(1, 2)?)?; // [B, T, keys]
        let hidden = |i| (0..keys).map(move |key| if key > i + keys - t { -1e9f32 } else { 0.0 });
        let mask: Vec<f32> = (0..t).flat_map(hidden).collect();
        let scores = scores.add(&Tensor::from_slice(&mask, (1, t, keys), x.device())?)?;
        Ok(x.add(&scores.softmax(2)?.matmul(&rows(&v, keys)?)?)?)
    }
}

impl Model for Toy {
    fn params(&self) -> Vec<ParamSpec> {
        let mut params = [self.tokens.params(), self.positions.params()].concat();
        let linear = self.blocks.iter().flat_map(|block| &block.qkv);
        params.extend(linear.flat_map(Linear::params));
        params
    }

    fn hidden_states(&self, fwd: &Forward, input: &Input) -> Result<Tensor> {
        let tokens = self.tokens.forward(fwd, &input.input_ids)?;
        let mut x = tokens.add(&self.positions.forward(fwd, &input.positions)?)?;
        for block in self.blocks.clone() {
            let path = block.path.clone();
            x = fwd.module(&path, "ToyBlock", &x, move |fwd, x| block.forward(fwd, x))?;
        }
        Ok(x)
    }

    fn head(&self, fwd: &Forward) -> Result<Tensor> {
        Ok(self.tokens.weight(fwd)?)
    }

    fn generation(&self) -> Generation {
        self.generation
    }

    fn blocks(&self) -> Vec<ModulePath> {
        self.blocks.iter().map(|block| block.path.clone()).collect()
    }

    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn max_positions(&self) -> usize {
        64
    }

    fn hf_config(&self) -> Value {
        json!({"architectures": ["ToyForCausalLM"]})
    }
}

#[test]
fn tokens_are_the_same_whatever_the_model_does_with_the_cache() {
    let prompt = [3, 1, 4, 1, 5];
    let expected = Toy::new([false, false], Generation::Recomputed).continues(&prompt);
    let mut distinct = expected.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert!(distinct.len() > 3, "tokens that tell: {expected:?}");
    for keep_cache in [[true, true], [false, false], [true, false], [false, true]] {
        let tokens = Toy::new(keep_cache, Generation::Cached).continues(&prompt);
        assert_eq!(tokens, expected, "cache kept by the blocks: {keep_cache:?}");
    }
}

#[test]
fn a_model_whose_cache_is_not_kept_would_lose_what_it_read() {
    let toy = Toy::new([false, false], Generation::Cached);
    let params = toy.params();
    let last = |fwd: &Forward, tokens: &[u32], past| {
        let ids = Tensor::from_slice(tokens, (1, tokens.len()), Device::Cpu).unwrap();
        let input = Input::continuing(ids, past).unwrap();
        let logits = toy.logits(fwd, &input).unwrap().to_vec::<f32>().unwrap();
        logits[logits.len() - VOCAB..].to_vec()
    };
    let fwd = Forward::inference(&params);
    let (whole, alone) = (last(&fwd, &[3, 1, 4], 0), last(&fwd, &[4], 2));
    let furthest = whole.iter().zip(&alone).map(|(a, b)| (a - b).abs());
    assert!(furthest.fold(0.0, f32::max) > 0.1);
}

#[test]
fn a_model_that_generates_nothing_is_refused_by_name() {
    let toy = Toy::new([true, true], Generation::Unable);
    let mut sampler = Sampler::new(Sampling::Greedy, Seed::new(0));
    let limits = Limits {
        max_new_tokens: 1,
        ends: Vec::new(),
    };
    let refused = generate(&toy, &toy.params(), &[1], &mut sampler, &limits);
    let message = refused.unwrap_err().to_string();
    assert_eq!(message, "ToyForCausalLM cannot continue a text");
}
