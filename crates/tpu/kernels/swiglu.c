// The gate of a transformer's feed-forward block and its gradients, element by element on contiguous operands of one dtype.
//
//   s = 1 / (1 + exp(-gate)),  y = gate s up
//   dup = dy gate s,           dgate = dy up (s + gate s (1 - s))
//
// In f32, rounded once; the sigmoid is good to 3e-6 where exp(-gate) is large. Limits: none.
// Source: Shazeer 2020, arXiv:2002.05202.
#include "functions.h"

typedef struct {
  launch_t launch;
  uint64_t gate;
  uint64_t up;
  uint64_t y;
  uint64_t n;
  uint32_t dtype;
  uint32_t reserved;
} swiglu_t;

KERNEL(swiglu, swiglu_t) {
  enum { GATE, UP, Y, RAW, WORK };
  tpu_bdc_load_fp_exp_coeff(TABLE(EXP_TABLE), DT_FP32);
  span_t span = core_span(a->n, LANES);
  dim4 shape;
  long long at;
  while (next_tile(&span, &shape, &at)) {
    load_tile(GATE, RAW, a->gate, at, &shape, a->dtype);
    load_tile(UP, RAW, a->up, at, &shape, a->dtype);
    sigmoid_tile(Y, GATE, WORK, &shape);
    mul_tiles(Y, Y, GATE, &shape);
    mul_tiles(Y, Y, UP, &shape);
    store_tile(a->y, at, Y, RAW, &shape, a->dtype);
  }
}

typedef struct {
  launch_t launch;
  uint64_t gate;
  uint64_t up;
  uint64_t dy;
  uint64_t dgate;
  uint64_t dup;
  uint64_t n;
  uint32_t dtype;
  uint32_t reserved;
} swiglu_backward_t;

KERNEL(swiglu_backward, swiglu_backward_t) {
  enum { GATE, UP, DY, S, SILU, OUT, RAW, WORK };
  tpu_bdc_load_fp_exp_coeff(TABLE(EXP_TABLE), DT_FP32);
  span_t span = core_span(a->n, LANES);
  dim4 shape;
  long long at;
  while (next_tile(&span, &shape, &at)) {
    load_tile(GATE, RAW, a->gate, at, &shape, a->dtype);
    load_tile(UP, RAW, a->up, at, &shape, a->dtype);
    load_tile(DY, RAW, a->dy, at, &shape, a->dtype);
    sigmoid_tile(S, GATE, WORK, &shape);
    mul_tiles(SILU, GATE, S, &shape);
    mul_tiles(OUT, DY, SILU, &shape);
    store_tile(a->dup, at, OUT, RAW, &shape, a->dtype);
    // 1 - s = exp(-gate) s, which keeps its digits where s is nearly 1. An infinite exponential belongs to an s of 0.
    tpu_bdc_min_C(SLOT(OUT), SLOT(WORK + 2), f32_scalar(F32_MAX), &shape, NULL, NULL, DT_FP32);
    mul_tiles(OUT, OUT, S, &shape);
    mul_tiles(OUT, OUT, SILU, &shape);
    add_tiles(OUT, OUT, S, &shape);
    mul_tiles(OUT, OUT, UP, &shape);
    mul_tiles(OUT, OUT, DY, &shape);
    store_tile(a->dgate, at, OUT, RAW, &shape, a->dtype);
  }
}
