//! Two variants of a run compared: one step of each on the same batch from the same weights, tensor by tensor.
//!
//! The first variant is recorded ([`Recording::of`]), the second compared with it as it computes
//! ([`Recording::compare`]), so that one set of values is held, in f32 on the host: what goes into modules and comes out
//! of them, their gradients, and three times the parameters (values, gradients, updates), whole whatever ranks share.
//! Tensors are compared in the order in which the first variant has computed them, micro-batch by micro-batch, so the
//! first that diverges is where to look: what it was made of agreed. Both optimizers are given the gradients of the first
//! variant: many make the same step of a small gradient as of a large one, so that of gradients that are noise they would
//! make updates that have nothing in common.
//!
//! A variant may be on several ranks: all of them observe one step ([`Observer::observe`]), and what one sees of its
//! micro-batches is compared with what the other variant's rank for them has seen.

mod difference;
mod probe;
mod tolerance;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tt_collators::Batch;
use tt_nn::ParamSpec;
use tt_tensor::Precision;

pub use difference::Difference;
pub use probe::{Observed, Observer, Role};
pub use tolerance::Tolerance;

use crate::error::{Error, Result};
use probe::{Key, Seen, Sink, Start, Step, Weights};

/// A step of the first variant.
pub struct Recording {
    seen: Vec<Kept>,
    step: Step,
    weights: Weights,
    classes: HashMap<String, &'static str>,
    batches: Vec<Batch>,
    precision: Precision,
    /// By position in `seen`, what a change of the weights did to the tensor; empty if that was not measured.
    sensitivity: Vec<f64>,
}

struct Kept {
    key: Key,
    within: String,
    shape: Vec<usize>,
    values: Arc<[f32]>,
}

/// What came of comparing two variants.
pub struct Comparison {
    /// In the order in which the first variant has computed them.
    pub tensors: Vec<Compared>,
    /// Tensors that only the first variant has, or that only the second has.
    pub unmatched: [Vec<(Role, String)>; 2],
    /// How far the two may differ.
    pub tolerance: Tolerance,
    /// Mean losses of the two.
    pub losses: [f32; 2],
    /// Global L2 norms of the two gradients of the mean loss, before clipping.
    pub grad_norms: [f64; 2],
    /// Learning rates of the step.
    pub lr: [f64; 2],
    /// Whether the step reached the weights: its loss and gradients were as they should be.
    pub is_applied: [bool; 2],
}

/// One tensor of both variants.
pub struct Compared {
    /// What it is in the step.
    pub role: Role,
    /// The path of the module or the weight; `loss`, `grad_norm`.
    pub tensor: String,
    /// Of a module that is used several times: which time, from 0, in the order of the pass.
    pub call: usize,
    /// Of a step of several micro-batches: which of them, from 0; `None` for what is of the whole step.
    pub micro_batch: Option<usize>,
    /// Of the module `tensor`.
    pub class: Option<&'static str>,
    /// The module whose code has computed it, and its class; "" for the model itself, the loss and the optimizer.
    pub within: String,
    /// The class of module that it is inside of.
    pub within_class: Option<&'static str>,
    /// Its shape.
    pub shape: Vec<usize>,
    /// How the two sides differ.
    pub difference: Difference,
    /// The relative L2 difference that the tolerance judges: small norms count as a floor.
    pub error: f64,
    /// The greatest difference that rounding explains.
    pub allowed: f64,
}

impl Compared {
    /// Whether they differ by more than that.
    pub fn diverges(&self) -> bool {
        self.error > self.allowed
    }
}

impl Comparison {
    /// Position of the first tensor that diverges.
    pub fn first_divergence(&self) -> Option<usize> {
        self.tensors.iter().position(Compared::diverges)
    }

    /// Everything there is to compare agrees within the tolerance.
    pub fn agrees(&self) -> bool {
        self.first_divergence().is_none() && self.is_applied[0] == self.is_applied[1]
    }
}

