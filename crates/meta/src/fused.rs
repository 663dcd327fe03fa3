//! [`FusedOps`]: operands are already checked by who calls, outputs are there; what is left is the scratch that the
//! kernel would take and the work it would do. An element-wise operation does nothing.

use candle_core::backend::BackendStorage;
use candle_core::{Layout, Result};
use tt_cpu::{
    AttentionParams, CrossEntropyParams, FusedOps, Gelu, RngKey, UpdateRule, View, Write, scratch,
};

use crate::MetaStorage;

type Meta<'a> = View<'a, MetaStorage>;

impl FusedOps for MetaStorage {
    fn fill(&mut self, _: usize, _: f32) -> Result<()> {
        Ok(())
    }

    fn cast_into(_: Meta, _: &mut Self) -> Result<()> {
        Ok(())
    }

    fn add_into(_: Meta, _: Meta, _: &mut Self) -> Result<()> {
        Ok(())
    }

    fn axpy(&mut self, _: f32, _: Meta) -> Result<()> {
        Ok(())
    }

    fn scale(&mut self, _: usize, _: f32, _: Option<Meta>) -> Result<()> {
        Ok(())
    }

    fn matmul_into(
        (a, a_layout): Meta,
        (b, b_layout): Meta,
        out: &mut Self,
        _: Write,
    ) -> Result<()> {
        let types = [a.dtype(), b.dtype(), out.dtype()];
        a.on()
            .scratch(|| scratch::matmul(types, a_layout, b_layout));
        let n = b_layout.dims().last().copied().unwrap_or(1);
        a.on().count_flops(2 * elements(a_layout) * n);
        Ok(())
    }

    fn broadcast_row_into(_: Meta, _: usize, _: &mut Self) -> Result<()> {
        Ok(())
    }

    fn sum_rows_into((x, layout): Meta, rows: usize, _: &mut Self, _: Write) -> Result<()> {
        let cols = elements(layout) / rows.max(1);
        if cols > 0 {
            x.on().scratch(|| vec![scratch::sum_rows(rows, cols)]);
        }
        Ok(())
    }

    fn sum_squares_into(_: Meta, _: &mut Self, _: usize) -> Result<()> {
        Ok(())
    }

    fn rms_norm(_: Meta, _: Meta, _: f32, _: &mut Self, _: &mut Self) -> Result<()> {
        Ok(())
    }

    fn rms_norm_backward(
        (x, layout): Meta,
        _: Meta,
        _: Meta,
        _: Meta,
        _: Option<&mut Self>,
        dweight: Option<(&mut Self, Write)>,
    ) -> Result<()> {
        let (rows, dim) = rows_and_cols(layout);
        x.on()
            .scratch(|| vec![scratch::rms_norm_backward(rows, dim, dweight.is_some())]);
        Ok(())
    }

    fn layer_norm(
        _: Meta,
        _: Meta,
        _: Meta,
        _: f32,
        _: &mut Self,
        _: &mut Self,
        _: &mut Self,
    ) -> Result<()> {
        Ok(())
    }

    fn layer_norm_backward(
        (x, layout): Meta,
        _: Meta,
        _: Meta,
        _: Meta,
        _: Meta,
        _: Option<&mut Self>,
        dweight: Option<(&mut Self, Write)>,
        dbias: Option<(&mut Self, Write)>,
    ) -> Result<()> {
        let (rows, dim) = rows_and_cols(layout);
        let weights = [dweight.is_some(), dbias.is_some()].map(usize::from);
        x.on().scratch(|| {
            let weights = weights.iter().sum();
            vec![scratch::layer_norm_backward(rows, dim, weights)]
        });
        Ok(())
    }

    fn rope(_: Meta, _: Meta, _: Meta, _: Meta, _: bool, _: &mut Self) -> Result<()> {
        Ok(())
    }

    fn swiglu(_: Meta, _: Meta, _: &mut Self) -> Result<()> {
        Ok(())
    }

    fn swiglu_backward(_: Meta, _: Meta, _: Meta, _: &mut Self, _: &mut Self) -> Result<()> {
        Ok(())
    }

    fn gelu(_: Gelu, _: Meta, _: &mut Self) -> Result<()> {
        Ok(())
    }

    fn gelu_backward(_: Gelu, _: Meta, _: Meta, _: &mut Self) -> Result<()> {
        Ok(())
    }

    fn attention(
        params: &AttentionParams,
        (q, _): Meta,
        _: Meta,
        _: Meta,
        _: Option<(Meta, Meta)>,
        _: &mut Self,
        _: &mut Self,
    ) -> Result<()> {
        q.on()
            .scratch(|| vec![scratch::attention(q.dtype(), params)]);
        q.on().count_flops(2 * product_of_scores(params)); // q k^T, p v
        Ok(())
    }

