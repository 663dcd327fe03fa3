//! Training on the TPU as its user does: the curve of the CPU, checkpoints that go from one to the other, and a quiet
//! console. What is said of a TPU that fails or is missing: `supervision.rs`.

use std::path::{Path, PathBuf};

use crate::harness::{Finished, NANO, RunFolder, Running, TpuPlace, entries};

const STEPS: usize = 20;
/// A rounding of f32 sums in another order, and what twenty steps make of it.
const F32_REL: f64 = 1e-4;

const RUN: &[&str] = &[
    "data.sequence_length=16",
    "data.num_val_blocks=1",
    "trainer.global_batch_size=2",
    "trainer.micro_batch_size=2",
    "trainer.max_steps=20",
    "trainer.checkpoint_interval=10",
    "trainer.log_interval=1",
];
const CPU: &[&str] = &[];
const TPU: &[&str] = &["device=tpu", "device.cores=2", "device.fallback=error"];

impl TpuPlace {
    /// Trains to the end in `folder`.
    #[track_caller]
    fn train(&self, folder: &str, device: &[&str], more: &[&str]) -> (RunFolder, Finished) {
        let run_dir = format!("hydra.run.dir={folder}");
        let args = [NANO, RUN, device, more, &[&run_dir]].concat();
        let finished = Running::start(self.command(&args)).finish().with_code(0);
        (RunFolder(self.place.path().join(folder)), finished)
    }

    /// Goes on with `from`'s tenth step on another device.
    #[track_caller]
    fn go_on(&self, from: &RunFolder, folder: &str, device: &[&str]) -> RunFolder {
        let resume = format!("resume={}", tenth(from).display());
        let (run, finished) = self.train(folder, device, &[&resume]);
        finished.prints("from step 10");
        run
    }
}

fn tenth(run: &RunFolder) -> PathBuf {
    let checkpoint = run.join("checkpoints/step-00000010");
    assert!(Path::new(&checkpoint).is_dir(), "{}", checkpoint.display());
    checkpoint
}

/// Step and loss of each step made in this folder.
fn curve(run: &RunFolder) -> Vec<(u64, f64)> {
    run.rows()
        .iter()
        .filter_map(|row| Some((row["step"].as_u64()?, row.get("loss")?.as_f64()?)))
        .collect()
}

/// `run` makes the steps of `reference` from `first` on.
#[track_caller]
fn assert_same_curve(run: &RunFolder, reference: &RunFolder, first: u64, rel: f64) {
    let mut reference = curve(reference);
    assert_eq!(reference.len(), STEPS);
    reference.retain(|(step, _)| *step >= first);
    let mut made = curve(run);
    made.retain(|(step, _)| *step >= first);
    assert_eq!(made.len(), reference.len(), "{made:?}");
    for ((step, loss), (expected_step, expected)) in made.into_iter().zip(reference) {
        assert_eq!(step, expected_step);
        let error = (loss - expected).abs() / expected;
        assert!(error <= rel, "step {step}: {loss}, not {expected}");
    }
}

#[test]
#[ignore = "for cargo xtask check --full"]
fn f32_follows_the_cpu_in_silence_and_checkpoints_go_from_one_to_the_other() {
    let Some(lab) = TpuPlace::open() else { return };
    let (cpu, _) = lab.train("cpu", CPU, &[]);
    let (tpu, finished) = lab.train("tpu", TPU, &[]);
    assert_same_curve(&tpu, &cpu, 1, F32_REL);

    assert_eq!(finished.stderr, "");
    assert!(!finished.stdout.contains("[ap]"), "{}", finished.stdout);
    assert_ne!(
        tpu.read("device.log"),
        "",
        "what the vendor's libraries say"
    );
    assert_eq!(entries(&lab.tmp()), [] as [PathBuf; 0]);

    let on_cpu = lab.go_on(&tpu, "tpu-then-cpu", CPU);
    assert_same_curve(&on_cpu, &cpu, 11, F32_REL);
    let on_tpu = lab.go_on(&cpu, "cpu-then-tpu", TPU);
    assert_same_curve(&on_tpu, &cpu, 11, F32_REL);
}

#[test]
#[ignore = "for cargo xtask check --full"]
fn bf16_follows_the_cpu_within_the_bound_of_its_golden_case() {
    let Some(lab) = TpuPlace::open() else { return };
    let golden = include_str!("../golden/bf16/case.json");
    let golden: serde_json::Value = serde_json::from_str(golden).expect("JSON");
    let rel = golden["tolerances"]["curve_loss_rel"].as_f64().unwrap();
    let bf16 = &["precision=bf16"];
    let (cpu, _) = lab.train("cpu", CPU, bf16);
    let (tpu, _) = lab.train("tpu", TPU, bf16);
    assert_same_curve(&tpu, &cpu, 1, rel);
}

