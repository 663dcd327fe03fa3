//! A model that reads a growing text, the new tokens only where its cache holds the rest.

use tt_models::{Generation, Input, Model};
use tt_nn::{Forward, KvCache, ParamTree};
use tt_tensor::{Device, Tensor, fused};

use crate::Result;

pub(crate) struct Reader<'a> {
    model: &'a dyn Model,
    plain: Forward,
    /// The pass that continues the cache, until the model is found not to fill it.
    cached: Option<(Forward, KvCache)>,
    device: Device,
}

impl<'a> Reader<'a> {
    pub fn new(model: &'a dyn Model, params: &ParamTree) -> Result<Self> {
        let plain = Forward::inference(params);
        let cached = (model.generation() == Generation::Cached).then(|| {
            let cache = KvCache::new();
            (plain.clone().with_cache(&cache), cache)
        });
        let device = model.output(&plain)?.weight.device();
        Ok(Self {
            model,
            plain,
            cached,
            device,
        })
    }

    /// Logits `[vocab]` of what follows `text`, which continues the text of the call before.
    pub fn logits(&mut self, text: &[u32]) -> Result<Vec<f32>> {
        if let Some((fwd, cache)) = &self.cached {
            let seen = cache.len();
            let logits = self.continued(fwd, text, seen)?;
            // A block that looked at earlier tokens has them in the cache; one that has not would not see them next time.
            let blocks = self.model.blocks().len().max(1);
            let filled = cache.modules_with(text.len());
            if filled.is_some_and(|modules| modules >= blocks) {
                return Ok(logits);
            }
            self.cached = None;
            if seen == 0 {
                return Ok(logits);
            }
        }
        self.continued(&self.plain, text, 0)
    }

    fn continued(&self, fwd: &Forward, text: &[u32], seen: usize) -> Result<Vec<f32>> {
        let new = &text[seen..];
        let ids = Tensor::from_slice(new, (1, new.len()), self.device)?;
        let input = Input::continuing(ids, seen)?;
        let hidden = self.model.hidden_states(fwd, &input)?; // [1, T, hidden]
        let last = hidden.narrow(1, new.len() - 1, 1)?;
        let logits = fused::logits(&last, &self.model.output(fwd)?)?; // [1, 1, vocab]
        Ok(logits.to_vec::<f32>()?)
    }
}
