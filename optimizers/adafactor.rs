//! Adafactor: second moments of matrices kept as one mean a row and one a column.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tt_nn::ParamTree;
use tt_tensor::{Parameter, Shard, Tensor, UpdateRule, fused};

use crate::error::Result;
use crate::metrics::{Metric, StepMetrics};
use crate::state::restored;
use crate::{LoadSlot, Optimizer, Slot, StepContext};

/// `adafactor.Adafactor`, in transformers' form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdafactorConfig {
    /// Peak learning rate; the schedule multiplies it. Null with `relative_step`.
    #[serde(default)]
    #[schemars(range(min = 0.0))]
    pub lr: Option<f64>,
    /// Added to squared gradients, and the least root mean square of a parameter that scales its rate.
    #[serde(default = "default_eps")]
    #[schemars(inner(range(min = 0.0)))]
    pub eps: [f64; 2],
    /// Root mean square above which an update is scaled down.
    #[serde(default = "default_threshold")]
    #[schemars(range(min = 1e-9))]
    pub clip_threshold: f64,
    /// The means of step `t` take the share `t^decay_rate` of the new.
    #[serde(default = "default_decay")]
    #[schemars(range(max = 0.0))]
    pub decay_rate: f64,
    /// Decay of the running mean of the updates; null: updates are used as they are, without that state.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.999_999))]
    pub beta1: Option<f64>,
    /// Share of a weight that the rate times this removes each step; biases and norms are left alone.
    #[serde(default)]
    #[schemars(range(min = 0.0))]
    pub weight_decay: f64,
    /// Multiplies the rate by the root mean square of the parameter.
    #[serde(default = "default_true")]
    pub scale_parameter: bool,
    /// The rate is `min(0.01, 1/sqrt(t))`; choose the schedule `constant` with it.
    #[serde(default = "default_true")]
    pub relative_step: bool,
    /// With `relative_step`: the rate begins at `1e-6*t`.
    #[serde(default)]
    pub warmup_init: bool,
}

/// `adafactor.TorchAdafactor`, in the form of `torch.optim.Adafactor`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TorchAdafactorConfig {
    /// Peak learning rate, at most `1/sqrt(t)`, times the root mean square of the parameter; the schedule multiplies it.
    #[schemars(range(min = 0.0))]
    pub lr: f64,
    /// The means of step `t` take the share `t^beta2_decay` of the new.
    #[serde(default = "default_decay")]
    #[schemars(range(max = 0.0))]
    pub beta2_decay: f64,
    /// The least second moment is the square of the first (null: 2^-23); the second is the least root mean square of a
    /// parameter that scales its rate.
    #[serde(default = "default_torch_eps")]
    pub eps: (Option<f64>, f64),
    /// Root mean square above which an update is scaled down.
    #[serde(default = "default_threshold")]
    #[schemars(range(min = 1.0))]
    pub d: f64,
    /// Share of a weight that `lr` times this removes each step; biases and norms are left alone.
    #[serde(default)]
    #[schemars(range(min = 0.0))]
    pub weight_decay: f64,
}

fn default_eps() -> [f64; 2] {
    [1e-30, 1e-3]
}

fn default_torch_eps() -> (Option<f64>, f64) {
    (None, 1e-3)
}

fn default_threshold() -> f64 {
    1.0
}

fn default_decay() -> f64 {
    -0.8
}

fn default_true() -> bool {
    true
}

impl AdafactorConfig {
    /// What no single option shows to be wrong.
    pub(crate) fn check(&self) -> std::result::Result<(), String> {
        match (self.lr, self.relative_step) {
            (Some(_), true) => {
                Err("`lr` is null with `relative_step`, which has rates of its own".into())
            }
            (None, false) => Err("`lr` must be given without `relative_step`".into()),
            _ if self.warmup_init && !self.relative_step => {
                Err("`warmup_init` needs `relative_step`".into())
            }
            _ => Ok(()),
        }
    }
}

