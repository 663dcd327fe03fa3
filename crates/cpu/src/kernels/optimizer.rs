//! One optimizer step in place, one pass over memory.
//!
//! Formulas: [`UpdateRule`]. Layouts: dense; weights and gradients f32, each state f32 or bf16. Numeric notes: coefficients
//! are made in f64 and rounded once; elements are f32, the gradient is scaled first; a bf16 state is widened, updated in
//! f32 and rounded to nearest even. Reference: [`crate::reference::optimizer_step`].
//! Bound by memory: the arithmetic of no rule shows, so bf16 states and the sums for metrics go block by block through
//! buffers in the first-level cache, around the same update of f32 elements.

use half::bf16;

use crate::UpdateRule;
use crate::coefficients::{Adam, Coefficients, Formula, Lion, Momentum, RmsProp};
use crate::kernels::elementwise::scale_piece;
use crate::par::{self, Shared};
use crate::simd::{LANES, vectorize};

/// Elements of a block: buffers for all states and the weights before the step take 16 KiB.
const BLOCK: usize = 1024;

/// One state tensor.
pub(crate) enum State<'a> {
    F32(&'a mut [f32]),
    Bf16(&'a mut [bf16]),
}

/// Sums over elements: the square of the step, the square of the weight after it, and how many weights moved against
/// their gradient.
pub(crate) type Sums = [f64; 3];

/// `param`, `grad` and every state have equal lengths, and there are as many states as the rule has.
pub(crate) fn step(
    rule: &UpdateRule,
    param: &mut [f32],
    grad: &[f32],
    grad_scale: f32,
    states: &mut [State<'_>],
    wants_sums: bool,
) -> Option<Sums> {
    let by = rule.coefficients();
    let update = Update { grad_scale, by };
    let states: Vec<SharedState> = states.iter_mut().map(SharedState::new).collect();
    if !wants_sums && states.iter().all(|s| matches!(s, SharedState::F32(_))) {
        par::elementwise(param, |param, first| {
            // SAFETY: pieces do not overlap.
            let states = unsafe { in_place(&states, first, param.len()) };
            update.apply(param, &grad[first..][..param.len()], states);
        });
        return None;
    }
    // By the shape alone: sums are of pieces.
    let per_piece = par::piece_len(param.len(), par::PIECES, BLOCK);
    let mut partials = vec![[0.0; 3]; param.len().div_ceil(per_piece)];
    let shared = Shared::new(&mut partials);
    par::elementwise_by(per_piece, param, |param, first| {
        // SAFETY: each piece has sums of its own.
        let sums = unsafe { &mut shared.slice(first / per_piece, 1)[0] };
        let mut buffers = Buffers::default();
        for (i, block) in param.chunks_mut(BLOCK).enumerate() {
            let start = first + i * BLOCK;
            let grad = &grad[start..][..block.len()];
            let sums = wants_sums.then_some(&mut *sums);
            update.apply_block(block, grad, &states, start, &mut buffers, sums);
        }
    });
    wants_sums.then(|| {
        partials.iter().fold([0.0; 3], |all, part| {
            std::array::from_fn(|i| all[i] + part[i])
        })
    })
}

enum SharedState {
    F32(Shared<f32>),
    Bf16(Shared<bf16>),
}

impl SharedState {
    fn new(state: &mut State<'_>) -> Self {
        match state {
            State::F32(state) => Self::F32(Shared::new(state)),
            State::Bf16(state) => Self::Bf16(Shared::new(state)),
        }
    }
}

type States<'a> = [&'a mut [f32]; UpdateRule::MAX_STATES];

/// # Safety
/// No other task may touch these elements of the states while the slices are alive.
unsafe fn in_place(states: &[SharedState], first: usize, len: usize) -> States<'_> {
    std::array::from_fn(|i| match states.get(i) {
        // SAFETY: the caller's promise.
        Some(SharedState::F32(state)) => unsafe { state.slice(first, len) },
        _ => &mut [],
    })
}

struct Buffers {
    states: [[f32; BLOCK]; UpdateRule::MAX_STATES],
    before: [f32; BLOCK],
}