/// Of what is printed at the end: kernels and launches.
pub fn kernels_and_launches(finished: &Finished) -> (u64, u64) {
    let line = finished
        .stdout
        .lines()
        .find(|line| line.starts_with("tpu  "));
    let numbers = line.expect("a line of the TPU").split(' ');
    let numbers: Vec<u64> = numbers
        .filter_map(|word| word.parse().ok())
        .take(2)
        .collect();
    (numbers[0], numbers[1])
}

/// With accumulation, dropout and recomputation, whose shapes and numbers differ from launch to launch.
#[test]
fn batches_make_the_same_bits_with_a_few_launches_a_step() {
    let Some(lab) = TpuPlace::open() else { return };
    let more = [
        "trainer.max_steps=3",
        "trainer.micro_batch_size=1",
        "trainer.eval_interval=null",
        "trainer.sample.count=0",
        "data.sequence_length=8",
        "model.hidden_dropout=0.1",
        "model/remat=full",
    ];
    let (eager, finished) = lab.train("eager", TPU, &more);
    let (kernels, launches) = kernels_and_launches(&finished);
    assert_eq!(kernels, launches);
    let (batched, finished) =
        lab.train("batch", TPU, &[&more[..], &["device.mode=batch"]].concat());
    let (in_batches, launches) = kernels_and_launches(&finished);
    assert_eq!(in_batches, kernels);
    println!("{kernels} kernels in {launches} launches");
    assert!(launches <= 3 * 5, "{launches} launches in three steps");
    assert_eq!(batched.timeless_rows(), eager.timeless_rows());
    let weights = |run: &RunFolder| std::fs::read(run.final_checkpoint().join("model.safetensors"));
    assert!(weights(&batched).unwrap() == weights(&eager).unwrap());
}

/// The other chip, whose runtime, emulator and engines are others.
#[test]
fn a_bm1684x_follows_the_cpu() {
    let Some(lab) = TpuPlace::open() else { return };
    let more = [
        "trainer.max_steps=3",
        "trainer.eval_interval=null",
        "trainer.sample.count=0",
    ];
    let chip = ["device=tpu", "device.chip=bm1684x", "device.fallback=error"];
    let (cpu, _) = lab.train("cpu", CPU, &more);
    let (tpu, _) = lab.train("tpu", &chip, &more);
    let (expected, made) = (curve(&cpu), curve(&tpu));
    assert_eq!(made.len(), 3);
    for ((step, loss), (_, expected)) in made.into_iter().zip(expected) {
        let error = (loss - expected).abs() / expected;
        assert!(error <= F32_REL, "step {step}: {loss}, not {expected}");
    }
    let [batch, memory] = ["device.mode=batch", "device.memory_gb=8"];
    let (batched, finished) = lab.train("batch", &chip, &[&more[..], &[batch]].concat());
    let (_, launches) = kernels_and_launches(&finished);
    assert!(launches <= 3 * 5, "{launches} launches in three steps");
    assert_eq!(batched.timeless_rows(), tpu.timeless_rows());

    let refused = [NANO, RUN, &chip, &[memory]].concat();
    let refused = Running::start(lab.command(&refused)).finish();
    refused.complains("an emulated bm1684x has 4 GiB of memory and no more");
}

/// Products and attention, in the precision and with the segments that training has.
#[test]
fn the_vendors_kernels_follow_the_cpu_and_what_they_leave_to_ours_is_told() {
    let Some(lab) = TpuPlace::open() else { return };
    let golden = include_str!("../golden/bf16/case.json");
    let golden: serde_json::Value = serde_json::from_str(golden).expect("JSON");
    let rel = golden["tolerances"]["curve_loss_rel"].as_f64().unwrap();
    let more = [
        "precision=bf16",
        "model.num_attention_heads=2", // of head dim 32
        "model.num_key_value_heads=1",
        "trainer.max_steps=3",
        "trainer.micro_batch_size=1",
        "trainer.eval_interval=null",
        "trainer.sample.count=0",
    ];
    let (cpu, _) = lab.train("cpu", CPU, &more);
    let vendors = [TPU, &["device.kernels=vendor"]].concat();
    let (tpu, finished) = lab.train("tpu", &vendors, &more);
    let (expected, made) = (curve(&cpu), curve(&tpu));
    assert_eq!(made.len(), 3);
    for ((step, loss), (_, expected)) in made.into_iter().zip(expected) {
        let error = (loss - expected).abs() / expected;
        assert!(error <= rel, "step {step}: {loss}, not {expected}");
    }
    let left = "device.kernels=vendor left to this program's kernels";
    let finished = finished
        .complains(left)
        .complains("(it is added to what is there)");
    assert!(
        !finished.stderr.contains("attention"),
        "{}",
        finished.stderr
    );
}
