//! The curves of cases on several ranks, threads of this process, under each preset: those of one rank.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tt_collators::{Batch, IGNORE};
use tt_config::Composer;
use tt_dist::{Communicator, Mesh, MeshAxes, threads};
use tt_models::{Architecture, LlamaConfig, Qwen2Config};
use tt_nn::ParamSpec;
use tt_sharding::{Layout, Sharded, ShardingConfig};
use tt_tensor::Device;

use crate::check::Check;

/// `configs/model/sharding`, as users have it.
const PRESETS: &[(&str, &str)] = &[
    (
        "replicated.yaml",
        include_str!("../../../configs/model/sharding/replicated.yaml"),
    ),
    (
        "zero1.yaml",
        include_str!("../../../configs/model/sharding/zero1.yaml"),
    ),
    (
        "zero2.yaml",
        include_str!("../../../configs/model/sharding/zero2.yaml"),
    ),
    (
        "zero3.yaml",
        include_str!("../../../configs/model/sharding/zero3.yaml"),
    ),
    (
        "hybrid.yaml",
        include_str!("../../../configs/model/sharding/hybrid.yaml"),
    ),
    (
        "qwen2-fsdp.yaml",
        include_str!("../../../configs/model/sharding/qwen2-fsdp.yaml"),
    ),
    (
        "llama-fsdp.yaml",
        include_str!("../../../configs/model/sharding/llama-fsdp.yaml"),
    ),
];

fn preset(name: &str) -> ShardingConfig {
    let composer = Composer::new(name).embedded("main", PRESETS);
    let composition = composer.compose::<&str>(&[]).unwrap();
    composition.extract("").unwrap()
}

#[test]
fn golden_qwen2_tied_replicated_on_ranks() {
    on_ranks::<Qwen2Config>("qwen2_tied", &["replicated"], &[2]);
}

#[test]
fn golden_qwen2_tied_zero_on_ranks() {
    on_ranks::<Qwen2Config>("qwen2_tied", &["zero1", "zero2"], &[3]);
    on_ranks::<Qwen2Config>("qwen2_tied", &["zero3"], &[2, 3, 4]);
    on_ranks::<Qwen2Config>("qwen2_tied", &["qwen2-fsdp"], &[2]);
}

#[test]
fn golden_qwen2_tied_hybrid_on_ranks() {
    on_mesh::<Qwen2Config>("qwen2_tied", "hybrid", 2, 2);
}

#[test]
fn golden_llama3_rope_on_ranks() {
    on_ranks::<LlamaConfig>("llama3_rope", &["zero3", "llama-fsdp"], &[2]);
}

#[test]
fn golden_grad_accumulation_on_ranks() {
    on_ranks::<Qwen2Config>("grad_accumulation", &["zero1", "zero2", "zero3"], &[3]);
}

#[test]
fn golden_lora_qwen2_on_ranks() {
    on_ranks::<Qwen2Config>("lora_qwen2", &["zero1", "zero3"], &[2]);
}

fn on_ranks<C: Architecture>(case: &str, presets: &[&str], sizes: &[i64]) {
    for name in presets {
        for size in sizes {
            on_mesh::<C>(case, name, 1, *size);
        }
    }
}

fn on_mesh<C: Architecture>(case: &str, name: &str, data: i64, fsdp: i64) {
    let mut check = Check::open::<C>(case, Device::Cpu);
    if case.starts_with("lora") {
        check = check.with_adapter("adapter_init");
    }
    let axes = MeshAxes {
        data,
        fsdp: Some(fsdp),
        ..MeshAxes::default()
    };
    let size = (data * fsdp) as usize;
    let mesh = Mesh::new(&axes, &MeshAxes::default(), size).unwrap();
    let mut specs = check.model.params();
    if let Some(adapter) = &check.adapter {
        specs.extend(adapter.lora.params());
    }
    let modules = tt_models::modules(&*check.model).unwrap();
    let modules: Vec<String> = modules.iter().map(|(path, _)| path.to_string()).collect();
    let config = preset(name);
    let layout = Layout::new(&config, &specs, str::to_owned, &modules, |_| false, &mesh).unwrap();
    thread::scope(|scope| {
        let (check, layout) = (&check, &layout);
        for world in threads::group(size, Some(Duration::from_secs(120))) {
            scope.spawn(move || as_rank(check, layout.clone(), world));
        }
    });
}

fn as_rank(check: &Check, layout: Layout, world: Arc<dyn Communicator>) {
    let rank = world.rank();
    let params = check.parts(&|spec: &ParamSpec| layout.shard(spec, rank));
    let ranks = Sharded::new(
        layout,
        &params,
        &check.model.blocks(),
        check.precision,
        world,
    )
    .unwrap();
    let mut training = check.training_of(params.with_hooks(ranks.clone()));
    training.share_with(ranks);
    let share = training.reduce.share();
    check.curve_of(training, |batches| {
        let rows = batches.iter().flat_map(rows).collect();
        share.take(rows, drop)
    });
}

/// Each row as a batch of its own, so that there are some for every rank.
fn rows(batch: &Batch) -> Vec<Batch> {
    let row = |i: usize| {
        let at = i * batch.seq_len..(i + 1) * batch.seq_len;
        let labels = batch.labels[at.clone()].to_vec();
        let targets = labels[1..].iter().filter(|&&label| label != IGNORE);
        Batch {
            rows: 1,
            seq_len: batch.seq_len,
            input_ids: batch.input_ids[at.clone()].to_vec(),
            segment_ids: batch.segment_ids[at.clone()].to_vec(),
            position_ids: batch.position_ids[at].to_vec(),
            num_targets: targets.count(),
            labels,
            ..Batch::default()
        }
    };
    (0..batch.rows).map(row).collect()
}
