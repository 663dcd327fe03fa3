//! Training an adapter: the frozen base it is put on, what is saved of it, and how it is taken up again.
//!
//! Checkpoints hold the adapter and not the base, only where that is from and a fingerprint of its values: going on
//! with another base is refused.

use std::sync::Arc;

use serde_json::Value;
use tt_adapters::{BaseDType, Lora};
use tt_checkpoint::{Allow, Checkpoint, SavedAdapter, TensorMap, Weights};
use tt_models::Model;
use tt_nn::{ParamKind, ParamSpec, ParamTree};
use tt_tensor::{DType, Device, Seed, Tensor};

use crate::base::{Base, BaseOrigin};
use crate::error::{Error, Result};
use crate::saved_tensor::SavedTensor;
use crate::state::TrainState;
use crate::weights::load_params_with;

/// An adapter being trained.
#[derive(Clone, Debug)]
pub struct Adapted {
    /// The small weights that are trained.
    pub lora: Arc<Lora>,
    /// The frozen model that they are on.
    pub base: Base,
}

impl Adapted {
    /// Takes up `params`, the base's own, and freezes them.
    pub fn new(lora: Arc<Lora>, params: &ParamTree, origin: BaseOrigin) -> Result<Self> {
        lora.freeze(params);
        let base = Base {
            origin,
            dtype: lora.config().base_dtype,
            fingerprint: fingerprint(params)?,
        };
        Ok(Self { lora, base })
    }

    /// A new adapter on the base `params`.
    pub fn draw(&self, params: &ParamTree, seed: u64, device: Device) -> Result<ParamTree> {
        let seed = Seed::new(seed).fold_str("init");
        let own = ParamTree::init(&self.lora.params(), seed, device)?;
        Ok(params.with_adapter(self.lora.clone(), &own)?)
    }

    /// The adapter that `checkpoint` holds, on the base `params`. Error: it is of another base.
    pub fn resume(
        &self,
        params: &ParamTree,
        checkpoint: &Checkpoint,
        device: Device,
    ) -> Result<ParamTree> {
        let (saved, base) = (
            SavedAdapter::open(checkpoint.dir())?,
            TrainState::read(checkpoint)?.base,
        );
        let (Some(saved), Some(base)) = (saved, base) else {
            let why = "it holds a whole model: give it as model.pretrained_url to train an adapter on it, with resume=none";
            return Err(Error::State(why.to_owned()));
        };
        self.base.check(&base)?;
        load_adapter(&self.lora, params, &saved.weights, device)
    }

    /// What a checkpoint holds of `params`: `adapter_config.json`, and what is trained under peft's names.
    pub(crate) fn saved(&self, params: &ParamTree) -> Result<(Value, TensorMap<SavedTensor>)> {
        let base = match &self.base.origin {
            BaseOrigin::Pretrained(path) => Some(path.as_str()),
            BaseOrigin::Seed(_) => None,
        };
        let trained = self.lora.trained().into_iter().map(|spec| {
            let tensor = SavedTensor::of(params.get(&spec.path)?);
            Ok((self.lora.peft_name(&spec.path), tensor))
        });
        let tensors = trained.collect::<Result<_>>()?;
        Ok((self.lora.peft_config(base), tensors))
    }
}

/// The parameters of `model` drawn from `seed`, to be frozen: matrices are held as `dtype`.
pub fn draw_base(
    model: &dyn Model,
    seed: u64,
    dtype: BaseDType,
    device: Device,
) -> Result<ParamTree> {
    let seed = Seed::new(seed).fold_str("init");
    let params = ParamTree::build(&model.params(), |spec| {
        Ok(hold(spec, spec.draw(seed, device)?, dtype)?)
    })?;
    device.trim(); // of the values before they were rounded
    Ok(params)
}

/// The parameters of `model` from `weights`, to be frozen: matrices are held as `dtype`.
pub fn load_base(
    model: &dyn Model,
    weights: &Weights,
    dtype: BaseDType,
    device: Device,
) -> Result<ParamTree> {
    let hold = |spec: &ParamSpec, value| hold(spec, value, dtype);
    let params = load_params_with(model, weights, device, hold)?;
    device.trim();
    Ok(params)
}

/// Puts a saved adapter on the base `params`. Errors: every missing, unexpected or misshapen tensor at once.
pub fn load_adapter(
    lora: &Arc<Lora>,
    params: &ParamTree,
    weights: &Weights,
    device: Device,
) -> Result<ParamTree> {
    let trained = lora.trained();
    let names: Vec<_> = trained
        .iter()
        .map(|spec| lora.peft_name(&spec.path))
        .collect();
    let expected = names.iter().zip(&trained);
    let expected = expected.map(|(name, spec)| (name.as_str(), spec.shape.as_slice()));
    weights
        .check(expected, &Allow::default())
        .map_err(Box::new)?;
    let mut values = Vec::new();
    let mut read = |spec: &ParamSpec| -> Result<Tensor> {
        weights.read_f32(&lora.peft_name(&spec.path), &mut values)?;
        Ok(Tensor::from_slice(&values, spec.shape.clone(), device)?)
    };
    let own_specs = lora.params();
    let mut own = Vec::with_capacity(own_specs.len());
    for spec in &own_specs {
        own.push(read(spec)?);
    }
    for spec in &trained[own_specs.len()..] {
        params.get(&spec.path)?.set(read(spec)?)?;
    }
    let mut own = own.into_iter();
    let own = ParamTree::build(&own_specs, |_| Ok(own.next().expect("one for each")))?;
    Ok(params.with_adapter(lora.clone(), &own)?)
}

/// Biases and norms are small, and may be trained: they stay as they are.
fn hold(spec: &ParamSpec, value: Tensor, dtype: BaseDType) -> tt_tensor::Result<Tensor> {
    match dtype {
        BaseDType::Bf16 if spec.kind != ParamKind::Vector => value.to_dtype(DType::BF16),
        _ => Ok(value),
    }
}

fn fingerprint(params: &ParamTree) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    let (mut values, mut halves) = (Vec::<f32>::new(), Vec::<half::bf16>::new());
    for (spec, parameter) in params.iter() {
        hasher.update(format!("{}{:?}", spec.path, spec.shape).as_bytes());
        let value = parameter.value();
        // On the host: a copy on the device would stay in its pool.
        match value.dtype() {
            DType::BF16 => {
                value.read_into(&mut halves)?;
                values.clear();
                values.extend(halves.iter().map(|half| half.to_f32()));
            }
            _ => value.read_into(&mut values)?,
        }
        hasher.update(bytemuck::cast_slice(&values));
    }
    Ok(hasher.finalize().to_hex().to_string())
}
