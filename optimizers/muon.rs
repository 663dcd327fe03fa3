//! Muon: momentum whose matrices are made nearly orthogonal; AdamW for all other parameters.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tt_nn::{ParamKind, ParamSpec, ParamTree, PathGlob};
use tt_tensor::{DType, Parameter, Tensor, UpdateRule, fused};

use crate::adamw::{AdamW, AdamWConfig, default_betas, default_eps};
use crate::error::{Error, Result};
use crate::metrics::{Metric, StepMetrics};
use crate::state::{StateDtype, restored};
use crate::{LoadSlot, Optimizer, Slot, StepContext};

/// `muon.Muon`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MuonConfig {
    /// Peak learning rate of the orthogonalised updates; the schedule multiplies it.
    #[schemars(range(min = 0.0))]
    pub lr: f64,
    /// Share of a weight that `lr` times this removes each step.
    #[serde(default = "default_weight_decay")]
    #[schemars(range(min = 0.0))]
    pub weight_decay: f64,
    /// Decay of the running mean of the gradient.
    #[serde(default = "default_momentum")]
    #[schemars(range(min = 0.0, max = 0.999_999))]
    pub momentum: f64,
    /// Looks one step of momentum ahead.
    #[serde(default = "default_true")]
    pub nesterov: bool,
    /// Coefficients of the Newton-Schulz iteration.
    #[serde(default = "default_coefficients")]
    pub ns_coefficients: [f64; 3],
    /// Iterations.
    #[serde(default = "default_steps")]
    #[schemars(range(min = 1, max = 99))]
    pub ns_steps: u64,
    /// The least norm that a momentum is divided by before the iteration.
    #[serde(default = "default_ns_eps")]
    #[schemars(range(min = 0.0))]
    pub eps: f64,
    /// What the rate of a matrix is multiplied by.
    #[serde(default)]
    pub adjust_lr_fn: AdjustLr,
    /// Number format of the iteration: bf16 as in PyTorch, or f32, which differs by one or two per cent of an update.
    #[serde(default)]
    pub ns_dtype: NewtonSchulzDtype,
    /// Linear layers that AdamW is to take too, by glob over parameter paths: `**.o_proj.weight`.
    #[serde(default)]
    pub adamw_parameters: Vec<String>,
    /// AdamW for what Muon does not take.
    pub adamw: MuonAdamWConfig,
}

/// `adamw` of `muon.Muon`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MuonAdamWConfig {
    /// Peak learning rate; the schedule multiplies it.
    #[schemars(range(min = 0.0))]
    pub lr: f64,
    /// Decay of the running means of the gradient and of its square.
    #[serde(default = "default_betas")]
    #[schemars(inner(range(min = 0.0, max = 0.999_999)))]
    pub betas: [f64; 2],
    /// Added to the root of the second moment.
    #[serde(default = "default_eps")]
    #[schemars(range(min = 0.0))]
    pub eps: f64,
    /// Share of a weight that `lr` times this removes each step; biases and norms are left alone.
    #[serde(default)]
    #[schemars(range(min = 0.0))]
    pub weight_decay: f64,
}

/// The factor of Muon's rate for a matrix `[rows, cols]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AdjustLr {
    /// `sqrt(max(1, rows/cols))`.
    #[default]
    Original,
    /// `0.2*sqrt(max(rows, cols))`: updates as large as AdamW's, whose rate can then be taken over.
    MatchRmsAdamw,
    /// `sqrt(rows/cols)`.
    SpectralUnclamped,
}

/// What the Newton-Schulz iteration computes in.
#[expect(
    missing_docs,
    reason = "named as in the configuration, whose reference says it"
)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NewtonSchulzDtype {
    #[default]
    Bf16,
    F32,
}

impl AdjustLr {
    fn factor(self, rows: usize, cols: usize) -> f64 {
        let (rows, cols) = (rows as f64, cols as f64);
        match self {
            Self::Original => (rows / cols).max(1.0).sqrt(),
            Self::MatchRmsAdamw => 0.2 * rows.max(cols).sqrt(),
            Self::SpectralUnclamped => (rows / cols).sqrt(),
        }
    }
}

fn default_weight_decay() -> f64 {
    0.1
}

