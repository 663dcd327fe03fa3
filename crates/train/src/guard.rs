//! Whether the gradient of a step may reach the weights.
//!
//! Asked once a step, after its one read and before the optimizer moves, so that nothing of a step that is refused
//! or skipped is in any weight or optimizer state.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::loss_scale::{LossScale, LossScaleConfig, LossScaler};
use crate::spikes::{Recent, Spike, SpikeAction, SpikeGuardConfig};

/// `trainer.bad_steps`: what is done about a step whose loss or gradient is not finite.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BadStepsConfig {
    /// `stop` saves the state before the step and ends the run; `skip` leaves the weights alone and goes on with the next batch.
    pub action: BadStepAction,
    /// Steps skipped in a row after which the run stops all the same, those of `trainer.spike_guard` included.
    #[schemars(range(min = 1))]
    pub max_consecutive: u64,
}

impl Default for BadStepsConfig {
    fn default() -> Self {
        Self {
            action: BadStepAction::Stop,
            max_consecutive: 10,
        }
    }
}

#[expect(
    missing_docs,
    reason = "named as in the configuration, whose reference says it"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BadStepAction {
    Stop,
    Skip,
}

/// What becomes of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The step is made.
    Apply,
    /// Applied, but worth a word.
    Warn(Spike),
    /// The optimizer is not asked; the step counts, and its batch is used up.
    Skip(Cause),
    /// The step does not count: the run is where it was before, and ends.
    Stop(Cause),
}

/// Why a step is not applied.
#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// The loss or the gradient is not finite.
    NonFinite,
    /// The gradient times the loss scale is not finite, which a smaller scale may mend.
    Overflow {
        /// The loss scale that it was made with.
        scale: f32,
    },
    /// A loss or gradient norm far above that of the steps before.
    Spike(Spike),
}

/// Whether the gradient of a step may reach the weights: asked once a step, after its one read and before the optimizer
/// moves, so that nothing of a step that is refused or skipped is in any weight or optimizer state.
#[derive(Clone, Debug, Default)]
pub struct StepGuard {
    bad_steps: BadStepsConfig,
    spikes: SpikeGuardConfig,
    scaler: Option<LossScaler>,
    state: GuardState,
}

/// What of a guard a checkpoint carries.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GuardState {
    skipped: u64,
    skipped_in_a_row: u64,
    recent: Recent,
    loss_scale: Option<LossScale>,
}

impl StepGuard {
    /// A guard that has seen no step.
    pub fn new(bad_steps: &BadStepsConfig, spikes: &SpikeGuardConfig) -> Self {
        Self {
            bad_steps: bad_steps.clone(),
            spikes: spikes.clone(),
            ..Self::default()
        }
    }

    /// Scales the loss, as f16 needs.
    #[must_use]
    pub fn with_loss_scale(mut self, config: &LossScaleConfig) -> Self {
        self.scaler = Some(LossScaler::new(config));
        self
    }

    /// Steps skipped since the run began.
    pub fn skipped_steps(&self) -> u64 {
        self.state.skipped
    }

    /// Steps skipped since one was last applied; overflows of the loss scale do not count.
    pub fn skipped_in_a_row(&self) -> u64 {
        self.state.skipped_in_a_row
    }

    /// `None` if the loss is not scaled.
    pub fn loss_scale(&self) -> Option<f32> {
        self.scaler.as_ref().map(LossScaler::scale)
    }

    /// What the summed loss of each of these is multiplied by before the backward pass.
    pub(crate) fn backward_seed(&self, num_targets: usize) -> f32 {
        let scaler = self.scaler.as_ref();
        scaler.map_or(1.0, |scaler| scaler.seed(num_targets))
    }

