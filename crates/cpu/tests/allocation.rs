//! Once the pool is warm, kernels allocate nothing over 4 KiB.
//!
//! A test binary of its own with a single test: the counting allocator sees the whole process.

mod common;

use std::alloc::{GlobalAlloc, Layout as AllocLayout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Layout, Result};
use common::*;
use tt_cpu::{
    AdamParams, AttentionParams, CrossEntropyParams, FusedOps, Gelu, RngKey, UpdateRule, Write,
    pool,
};

const LARGE: usize = 4096;
static LARGE_ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call is passed on to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: AllocLayout) -> *mut u8 {
        if layout.size() > LARGE {
            LARGE_ALLOCATIONS.fetch_add(1, Relaxed);
        }
        // SAFETY: as for this method.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: AllocLayout) {
        // SAFETY: as for this method.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Linear {
    x: Operand,
    w: Operand,
    dy: Operand,
}

impl Linear {
    /// Activations of `dtype`, an f32 weight.
    fn new(dtype: DType, m: usize, k: usize, n: usize) -> Self {
        Self {
            x: Operand::of(dtype, random(m * k, 1), (m, k)),
            w: Operand::f32(random(n * k, 2), (n, k)),
            dy: Operand::of(dtype, random(m * n, 3), (m, n)),
        }
    }

    /// Forward, gradient by input, gradient by weight, into pooled outputs.
    fn run(&self) -> Result<()> {
        let &[m, k] = self.x.layout.dims() else {
            unreachable!("two dims")
        };
        let n = self.w.layout.dims()[0];
        let (w_t, dy_t) = (
            self.w.layout.transpose(0, 1)?,
            self.dy.layout.transpose(0, 1)?,
        );
        let dtype = self.x.storage.dtype();
        let mut y = pool::take(dtype, m * n);
        CpuStorage::matmul_into(
            self.x.view(),
            (&self.w.storage, &w_t),
            &mut y,
            Write::Assign,
        )?;
        let mut dx = pool::take(dtype, m * k);
        CpuStorage::matmul_into(self.dy.view(), self.w.view(), &mut dx, Write::Assign)?;
        let mut dw = pool::take(DType::F32, n * k);
        let dy_t = (&self.dy.storage, &dy_t);
        CpuStorage::matmul_into(dy_t, self.x.view(), &mut dw, Write::Accumulate)?;
        for output in [y, dx, dw] {
            pool::give(output);
        }
        Ok(())
    }
}

#[test]
fn warm_kernels_allocate_nothing_large() -> Result<()> {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        // Head dims that are whole vectors, and others.
        for head_dim in [32, 20] {
            check(dtype, head_dim)?;
        }
    }
    Ok(())
}

