//! The steps of a check: what a case says of its model against what we compute.

use std::sync::Arc;

use serde::Deserialize;
use tt_adapters::{BaseDType, Lora, Saved};
use tt_checkpoint::{SavedAdapter, Weights};
use tt_collators::Batch;
use tt_engine::{Limits, Sampler, Sampling, generate};
use tt_models::{Architecture, Decoder, Model, ModelConfig};
use tt_nn::{Forward, ParamSpec, ParamTree};
use tt_optimizers::{AdamW, AdamWConfig, CosineOptions, Optimizers, SchedulePlan, Shape};
use tt_tensor::{Device, Parameter, Precision, Seed, Shard, Tensor};
use tt_testkit::{Case, CurvePoint, Golden, Tensors, relative_l2};
use tt_train::{
    BaseOrigin, DeviceBatch, Initial, Trainer, Training, load_adapter, load_params, load_parts,
};
use tt_trainers::{LMTrainer, PreferenceTrainer};

use crate::batches::{at, flat, l2, micro_batches, scalar};

/// A case, opened, with the model it is about.
pub struct Check {
    pub golden: Golden,
    pub case: Case,
    pub weights: Weights,
    pub model: Arc<dyn Model>,
    pub adapter: Option<Adapter>,
    pub device: Device,
    pub precision: Precision,
    /// Ends the names of the files that values are compared with.
    reference: &'static str,
}

/// An adapter that is trained on the case's model, which is frozen.
pub struct Adapter {
    pub lora: Arc<Lora>,
    /// Where it starts.
    pub weights: Weights,
}

impl Check {
    /// Opens the case `name` of a decoder.
    pub fn open<C: Architecture>(name: &str, device: Device) -> Self {
        let check = Self::open_model::<C>(name, device);
        let config = C::from_hf(&check.golden.json("config.json")).unwrap();
        let decoder = Decoder::new(config).unwrap();
        let inv_freq = &check.case.rope_inv_freq;
        if !inv_freq.is_empty() {
            assert!(relative_l2(decoder.rope().inv_freq(), inv_freq) < 1e-7);
        }
        check
    }

    /// Opens the case `name` of any model. Both forms of its `config.json` must say the same.
    pub fn open_model<C: ModelConfig>(name: &str, device: Device) -> Self {
        let golden = Golden::open(name);
        let case = golden.case();
        let model = |file| {
            let config = C::from_hf(&golden.json(file)).unwrap();
            config.build().unwrap()
        };
        let (model, of_v5) = (model("config.json"), model("config.v5.json"));
        assert_eq!(model.hf_config(), of_v5.hf_config());
        Self {
            weights: Weights::open(&golden.dir.join("model.safetensors")).unwrap(),
            model,
            adapter: None,
            golden,
            case,
            device,
            precision: Precision::F32,
            reference: "",
        }
    }

    /// Computes in `precision` and compares with the float32 values.
    pub fn with_precision(self, precision: Precision) -> Self {
        Self {
            precision,
            reference: "_f32",
            ..self
        }
    }

    fn reference(&self, name: &str) -> Tensors {
        self.golden.tensors(&format!("{name}{}", self.reference))
    }

    /// Trains the adapter in a folder of peft's layout.
    pub fn with_adapter(mut self, name: &str) -> Self {
        let saved = SavedAdapter::open(&self.golden.dir.join(name))
            .unwrap()
            .unwrap();
        let peft = Saved {
            config: &saved.config,
            tensors: saved.weights.names().collect(),
        };
        // What the folder says replaces all but the dropout.
        let ours = serde_json::json!({"target_modules": []});
        let ours = serde_json::from_value(ours).unwrap();
        let lora = Lora::from_peft(&peft, ours, &self.model.params()).unwrap();
        self.adapter = Some(Adapter {
            lora: Arc::new(lora),
            weights: saved.weights,
        });
        self
    }

    /// Starts from other weights of the same folder.
    pub fn with_weights(mut self, name: &str) -> Self {
        self.weights = Weights::open(&self.golden.dir.join(name)).unwrap();
        self
    }

    pub fn trainer(&self) -> Box<dyn Trainer> {
        let Some(preference) = &self.case.preference else {
            let (smoothing, z_loss) = (self.case.label_smoothing, self.case.z_loss_coefficient);
            return Box::new(LMTrainer::new(smoothing, z_loss));
        };
        let loss = preference.kind.trim_end_matches("_smoothed");
        let options = serde_json::json!({
            "loss": loss, "beta": preference.beta, "gamma": preference.gamma,
            "label_smoothing": preference.label_smoothing,
        });
        let options = serde_json::from_value(options).unwrap();
        Box::new(PreferenceTrainer::new(&options).unwrap())
    }

