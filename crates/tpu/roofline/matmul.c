#include "../kernels/matmul.c"

#include "dry_run.h"

// Logits of a chunk: see `crates/tpu/src/ops/cross_entropy.rs`.
enum { LOSS_ROWS = 1024 };

static void product_of(int times, int m, int n, int k, bool a_trans, data_type_t b_dtype, bool b_trans, data_type_t out_dtype, bool accumulate) {
  RUN(times, matmul, matmul_t, .a = SOMEWHERE, .b = SOMEWHERE, .out = SOMEWHERE, .batch = {1, 1, 1, 1}, .m = m, .n = n, .k = k,
      .a_ld = a_trans ? m : k, .b_ld = b_trans ? k : n, .a_trans = a_trans, .b_trans = b_trans, .a_dtype = DT_BFP16, .b_dtype = b_dtype,
      .dtype = DT_BFP16, .out_dtype = out_dtype, .accumulate = accumulate);
}

// y = x W^T, dx = dy W, dW = dy^T x.
static void linear(int times, int rows, int in, int out, data_type_t y_dtype, bool accumulate) {
  product_of(times, rows, out, in, false, DT_FP32, true, y_dtype, false);
  product_of(times, rows, in, out, false, DT_FP32, false, DT_BFP16, false);
  product_of(times, out, in, rows, true, DT_BFP16, false, DT_FP32, accumulate);
}

void step_of_matmul(void) {
  linear(2 * LAYERS, TOKENS, DIM, DIM, DT_BFP16, false);                      // q, o
  linear(2 * LAYERS, TOKENS, DIM, KV_HEADS * HEAD_DIM, DT_BFP16, false);      // k, v
  linear(2 * LAYERS, TOKENS, DIM, HIDDEN, DT_BFP16, false);                   // gate, up
  linear(LAYERS, TOKENS, HIDDEN, DIM, DT_BFP16, false);                       // down
  linear(TOKENS / LOSS_ROWS, LOSS_ROWS, DIM, VOCAB, DT_FP32, true);           // head, in chunks
}
