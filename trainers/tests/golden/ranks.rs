//! The curves of cases on several ranks, threads of this process, under each preset: those of one rank.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tt_collators::{Batch, IGNORE, Values};
use tt_config::Composer;
use tt_dist::{Communicator, Mesh, MeshAxes, threads};
use tt_models::{Gpt2Config, LlamaConfig, ModelConfig, Qwen2Config};
use tt_nn::ParamSpec;
use tt_optimizers::{
    MAIN, MakeOptimizer, Optimizers, SchedulePlan, Scheduled, Shape, TABLE, needs_whole,
};
use tt_sharding::{Layout, Sharded, ShardingConfig};
use tt_tensor::{Device, Seed, Tensor};
use tt_testkit::{Tensors, relative_l2};
use tt_train::{Trainer, Training};

use crate::batches::{at, micro_batches};
use crate::bert;
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

#[test]
fn golden_gpt2_on_ranks() {
    on_ranks::<Gpt2Config>("gpt2", &["zero3"], &[3]);
    on_ranks::<Gpt2Config>("lora_gpt2", &["zero3"], &[2]);
}

fn on_ranks<C: ModelConfig>(case: &str, presets: &[&str], sizes: &[i64]) {
    for name in presets {
        for size in sizes {
            on_mesh::<C>(case, name, 1, *size);
        }
    }
}

#[test]
fn golden_bert_mlm_on_ranks() {
    let case = Case {
        check: bert::open(Device::Cpu),
        trainer: |_| Box::new(bert::trainer()),
        batches: |tensors| vec![bert::batch(tensors)],
    };
    case.on_mesh("zero3", 1, 2);
}

fn on_mesh<C: ModelConfig>(case: &str, name: &str, data: i64, fsdp: i64) {
    let mut check = Check::open_model::<C>(case, Device::Cpu);
    if case.starts_with("lora") {
        check = check.with_adapter("adapter_init");
    }
    let case = Case {
        check,
        trainer: |check| check.trainer(),
        batches: micro_batches,
    };
    case.on_mesh(name, data, fsdp);
}

struct Case {
    check: Check,
    trainer: fn(&Check) -> Box<dyn Trainer>,
    batches: fn(&Tensors) -> Vec<Batch>,
}

impl Case {
    fn on_mesh(&self, name: &str, data: i64, fsdp: i64) {
        let check = &self.check;
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
        let layout =
            Layout::new(&config, &specs, str::to_owned, &modules, |_| false, &mesh).unwrap();
        thread::scope(|scope| {
            let layout = &layout;
            for world in threads::group(size, Some(Duration::from_secs(120))) {
                scope.spawn(move || self.as_rank(layout.clone(), world));
            }
        });
    }

    fn as_rank(&self, layout: Layout, world: Arc<dyn Communicator>) {
        let check = &self.check;
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
        let own = |tensors: &Tensors| {
            let rows = (self.batches)(tensors).iter().flat_map(rows).collect();
            share.take(rows, drop)
        };
        check.curve_by(&mut *(self.trainer)(check), training, own, usize::MAX);
    }
}

/// Those that users can choose, in their settings: what is added to the table is compared by itself.
#[test]
fn every_optimizer_steps_parts_as_it_steps_wholes() {
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs");
    let composer = Composer::new("default").directory("main", &configs);
    let check = Check::open::<Qwen2Config>("qwen2_tied", Device::Cpu);
    let (table, mut seen) = (TABLE, Vec::new());
    for file in fs::read_dir(configs.join("trainer/optimizer")).unwrap() {
        let file = file.unwrap().path();
        let option = file.file_stem().unwrap().to_str().unwrap();
        let choice = format!("trainer/optimizer={option}");
        let composition = composer.compose(&["+trainer=lm", &choice]).unwrap();
        let section = composition.section("trainer.optimizer");
        let entry = table.choose(&section).unwrap();
        let make = || (entry.build)(&section.section("kwargs")).unwrap();
        let [one, two] = [1, 2].map(|ranks| five_steps(&check, entry.name, ranks, make));
        let (losses, updates) = (
            relative_l2(&two.losses, &one.losses),
            relative_l2(&two.updates, &one.updates),
        );
        println!("{}: losses {losses:.1e}, updates {updates:.1e}", entry.name);
        assert!(
            losses < 1e-5,
            "{}: losses differ by {losses:.1e}",
            entry.name
        );
        assert!(
            updates < 1e-2,
            "{}: updates differ by {updates:.1e}",
            entry.name
        );
        seen.push(entry.name);
    }
    seen.sort_unstable();
    let mut all = table.names();
    all.sort_unstable();
    assert_eq!(seen, all, "in configs/trainer/optimizer");
}

