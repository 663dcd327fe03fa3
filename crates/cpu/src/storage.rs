//! [`FusedOps`] for candle's CPU storage: operands are checked here, then handed to the kernels as slices.

use candle_core::{CpuStorage, DType, Result, bail};

use crate::check::{HeadLoss, Heads, dense, dense_of, ensure, output, rows_and_cols, strided};
use crate::element::{with_element, with_elements};
use crate::kernels;
use crate::kernels::optimizer::State;
use crate::{AttentionParams, CrossEntropyParams, FusedOps, Gelu, RngKey, UpdateRule, View, Write};

use kernels::matmul::Operand;

type Cpu<'a> = View<'a, CpuStorage>;

impl FusedOps for CpuStorage {
    fn fill(&mut self, len: usize, value: f32) -> Result<()> {
        with_element!("fill", self, T => {
            kernels::elementwise::fill::<T>(output("fill", self, len)?, value)
        });
        Ok(())
    }

    fn cast_into(x: Cpu, out: &mut Self) -> Result<()> {
        with_elements!("cast: x and out", x.0, X; out, O => {
            let x = dense::<X>("cast: x", x)?;
            kernels::elementwise::cast::<X, O>(x, output("cast: out", out, x.len())?);
        });
        Ok(())
    }

    fn add_into(a: Cpu, b: Cpu, out: &mut Self) -> Result<()> {
        with_elements!("add: a and b", a.0, A; b.0, B => {
            let a = dense::<A>("add: a", a)?;
            let b = dense_of::<B>("add: b", b, a.len())?;
            kernels::elementwise::add::<A, B, A>(a, b, output("add: out", out, a.len())?);
        });
        Ok(())
    }

    fn axpy(&mut self, alpha: f32, x: Cpu) -> Result<()> {
        with_elements!("axpy: x and out", x.0, X; self, O => {
            let x = dense::<X>("axpy: x", x)?;
            kernels::elementwise::axpy::<X, O>(alpha, x, output("axpy: out", self, x.len())?);
        });
        Ok(())
    }

    fn scale(&mut self, len: usize, alpha: f32, factor: Option<Cpu>) -> Result<()> {
        let factor = match factor {
            Some(factor) => dense_of::<f32>("scale: factor", factor, 1)?[0],
            None => 1.0,
        };
        with_element!("scale", self, T => {
            kernels::elementwise::scale::<T>(output("scale", self, len)?, alpha * factor)
        });
        Ok(())
    }

    fn matmul_into(a: Cpu, b: Cpu, out: &mut Self, write: Write) -> Result<()> {
        let (a_dims, b_dims) = (a.1.dims(), b.1.dims());
        let ([a_batch @ .., m, k], [b_batch @ .., b_rows, n]) = (a_dims, b_dims) else {
            bail!("matmul: operands must have at least two dims, not {a_dims:?} and {b_dims:?}");
        };
        ensure!(
            a_batch == b_batch && k == b_rows,
            "matmul: {a_dims:?} and {b_dims:?} do not multiply"
        );
        let batch: usize = a_batch.iter().product();
        let shape = (*m, *k, *n);
        with_elements!("matmul: a and b", a.0, A; b.0, B => {
            let a = Operand {
                data: strided::<A>("matmul: a", a)?,
                strides: a.1.stride(),
            };
            let b = Operand {
                data: strided::<B>("matmul: b", b)?,
                strides: b.1.stride(),
            };
            if out.dtype() == DType::F32 {
                let out = output::<f32>("matmul: out", out, batch * m * n)?;
                kernels::matmul::batched(a_batch, a, b, shape, out, write);
            } else {
                let out = output::<A>("matmul: out", out, batch * m * n)?;
                kernels::matmul::batched(a_batch, a, b, shape, out, write);
            }
        });
        Ok(())
    }

