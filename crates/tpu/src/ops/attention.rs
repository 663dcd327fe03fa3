//! Attention and its gradients: operands checked, one launch forward, two backward.

use candle_core::DType;
use tt_cpu::{AttentionParams, View};

use crate::device::TpuDevice;
use crate::error::{Error, Result};
use crate::launch::{code, kernels};
use crate::ops::operand::{Heads, dense, ensure, output};
use crate::ops::vendor_attention;
use crate::storage::TpuStorage;
use crate::traffic::{F32, Operand, Traffic, U32};

type Tpu<'a> = View<'a, TpuStorage>;

/// What the lanes' memory holds next to the scores.
const MAX_HEAD_DIM: usize = 1024;

/// `problem_t` of `kernels/attention.c`.
#[repr(C)]
#[derive(bytemuck::NoUninit, Clone, Copy, Debug, Default)]
pub(crate) struct Problem {
    q: u64,
    k: u64,
    v: u64,
    /// 0: none.
    q_segments: u64,
    k_segments: u64,
    q_batch: i64,
    k_batch: i64,
    v_batch: i64,
    q_row: i32,
    k_row: i32,
    v_row: i32,
    q_head: i32,
    k_head: i32,
    v_head: i32,
    batch: i32,
    queries: i32,
    keys: i32,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
    /// `i32::MAX`: none.
    window: i32,
    causal: u32,
    dtype: u32,
    scale: f32,
}

kernels! {
    Attention = "attention" {
        problem: Problem,
        out: u64,
        lse: u64,
    }
    /// Leaves `delta` for the other half.
    AttentionDq = "attention_dq" {
        problem: Problem,
        out: u64,
        lse: u64,
        dout: u64,
        dq: u64,
        delta: u64,
    }
    AttentionDkv = "attention_dkv" {
        problem: Problem,
        lse: u64,
        dout: u64,
        delta: u64,
        dk: u64,
        dv: u64,
    }
}

impl Problem {
    fn queries_shape(&self) -> [i64; 4] {
        [self.batch, self.queries, self.heads, self.head_dim].map(i64::from)
    }

    fn keys_shape(&self) -> [i64; 4] {
        [self.batch, self.keys, self.kv_heads, self.head_dim].map(i64::from)
    }

    /// Of one number for each query and head.
    fn rows_shape(&self) -> [i64; 3] {
        [self.batch, self.heads, self.queries].map(i64::from)
    }

    /// What every kernel of the family reads.
    fn operands(&self) -> Vec<Operand> {
        let mut operands = vec![
            Operand::read("q", self.queries_shape(), self.dtype),
            Operand::read("k", self.keys_shape(), self.dtype),
            Operand::read("v", self.keys_shape(), self.dtype),
        ];
        if self.q_segments != 0 {
            let [batch, queries, keys] = [self.batch, self.queries, self.keys].map(i64::from);
            operands.push(Operand::read("q_segments", [batch, queries], U32));
            operands.push(Operand::read("k_segments", [batch, keys], U32));
        }
        operands
    }
}

impl Traffic for Attention {
    fn operands(&self) -> Vec<Operand> {
        let it = &self.problem;
        let mut operands = it.operands();
        operands.extend([
            Operand::write("out", it.queries_shape(), it.dtype),
            Operand::write("lse", it.rows_shape(), F32),
        ]);
        operands
    }
}

impl Traffic for AttentionDq {
    fn operands(&self) -> Vec<Operand> {
        let it = &self.problem;
        let mut operands = it.operands();
        operands.extend([
            Operand::read("out", it.queries_shape(), it.dtype),
            Operand::read("lse", it.rows_shape(), F32),
            Operand::read("dout", it.queries_shape(), it.dtype),
            Operand::write("dq", it.queries_shape(), it.dtype),
            Operand::write("delta", it.rows_shape(), F32),
        ]);
        operands
    }
}

impl Traffic for AttentionDkv {
    fn operands(&self) -> Vec<Operand> {
        let it = &self.problem;
        let mut operands = it.operands();
        operands.extend([
            Operand::read("lse", it.rows_shape(), F32),
            Operand::read("dout", it.queries_shape(), it.dtype),
            Operand::read("delta", it.rows_shape(), F32),
            Operand::write("dk", it.keys_shape(), it.dtype),
            Operand::write("dv", it.keys_shape(), it.dtype),
        ]);
        operands
    }
}

/// Queries, keys and values of either pass.
#[derive(Clone, Copy)]
pub(crate) struct Operands<'a> {
    pub q: Tpu<'a>,
    pub k: Tpu<'a>,
    pub v: Tpu<'a>,
    pub segments: Option<(Tpu<'a>, Tpu<'a>)>,
}

pub(crate) fn forward(
    p: &AttentionParams,
    x: Operands,
    out: &mut TpuStorage,
    lse: &mut TpuStorage,
) -> Result<()> {
    let problem = problem("attention", p, x)?;
    let dtype = x.q.0.kind();
    let (q_len, _, lse_len) = lengths(p);
    let args = Attention {
        problem,
        out: output("attention: out", out, dtype, q_len)?,
        lse: output("attention: lse", lse, DType::F32, lse_len)?,
        ..Attention::default()
    };
    if q_len == 0 {
        return Ok(());
    }
    if is_vendors("attention", p, &x, out.on()) {
        return vendor_attention::forward(p, x, args.out, lse);
    }
    out.on().launch(args)
}

