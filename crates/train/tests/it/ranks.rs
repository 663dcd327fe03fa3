//! The part of a step that goes over ranks: two of them, a thread each, make the steps of one that has all the data.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tt_collators::Batch;
use tt_dist::{Communicator, Mesh, MeshAxes, threads};
use tt_nn::{ParamSpec, ParamTree};
use tt_sharding::{Layout, Sharded, ShardingConfig};
use tt_tensor::{Device, Precision, Seed};
use tt_train::{Error, Result, StepOutput, Training, Verdict};

use crate::common::{self, plain_loss};

const STEPS: usize = 3;

fn training() -> Training {
    let model = common::model(0.0);
    let params = ParamTree::init(&model.params(), Seed::new(1), Device::Cpu).unwrap();
    let optimizers = common::optimizers(&params, STEPS as u64);
    Training::new(model, params, optimizers, Seed::new(1), Device::Cpu)
}

fn step(training: &mut Training, micro_batches: &[Batch]) -> Result<StepOutput> {
    let mut totals = training.accumulate(micro_batches, plain_loss)?;
    training.reduce(&mut totals)?;
    let judgement = training.judge(&totals)?;
    training.take_step(judgement)
}

fn batches() -> Vec<Batch> {
    let mut loader = common::data().train(None).unwrap();
    let batch = || loader.next_batch().unwrap().unwrap();
    std::iter::repeat_with(batch).take(2 * STEPS).collect()
}

/// The presets by the key that tells them apart.
const PRESETS: [&str; 4] = [
    r#"{}"#,
    r#"{"every": "fsdp"}"#,
    r#"{"every": "fsdp", "reduce": "micro_batch"}"#,
    r#"{"every": "fsdp", "reduce": "micro_batch", "gather": "block"}"#,
];

/// The run as a rank of `world` has it.
fn shared(preset: &str, world: Arc<dyn Communicator>) -> Training {
    let model = common::model(0.0);
    let config: ShardingConfig = serde_json::from_str(preset).unwrap();
    let mesh = Mesh::new(&MeshAxes::default(), &MeshAxes::default(), world.size()).unwrap();
    let specs = model.params();
    let layout = Layout::new(&config, &specs, str::to_owned, &[], |_| false, &mesh).unwrap();
    let shard = |spec: &ParamSpec| layout.shard(spec, world.rank());
    let params = ParamTree::init_sharded(&specs, Seed::new(1), Device::Cpu, &shard).unwrap();
    let ranks = Sharded::new(
        layout.clone(),
        &params,
        &model.blocks(),
        Precision::F32,
        world,
    )
    .unwrap();
    let params = params.with_hooks(ranks.clone());
    let optimizers = common::optimizers(&params, STEPS as u64);
    let mut training = Training::new(model, params, optimizers, Seed::new(1), Device::Cpu);
    training.share_with(ranks);
    training
}

/// Runs `run` on a thread for each of `size` ranks.
fn on_ranks<T: Send>(
    size: usize,
    preset: &str,
    run: impl Fn(usize, &mut Training) -> T + Sync,
) -> Vec<T> {
    thread::scope(|scope| {
        let run = &run;
        let start = |world: Arc<dyn Communicator>| {
            scope.spawn(move || run(world.rank(), &mut shared(preset, world)))
        };
        let ranks = threads::group(size, Some(Duration::from_secs(60)));
        let handles: Vec<_> = ranks.into_iter().map(start).collect();
        handles.into_iter().map(|it| it.join().unwrap()).collect()
    })
}

#[test]
fn ranks_make_the_steps_of_one_whatever_they_share() {
    let batches = batches();
    let mut alone = training();
    let expected: Vec<_> = batches
        .chunks(2)
        .map(|batches| step(&mut alone, batches).unwrap().numbers)
        .collect();
    // Of three, one has no rows.
    for size in [2, 3] {
        for preset in PRESETS {
            let of_ranks = on_ranks(size, preset, |_, training| {
                let share = training.reduce.share();
                let steps = batches.chunks(2).map(|batches| {
                    let own = share.take(batches.to_vec(), drop);
                    step(training, &own).unwrap().numbers
                });
                steps.collect::<Vec<_>>()
            });
            for of_rank in &of_ranks {
                assert_eq!(of_rank, &of_ranks[0], "all judge by the same numbers");
            }
            for (got, expected) in of_ranks[0].iter().zip(&expected) {
                assert!((got.loss - expected.loss).abs() < 1e-6 * expected.loss);
                let error = (got.grad_norm - expected.grad_norm).abs();
                assert!(error < 1e-5 * expected.grad_norm, "{preset} on {size}");
            }
        }
    }
    assert!(expected[2].loss < expected[0].loss);
}

#[test]
fn a_stop_asked_of_one_rank_breaks_off_the_step_of_both() {
    let batches = batches();
    let ended = on_ranks(2, PRESETS[3], |rank, training| {
        if rank == 1 {
            training.stop.request();
        }
        let own = std::slice::from_ref(&batches[rank]);
        let is_stopped = matches!(step(training, own), Err(Error::Stopped));
        (is_stopped, training.step)
    });
    assert_eq!(ended, [(true, 0); 2]);
}

#[test]
fn a_gradient_that_is_not_finite_on_one_rank_moves_none() {
    let batches = batches();
    let ended = on_ranks(2, PRESETS[3], |rank, training| {
        let own = std::slice::from_ref(&batches[rank]);
        let totals = training.accumulate(own, |fwd, model, batch| {
            let mut loss = plain_loss(fwd, model, batch)?;
            if rank == 1 {
                loss.sum = loss.sum.affine(f64::NAN, 0.0)?;
            }
            Ok(loss)
        });
        let mut totals = totals.unwrap();
        training.reduce(&mut totals).unwrap();
        let judgement = training.judge(&totals).unwrap();
        let before: Vec<_> = values(training);
        let output = training.take_step(judgement).unwrap();
        (output.verdict, values(training) == before)
    });
    for (verdict, has_stayed) in ended {
        assert!(matches!(verdict, Verdict::Stop(_)), "{verdict:?}");
        assert!(has_stayed);
    }
}

fn values(training: &Training) -> Vec<Vec<f32>> {
    let params = training.params.iter();
    params.map(|(_, it)| it.local().to_vec().unwrap()).collect()
}

#[test]
fn a_rank_that_fails_in_the_middle_of_a_step_ends_that_of_the_other() {
    let batches = batches();
    let ended = on_ranks(2, PRESETS[3], |rank, training| {
        let own = std::slice::from_ref(&batches[rank]);
        let made = training.accumulate(own, |fwd, model, batch| {
            if rank == 1 {
                let why = "a fault of its own".to_owned();
                return Err(Error::Trainer(why));
            }
            plain_loss(fwd, model, batch)
        });
        let error = made.err().unwrap().to_string();
        if rank == 1 {
            let world = training.ranks().unwrap().world().clone();
            world.fail(&error);
        }
        error
    });
    assert!(ended[0].contains("rank 1 has failed: the trainer: a fault of its own"));
}
