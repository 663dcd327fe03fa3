//! A configuration in the shape of easy-torch-tpu, copied into `configs/`, runs as it is.

use crate::harness::Place;

/// A tree with the keys of that project: root, model with sharding and remat, trainer, data.
const TREE: &[(&str, &str)] = &[
    (
        "configs/default.yaml",
        "\
defaults:
  - _self_
  - model: tiny
  - data: short
  - trainer: quick
seed: 7
torch_dtype: float32
matmul_precision: default
debug: false
project: moved
name: first
notes: null
ici_mesh: {data: 1, fsdp: 8, tensor: 1, expert: 1, context: 1}
dcn_mesh: {data: 1, fsdp: 1, tensor: 1, expert: 1, context: 1}
",
    ),
    (
        "configs/model/tiny.yaml",
        "\
defaults:
  - _self_
  - sharding: fsdp
  - remat: scan
type: llama.LlamaForCausalLM
pretrained_url: null
pretrained_step: null
pretrained_strict: null
torch_dtype: ${torch_dtype}
vocab_size: 1024
bos_token_id: 0
eos_token_id: 0
pad_token_id: 1024
hidden_size: 32
intermediate_size: 64
num_hidden_layers: 2
num_attention_heads: 2
num_key_value_heads: 1
hidden_act: silu
max_position_embeddings: 128
rope_theta: 10000.0
rms_norm_eps: 1.0e-05
initializer_range: 0.02
attention_bias: false
attention_dropout: false
attention_kernel: flash_attention
pure_modules: []
",
    ),
    (
        "configs/model/sharding/fsdp.yaml",
        "\
model.embed_tokens.weight: [fsdp, null]
model.layers.*.self_attn.q_proj.weight: [fsdp, null]
model.layers.*.mlp.down_proj.weight: [null, fsdp]
model.layers.*: [[data, fsdp], null, null]
",
    ),
    (
        "configs/model/remat/scan.yaml",
        "\
activation_checkpoint_layers:
  - LlamaDecoderLayer
optimization_barrier_layers:
  - LlamaDecoderLayer
scan_layers: layers
offload_tensors:
  - decoder_input
",
    ),
    (
        "configs/trainer/quick.yaml",
        "\
type: lm_trainer.LMTrainer
global_batch_size: 2
max_steps: 2
checkpoint_interval: 1000
optimizer:
  type: adamw.AdamW
  kwargs:
    lr: 1.0e-3
    betas: [0.9, 0.95]
    eps: 1e-6
    weight_decay: 0.1
    update_clip: null
lr_scheduler:
  type: cosine
  num_warmup_steps: 1
  num_training_steps: 2
  kwargs: {}
max_grad_norm: 1.0
max_grad_value: null
",
    ),
    (
        "configs/data/short.yaml",
        "\
dataset:
  url: stories
  kwargs: {}
sequence_length: 32
collator:
  type: tokenize.TokenizeCollator
  kwargs: {}
",
    ),
];

fn moved() -> Place {
    let place = Place::new();
    for (name, content) in TREE {
        place.write(name, content);
    }
    place
}

#[test]
fn a_copied_configuration_trains_and_says_what_it_does_not_use() {
    let place = moved();
    let finished = place.run(&[]).with_code(0);

    let notes: Vec<&str> = finished
        .stderr
        .lines()
        .filter_map(|line| line.strip_prefix("note: `")?.split('`').next())
        .collect();
    let expected = [
        "torch_dtype",
        "matmul_precision",
        "model.remat.optimization_barrier_layers",
        "model.remat.scan_layers",
        "model.remat.offload_tensors",
        "model.pure_modules",
        "model.attention_kernel",
        "model.torch_dtype",
        "model.pretrained_step",
        "model.pretrained_strict",
        "model.bos_token_id",
        "model.eos_token_id",
        "model.pad_token_id",
        "model.hidden_act",
        "model.attention_dropout",
        "trainer.optimizer.kwargs.update_clip",
        "trainer.micro_batch_size",
    ];
    assert_eq!(notes, expected, "{}", finished.stderr);

    let run = place.run_folder();
    let steps = run
        .rows()
        .iter()
        .filter(|row| row["loss"].is_number())
        .count();
    assert_eq!(steps, 2);
    let config = run.json("resolved_config.json");
    assert_eq!(config["model"]["hidden_size"], 32);
    assert_eq!(config["trainer"]["micro_batch_size"], 2);
}

#[test]
fn a_value_that_would_change_the_run_is_refused_at_its_line() {
    let place = moved();
    let model = TREE[1].1.replace("hidden_act: silu", "hidden_act: gelu");
    place.write("configs/model/tiny.yaml", &model);
    let line = 1 + model
        .lines()
        .position(|l| l.contains("gelu"))
        .expect("a line");
    place
        .run(&[])
        .with_code(2)
        .complains("unknown key `hidden_act`")
        .complains(&format!("configs/model/tiny.yaml:{line}:1"));
    assert!(place.run_folders().is_empty());
}
