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
  enum { GATE, UP, Y, STREAMS };
  tpu_bdc_load_fp_exp_coeff(TABLE(EXP_TABLE), DT_FP32);
  int work = 0;
  stream_t s[STREAMS] = {reads(&work, a->gate, a->dtype), reads(&work, a->up, a->dtype), writes(&work, a->y, a->dtype)};
  flow_t f = flow_of(s, STREAMS, core_span(a->n, LANES));
  while (flow_next(&f)) {
    const int gate = s[GATE].slot, y = s[Y].slot;
    sigmoid_tile(y, gate, work, &f.shape);
    mul_tiles(y, y, gate, &f.shape);
    mul_tiles(y, y, s[UP].slot, &f.shape);
    flow_done(&f);
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
  enum { GATE, UP, DY, DUP, DGATE, STREAMS };
  tpu_bdc_load_fp_exp_coeff(TABLE(EXP_TABLE), DT_FP32);
  int next = 0;
  stream_t s[STREAMS] = {reads(&next, a->gate, a->dtype), reads(&next, a->up, a->dtype), reads(&next, a->dy, a->dtype),
                         writes(&next, a->dup, a->dtype), writes(&next, a->dgate, a->dtype)};
  const int sigmoid = next, silu = next + 1, work = next + 2;
  flow_t f = flow_of(s, STREAMS, core_span(a->n, LANES));
  while (flow_next(&f)) {
    const int dy = s[DY].slot, dgate = s[DGATE].slot;
    const dim4 *shape = &f.shape;
    sigmoid_tile(sigmoid, s[GATE].slot, work, shape);
    mul_tiles(silu, s[GATE].slot, sigmoid, shape);
    mul_tiles(s[DUP].slot, dy, silu, shape);
    // 1 - s = exp(-gate) s, which keeps its digits where s is nearly 1. An infinite exponential belongs to an s of 0.
    tpu_bdc_min_C(SLOT(dgate), SLOT(work + 2), f32_scalar(F32_MAX), shape, NULL, NULL, DT_FP32);
    mul_tiles(dgate, dgate, sigmoid, shape);
    mul_tiles(dgate, dgate, silu, shape);
    add_tiles(dgate, dgate, sigmoid, shape);
    mul_tiles(dgate, dgate, s[UP].slot, shape);
    mul_tiles(dgate, dgate, dy, shape);
    flow_done(&f);
  }
}