/// `[dq, dk, dv]` are assigned.
pub(crate) fn backward(
    p: &AttentionParams,
    x: Operands,
    out: Tpu,
    lse: Tpu,
    dout: Tpu,
    [dq, dk, dv]: [&mut TpuStorage; 3],
) -> Result<()> {
    let op = "attention_backward";
    let problem = problem(op, p, x)?;
    let (device, dtype) = (dq.on(), x.q.0.kind());
    let (q_len, kv_len, lse_len) = lengths(p);
    let out = dense(&format!("{op}: out"), out, dtype, q_len)?;
    let rows = dense(&format!("{op}: lse"), lse, DType::F32, lse_len)?;
    let dout = dense(&format!("{op}: dout"), dout, dtype, q_len)?;
    let dq = output(&format!("{op}: dq"), dq, dtype, q_len)?;
    let dk = output(&format!("{op}: dk"), dk, dtype, kv_len)?;
    let dv = output(&format!("{op}: dv"), dv, dtype, kv_len)?;
    if q_len > 0 && kv_len > 0 && is_vendors(op, p, &x, device) {
        let at = vendor_attention::Backward {
            out,
            dout,
            dq,
            dk,
            dv,
        };
        return vendor_attention::backward(p, x, lse, at);
    }
    let delta = device.alloc(DType::F32, lse_len)?;
    let delta = delta.address_at(0);
    if q_len > 0 {
        device.launch(AttentionDq {
            problem,
            out,
            lse: rows,
            dout,
            dq,
            delta,
            ..AttentionDq::default()
        })?;
    }
    if kv_len > 0 {
        device.launch(AttentionDkv {
            problem,
            lse: rows,
            dout,
            delta,
            dk,
            dv,
            ..AttentionDkv::default()
        })?;
    }
    Ok(())
}

/// Whether the vendor's kernels are asked for and admitted.
fn is_vendors(op: &'static str, p: &AttentionParams, x: &Operands, device: TpuDevice) -> bool {
    if !device.takes_vendors() {
        return false;
    }
    let admitted = vendor_attention::admit(p, x);
    if let Err(why) = admitted {
        device.declined(op, why);
    }
    admitted.is_ok()
}

/// Elements of `q`, of `k` and of `lse`.
fn lengths(p: &AttentionParams) -> (usize, usize, usize) {
    let rows = p.batch * p.queries * p.heads;
    let kv_rows = p.batch * p.keys * p.kv_heads;
    (rows * p.head_dim, kv_rows * p.head_dim, rows)
}

fn problem(op: &str, p: &AttentionParams, x: Operands) -> Result<Problem> {
    ensure!(
        p.kv_heads > 0 && p.heads.is_multiple_of(p.kv_heads),
        "{op}: {} query heads do not share {} key/value heads evenly",
        p.heads,
        p.kv_heads
    );
    ensure!(
        (1..=MAX_HEAD_DIM).contains(&p.head_dim),
        "{op}: the head dim is {}, not within 1..={MAX_HEAD_DIM}",
        p.head_dim
    );
    let dtype = x.q.0.kind();
    ensure!(
        matches!(dtype, DType::F32 | DType::BF16 | DType::F16),
        "{op}: q must be of a float type, not {dtype:?}"
    );
    let heads = |name: &str, view: Tpu, tokens: usize, heads: usize| {
        let dims = [p.batch, tokens, heads, p.head_dim];
        Heads::new(&format!("{op}: {name}"), view, dtype, dims)
    };
    let q = heads("q", x.q, p.queries, p.heads)?;
    let k = heads("k", x.k, p.keys, p.kv_heads)?;
    let v = heads("v", x.v, p.keys, p.kv_heads)?;
    let (mut q_segments, mut k_segments) = (0, 0);
    if let Some((queries, keys)) = x.segments {
        let ids = |name: &str, view: Tpu, tokens: usize| {
            let what = format!("{op}: {name} segments");
            dense(&what, view, DType::U32, p.batch * tokens)
        };
        q_segments = ids("query", queries, p.queries)?;
        k_segments = ids("key", keys, p.keys)?;
    }
    let int = |name: &str, value: usize| {
        let why = || Error::Operand(format!("{op}: {value} {name}"));
        i32::try_from(value).map_err(|_| why())
    };
    Ok(Problem {
        q: q.address,
        k: k.address,
        v: v.address,
        q_segments,
        k_segments,
        q_batch: q.batch,
        k_batch: k.batch,
        v_batch: v.batch,
        q_row: q.row,
        k_row: k.row,
        v_row: v.row,
        q_head: q.head,
        k_head: k.head,
        v_head: v.head,
        batch: int("sequences", p.batch)?,
        queries: int("queries", p.queries)?,
        keys: int("keys", p.keys)?,
        heads: int("heads", p.heads)?,
        kv_heads: int("heads", p.kv_heads)?,
        head_dim: int("elements", p.head_dim)?,
        window: p
            .window
            .map_or(i32::MAX, |window| i32::try_from(window).unwrap_or(i32::MAX)),
        causal: p.causal.into(),
        dtype: code(dtype)?,
        scale: p.scale,
    })
}
