//! A model's parameters from a checkpoint's tensors.

use tt_checkpoint::{Allow, StrictError, Weights, matches};
use tt_models::{Model, TensorNames};
use tt_nn::{ParamSpec, ParamTree};
use tt_tensor::{Device, Seed, Shard, Tensor};

use crate::error::{Error, Result};

/// What is done where weights lack the model's head.
#[derive(Clone, Copy)]
pub(crate) enum Head {
    /// It is an error.
    Due,
    /// It is drawn from this seed.
    New(Seed),
    /// The parameters are without it.
    LeftOut,
}

/// That `weights` holds just the parameters of `model`, by the names that the model gives them; of its head all or none, see
/// [`lacks_head`]. Error: every missing, unexpected or misshapen tensor at once.
pub fn check_weights(model: &dyn Model, weights: &Weights) -> std::result::Result<(), StrictError> {
    let (names, mut specs) = (model.tensor_names(), model.params());
    if lacks_head(model, weights) {
        specs.retain(|spec| !is_of_head(spec, &names));
    }
    let found = |spec: &ParamSpec| names.found(&spec.path, |name| weights.contains(name));
    let found: Vec<_> = specs.iter().map(found).collect();
    let shapes = specs.iter().map(|spec| spec.shape.as_slice());
    let copies = names.copies().iter().map(|(name, _)| *name);
    let unexpected = Allow::BUFFERS.unexpected.iter().chain(names.ignored());
    let unexpected = unexpected.chain(names.lacked()).copied();
    let unexpected: Vec<_> = unexpected.chain(copies).collect();
    let allow = Allow {
        unexpected: &unexpected,
        ..Allow::BUFFERS
    };
    weights.check(found.iter().map(String::as_str).zip(shapes), &allow)
}

/// Whether `weights` are of a model without its head, as those of `BertModel` are: of what `model` has for a head beyond the
/// rest they hold nothing.
pub fn lacks_head(model: &dyn Model, weights: &Weights) -> bool {
    let (names, specs) = (model.tensor_names(), model.params());
    let is_there = |spec: &ParamSpec| {
        let found = names.found(&spec.path, |name| weights.contains(name));
        weights.contains(&found)
    };
    let mut of_head = specs.iter().filter(|spec| is_of_head(spec, &names));
    let first = of_head.next();
    first.is_some_and(|first| !is_there(first) && !of_head.any(is_there))
}

fn is_of_head(spec: &ParamSpec, names: &TensorNames) -> bool {
    let mut patterns = names.head().iter();
    patterns.any(|pattern| matches(pattern, &spec.path))
}

/// Weights in a file of parts that `model` lacks, which are not read.
pub fn passed_over(model: &dyn Model, weights: &Weights) -> Vec<String> {
    let names = model.tensor_names();
    let is_lacked = |name: &&str| names.lacked().iter().any(|pattern| matches(pattern, name));
    let mut found: Vec<_> = weights
        .names()
        .filter(is_lacked)
        .map(str::to_owned)
        .collect();
    found.sort_unstable();
    found
}

/// Loads every parameter of `model`, as f32. Errors: every missing, unexpected or misshapen tensor at once; a second copy
/// of a tied weight that differs; no head.
pub fn load_params(model: &dyn Model, weights: &Weights, device: Device) -> Result<ParamTree> {
    load_parts(model, weights, device, &ParamSpec::whole)
}

/// Like [`load_params`], without the head where `weights` lack it: for [`Model::encode`].
pub fn load_body(model: &dyn Model, weights: &Weights, device: Device) -> Result<ParamTree> {
    let whole = &ParamSpec::whole;
    load_params_with(model, weights, device, whole, Head::LeftOut, |_, it| Ok(it))
}

/// Like [`load_params`], of each parameter the part that `shard` says.
pub fn load_parts(
    model: &dyn Model,
    weights: &Weights,
    device: Device,
    shard: &dyn Fn(&ParamSpec) -> Shard,
) -> Result<ParamTree> {
    load_params_with(model, weights, device, shard, Head::Due, |_, it| Ok(it))
}

/// Like [`load_parts`], with a head drawn from `seed` where `weights` lack it, as [`ParamTree::init_sharded`] draws it.
pub fn load_to_train(
    model: &dyn Model,
    weights: &Weights,
    seed: Seed,
    device: Device,
    shard: &dyn Fn(&ParamSpec) -> Shard,
) -> Result<ParamTree> {
    let head = Head::New(seed);
    load_params_with(model, weights, device, shard, head, |_, it| Ok(it))
}

/// Like [`load_parts`], each value changed by `hold` before the next is read.
pub(crate) fn load_params_with(
    model: &dyn Model,
    weights: &Weights,
    device: Device,
    shard: &dyn Fn(&ParamSpec) -> Shard,
    head: Head,
    hold: impl Fn(&ParamSpec, Tensor) -> tt_tensor::Result<Tensor>,
) -> Result<ParamTree> {
    check_weights(model, weights).map_err(Box::new)?;
    check_copies(model, weights)?;
    let (names, mut specs) = (model.tensor_names(), model.params());
    let lacked = lacks_head(model, weights).then_some(head);
    match lacked {
        Some(Head::Due) => {
            return Err(Error::State(format!(
                "{} is of a model without its head, so it predicts no token: `embed` makes vectors of its hidden states, and training without an adapter gives it a new head",
                weights.path().display()
            )));
        }
        Some(Head::LeftOut) => specs.retain(|spec| !is_of_head(spec, &names)),
        _ => {}
    }
    let mut values = Vec::new();
    let mut failed = None;
    let params = ParamTree::build_sharded(&specs, shard, |spec, shard| {
        if let Some(Head::New(seed)) = lacked
            && is_of_head(spec, &names)
        {
            return Ok(hold(spec, spec.draw_part(seed, device, shard)?)?);
        }
        let name = names.found(&spec.path, |name| weights.contains(name));
        if let Err(error) = weights.read_f32_runs(&name, shard.runs(), &mut values) {
            // ParamTree knows no files: hold the error back and let the tree end early.
            failed.get_or_insert(error);
            values.clear();
        }
        let value = Tensor::from_slice(&values, shard.local_shape(), device)?;
        Ok(hold(spec, value)?)
    });
    match failed {
        Some(error) => Err(Error::Checkpoint(error)),
        None => Ok(params?),
    }
}

fn check_copies(model: &dyn Model, weights: &Weights) -> Result<()> {
    let names = model.tensor_names();
    let [mut copy, mut original] = [Vec::new(), Vec::new()];
    for (name, path) in names.copies() {
        if !weights.contains(name) {
            continue;
        }
        let of = names.found(path, |name| weights.contains(name));
        weights.read_f32(name, &mut copy)?;
        weights.read_f32(&of, &mut original)?;
        if copy != original {
            let why = format!(
                "`{name}` is not `{of}`, to which this model ties it; of a model with a head of its own config.json says \"tie_word_embeddings\": false"
            );
            return Err(Error::State(format!("{}: {why}", weights.path().display())));
        }
    }
    Ok(())
}
