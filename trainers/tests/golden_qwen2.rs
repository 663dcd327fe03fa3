//! Qwen2 against Hugging Face transformers: logits, loss, gradients, 20 steps of training, generation.

use std::sync::Arc;

use candle_core::IndexOp;
use serde::Deserialize;
use tt_checkpoint::Weights;
use tt_collators::Batch;
use tt_engine::{Limits, Sampler, Sampling, generate};
use tt_models::{Model, ModelConfig, Qwen2Config, Qwen2ForCausalLM};
use tt_nn::{Forward, ParamTree, Rope};
use tt_optimizers::{AdamW, AdamWConfig, Schedule, ScheduleConfig, ScheduleKind, ScheduleOptions};
use tt_tensor::{Device, Seed};
use tt_testkit::{Case, CurvePoint, Golden, Tensors, devices, relative_l2};
use tt_trainers::{DeviceBatch, IGNORE, LMTrainer, Trainer, Training, load_params};

#[test]
fn golden_qwen2_tied() {
    check("qwen2_tied", "model.safetensors");
}

#[test]
fn golden_qwen2_untied() {
    check("qwen2_untied", "model.safetensors");
}

#[test]
fn golden_qwen2_untied_sharded() {
    check("qwen2_untied", "sharded");
}

#[test]
fn golden_qwen2_packed() {
    check("qwen2_packed", "model.safetensors");
}

#[test]
fn golden_grad_accumulation() {
    check("grad_accumulation", "model.safetensors");
}

fn check(name: &str, weights: &str) {
    for device in devices() {
        Check::new(name, weights, device).all();
    }
}

struct Check {
    golden: Golden,
    case: Case,
    weights: Weights,
    model: Arc<dyn Model>,
    device: Device,
}

impl Check {
    fn new(name: &str, weights: &str, device: Device) -> Self {
        let golden = Golden::open(name);
        let case = golden.case();
        let config = Qwen2Config::from_hf(&golden.json("config.json")).unwrap();
        let of_v5 = Qwen2Config::from_hf(&golden.json("config.v5.json")).unwrap();
        assert_eq!(
            config, of_v5,
            "transformers 5 writes the same configuration"
        );
        if !case.rope_inv_freq.is_empty() {
            let head_dim = config.hidden_size / config.num_attention_heads;
            let rope = Rope::new(head_dim, config.rope_theta, config.max_position_embeddings);
            assert!(relative_l2(rope.inv_freq(), &case.rope_inv_freq) < 1e-7);
        }
        Self {
            weights: Weights::open(&golden.dir.join(weights)).unwrap(),
            model: Arc::new(Qwen2ForCausalLM::new(config).unwrap()),
            golden,
            case,
            device,
        }
    }

    fn all(&self) {
        self.decay_rule();
        self.logits();
        self.gradients();
        self.curve();
        self.generation();
    }

    fn params(&self) -> ParamTree {
        load_params(&*self.model, &self.weights, self.device).unwrap()
    }

    fn training(&self) -> Training {
        let (hyper, params) = (&self.case.hyperparameters, self.params());
        let adamw = AdamWConfig {
            lr: hyper.lr,
            betas: hyper.betas,
            eps: hyper.eps,
            weight_decay: hyper.weight_decay,
        };
        let schedule = ScheduleConfig {
            kind: ScheduleKind::Cosine,
            num_warmup_steps: hyper.warmup_steps,
            num_training_steps: Some(hyper.total_steps),
            kwargs: ScheduleOptions::default(),
        };
        Training::new(
            self.model.clone(),
            Box::new(AdamW::new(adamw, &params).unwrap()),
            params,
            Schedule::new(&schedule, hyper.total_steps),
            Some(hyper.max_grad_norm),
            Seed::new(0),
            self.device,
        )
    }

