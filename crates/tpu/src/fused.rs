//! [`FusedOps`] on the device: each has its kernels.

use candle_core::Result;
use tt_cpu::{
    AttentionParams, CrossEntropyParams, FusedOps, Gelu, RngKey, UpdateRule, View, Write,
};

use crate::ops::attention::Operands;
use crate::ops::binary::{self, Function as Binary};
use crate::ops::unary::{self, Function as Unary};
use crate::{TpuStorage, ops};

type Tpu<'a> = View<'a, TpuStorage>;

impl FusedOps for TpuStorage {
    fn fill(&mut self, len: usize, value: f32) -> Result<()> {
        Ok(ops::fill::fill(self, len, f64::from(value))?)
    }

    fn cast_into(x: Tpu, out: &mut Self) -> Result<()> {
        Ok(unary::map_into(Unary::Cast, [0.0; 2], x, out)?)
    }

    fn add_into(a: Tpu, b: Tpu, out: &mut Self) -> Result<()> {
        Ok(binary::map_into(Binary::Add, [0.0; 2], a, b, out)?)
    }

    fn axpy(&mut self, alpha: f32, x: Tpu) -> Result<()> {
        let len = x.1.shape().elem_count();
        Ok(binary::update(Binary::Linear, [1.0, alpha], self, len, x)?)
    }

    fn scale(&mut self, len: usize, alpha: f32, factor: Option<Tpu>) -> Result<()> {
        match factor {
            Some(factor) => Ok(binary::update(
                Binary::Scale,
                [alpha, 0.0],
                self,
                len,
                factor,
            )?),
            None => Ok(unary::update(
                Unary::Affine,
                [alpha.into(), 0.0],
                self,
                len,
            )?),
        }
    }

    fn matmul_into(a: Tpu, b: Tpu, out: &mut Self, mode: Write) -> Result<()> {
        Ok(ops::matmul::matmul(a, b, out, mode)?)
    }

    fn broadcast_row_into(row: Tpu, rows: usize, out: &mut Self) -> Result<()> {
        Ok(ops::reduce::broadcast_row(row, rows, out)?)
    }

    fn sum_rows_into(x: Tpu, rows: usize, out: &mut Self, mode: Write) -> Result<()> {
        Ok(ops::reduce::sum_rows(x, rows, out, mode)?)
    }

    fn sum_squares_into(x: Tpu, out: &mut Self, slot: usize) -> Result<()> {
        Ok(ops::reduce::sum_squares(x, out, slot)?)
    }

    fn rms_norm(x: Tpu, weight: Tpu, eps: f32, y: &mut Self, inv_rms: &mut Self) -> Result<()> {
        Ok(ops::norm::rms_norm(x, weight, eps, y, inv_rms)?)
    }

    fn rms_norm_backward(
        x: Tpu,
        weight: Tpu,
        inv_rms: Tpu,
        dy: Tpu,
        dx: Option<&mut Self>,
        dweight: Option<(&mut Self, Write)>,
    ) -> Result<()> {
        Ok(ops::norm::rms_norm_backward(
            x, weight, inv_rms, dy, dx, dweight,
        )?)
    }

    fn layer_norm(
        x: Tpu,
        weight: Tpu,
        bias: Tpu,
        eps: f32,
        y: &mut Self,
        mean: &mut Self,
        inv_std: &mut Self,
    ) -> Result<()> {
        let (weights, kept) = ([weight, bias], [mean, inv_std]);
        Ok(ops::layer_norm::layer_norm(x, weights, eps, y, kept)?)
    }

    fn layer_norm_backward(
        x: Tpu,
        weight: Tpu,
        mean: Tpu,
        inv_std: Tpu,
        dy: Tpu,
        dx: Option<&mut Self>,
        dweight: Option<(&mut Self, Write)>,
        dbias: Option<(&mut Self, Write)>,
    ) -> Result<()> {
        let saved = ops::layer_norm::Saved {
            x,
            weight,
            mean,
            inv_std,
        };
        Ok(ops::layer_norm::layer_norm_backward(
            saved, dy, dx, dweight, dbias,
        )?)
    }

    fn rope(x: Tpu, cos: Tpu, sin: Tpu, positions: Tpu, inverse: bool, y: &mut Self) -> Result<()> {
        Ok(ops::rope::rope(x, cos, sin, positions, inverse, y)?)
    }

    fn swiglu(gate: Tpu, up: Tpu, y: &mut Self) -> Result<()> {
        Ok(ops::swiglu::forward(gate, up, y)?)
    }

    fn swiglu_backward(
        gate: Tpu,
        up: Tpu,
        dy: Tpu,
        dgate: &mut Self,
        dup: &mut Self,
    ) -> Result<()> {
        Ok(ops::swiglu::backward(gate, up, dy, dgate, dup)?)
    }

