//! The model that answers are compared with: what there was before the first step.
//!
//! It is the base of the adapter that is trained, run with the adapter switched off; or a frozen copy of the model that the run
//! begins with; or what that made of every answer, computed once and kept on disk.
//!
//! A run that goes on has the reference it was begun with: a copy is made from where the first one was, and its fingerprint,
//! which is in the trainer's state, must be the same.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tt_adapters::{BaseDType, Bias, LoraConfig};
use tt_collators::Pipeline;
use tt_models::Model;
use tt_nn::{Forward, ParamTree};
use tt_tensor::{Device, Tensor};
use tt_train::{Base, DeviceBatch, Error, Initial, Result, Training};

use super::log_probs::Answers;
use super::log_probs_cache::{self, FIELD};

/// `trainer.kwargs.reference`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReferenceModel {
    /// The adapter switched off, where one is trained that begins as nothing, else a copy.
    Auto,
    /// The base model of the adapter that is trained: no second copy.
    AdapterOff,
    /// A frozen copy of the model that training begins with.
    Copy,
    /// The log-probabilities of all answers, computed ahead and kept in the user's cache folder.
    Precomputed,
}

/// Where the reference's log-probabilities are from.
pub(super) struct Reference {
    kind: ReferenceModel,
    dtype: BaseDType,
    source: Source,
    /// Of a copy: what it was made of.
    base: Option<Base>,
    /// What the checkpoint says that the run goes on from.
    saved: Option<Saved>,
}

enum Source {
    /// Not yet known.
    Unknown,
    AdapterOff(ParamTree),
    Copy(Initial),
    /// A number in each row of the batches.
    Field,
}

/// The trainer's state in a checkpoint.
#[derive(Default, Serialize, Deserialize)]
struct Saved {
    reference: Option<ReferenceModel>,
    base: Option<Base>,
}

const KEY: &str = "trainer.kwargs.reference";

fn refuse(why: &str) -> Error {
    Error::Config {
        key: KEY,
        why: why.to_owned(),
    }
}

impl Reference {
    pub(super) fn new(kind: ReferenceModel, dtype: BaseDType) -> Self {
        Self {
            kind,
            dtype,
            source: Source::Unknown,
            base: None,
            saved: None,
        }
    }

    /// What a copy is to be held in, if there is to be one. Errors: `adapter_off` without an adapter, or with one that changes
    /// the base too.
    pub(super) fn initial_model(&self, adapter: Option<&LoraConfig>) -> Result<Option<BaseDType>> {
        let changes_base = adapter.is_some_and(|it| it.bias != Bias::None);
        let begins_as_nothing = adapter.is_some_and(|it| it.adapter_url.is_none());
        match self.kind {
            ReferenceModel::AdapterOff if adapter.is_none() => Err(refuse(
                "adapter_off, but no adapter is trained: model/adapter=lora trains one; copy and precomputed do without",
            )),
            ReferenceModel::AdapterOff if changes_base => Err(refuse(
                "adapter_off, but model.adapter.bias trains biases of the base as well, which then is no reference: copy or precomputed",
            )),
            ReferenceModel::AdapterOff => Ok(None),
            ReferenceModel::Auto | ReferenceModel::Precomputed
                if begins_as_nothing && !changes_base =>
            {
                Ok(None)
            }
            ReferenceModel::Auto | ReferenceModel::Copy | ReferenceModel::Precomputed => {
                Ok(Some(self.dtype))
            }
        }
    }