impl Default for Buffers {
    fn default() -> Self {
        Self {
            states: [[0.0; BLOCK]; UpdateRule::MAX_STATES],
            before: [0.0; BLOCK],
        }
    }
}

/// A step: what the rule multiplies by, and the scale of the gradient.
struct Update {
    grad_scale: f32,
    by: Coefficients,
}

impl Update {
    /// The update of f32 elements; states that the rule does not have are empty.
    fn apply(&self, p: &mut [f32], g: &[f32], [a, b, c]: States<'_>) {
        match &self.by.formula {
            Formula::Descend { rate } => descend(self, *rate, p, g),
            Formula::Adam(rule) if rule.amsgrad => amsgrad(self, rule, p, g, a, b, c),
            Formula::Adam(rule) => adam(self, rule, p, g, a, b),
            Formula::Momentum(rule) => momentum(self, rule, p, g, a),
            Formula::Lion(rule) => lion(self, rule, p, g, a),
            Formula::Adagrad { lr, eps } => adagrad(self, *lr, *eps, p, g, a),
            Formula::RmsProp(rule) => rms_prop(self, rule, p, g, a),
        }
    }

    /// The same for a block that starts at element `start` of the states, which may be bf16.
    fn apply_block(
        &self,
        param: &mut [f32],
        grad: &[f32],
        states: &[SharedState],
        start: usize,
        buffers: &mut Buffers,
        sums: Option<&mut Sums>,
    ) {
        let len = param.len();
        let mut wide: States<'_> = [&mut [], &mut [], &mut []];
        for ((wide, buffer), state) in wide.iter_mut().zip(&mut buffers.states).zip(states) {
            *wide = match state {
                // SAFETY: pieces do not overlap, and blocks of a piece come one after the other.
                SharedState::F32(state) => unsafe { state.slice(start, len) },
                SharedState::Bf16(state) => {
                    // SAFETY: as above.
                    widen(unsafe { state.slice(start, len) }, &mut buffer[..len]);
                    &mut buffer[..len]
                }
            };
        }
        let before = &mut buffers.before[..len];
        if sums.is_some() {
            before.copy_from_slice(param);
        }
        self.apply(param, grad, wide);
        for (buffer, state) in buffers.states.iter().zip(states) {
            if let SharedState::Bf16(state) = state {
                // SAFETY: as above.
                narrow(&buffer[..len], unsafe { state.slice(start, len) });
            }
        }
        if let Some(sums) = sums {
            add_sums(before, param, grad, sums);
        }
    }
}

vectorize! {
    fn descend(u: &Update, rate: f32, p: &mut [f32], g: &[f32]) {
        let g = &g[..p.len()];
        for i in 0..p.len() {
            p[i] = u.by.keep * p[i] - rate * (g[i] * u.grad_scale);
        }
    }
}

vectorize! {
    fn adam(u: &Update, c: &Adam, p: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
        let len = p.len();
        let (g, m, v) = (&g[..len], &mut m[..len], &mut v[..len]);
        for i in 0..len {
            let g = g[i] * u.grad_scale + u.by.l2 * p[i];
            m[i] = c.beta1 * m[i] + c.one_minus_beta1 * g;
            v[i] = c.beta2 * v[i] + c.one_minus_beta2 * g * g;
            let denominator = v[i].sqrt() * c.inv_sqrt_correction2 + c.eps;
            p[i] = u.by.keep * p[i] - c.step_size * m[i] / denominator;
        }
    }
}

vectorize! {
    fn amsgrad(
        u: &Update,
        c: &Adam,
        p: &mut [f32],
        g: &[f32],
        m: &mut [f32],
        v: &mut [f32],
        largest: &mut [f32],
    ) {
        let len = p.len();
        let (g, m, v, largest) = (&g[..len], &mut m[..len], &mut v[..len], &mut largest[..len]);
        for i in 0..len {
            let g = g[i] * u.grad_scale + u.by.l2 * p[i];
            m[i] = c.beta1 * m[i] + c.one_minus_beta1 * g;
            v[i] = c.beta2 * v[i] + c.one_minus_beta2 * g * g;
            largest[i] = if v[i] > largest[i] { v[i] } else { largest[i] };
            let denominator = largest[i].sqrt() * c.inv_sqrt_correction2 + c.eps;
            p[i] = u.by.keep * p[i] - c.step_size * m[i] / denominator;
        }
    }
}