struct Steps {
    losses: Vec<f32>,
    /// Of all parameters, one after another.
    updates: Vec<f32>,
}

/// As the first of `ranks` ranks has them, under zero3.
fn five_steps(check: &Check, kind: &str, ranks: usize, make: impl Fn() -> MakeOptimizer) -> Steps {
    let mesh = Mesh::new(&MeshAxes::default(), &MeshAxes::default(), ranks).unwrap();
    let specs = check.model.params();
    let uncut = |spec: &ParamSpec| needs_whole(kind, spec);
    let config = preset("zero3");
    let layout = Layout::new(&config, &specs, str::to_owned, &[], uncut, &mesh).unwrap();
    let work = |world: Arc<dyn Communicator>, make: MakeOptimizer| {
        let params = check.parts(&|spec: &ParamSpec| layout.shard(spec, world.rank()));
        let blocks = check.model.blocks();
        let sharded = Sharded::new(layout.clone(), &params, &blocks, check.precision, world);
        let sharded = sharded.unwrap();
        let params = params.with_hooks(sharded.clone());
        let optimizer = make(&params).unwrap();
        let schedule = SchedulePlan::new(Shape::Constant, 0).build(None, optimizer.lr());
        let optimizers = Optimizers::new(vec![Scheduled {
            name: MAIN.to_owned(),
            kind: kind.to_owned(),
            params: None,
            optimizer,
            schedule: schedule.unwrap(),
        }]);
        let (model, seed) = (check.model.clone(), Seed::new(0));
        let mut training = Training::new(model, params, optimizers, seed, check.device);
        training.share_with(sharded);
        let values = |training: &Training| -> Vec<f32> {
            let params = training.params.iter().map(|(_, parameter)| parameter);
            let whole = params.map(|it| training.params.with_whole(it, Tensor::to_vec::<f32>));
            whole.flat_map(|it| it.unwrap().unwrap()).collect()
        };
        let before = values(&training);
        let (mut trainer, batches) = (check.trainer(), check.golden.tensors("batches"));
        let share = training.reduce.share();
        let losses = (0..5).map(|i| {
            let batches = micro_batches(&at(&batches, i));
            let own = share.take(batches.iter().flat_map(rows).collect(), drop);
            let output = trainer.train_step(&mut training, &own).unwrap();
            output.numbers.loss
        });
        let losses = losses.collect();
        let after = values(&training);
        let updates = after
            .iter()
            .zip(&before)
            .map(|(after, before)| after - before);
        let updates = updates.collect();
        Steps { losses, updates }
    };
    thread::scope(|scope| {
        let work = &work;
        let ranks = threads::group(ranks, Some(Duration::from_secs(120)));
        let started = ranks.into_iter().map(|world| {
            let make = make();
            scope.spawn(move || work(world, make))
        });
        let started: Vec<_> = started.collect();
        let mut steps = started.into_iter().map(|it| it.join().unwrap());
        let first = steps.next().unwrap();
        steps.for_each(drop);
        first
    })
}

/// Each row as a batch of its own, so that there are some for every rank.
fn rows(batch: &Batch) -> Vec<Batch> {
    let row = |i: usize| {
        let at = i * batch.seq_len..(i + 1) * batch.seq_len;
        let labels = batch.labels[at.clone()].to_vec();
        let shift = batch.prediction.shift();
        let targets = labels[shift..].iter().filter(|&&label| label != IGNORE);
        Batch {
            rows: 1,
            seq_len: batch.seq_len,
            input_ids: batch.input_ids[at.clone()].to_vec(),
            segment_ids: batch.segment_ids[at.clone()].to_vec(),
            position_ids: batch.position_ids[at.clone()].to_vec(),
            fields: (batch.fields.iter())
                .map(|(field, values)| (*field, part(values, at.clone())))
                .collect(),
            prediction: batch.prediction,
            num_targets: targets.count(),
            labels,
            ..Batch::default()
        }
    };
    (0..batch.rows).map(row).collect()
}

fn part(values: &Values, at: Range<usize>) -> Values {
    match values {
        Values::F32(values) => Values::F32(values[at].to_vec()),
        Values::I64(values) => Values::I64(values[at].to_vec()),
        Values::U32(values) => Values::U32(values[at].to_vec()),
    }
}