    /// Takes the copy that was made for it, if there is one. Error: it is another than the run was begun with.
    pub(super) fn take(&mut self, training: &mut Training) -> Result<()> {
        if let Some(initial) = &training.initial {
            if let Some(saved) = &self.saved {
                let Some(base) = &saved.base else {
                    return Err(foreign_checkpoint());
                };
                initial.check(base)?;
            }
            self.base = Some(initial.base.clone());
        } else if self.saved.as_ref().is_some_and(|it| it.reference.is_none()) {
            return Err(foreign_checkpoint());
        }
        if self.kind == ReferenceModel::Precomputed && matches!(training.device, Device::Meta(_)) {
            self.source = Source::Field;
            training.initial = None; // it is gone by the first step
            return Ok(());
        }
        self.source = match training.initial.take() {
            Some(initial) => Source::Copy(initial),
            None if training.params.has_adapter() => {
                Source::AdapterOff(training.params.without_adapter())
            }
            None => {
                return Err(refuse(
                    "no copy of the model before the first step was made",
                ));
            }
        };
        Ok(())
    }

    /// Computes what is missing of the log-probabilities of all answers, if they are to be computed ahead, and puts them into
    /// the batches to come; the model that they are computed with is not kept then. Without this call, as in `eval`, it is
    /// asked for each batch.
    pub(super) fn compute_ahead(
        &mut self,
        training: &mut Training,
        data: &mut Pipeline,
    ) -> Result<Option<String>> {
        if self.kind != ReferenceModel::Precomputed {
            return Ok(None);
        }
        if training.ranks().is_some() {
            return Err(refuse(
                "precomputed is for one rank: run one step of it on a single rank, or take copy or adapter_off",
            ));
        }
        let (params, fingerprint) = match std::mem::replace(&mut self.source, Source::Field) {
            Source::Copy(Initial { params, base, .. }) => (params, base.fingerprint),
            Source::AdapterOff(params) => {
                let adapted = training.adapter.as_ref();
                let adapted = adapted.ok_or_else(|| refuse("no model to compute with"))?;
                (params, adapted.base.fingerprint.clone())
            }
            Source::Unknown | Source::Field => return Err(refuse("no model to compute with")),
        };
        let pass = log_probs_cache::Pass {
            model: &*training.model,
            params: &params,
            fingerprint: &fingerprint,
            precision: training.precision,
            device: training.device,
        };
        let (values, said) = log_probs_cache::complete(&pass, data)?;
        data.add_row_values(FIELD, values)?;
        drop(params);
        training.device.trim();
        Ok(Some(said))
    }

    /// `log p` of each row's answer, f32 `[B]`, untracked; `None` on a device without memory, to which nothing was given to
    /// compare with.
    pub(super) fn log_probs(
        &self,
        fwd: &Forward,
        model: &dyn Model,
        batch: &DeviceBatch,
    ) -> Result<Option<Tensor>> {
        let is_rehearsed = matches!(batch.targets.device(), Device::Meta(_));
        let of = |params: &ParamTree| {
            let fwd = Forward::inference(params).with_precision(fwd.precision());
            Ok(Some(Answers::of(&fwd, model, batch)?.log_probs))
        };
        match &self.source {
            Source::AdapterOff(params) => of(params),
            Source::Copy(initial) => {
                let log_probs = of(&initial.params);
                initial.release();
                log_probs
            }
            Source::Unknown | Source::Field if is_rehearsed => Ok(None),
            Source::Field => Ok(Some(batch.field(FIELD)?.clone())),
            Source::Unknown => Err(Error::Trainer(
                "it has no reference before it is told of the run (post_init)".to_owned(),
            )),
        }
    }

    pub(super) fn state(&self) -> Value {
        let base = &self.base;
        json!({"reference": self.kind, "base": base})
    }

    pub(super) fn restore(&mut self, state: &Value) -> Result<()> {
        let saved = match state {
            Value::Null => Saved::default(),
            state => serde_json::from_value(state.clone())
                .map_err(|error| Error::State(format!("the trainer's state: {error}")))?,
        };
        self.saved = Some(saved);
        Ok(())
    }
}

fn foreign_checkpoint() -> Error {
    let why = "it is of a run that compares with no such reference model: give it as model.pretrained_url, with resume=none, \
               to begin with its weights";
    Error::State(why.to_owned())
}
