//! BERT as an outside crate would write it: attention both ways with padding, LayerNorm after each residual sum, token
//! types, and a head with a transform and a bias.
//!
//! Source: Devlin et al. 2018, arXiv:1810.04805; transformers' `BertForMaskedLM`.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tt_engine::{Limits, Sampler, Sampling, generate};
use tt_models::{Error, Input, Model, ModelConfig, Result};
use tt_nn::{
    Activation, AttentionMask, Embedding, Forward, Init, LayerNorm, Linear, ModulePath, ParamKind,
    ParamSpec, PositionEmbedding, Positions, attend,
};
use tt_tensor::{CrossEntropyParams, Device, Seed, Tape, Tensor, fused};
use tt_train::{IGNORE, Trainer};

use crate::batches::flat;
use crate::check::Check;

/// Keys of `config.json`.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
struct BertConfig {
    vocab_size: usize,
    type_vocab_size: usize,
    max_position_embeddings: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    layer_norm_eps: f64,
    initializer_range: f64,
}

struct Bert {
    config: BertConfig,
    words: Embedding,
    types: Embedding,
    positions: PositionEmbedding,
    norm: LayerNorm,
    blocks: Vec<Block>,
    /// Of the head.
    transform: (Linear, LayerNorm),
    head: ModulePath,
}

#[derive(Clone)]
struct Block {
    path: ModulePath,
    heads: usize,
    attention: ModulePath,
    qkv: [Linear; 3],
    attention_output: (Linear, LayerNorm),
    intermediate: Linear,
    output: (Linear, LayerNorm),
}

impl ModelConfig for BertConfig {
    fn build(self) -> Result<Arc<dyn Model>> {
        let (hidden, std) = (self.hidden_size, self.initializer_range as f32);
        let linear = |path, inputs, outputs| {
            let linear = Linear::new(path, inputs, outputs).with_std(std);
            linear.with_bias()
        };
        let norm = |path| LayerNorm::new(path, hidden, self.layer_norm_eps);
        let joined = |path: ModulePath, inputs| {
            let dense = linear(path.join("dense"), inputs, hidden);
            (dense, norm(path.join("LayerNorm")))
        };
        let root = ModulePath::root().join("bert");
        let block = |layer| {
            let path = root.join("encoder.layer").join(layer);
            let attention = path.join("attention.self");
            let projection = |name| linear(attention.join(name), hidden, hidden);
            Block {
                heads: self.num_attention_heads,
                qkv: ["query", "key", "value"].map(projection),
                attention_output: joined(path.join("attention.output"), hidden),
                intermediate: linear(
                    path.join("intermediate.dense"),
                    hidden,
                    self.intermediate_size,
                ),
                output: joined(path.join("output"), self.intermediate_size),
                attention,
                path,
            }
        };
        let embeddings = root.join("embeddings");
        let table = |name, rows| Embedding::new(embeddings.join(name), rows, hidden, std);
        let positions = embeddings.join("position_embeddings");
        let head = ModulePath::root().join("cls.predictions");
        Ok(Arc::new(Bert {
            words: table("word_embeddings", self.vocab_size),
            types: table("token_type_embeddings", self.type_vocab_size),
            positions: PositionEmbedding::new(positions, self.max_position_embeddings, hidden, std),
            norm: norm(embeddings.join("LayerNorm")),
            blocks: (0..self.num_hidden_layers).map(block).collect(),
            transform: joined(head.join("transform"), hidden),
            head,
            config: self,
        }))
    }
}

impl Block {
    fn params(&self) -> Vec<ParamSpec> {
        let linear = self.qkv.iter().chain([&self.intermediate]);
        let mut params: Vec<_> = linear.flat_map(Linear::params).collect();
        for (dense, norm) in [&self.attention_output, &self.output] {
            params.extend([dense.params(), norm.params()].concat());
        }
        params
    }

    /// `x` `[B, T, hidden]` to the same shape, f32.
    fn forward(&self, fwd: &Forward, x: &Tensor, positions: &Positions) -> tt_nn::Result<Tensor> {
        let [b, t, hidden] = x.dims_of("bert")?;
        let heads = |linear: &Linear| -> tt_nn::Result<Tensor> {
            let y = linear.forward(fwd, x)?;
            Ok(y.reshape((b, t, self.heads, hidden / self.heads))?) // [B, T, H, D]
        };
        let [query, key, value] = &self.qkv;
        let qkv = [heads(query)?, heads(key)?, heads(value)?];
        let mask = AttentionMask::BIDIRECTIONAL;
        let y = attend(fwd, &self.attention, qkv, positions, mask)?.reshape((b, t, hidden))?;
        let (dense, norm) = &self.attention_output;
        let x = norm.forward_f32(fwd, &x.add(&dense.forward(fwd, &y)?)?)?;
        let y = Activation::Gelu.apply(&self.intermediate.forward(fwd, &x)?)?;
        let (dense, norm) = &self.output;
        norm.forward_f32(fwd, &x.add(&dense.forward(fwd, &y)?)?)
    }
}

impl Model for Bert {
    fn params(&self) -> Vec<ParamSpec> {
        let mut params = [self.words.params(), self.types.params()].concat();
        params.extend([self.positions.params(), self.norm.params()].concat());
        params.extend(self.blocks.iter().flat_map(Block::params));
        let (dense, norm) = &self.transform;
        params.extend([dense.params(), norm.params()].concat());
        params.push(ParamSpec {
            path: self.head.join("bias").to_string(),
            shape: vec![self.config.vocab_size],
            init: Init::Zeros,
            kind: ParamKind::Vector,
        });
        params
    }

