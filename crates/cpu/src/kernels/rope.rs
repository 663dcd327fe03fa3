//! Rotary position embedding.
//!
//! `y[i] = x[i] cos[i] - x[i + D/2] sin[i]`, `y[i + D/2] = x[i + D/2] cos[i] + x[i] sin[i]` for `i < D/2`, the tables read
//! at the token's position; the inverse has `-sin`. The rotation is orthogonal, so the inverse is the gradient.
//! Layouts: `x` `[B, T, H, D]` with contiguous last dim; `y` dense; tables `[P, D/2]`; `positions` `[B, T]`.
//! Numeric notes: `x` and `y` f32, bf16 or f16, the tables and the arithmetic f32.
//! Reference: [`crate::reference::rope`].
//! Source: Su et al. 2021, arXiv:2104.09864, eq. 34, with the pairs of Hugging Face Llama.

use crate::check::Heads;
use crate::element::Element;
use crate::par::{self, Shared};
use crate::simd::vectorize;

pub(crate) fn rotate<T: Element>(
    x: Heads<T>,
    [batch, tokens, heads, dim]: [usize; 4],
    cos: &[f32],
    sin: &[f32],
    positions: &[u32],
    inverse: bool,
    y: &mut [T],
) {
    if heads * dim == 0 {
        return;
    }
    let half = dim / 2;
    let head_stride = x.head_stride();
    let row_len = heads * dim;
    let rows = batch * tokens;
    let per_task = par::rows_per_task(rows, row_len);
    let sign = if inverse { -1.0 } else { 1.0 };
    let y = Shared::new(y);
    par::for_each(rows.div_ceil(per_task), rows * row_len, &|task| {
        let rows = task * per_task..((task + 1) * per_task).min(rows);
        for row in rows {
            let at = positions[row] as usize * half;
            let (cos, sin) = (&cos[at..][..half], &sin[at..][..half]);
            // SAFETY: tasks have rows of their own.
            let y = unsafe { y.slice(row * row_len, row_len) };
            let x = x.from(row / tokens, row % tokens, 0);
            rotate_heads(x, head_stride, cos, sin, sign, y);
        }
    });
}

vectorize! {
    /// All heads of one token: `x` holds them `head_stride` apart, `y` dense.
    fn rotate_heads<T: Element>(
        x: &[T],
        head_stride: usize,
        cos: &[f32],
        sin: &[f32],
        sign: f32,
        y: &mut [T],
    ) {
        let half = cos.len();
        for (head, y) in y.chunks_exact_mut(2 * half).enumerate() {
            let (x_low, x_high) = x[head * head_stride..][..2 * half].split_at(half);
            let (y_low, y_high) = y.split_at_mut(half);
            for i in 0..half {
                let (low, high, sin) = (x_low[i].widen(), x_high[i].widen(), sign * sin[i]);
                y_low[i] = T::round(F::mul_add(low, cos[i], -(high * sin)));
                y_high[i] = T::round(F::mul_add(high, cos[i], low * sin));
            }
        }
    }
}