    fn broadcast_row_into(row: Cpu, rows: usize, out: &mut Self) -> Result<()> {
        with_elements!("broadcast_row: row and out", row.0, X; out, O => {
            let row = dense::<X>("broadcast_row: row", row)?;
            let out = output::<O>("broadcast_row: out", out, rows * row.len())?;
            kernels::elementwise::broadcast_row(row, out);
        });
        Ok(())
    }

    fn sum_rows_into(x: Cpu, rows: usize, out: &mut Self, write: Write) -> Result<()> {
        with_element!("sum_rows: x", x.0, T => {
            let x = dense::<T>("sum_rows: x", x)?;
            ensure!(
                rows > 0 && x.len().is_multiple_of(rows),
                "sum_rows: {} elements are not {rows} rows",
                x.len()
            );
            let out = output("sum_rows: out", out, x.len() / rows)?;
            kernels::reduce::sum_rows(x, out, write);
        });
        Ok(())
    }

    fn sum_squares_into(x: Cpu, out: &mut Self, slot: usize) -> Result<()> {
        let x = dense("sum_squares: x", x)?;
        output("sum_squares: out", out, slot + 1)?[slot] = kernels::reduce::sum_squares(x);
        Ok(())
    }

    fn rms_norm(x: Cpu, weight: Cpu, eps: f32, y: &mut Self, inv_rms: &mut Self) -> Result<()> {
        let (rows, dim) = rows_and_cols("rms_norm: x", x)?;
        let weight = dense_of("rms_norm: weight", weight, dim)?;
        let inv_rms = output("rms_norm: inv_rms", inv_rms, rows)?;
        with_elements!("rms_norm: x and y", x.0, X; y, Y => {
            let x = dense::<X>("rms_norm: x", x)?;
            let y = output::<Y>("rms_norm: y", y, rows * dim)?;
            kernels::rms_norm::forward(x, weight, eps, y, inv_rms);
        });
        Ok(())
    }

    fn rms_norm_backward(
        x: Cpu,
        weight: Cpu,
        inv_rms: Cpu,
        dy: Cpu,
        dx: Option<&mut Self>,
        dweight: Option<(&mut Self, Write)>,
    ) -> Result<()> {
        let (rows, dim) = rows_and_cols("rms_norm_backward: x", x)?;
        let weight = dense_of("rms_norm_backward: weight", weight, dim)?;
        let inv_rms = dense_of("rms_norm_backward: inv_rms", inv_rms, rows)?;
        let dweight = match dweight {
            Some((dw, write)) => Some((output("rms_norm_backward: dweight", dw, dim)?, write)),
            None => None,
        };
        with_elements!("rms_norm_backward: x and dy", x.0, X; dy.0, Y => {
            let x = dense::<X>("rms_norm_backward: x", x)?;
            let dy = dense_of::<Y>("rms_norm_backward: dy", dy, x.len())?;
            let dx = match dx {
                Some(dx) => Some(output("rms_norm_backward: dx", dx, x.len())?),
                None => None,
            };
            kernels::rms_norm::backward(x, weight, inv_rms, dy, dx, dweight);
        });
        Ok(())
    }

    fn layer_norm(
        x: Cpu,
        weight: Cpu,
        bias: Cpu,
        eps: f32,
        y: &mut Self,
        mean: &mut Self,
        inv_std: &mut Self,
    ) -> Result<()> {
        let (rows, dim) = rows_and_cols("layer_norm: x", x)?;
        let weight = dense_of("layer_norm: weight", weight, dim)?;
        let bias = dense_of("layer_norm: bias", bias, dim)?;
        let mean = output("layer_norm: mean", mean, rows)?;
        let inv_std = output("layer_norm: inv_std", inv_std, rows)?;
        with_elements!("layer_norm: x and y", x.0, X; y, Y => {
            let x = dense::<X>("layer_norm: x", x)?;
            let y = output::<Y>("layer_norm: y", y, rows * dim)?;
            kernels::layer_norm::forward(x, weight, bias, eps, y, mean, inv_std);
        });
        Ok(())
    }

