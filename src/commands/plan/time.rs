//! How long a step takes on hardware that the configuration describes.
//!
//! ```text
//! compute  = FLOPs of a rank / (device.peak_tflops * device.utilization)
//! exchange = bytes / bandwidth + messages * latency      within a host, plus the same between hosts
//! hidden   = what is gathered ahead, in each direction at most as long as that direction computes
//! step     = compute + exchange - hidden
//! ```
//!
//! Bytes and messages are those that the rehearsed rank has counted in the exchanges it makes; an exchange is between all
//! pairs of a group, so a rank has one message for each of the others. Assumed: ranks are equally fast and begin each
//! exchange together; a rank handles messages one after another, and hosts after its own; nobody else is on the network,
//! which carries all pairs at once; sums wait for nothing and hide behind nothing, as they are made where the backward pass
//! stands; blocks compute alike. Not in it: the optimizer's arithmetic, data, checkpoints, validation.

use tt_config::{Composition, Diagnostics};
use tt_dist::Mesh;
use tt_sharding::{Exchange, Load};
use tt_train::{Footprint, TrainerConfig};

use crate::config::AppConfig;
use crate::device::PeakTflops;
use crate::setup::problem;

/// What the configuration says that a rank and its links do.
pub(super) struct Hardware {
    flops_per_second: f64,
    within_host: Link,
    between_hosts: Link,
    sequence_length: usize,
}

/// In one direction.
struct Link {
    /// Where the configuration says `bytes_per_second`.
    key: &'static str,
    bytes_per_second: Option<f64>,
    seconds_per_message: f64,
}

/// Seconds of a step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StepTime {
    pub(super) compute: f64,
    pub(super) within_host: f64,
    pub(super) between_hosts: f64,
    /// Of both, what passes while the rank computes.
    pub(super) hidden: f64,
    pub(super) flops_per_second: f64,
    tokens: u64,
    /// That one rank alone would compute for the same step, by the number of ranks.
    ideal: f64,
}

impl StepTime {
    pub(super) fn step(&self) -> f64 {
        self.compute + self.within_host + self.between_hosts - self.hidden
    }

    pub(super) fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.step()
    }

    /// Tokens a second of a rank, to those of one rank alone.
    pub(super) fn efficiency(&self) -> f64 {
        self.ideal / self.step()
    }
}

impl Hardware {
    /// `None`: it is not said how fast a rank computes. Error: a number that is no speed.
    pub(super) fn read(
        config: &AppConfig,
        composition: &Composition,
    ) -> Result<Option<Self>, Diagnostics> {
        let mut problems = Diagnostics::new();
        let mut speed = |key: &str, value: Option<f64>| {
            if let Some(value) = value
                && !(value.is_finite() && value > 0.0)
            {
                let why = format!("`{key}`: {value} is no speed; give a number over 0");
                problems.push(problem(composition, key, why));
            }
            value
        };
        let (device, dist) = (&config.device, &config.dist);
        let peak = match device.peak_tflops {
            Some(PeakTflops::Given(peak)) => Some(peak),
            // Nothing is measured here: the run may be for another machine.
            Some(PeakTflops::Measured(_)) | None => None,
        };
        let peak = speed("device.peak_tflops", peak);
        let reached = speed("device.utilization", Some(device.utilization)).unwrap_or(1.0);
        let mut link = |key, gb_per_second, latency_us: f64| Link {
            key,
            bytes_per_second: speed(key, gb_per_second).map(|it| it * 1e9),
            seconds_per_message: latency_us * 1e-6,
        };
        let within_host = link(
            "dist.ici_gb_per_second",
            dist.ici_gb_per_second,
            dist.ici_latency_us,
        );
        let between_hosts = link(
            "dist.dcn_gb_per_second",
            dist.dcn_gb_per_second,
            dist.dcn_latency_us,
        );
        problems.into_result(peak.map(|peak| Self {
            flops_per_second: peak * 1e12 * reached,
            within_host,
            between_hosts,
            sequence_length: config.data.sequence_length,
        }))
    }

    /// Of a run that takes `footprint`. Error: the key of a link that it uses and of which nothing is said.
    pub(super) fn step_time(
        &self,
        footprint: &Footprint,
        trainer: &TrainerConfig,
        mesh: &Mesh,
    ) -> Result<StepTime, &'static str> {
        let traffic = &footprint.traffic;
        let seconds = |flops: u64| flops as f64 / self.flops_per_second;
        let compute = seconds(footprint.flops_per_step);
        let forward = seconds(footprint.forward_flops_per_step);
        let [gathers, prefetches, sums] =
            [traffic.gathers, traffic.prefetches, traffic.sums].map(|it| self.exchange(it));
        let (gathers, prefetches, sums) = (gathers?, prefetches?, sums?);
        let ahead = prefetches[0] + prefetches[1];
        let hidden = [forward, compute - forward].map(|direction| direction.min(ahead / 2.0));
        let [within_host, between_hosts] =
            [0, 1].map(|link| gathers[link] + prefetches[link] + sums[link]);
        let micro_batches = (trainer.global_batch_size / trainer.micro_batch_size) as f64;
        let ranks = mesh.num_ranks() as f64;
        // Some ranks may have a micro-batch less, and compute one for nothing.
        let useful = micro_batches / ranks / (micro_batches / ranks).ceil();
        Ok(StepTime {
            compute,
            within_host,
            between_hosts,
            hidden: hidden.iter().sum(),
            flops_per_second: self.flops_per_second,
            tokens: (trainer.global_batch_size * self.sequence_length) as u64,
            ideal: compute * useful,
        })
    }

    /// Seconds within a host and between hosts.
    fn exchange(&self, exchange: Exchange) -> Result<[f64; 2], &'static str> {
        Ok([
            self.within_host.seconds(exchange.within_host)?,
            self.between_hosts.seconds(exchange.between_hosts)?,
        ])
    }
}

impl Link {
    fn seconds(&self, load: Load) -> Result<f64, &'static str> {
        if load.messages == 0 {
            return Ok(0.0);
        }
        let bytes_per_second = self.bytes_per_second.ok_or(self.key)?;
        let messages = load.messages as f64 * self.seconds_per_message;
        Ok(load.bytes as f64 / bytes_per_second + messages)
    }
}