fn default_momentum() -> f64 {
    0.95
}

fn default_true() -> bool {
    true
}

fn default_coefficients() -> [f64; 3] {
    [3.4445, -4.7750, 2.0315]
}

fn default_steps() -> u64 {
    5
}

fn default_ns_eps() -> f64 {
    1e-7
}

impl MuonConfig {
    /// What no single option shows to be wrong.
    pub(crate) fn check(&self) -> std::result::Result<(), String> {
        let globs = globs(&self.adamw_parameters);
        globs.map(drop).map_err(|error| error.to_string())
    }
}

fn globs(patterns: &[String]) -> Result<Vec<PathGlob>> {
    let globs = patterns.iter().map(|pattern| Ok(PathGlob::new(pattern)?));
    globs.collect()
}

/// Whether it may be made orthogonal. As it lies: PyTorch's does not know which dim counts outputs either.
pub(crate) fn is_matrix(spec: &ParamSpec) -> bool {
    matches!(spec.kind, ParamKind::Linear | ParamKind::LinearInOut) && spec.shape.len() == 2
}

/// Muon: momentum whose matrices are made nearly orthogonal; AdamW for all other parameters.
///
/// State: `momentum_buffer` of the weights of linear layers; of the rest AdamW's. With `mu` the momentum, as in
/// `torch.optim.Muon`: `m += (1-mu)*(g - m)`; `u = (1-mu)*g + mu*m` with `nesterov`, else `m`; `x` = the orthogonalised
/// `u`; `p *= 1 - lr*weight_decay`; `p -= lr*k*x`, where `k` is [`AdjustLr`]'s. Source: Jordan et al. 2024.
///
/// Embeddings, the output head, biases and norms are AdamW's: an embedding's rows are looked up, not multiplied, and the
/// head trains better with Adam.
pub struct Muon {
    config: MuonConfig,
    step: u64,
    entries: Vec<Entry>,
    rest: AdamW,
    metrics: StepMetrics,
    /// Sums of squares of the singular values of the last updates, if they were asked for, and their number.
    singular: (Vec<Tensor>, usize),
}

struct Entry {
    parameter: Arc<Parameter>,
    momentum: Tensor,
}

impl Muon {
    /// Zero state for every trainable parameter.
    pub fn new(config: MuonConfig, params: &ParamTree) -> Result<Self> {
        let globs = globs(&config.adamw_parameters)?;
        for (glob, pattern) in globs.iter().zip(&config.adamw_parameters) {
            let mut matrices = params.iter().filter(|(spec, _)| is_matrix(spec));
            if !matrices.any(|(spec, _)| glob.matches(&spec.path)) {
                let glob = pattern.clone();
                return Err(Error::Unmatched { glob });
            }
        }
        let takes = |spec: &ParamSpec| {
            is_matrix(spec) && !globs.iter().any(|glob| glob.matches(&spec.path))
        };
        let mut entries = Vec::new();
        for (spec, parameter) in params.iter() {
            if takes(spec) && parameter.is_trainable() {
                let value = parameter.value();
                entries.push(Entry {
                    parameter: parameter.clone(),
                    momentum: Tensor::zeros(value.shape().clone(), value.device())?,
                });
            }
        }
        let MuonAdamWConfig {
            lr,
            betas,
            eps,
            weight_decay,
        } = config.adamw.clone();
        let adamw = AdamWConfig {
            betas,
            eps,
            weight_decay,
            amsgrad: false,
            state_dtype: StateDtype::F32,
            ..AdamWConfig::new(lr)
        };
        Ok(Self {
            rest: AdamW::new(adamw, &params.filtered(|spec| !takes(spec)))?,
            config,
            step: 0,
            entries,
            metrics: StepMetrics::default(),
            singular: (Vec::new(), 0),
        })
    }
}