    fn layer_norm_backward(
        x: Cpu,
        weight: Cpu,
        mean: Cpu,
        inv_std: Cpu,
        dy: Cpu,
        dx: Option<&mut Self>,
        dweight: Option<(&mut Self, Write)>,
        dbias: Option<(&mut Self, Write)>,
    ) -> Result<()> {
        let (rows, dim) = rows_and_cols("layer_norm_backward: x", x)?;
        let weight = dense_of("layer_norm_backward: weight", weight, dim)?;
        let mean = dense_of("layer_norm_backward: mean", mean, rows)?;
        let inv_std = dense_of("layer_norm_backward: inv_std", inv_std, rows)?;
        let dweight = match dweight {
            Some((dw, write)) => Some((output("layer_norm_backward: dweight", dw, dim)?, write)),
            None => None,
        };
        let dbias = match dbias {
            Some((db, write)) => Some((output("layer_norm_backward: dbias", db, dim)?, write)),
            None => None,
        };
        with_elements!("layer_norm_backward: x and dy", x.0, X; dy.0, Y => {
            let x = dense::<X>("layer_norm_backward: x", x)?;
            let dy = dense_of::<Y>("layer_norm_backward: dy", dy, x.len())?;
            let dx = match dx {
                Some(dx) => Some(output("layer_norm_backward: dx", dx, x.len())?),
                None => None,
            };
            let saved = kernels::layer_norm::Saved { x, weight, mean, inv_std };
            kernels::layer_norm::backward(saved, dy, dx, dweight, dbias);
        });
        Ok(())
    }

    fn rope(x: Cpu, cos: Cpu, sin: Cpu, positions: Cpu, inverse: bool, y: &mut Self) -> Result<()> {
        let &[batch, rows, heads, dim] = x.1.dims() else {
            bail!("rope: x must be [B, T, H, D], not {:?}", x.1.dims());
        };
        ensure!(dim.is_multiple_of(2), "rope: the head dim {dim} is odd");
        let (table_rows, half) = rows_and_cols("rope: cos", cos)?;
        ensure!(
            half == dim / 2,
            "rope: cos has rows of {half} instead of {}",
            dim / 2
        );
        let cos = dense::<f32>("rope: cos", cos)?;
        let sin = dense_of("rope: sin", sin, cos.len())?;
        let positions = dense_of::<u32>("rope: positions", positions, batch * rows)?;
        if let Some(position) = positions.iter().find(|p| **p as usize >= table_rows) {
            bail!("rope: position {position} is beyond the table of {table_rows}");
        }
        let dims = [batch, rows, heads, dim];
        with_element!("rope: x", x.0, T => {
            let x = Heads::<T>::new("rope: x", x, dims)?;
            let y = output("rope: y", y, batch * rows * heads * dim)?;
            kernels::rope::rotate(x, dims, cos, sin, positions, inverse, y);
        });
        Ok(())
    }

    fn swiglu(gate: Cpu, up: Cpu, y: &mut Self) -> Result<()> {
        with_element!("swiglu: gate", gate.0, T => {
            let gate = dense::<T>("swiglu: gate", gate)?;
            let up = dense_of("swiglu: up", up, gate.len())?;
            kernels::swiglu::forward(gate, up, output("swiglu: y", y, gate.len())?);
        });
        Ok(())
    }

    fn swiglu_backward(
        gate: Cpu,
        up: Cpu,
        dy: Cpu,
        dgate: &mut Self,
        dup: &mut Self,
    ) -> Result<()> {
        with_element!("swiglu_backward: gate", gate.0, T => {
            let gate = dense::<T>("swiglu_backward: gate", gate)?;
            let len = gate.len();
            kernels::swiglu::backward(
                gate,
                dense_of("swiglu_backward: up", up, len)?,
                dense_of("swiglu_backward: dy", dy, len)?,
                output("swiglu_backward: dgate", dgate, len)?,
                output("swiglu_backward: dup", dup, len)?,
            );
        });
        Ok(())
    }