    fn hidden_states(&self, fwd: &Forward, input: &Input) -> Result<Tensor> {
        let words = self.words.forward(fwd, &input.input_ids)?; // [B, T, hidden]
        let mut x = words.add(&self.positions.forward(fwd, &input.positions)?)?;
        let types = input.field("token_type_ids").expect("the test gives them");
        x = x.add(&self.types.forward(fwd, types)?)?;
        x = self.norm.forward_f32(fwd, &x)?;
        for block in self.blocks.clone() {
            let (path, positions) = (block.path.clone(), input.positions.clone());
            x = fwd.module(&path, "BertLayer", &x, move |fwd, x| {
                block.forward(fwd, x, &positions)
            })?;
        }
        let (dense, norm) = &self.transform;
        let x = Activation::Gelu.apply(&dense.forward(fwd, &x)?)?;
        Ok(norm.forward(fwd, &x)?)
    }

    fn head(&self, _: &Forward) -> Result<Tensor> {
        Err(Error::MoreThanAWeight)
    }

    fn output(&self, fwd: &Forward) -> Result<fused::Head> {
        Ok(fused::Head {
            weight: self.words.weight(fwd)?,
            bias: Some(fwd.param(&self.head, "bias")?),
        })
    }

    fn is_causal(&self) -> bool {
        false
    }

    fn blocks(&self) -> Vec<ModulePath> {
        self.blocks.iter().map(|block| block.path.clone()).collect()
    }

    fn vocab_size(&self) -> usize {
        self.config.vocab_size
    }

    fn max_positions(&self) -> usize {
        self.config.max_position_embeddings
    }

    fn hf_config(&self) -> Value {
        let mut config = json!(self.config);
        config["architectures"] = json!(["BertForMaskedLM"]);
        config["model_type"] = json!("bert");
        config
    }
}

fn open() -> Check {
    Check::open_model::<BertConfig>("bert_mlm", Device::Cpu)
}

/// The case's batch, padding as a segment of its own, and its labels.
fn inputs(check: &Check) -> (Input, Tensor) {
    let tensors = check.golden.tensors("inputs");
    let integers = |name: &str| Tensor::from_candle(&tensors[name], check.device).unwrap();
    let ids = |name: &str| integers(name).to_dtype(tt_tensor::DType::U32).unwrap();
    let mut input = Input::rows(ids("input_ids")).unwrap();
    input.positions.segment_ids = Some(ids("attention_mask"));
    input.fields = vec![("token_type_ids", ids("token_type_ids"))];
    (input, integers("labels"))
}

#[test]
fn golden_bert_mlm() {
    let check = open();
    check.decay_rule();
    let (params, (input, labels)) = (check.params(), inputs(&check));

    let fwd = Forward::inference(&params);
    let logits = check.model.logits(&fwd, &input).unwrap();
    let logits = logits.to_vec::<f32>().unwrap();
    let expected = flat(&check.golden.tensors("expected")["logits"]);
    let mask = input.positions.segment_ids.as_ref().unwrap();
    let vocab = check.model.vocab_size();
    let rows = logits.chunks(vocab).zip(expected.chunks(vocab));
    let mask = mask.to_vec::<u32>().unwrap();
    let real = rows.zip(mask).filter(|(_, is_real)| *is_real == 1);
    let differences = real.flat_map(|((ours, theirs), _)| ours.iter().zip(theirs));
    let worst = differences.fold(0f32, |worst, (a, b)| worst.max((a - b).abs()));
    let allowed = check.case.tolerances.logits_max_abs.unwrap();
    assert!(f64::from(worst) <= allowed, "logits differ by {worst:.2e}");

    let tape = Tape::new();
    let fwd = Forward::training(&params, &tape, Seed::new(0));
    let hidden = check.model.hidden_states(&fwd, &input).unwrap();
    let head = check.model.output(&fwd).unwrap();
    let plain = CrossEntropyParams {
        ignore_index: IGNORE,
        label_smoothing: 0.0,
        z_loss: 0.0,
    };
    let loss = fused::linear_cross_entropy(&hidden, &head, &labels, plain).unwrap();
    tape.backward(&loss.sum).unwrap();
    let [sum, count] = [loss.sum, loss.count].map(|it| it.to_scalar::<f32>().unwrap());
    check.loss_and_gradients(&params, sum, count);
}

#[test]
fn what_a_model_that_looks_ahead_cannot_do_is_refused_by_name() {
    let (check, mut training) = (open(), open().training());
    let mut sampler = Sampler::new(Sampling::Greedy, Seed::new(0));
    let limits = Limits {
        max_new_tokens: 4,
        ends: Vec::new(),
    };
    let (model, params) = (&*check.model, check.params());
    let refused = generate(model, &params, &[1, 2], &mut sampler, &limits);
    let message = refused.unwrap_err().to_string();
    assert_eq!(message, "BertForMaskedLM cannot continue a text");

    let refused = check.trainer().post_init(&mut training);
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("lm_trainer.LMTrainer"), "{message}");
    // A loss that knows no bias does not leave it out unseen.
    assert!(model.head(&Forward::inference(&params)).is_err());
}