/// That two models have the same parameters: what a comparison of their steps takes.
pub fn check_parameters(a: &[ParamSpec], b: &[ParamSpec]) -> Result<()> {
    let shapes = |specs: &[ParamSpec]| -> HashMap<String, Vec<usize>> {
        let specs = specs.iter();
        specs
            .map(|spec| (spec.path.clone(), spec.shape.clone()))
            .collect()
    };
    let (of_a, of_b) = (shapes(a), shapes(b));
    let all = a.iter().chain(b);
    let differing = all
        .map(|spec| &spec.path)
        .find(|path| of_a.get(*path) != of_b.get(*path));
    let Some(path) = differing else {
        return Ok(());
    };
    let shape = |of: &HashMap<String, Vec<usize>>| match of.get(path) {
        Some(shape) => format!("{shape:?}"),
        None => "none".to_owned(),
    };
    Err(Error::Variants(format!(
        "their parameters differ: `{path}` is {} in A and {} in B",
        shape(&of_a),
        shape(&of_b)
    )))
}

/// That two variants have the same micro-batches.
pub fn check_batches(a: &[Batch], b: &[Batch]) -> Result<()> {
    let mut pairs = a.iter().zip(b);
    let differs = match pairs.find(|(a, b)| a != b) {
        None if a.len() == b.len() => return Ok(()),
        None => format!("{} micro-batches in A and {} in B", a.len(), b.len()),
        Some((a, b)) if (a.rows, a.seq_len) != (b.rows, b.seq_len) => {
            let sizes = |batch: &Batch| format!("{} x {}", batch.rows, batch.seq_len);
            format!("{} tokens in A and {} in B", sizes(a), sizes(b))
        }
        Some(_) => "of one shape, but not the same tokens".to_owned(),
    };
    Err(Error::Variants(format!(
        "their first batches differ: {differs}; `data`, `seed` and `trainer.micro_batch_size` must be the same"
    )))
}

/// Has a step observed by all ranks that `run` makes it on; gives what is said of it by the first, and what was seen.
fn watch<S: Sink, E: From<Error>>(
    batches: &[Batch],
    start: Option<Start>,
    sink: S,
    run: impl FnOnce(&Observer) -> std::result::Result<Observed, E>,
) -> std::result::Result<(S, Observed), E> {
    let sink = Arc::new(Mutex::new(Some(sink)));
    let observed = run(&Observer::new(batches, start, sink.clone()))?;
    let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
    Ok((sink.take().expect("taken once"), observed))
}

impl Recording {
    /// Of a step on `batches`, which `run` makes: all ranks of the variant [observe](Observer::observe), and the first's
    /// word is given back.
    pub fn of<E: From<Error>>(
        batches: &[Batch],
        run: impl FnOnce(&Observer) -> std::result::Result<Observed, E>,
    ) -> std::result::Result<Self, E> {
        let (mut recorder, observed) = watch(batches, None, Recorder::default(), run)?;
        // Ranks have run theirs side by side.
        recorder.seen.sort_by_key(|kept| {
            let micro_batch = kept.key.micro_batch;
            (micro_batch.is_none() && batches.len() > 1, micro_batch)
        });
        let Observed {
            step,
            weights,
            classes,
            precision,
        } = observed;
        Ok(Self {
            seen: recorder.seen,
            step,
            weights,
            classes,
            batches: batches.to_vec(),
            precision,
            sensitivity: Vec::new(),
        })
    }

    /// The precision of the first variant.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Makes the step a second time, of the same variant, with every weight changed by the roundoff of `other`, the second
    /// variant's precision, or of its own: what that does to a tensor, rounding may do.
    pub fn measure_sensitivity<E: From<Error>>(
        &mut self,
        other: Precision,
        again: impl FnOnce(&Observer) -> std::result::Result<Observed, E>,
    ) -> std::result::Result<(), E> {
        let roundoff = |precision| tolerance::unit_roundoff(precision);
        let relative = f64::max(roundoff(self.precision), roundoff(other));
        let start = Start {
            weights: self.weights.perturbed(relative as f32),
            gradients: self.gradients(),
        };
        let measurer = Measurer {
            index: index(&self.seen),
            sensitivity: vec![0.0; self.seen.len()],
            noise: self.noise(),
            recorded: std::mem::take(&mut self.seen),
        };
        let (measurer, _) = watch(&self.batches, Some(start), measurer, again)?;
        self.seen = measurer.recorded;
        self.sensitivity = measurer.sensitivity;
        Ok(())
    }

    /// Those of the weights, which both optimizers are given.
    fn gradients(&self) -> HashMap<String, Arc<[f32]>> {
        let of_weights = self.seen.iter();
        let of_weights = of_weights.filter(|kept| kept.key.role == Role::WeightGradient);
        of_weights
            .map(|kept| (kept.key.tensor.clone(), kept.values.clone()))
            .collect()
    }

