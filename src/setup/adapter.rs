//! `model.adapter`: small weights that are trained on a frozen model, instead of the model.

use std::sync::Arc;

use tt_adapters::{Lora, LoraConfig, Saved};
use tt_checkpoint::SavedAdapter;
use tt_config::{Composition, Diagnostic, Diagnostics, Node, Place};
use tt_models::Model;
use tt_nn::{ParamSpec, ParamTree};
use tt_tensor::{Device, Seed, Shard};
use tt_train::draw_base;

use crate::setup::hub::{self, Need};

const KEY: &str = "model.adapter";

/// The adapter that the configuration asks for, not yet on any weights.
#[derive(Clone)]
pub(crate) struct Adapter {
    pub(crate) lora: Arc<Lora>,
    /// What `adapter_url` names: the weights to start from.
    pub(crate) saved: Option<Arc<SavedAdapter>>,
}

impl Adapter {
    /// Reads the configuration, if it asks for an adapter of `model`. Errors point at the target or the key at fault.
    pub(crate) fn read(
        composition: &Composition,
        model: &dyn Model,
    ) -> Result<Option<Self>, Diagnostics> {
        let section = composition.section(KEY);
        if section.node().is_none_or(Node::is_null) {
            return Ok(None);
        }
        let (config, specs): (LoraConfig, _) = (section.extract()?, model.params());
        let Some(url) = config.adapter_url.clone() else {
            let lora = Lora::new(config, &specs).map_err(|error| located(composition, error))?;
            return Ok(Some(Self {
                lora: Arc::new(lora),
                saved: None,
            }));
        };
        let key = section.section("adapter_url");
        let refuse = |why: String| Diagnostics::from(key.error(format!("`{}`: {why}", key.path())));
        let folder = hub::local(&url, Need::Weights).map_err(|error| refuse(chain(error)))?;
        let found = SavedAdapter::open(&folder).map_err(|error| refuse(error.to_string()))?;
        let saved = found
            .ok_or_else(|| refuse(format!("{} holds no adapter_config.json", folder.display())))?;
        let lora = Lora::from_peft(&peft(&saved), config.clone(), &specs)
            .map_err(|error| refuse(format!("{}: {error}", folder.display())))?;
        agrees_with_command_line(composition, &config, &lora, &specs)?;
        Ok(Some(Self {
            lora: Arc::new(lora),
            saved: Some(Arc::new(saved)),
        }))
    }

    /// New weights of `model` and a new adapter on them.
    pub(crate) fn on_new_weights(
        &self,
        model: &dyn Model,
        device: Device,
        shard: &dyn Fn(&ParamSpec) -> Shard,
    ) -> tt_train::Result<ParamTree> {
        let base = draw_base(model, 0, self.lora.config().base_dtype, device, shard)?;
        self.lora.freeze(&base);
        let own = ParamTree::init_sharded(&self.lora.params(), Seed::new(0), device, shard)?;
        Ok(base.with_adapter(self.lora.clone(), &own)?)
    }
}

/// An error with its causes, on one line.
fn chain(error: impl Into<anyhow::Error>) -> String {
    format!("{:#}", error.into())
}

/// A saved adapter as the crate of adapters sees it.
pub(crate) fn peft(saved: &SavedAdapter) -> Saved<'_> {
    Saved {
        config: &saved.config,
        tensors: saved.weights.names().collect(),
    }
}

/// The error at the target it is about.
fn located(composition: &Composition, error: tt_adapters::Error) -> Diagnostics {
    use tt_adapters::Error;
    let key = format!("{KEY}.target_modules");
    let message = format!("`{key}`: {error}");
    let at = match error {
        Error::Target { index, .. }
        | Error::UnmatchedTarget { index, .. }
        | Error::NotLinear { index, .. } => composition.get(&format!("{key}.{index}")),
        Error::PeftConfig { .. } | Error::UnknownTensor { .. } => None,
    };
    match at {
        Some(node) => Diagnostic::new(message).at(&node.origin).into(),
        None => composition.section(&key).error(message).into(),
    }
}

/// The adapter at `adapter_url` decides over the configuration files; what the command line says was asked for, so it
/// must agree.
fn agrees_with_command_line(
    composition: &Composition,
    ours: &LoraConfig,
    lora: &Lora,
    specs: &[ParamSpec],
) -> Result<(), Diagnostics> {
    let theirs = lora.config();
    let same_layers = ours
        .target_modules
        .resolve(specs)
        .is_ok_and(|layers| layers == lora.layers());
    let keys = [
        ("r", ours.r == theirs.r),
        ("lora_alpha", ours.lora_alpha == theirs.lora_alpha),
        ("use_rslora", ours.use_rslora == theirs.use_rslora),
        ("bias", ours.bias == theirs.bias),
        ("target_modules", same_layers),
    ];
    let mut problems = Diagnostics::new();
    for (key, agrees) in keys {
        let path = format!("{KEY}.{key}");
        let asked = composition.get(&path);
        let asked = asked.filter(|node| matches!(node.origin.place, Place::Argument(_)));
        if let Some(node) = asked.filter(|_| !agrees) {
            problems.push(
                Diagnostic::new(format!("`{path}` contradicts the adapter"))
                    .at(&node.origin)
                    .label("its adapter_config.json says otherwise"),
            );
        }
    }
    problems.into_result(())
}
