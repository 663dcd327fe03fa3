//! What each kernel offers to 16 threads on the shapes of two models: 4 tasks a thread, counted, not timed.
//!
//! Where 64 tasks would be smaller than is worth it, as many as there are of the smallest: pieces of 2 Ki elements, tiles of
//! a product of 48 x 64. Work that one thread does is not counted.

use half::bf16;

use super::matmul::{Operand, batched, most_tiles};
use super::optimizer::State;
use super::*;
use crate::check::Heads;
use crate::element::Element;
use crate::isa::tests::with_cuts_of_each_isa;
use crate::par::{self, tests::calls_on};
use crate::{AdamParams, AttentionParams, CrossEntropyParams, Gelu, RngKey, UpdateRule, Write};

const THREADS: usize = 16;
const ENOUGH: usize = 4 * THREADS;
/// Elements of the smallest piece, twice the least of an elementwise kernel: pieces are whole rows.
const SMALLEST: usize = 2048;

struct Model {
    name: &'static str,
    batch: usize,
    tokens: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    intermediate: usize,
    vocab: usize,
}

const MODELS: [Model; 2] = [
    Model {
        name: "L",
        batch: 2,
        tokens: 512,
        hidden: 896,
        heads: 14,
        kv_heads: 2,
        intermediate: 4864,
        vocab: 32_000,
    },
    Model {
        name: "Qwen2-0.5B",
        batch: 1,
        tokens: 1024,
        hidden: 896,
        heads: 14,
        kv_heads: 2,
        intermediate: 4864,
        vocab: 151_936,
    },
];

const HEAD_DIM: usize = 64;

impl Model {
    fn rows(&self) -> usize {
        self.batch * self.tokens
    }

    /// (inputs, outputs) of the linear layers of a block.
    fn linears(&self) -> [(usize, usize); 5] {
        let (hidden, intermediate) = (self.hidden, self.intermediate);
        let [q, kv] = [self.heads, self.kv_heads].map(|heads| heads * HEAD_DIM);
        [
            (hidden, q),
            (hidden, kv),
            (q, hidden),
            (hidden, intermediate),
            (intermediate, hidden),
        ]
    }

    fn attention(&self) -> AttentionParams {
        AttentionParams {
            batch: self.batch,
            queries: self.tokens,
            keys: self.tokens,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: HEAD_DIM,
            scale: 0.125,
            causal: true,
            window: None,
        }
    }
}

/// One line for each kernel, and those that offer too little.
#[derive(Default)]
struct Report {
    table: String,
    too_few: usize,
    counted: usize,
}

impl Report {
    /// `most` tasks are all that there can be.
    fn add(&mut self, what: &str, most: usize, kernel: impl FnOnce() + Send) {
        let mut is_parallel = false;
        for call in calls_on(THREADS, kernel) {
            if par::is_small(call.work) {
                continue;
            }
            is_parallel = true;
            let asked = ENOUGH.min(most).min(call.work / SMALLEST);
            let falls_short = call.pieces < asked;
            let mark = if falls_short { " TOO FEW" } else { "" };
            let line = format!("{what}: {} of {asked}{mark}\n", call.pieces);
            self.table.push_str(&line);
            self.too_few += usize::from(falls_short);
        }
        assert!(is_parallel, "{what} has no parallel part");
        self.counted += 1;
    }

    fn check(self) {
        assert_eq!(
            self.too_few, 0,
            "tasks for {THREADS} threads:\n{}",
            self.table
        );
    }
}