/// Adafactor: second moments of matrices kept as one mean a row and one a column.
///
/// State, of a matrix `[R, C]`: a mean of squared gradients for each row and each column (transformers: `exp_avg_sq_row`
/// `[R]`, `exp_avg_sq_col` `[C]`; PyTorch: `row_var` `[R, 1]`, `col_var` `[1, C]`); of a vector: `exp_avg_sq` or
/// `variance`; with `beta1` also `exp_avg` of the parameter's shape. Always f32.
///
/// With `t` from 1, `d = t^decay_rate`: `row += d*(mean(g*g) - row)`, columns alike; `v = row*col/mean(row)`;
/// `u = g/sqrt(v)`, divided by `max(1, rms(u)/clip_threshold)`; `p -= rate*u`. The two forms differ in where `eps` enters,
/// in the rate, and in what weight decay is multiplied by. Source: Shazeer and Stern 2018, arXiv:1804.04235.
pub struct Adafactor {
    form: Form,
    step: u64,
    entries: Vec<Entry>,
    metrics: StepMetrics,
    /// What updates of the last step were divided by, `[]` each, if it was asked for.
    divisors: Vec<Tensor>,
}

enum Form {
    Transformers(AdafactorConfig),
    Torch(TorchAdafactorConfig),
}

struct Entry {
    parameter: Arc<Parameter>,
    decays: bool,
    second: Second,
    exp_avg: Option<Tensor>,
}

/// The second moment.
enum Second {
    /// `[.., R, 1]` and `[.., 1, C]`.
    Factored {
        row: Tensor,
        col: Tensor,
    },
    Whole(Tensor),
}

impl Adafactor {
    /// Zero state for every trainable parameter.
    pub fn new(config: AdafactorConfig, params: &ParamTree) -> Result<Self> {
        Self::with(Form::Transformers(config), params)
    }

    /// The same in PyTorch's form.
    pub fn torch(config: TorchAdafactorConfig, params: &ParamTree) -> Result<Self> {
        Self::with(Form::Torch(config), params)
    }

    fn with(form: Form, params: &ParamTree) -> Result<Self> {
        let has_mean = matches!(&form, Form::Transformers(c) if c.beta1.is_some());
        let mut entries = Vec::new();
        for (spec, parameter) in params.iter().filter(|(_, p)| p.is_trainable()) {
            let value = parameter.value();
            let zeros = |shape: &[usize]| Tensor::zeros(shape, value.device());
            let shape = value.dims();
            let second = if shape.len() < 2 {
                Second::Whole(zeros(shape)?)
            } else {
                let [row, col] = factored(parameter.shard());
                Second::Factored {
                    row: zeros(&row.local_shape())?,
                    col: zeros(&col.local_shape())?,
                }
            };
            entries.push(Entry {
                parameter: parameter.clone(),
                decays: spec.decays(),
                second,
                exp_avg: has_mean.then(|| zeros(shape)).transpose()?,
            });
        }
        Ok(Self {
            form,
            step: 0,
            entries,
            metrics: StepMetrics::default(),
            divisors: Vec::new(),
        })
    }
}

impl Form {
    /// The rate of step `t` before the schedule and the parameter's scale.
    fn lr(&self, t: u64) -> f64 {
        let root = 1.0 / (t.max(1) as f64).sqrt();
        match self {
            Self::Torch(c) => c.lr,
            Self::Transformers(c) => match c.lr {
                Some(lr) => lr,
                None if c.warmup_init => (1e-6 * t as f64).min(root),
                None => root.min(1e-2),
            },
        }
    }

    fn clip_threshold(&self) -> f64 {
        match self {
            Self::Transformers(c) => c.clip_threshold,
            Self::Torch(c) => c.d,
        }
    }

    /// The share of the new in the means of step `t`.
    fn share(&self, t: u64) -> f64 {
        (t as f64).powf(match self {
            Self::Transformers(c) => c.decay_rate,
            Self::Torch(c) => c.beta2_decay,
        })
    }

    /// Slot names of the factored means, and of the whole one.
    fn names(&self) -> [&'static str; 3] {
        match self {
            Self::Transformers(_) => ["exp_avg_sq_row", "exp_avg_sq_col", "exp_avg_sq"],
            Self::Torch(_) => ["row_var", "col_var", "variance"],
        }
    }
}

/// `old + share * (new - old)`.
fn lerp(old: &Tensor, new: &Tensor, share: f64) -> Result<Tensor> {
    let new = Some((share, new));
    Ok(fused::combine(old.clone(), 1.0 - share, new, false)?)
}