    pub fn all(&self) {
        self.decay_rule();
        self.logits();
        self.plain_loss();
        self.gradients();
        self.curve();
        self.generation();
    }

    /// The model's parameters, with the adapter's if there is one.
    pub fn params(&self) -> ParamTree {
        self.parts(&ParamSpec::whole)
    }

    /// Of each parameter the part that `shard` says.
    pub fn parts(&self, shard: &dyn Fn(&ParamSpec) -> Shard) -> ParamTree {
        let params = load_parts(&*self.model, &self.weights, self.device, shard).unwrap();
        match &self.adapter {
            Some(Adapter { lora, weights }) => {
                lora.freeze(&params);
                load_adapter(lora, &params, weights, self.device, shard).unwrap()
            }
            None => params,
        }
    }

    pub fn base(&self) -> ParamTree {
        load_params(&*self.model, &self.weights, self.device).unwrap()
    }

    /// What is trained of `params`, under the names that the case has for it.
    pub fn trained(&self, params: &ParamTree) -> Vec<(String, ParamSpec, Arc<Parameter>)> {
        let trained = params.iter().filter(|(_, p)| p.is_trainable());
        let named = trained.map(|(spec, parameter)| {
            let name = match &self.adapter {
                Some(adapter) => adapter.lora.peft_name(&spec.path),
                None => spec.path.clone(),
            };
            (name, spec.clone(), parameter.clone())
        });
        named.collect()
    }

    pub fn training(&self) -> Training {
        self.training_of(self.params())
    }

    pub fn training_of(&self, params: ParamTree) -> Training {
        let hyper = &self.case.hyperparameters;
        let adamw = AdamWConfig {
            betas: hyper.betas,
            eps: hyper.eps,
            weight_decay: hyper.weight_decay,
            ..AdamWConfig::new(hyper.lr)
        };
        let shape = Shape::Cosine(CosineOptions::default());
        let schedule = SchedulePlan::new(shape, hyper.warmup_steps);
        let schedule = schedule.build(Some(hyper.total_steps), hyper.lr).unwrap();
        let adamw = AdamW::new(adamw, &params).unwrap();
        let optimizers = Optimizers::single(adamw, schedule);
        let seed = Seed::new(0);
        let mut training = Training::new(self.model.clone(), params, optimizers, seed, self.device);
        let preference = self.case.preference.as_ref();
        if preference.is_some_and(|it| it.needs_reference) {
            let origin = BaseOrigin::Seed(0);
            let initial = Initial::new(self.base(), origin, BaseDType::F32, None);
            training.initial = Some(initial.unwrap());
        }
        training.clipping.max_norm = Some(hyper.max_grad_norm);
        training.precision = self.precision;
        training
    }

    pub fn decay_rule(&self) {
        let trained = self.trained(&self.params());
        let names = |decays: bool| -> Vec<String> {
            let of_kind = trained
                .iter()
                .filter(|(_, spec, _)| spec.decays() == decays);
            let mut names: Vec<_> = of_kind.map(|(name, _, _)| name.clone()).collect();
            names.sort();
            names
        };
        let sorted = |names: &[String]| {
            let mut names = names.to_vec();
            names.sort();
            names
        };
        assert_eq!(names(true), sorted(&self.case.decay));
        assert_eq!(names(false), sorted(&self.case.no_decay));
    }

    pub fn logits(&self) {
        self.logits_of(&self.params(), "logits");
    }

    /// The logits of `params` are those that the case has under `name`.
    pub fn logits_of(&self, params: &ParamTree, name: &str) {
        let expected = flat(&self.reference("expected")[name]);
        let (mut worst, mut ours, mut theirs) = (0f64, Vec::new(), Vec::new());
        let vocab = self.model.vocab_size();
        let mut rows = expected.chunks(vocab);
        for batch in micro_batches(&self.golden.tensors("inputs")) {
            let on_device = DeviceBatch::upload(&batch, self.device).unwrap();
            let fwd = Forward::inference(params).with_precision(self.precision);
            let logits = self.model.logits(&fwd, &on_device.input).unwrap();
            let logits = logits.to_vec::<f32>().unwrap();
            for (row, segment) in logits.chunks(vocab).zip(&batch.segment_ids) {
                let expected = rows.next().unwrap();
                // At padding logits depend on the implementation.
                if *segment != 0 {
                    for (a, b) in row.iter().zip(expected) {
                        assert!(a.is_finite(), "a logit is {a}");
                        worst = worst.max(f64::from((a - b).abs()));
                    }
                    ours.extend_from_slice(row);
                    theirs.extend_from_slice(expected);
                }
            }
        }
        assert!(rows.next().is_none());
        let tolerances = &self.case.tolerances;
        for (error, allowed) in [
            (worst, tolerances.logits_max_abs),
            (relative_l2(&ours, &theirs), tolerances.logits_rel_l2_to_f32),
        ] {
            if let Some(allowed) = allowed {
                assert!(
                    error <= allowed,
                    "logits differ by {error:.2e}, allowed {allowed:.2e}"
                );
            }
        }
    }