    fn decay_rule(&self) {
        let params = self.params();
        let names = |decays: bool| -> Vec<String> {
            let specs = params.iter().map(|(spec, _)| spec);
            let mut names: Vec<_> = specs
                .filter(|s| s.decays() == decays)
                .map(|s| s.path.clone())
                .collect();
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

    fn logits(&self) {
        let params = self.params();
        let expected = self.golden.tensors("expected")["logits"]
            .flatten_all()
            .unwrap();
        let expected = expected.to_vec1::<f32>().unwrap();
        let mut worst = 0f64;
        let vocab = self.model.vocab_size();
        let mut rows = expected.chunks(vocab);
        for batch in micro_batches(&self.golden.tensors("inputs")) {
            let on_device = DeviceBatch::upload(&batch, self.device).unwrap();
            let fwd = Forward::inference(&params);
            let logits = self.model.logits(&fwd, &on_device.input).unwrap();
            let logits = logits.to_vec::<f32>().unwrap();
            for (row, segment) in logits.chunks(vocab).zip(&batch.segment_ids) {
                let expected = rows.next().unwrap();
                // At padding logits depend on the implementation.
                if *segment != 0 {
                    for (a, b) in row.iter().zip(expected) {
                        worst = worst.max(f64::from((a - b).abs()));
                    }
                }
            }
        }
        assert!(rows.next().is_none());
        let allowed = self.case.tolerances.logits_max_abs;
        assert!(
            worst <= allowed,
            "logits differ by {worst:.2e}, allowed {allowed:.2e}"
        );
    }

    fn gradients(&self) {
        let tolerances = &self.case.tolerances;
        let (trainer, mut training) = (lm_trainer(), self.training());
        let batches = micro_batches(&self.golden.tensors("inputs"));
        let totals = training
            .accumulate(&batches, |fwd, model, batch| {
                trainer.loss(fwd, model, batch)
            })
            .unwrap();
        let expected = self.golden.tensors("expected");
        let weight = totals.weight.to_scalar::<f32>().unwrap();
        let loss = totals.loss.to_scalar::<f32>().unwrap() / weight;
        let targets: usize = batches.iter().map(|batch| batch.num_targets).sum();
        assert_eq!(weight, targets as f32);
        assert_close("loss", loss, scalar(&expected["loss"]), tolerances.loss_rel);

        let reference = self.golden.tensors("grads");
        let grad_norm = f64::from(scalar(&expected["grad_norm"]));
        let mut squares = 0.0;
        let mut seen = 0;
        for (spec, parameter) in training.params.iter() {
            let grad = parameter.grad().unwrap().to_vec::<f32>().unwrap();
            let grad: Vec<f32> = grad.iter().map(|g| g / weight).collect();
            let expected = flat(&reference[&spec.path]);
            let norm = l2(&expected);
            let rel = tolerances.grad_rel_l2_exceptions.get(&spec.path);
            let rel = rel.unwrap_or(&tolerances.grad_rel_l2_default);
            let allowed = rel * norm + tolerances.grad_abs_l2_over_grad_norm * grad_norm;
            let error = relative_l2(&grad, &expected) * norm;
            let path = &spec.path;
            assert!(
                error <= allowed,
                "gradient of {path}: {error:.2e}, allowed {allowed:.2e}"
            );
            squares += l2(&grad).powi(2);
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

    fn curve(&self) {
        let tolerances = &self.case.tolerances;
        let (mut trainer, mut training) = (lm_trainer(), self.training());
        let stacked = self.golden.tensors("batches");
        let curve: Vec<CurvePoint> = self.golden.json("curve.json");
        for (i, point) in curve.iter().enumerate() {
            let tensors: Tensors = stacked
                .iter()
                .map(|(name, tensor)| (name.clone(), tensor.i(i).unwrap()))
                .collect();
            let output = trainer
                .train_step(&mut training, &micro_batches(&tensors))
                .unwrap();
            let numbers = output.numbers;
            let at = |what: &str| format!("{what} of step {}", point.step);
            assert!(
                (output.lr - point.lr).abs() <= 1e-9 * point.lr,
                "{}",
                at("lr")
            );
            let (loss, norm) = (point.loss as f32, point.grad_norm as f32);
            assert_close(&at("loss"), numbers.loss, loss, tolerances.curve_loss_rel);
            let rel = tolerances.curve_grad_norm_rel;
            assert_close(&at("grad_norm"), numbers.grad_norm, norm, rel);
        }
        let after = self.golden.tensors("params_after");
        for (spec, parameter) in training.params.iter() {
            let mut start = Vec::new();
            self.weights.read_f32(&spec.path, &mut start).unwrap();
            let moved = |values: &[f32]| -> Vec<f32> {
                values
                    .iter()
                    .zip(&start)
                    .map(|(after, before)| after - before)
                    .collect()
            };
            let ours = moved(&parameter.value().to_vec::<f32>().unwrap());
            let reference = moved(&flat(&after[&spec.path]));
            let rel = tolerances.update_rel_l2_exceptions.get(&spec.path);
            let rel = *rel.unwrap_or(&tolerances.update_rel_l2_default);
            let error = relative_l2(&ours, &reference);
            assert!(
                error <= rel,
                "update of {}: {error:.2e}, allowed {rel:.2e}",
                spec.path
            );
        }
    }

    fn generation(&self) {
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
                eos: None,
            };
            let ours = generate(&*self.model, &params, &prompt, &mut sampler, &limits).unwrap();
            assert_eq!(ours, new_tokens);
        }
    }
}

fn lm_trainer() -> LMTrainer {
    LMTrainer::new(0.0, 0.0)
}

/// Host batches from tensors `[B, T]`, or `[micro, B, T]`.
fn micro_batches(tensors: &Tensors) -> Vec<Batch> {
    let ids = &tensors["input_ids"];
    match ids.rank() {
        2 => vec![batch(tensors)],
        _ => (0..ids.dims()[0])
            .map(|i| {
                let of_micro = tensors.iter().map(|(n, t)| (n.clone(), t.i(i).unwrap()));
                batch(&of_micro.collect())
            })
            .collect(),
    }
}

fn batch(tensors: &Tensors) -> Batch {
    let integers = |name: &str| -> Vec<i64> {
        tensors[name]
            .flatten_all()
            .unwrap()
            .to_vec1::<i64>()
            .unwrap()
    };
    let unsigned = |values: Vec<i64>| values.into_iter().map(|v| v as u32).collect::<Vec<_>>();
    let (rows, seq_len) = tensors["input_ids"].dims2().unwrap();
    let mask = unsigned(integers("attention_mask"));
    let packed = tensors.contains_key("segment_ids");
    let labels = integers("labels");
    let targets = labels.chunks(seq_len).flat_map(|row| &row[1..]);
    Batch {
        rows,
        seq_len,
        num_targets: targets.filter(|&&label| label != IGNORE).count(),
        input_ids: unsigned(integers("input_ids")),
        segment_ids: if packed {
            unsigned(integers("segment_ids"))
        } else {
            mask
        },
        position_ids: match packed {
            true => unsigned(integers("position_ids")),
            false => (0..rows).flat_map(|_| 0..seq_len as u32).collect(),
        },
        labels,
        ..Batch::default()
    }
}

fn flat(tensor: &candle_core::Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

fn scalar(tensor: &candle_core::Tensor) -> f32 {
    tensor.to_scalar().unwrap()
}

fn l2(values: &[f32]) -> f64 {
    values
        .iter()
        .map(|v| f64::from(*v).powi(2))
        .sum::<f64>()
        .sqrt()
}

fn assert_close(what: &str, ours: f32, reference: f32, rel: f64) {
    let error = f64::from((ours - reference).abs()) / f64::from(reference.abs());
    assert!(
        error <= rel,
        "{what}: {ours}, reference {reference} (relative {error:.2e})"
    );
}
