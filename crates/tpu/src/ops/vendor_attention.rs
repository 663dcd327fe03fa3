//! Attention and its gradients by the vendor's kernels: causal, in 16 bit, of tokens that see themselves.
//!
//! They want their operands without gaps, what a query sees as numbers that are added to its scores, `lse` as `[B, T, H]`
//! where ours is `[B, H, T]`, and angles even where they are not to rotate. The causal mask and the angles depend on the shape
//! alone and are kept on the device; that of segments is made anew each time.

use std::mem::ManuallyDrop;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{CpuStorage, DType, Layout};
use half::{bf16, f16};
use tt_cpu::{AttentionParams, View};

use crate::device::TpuDevice;
use crate::error::Result;
use crate::ops::attention::Operands;
use crate::ops::binary::{self, Function as Binary};
use crate::ops::copy::{contiguous, into_order};
use crate::storage::{TpuStorage, start};
use crate::traffic::{F32, Operand, Traffic};
use crate::vendor::{self, vendor_kernels};

/// Sequences of a batch: room in the arguments.
const MAX_BATCH: usize = 64;
/// What it was compared with a reference for.
const HEAD_DIMS: RangeInclusive<usize> = 32..=128;
/// Sequences are of any length up to the first; longer ones, up to the second, of a multiple of a block and of a head dim that
/// is one: gradients of 270 tokens are wrong, silently, where those of 257 and of 300 are right, and so are those of 320
/// tokens with a head dim of 80.
const ANY_TOKENS: usize = 128;
const MAX_TOKENS: usize = 2048;
const BLOCK: usize = 64;
/// For the gradients. With none of the shapes that were tried was anything written there, so this is what others give it.
const BUFFER_BYTES: usize = 8 << 20;
/// Added to the score of a key that is not seen: its exponential is 0, and it fits f16.
const UNSEEN: f32 = -1e4;
/// Shapes whose masks are kept: those of training, of validation and of a sample.
const KEPT: usize = 4;

vendor_kernels! {
    AttentionForward = "llama_attention_forward_multi_core" {
        q: u64,
        k: u64,
        v: u64,
        reserved: [u64; 3],
        cos: u64,
        sin: u64,
        mask: u64,
        out: u64,
        lens: u64,
        lse: u64,
        scale: f32,
        dropout: f32,
        batch: i32,
        mask_max: i32,
        /// Of all query heads.
        hidden: i32,
        heads: i32,
        kv_heads: i32,
        dtype: i32,
        is_packed: i32,
        with_lse: i32,
        without_rope: i32,
        mask_batch: i32,
        without_mask: i32,
        keys: i32,
        /// Tokens of each sequence, all alike.
        reserved_lens: [i32; MAX_BATCH],
    }
    AttentionBackward = "llama_attention_backward_multi_core" {
        q: u64,
        k: u64,
        v: u64,
        out: u64,
        dout: u64,
        lse: u64,
        dq: u64,
        dk: u64,
        dv: u64,
        cos: u64,
        sin: u64,
        mask: u64,
        lens: u64,
        buffer: u64,
        scale: f32,
        batch: i32,
        mask_max: i32,
        heads: i32,
        kv_heads: i32,
        hidden: i32,
        dtype: i32,
    }
}

/// Shapes of what has a number for each query head, each key head, each query.
fn shapes(batch: i32, tokens: i32, heads: i32, kv_heads: i32, hidden: i32) -> [[i64; 4]; 3] {
    let dim = hidden / heads.max(1);
    [
        [batch, tokens, heads, dim],
        [batch, tokens, kv_heads, dim],
        [batch, tokens, heads, 1],
    ]
    .map(|shape| shape.map(i64::from))
}

impl Traffic for AttentionForward {
    fn operands(&self) -> Vec<Operand> {
        let dtype = vendor::as_ours(self.dtype);
        let (tokens, batch) = (self.keys, self.batch);
        let [q, kv, rows] = shapes(batch, tokens, self.heads, self.kv_heads, self.hidden);
        vec![
            Operand::read("q", q, dtype),
            Operand::read("k", kv, dtype),
            Operand::read("v", kv, dtype),
            Operand::read("mask", [batch, tokens, tokens].map(i64::from), dtype),
            Operand::write("out", q, dtype),
            Operand::write("lse", rows, F32),
        ]
    }
}

impl Traffic for AttentionBackward {
    fn operands(&self) -> Vec<Operand> {
        let dtype = vendor::as_ours(self.dtype);
        let (tokens, batch) = (self.mask_max, self.batch);
        let [q, kv, rows] = shapes(batch, tokens, self.heads, self.kv_heads, self.hidden);
        vec![
            Operand::read("q", q, dtype),
            Operand::read("k", kv, dtype),
            Operand::read("v", kv, dtype),
            Operand::read("out", q, dtype),
            Operand::read("dout", q, dtype),
            Operand::read("lse", rows, F32),
            Operand::read("mask", [batch, tokens, tokens].map(i64::from), dtype),
            Operand::write("dq", q, dtype),
            Operand::write("dk", kv, dtype),
            Operand::write("dv", kv, dtype),
        ]
    }
}