    fn attention_backward(
        params: &AttentionParams,
        (q, _): Meta,
        _: Meta,
        _: Meta,
        _: Option<(Meta, Meta)>,
        _: Meta,
        _: Meta,
        _: Meta,
        _: &mut Self,
        _: &mut Self,
        _: &mut Self,
    ) -> Result<()> {
        q.on()
            .scratch_in_turn(|| scratch::attention_backward(q.dtype(), params));
        q.on().count_flops(4 * product_of_scores(params)); // dp, dv, dk, dq
        q.on().count_recomputed_flops(product_of_scores(params)); // q k^T
        Ok(())
    }

    fn linear_cross_entropy(
        _: &CrossEntropyParams,
        _: f32,
        hidden: Meta,
        weight: Meta,
        _: Meta,
        _: &mut Self,
        dhidden: Option<&mut Self>,
        dweight: Option<&mut Self>,
    ) -> Result<()> {
        let gradients = usize::from(dhidden.is_some()) + usize::from(dweight.is_some());
        let product = head_product(hidden, weight, gradients > 0);
        hidden.0.on().count_flops((1 + gradients) * product);
        Ok(())
    }

    fn linear_token_losses(
        _: &CrossEntropyParams,
        hidden: Meta,
        weight: Meta,
        _: Meta,
        _: &mut Self,
    ) -> Result<()> {
        let product = head_product(hidden, weight, false);
        hidden.0.on().count_flops(product);
        Ok(())
    }

    fn linear_token_losses_backward(
        _: &CrossEntropyParams,
        hidden: Meta,
        weight: Meta,
        _: Meta,
        _: Meta,
        dhidden: Option<&mut Self>,
        dweight: Option<(&mut Self, Write)>,
    ) -> Result<()> {
        let gradients = usize::from(dhidden.is_some()) + usize::from(dweight.is_some());
        let product = head_product(hidden, weight, gradients > 0);
        hidden.0.on().count_flops(gradients * product);
        hidden.0.on().count_recomputed_flops(product); // the logits
        Ok(())
    }

    fn embedding(_: Meta, _: Meta, _: &mut Self) -> Result<()> {
        Ok(())
    }

    fn embedding_backward(_: Meta, _: Meta, _: &mut Self) -> Result<()> {
        Ok(())
    }

    fn dropout(_: Meta, _: f32, _: RngKey, _: &mut Self) -> Result<()> {
        Ok(())
    }

    fn fill_normal(&mut self, _: usize, _: f32, _: f32, _: RngKey) -> Result<()> {
        Ok(())
    }

    fn fill_uniform(&mut self, _: usize, _: f32, _: f32, _: RngKey) -> Result<()> {
        Ok(())
    }

    fn optimizer_step(
        _: &UpdateRule,
        _: &mut Self,
        _: Meta,
        _: Meta,
        _: &mut [&mut Self],
        _: Option<(&mut Self, usize)>,
    ) -> Result<()> {
        Ok(())
    }

    fn combine(&mut self, _: usize, _: f32, _: Option<(f32, Meta)>, _: bool) -> Result<()> {
        Ok(())
    }

    fn clip_value(&mut self, _: usize, _: Meta, _: f32) -> Result<()> {
        Ok(())
    }
}

fn elements(layout: &Layout) -> usize {
    layout.shape().elem_count()
}

fn rows_and_cols(layout: &Layout) -> (usize, usize) {
    let cols = layout.dims().last().copied().unwrap_or(1);
    (elements(layout) / cols.max(1), cols)
}

/// FLOPs of one product of a head over all rows, whose scratch is taken note of.
fn head_product(
    (hidden, hidden_layout): Meta,
    (weight, weight_layout): Meta,
    backward: bool,
) -> usize {
    let ((rows, dim), (vocab, _)) = (rows_and_cols(hidden_layout), rows_and_cols(weight_layout));
    let types = [hidden.dtype(), weight.dtype()];
    hidden
        .on()
        .scratch_in_turn(|| scratch::linear_cross_entropy(types, rows, vocab, dim, backward));
    2 * rows * dim * vocab
}

/// FLOPs of one product over the scores that are seen by position, all in one segment.
fn product_of_scores(p: &AttentionParams) -> usize {
    let past = p.keys.saturating_sub(p.queries);
    let seen = |query: usize| {
        let last = if p.causal { query + past + 1 } else { p.keys };
        p.window.map_or(last, |window| window.min(last))
    };
    let scores: usize = (0..p.queries).map(seen).sum();
    2 * p.batch * p.heads * p.head_dim * scores
}
