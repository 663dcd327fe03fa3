//! LoRA: a frozen linear layer plus a trainable product of two thin matrices.
//!
//! `y = W x + b + s B A dropout(x)`; `A` is `[r, in]`, `B` is `[out, r]`, both without bias; `s` is `lora_alpha / r`, or
//! `lora_alpha / sqrt(r)` with `use_rslora`. `A` starts uniform within `1 / sqrt(in)` and `B` at zero, so that training
//! starts from the base model. Names and formulas are peft's: the weights of `q_proj` are `q_proj.lora_A.weight` and
//! `q_proj.lora_B.weight`.
//! Source: Hu et al. 2021, arXiv:2106.09685; Kalajdzievski 2023, arXiv:2312.03732.

use std::collections::HashSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tt_nn::{Adapter, Forward, Init, ModulePath, ParamKind, ParamSpec, ParamTree};
use tt_tensor::{Tensor, fused};

use crate::error::Result;
use crate::targets::{Layer, Targets};

const A: &str = "lora_A";
const B: &str = "lora_B";

/// `model.adapter`: low-rank adapters on linear layers. Keys are named as in peft's `LoraConfig`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoraConfig {
    /// Which linear layers get one: `all-linear` (all but the output head), or names (`q_proj`) and globs over the last
    /// parts of module paths (`layers.*.mlp.*`), one or a list.
    pub target_modules: Targets,
    /// Rank: inner width of the product.
    #[serde(default = "default_r")]
    #[schemars(range(min = 1))]
    pub r: usize,
    /// The product is scaled by this over `r`.
    #[serde(default = "default_lora_alpha")]
    pub lora_alpha: f64,
    /// Scales by `lora_alpha` over the root of `r` instead, so that a larger rank learns as fast.
    #[serde(default)]
    pub use_rslora: bool,
    /// Dropout of what the adapter reads, while training.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.999))]
    pub lora_dropout: f64,
    /// Which biases of the base model are trained as well.
    #[serde(default)]
    pub bias: Bias,
    /// An adapter to start from: a run, a folder in peft's layout or `user/name@revision` on the Hub. Its own config then decides rank, scale and layers.
    #[serde(default)]
    pub adapter_url: Option<String>,
    /// Number format that the frozen weights are held in.
    #[serde(default)]
    pub base_dtype: BaseDType,
}

fn default_r() -> usize {
    8
}

fn default_lora_alpha() -> f64 {
    16.0
}

/// Which biases are trained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Bias {
    #[default]
    None,
    /// Every bias of the model.
    All,
    /// Those of the layers with an adapter.
    LoraOnly,
}

/// How frozen weights are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BaseDType {
    #[default]
    F32,
    /// Half the memory; exact for weights that were published in bf16.
    Bf16,
}

/// The adapter; see the module.
#[derive(Debug)]
pub struct Lora {
    config: LoraConfig,
    layers: Vec<Layer>,
    names: HashSet<String>,
    /// The model's linear layers without an adapter.
    others: Vec<String>,
    /// The base's biases that are trained, with their shapes.
    biases: Vec<ParamSpec>,
}

impl Lora {
    /// An adapter for the model whose parameters `base` lists. Error: a target that matches nothing.
    pub fn new(config: LoraConfig, base: &[ParamSpec]) -> Result<Self> {
        let layers = config.target_modules.resolve(base)?;
        let names: HashSet<_> = layers.iter().map(|layer| layer.path.clone()).collect();
        let others = crate::targets::layers(base).map(|layer| layer.path);
        let others = others.filter(|path| !names.contains(path)).collect();
        let is_trained = |spec: &&ParamSpec| match (config.bias, spec.path.rsplit_once('.')) {
            (Bias::None, _) => false,
            (Bias::All, Some((_, name))) => name == "bias",
            (Bias::LoraOnly, Some((layer, name))) => name == "bias" && names.contains(layer),
            (_, None) => false,
        };
        let biases = base.iter().filter(is_trained).cloned().collect();
        Ok(Self {
            config,
            layers,
            names,
            others,
            biases,
        })
    }

    pub fn config(&self) -> &LoraConfig {
        &self.config
    }

    /// The layers with an adapter, in the model's order.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    pub(crate) fn is_adapted(&self, layer: &str) -> bool {
        self.names.contains(layer)
    }

    pub(crate) fn others(&self) -> &[String] {
        &self.others
    }

    /// The adapter's own parameters: `A` and `B` of each layer.
    pub fn params(&self) -> Vec<ParamSpec> {
        let spec = |layer: &Layer, name: &str, shape: [usize; 2], init| ParamSpec {
            path: format!("{}.{name}.weight", layer.path),
            shape: shape.to_vec(),
            init,
            kind: ParamKind::Linear,
        };
        let r = self.config.r;
        let pair = |layer: &Layer| {
            // Kaiming's uniform with a slope of sqrt(5), as PyTorch starts a linear layer.
            let bound = 1.0 / (layer.inputs as f32).sqrt();
            [
                spec(layer, A, [r, layer.inputs], Init::Uniform { bound }),
                spec(layer, B, [layer.outputs, r], Init::Zeros),
            ]
        };
        self.layers.iter().flat_map(pair).collect()
    }

    /// All that is trained: the adapter's own parameters, then the base's biases.
    pub fn trained(&self) -> Vec<ParamSpec> {
        let mut specs = self.params();
        specs.extend(self.biases.iter().cloned());
        specs
    }

    /// Freezes the parameters of the base but for the biases that are to be trained.
    pub fn freeze(&self, base: &ParamTree) {
        for (spec, parameter) in base.iter() {
            let is_trained = self.biases.iter().any(|bias| bias.path == spec.path);
            parameter.set_trainable(is_trained);
        }
    }

    /// What the product is multiplied by.
    pub fn scale(&self) -> f64 {
        let r = self.config.r as f64;
        if self.config.use_rslora {
            self.config.lora_alpha / r.sqrt()
        } else {
            self.config.lora_alpha / r
        }
    }

    /// `s B A` in the layout of the weight of `layer`, to which merging adds it; `None` for a layer without an adapter.
    pub fn delta(&self, layer: &str, params: &ParamTree) -> tt_nn::Result<Option<Tensor>> {
        let Some(layer) = self.layers.iter().find(|it| it.path == layer) else {
            return Ok(None);
        };
        let weight = |name| {
            Ok::<_, tt_nn::Error>(
                params
                    .get(&format!("{}.{name}.weight", layer.path))?
                    .value(),
            )
        };
        let (a, b) = (weight(A)?, weight(B)?);
        let product = if layer.in_out {
            a.t()?.matmul(&b.t()?)?
        } else {
            b.matmul(&a)?
        };
        Ok(Some(product.affine(self.scale(), 0.0)?))
    }
}

impl Adapter for Lora {
    fn linear(
        &self,
        fwd: &Forward,
        layer: &ModulePath,
        x: &Tensor,
        y: Tensor,
    ) -> tt_nn::Result<Tensor> {
        if !self.is_adapted(layer.as_str()) {
            return Ok(y);
        }
        let dropout = self.config.lora_dropout as f32;
        let x = fwd.dropout(&layer.join("lora_dropout"), x.clone(), dropout)?;
        let a = fwd.param(&layer.join(A), "weight")?; // [r, in]
        let b = fwd.param(&layer.join(B), "weight")?; // [out, r]
        // Scaled where it is thin.
        let low = fused::linear(&x, &a, None)?.affine(self.scale(), 0.0)?; // [.., r]
        Ok(fused::linear_onto(y, &low, &b)?)
    }
}
