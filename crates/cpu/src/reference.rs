//! Every fused operation once more, written for reading: plain loops over dense f64 slices, results returned.
//!
//! These are the definitions that the fast kernels (here and on other devices) are tested against. Shapes
//! and meanings are those of [`crate::FusedOps`], with all operands dense; ids and labels are assumed valid.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use crate::{AdamParams, AttentionParams, CrossEntropyParams, Gelu, UpdateRule};

/// `a` `[m, k]` times `b` `[k, n]`.
pub fn matmul(a: &[f64], b: &[f64], m: usize, k: usize, n: usize) -> Vec<f64> {
    let mut out = vec![0.0; m * n];
    for i in 0..m {
        for j in 0..n {
            out[i * n + j] = (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum();
        }
    }
    out
}

/// Returns `y` and `inv_rms`.
pub fn rms_norm(x: &[f64], weight: &[f64], eps: f64) -> (Vec<f64>, Vec<f64>) {
    let dim = weight.len();
    let mut y = Vec::with_capacity(x.len());
    let mut inv_rms = Vec::new();
    for row in x.chunks_exact(dim) {
        let mean_square = row.iter().map(|x| x * x).sum::<f64>() / dim as f64;
        let inv = 1.0 / (mean_square + eps).sqrt();
        y.extend(row.iter().zip(weight).map(|(x, w)| x * inv * w));
        inv_rms.push(inv);
    }
    (y, inv_rms)
}

/// Returns `dx` and `dweight`.
pub fn rms_norm_backward(
    x: &[f64],
    weight: &[f64],
    inv_rms: &[f64],
    dy: &[f64],
) -> (Vec<f64>, Vec<f64>) {
    let dim = weight.len();
    let mut dx = Vec::with_capacity(x.len());
    let mut dweight = vec![0.0; dim];
    for (r, &inv) in inv_rms.iter().enumerate() {
        let (x, dy) = (&x[r * dim..][..dim], &dy[r * dim..][..dim]);
        let dot: f64 = (0..dim).map(|i| dy[i] * weight[i] * x[i]).sum();
        for i in 0..dim {
            dx.push(inv * dy[i] * weight[i] - x[i] * dot * inv.powi(3) / dim as f64);
            dweight[i] += dy[i] * x[i] * inv;
        }
    }
    (dx, dweight)
}

/// Returns `y`, `mean` and `inv_std`.
pub fn layer_norm(
    x: &[f64],
    weight: &[f64],
    bias: &[f64],
    eps: f64,
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let dim = weight.len();
    let mut y = Vec::with_capacity(x.len());
    let (mut means, mut inv_std) = (Vec::new(), Vec::new());
    for row in x.chunks_exact(dim) {
        let mean = row.iter().sum::<f64>() / dim as f64;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / dim as f64;
        let inv = 1.0 / (variance + eps).sqrt();
        y.extend((0..dim).map(|i| (row[i] - mean) * inv * weight[i] + bias[i]));
        means.push(mean);
        inv_std.push(inv);
    }
    (y, means, inv_std)
}

/// Returns `dx`, `dweight` and `dbias`.
pub fn layer_norm_backward(
    x: &[f64],
    weight: &[f64],
    mean: &[f64],
    inv_std: &[f64],
    dy: &[f64],
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let dim = weight.len();
    let mut dx = Vec::with_capacity(x.len());
    let (mut dweight, mut dbias) = (vec![0.0; dim], vec![0.0; dim]);
    for (r, (&mean, &inv)) in mean.iter().zip(inv_std).enumerate() {
        let (x, dy) = (&x[r * dim..][..dim], &dy[r * dim..][..dim]);
        let h: Vec<f64> = x.iter().map(|x| (x - mean) * inv).collect();
        let e: Vec<f64> = dy.iter().zip(weight).map(|(dy, w)| dy * w).collect();
        let mean_e = e.iter().sum::<f64>() / dim as f64;
        let mean_eh = e.iter().zip(&h).map(|(e, h)| e * h).sum::<f64>() / dim as f64;
        for i in 0..dim {
            dx.push(inv * (e[i] - mean_e - h[i] * mean_eh));
            dweight[i] += dy[i] * h[i];
            dbias[i] += dy[i];
        }
    }
    (dx, dweight, dbias)
}

/// `x` is `[B, T, H, D]`, `positions` `[B, T]`, the tables `[P, D/2]`.
pub fn rope(
    x: &[f64],
    cos: &[f64],
    sin: &[f64],
    positions: &[u32],
    heads: usize,
    dim: usize,
    inverse: bool,
) -> Vec<f64> {
    let half = dim / 2;
    let mut y = vec![0.0; x.len()];
    for (row, &position) in positions.iter().enumerate() {
        for head in 0..heads {
            let base = (row * heads + head) * dim;
            for i in 0..half {
                let cos = cos[position as usize * half + i];
                let sin = sin[position as usize * half + i] * if inverse { -1.0 } else { 1.0 };
                let (a, b) = (x[base + i], x[base + half + i]);
                y[base + i] = a * cos - b * sin;
                y[base + half + i] = b * cos + a * sin;
            }
        }
    }
    y
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub fn swiglu(gate: &[f64], up: &[f64]) -> Vec<f64> {
    gate.iter()
        .zip(up)
        .map(|(g, u)| g * sigmoid(*g) * u)
        .collect()
}

/// Returns `dgate` and `dup`.
pub fn swiglu_backward(gate: &[f64], up: &[f64], dy: &[f64]) -> (Vec<f64>, Vec<f64>) {
    (0..gate.len())
        .map(|i| {
            let (g, s) = (gate[i], sigmoid(gate[i]));
            (dy[i] * up[i] * (s + g * s * (1.0 - s)), dy[i] * g * s)
        })
        .unzip()
}

/// `P(N < x)` or what stands in its place, and its derivative.
fn below(form: Gelu, x: f64) -> (f64, f64) {
    let scale = FRAC_2_SQRT_PI * FRAC_1_SQRT_2; // sqrt(2 / pi)
    match form {
        Gelu::Erf => {
            let density = 0.5 * scale * (-0.5 * x * x).exp();
            (0.5 * libm::erfc(-x * FRAC_1_SQRT_2), density)
        }
        Gelu::Tanh => {
            let twice = 2.0 * scale * (x + 0.044715 * x.powi(3));
            let slope = 2.0 * scale * (1.0 + 3.0 * 0.044715 * x * x);
            let (s, rest) = (sigmoid(twice), sigmoid(-twice));
            // Where nothing is left of it, however steep.
            let is_flat = s == 0.0 || rest == 0.0;
            (s, if is_flat { 0.0 } else { s * rest * slope })
        }
    }
}

pub fn gelu(form: Gelu, x: &[f64]) -> Vec<f64> {
    x.iter().map(|x| x * below(form, *x).0).collect()
}

/// Returns `dx`.
pub fn gelu_backward(form: Gelu, x: &[f64], dy: &[f64]) -> Vec<f64> {
    let slope = |x: f64| {
        let (below, density) = below(form, x);
        below + x * density
    };
    x.iter().zip(dy).map(|(x, dy)| dy * slope(*x)).collect()
}

/// Segment ids of queries `[B, Tq]` and keys `[B, Tk]`.
pub type Segments<'a> = Option<(&'a [u32], &'a [u32])>;

/// Whether query `i` of batch `b` sees key `j`.
pub fn sees(p: &AttentionParams, segments: Segments, b: usize, i: usize, j: usize) -> bool {
    let distance = (i + p.keys) as isize - (p.queries + j) as isize;
    let causal = !p.causal || distance >= 0;
    let window = p.window.is_none_or(|window| distance < window as isize);
    let segment =
        segments.is_none_or(|(queries, keys)| queries[b * p.queries + i] == keys[b * p.keys + j]);
    causal && window && segment
}

/// Returns `out` `[B, Tq, H, D]` and `lse` `[B, H, Tq]`.
pub fn attention(
    p: &AttentionParams,
    q: &[f64],
    k: &[f64],
    v: &[f64],
    segments: Segments,
) -> (Vec<f64>, Vec<f64>) {
    let mut out = vec![0.0; p.batch * p.queries * p.heads * p.head_dim];
    let mut all_lse = vec![f64::NEG_INFINITY; p.batch * p.heads * p.queries];
    each_query(p, |b, h, i| {
        let scores = scores(p, q, k, segments, b, h, i);
        let max = scores.iter().map(|s| s.1).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s.1 - max).exp()).sum();
        if scores.is_empty() {
            return;
        }
        let lse = max + sum.ln();
        all_lse[(b * p.heads + h) * p.queries + i] = lse;
        for (j, score) in scores {
            for d in 0..p.head_dim {
                out[q_at(p, b, i, h) + d] += (score - lse).exp() * v[kv_at(p, b, j, h) + d];
            }
        }
    });
    (out, all_lse)
}