    /// Decides on a step and takes note of it.
    pub(crate) fn judge(&mut self, loss: f32, grad_norm: f32) -> Verdict {
        let verdict = self.limited(self.verdict(loss, grad_norm));
        let state = &mut self.state;
        match &verdict {
            Verdict::Apply | Verdict::Warn(_) => {
                state.skipped_in_a_row = 0;
                if self.spikes.action.is_some() {
                    state.recent.push(self.spikes.window, loss, grad_norm);
                }
            }
            Verdict::Skip(Cause::Overflow { .. }) => state.skipped += 1,
            Verdict::Skip(_) => {
                state.skipped += 1;
                state.skipped_in_a_row += 1;
            }
            Verdict::Stop(_) => {}
        }
        if let Some(scaler) = &mut self.scaler {
            match &verdict {
                Verdict::Skip(Cause::Overflow { .. }) => scaler.update(true),
                // Whatever made the loss what it is, it was not the scale.
                Verdict::Skip(Cause::NonFinite) | Verdict::Stop(_) => {}
                Verdict::Apply | Verdict::Warn(_) | Verdict::Skip(Cause::Spike(_)) => {
                    scaler.update(false);
                }
            }
        }
        verdict
    }

    fn verdict(&self, loss: f32, grad_norm: f32) -> Verdict {
        if let Some(scaler) = &self.scaler
            && loss.is_finite()
            && !grad_norm.is_finite()
            && scaler.can_back_off()
        {
            let scale = scaler.scale();
            return Verdict::Skip(Cause::Overflow { scale });
        }
        if !loss.is_finite() || !grad_norm.is_finite() {
            return match self.bad_steps.action {
                BadStepAction::Stop => Verdict::Stop(Cause::NonFinite),
                BadStepAction::Skip => Verdict::Skip(Cause::NonFinite),
            };
        }
        let Some(action) = self.spikes.action else {
            return Verdict::Apply;
        };
        let spike = self.state.recent.spike(&self.spikes, loss, grad_norm);
        match (spike, action) {
            (None, _) => Verdict::Apply,
            (Some(spike), SpikeAction::Warn) => Verdict::Warn(spike),
            (Some(spike), SpikeAction::Skip) => Verdict::Skip(Cause::Spike(spike)),
            (Some(spike), SpikeAction::Stop) => Verdict::Stop(Cause::Spike(spike)),
        }
    }

    /// One skip too many in a row stops.
    fn limited(&self, verdict: Verdict) -> Verdict {
        let is_last = self.state.skipped_in_a_row >= self.bad_steps.max_consecutive;
        match verdict {
            Verdict::Skip(cause @ (Cause::NonFinite | Cause::Spike(_))) if is_last => {
                Verdict::Stop(cause)
            }
            verdict => verdict,
        }
    }

    pub(crate) fn state(&self) -> GuardState {
        GuardState {
            loss_scale: self.scaler.as_ref().map(LossScaler::state),
            ..self.state.clone()
        }
    }