    fn gelu(form: Gelu, x: Cpu, y: &mut Self) -> Result<()> {
        with_element!("gelu: x", x.0, T => {
            let x = dense::<T>("gelu: x", x)?;
            kernels::gelu::forward(form, x, output("gelu: y", y, x.len())?);
        });
        Ok(())
    }

    fn gelu_backward(form: Gelu, x: Cpu, dy: Cpu, dx: &mut Self) -> Result<()> {
        with_element!("gelu_backward: x", x.0, T => {
            let x = dense::<T>("gelu_backward: x", x)?;
            let dy = dense_of("gelu_backward: dy", dy, x.len())?;
            kernels::gelu::backward(form, x, dy, output("gelu_backward: dx", dx, x.len())?);
        });
        Ok(())
    }

    fn attention(
        params: &AttentionParams,
        q: Cpu,
        k: Cpu,
        v: Cpu,
        segments: Option<(Cpu, Cpu)>,
        out: &mut Self,
        lse: &mut Self,
    ) -> Result<()> {
        let (q_dims, kv_dims) = attention_dims(params)?;
        let lse_len = params.batch * params.heads * params.queries;
        with_element!("attention: q", q.0, T => {
            kernels::attention::forward::<T>(
                params,
                Heads::new("attention: q", q, q_dims)?,
                Heads::new("attention: k", k, kv_dims)?,
                Heads::new("attention: v", v, kv_dims)?,
                attention_segments(params, segments)?,
                output("attention: out", out, q_dims.iter().product())?,
                output("attention: lse", lse, lse_len)?,
            )
        });
        Ok(())
    }

    fn attention_backward(
        params: &AttentionParams,
        q: Cpu,
        k: Cpu,
        v: Cpu,
        segments: Option<(Cpu, Cpu)>,
        out: Cpu,
        lse: Cpu,
        dout: Cpu,
        dq: &mut Self,
        dk: &mut Self,
        dv: &mut Self,
    ) -> Result<()> {
        let (q_dims, kv_dims) = attention_dims(params)?;
        let (q_len, kv_len) = (q_dims.iter().product(), kv_dims.iter().product());
        let lse_len = params.batch * params.heads * params.queries;
        with_element!("attention_backward: q", q.0, T => {
            let saved = kernels::attention::Saved::<T> {
                q: Heads::new("attention_backward: q", q, q_dims)?,
                k: Heads::new("attention_backward: k", k, kv_dims)?,
                v: Heads::new("attention_backward: v", v, kv_dims)?,
                segments: attention_segments(params, segments)?,
                out: dense_of("attention_backward: out", out, q_len)?,
                lse: dense_of("attention_backward: lse", lse, lse_len)?,
            };
            kernels::attention::backward(
                params,
                saved,
                dense_of("attention_backward: dout", dout, q_len)?,
                output("attention_backward: dq", dq, q_len)?,
                output("attention_backward: dk", dk, kv_len)?,
                output("attention_backward: dv", dv, kv_len)?,
            );
        });
        Ok(())
    }

    fn linear_cross_entropy(
        params: &CrossEntropyParams,
        grad_scale: f32,
        hidden: Cpu,
        weight: Cpu,
        labels: Cpu,
        totals: &mut Self,
        dhidden: Option<&mut Self>,
        dweight: Option<&mut Self>,
    ) -> Result<()> {
        let loss = HeadLoss::new("linear_cross_entropy", params, hidden, weight, labels)?;
        let dweight = loss.output("dweight", dweight, loss.vocab * loss.dim)?;
        let totals_out = output("linear_cross_entropy: totals", totals, 3)?;
        with_elements!("linear_cross_entropy: hidden and weight", hidden.0, T; weight.0, W => {
            let dhidden = loss.output("dhidden", dhidden, loss.rows() * loss.dim)?;
            let operands = loss.operands::<T, W>()?;
            let totals = kernels::cross_entropy::linear(&operands, grad_scale, dhidden, dweight);
            totals_out.copy_from_slice(&totals);
        });
        Ok(())
    }