/// Returns `dq`, `dk` and `dv`.
pub fn attention_backward(
    p: &AttentionParams,
    q: &[f64],
    k: &[f64],
    v: &[f64],
    segments: Segments,
    dout: &[f64],
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let (out, all_lse) = attention(p, q, k, v, segments);
    let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
    each_query(p, |b, h, i| {
        let lse = all_lse[(b * p.heads + h) * p.queries + i];
        let at_q = q_at(p, b, i, h);
        let delta: f64 = (0..p.head_dim)
            .map(|d| dout[at_q + d] * out[at_q + d])
            .sum();
        for (j, score) in scores(p, q, k, segments, b, h, i) {
            let at_kv = kv_at(p, b, j, h);
            let prob = (score - lse).exp();
            let dprob: f64 = (0..p.head_dim).map(|d| dout[at_q + d] * v[at_kv + d]).sum();
            let dscore = prob * (dprob - delta) * p.scale as f64;
            for d in 0..p.head_dim {
                dq[at_q + d] += dscore * k[at_kv + d];
                dk[at_kv + d] += dscore * q[at_q + d];
                dv[at_kv + d] += prob * dout[at_q + d];
            }
        }
    });
    (dq, dk, dv)
}

fn each_query(p: &AttentionParams, mut f: impl FnMut(usize, usize, usize)) {
    for b in 0..p.batch {
        for h in 0..p.heads {
            for i in 0..p.queries {
                f(b, h, i);
            }
        }
    }
}

