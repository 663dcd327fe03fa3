//! Remat: each block runs twice, activations shrink, gradients keep every bit.
//!
//! A test binary of its own with a single test: the pool's figures are those of the whole process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use serde_json::json;
use tt_cpu::pool;
use tt_models::{Input, Model, Qwen2Config, Qwen2ForCausalLM, modules};
use tt_nn::{Forward, Hooks, ModulePath, ParamTree};
use tt_remat::{Remat, RematConfig};
use tt_tensor::{CrossEntropyParams, Device, Seed, Tape, Tensor, fused};

const LAYERS: usize = 8;

fn model() -> Qwen2ForCausalLM {
    let config: Qwen2Config = serde_json::from_value(json!({
        "vocab_size": 64, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": LAYERS,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
        "tie_word_embeddings": true, "hidden_dropout": 0.1,
    }))
    .unwrap();
    Qwen2ForCausalLM::new(config).unwrap()
}

/// How often each module's forward pass has run.
#[derive(Default)]
struct Count(Mutex<HashMap<String, usize>>);

impl Hooks for Count {
    fn enter_forward(&self, module: &ModulePath, _: &Tensor) -> tt_nn::Result<()> {
        *self
            .0
            .lock()
            .unwrap()
            .entry(module.to_string())
            .or_default() += 1;
        Ok(())
    }
}

struct Pass {
    gradients: Vec<(String, Vec<f32>)>,
    runs: HashMap<String, usize>,
    activation_bytes: usize,
}

/// Two forward and backward passes, of which the second is looked at: gradients are in memory by then, so what comes
/// on top is activations.
fn pass(params: &ParamTree, model: &dyn Model, remat: Option<Arc<Remat>>) -> Pass {
    for (_, parameter) in params.iter() {
        parameter.take_grad();
    }
    let ids: Vec<u32> = (0..4 * 128).map(|i| i * 7 % 64).collect();
    let labels: Vec<i64> = ids.iter().map(|&id| i64::from(id)).collect();
    let tape = Tape::new();
    let mut last = None;
    for _ in 0..2 {
        let before = pool::stats().live_bytes;
        pool::reset_peak();
        let count = Arc::new(Count::default());
        let mut fwd = Forward::training(params, &tape, Seed::new(3)).with_hooks(count.clone());
        if let Some(remat) = &remat {
            fwd = fwd.with_recompute(remat.clone());
        }
        let input = Input::rows(Tensor::from_slice(&ids, (4, 128), Device::Cpu).unwrap()).unwrap();
        let hidden = model.hidden_states(&fwd, &input).unwrap();
        let targets = Tensor::from_slice(&labels, (4, 128), Device::Cpu).unwrap();
        let rule = CrossEntropyParams {
            ignore_index: -100,
            label_smoothing: 0.0,
            z_loss: 0.0,
        };
        let head = model.head(&fwd).unwrap();
        let loss = fused::linear_cross_entropy(&hidden, &head, &targets, rule).unwrap();
        drop((hidden, head, targets, input));
        tape.backward(&loss.sum).unwrap();
        last = Some((pool::stats().peak_bytes - before, count));
    }
    let (activation_bytes, count) = last.unwrap();
    let gradients = params.iter().map(|(spec, parameter)| {
        let gradient = parameter.grad().unwrap().to_vec::<f32>().unwrap();
        (spec.path.clone(), gradient)
    });
    Pass {
        gradients: gradients.collect(),
        runs: std::mem::take(&mut *count.0.lock().unwrap()),
        activation_bytes,
    }
}

fn remat(model: &dyn Model, names: &[&str], every: usize) -> Arc<Remat> {
    let config = RematConfig {
        activation_checkpoint_layers: names.iter().map(|name| (*name).to_owned()).collect(),
        every,
    };
    let modules = modules(model).unwrap();
    Arc::new(Remat::new(&config, &modules, &model.blocks()).unwrap())
}

#[test]
fn remat_runs_blocks_twice_saves_memory_and_keeps_every_bit() {
    let model = model();
    let params = ParamTree::init(&model.params(), Seed::new(1), Device::Cpu).unwrap();
    let kept = pass(&params, &model, None);
    assert!(kept.runs.values().all(|&runs| runs == 1), "{:?}", kept.runs);

    let full = remat(&model, &["blocks"], 1);
    let again = pass(&params, &model, Some(full));
    assert_eq!(again.gradients, kept.gradients);
    for block in model.blocks() {
        for module in [block.clone(), block.join("mlp.down_proj")] {
            assert_eq!(again.runs[module.as_str()], 2, "{module}");
        }
    }
    assert_eq!(again.runs["model.embed_tokens"], 1);
    let share = again.activation_bytes as f64 / kept.activation_bytes as f64;
    println!(
        "peak activation bytes: {} kept, {} with remat ({:.0} %)",
        kept.activation_bytes,
        again.activation_bytes,
        share * 100.0
    );
    assert!(share <= 0.4, "{share}");

    // Any choice of modules: within blocks, only some, weights used twice, a module that reads what others read too.
    let choices: [(&[&str], usize); 5] = [
        (&["blocks"], 2),
        (&["GatedMlp"], 1),
        (&["SelfAttention", "RmsNorm"], 1),
        (&["model.layers.*.self_attn.*_proj", "Embedding"], 1),
        (&["blocks", "GatedMlp"], 3),
    ];
    for (names, every) in choices {
        let chosen = pass(&params, &model, Some(remat(&model, names, every)));
        assert_eq!(chosen.gradients, kept.gradients, "{names:?} every {every}");
    }
}