fn products<T: Element>(report: &mut Report, model: &Model, zero: T) {
    let rows = model.rows();
    for (k, n) in model.linears() {
        let (x, w, dy) = (
            vec![zero; rows * k],
            vec![0f32; n * k],
            vec![zero; rows * n],
        );
        let [mut y, mut dx] = [rows * n, rows * k].map(|len| vec![zero; len]);
        let mut dw = vec![0f32; n * k];
        let name = |part: &str| format!("{} {:?} linear {k} -> {n}, {part}", model.name, T::DTYPE);
        report.add(&name("forward"), most_tiles(rows, n), || {
            let (a, b) = (
                Operand {
                    data: &x,
                    strides: &[k, 1],
                },
                Operand {
                    data: &w,
                    strides: &[1, k],
                },
            );
            batched(&[], a, b, (rows, k, n), &mut y, Write::Assign);
        });
        report.add(&name("gradient of the input"), most_tiles(rows, k), || {
            let (a, b) = (
                Operand {
                    data: &dy,
                    strides: &[n, 1],
                },
                Operand {
                    data: &w,
                    strides: &[k, 1],
                },
            );
            batched(&[], a, b, (rows, n, k), &mut dx, Write::Assign);
        });
        report.add(&name("gradient of the weight"), most_tiles(n, k), || {
            let (a, b) = (
                Operand {
                    data: &dy,
                    strides: &[1, n],
                },
                Operand {
                    data: &x,
                    strides: &[k, 1],
                },
            );
            batched(&[], a, b, (n, rows, k), &mut dw, Write::Accumulate);
        });
    }
}

fn attention_passes<T: Element>(report: &mut Report, model: &Model, zero: T) {
    let p = model.attention();
    let dims = |heads| [p.batch, p.queries, heads, p.head_dim];
    let [q_len, kv_len] = [p.heads, p.kv_heads].map(|heads| dims(heads).iter().product::<usize>());
    let (q, kv) = (vec![zero; q_len], vec![zero; kv_len]);
    let [mut out, mut dq] = [(); 2].map(|()| q.clone());
    let [mut dk, mut dv] = [(); 2].map(|()| kv.clone());
    let mut lse = vec![0.0; p.batch * p.heads * p.queries];
    let (query, key) = (
        Heads::dense(&q, dims(p.heads)),
        Heads::dense(&kv, dims(p.kv_heads)),
    );
    let name = |part: &str| format!("{} {:?} attention, {part}", model.name, T::DTYPE);
    report.add(&name("forward"), ENOUGH, || {
        attention::forward(&p, query, key, key, None, &mut out, &mut lse);
    });
    let saved = attention::Saved {
        q: query,
        k: key,
        v: key,
        segments: None,
        out: &q,
        lse: &lse,
    };
    report.add(&name("backward"), ENOUGH, || {
        attention::backward(&p, saved, &q, &mut dq, &mut dk, &mut dv);
    });
}

#[test]
fn products_and_attention_offer_four_tasks_to_each_of_16_threads() {
    for report in with_cuts_of_each_isa(|| {
        let mut report = Report::default();
        for model in &MODELS {
            products(&mut report, model, 0f32);
            products(&mut report, model, bf16::ZERO);
            attention_passes(&mut report, model, 0f32);
            attention_passes(&mut report, model, bf16::ZERO);
        }
        report
    }) {
        assert_eq!(report.counted, 2 * 2 * (3 * 5 + 2));
        report.check();
    }
}

fn loss_operands<'a, T, W>(
    params: &'a CrossEntropyParams,
    hidden: &'a [T],
    weight: &'a [W],
    labels: &'a [i64],
    dim: usize,
) -> cross_entropy::Operands<'a, T, W> {
    cross_entropy::Operands {
        params,
        hidden,
        weight,
        labels,
        dim,
    }
}