/// Error: why the vendor's kernels are not admitted for this.
pub(crate) fn admit(p: &AttentionParams, x: &Operands) -> std::result::Result<(), &'static str> {
    let rules = [
        (x.q.0.kind() == DType::F32, "in f32"),
        (
            x.segments.is_some_and(|(q, k)| start(q) != start(k)),
            "of queries with other segments than the keys",
        ),
        (!p.causal, "not causal"),
        (p.window.is_some_and(|it| it < p.keys), "with a window"),
        (p.queries != p.keys, "of fewer queries than keys"),
        (p.batch > MAX_BATCH, "of more than 64 sequences"),
        (p.keys > MAX_TOKENS, "of more than 2048 tokens"),
        (
            p.keys > ANY_TOKENS && !p.keys.is_multiple_of(BLOCK),
            "of more than 128 tokens, not a multiple of 64",
        ),
        (
            p.keys > ANY_TOKENS && !p.head_dim.is_multiple_of(BLOCK),
            "of more than 128 tokens, of another head dim than 64 and 128",
        ),
        (
            !HEAD_DIMS.contains(&p.head_dim) || !p.head_dim.is_multiple_of(8),
            "of a head dim that is not 32, 40 .. 128",
        ),
    ];
    match rules.iter().find(|(is_outside, _)| *is_outside) {
        Some((_, why)) => Err(why),
        None => Ok(()),
    }
}

/// Of operands that are checked; `out` and `lse` are addresses.
pub(crate) fn forward(
    p: &AttentionParams,
    x: Operands,
    out: u64,
    lse: &mut TpuStorage,
) -> Result<()> {
    let (device, dtype) = (lse.on(), x.q.0.kind());
    let (q, k, v) = (contiguous(x.q)?, contiguous(x.k)?, contiguous(x.v)?);
    let constants = Constants::of(device, p, dtype)?;
    let of_segments = segment_mask(p, &x, &constants)?;
    let mask = of_segments.as_ref().unwrap_or(&constants.mask);
    let rows = device.alloc(DType::F32, p.batch * p.queries * p.heads)?;
    let mut lens = [0; MAX_BATCH];
    lens[..p.batch].fill(p.keys as i32);
    device.launch_vendor(AttentionForward {
        q: start(q.view()),
        k: start(k.view()),
        v: start(v.view()),
        cos: constants.cos.address_at(0),
        sin: constants.sin.address_at(0),
        mask: mask.address_at(0),
        out,
        lens: constants.lens.address_at(0),
        lse: rows.address_at(0),
        scale: p.scale,
        batch: p.batch as i32,
        mask_max: p.keys as i32,
        hidden: (p.heads * p.head_dim) as i32,
        heads: p.heads as i32,
        kv_heads: p.kv_heads as i32,
        dtype: vendor::code(dtype)?,
        with_lse: 1,
        without_rope: 1,
        mask_batch: p.batch as i32,
        keys: p.keys as i32,
        reserved_lens: lens,
        ..AttentionForward::default()
    })?;
    into_order((&rows, &swapped(p.batch, p.queries, p.heads, 0)), lse, 0)
}

/// Addresses of operands and results that are checked.
pub(crate) struct Backward {
    pub out: u64,
    pub dout: u64,
    pub dq: u64,
    pub dk: u64,
    pub dv: u64,
}

pub(crate) fn backward(
    p: &AttentionParams,
    x: Operands,
    lse: View<TpuStorage>,
    at: Backward,
) -> Result<()> {
    let (device, dtype) = (lse.0.on(), x.q.0.kind());
    let (q, k, v) = (contiguous(x.q)?, contiguous(x.k)?, contiguous(x.v)?);
    let constants = Constants::of(device, p, dtype)?;
    let of_segments = segment_mask(p, &x, &constants)?;
    let mask = of_segments.as_ref().unwrap_or(&constants.mask);
    let by_token = swapped(p.batch, p.heads, p.queries, lse.1.start_offset());
    let mut rows = device.alloc(DType::F32, p.batch * p.queries * p.heads)?;
    into_order((lse.0, &by_token), &mut rows, 0)?;
    let buffer = device.alloc(DType::U8, BUFFER_BYTES)?;
    device.launch_vendor(AttentionBackward {
        q: start(q.view()),
        k: start(k.view()),
        v: start(v.view()),
        out: at.out,
        dout: at.dout,
        lse: rows.address_at(0),
        dq: at.dq,
        dk: at.dk,
        dv: at.dv,
        cos: constants.cos.address_at(0),
        sin: constants.sin.address_at(0),
        mask: mask.address_at(0),
        lens: constants.lens.address_at(0),
        buffer: buffer.address_at(0),
        scale: p.scale,
        batch: p.batch as i32,
        mask_max: p.keys as i32,
        heads: p.heads as i32,
        kv_heads: p.kv_heads as i32,
        hidden: (p.heads * p.head_dim) as i32,
        dtype: vendor::code(dtype)?,
    })
}