/// `u` `[rows, cols]` with its singular values brought near 1, by Newton-Schulz iterations
/// `x <- a x + (b A + c A A) x`, `A = x x^T`, on the orientation with fewer rows.
///
/// In bf16 every result is rounded and every sum is made in f32, which is what PyTorch does on a CPU: updates agree with its
/// to 1e-6 where the processor has no products of bf16, and within rounding where it has. Between two products a matrix is held
/// in f32, and handed to them in bf16, which has each of its numbers.
pub fn orthogonalised(u: Tensor, config: &MuonConfig) -> Result<Tensor> {
    let rounds = config.ns_dtype == NewtonSchulzDtype::Bf16;
    let combine =
        |a: Tensor, alpha: f64, x: Option<(f64, &Tensor)>| fused::combine(a, alpha, x, rounds);
    let [a, b, c] = config.ns_coefficients;
    let [rows, cols] = u.dims_of("orthogonalised")?;
    let is_tall = rows > cols;
    let u = combine(if is_tall { u.t()?.contiguous()? } else { u }, 1.0, None)?;
    let squares = fused::sum_squares(u.device(), 1, std::iter::once(u.clone()))?;
    let norm = combine(squares.sqrt()?, 1.0, None)?;
    let least = Tensor::full(config.eps as f32, 1, u.device())?;
    // Scaled without a bound.
    let x = fused::clip_value(u, &norm.maximum(&least)?.recip()?, f64::INFINITY)?;
    let mut x = combine(x, 1.0, None)?;
    let operand = |x: &Tensor| match rounds {
        true => x.to_dtype(DType::BF16),
        false => Ok(x.clone()),
    };
    for _ in 0..config.ns_steps {
        let factor = operand(&x)?;
        let gram = combine(fused::product_f32(&factor, &factor.t()?)?, 1.0, None)?;
        let square = operand(&gram)?;
        let square = fused::product_f32(&square, &square)?;
        let polynomial = combine(square, c, Some((b, &gram)))?;
        let product = fused::product_f32(&operand(&polynomial)?, &factor)?;
        x = combine(product, 1.0, Some((a, &x)))?;
    }
    Ok(if is_tall { x.t()?.contiguous()? } else { x })
}

impl Optimizer for Muon {
    fn lr(&self) -> f64 {
        self.config.lr
    }

    fn step(&mut self, context: &StepContext) -> Result<()> {
        self.step += 1;
        let config = &self.config;
        self.metrics
            .start(context, self.entries.iter().map(|e| &e.parameter))?;
        self.singular = (Vec::new(), 0);
        for (slot, entry) in self.entries.iter_mut().enumerate() {
            // Another rank may have it all.
            let grad = entry.parameter.take_grad();
            let Some(grad) = grad.filter(|grad| grad.elem_count() > 0) else {
                continue;
            };
            let mu = config.momentum;
            let grad = fused::clip_value(grad, &context.grad_scale, f64::INFINITY)?;
            // Changed in place, unless a checkpoint is being copied from it.
            let momentum = &mut entry.momentum;
            let old = std::mem::replace(momentum, context.grad_scale.clone());
            *momentum = fused::combine(old, mu, Some((1.0 - mu, &grad)), false)?;
            let update = if config.nesterov {
                fused::combine(grad, 1.0 - mu, Some((mu, &*momentum)), false)?
            } else {
                momentum.clone()
            };
            let update = orthogonalised(update, config)?;
            let [rows, cols] = update.dims_of("muon")?;
            let rule = UpdateRule::Descend {
                keep: 1.0 - context.lr * config.weight_decay,
                rate: context.lr * config.adjust_lr_fn.factor(rows, cols),
            };
            let (value, one) = (entry.parameter.value(), Tensor::ones(1, update.device())?);
            fused::optimizer_step(&rule, &value, &update, &one, &[], self.metrics.slot(slot))?;
            if context.counts(&entry.parameter) {
                let update = std::iter::once(update);
                self.singular
                    .0
                    .push(fused::sum_squares(value.device(), 1, update)?);
                self.singular.1 += rows.min(cols);
            }
        }
        // One schedule moves both rates.
        let factor = match config.lr {
            0.0 => 0.0,
            lr => context.lr / lr,
        };
        self.rest.step(&StepContext {
            lr: self.rest.lr() * factor,
            ..context.clone()
        })
    }

