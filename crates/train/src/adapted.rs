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
use tt_sharding::Sharded;
use tt_tensor::{DType, Device, Seed, Shard, Tensor};

use crate::base::{Base, BaseOrigin};
use crate::error::{Error, Result};
use crate::saved_tensor::SavedTensor;
use crate::state::TrainState;
use crate::weights::{Head, load_params_with};

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

    /// A new adapter on the base `params`, of each parameter the part that `shard` says.
    pub fn draw(
        &self,
        params: &ParamTree,
        seed: u64,
        device: Device,
        shard: &dyn Fn(&ParamSpec) -> Shard,
    ) -> Result<ParamTree> {
        let seed = Seed::new(seed).fold_str("init");
        let own = ParamTree::init_sharded(&self.lora.params(), seed, device, shard)?;
        Ok(params.with_adapter(self.lora.clone(), &own)?)
    }

    /// The adapter that `checkpoint` holds, on the base `params`, the parts that `shard` says. Error: it is of another base.
    pub fn resume(
        &self,
        params: &ParamTree,
        checkpoint: &Checkpoint,
        device: Device,
        shard: &dyn Fn(&ParamSpec) -> Shard,
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
        load_adapter(&self.lora, params, &saved.weights, device, shard)
    }

    /// What a checkpoint holds of `params`: `adapter_config.json`, and what is trained under peft's names.
    pub(crate) fn saved(
        &self,
        params: &ParamTree,
        ranks: Option<&Sharded>,
    ) -> Result<(Value, TensorMap<SavedTensor>)> {
        let base = match &self.base.origin {
            BaseOrigin::Pretrained(path) => Some(path.as_str()),
            BaseOrigin::Seed(_) => None,
        };
        let trained = self.lora.trained().into_iter().map(|spec| {
            let tensor = SavedTensor::of(params.get(&spec.path)?, ranks)?;
            Ok((self.lora.peft_name(&spec.path), tensor))
        });
        let tensors = trained.collect::<Result<_>>()?;
        Ok((self.lora.peft_config(base), tensors))
    }
}

/// The parameters of `model` drawn from `seed`, to be frozen, of each the part that `shard` says: matrices are held as
/// `dtype`.
pub fn draw_base(
    model: &dyn Model,
    seed: u64,
    dtype: BaseDType,
    device: Device,
    shard: &dyn Fn(&ParamSpec) -> Shard,
) -> Result<ParamTree> {
    let seed = Seed::new(seed).fold_str("init");
    let params = ParamTree::build_sharded(&model.params(), shard, |spec, shard| {
        Ok(hold(spec, spec.draw_part(seed, device, shard)?, dtype)?)
    })?;
    device.trim(); // of the values before they were rounded
    Ok(params)
}

/// The parameters of `model` from `weights`, to be frozen, of each the part that `shard` says: matrices are held as
/// `dtype`.
pub fn load_base(
    model: &dyn Model,
    weights: &Weights,
    dtype: BaseDType,
    device: Device,
    shard: &dyn Fn(&ParamSpec) -> Shard,
) -> Result<ParamTree> {
    let hold = |spec: &ParamSpec, value| hold(spec, value, dtype);
    let params = load_params_with(model, weights, device, shard, Head::Due, hold)?;
    device.trim();
    Ok(params)
}

/// Puts a saved adapter on the base `params`, of each parameter the part that `shard` says. Errors: every missing, unexpected or misshapen tensor at once.
pub fn load_adapter(
    lora: &Arc<Lora>,
    params: &ParamTree,
    weights: &Weights,
    device: Device,
    shard: &dyn Fn(&ParamSpec) -> Shard,
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
        let (name, shard) = (lora.peft_name(&spec.path), shard(spec));
        weights.read_f32_runs(&name, shard.runs(), &mut values)?;
        Ok(Tensor::from_slice(&values, shard.local_shape(), device)?)
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
    let next = |_: &ParamSpec, _: &Shard| Ok(own.next().expect("one for each"));
    let own = ParamTree::build_sharded(&own_specs, shard, next)?;
    Ok(params.with_adapter(lora.clone(), &own)?)
}

/// Biases and norms are small, and may be trained: they stay as they are.
fn hold(spec: &ParamSpec, value: Tensor, dtype: BaseDType) -> tt_tensor::Result<Tensor> {
    match dtype {
        BaseDType::Bf16 if spec.kind != ParamKind::Vector => value.to_dtype(DType::BF16),
        _ => Ok(value),
    }
}

pub(crate) fn fingerprint(params: &ParamTree) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    let (mut values, mut halves) = (Vec::<f32>::new(), Vec::<half::bf16>::new());
    for (spec, parameter) in params.iter() {
        hasher.update(format!("{}{:?}", spec.path, spec.shape).as_bytes());
        // On the host: a copy on the device would stay in its pool.
        let read = |value: &Tensor| {
            if value.dtype() != DType::BF16 {
                return value.read_into(&mut values);
            }
            value.read_into(&mut halves)?;
            values.clear();
            values.extend(halves.iter().map(|half| half.to_f32()));
            Ok(())
        };
        params.with_whole(parameter, read)??;
        hasher.update(bytemuck::cast_slice(&values));
    }
    Ok(hasher.finalize().to_hex().to_string())
}