fn at_least(x: &Tensor, least: f64) -> Result<Tensor> {
    Ok(x.maximum(&Tensor::full(least as f32, (), x.device())?)?)
}

/// Root mean square, `[]`.
fn rms(x: &Tensor) -> Result<Tensor> {
    let squares = fused::sum_squares(x.device(), 1, std::iter::once(x.clone()))?;
    let share = 1.0 / x.elem_count() as f64;
    Ok(squares.reshape(())?.affine(share, 0.0)?.sqrt()?)
}

fn rsqrt(x: &Tensor) -> Result<Tensor> {
    Ok(x.sqrt()?.recip()?)
}

impl Second {
    /// Takes in the gradient `g`, and gives `g` over the root of the second moment.
    fn update(&mut self, g: &Tensor, share: f64, form: &Form) -> Result<Tensor> {
        let squares = match form {
            Form::Transformers(c) => g.sqr()?.affine(1.0, c.eps[0])?,
            Form::Torch(_) => g.sqr()?,
        };
        let floor = match form {
            Form::Transformers(_) => None,
            Form::Torch(c) => Some(c.eps.0.unwrap_or(f64::from(f32::EPSILON))),
        };
        let inverse = match self {
            Self::Whole(v) => {
                *v = lerp(v, &squares, share)?;
                match floor {
                    None => rsqrt(v)?,
                    Some(eps) => rsqrt(&at_least(v, eps * eps)?)?,
                }
            }
            Self::Factored { row, col } => {
                let [rows, cols] = [g.rank() - 2, g.rank() - 1];
                *row = lerp(row, &squares.mean_keepdim(&[cols])?, share)?;
                *col = lerp(col, &squares.mean_keepdim(&[rows])?, share)?;
                let mean = row.mean_keepdim(&[rows])?;
                match floor {
                    None => rsqrt(&row.div(&mean)?)?.matmul(&rsqrt(col)?)?,
                    Some(eps) => {
                        let v = row.matmul(col)?.div(&at_least(&mean, eps)?)?;
                        rsqrt(&at_least(&v, eps * eps)?)?
                    }
                }
            }
        };
        Ok(inverse.mul(g)?)
    }
}

/// Which parts of the factored means of a parameter are held here: sums have one index in place of those they go over.
fn factored(parameter: &Shard) -> [Shard; 2] {
    let rank = parameter.shape().len();
    [rank - 1, rank - 2].map(|dim| parameter.clone().reduced(dim))
}

impl Optimizer for Adafactor {
    fn lr(&self) -> f64 {
        self.form.lr(self.step + 1)
    }

    fn step(&mut self, context: &StepContext) -> Result<()> {
        self.step += 1;
        let (t, form) = (self.step, &self.form);
        self.metrics
            .start(context, self.entries.iter().map(|e| &e.parameter))?;
        self.divisors.clear();
        for (slot, entry) in self.entries.iter_mut().enumerate() {
            // Another rank may have it all.
            let grad = entry.parameter.take_grad();
            let Some(grad) = grad.filter(|grad| grad.elem_count() > 0) else {
                continue;
            };
            // Scaled without a bound.
            let grad = fused::clip_value(grad, &context.grad_scale, f64::INFINITY)?;
            let value = entry.parameter.value();
            let update = entry.second.update(&grad, form.share(t), form)?;
            let divisor = at_least(
                &rms(&update)?.affine(1.0 / form.clip_threshold(), 0.0)?,
                1.0,
            )?;
            // On the device: the rate depends on the parameter.
            let (rate, decay) = match form {
                Form::Torch(c) => {
                    let lr = context.lr.min(1.0 / (t as f64).sqrt());
                    let rate = at_least(&rms(&value)?, c.eps.1)?.affine(lr, 0.0)?;
                    let decay =
                        Tensor::full((context.lr * c.weight_decay) as f32, (), value.device())?;
                    (rate, (c.weight_decay > 0.0).then_some(decay))
                }
                Form::Transformers(c) => {
                    let rate = if c.scale_parameter {
                        at_least(&rms(&value)?, c.eps[1])?.affine(context.lr, 0.0)?
                    } else {
                        Tensor::full(context.lr as f32, (), value.device())?
                    };
                    let decay = rate.affine(c.weight_decay, 0.0)?;
                    (rate, (c.weight_decay > 0.0).then_some(decay))
                }
            };
            let mut update = update.mul(&rate.div(&divisor)?)?;
            if let (Some(mean), Form::Transformers(c)) = (&mut entry.exp_avg, form) {
                *mean = lerp(mean, &update, 1.0 - c.beta1.unwrap_or_default())?;
                update = mean.clone();
            }
            if let Some(decay) = decay.filter(|_| entry.decays) {
                update = update.add(&value.mul(&decay)?)?;
            }
            let rule = UpdateRule::Descend {
                keep: 1.0,
                rate: 1.0,
            };
            let one = Tensor::ones(1, value.device())?;
            fused::optimizer_step(&rule, &value, &update, &one, &[], self.metrics.slot(slot))?;
            if context.counts(&entry.parameter) {
                self.divisors.push(divisor.reshape(1)?);
            }
        }
        Ok(())
    }