#[test]
fn the_head_and_the_embedding_offer_four_tasks_to_each_of_16_threads() {
    let mut report = Report::default();
    for model in &MODELS {
        let (rows, dim, vocab) = (model.rows(), model.hidden, model.vocab);
        let table = vec![0f32; vocab * dim];
        let mut dtable = vec![0f32; vocab * dim];
        let (mut y, dy) = (vec![0f32; rows * dim], vec![0f32; rows * dim]);
        let ids = vec![0u32; rows];
        report.add(&format!("{} embedding", model.name), ENOUGH, || {
            embedding::forward(&table, &ids, dim, &mut y);
        });
        report.add(
            &format!("{} embedding backward", model.name),
            ENOUGH,
            || {
                embedding::backward(&ids, &dy, dim, &mut dtable);
            },
        );
        let params = CrossEntropyParams {
            ignore_index: -100,
            label_smoothing: 0.0,
            z_loss: 0.0,
        };
        let labels = vec![0i64; rows];
        let (hidden, dhidden, dweight) = (&dy[..], &mut y[..], &mut dtable[..]);
        report.add(
            &format!("{} f32 linear cross-entropy", model.name),
            ENOUGH,
            || {
                let (dh, dw) = (Some(dhidden), Some(dweight));
                let operands = loss_operands(&params, hidden, &table, &labels, dim);
                cross_entropy::linear(&operands, 1.0, dh, dw);
            },
        );
        let hidden = vec![bf16::ZERO; rows * dim];
        let (mut dhidden, dweight) = (hidden.clone(), &mut dtable[..]);
        report.add(
            &format!("{} bf16 linear cross-entropy", model.name),
            ENOUGH,
            || {
                let (dh, dw) = (Some(&mut dhidden[..]), Some(dweight));
                let operands = loss_operands(&params, &hidden, &table, &labels, dim);
                cross_entropy::linear(&operands, 1.0, dh, dw);
            },
        );
    }
    report.check();
}