    /// Outside training the loss is the plain cross-entropy, which cases with another loss give beside it.
    pub fn plain_loss(&self) {
        let expected = self.golden.tensors("expected");
        let Some(plain) = expected.get("nll").or(expected.get("ce")) else {
            return;
        };
        let (params, mut sums) = (self.params(), [0.0, 0.0]);
        for batch in micro_batches(&self.golden.tensors("inputs")) {
            let batch = DeviceBatch::upload(&batch, self.device).unwrap();
            let fwd = Forward::inference(&params);
            let loss = self.trainer().loss(&fwd, &*self.model, &batch).unwrap();
            for (sum, part) in sums.iter_mut().zip([loss.sum, loss.weight]) {
                *sum += part.to_scalar::<f32>().unwrap();
            }
        }
        let rel = self.case.tolerances.loss_rel;
        assert_close("plain loss", sums[0] / sums[1], scalar(plain), rel);
    }

    pub fn gradients(&self) {
        let (mut trainer, mut training) = (self.trainer(), self.training());
        let batches = micro_batches(&self.golden.tensors("inputs"));
        trainer.post_init(&mut training).unwrap();
        training
            .count(&batches, |batch| trainer.counts(batch))
            .unwrap();
        let totals = training
            .accumulate(&batches, |fwd, model, batch| {
                trainer.loss(fwd, model, batch)
            })
            .unwrap();
        let weight = totals.weight.to_scalar::<f32>().unwrap();
        let counted = batches.iter().map(|batch| match &self.case.preference {
            None => batch.num_targets,
            Some(_) => batch.rows / 2,
        });
        assert_eq!(weight, counted.sum::<usize>() as f32);
        let sum = totals.loss.to_scalar::<f32>().unwrap();
        self.loss_and_gradients(&training.params, sum, weight);
    }

    /// The summed loss and its gradients, which `params` hold, each divided by `weight`, are those of the case.
    pub fn loss_and_gradients(&self, params: &ParamTree, sum: f32, weight: f32) {
        let tolerances = &self.case.tolerances;
        let expected = self.reference("expected");
        let (loss, reference) = (sum / weight, scalar(&expected["loss"]));
        assert_close("loss", loss, reference, tolerances.loss_rel);

        let reference = self.reference("grads");
        let grad_norm = f64::from(scalar(&expected["grad_norm"]));
        let mut squares = 0.0;
        let mut seen = 0;
        for (path, _, parameter) in self.trained(params) {
            let grad = parameter.grad().unwrap().to_vec::<f32>().unwrap();
            let grad: Vec<f32> = grad.iter().map(|g| g / weight).collect();
            squares += l2(&grad).powi(2);
            let (grad, noise) = self.without_zero_gradient(&path, grad);
            let (expected, _) = self.without_zero_gradient(&path, flat(&reference[&path]));
            let small = 1e-6 * grad_norm;
            assert!(l2(&noise) <= small, "gradient of {path} where it is zero");
            let norm = l2(&expected);
            let rel = tolerances.grad_rel_l2_exceptions.get(&path);
            let rel = rel.unwrap_or(&tolerances.grad_rel_l2_default);
            let allowed = rel * norm + tolerances.grad_abs_l2_over_grad_norm * grad_norm;
            let error = relative_l2(&grad, &expected) * norm;
            assert!(
                error <= allowed,
                "gradient of {path}: {error:.2e}, allowed {allowed:.2e}"
            );
            seen += 1;
        }
        assert_eq!(seen, reference.len());
        let ours = squares.sqrt() as f32;
        assert_close(
            "grad_norm",
            ours,
            grad_norm as f32,
            tolerances.grad_norm_rel,
        );
    }

