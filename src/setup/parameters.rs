//! The parameters that a run starts from: a checkpoint's, pretrained ones or new ones, with an adapter or without.

use std::path::Path;
use std::sync::Arc;

use tt_adapters::BaseDType;
use tt_checkpoint::{Checkpoint, SavedAdapter};
use tt_models::Model;
use tt_nn::{ParamSpec, ParamTree};
use tt_sharding::Sharded;
use tt_tensor::{Device, Seed, Shard};
use tt_train::{
    Adapted, Base, BaseOrigin, Initial, TrainState, draw_base, load_adapter, load_parts,
};

use crate::failure::Failure;
use crate::out;
use crate::setup::adapter::Adapter;
use crate::setup::pretrained::Pretrained;

/// Where parameters may be from.
pub(crate) struct Sources<'a> {
    pub(crate) pretrained: Option<&'a Pretrained>,
    /// To go on from.
    pub(crate) checkpoint: Option<&'a Checkpoint>,
    pub(crate) seed: u64,
}

impl Sources<'_> {
    /// The parameters of `model`, of each the part that `shard` says.
    pub(crate) fn parts(
        &self,
        model: &dyn Model,
        device: Device,
        shard: &dyn Fn(&ParamSpec) -> Shard,
    ) -> Result<ParamTree, Failure> {
        if let Some(checkpoint) = self.checkpoint {
            let weights = checkpoint.model().map_err(Failure::request)?;
            return load_parts(model, &weights, device, shard).map_err(Failure::request);
        }
        let seed = Seed::new(self.seed).fold_str("init");
        match self.pretrained {
            Some(pretrained) => pretrained
                .load(model, seed, device, shard)
                .map_err(Failure::request),
            None => {
                ParamTree::init_sharded(&model.params(), seed, device, shard).map_err(Failure::run)
            }
        }
    }

    /// The model as it is before the first step, whatever the checkpoint holds, its matrices held as `dtype`, or as the base of
    /// the adapter is. `share` gives parameters hooks that make them whole.
    pub(crate) fn initial(
        &self,
        adapter: Option<&Adapter>,
        model: &dyn Model,
        dtype: BaseDType,
        device: Device,
        shard: &dyn Fn(&ParamSpec) -> Shard,
        share: impl Fn(ParamTree) -> Result<(ParamTree, Option<Arc<Sharded>>), Failure>,
    ) -> Result<Initial, Failure> {
        let begun = Sources {
            checkpoint: None,
            ..*self
        };
        let (params, origin, dtype) = match adapter {
            Some(adapter) => {
                let gather = |base| share(base).map(|(base, _)| base);
                let (params, adapted) =
                    begun.adapted(adapter.clone(), model, device, shard, gather)?;
                (params, adapted.base.origin, adapted.base.dtype)
            }
            None => {
                let (base, origin) = begun.base(model, dtype, device, shard)?;
                (base, origin, dtype)
            }
        };
        let (params, ranks) = share(params)?;
        Initial::new(params, origin, dtype, ranks).map_err(Failure::run)
    }

    /// The parameters that everything begins with, matrices held as `dtype`, and where they are from.
    fn base(
        &self,
        model: &dyn Model,
        dtype: BaseDType,
        device: Device,
        shard: &dyn Fn(&ParamSpec) -> Shard,
    ) -> Result<(ParamTree, BaseOrigin), Failure> {
        let (base, origin) = match self.pretrained {
            Some(pretrained) => (
                pretrained.load_base(model, dtype, device, shard),
                BaseOrigin::Pretrained(pretrained.name()),
            ),
            None => (
                draw_base(model, self.seed, dtype, device, shard),
                BaseOrigin::Seed(self.seed),
            ),
        };
        Ok((base.map_err(Failure::request)?, origin))
    }

    /// The frozen parameters of `model` and after them the adapter's, of each the part that `shard` says. A checkpoint holds
    /// the adapter alone. `gather` gives the frozen ones hooks that make them whole.
    pub(crate) fn adapted(
        &self,
        adapter: Adapter,
        model: &dyn Model,
        device: Device,
        shard: &dyn Fn(&ParamSpec) -> Shard,
        gather: impl FnOnce(ParamTree) -> Result<ParamTree, Failure>,
    ) -> Result<(ParamTree, Adapted), Failure> {
        let dtype = adapter.lora.config().base_dtype;
        let (base, origin) = self.base(model, dtype, device, shard)?;
        let base = gather(base)?;
        let adapted = Adapted::new(adapter.lora, &base, origin).map_err(Failure::run)?;
        let params = match (self.checkpoint, adapter.saved) {
            (Some(checkpoint), _) => adapted.resume(&base, checkpoint, device, shard),
            (None, Some(saved)) => {
                warn_of_another_base(&saved, &adapted.base)?;
                load_adapter(&adapted.lora, &base, &saved.weights, device, shard)
            }
            (None, None) => adapted.draw(&base, self.seed, device, shard),
        };
        Ok((params.map_err(Failure::request)?, adapted))
    }
}

/// An adapter may be put on another base than its own, on purpose; seldom on purpose.
fn warn_of_another_base(saved: &SavedAdapter, base: &Base) -> Result<(), Failure> {
    let remembered = TrainState::read_in(&saved.dir).map_err(Failure::request)?;
    let own = match remembered.and_then(|state| state.base) {
        Some(own) if own.fingerprint == base.fingerprint => return Ok(()),
        Some(own) => own.origin.to_string(),
        // Of peft's there is but a name, which may be the Hub's for a folder here.
        None => {
            let Some(own) = saved.config["base_model_name_or_path"].as_str() else {
                return Ok(());
            };
            let last = |path: &str| Path::new(path).file_name().map(ToOwned::to_owned);
            if let BaseOrigin::Pretrained(path) = &base.origin
                && last(path) == last(own)
            {
                return Ok(());
            }
            own.to_owned()
        }
    };
    out::error_line(format_args!(
        "warning: the adapter {} was trained on {own}; here it is put on {}",
        saved.dir.display(),
        base.origin
    ));
    Ok(())
}