    /// Norm below which a gradient of a weight is noise.
    fn noise(&self) -> f64 {
        tolerance::NOISE_FLOOR * f64::from(self.step.grad_norm) * f64::from(self.step.weight)
    }

    /// Compares with the same step of the second variant, in the precision `other`, which `run` makes from the recorded
    /// weights.
    ///
    /// `relative` is the tolerance; without it, it is that of the variants' precisions.
    pub fn compare<E: From<Error>>(
        self,
        other: Precision,
        relative: Option<f64>,
        run: impl FnOnce(&Observer) -> std::result::Result<Observed, E>,
    ) -> std::result::Result<Comparison, E> {
        let (gradients, noise) = (self.gradients(), self.noise());
        let Self {
            seen,
            step,
            weights,
            classes,
            batches,
            precision,
            sensitivity,
        } = self;
        let tolerance = match relative {
            Some(relative) => Tolerance::uniform(relative),
            None => Tolerance::between(precision, other),
        };
        let start = Start {
            weights: weights.clone(),
            gradients,
        };
        let comparer = Comparer {
            index: index(&seen),
            // A tolerance that was given is meant as it is.
            sensitivity: relative.map_or(sensitivity, |_| Vec::new()),
            compared: seen.iter().map(|_| None).collect(),
            roundings: roundings(&seen),
            recorded: seen.into_iter().map(Some).collect(),
            weights,
            classes,
            tolerance,
            noise,
            only_second: Vec::new(),
        };
        let (comparer, Observed { step: other, .. }) = watch(&batches, Some(start), comparer, run)?;
        let only_first = comparer.recorded.into_iter().flatten();
        let only_first = only_first.map(|kept| (kept.key.role, kept.key.tensor));
        let tensors: Vec<Compared> = comparer.compared.into_iter().flatten().collect();
        // Of the gradients that each has computed; the second optimizer was given the first one's.
        let grad_norm = |variant: usize, weight: f32| {
            let gradients = tensors.iter().filter(|it| it.role == Role::WeightGradient);
            let squares: f64 = gradients
                .map(|it| it.difference.norms[variant].powi(2))
                .sum();
            squares.sqrt() / f64::from(weight)
        };
        Ok(Comparison {
            grad_norms: [grad_norm(0, step.weight), grad_norm(1, other.weight)],
            tensors,
            unmatched: [only_first.collect(), comparer.only_second],
            tolerance,
            losses: [step.loss, other.loss],
            lr: [step.lr, other.lr],
            is_applied: [step.is_applied, other.is_applied],
        })
    }
}

fn index(seen: &[Kept]) -> HashMap<Key, usize> {
    seen.iter().map(|kept| kept.key.clone()).zip(0..).collect()
}

/// For each tensor, how many outputs of modules and gradients of outputs of its micro-batch there are up to it.
fn roundings(seen: &[Kept]) -> Vec<usize> {
    let (mut count, mut micro_batch) = (0, None);
    let counted = seen.iter().map(|kept| {
        let of = kept.key.micro_batch;
        if of.is_some() && of != micro_batch {
            (count, micro_batch) = (0, of);
        }
        count += usize::from(matches!(kept.key.role, Role::Output | Role::OutputGradient));
        count
    });
    counted.collect()
}

/// Keeps what it sees; equal values once, as one module's output is the input of others.
#[derive(Default)]
struct Recorder {
    seen: Vec<Kept>,
    by_hash: HashMap<blake3::Hash, Arc<[f32]>>,
}

impl Sink for Recorder {
    fn see(&mut self, seen: Seen) {
        let hash = blake3::hash(bytemuck::cast_slice(&seen.values));
        let values = self.by_hash.entry(hash);
        self.seen.push(Kept {
            key: seen.key,
            within: seen.within,
            shape: seen.shape,
            values: values.or_insert_with(|| seen.values.into()).clone(),
        });
    }
}

/// How far what it sees is from what was recorded.
struct Measurer {
    index: HashMap<Key, usize>,
    recorded: Vec<Kept>,
    sensitivity: Vec<f64>,
    noise: f64,
}

impl Sink for Measurer {
    fn see(&mut self, seen: Seen) {
        let Some(&index) = self.index.get(&seen.key) else {
            return; // a model that is not the same each time is found by comparing
        };
        let kept = &self.recorded[index];
        if kept.shape == seen.shape {
            let difference = Difference::between(&kept.values, &seen.values);
            let floor = floor(kept.key.role, self.noise);
            self.sensitivity[index] = difference.relative_to(floor);
        }
    }
}