#[test]
fn kernels_of_rows_and_elements_offer_four_tasks_to_each_of_16_threads() {
    let mut report = Report::default();
    for model in &MODELS {
        let (rows, dim) = (model.rows(), model.hidden);
        let [x, dy] = [(); 2].map(|()| vec![0f32; rows * dim]);
        let [mut y, mut z] = [(); 2].map(|()| vec![0f32; rows * dim]);
        let (weight, mut dweight, mut inv) = (vec![0f32; dim], vec![0f32; dim], vec![0f32; rows]);
        let mut add = |what: &str, kernel: &mut (dyn FnMut() + Send)| {
            report.add(&format!("{} {what}", model.name), ENOUGH, kernel);
        };
        add("RMSNorm", &mut || {
            rms_norm::forward(&x, &weight, 1e-6, &mut y, &mut inv)
        });
        add("RMSNorm backward", &mut || {
            let (dx, dw) = (Some(&mut y[..]), Some((&mut dweight[..], Write::Assign)));
            rms_norm::backward(&x, &weight, &inv, &dy, dx, dw);
        });
        add("LayerNorm", &mut || {
            layer_norm::forward(&x, &weight, &weight, 1e-5, &mut y, &mut inv, &mut z[..rows])
        });
        add("LayerNorm backward", &mut || {
            let saved = layer_norm::Saved {
                x: &x,
                weight: &weight,
                mean: &inv,
                inv_std: &inv,
            };
            let (dw, db) = (&mut dweight[..], &mut z[..dim]);
            let (dw, db) = (Some((dw, Write::Assign)), Some((db, Write::Assign)));
            layer_norm::backward(saved, &dy, Some(&mut y), dw, db);
        });
        add("gradient of a bias", &mut || {
            reduce::sum_rows(&x, &mut dweight, Write::Assign)
        });
        add("bias", &mut || elementwise::broadcast_row(&weight, &mut y));
        let kv = model.kv_heads * HEAD_DIM;
        add("gradient of a bias of keys", &mut || {
            reduce::sum_rows(&x[..rows * kv], &mut dweight[..kv], Write::Assign);
        });
        for heads in [model.heads, model.kv_heads] {
            let dims = [model.batch, model.tokens, heads, HEAD_DIM];
            let len = dims.iter().product();
            let (table, positions) = (vec![0f32; model.tokens * HEAD_DIM / 2], vec![0; rows]);
            add(&format!("RoPE of {heads} heads"), &mut || {
                let x = Heads::dense(&x[..len], dims);
                rope::rotate(x, dims, &table, &table, &positions, false, &mut y[..len]);
            });
        }
        let rng = RngKey { key: 1, stream: 2 };
        add("dropout", &mut || random::dropout(&x, 0.1, rng, &mut y));
        add("add", &mut || elementwise::add(&x, &dy, &mut y));
        add("SwiGLU", &mut || swiglu::forward(&x, &dy, &mut y));
        add("SwiGLU backward", &mut || {
            swiglu::backward(&x, &dy, &dy, &mut y, &mut z)
        });
        for form in [Gelu::Erf, Gelu::Tanh] {
            add("GELU", &mut || gelu::forward(form, &x, &mut y));
            add("GELU backward", &mut || {
                gelu::backward(form, &x, &dy, &mut y)
            });
        }
        // A weight of keys is the smallest that is not done by one thread.
        for len in [
            dim * kv,
            dim * dim,
            dim * model.intermediate,
            dim * model.vocab,
        ] {
            let [mut p, mut m, mut v, mut w] = [(); 4].map(|()| vec![0f32; len]);
            let rule = UpdateRule::Adam(AdamParams {
                lr: 1e-3,
                beta1: 0.9,
                beta2: 0.99,
                eps: 1e-8,
                weight_decay: 0.1,
                decoupled: true,
                amsgrad: false,
                step: 1,
            });
            let of = |what: &str| format!("{what} of {len}");
            for sums in [false, true] {
                add(&of(&format!("AdamW, sums {sums},")), &mut || {
                    let states = &mut [State::F32(&mut m), State::F32(&mut v)];
                    optimizer::step(&rule, &mut p, &w, 1.0, states, sums);
                });
            }
            add(&of("sum of squares"), &mut || {
                reduce::sum_squares(&w);
            });
            add(&of("fill"), &mut || elementwise::fill(&mut p, 0.0));
            add(&of("scale"), &mut || elementwise::scale(&mut p, 0.5));
            add(&of("axpy"), &mut || elementwise::axpy(1.0, &m, &mut p));
            add(&of("combine"), &mut || {
                optimizer::combine(&mut p, 0.5, Some((0.5, &m)), false)
            });
            add(&of("clip"), &mut || optimizer::clip_value(&mut p, 0.5, 1.0));
            add(&of("cast"), &mut || elementwise::cast(&m, &mut p));
            add(&of("normal numbers"), &mut || {
                random::fill_normal(&mut w, 0.0, 1.0, rng)
            });
        }
    }
    report.check();
}

/// How often all elements of the head's gradient are gone through besides the products: not at all.
#[test]
fn the_gradient_of_the_head_is_neither_filled_nor_scaled_by_one() {
    let (rows, dim, vocab) = (64, 96, 4000);
    let (hidden, weight, labels) = (
        vec![0f32; rows * dim],
        vec![0f32; vocab * dim],
        vec![0; rows],
    );
    let params = CrossEntropyParams {
        ignore_index: -100,
        label_smoothing: 0.0,
        z_loss: 0.0,
    };
    let mut dweight = vec![f32::NAN; vocab * dim];
    let calls = calls_on(1, || {
        let dw = Some(&mut dweight[..]);
        let operands = loss_operands(&params, &hidden, &weight, &labels, dim);
        cross_entropy::linear(&operands, 1.0, None::<&mut [f32]>, dw);
        elementwise::scale(&mut dweight, 1.0);
    });
    assert!(!calls.is_empty());
    assert!(
        calls.iter().all(|call| call.work != vocab * dim),
        "{calls:?}"
    );
    let scaled = calls_on(1, || elementwise::scale(&mut dweight, 0.5));
    assert_eq!(scaled[0].work, vocab * dim);
}
