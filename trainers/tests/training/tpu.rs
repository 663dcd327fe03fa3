//! A training step on the TPU: nothing goes back and forth, and the numbers are those of the CPU.

use std::sync::mpsc::{Sender, channel};

use tt_metrics::{Record, Sink, SinkResult};
use tt_tensor::{Device, TpuDevice};

/// What the device has done by the end of a step.
struct Counts {
    launches: u64,
    uploads: u64,
    downloads: u64,
    fault_reads: u64,
    live_bytes: u64,
}

/// Notes each step's loss, and the counts after it.
struct PerStep {
    device: Option<TpuDevice>,
    steps: Sender<(f32, Option<Counts>)>,
}

impl Sink for PerStep {
    fn record(&mut self, record: &Record, _position: u64) -> SinkResult {
        let Record::Step(step) = record else {
            return Ok(());
        };
        let counts = self.device.map(|device| {
            let stats = device.stats();
            Counts {
                launches: stats.num_launches(),
                uploads: stats.uploads,
                downloads: stats.downloads,
                fault_reads: stats.fault_reads,
                live_bytes: stats.live_bytes,
            }
        });
        self.steps.send((step.loss, counts)).unwrap();
        Ok(())
    }
}

fn run(device: Device, max_steps: u64) -> Vec<(f32, Option<Counts>)> {
    let dir = tempfile::tempdir().unwrap();
    let job = crate::common::job_on(device, max_steps).prepare().unwrap();
    let (sender, steps) = channel();
    let device = match device {
        Device::Tpu(tpu) => Some(tpu),
        _ => None,
    };
    let sink = PerStep {
        device,
        steps: sender,
    };
    job.run(dir.path(), crate::common::metrics(dir.path()).with(sink))
        .unwrap();
    steps.iter().collect()
}

#[test]
fn a_step_on_the_tpu_reads_the_host_once_and_follows_the_cpu() {
    tt_testkit::on_tpu(|tpu| {
        let on_tpu = run(tpu, 5);
        let on_cpu = run(Device::Cpu, 5);
        for (step, ((tpu, _), (cpu, _))) in on_tpu.iter().zip(&on_cpu).enumerate() {
            let error = ((tpu - cpu) / cpu).abs();
            assert!(error < 1e-5, "step {step}: {tpu} against {cpu}");
        }
        let counts: Vec<_> = on_tpu
            .iter()
            .map(|(_, counts)| counts.as_ref().unwrap())
            .collect();
        for pair in counts[1..].windows(2) {
            let (before, after) = (pair[0], pair[1]);
            assert_eq!(after.downloads - before.downloads, 1, "the logged numbers");
            // At that wait, and where the queue of launches is full.
            assert!((1..=2).contains(&(after.fault_reads - before.fault_reads)));
            // Ids, positions, segments and labels of two micro-batches.
            assert_eq!(after.uploads - before.uploads, 8);
            println!("{} launches a step", after.launches - before.launches);
            assert!(after.launches - before.launches < 400);
            assert_eq!(after.live_bytes, before.live_bytes, "nothing piles up");
        }
    });
}