/// The norm that a tensor counts as having at least.
fn floor(role: Role, noise: f64) -> f64 {
    match role {
        Role::WeightGradient => noise,
        _ => 0.0,
    }
}

/// Compares what it sees with what was recorded, which it lets go.
struct Comparer {
    index: HashMap<Key, usize>,
    recorded: Vec<Option<Kept>>,
    compared: Vec<Option<Compared>>,
    roundings: Vec<usize>,
    sensitivity: Vec<f64>,
    weights: Weights,
    classes: HashMap<String, &'static str>,
    tolerance: Tolerance,
    /// Norm below which a gradient of a weight is noise.
    noise: f64,
    only_second: Vec<(Role, String)>,
}

impl Sink for Comparer {
    fn see(&mut self, seen: Seen) {
        let index = self.index.get(&seen.key).copied();
        let same_shape = |kept: &mut Kept| kept.shape == seen.shape;
        let found =
            index.and_then(|index| Some((index, self.recorded[index].take_if(same_shape)?)));
        match found {
            Some((index, kept)) => {
                let compared = self.compare(kept, &seen.values, index);
                self.compared[index] = Some(compared);
            }
            None => self.only_second.push((seen.key.role, seen.key.tensor)),
        }
    }
}

impl Comparer {
    fn compare(&self, a: Kept, b: &[f32], index: usize) -> Compared {
        let Key {
            role,
            tensor,
            call,
            micro_batch,
        } = a.key;
        let difference = match role {
            Role::Update => {
                // A weight is stored rounded, before and after: to less than a unit in its last place.
                let weights = self.weights.get(&tensor);
                Difference::beyond(&a.values, b, |i| {
                    let weight = weights.map_or(0.0, |weights| weights[i].abs());
                    f64::from(weight.max(a.values[i].abs()) * f32::EPSILON)
                })
            }
            _ => Difference::between(&a.values, b),
        };
        let allowed = match role {
            // Clipping and the optimizer are f32 in every precision, and are given the same gradients.
            Role::GradNorm | Role::Update => self.tolerance.allowed(0),
            _ => {
                let by_depth = self.tolerance.allowed(self.roundings[index]);
                let measured = self.sensitivity.get(index).copied();
                by_depth.max(tolerance::SENSITIVITY * measured.unwrap_or_default())
            }
        };
        Compared {
            role,
            call,
            micro_batch,
            class: self.classes.get(&tensor).copied(),
            within_class: self.classes.get(&a.within).copied(),
            within: a.within,
            shape: a.shape,
            error: difference.relative_to(floor(role, self.noise)),
            allowed,
            difference,
            tensor,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(role: Role, tensor: &str, values: &[f32]) -> Seen {
        Seen {
            key: Key {
                role,
                tensor: tensor.to_owned(),
                call: 0,
                micro_batch: None,
            },
            within: String::new(),
            shape: vec![values.len()],
            values: values.to_vec(),
        }
    }

    /// What a comparison finds between tensors in the order of the first variant and in that of the second.
    fn compared(first: Vec<Seen>, second: Vec<Seen>, noise: f64) -> Comparer {
        let mut recorder = Recorder::default();
        first.into_iter().for_each(|seen| recorder.see(seen));
        let recorded = recorder.seen;
        let mut comparer = Comparer {
            index: index(&recorded),
            sensitivity: Vec::new(),
            compared: recorded.iter().map(|_| None).collect(),
            roundings: roundings(&recorded),
            recorded: recorded.into_iter().map(Some).collect(),
            weights: Weights::default(),
            classes: HashMap::from([("a".to_owned(), "Linear")]),
            tolerance: Tolerance::between(Precision::F32, Precision::Bf16),
            noise,
            only_second: Vec::new(),
        };
        second.into_iter().for_each(|seen| comparer.see(seen));
        comparer
    }

    fn diverging(comparer: &Comparer) -> Vec<&str> {
        let compared = comparer.compared.iter().flatten();
        let diverging = compared.filter(|it| it.diverges());
        diverging.map(|it| it.tensor.as_str()).collect()
    }

    #[test]
    fn divergences_stand_in_the_order_of_the_first_variant() {
        let tensors = |x: f32| {
            ["a", "b", "c"].map(|name| {
                seen(
                    Role::Output,
                    name,
                    &[1.0, if name == "a" { 1.0 } else { x }],
                )
            })
        };
        let mut second = tensors(2.0);
        second.reverse();
        let found = compared(tensors(1.0).into(), second.into(), 0.0);
        assert_eq!(diverging(&found), ["b", "c"]);
        let first = found.compared[0].as_ref().unwrap();
        assert_eq!(
            (first.class, first.difference.is_equal),
            (Some("Linear"), true)
        );
    }

    #[test]
    fn bounds_grow_with_the_outputs_before_and_not_for_the_optimizer() {
        let tensors = || {
            vec![
                seen(Role::Input, "a", &[1.0]),
                seen(Role::Output, "a", &[1.0]),
                seen(Role::OutputGradient, "a", &[1.0]),
                seen(Role::WeightGradient, "a.weight", &[1.0]),
                seen(Role::Update, "a.weight", &[1.0]),
            ]
        };
        let found = compared(tensors(), tensors(), 0.0);
        let allowed = found.compared.iter().flatten().map(|it| it.allowed);
        let of = |roundings: f64| 2.0 / 256.0 * roundings.sqrt();
        assert_eq!(
            allowed.collect::<Vec<_>>(),
            [1e-4, of(1.0), of(2.0), of(2.0), 1e-4]
        );
    }

    #[test]
    fn micro_batches_are_told_apart_and_each_has_bounds_of_its_own() {
        let output = |micro_batch: usize| {
            let mut output = seen(Role::Output, "a", &[micro_batch as f32]);
            output.key.micro_batch = Some(micro_batch);
            output
        };
        let found = compared(vec![output(1), output(2)], vec![output(2), output(1)], 0.0);
        assert_eq!(diverging(&found), [""; 0]);
        let allowed = found.compared.iter().flatten().map(|it| it.allowed);
        assert_eq!(allowed.collect::<Vec<_>>(), [2.0 / 256.0; 2]);
    }

    #[test]
    fn gradients_of_weights_that_are_noise_are_not_held_against_each_other() {
        let noise = |x: f32| vec![seen(Role::WeightGradient, "k.bias", &[x])];
        assert_eq!(
            diverging(&compared(noise(1e-9), noise(-1e-9), 1e-2)),
            [""; 0]
        );
        assert_eq!(
            diverging(&compared(noise(1e-9), noise(-1e-9), 0.0)),
            ["k.bias"]
        );
    }

    #[test]
    fn an_update_may_differ_by_how_the_weight_is_stored() {
        let update = |x: f32| vec![seen(Role::Update, "w", &[x])];
        let ulp = f32::EPSILON;
        assert_eq!(
            diverging(&compared(update(1.0), update(1.0 + ulp), 0.0)),
            [""; 0]
        );
        let mut found = compared(update(1e-6), update(2e-6), 0.0);
        assert_eq!(diverging(&found), ["w"]);
        // Of a weight of 16, the difference is less than a unit in the last place.
        found.weights = Weights::from([("w", vec![16.0])]);
        let recorded = Kept {
            key: seen(Role::Update, "w", &[]).key,
            within: String::new(),
            shape: vec![1],
            values: [1e-6].into(),
        };
        assert!(!found.compare(recorded, &[2e-6], 0).diverges());
    }

    #[test]
    fn what_only_one_variant_has_or_in_another_shape_is_listed() {
        let first = vec![
            seen(Role::Output, "a", &[1.0]),
            seen(Role::Output, "b", &[1.0]),
        ];
        let second = vec![
            seen(Role::Output, "b", &[1.0, 1.0]),
            seen(Role::Output, "c", &[1.0]),
        ];
        let found = compared(first, second, 0.0);
        let left: Vec<_> = found
            .recorded
            .iter()
            .flatten()
            .map(|kept| kept.key.tensor.as_str())
            .collect();
        assert_eq!(left, ["a", "b"]);
        let only: Vec<_> = found
            .only_second
            .iter()
            .map(|(_, tensor)| tensor.as_str())
            .collect();
        assert_eq!(only, ["b", "c"]);
    }

    #[test]
    fn equal_values_are_kept_once() {
        let mut recorder = Recorder::default();
        for values in [[1.0, 2.0], [1.0, 2.0], [1.0, 3.0]] {
            recorder.see(seen(Role::Output, "a", &values));
        }
        let [a, b, c] = &recorder.seen[..] else {
            panic!("three tensors were seen")
        };
        assert!(Arc::ptr_eq(&a.values, &b.values) && !Arc::ptr_eq(&a.values, &c.values));
    }
}