    fn linear_token_losses(
        params: &CrossEntropyParams,
        hidden: Cpu,
        weight: Cpu,
        labels: Cpu,
        losses: &mut Self,
    ) -> Result<()> {
        let loss = HeadLoss::new("linear_token_losses", params, hidden, weight, labels)?;
        let losses = output("linear_token_losses: losses", losses, loss.rows())?;
        with_elements!("linear_token_losses: hidden and weight", hidden.0, T; weight.0, W => {
            kernels::cross_entropy::token_losses(&loss.operands::<T, W>()?, losses);
        });
        Ok(())
    }

    fn linear_token_losses_backward(
        params: &CrossEntropyParams,
        hidden: Cpu,
        weight: Cpu,
        labels: Cpu,
        dlosses: Cpu,
        dhidden: Option<&mut Self>,
        dweight: Option<(&mut Self, Write)>,
    ) -> Result<()> {
        const OP: &str = "linear_token_losses_backward";
        let loss = HeadLoss::new(OP, params, hidden, weight, labels)?;
        let dlosses = dense_of(
            "linear_token_losses_backward: dlosses",
            dlosses,
            loss.rows(),
        )?;
        let (dweight, write) = match dweight {
            Some((dweight, write)) => (Some(dweight), write),
            None => (None, Write::Assign),
        };
        let dweight = loss.output("dweight", dweight, loss.vocab * loss.dim)?;
        with_elements!("linear_token_losses_backward: hidden and weight", hidden.0, T; weight.0, W => {
            let dhidden = loss.output("dhidden", dhidden, loss.rows() * loss.dim)?;
            let operands = loss.operands::<T, W>()?;
            kernels::cross_entropy::token_losses_backward(&operands, dlosses, dhidden, dweight, write);
        });
        Ok(())
    }

    fn embedding(weight: Cpu, ids: Cpu, y: &mut Self) -> Result<()> {
        let (vocab, dim) = rows_and_cols("embedding: weight", weight)?;
        let ids = dense("embedding: ids", ids)?;
        check_ids("embedding", ids, vocab)?;
        let y = output("embedding: y", y, ids.len() * dim)?;
        with_element!("embedding: weight", weight.0, W => {
            let weight = dense::<W>("embedding: weight", weight)?;
            kernels::embedding::forward(weight, ids, dim, y);
        });
        Ok(())
    }

    fn embedding_backward(ids: Cpu, dy: Cpu, dweight: &mut Self) -> Result<()> {
        let (_, dim) = rows_and_cols("embedding_backward: dy", dy)?;
        let ids = dense("embedding_backward: ids", ids)?;
        let dy = dense_of("embedding_backward: dy", dy, ids.len() * dim)?;
        let len = match &*dweight {
            CpuStorage::F32(all) => all.len(),
            _ => 0, // `output` names the wrong dtype
        };
        let dweight = output("embedding_backward: dweight", dweight, len)?;
        let Some(vocab) = len.checked_div(dim) else {
            return Ok(()); // rows without elements
        };
        check_ids("embedding_backward", ids, vocab)?;
        kernels::embedding::backward(ids, dy, dim, dweight);
        Ok(())
    }

    fn dropout(x: Cpu, p: f32, rng: RngKey, y: &mut Self) -> Result<()> {
        ensure!(
            (0.0..1.0).contains(&p),
            "dropout: the probability {p} is not in 0..1"
        );
        with_element!("dropout: x", x.0, T => {
            let x = dense::<T>("dropout: x", x)?;
            kernels::random::dropout(x, p, rng, output("dropout: y", y, x.len())?);
        });
        Ok(())
    }

    fn fill_normal(&mut self, len: usize, mean: f32, std: f32, rng: RngKey) -> Result<()> {
        kernels::random::fill_normal(output("fill_normal", self, len)?, mean, std, rng);
        Ok(())
    }

    fn fill_uniform(&mut self, len: usize, low: f32, high: f32, rng: RngKey) -> Result<()> {
        ensure!(
            low < high && (high - low).is_finite(),
            "fill_uniform: {low}..{high} is not a finite range"
        );
        kernels::random::fill_uniform(output("fill_uniform", self, len)?, low, high, rng);
        Ok(())
    }

