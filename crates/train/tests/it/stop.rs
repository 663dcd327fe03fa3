//! A run asked to stop in the middle of a step's micro-batches.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use tt_checkpoint::latest;
use tt_models::Model;
use tt_nn::Forward;
use tt_tensor::Device;
use tt_train::{DeviceBatch, Ending, Loss, Result, StopFlag, Trainer, load_params};

use crate::common::{self, MICRO_BATCHES, plain_loss};

/// Asks for the end of the run in a training micro-batch, counted from 1.
struct Stopping {
    stop: StopFlag,
    at: Option<usize>,
    micro_batches: Arc<AtomicUsize>,
}

impl Trainer for Stopping {
    fn loss(&self, fwd: &Forward, model: &dyn Model, batch: &DeviceBatch) -> Result<Loss> {
        if fwd.is_training() {
            let made = self.micro_batches.fetch_add(1, Ordering::Relaxed) + 1;
            if Some(made) == self.at {
                self.stop.request();
            }
        }
        plain_loss(fwd, model, batch)
    }
}

/// Trains to `max_steps`, from the newest checkpoint in `dir` if there is one; gives how it ended, its last step, and how
/// many micro-batches it made.
fn run(dir: &Path, max_steps: u64, stop_at: Option<usize>) -> (Ending, u64, usize) {
    let (stop, micro_batches) = (StopFlag::default(), Arc::default());
    let trainer = Stopping {
        stop: stop.clone(),
        at: stop_at,
        micro_batches: Arc::clone(&micro_batches),
    };
    let mut job = common::job(max_steps, trainer, stop);
    job.resume = latest(&dir.join("checkpoints")).unwrap().checkpoint;
    if let Some(checkpoint) = &job.resume {
        let weights = checkpoint.model().unwrap();
        job.params = load_params(&*job.model, &weights, Device::Cpu).unwrap();
        job.optimizers = common::optimizers(&job.params, max_steps);
    }
    let outcome = job
        .prepare()
        .unwrap()
        .run(dir, common::metrics(dir))
        .unwrap();
    (
        outcome.ending,
        outcome.step,
        micro_batches.load(Ordering::Relaxed),
    )
}

/// Step, loss and gradient norm of each row of the last run in `dir`.
fn rows(dir: &Path) -> Vec<[Value; 3]> {
    let text = std::fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
    let rows = text.lines().map(|line| {
        let row: Value = serde_json::from_str(line).unwrap();
        ["step", "loss", "grad_norm"].map(|key| row[key].clone())
    });
    rows.filter(|[_, loss, _]| !loss.is_null()).collect()
}

#[test]
fn a_run_stopped_between_micro_batches_goes_on_as_if_it_had_not_been() {
    let [whole, stopped] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (whole, stopped) = (whole.path(), stopped.path());
    run(whole, 4, None);

    // In the second micro-batch of the third step.
    let at = 2 * MICRO_BATCHES + 2;
    let ended = run(stopped, 4, Some(at));
    assert_eq!(ended, (Ending::Stopped, 2, at), "nothing more was made");
    let mut losses = rows(stopped);
    assert_eq!(
        run(stopped, 4, None),
        (Ending::Finished, 4, 2 * MICRO_BATCHES)
    );
    losses.extend(rows(stopped));
    assert_eq!(losses, rows(whole));
}

#[test]
fn a_stop_in_the_last_micro_batch_lets_the_step_be_made() {
    let dir = tempfile::tempdir().unwrap();
    let ended = run(dir.path(), 4, Some(MICRO_BATCHES));
    assert_eq!(ended, (Ending::Stopped, 1, MICRO_BATCHES));
}

#[test]
fn a_stop_in_the_first_step_leaves_the_run_at_its_beginning() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(run(dir.path(), 4, Some(1)), (Ending::Stopped, 0, 1));
    let saved = latest(&dir.path().join("checkpoints")).unwrap();
    assert_eq!(saved.checkpoint, None);
}