vectorize! {
    fn momentum(u: &Update, c: &Momentum, p: &mut [f32], g: &[f32], m: &mut [f32]) {
        let len = p.len();
        let (g, m) = (&g[..len], &mut m[..len]);
        for i in 0..len {
            let g = g[i] * u.grad_scale + u.by.l2 * p[i];
            m[i] = c.momentum * m[i] + c.one_minus_dampening * g;
            p[i] -= c.lr * (c.of_grad * g + c.of_buffer * m[i]);
        }
    }
}

vectorize! {
    fn lion(u: &Update, c: &Lion, p: &mut [f32], g: &[f32], m: &mut [f32]) {
        let len = p.len();
        let (g, m) = (&g[..len], &mut m[..len]);
        for i in 0..len {
            let g = g[i] * u.grad_scale;
            let direction = c.beta1 * m[i] + c.one_minus_beta1 * g;
            // `signum` gives 1 for 0.
            let sign = if direction == 0.0 { 0.0 } else { direction.signum() };
            p[i] = u.by.keep * p[i] - c.lr * sign;
            m[i] = c.beta2 * m[i] + c.one_minus_beta2 * g;
        }
    }
}

vectorize! {
    fn adagrad(u: &Update, lr: f32, eps: f32, p: &mut [f32], g: &[f32], s: &mut [f32]) {
        let len = p.len();
        let (g, s) = (&g[..len], &mut s[..len]);
        for i in 0..len {
            let g = g[i] * u.grad_scale + u.by.l2 * p[i];
            s[i] += g * g;
            p[i] -= lr * g / (s[i].sqrt() + eps);
        }
    }
}

vectorize! {
    fn rms_prop(u: &Update, c: &RmsProp, p: &mut [f32], g: &[f32], s: &mut [f32]) {
        let len = p.len();
        let (g, s) = (&g[..len], &mut s[..len]);
        for i in 0..len {
            let g = g[i] * u.grad_scale + u.by.l2 * p[i];
            s[i] = c.alpha * s[i] + c.one_minus_alpha * g * g;
            p[i] -= c.lr * g / (s[i].sqrt() + c.eps);
        }
    }
}

vectorize! {
    fn widen(from: &[bf16], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = f32::from_bits(u32::from(from.to_bits()) << 16);
        }
    }
}

vectorize! {
    fn narrow(from: &[f32], to: &mut [bf16]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = bf16::from_bits(nearest_bf16(*from));
        }
    }
}

/// Rounded to nearest, ties to even; branch-free. NaN stays NaN.
#[inline(always)]
fn nearest_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) >> 16;
    // A NaN could round up to infinity, or past it to zero: set its quiet bit instead.
    let nan = (bits >> 16) | 0x40;
    (if x.is_nan() { nan } else { rounded }) as u16
}

vectorize! {
    fn add_sums(before: &[f32], after: &[f32], grad: &[f32], sums: &mut Sums) {
        let mut lanes = [[0.0f64; LANES]; 3];
        let (before, before_rest) = before.as_chunks::<LANES>();
        let (after, after_rest) = after.as_chunks::<LANES>();
        let (grad, grad_rest) = grad.as_chunks::<LANES>();
        for ((before, after), grad) in before.iter().zip(after).zip(grad) {
            for lane in 0..LANES {
                add_one(before[lane], after[lane], grad[lane], lane, &mut lanes);
            }
        }
        for (lane, before) in before_rest.iter().enumerate() {
            add_one(*before, after_rest[lane], grad_rest[lane], lane, &mut lanes);
        }
        for (sum, lanes) in sums.iter_mut().zip(lanes) {
            *sum += lanes.iter().sum::<f64>();
        }
    }
}