    fn optimizer_step(
        rule: &UpdateRule,
        param: &mut Self,
        grad: Cpu,
        grad_scale: Cpu,
        states: &mut [&mut Self],
        sums: Option<(&mut Self, usize)>,
    ) -> Result<()> {
        ensure!(
            states.len() == rule.num_states(),
            "optimizer_step: {} states instead of {}",
            states.len(),
            rule.num_states()
        );
        let grad = dense("optimizer_step: grad", grad)?;
        let grad_scale = dense_of::<f32>("optimizer_step: grad_scale", grad_scale, 1)?[0];
        let param = output("optimizer_step: param", param, grad.len())?;
        let mut states = states
            .iter_mut()
            .map(|state| optimizer_state(state, grad.len()))
            .collect::<Result<Vec<_>>>()?;
        let wants = sums.is_some();
        let found = kernels::optimizer::step(rule, param, grad, grad_scale, &mut states, wants);
        if let (Some((out, slot)), Some(found)) = (sums, found) {
            let out = output("optimizer_step: sums", out, 3 * slot + 3)?;
            for (out, sum) in out[3 * slot..].iter_mut().zip(found) {
                *out = sum as f32;
            }
        }
        Ok(())
    }

    fn combine(
        &mut self,
        len: usize,
        alpha: f32,
        x: Option<(f32, Cpu)>,
        to_bf16: bool,
    ) -> Result<()> {
        let x = match x {
            Some((beta, x)) => Some((beta, dense_of("combine: x", x, len)?)),
            None => None,
        };
        let out = output("combine: out", self, len)?;
        kernels::optimizer::combine(out, alpha, x, to_bf16);
        Ok(())
    }

    fn clip_value(&mut self, len: usize, scale: Cpu, max: f32) -> Result<()> {
        ensure!(
            (0.0..=f32::INFINITY).contains(&max),
            "clip_value: {max} is not a bound"
        );
        let scale = dense_of::<f32>("clip_value: scale", scale, 1)?[0];
        kernels::optimizer::clip_value(output("clip_value", self, len)?, scale, max);
        Ok(())
    }
}

fn optimizer_state(storage: &mut CpuStorage, len: usize) -> Result<State<'_>> {
    if let CpuStorage::BF16(all) = storage {
        let have = all.len();
        return match all.get_mut(..len) {
            Some(state) => Ok(State::Bf16(state)),
            None => bail!("optimizer_step: a state has {have} elements instead of {len}"),
        };
    }
    Ok(State::F32(output("optimizer_step: a state", storage, len)?))
}

/// The dims of q and of k and v.
fn attention_dims(p: &AttentionParams) -> Result<([usize; 4], [usize; 4])> {
    ensure!(
        p.kv_heads > 0 && p.heads.is_multiple_of(p.kv_heads),
        "attention: {} query heads do not share {} key/value heads evenly",
        p.heads,
        p.kv_heads
    );
    ensure!(p.head_dim > 0, "attention: the head dim is 0");
    Ok((
        [p.batch, p.queries, p.heads, p.head_dim],
        [p.batch, p.keys, p.kv_heads, p.head_dim],
    ))
}

fn attention_segments<'a>(
    p: &AttentionParams,
    segments: Option<(Cpu<'a>, Cpu<'a>)>,
) -> Result<Option<(&'a [u32], &'a [u32])>> {
    let Some((queries, keys)) = segments else {
        return Ok(None);
    };
    Ok(Some((
        dense_of("attention: query segments", queries, p.batch * p.queries)?,
        dense_of("attention: key segments", keys, p.batch * p.keys)?,
    )))
}

fn check_ids(op: &str, ids: &[u32], vocab: usize) -> Result<()> {
    match ids.iter().find(|id| **id as usize >= vocab) {
        Some(id) => bail!("{op}: id {id} is not below the vocabulary of {vocab}"),
        None => Ok(()),
    }
}
