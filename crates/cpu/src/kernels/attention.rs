//! Attention.
use super::{narrow, wide};
use crate::check::Heads;
use crate::{AttentionParams, reference};
pub(crate) struct Saved<'a> {
    pub q: Heads<'a>,
    pub k: Heads<'a>,
    pub v: Heads<'a>,
    pub segments: reference::Segments<'a>,
    #[allow(dead_code)]
    pub out: &'a [f32],
    #[allow(dead_code)]
    pub lse: &'a [f32],
}
fn dims(p: &AttentionParams) -> ([usize; 4], [usize; 4]) {
    (
        [p.batch, p.queries, p.heads, p.head_dim],
        [p.batch, p.keys, p.kv_heads, p.head_dim],
    )
}
pub(crate) fn forward(
    p: &AttentionParams,
    q: Heads,
    k: Heads,
    v: Heads,
    segments: reference::Segments,
    out: &mut [f32],
    lse: &mut [f32],
) {
    let (qd, kd) = dims(p);
    let (o, l) = reference::attention(
        p,
        &q.to_dense(qd),
        &k.to_dense(kd),
        &v.to_dense(kd),
        segments,
    );
    narrow(&o, out);
    narrow(&l, lse);
}
pub(crate) fn backward(
    p: &AttentionParams,
    s: Saved,
    dout: &[f32],
    dq: &mut [f32],
    dk: &mut [f32],
    dv: &mut [f32],
) {
    let (qd, kd) = dims(p);
    let (gq, gk, gv) = reference::attention_backward(
        p,
        &s.q.to_dense(qd),
        &s.k.to_dense(kd),
        &s.v.to_dense(kd),
        s.segments,
        &wide(dout),
    );
    narrow(&gq, dq);
    narrow(&gk, dk);
    narrow(&gv, dv);
}