/// The causal mask, and where the segments of query and key differ; `None`: there are none.
fn segment_mask(
    p: &AttentionParams,
    x: &Operands,
    constants: &Constants,
) -> Result<Option<TpuStorage>> {
    let Some((ids, _)) = x.segments else {
        return Ok(None);
    };
    let (tokens, len) = (p.keys, p.batch * p.keys * p.keys);
    let along = |strides: [usize; 3]| {
        let dims = (p.batch, tokens, tokens);
        Layout::new(dims.into(), strides.to_vec(), 0)
    };
    let (of_query, of_key) = (along([tokens, 1, 0]), along([tokens, 0, 1]));
    let (dtype, all) = (constants.mask.kind(), Layout::contiguous(len));
    let [low, high] = halves(ids, p.batch * tokens)?;
    let differ = |half| binary::map(Binary::Ne, (half, &of_query), (half, &of_key), dtype);
    let (mut mask, high) = (differ(&low)?, differ(&high)?);
    let mut add =
        |factors, other| binary::update(Binary::Linear, factors, &mut mask, len, (other, &all));
    add([UNSEEN, UNSEEN], &high)?;
    add([1.0, 1.0], &constants.mask)?;
    Ok(Some(mask))
}

/// The lower and the upper half of each of `len` ids, in f32, which holds 24 bits: comparisons are of f32.
fn halves(ids: View<TpuStorage>, len: usize) -> Result<[TpuStorage; 2]> {
    let device = ids.0.on();
    // The same memory. It stays that of the ids.
    let bytes = TpuStorage::new(device, start(ids), DType::U8, 4 * len);
    let bytes = ManuallyDrop::new(bytes);
    let mut places = device.alloc(DType::U8, 4 * len)?;
    into_order((&bytes, &swapped(1, len, 4, 0)), &mut places, 0)?;
    let half = |first: usize| -> Result<TpuStorage> {
        let [low, high] =
            [first, first + 1].map(|place| Layout::contiguous_with_offset(len, place * len));
        let mut half = device.alloc(DType::F32, len)?;
        let (low, high) = ((&places, &low), (&places, &high));
        binary::map_into(Binary::Linear, [1.0, 256.0], low, high, &mut half)?;
        Ok(half)
    };
    Ok([half(0)?, half(2)?])
}

/// `[batch, rows, cols]` seen as `[batch, cols, rows]`.
fn swapped(batch: usize, rows: usize, cols: usize, offset: usize) -> Layout {
    let strides = vec![rows * cols, 1, cols];
    Layout::new((batch, cols, rows).into(), strides, offset)
}

/// What depends on the shape alone.
struct Constants {
    key: Key,
    /// `[B, T, T]`.
    mask: TpuStorage,
    /// `[B, T, D]`: of no angle.
    cos: TpuStorage,
    sin: TpuStorage,
    /// `[B]`.
    lens: TpuStorage,
}

/// Sequences, tokens, head dim, dtype.
type Key = (usize, usize, usize, DType);

impl Constants {
    /// Those that are kept, or made.
    fn of(device: TpuDevice, p: &AttentionParams, dtype: DType) -> Result<Arc<Self>> {
        /// The one that was used last comes last.
        static MADE: Mutex<Vec<Arc<Constants>>> = Mutex::new(Vec::new());
        let key = (p.batch, p.keys, p.head_dim, dtype);
        let mut kept = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        let found = match kept.iter().position(|it| it.key == key) {
            Some(at) => kept.remove(at),
            None => Arc::new(Self::make(device, key)?),
        };
        if kept.len() == KEPT {
            kept.remove(0);
        }
        kept.push(found.clone());
        Ok(found)
    }

    fn make(device: TpuDevice, key: Key) -> Result<Self> {
        let (batch, tokens, head_dim, dtype) = key;
        let upload = |numbers: Vec<f32>| TpuStorage::upload(device, &rounded(dtype, &numbers));
        let seen = |i: usize| {
            let (query, key) = (i / tokens % tokens, i % tokens);
            if key <= query { 0.0 } else { UNSEEN }
        };
        let angles = batch * tokens * head_dim;
        Ok(Self {
            key,
            mask: upload((0..batch * tokens * tokens).map(seen).collect())?,
            cos: upload(vec![1.0; angles])?,
            sin: upload(vec![0.0; angles])?,
            lens: TpuStorage::upload(device, &CpuStorage::I32(vec![tokens as i32; batch]))?,
        })
    }
}

fn rounded(dtype: DType, numbers: &[f32]) -> CpuStorage {
    let numbers = numbers.iter().copied();
    match dtype {
        DType::BF16 => CpuStorage::BF16(numbers.map(bf16::from_f32).collect()),
        _ => CpuStorage::F16(numbers.map(f16::from_f32).collect()),
    }
}