    /// The gradient of a parameter without the slice where it is zero in exact arithmetic, and that slice.
    fn without_zero_gradient(&self, path: &str, mut gradient: Vec<f32>) -> (Vec<f32>, Vec<f32>) {
        let zero = match self.case.zero_gradient_slices.get(path) {
            Some(&[start, end]) => gradient.drain(start..end).collect(),
            None if self.case.noise_gradients.iter().any(|noise| noise == path) => {
                std::mem::take(&mut gradient)
            }
            None => Vec::new(),
        };
        (gradient, zero)
    }

    pub fn curve(&self) {
        self.curve_by(
            &mut *self.trainer(),
            self.training(),
            micro_batches,
            usize::MAX,
        );
    }

    /// The first `steps` of the curve that `trainer` makes of `training`, which may be one of several ranks that make it
    /// together, and after all steps the weights. `batches` makes the micro-batches of a step of the case's tensors.
    pub fn curve_by(
        &self,
        trainer: &mut dyn Trainer,
        mut training: Training,
        batches: impl Fn(&Tensors) -> Vec<Batch>,
        steps: usize,
    ) {
        let tolerances = &self.case.tolerances;
        trainer.post_init(&mut training).unwrap();
        let stacked = self.golden.tensors("batches");
        let curve: Vec<CurvePoint> = self.golden.json("curve.json");
        for (i, point) in curve.iter().enumerate().take(steps) {
            let batches = batches(&at(&stacked, i));
            let output = trainer.train_step(&mut training, &batches).unwrap();
            let numbers = output.numbers;
            let of_step = |what: &str| format!("{what} of step {}", point.step);
            assert!(
                (output.lr - point.lr).abs() <= 1e-9 * point.lr,
                "{}",
                of_step("lr")
            );
            let (loss, norm) = (point.loss as f32, point.grad_norm as f32);
            assert_close(
                &of_step("loss"),
                numbers.loss,
                loss,
                tolerances.curve_loss_rel,
            );
            let rel = tolerances.curve_grad_norm_rel;
            assert_close(&of_step("grad_norm"), numbers.grad_norm, norm, rel);
        }
        let Some(default) = tolerances.update_rel_l2_default else {
            return;
        };
        if steps < curve.len() {
            return;
        }
        let (before, after) = match &self.adapter {
            Some(adapter) => (&adapter.weights, "adapter_after/adapter_model"),
            None => (&self.weights, "params_after"),
        };
        let after = self.golden.tensors(after);
        for (path, _, parameter) in self.trained(&training.params) {
            let mut start = Vec::new();
            before.read_f32(&path, &mut start).unwrap();
            let moved = |values: &[f32]| -> Vec<f32> {
                values
                    .iter()
                    .zip(&start)
                    .map(|(after, before)| after - before)
                    .collect()
            };
            let values = training
                .params
                .with_whole(&parameter, Tensor::to_vec::<f32>);
            let ours = moved(&values.unwrap().unwrap());
            let reference = moved(&flat(&after[&path]));
            let rel = tolerances.update_rel_l2_exceptions.get(&path);
            let rel = *rel.unwrap_or(&default);
            let error = relative_l2(&ours, &reference);
            assert!(
                error <= rel,
                "update of {path}: {error:.2e}, allowed {rel:.2e}"
            );
        }
    }

    pub fn generation(&self) {
        #[derive(Deserialize)]
        struct Generation {
            max_new_tokens: usize,
            prompts: Vec<Prompt>,
        }
        #[derive(Deserialize)]
        struct Prompt {
            prompt: Vec<u32>,
            new_tokens: Vec<u32>,
        }
        if !self.golden.dir.join("generate.json").exists() {
            return;
        }
        let generation: Generation = self.golden.json("generate.json");
        let params = self.params();
        assert!(!generation.prompts.is_empty());
        for Prompt { prompt, new_tokens } in generation.prompts {
            let mut sampler = Sampler::new(Sampling::Greedy, Seed::new(0));
            let limits = Limits {
                max_new_tokens: generation.max_new_tokens,
                ends: Vec::new(),
            };
            let ours = generate(&*self.model, &params, &prompt, &mut sampler, &limits).unwrap();
            assert_eq!(ours, new_tokens);
        }
    }
}

pub fn assert_close(what: &str, ours: f32, reference: f32, rel: f64) {
    let error = f64::from((ours - reference).abs()) / f64::from(reference.abs());
    assert!(
        error <= rel,
        "{what}: {ours}, reference {reference} (relative {error:.2e})"
    );
}