fn check(dtype: DType, head_dim: usize) -> Result<()> {
    let linears = [
        (1024, 256, 704),
        (1024, 704, 256),
        (48, 64, 1600),
        (1, 256, 256),
        (100, 256, 50),
    ]
    .map(|(m, k, n)| Linear::new(dtype, m, k, n));

    let p = AttentionParams {
        batch: 2,
        queries: 250,
        keys: 250,
        heads: 4,
        kv_heads: 2,
        head_dim,
        scale: 0.2,
        causal: true,
        window: None,
    };
    let (q_len, kv_len) = (2 * 250 * 4 * head_dim, 2 * 250 * 2 * head_dim);
    let q = Operand::of(dtype, random(q_len, 5), (2, 250, 4, head_dim));
    let kv = Operand::of(dtype, random(kv_len, 6), (2, 250, 2, head_dim));
    let [mut out, mut dq, mut dk, mut dv] =
        [q_len, q_len, kv_len, kv_len].map(|len| zeros_of(dtype, len));
    let mut lse = zeros(2 * 4 * 250);
    let (q_layout, lse_layout) = (q.layout.clone(), Layout::contiguous(2 * 4 * 250));

    let (rows, dim, vocab) = (500, 256, 2048);
    let hidden = Operand::of(dtype, random(rows * dim, 7), (rows, dim));
    let stream = Operand::f32(random(rows * dim, 7), (rows, dim));
    let head = Operand::f32(random(vocab * dim, 8), (vocab, dim));
    let labels = Operand::i64((0..rows as i64).collect(), rows);
    let ce = CrossEntropyParams {
        ignore_index: -100,
        label_smoothing: 0.0,
        z_loss: 0.0,
    };
    let [mut totals, mut dhead] = [3, vocab * dim].map(zeros);
    let mut dh = zeros_of(dtype, rows * dim);

    let norm = Operand::f32(random(dim, 9), dim);
    let [mut mean, mut inv, mut dx] = [rows, rows, rows * dim].map(zeros);
    let [mut dnorm, mut dbias] = [dim; 2].map(zeros);
    let mut y = zeros_of(dtype, rows * dim);
    let inv_layout = Layout::contiguous(rows);
    let scale = Operand::f32(vec![1.0], 1);
    let adamw = UpdateRule::Adam(AdamParams {
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.99,
        eps: 1e-8,
        weight_decay: 0.1,
        decoupled: true,
        amsgrad: false,
        step: 1,
    });
    let [mut param, mut m, mut v] = [rows * dim; 3].map(zeros);
    let rng = RngKey { key: 1, stream: 2 };

    let mut step = || -> Result<()> {
        linears.iter().try_for_each(Linear::run)?;
        CpuStorage::attention(&p, q.view(), kv.view(), kv.view(), None, &mut out, &mut lse)?;
        CpuStorage::attention_backward(
            &p,
            q.view(),
            kv.view(),
            kv.view(),
            None,
            (&out, &q_layout),
            (&lse, &lse_layout),
            q.view(),
            &mut dq,
            &mut dk,
            &mut dv,
        )?;
        CpuStorage::linear_cross_entropy(
            &ce,
            1.0,
            hidden.view(),
            head.view(),
            labels.view(),
            &mut totals,
            Some(&mut dh),
            Some(&mut dhead),
        )?;
        CpuStorage::rms_norm(stream.view(), norm.view(), 1e-6, &mut y, &mut inv)?;
        CpuStorage::rms_norm_backward(
            stream.view(),
            norm.view(),
            (&inv, &inv_layout),
            hidden.view(),
            Some(&mut dx),
            Some((&mut dnorm, Write::Assign)),
        )?;
        let (weight, bias) = (norm.view(), norm.view());
        CpuStorage::layer_norm(
            stream.view(),
            weight,
            bias,
            1e-5,
            &mut y,
            &mut mean,
            &mut inv,
        )?;
        CpuStorage::layer_norm_backward(
            stream.view(),
            weight,
            (&mean, &inv_layout),
            (&inv, &inv_layout),
            hidden.view(),
            Some(&mut dx),
            Some((&mut dnorm, Write::Assign)),
            Some((&mut dbias, Write::Assign)),
        )?;
        CpuStorage::swiglu(hidden.view(), hidden.view(), &mut y)?;
        CpuStorage::gelu(Gelu::Erf, hidden.view(), &mut y)?;
        CpuStorage::gelu_backward(Gelu::Erf, hidden.view(), hidden.view(), &mut y)?;
        CpuStorage::dropout(hidden.view(), 0.1, rng, &mut y)?;
        CpuStorage::sum_rows_into(hidden.view(), rows, &mut dnorm, Write::Assign)?;
        CpuStorage::sum_squares_into(stream.view(), &mut totals, 0)?;
        CpuStorage::optimizer_step(
            &adamw,
            &mut param,
            stream.view(),
            scale.view(),
            &mut [&mut m, &mut v],
            None,
        )
    };
    // The first step fills the pool, the second has rayon's queues grown.
    step()?;
    step()?;
    let (allocations, misses) = (LARGE_ALLOCATIONS.load(Relaxed), pool::stats().misses);
    for _ in 0..5 {
        step()?;
    }
    assert_eq!(pool::stats().misses, misses, "the pool was warm");
    let later = LARGE_ALLOCATIONS.load(Relaxed);
    assert_eq!(later, allocations, "{dtype:?}, head dim {head_dim}");
    Ok(())
}