fn q_at(p: &AttentionParams, b: usize, i: usize, h: usize) -> usize {
    ((b * p.queries + i) * p.heads + h) * p.head_dim
}

fn kv_at(p: &AttentionParams, b: usize, j: usize, h: usize) -> usize {
    let kv_head = h / (p.heads / p.kv_heads);
    ((b * p.keys + j) * p.kv_heads + kv_head) * p.head_dim
}

/// The keys that query `i` sees, with their scores.
fn scores(
    p: &AttentionParams,
    q: &[f64],
    k: &[f64],
    segments: Segments,
    b: usize,
    h: usize,
    i: usize,
) -> Vec<(usize, f64)> {
    let q = &q[q_at(p, b, i, h)..][..p.head_dim];
    (0..p.keys)
        .filter(|&j| sees(p, segments, b, i, j))
        .map(|j| {
            let k = &k[kv_at(p, b, j, h)..][..p.head_dim];
            let dot: f64 = q.iter().zip(k).map(|(q, k)| q * k).sum();
            (j, dot * p.scale as f64)
        })
        .collect()
}

/// Returns the totals, `dhidden` and `dweight`.
pub fn linear_cross_entropy(
    params: &CrossEntropyParams,
    hidden: &[f64],
    weight: &[f64],
    labels: &[i64],
    dim: usize,
) -> ([f64; 3], Vec<f64>, Vec<f64>) {
    let vocab = weight.len() / dim;
    let (smoothing, z_loss) = (params.label_smoothing as f64, params.z_loss as f64);
    let mut totals = [0.0; 3];
    let mut dhidden = vec![0.0; hidden.len()];
    let mut dweight = vec![0.0; weight.len()];
    for (r, &label) in labels.iter().enumerate() {
        if label == params.ignore_index {
            continue;
        }
        let h = &hidden[r * dim..][..dim];
        let logits: Vec<f64> = weight
            .chunks_exact(dim)
            .map(|w| w.iter().zip(h).map(|(w, h)| w * h).sum())
            .collect();
        let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let lse = max + logits.iter().map(|z| (z - max).exp()).sum::<f64>().ln();
        let mean = logits.iter().sum::<f64>() / vocab as f64;
        totals[0] += (1.0 - smoothing) * (lse - logits[label as usize])
            + smoothing * (lse - mean)
            + z_loss * lse * lse;
        totals[1] += 1.0;
        totals[2] += lse * lse;
        for c in 0..vocab {
            let target = smoothing / vocab as f64
                + if c == label as usize {
                    1.0 - smoothing
                } else {
                    0.0
                };
            let dlogit = (logits[c] - lse).exp() * (1.0 + 2.0 * z_loss * lse) - target;
            for d in 0..dim {
                dhidden[r * dim + d] += dlogit * weight[c * dim + d];
                dweight[c * dim + d] += dlogit * h[d];
            }
        }
    }
    (totals, dhidden, dweight)
}