    pub(crate) fn restore(&mut self, state: GuardState) {
        // A run that begins to scale, or no longer does, does so by its own configuration.
        if let (Some(scaler), Some(saved)) = (&mut self.scaler, state.loss_scale) {
            scaler.restore(saved);
        }
        self.state = state;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skipping(max_consecutive: u64) -> StepGuard {
        let bad_steps = BadStepsConfig {
            action: BadStepAction::Skip,
            max_consecutive,
        };
        StepGuard::new(&bad_steps, &SpikeGuardConfig::default())
    }

    #[test]
    fn a_step_that_is_not_finite_stops_unless_it_is_to_be_skipped() {
        for (loss, grad_norm) in [(f32::NAN, 1.0), (1.0, f32::NAN), (1.0, f32::INFINITY)] {
            let stopped = StepGuard::default().judge(loss, grad_norm);
            assert_eq!(stopped, Verdict::Stop(Cause::NonFinite));
            let skipped = skipping(1).judge(loss, grad_norm);
            assert_eq!(skipped, Verdict::Skip(Cause::NonFinite));
        }
        assert_eq!(StepGuard::default().judge(1.0, 1.0), Verdict::Apply);
    }

    #[test]
    fn only_skips_in_a_row_use_up_patience() {
        let mut guard = skipping(2);
        for _ in 0..3 {
            for loss in [f32::NAN, f32::NAN, 1.0] {
                assert!(!matches!(guard.judge(loss, loss), Verdict::Stop(_)));
            }
        }
        assert_eq!(guard.skipped_steps(), 6);
        guard.judge(f32::NAN, 1.0);
        guard.judge(f32::NAN, 1.0);
        assert_eq!(guard.skipped_in_a_row(), 2);
        let third = guard.judge(f32::NAN, 1.0);
        assert_eq!(third, Verdict::Stop(Cause::NonFinite));
        assert_eq!(guard.skipped_steps(), 8, "the step that stops is not made");
    }

    #[test]
    fn an_overflow_backs_off_until_the_scale_cannot_be_to_blame() {
        let config = LossScaleConfig {
            init_scale: 4.0,
            ..LossScaleConfig::default()
        };
        let mut guard = StepGuard::default().with_loss_scale(&config);
        for scale in [4.0, 2.0] {
            let verdict = guard.judge(1.0, f32::INFINITY);
            assert_eq!(verdict, Verdict::Skip(Cause::Overflow { scale }));
        }
        assert_eq!(guard.loss_scale(), Some(1.0));
        let verdict = guard.judge(1.0, f32::INFINITY);
        assert_eq!(verdict, Verdict::Stop(Cause::NonFinite));
        assert_eq!((guard.skipped_steps(), guard.skipped_in_a_row()), (2, 0));
    }

    #[test]
    fn a_loss_that_is_not_finite_is_not_blamed_on_the_scale() {
        let mut guard = StepGuard::default().with_loss_scale(&LossScaleConfig::default());
        let verdict = guard.judge(f32::NAN, f32::NAN);
        assert_eq!(verdict, Verdict::Stop(Cause::NonFinite));
        assert_eq!(guard.loss_scale(), Some(65536.0));
    }

    #[test]
    fn only_a_guard_with_a_loss_scale_multiplies_the_loss() {
        let guard = StepGuard::default();
        assert_eq!(guard.backward_seed(128), 1.0);
        let guard = guard.with_loss_scale(&LossScaleConfig::default());
        assert_eq!(guard.backward_seed(128), 65536.0 / 128.0);
    }

    #[test]
    fn a_spike_that_is_skipped_does_not_become_usual() {
        let spikes = SpikeGuardConfig {
            action: Some(SpikeAction::Skip),
            window: 4,
            sigma: 6.0,
        };
        let mut guard = StepGuard::new(&BadStepsConfig::default(), &spikes);
        for loss in [1.0, 1.1, 0.9, 1.0] {
            assert_eq!(guard.judge(loss, 1.0), Verdict::Apply);
        }
        for _ in 0..10 {
            let verdict = guard.judge(9.0, 1.0);
            assert!(matches!(verdict, Verdict::Skip(Cause::Spike(_))));
        }
        assert!(matches!(guard.judge(9.0, 1.0), Verdict::Stop(_)));
    }

    #[test]
    fn a_restored_guard_goes_on_where_it_was() {
        let spikes = SpikeGuardConfig {
            action: Some(SpikeAction::Skip),
            window: 4,
            sigma: 2.0,
        };
        let fresh = || {
            StepGuard::new(&skipping(3).bad_steps, &spikes)
                .with_loss_scale(&LossScaleConfig::default())
        };
        let mut guard = fresh();
        for (loss, grad_norm) in [(0.1, 1.0), (0.3, 1.1), (f32::NAN, 1.0), (1.0, f32::NAN)] {
            guard.judge(loss, grad_norm);
        }
        let text = serde_json::to_string(&guard.state()).unwrap();
        let mut restored = fresh();
        restored.restore(serde_json::from_str(&text).unwrap());
        assert_eq!(restored.state(), guard.state());
        for (loss, grad_norm) in [(0.2, 1.0), (9.0, 1.0), (0.2, f32::INFINITY), (0.2, 1.0)] {
            assert_eq!(
                restored.judge(loss, grad_norm),
                guard.judge(loss, grad_norm)
            );
            assert_eq!(restored.state(), guard.state());
        }
    }
}