    fn gelu(form: Gelu, x: Tpu, y: &mut Self) -> Result<()> {
        Ok(ops::gelu::forward(form, x, y)?)
    }

    fn gelu_backward(form: Gelu, x: Tpu, dy: Tpu, dx: &mut Self) -> Result<()> {
        Ok(ops::gelu::backward(form, x, dy, dx)?)
    }

    fn attention(
        params: &AttentionParams,
        q: Tpu,
        k: Tpu,
        v: Tpu,
        segments: Option<(Tpu, Tpu)>,
        out: &mut Self,
        lse: &mut Self,
    ) -> Result<()> {
        let operands = Operands { q, k, v, segments };
        Ok(ops::attention::forward(params, operands, out, lse)?)
    }

    fn attention_backward(
        params: &AttentionParams,
        q: Tpu,
        k: Tpu,
        v: Tpu,
        segments: Option<(Tpu, Tpu)>,
        out: Tpu,
        lse: Tpu,
        dout: Tpu,
        dq: &mut Self,
        dk: &mut Self,
        dv: &mut Self,
    ) -> Result<()> {
        let operands = Operands { q, k, v, segments };
        let gradients = [dq, dk, dv];
        Ok(ops::attention::backward(
            params, operands, out, lse, dout, gradients,
        )?)
    }

    fn linear_cross_entropy(
        params: &CrossEntropyParams,
        grad_scale: f32,
        hidden: Tpu,
        weight: Tpu,
        labels: Tpu,
        totals: &mut Self,
        dhidden: Option<&mut Self>,
        dweight: Option<&mut Self>,
    ) -> Result<()> {
        Ok(ops::cross_entropy::linear_cross_entropy(
            params, grad_scale, hidden, weight, labels, totals, dhidden, dweight,
        )?)
    }

    fn linear_token_losses(
        params: &CrossEntropyParams,
        hidden: Tpu,
        weight: Tpu,
        labels: Tpu,
        losses: &mut Self,
    ) -> Result<()> {
        Ok(ops::cross_entropy::linear_token_losses(
            params, hidden, weight, labels, losses,
        )?)
    }

    fn linear_token_losses_backward(
        params: &CrossEntropyParams,
        hidden: Tpu,
        weight: Tpu,
        labels: Tpu,
        dlosses: Tpu,
        dhidden: Option<&mut Self>,
        dweight: Option<(&mut Self, Write)>,
    ) -> Result<()> {
        Ok(ops::cross_entropy::linear_token_losses_backward(
            params, hidden, weight, labels, dlosses, dhidden, dweight,
        )?)
    }

    fn embedding(weight: Tpu, ids: Tpu, y: &mut Self) -> Result<()> {
        Ok(ops::index::embedding(weight, ids, y)?)
    }

    fn embedding_backward(ids: Tpu, dy: Tpu, dweight: &mut Self) -> Result<()> {
        let width = dy.1.dims().last().copied().unwrap_or(1);
        let size = dweight.len() / width.max(1);
        Ok(ops::index::add_rows(dy, ids, dweight, [1, size, width])?)
    }

    fn dropout(x: Tpu, p: f32, rng: RngKey, y: &mut Self) -> Result<()> {
        Ok(ops::random::dropout(x, p, rng, y)?)
    }

    /// Drawn on the host, as weights are but once: the same bits as on the CPU.
    fn fill_normal(&mut self, len: usize, mean: f32, std: f32, rng: RngKey) -> Result<()> {
        let mut host = tt_cpu::pool::take(candle_core::DType::F32, len);
        host.fill_normal(len, mean, std, rng)?;
        *self = TpuStorage::upload(self.on(), &host)?;
        Ok(())
    }

    /// Drawn on the host, as weights are but once: the same bits as on the CPU.
    fn fill_uniform(&mut self, len: usize, low: f32, high: f32, rng: RngKey) -> Result<()> {
        let mut host = tt_cpu::pool::take(candle_core::DType::F32, len);
        host.fill_uniform(len, low, high, rng)?;
        *self = TpuStorage::upload(self.on(), &host)?;
        Ok(())
    }

    fn optimizer_step(
        rule: &UpdateRule,
        param: &mut Self,
        grad: Tpu,
        grad_scale: Tpu,
        states: &mut [&mut Self],
        sums: Option<(&mut Self, usize)>,
    ) -> Result<()> {
        Ok(ops::optimizer::step(
            rule, param, grad, grad_scale, states, sums,
        )?)
    }

    fn combine(
        &mut self,
        len: usize,
        alpha: f32,
        x: Option<(f32, Tpu)>,
        to_bf16: bool,
    ) -> Result<()> {
        Ok(ops::optimizer::combine(self, len, alpha, x, to_bf16)?)
    }

    fn clip_value(&mut self, len: usize, scale: Tpu, max: f32) -> Result<()> {
        Ok(binary::update(Binary::Clip, [max, 0.0], self, len, scale)?)
    }
}