#[inline(always)]
fn add_one(before: f32, after: f32, grad: f32, lane: usize, lanes: &mut [[f64; LANES]; 3]) {
    let moved = after - before;
    lanes[0][lane] += moved as f64 * moved as f64;
    lanes[1][lane] += after as f64 * after as f64;
    // The signs differ, and neither is 0; the product of the two could round to 0.
    let against = (moved > 0.0) & (grad < 0.0) | (moved < 0.0) & (grad > 0.0);
    lanes[2][lane] += f64::from(u8::from(against));
}

/// `out = alpha * out + beta * x`, rounded to what bf16 can hold if asked.
pub(crate) fn combine(out: &mut [f32], alpha: f32, x: Option<(f32, &[f32])>, to_bf16: bool) {
    par::elementwise(out, |out, first| {
        match x {
            Some((beta, x)) => combine_piece(out, alpha, beta, &x[first..][..out.len()]),
            None if alpha != 1.0 => scale_piece(out, alpha),
            None => {}
        }
        if to_bf16 {
            round_piece(out);
        }
    });
}

vectorize! {
    fn combine_piece(out: &mut [f32], alpha: f32, beta: f32, x: &[f32]) {
        for (out, x) in out.iter_mut().zip(x) {
            *out = alpha * *out + beta * x;
        }
    }
}

vectorize! {
    fn round_piece(out: &mut [f32]) {
        for out in out {
            *out = f32::from_bits(u32::from(nearest_bf16(*out)) << 16);
        }
    }
}

/// `grad = clamp(grad * scale, -max, max)`; NaN stays NaN.
pub(crate) fn clip_value(grad: &mut [f32], scale: f32, max: f32) {
    par::elementwise(grad, |grad, _| clip_piece(grad, scale, max));
}

vectorize! {
    fn clip_piece(grad: &mut [f32], scale: f32, max: f32) {
        for g in grad {
            *g = (*g * scale).clamp(-max, max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::tests::on_each_isa;

    #[test]
    fn bf16_is_rounded_to_nearest_even() {
        let mut checked = 0;
        for bits in (0..=u32::MAX).step_by(4099) {
            let x = f32::from_bits(bits);
            let ours = bf16::from_bits(nearest_bf16(x));
            let reference = bf16::from_f32(x);
            assert!(ours.to_bits() == reference.to_bits() || (x.is_nan() && ours.is_nan()));
            checked += 1;
        }
        assert!(checked > 1_000_000);
        // Halfway: to the even neighbour, down and up.
        for (x, rounded) in [(0x3F80_8000, 0x3F80), (0x3F81_8000, 0x3F82)] {
            assert_eq!(nearest_bf16(f32::from_bits(x)), rounded);
        }
    }

    #[test]
    fn every_rule_gives_the_same_bits_on_every_instruction_set() {
        let len = 1500;
        let wave = |scale: f32| -> Vec<f32> {
            (0..len)
                .map(|i| ((i * 37 % 101) as f32 - 50.0) * scale)
                .collect()
        };
        let results = on_each_isa(|| {
            let mut bits = Vec::new();
            for rule in crate::reference::RULES {
                let (mut p, g) = (wave(0.01), wave(0.3));
                let mut states = vec![vec![0.25; len]; rule.num_states()];
                let mut narrow = vec![vec![bf16::ONE; len]; rule.num_states()];
                let mut f32s: Vec<_> = states.iter_mut().map(|s| State::F32(s)).collect();
                let sums = step(rule, &mut p, &g, 0.7, &mut f32s, true);
                let mut bf16s: Vec<_> = narrow.iter_mut().map(|s| State::Bf16(s)).collect();
                step(rule, &mut p, &g, 0.7, &mut bf16s, false);
                bits.extend(p.iter().chain(states.iter().flatten()).map(|x| x.to_bits()));
                bits.extend(narrow.iter().flatten().map(|x| u32::from(x.to_bits())));
                bits.extend(sums.into_iter().flatten().map(|x| (x as f32).to_bits()));
            }
            bits
        });
        for result in &results[1..] {
            assert!(*result == results[0]);
        }
    }
}