    fn metrics(&self) -> Result<Vec<Metric>> {
        let mut named = self.metrics.named(false)?;
        if let Some(first) = named.first() {
            let sum = match &self.divisors[..] {
                [] => Tensor::zeros(1, first.sums.device())?,
                divisors => Tensor::cat(divisors, 0)?.sum_all()?,
            };
            let count = self.divisors.len();
            named.push(Metric::mean("clip_divisor", &sum, count)?);
        }
        Ok(named)
    }

    fn steps(&self) -> u64 {
        self.step
    }

    fn slots(&self) -> Vec<Slot> {
        let [row_name, col_name, whole_name] = self.form.names();
        let mut slots = Vec::new();
        for entry in &self.entries {
            let mut add = |name, shard: &Shard, value: &Tensor| {
                slots.push(Slot {
                    parameter: entry.parameter.path().to_owned(),
                    name,
                    shard: shard.clone(),
                    value: value.clone(),
                });
            };
            let whole = entry.parameter.shard();
            match &entry.second {
                Second::Whole(v) => add(whole_name, whole, v),
                Second::Factored { row, col } => {
                    let [rows, cols] = factored(whole);
                    add(row_name, &rows, row);
                    add(col_name, &cols, col);
                }
            }
            if let Some(mean) = &entry.exp_avg {
                add("exp_avg", whole, mean);
            }
        }
        slots
    }

    fn restore(&mut self, steps: u64, load: &mut LoadSlot) -> Result<()> {
        self.step = steps;
        let [row_name, col_name, whole_name] = self.form.names();
        for entry in &mut self.entries {
            let path = entry.parameter.path();
            let mut take = |name, shard: &Shard, state: &mut Tensor| -> Result<()> {
                *state = restored(load, path, name, shard, state)?;
                Ok(())
            };
            let whole = entry.parameter.shard();
            match &mut entry.second {
                Second::Whole(v) => take(whole_name, whole, v)?,
                Second::Factored { row, col } => {
                    let [rows, cols] = factored(whole);
                    take(row_name, &rows, row)?;
                    take(col_name, &cols, col)?;
                }
            }
            if let Some(mean) = &mut entry.exp_avg {
                take("exp_avg", whole, mean)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rates_that_do_not_go_together_are_refused() {
        let refused = |lr: Option<f64>, relative_step: bool, warmup_init: bool| {
            let config =
                json!({"lr": lr, "relative_step": relative_step, "warmup_init": warmup_init});
            let config: AdafactorConfig = serde_json::from_value(config).unwrap();
            config.check().err()
        };
        assert_eq!(refused(None, true, false), None);
        assert_eq!(refused(None, true, true), None);
        assert_eq!(refused(Some(0.1), false, false), None);
        assert!(
            refused(Some(0.1), true, false)
                .unwrap()
                .contains("`lr` is null")
        );
        assert!(
            refused(None, false, false)
                .unwrap()
                .contains("must be given")
        );
        assert!(
            refused(Some(0.1), false, true)
                .unwrap()
                .contains("`warmup_init` needs")
        );
    }
}