pub fn embedding(weight: &[f64], ids: &[u32], dim: usize) -> Vec<f64> {
    ids.iter()
        .flat_map(|&id| weight[id as usize * dim..][..dim].iter().copied())
        .collect()
}

/// Returns the gradient of the table of `vocab` rows.
pub fn embedding_backward(ids: &[u32], dy: &[f64], vocab: usize, dim: usize) -> Vec<f64> {
    let mut dweight = vec![0.0; vocab * dim];
    for (&id, dy) in ids.iter().zip(dy.chunks_exact(dim)) {
        for (dw, dy) in dweight[id as usize * dim..][..dim].iter_mut().zip(dy) {
            *dw += dy;
        }
    }
    dweight
}

/// One rule of each kind, for tests that go over all of them.
pub const RULES: &[UpdateRule] = &[
    UpdateRule::Descend {
        keep: 0.99,
        rate: 0.1,
    },
    UpdateRule::Adam(ADAM),
    UpdateRule::Adam(AdamParams {
        decoupled: false,
        amsgrad: true,
        ..ADAM
    }),
    UpdateRule::Momentum {
        lr: 0.1,
        momentum: 0.9,
        dampening: 0.2,
        nesterov: true,
        weight_decay: 0.1,
        is_first: false,
    },
    UpdateRule::Lion {
        lr: 1e-2,
        beta1: 0.9,
        beta2: 0.99,
        weight_decay: 0.1,
    },
    UpdateRule::Adagrad {
        lr: 0.1,
        eps: 1e-8,
        weight_decay: 0.1,
    },
    UpdateRule::RmsProp {
        lr: 0.1,
        alpha: 0.9,
        eps: 1e-8,
        weight_decay: 0.1,
    },
];

const ADAM: AdamParams = AdamParams {
    lr: 1e-2,
    beta1: 0.9,
    beta2: 0.95,
    eps: 1e-8,
    weight_decay: 0.1,
    decoupled: true,
    amsgrad: false,
    step: 3,
};

/// Updates `param` and the rule's states in place.
pub fn optimizer_step(
    rule: &UpdateRule,
    param: &mut [f64],
    grad: &[f64],
    grad_scale: f64,
    states: &mut [Vec<f64>],
) {
    for (i, p) in param.iter_mut().enumerate() {
        let mut g = grad[i] * grad_scale;
        match *rule {
            UpdateRule::Descend { keep, rate } => *p = keep * *p - rate * g,
            UpdateRule::Adam(a) => {
                let t = a.step as i32;
                if a.decoupled {
                    *p -= a.lr * a.weight_decay * *p;
                } else {
                    g += a.weight_decay * *p;
                }
                states[0][i] = a.beta1 * states[0][i] + (1.0 - a.beta1) * g;
                states[1][i] = a.beta2 * states[1][i] + (1.0 - a.beta2) * g * g;
                let mut v = states[1][i];
                if a.amsgrad {
                    v = v.max(states[2][i]);
                    states[2][i] = v;
                }
                let (m, v) = (
                    states[0][i] / (1.0 - a.beta1.powi(t)),
                    v / (1.0 - a.beta2.powi(t)),
                );
                *p -= a.lr * m / (v.sqrt() + a.eps);
            }
            UpdateRule::Momentum {
                lr,
                momentum,
                dampening,
                nesterov,
                weight_decay,
                is_first,
            } => {
                g += weight_decay * *p;
                states[0][i] = match is_first {
                    true => g,
                    false => momentum * states[0][i] + (1.0 - dampening) * g,
                };
                let m = states[0][i];
                *p -= lr * if nesterov { g + momentum * m } else { m };
            }
            UpdateRule::Lion {
                lr,
                beta1,
                beta2,
                weight_decay,
            } => {
                let direction = beta1 * states[0][i] + (1.0 - beta1) * g;
                *p -= lr * weight_decay * *p;
                if direction != 0.0 {
                    *p -= lr * direction.signum();
                }
                states[0][i] = beta2 * states[0][i] + (1.0 - beta2) * g;
            }
            UpdateRule::Adagrad {
                lr,
                eps,
                weight_decay,
            } => {
                g += weight_decay * *p;
                states[0][i] += g * g;
                *p -= lr * g / (states[0][i].sqrt() + eps);
            }
            UpdateRule::RmsProp {
                lr,
                alpha,
                eps,
                weight_decay,
            } => {
                g += weight_decay * *p;
                states[0][i] = alpha * states[0][i] + (1.0 - alpha) * g * g;
                *p -= lr * g / (states[0][i].sqrt() + eps);
            }
        }
    }
}