    fn metrics(&self) -> Result<Vec<Metric>> {
        let mut named = self.metrics.named(false)?;
        if let Some(first) = named.first() {
            let (squares, count) = &self.singular;
            let sum = match &squares[..] {
                [] => Tensor::zeros(1, first.sums.device())?,
                squares => Tensor::cat(squares, 0)?.sum_all()?,
            };
            named.push(Metric::rms("singular_value_rms", &sum, *count)?);
        }
        let rest = self.rest.metrics()?;
        named.extend(rest.into_iter().map(|it| Metric {
            name: format!("adamw_{}", it.name),
            ..it
        }));
        Ok(named)
    }

    fn steps(&self) -> u64 {
        self.step
    }

    fn slots(&self) -> Vec<Slot> {
        let of_entry = |entry: &Entry| Slot {
            parameter: entry.parameter.path().to_owned(),
            name: MOMENTUM,
            shard: entry.parameter.shard().clone(),
            value: entry.momentum.clone(),
        };
        let mut slots: Vec<Slot> = self.entries.iter().map(of_entry).collect();
        slots.extend(self.rest.slots());
        slots
    }

    fn restore(&mut self, steps: u64, load: &mut LoadSlot) -> Result<()> {
        self.step = steps;
        for entry in &mut self.entries {
            let parameter = &entry.parameter;
            let (path, shard) = (parameter.path(), parameter.shard());
            entry.momentum = restored(load, path, MOMENTUM, shard, &entry.momentum)?;
        }
        self.rest.restore(steps, load)
    }
}

const MOMENTUM: &str = "momentum_buffer";

#[cfg(test)]
mod tests {
    use tt_nn::Init;
    use tt_tensor::{Device, Seed};

    use super::*;

    #[test]
    fn a_glob_that_takes_nothing_from_muon_is_an_error() {
        let spec = ParamSpec {
            path: "layers.0.o_proj.weight".into(),
            shape: vec![4, 4],
            init: Init::Ones,
            kind: ParamKind::Linear,
        };
        let params = ParamTree::init(&[spec], Seed::new(0), Device::Cpu).unwrap();
        let muon = |glob: &str| {
            let config =
                serde_json::json!({"lr": 0.1, "adamw": {"lr": 0.1}, "adamw_parameters": [glob]});
            Muon::new(serde_json::from_value(config).unwrap(), &params)
        };
        assert!(muon("**.o_proj.weight").is_ok());
        let message = muon("**.o_prj.weight").err().unwrap().to_string();
        assert!(message.contains("o_prj"), "{message}");
    }

    #[test]
    fn a_glob_that_is_none_is_refused_before_there_are_parameters() {
        let check = |glob: &str| {
            let config =
                serde_json::json!({"lr": 0.1, "adamw": {"lr": 0.1}, "adamw_parameters": [glob]});
            serde_json::from_value::<MuonConfig>(config)
                .unwrap()
                .check()
        };
        assert!(check("**.weight").is_ok());
        assert!(check("layers.[0-9").is_err());
    }

    #[test]
    fn one_schedule_moves_the_rate_of_the_rest_too() {
        let spec = |path: &str, shape: &[usize], kind| ParamSpec {
            path: path.into(),
            shape: shape.to_vec(),
            init: Init::Ones,
            kind,
        };
        let specs = [
            spec("a.weight", &[2, 2], ParamKind::Linear),
            spec("a.bias", &[2], ParamKind::Vector),
        ];
        for (peak, expected) in [(0.1, 0.99), (0.0, 1.0)] {
            let params = ParamTree::init(&specs, Seed::new(0), Device::Cpu).unwrap();
            let config = serde_json::json!({"lr": peak, "adamw": {"lr": 0.02}});
            let config = serde_json::from_value(config).unwrap();
            let mut muon = Muon::new(config, &params).unwrap();
            let bias = params.get("a.bias").unwrap();
            bias.set_grad(Tensor::ones(2, Device::Cpu).unwrap());
            // Half the peak: AdamW's first step is as large as its rate.
            let context = StepContext {
                lr: peak / 2.0,
                grad_scale: Tensor::ones(1, Device::Cpu).unwrap(),
                wants_metrics: false,
                counted: None,
            };
            muon.step(&context).unwrap();
            let bias = bias.value().to_vec::<f32>().unwrap();
            assert!((bias[0] - expected).abs() < 1e-6, "{bias:?}");
        }
    }
}
