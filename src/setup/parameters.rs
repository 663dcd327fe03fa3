//! The parameters that a run starts from: a checkpoint's, pretrained ones or new ones, with an adapter or without.

use tt_checkpoint::Checkpoint;
use tt_models::Model;
use tt_nn::ParamTree;
use tt_tensor::{Device, Seed};
use tt_train::{Adapted, BaseOrigin, draw_base, load_adapter, load_params};

use crate::failure::Failure;
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
    /// The parameters of `model`.
    pub(crate) fn whole(&self, model: &dyn Model, device: Device) -> Result<ParamTree, Failure> {
        if let Some(checkpoint) = self.checkpoint {
            let weights = checkpoint.model().map_err(Failure::request)?;
            return load_params(model, &weights, device).map_err(Failure::request);
        }
        match self.pretrained {
            Some(pretrained) => pretrained.load(model, device).map_err(Failure::request),
            None => {
                let seed = Seed::new(self.seed).fold_str("init");
                ParamTree::init(&model.params(), seed, device).map_err(Failure::run)
            }
        }
    }

    /// The frozen parameters of `model` and after them the adapter's. A checkpoint holds the adapter alone.
    pub(crate) fn adapted(
        &self,
        adapter: Adapter,
        model: &dyn Model,
        device: Device,
    ) -> Result<(ParamTree, Adapted), Failure> {
        let dtype = adapter.lora.config().base_dtype;
        let (base, origin) = match self.pretrained {
            Some(pretrained) => (
                pretrained.load_base(model, dtype, device),
                BaseOrigin::Pretrained(pretrained.name()),
            ),
            None => (
                draw_base(model, self.seed, dtype, device),
                BaseOrigin::Seed(self.seed),
            ),
        };
        let base = base.map_err(Failure::request)?;
        let adapted = Adapted::new(adapter.lora, &base, origin).map_err(Failure::run)?;
        let params = match (self.checkpoint, adapter.saved) {
            (Some(checkpoint), _) => adapted.resume(&base, checkpoint, device),
            (None, Some(saved)) => load_adapter(&adapted.lora, &base, &saved.weights, device),
            (None, None) => adapted.draw(&base, self.seed, device),
        };
        Ok((params.map_err(Failure::request)?, adapted))
    }
}
