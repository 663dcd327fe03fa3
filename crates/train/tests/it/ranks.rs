//! The part of a step that goes over ranks: two of them, a thread each, make the steps of one that has all the data.

use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use tt_collators::Batch;
use tt_nn::ParamTree;
use tt_tensor::{Device, Seed, Tensor};
use tt_train::{Error, Reduce, Result, StepOutput, Totals, Training};

use crate::common::{self, plain_loss};

const STEPS: usize = 3;

/// Adds up values of two ranks, in the order of the ranks.
struct Exchange {
    values: Mutex<[Vec<f32>; 2]>,
    barrier: Barrier,
}

impl Exchange {
    fn sum(&self, rank: usize, values: Vec<f32>) -> Vec<f32> {
        self.values.lock().unwrap()[rank] = values;
        self.barrier.wait();
        let [a, b] = self.values.lock().unwrap().clone();
        // Nobody may put in the next before both have read.
        self.barrier.wait();
        a.iter().zip(b).map(|(a, b)| a + b).collect()
    }
}

struct OfTwo {
    rank: usize,
    exchange: Arc<Exchange>,
}

impl OfTwo {
    fn sum(&self, tensor: &Tensor) -> Result<Tensor> {
        let sum = self.exchange.sum(self.rank, tensor.to_vec()?);
        Ok(Tensor::from_slice(
            &sum,
            tensor.shape().clone(),
            Device::Cpu,
        )?)
    }
}

impl Reduce for OfTwo {
    fn is_stopped(&self, this_rank: bool) -> Result<bool> {
        let asked = vec![f32::from(u8::from(this_rank))];
        Ok(self.exchange.sum(self.rank, asked)[0] > 0.0)
    }

    fn totals(&self, totals: &mut Totals) -> Result<()> {
        totals.loss = self.sum(&totals.loss)?;
        totals.weight = self.sum(&totals.weight)?;
        Ok(())
    }

    fn gradients(&self, params: &ParamTree) -> Result<()> {
        for (_, parameter) in params.iter() {
            if let Some(grad) = parameter.take_grad() {
                parameter.set_grad(self.sum(&grad)?);
            }
        }
        Ok(())
    }
}

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

/// Runs `rank` on a thread for each of two ranks.
fn on_two_ranks<T: Send>(run: impl Fn(usize, &mut Training) -> T + Sync) -> [T; 2] {
    let exchange = Arc::new(Exchange {
        values: Mutex::default(),
        barrier: Barrier::new(2),
    });
    thread::scope(|scope| {
        let start = |rank| {
            let (exchange, run) = (exchange.clone(), &run);
            scope.spawn(move || {
                let mut training = training();
                training.reduce = Box::new(OfTwo { rank, exchange });
                run(rank, &mut training)
            })
        };
        let [a, b] = [0, 1].map(start);
        [a.join().unwrap(), b.join().unwrap()]
    })
}

#[test]
fn two_ranks_make_the_steps_of_one() {
    let batches = batches();
    let mut alone = training();
    let expected: Vec<_> = batches
        .chunks(2)
        .map(|batches| step(&mut alone, batches).unwrap().numbers)
        .collect();
    let of_ranks = on_two_ranks(|rank, training| {
        let steps = batches.chunks(2).map(|batches| {
            let own = std::slice::from_ref(&batches[rank]);
            step(training, own).unwrap().numbers
        });
        steps.collect::<Vec<_>>()
    });
    assert_eq!(of_ranks[0], of_ranks[1]);
    for (got, expected) in of_ranks[0].iter().zip(&expected) {
        assert!((got.loss - expected.loss).abs() < 1e-6 * expected.loss);
        assert!((got.grad_norm - expected.grad_norm).abs() < 1e-5 * expected.grad_norm);
    }
    assert!(expected[2].loss < expected[0].loss);
}

#[test]
fn a_stop_asked_of_one_rank_breaks_off_the_step_of_both() {
    let batches = batches();
    let ended = on_two_ranks(|rank, training| {
        if rank == 1 {
            training.stop.request();
        }
        let own = std::slice::from_ref(&batches[rank]);
        let is_stopped = matches!(step(training, own), Err(Error::Stopped));
        (is_stopped, training.step)
    });
    assert_eq!(ended, [(true, 0); 2]);
}
