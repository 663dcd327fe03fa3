//! What a trained model makes of batches, whatever its trainer.

use std::sync::atomic::{AtomicUsize, Ordering};

use tt_collators::Split;
use tt_data::TokenBytes;
use tt_models::Model;
use tt_nn::{Forward, ParamTree};
use tt_optimizers::Optimizers;
use tt_tensor::{Device, Seed};
use tt_train::{DeviceBatch, Evaluation, Loss, Mean, Result, Tally, Trainer, Training, look};

use crate::common;

/// Three times the cross-entropy; with `reference`, after a pass of another model over the same batch.
struct Tripled {
    reference: Option<ParamTree>,
    passes: AtomicUsize,
}

impl Trainer for Tripled {
    fn loss(&self, fwd: &Forward, model: &dyn Model, batch: &DeviceBatch) -> Result<Loss> {
        self.passes.fetch_add(1, Ordering::Relaxed);
        let loss = common::plain_loss(fwd, model, batch)?;
        if let Some(reference) = &self.reference {
            common::plain_loss(&Forward::inference(reference), model, batch)?;
        }
        Ok(Loss {
            sum: loss.sum.affine(3.0, 0.0)?,
            scalars: vec![Mean::new("plain", loss.sum)],
            weight: loss.weight,
        })
    }
}

fn evaluated(has_reference: bool) -> Evaluation {
    let (model, data) = (common::model(0.1), common::data());
    let params = |seed| ParamTree::init(&model.params(), Seed::new(seed), Device::Cpu).unwrap();
    let reference = has_reference.then(|| params(2));
    let params = params(1);
    let none = Optimizers::new(Vec::new());
    let training = Training::new(model, params, none, Seed::new(0), Device::Cpu);
    let trainer = Tripled {
        reference,
        passes: AtomicUsize::new(0),
    };
    let (bytes, mut tally) = (TokenBytes::of(data.tokenizer()), Tally::default());
    let looked = data.look_through(Split::Validation, None, |batch| {
        tally.add(&look(&training, &trainer, batch, &[], &bytes)?)?;
        Ok::<_, tt_train::Error>(true)
    });
    looked.unwrap();
    assert_eq!(
        trainer.passes.into_inner(),
        data.validation().len(),
        "once each"
    );
    tally.evaluation().unwrap().expect("targets")
}

#[test]
fn the_plain_loss_stands_beside_an_objective_and_the_texts_beside_both() {
    let it = evaluated(false);
    let objective = it.objective.expect("another loss");
    assert!((objective / it.loss - 3.0).abs() < 1e-6, "{it:?}");
    assert_eq!(it.scalars, [("plain", it.loss)]);
    let text = it.text.expect("text");
    // The ends of documents are targets and no text; the rest of the loss is the text's.
    assert!(
        text.tokens < it.targets && text.bytes > text.tokens,
        "{it:?}"
    );
    let all = f64::from(it.loss) * it.targets as f64;
    let ends = (all - text.nats) / (it.targets - text.tokens) as f64;
    assert!((1.0..20.0).contains(&ends), "nats of an end: {ends}");
}

/// States of a second pass, over the same batch, are not those of the model.
#[test]
fn a_trainers_reference_model_has_no_say_in_the_texts_loss() {
    let [alone, beside] = [false, true].map(evaluated);
    assert_eq!(alone.text, beside.text);
    assert_eq!(alone.loss, beside.loss);
}
