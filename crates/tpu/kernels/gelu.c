// GELU and its gradient, element by element on contiguous operands of one dtype: y = x P, dx = dy P'(x).
//
//   erf:   P = P(N < x), the normal distribution,        (x P)' = P + x e^(-x^2/2) / sqrt(2 pi)
//   tanh:  P = 1 / (1 + exp(-2u)), 2u = 2 sqrt(2/pi) (x + 0.044715 x^3),  (x P)' = P + x P (1 - P) (2u)'
//
// In f32, rounded once. The normal distribution is made of the exponential that its density needs, as by the CPU's kernel
// (crates/cpu/src/kernels/gelu.rs, which tells where the polynomial is from). Limits: none.
// Source: Hendrycks and Gimpel 2016, arXiv:1606.08415.
#include "functions.h"

// In the order of the host's enum.
enum { ERF, TANH };

typedef struct {
  launch_t launch;
  uint64_t x;
  uint64_t y;
  uint64_t n;
  uint32_t form;
  uint32_t dtype;
} gelu_t;

typedef struct {
  launch_t launch;
  uint64_t x;
  uint64_t dy;
  uint64_t dx;
  uint64_t n;
  uint32_t form;
  uint32_t dtype;
} gelu_backward_t;

// Beyond this e^(-x^2/2) is 0 in f32.
#define FAR 14.f
// The engine's exponentials of these are finite and not 0 on either chip.
#define LARGE 87.f
#define TWICE 1.5957691216f  // 2 sqrt(2/pi)
#define CUBIC 0.044715f
#define DENSITY_AT_0 0.3989422804f

static void clamp_tile(int y, int x, float bound, const dim4 *shape) {
  tpu_bdc_min_C(SLOT(y), SLOT(x), f32_scalar(bound), shape, NULL, NULL, DT_FP32);
  tpu_bdc_max_C(SLOT(y), SLOT(y), f32_scalar(-bound), shape, NULL, NULL, DT_FP32);
}

// below = P(N < x), e = e^(-x^2/2): the tail is e r p(q) with r = 1 / (|x| + k), q = (|x| - k) r. `work` is the first of four.
static void normal_tile(int below, int e, int x, int work, const dim4 *shape) {
  static const float p[] = {0.7502941f,    -0.58818823f,   0.35293952f,    -0.15152098f,  0.03749252f,
                            0.0012001114f, -0.0041691083f, 0.00050944276f, 0.0004433692f};
  const float k = 3.75f;
  const int q = work + 2, r = work + 3;
  tpu_bdc_abs(SLOT(q), SLOT(x), shape, NULL, NULL, DT_FP32);
  tpu_bdc_min_C(SLOT(q), SLOT(q), f32_scalar(FAR), shape, NULL, NULL, DT_FP32);
  mul_tiles(r, q, q, shape);
  mul_const(r, r, -0.5f, shape);
  exp_tile(e, r, work, shape);
  add_const(q, q, k, shape);
  tpu_bdc_fp32_C_div(SLOT(r), SLOT(q), 1.f, shape, NULL, NULL);
  mul_const(q, r, -2 * k, shape);
  add_const(q, q, 1.f, shape);
  mul_const(below, q, p[8], shape);
  for (int i = 7; i >= 0; i--) {
    add_const(below, below, p[i], shape);
    if (i > 0) mul_tiles(below, below, q, shape);
  }
  mul_tiles(r, r, below, shape);
  mul_tiles(r, r, e, shape);
  mul_const(q, r, -1.f, shape);
  add_const(q, q, 1.f, shape);
  const variable_t zero = {SCALAR, {.scalar = {.f32 = 0}}}, it = {TENSOR, {.addr = SLOT(x)}};
  const variable_t tail = {TENSOR, {.addr = SLOT(r)}}, rest = {TENSOR, {.addr = SLOT(q)}};
  tpu_bdc_greater_select(SLOT(below), &zero, &it, &tail, &rest, shape, DT_FP32, DT_FP32);
}

// below = 1 / (1 + exp(-2u)), not quite 0 however far below 0 x is; leaves exp(-2u) in work + 2. `work` is the first of three.
static void sigmoid_of_twice(int below, int x, int work, const dim4 *shape) {
  mul_tiles(below, x, x, shape);
  mul_const(below, below, TWICE * CUBIC, shape);
  add_const(below, below, TWICE, shape);
  mul_tiles(below, below, x, shape);
  clamp_tile(below, below, LARGE, shape);
  sigmoid_tile(below, below, work, shape);
}

// y = x < -FAR ? 0 : y, for what was multiplied by almost 0; NaN is not less than anything.
static void none_below(int y, int x, const dim4 *shape) {
  const variable_t bound = {SCALAR, {.scalar = {.f32 = -FAR}}}, it = {TENSOR, {.addr = SLOT(x)}};
  const variable_t zero = {SCALAR, {.scalar = {.f32 = 0}}}, otherwise = {TENSOR, {.addr = SLOT(y)}};
  tpu_bdc_greater_select(SLOT(y), &bound, &it, &zero, &otherwise, shape, DT_FP32, DT_FP32);
}

static void load_table(void) { tpu_bdc_load_fp_exp_coeff(TABLE(EXP_TABLE), DT_FP32); }

KERNEL(gelu, gelu_t) {
  enum { X, Y, STREAMS };
  load_table();
  int next = 0;
  stream_t s[STREAMS] = {reads(&next, a->x, a->dtype), writes(&next, a->y, a->dtype)};
  const int e = next, work = next + 1;
  flow_t f = flow_of(s, STREAMS, core_span(a->n, LANES));
  while (flow_next(&f)) {
    const int x = s[X].slot, y = s[Y].slot;
    if (a->form == ERF) {
      normal_tile(y, e, x, work, &f.shape);
    } else {
      sigmoid_of_twice(y, x, work, &f.shape);
    }
    mul_tiles(y, y, x, &f.shape);
    none_below(y, x, &f.shape);
    flow_done(&f);
  }
}

// y = P + x e^(-x^2/2) / sqrt(2 pi).
static void erf_slope(int y, int x, int t, int work, const dim4 *shape) {
  normal_tile(y, t, x, work, shape);
  mul_const(t, t, DENSITY_AT_0, shape);
  // Not infinite, as the exponential is 0 there.
  clamp_tile(work, x, FAR, shape);
  mul_tiles(t, t, work, shape);
  add_tiles(y, y, t, shape);
}

// y = P + x (2u)' P (1 - P), 1 - P = exp(-2u) P.
static void tanh_slope(int y, int x, int t, int work, const dim4 *shape) {
  const int inner = work + 3;
  clamp_tile(t, x, FAR, shape);
  sigmoid_of_twice(y, t, work, shape);
  mul_tiles(inner, t, t, shape);
  mul_const(inner, inner, 3 * TWICE * CUBIC, shape);
  add_const(inner, inner, TWICE, shape);
  mul_tiles(inner, inner, t, shape);
  mul_tiles(t, y, work + 2, shape);
  mul_tiles(inner, inner, t, shape);
  mul_tiles(inner, inner, y, shape);
  add_tiles(y, y, inner, shape);
}

KERNEL(gelu_backward, gelu_backward_t) {
  enum { X, DY, DX, STREAMS };
  load_table();
  int next = 0;
  stream_t s[STREAMS] = {reads(&next, a->x, a->dtype), reads(&next, a->dy, a->dtype), writes(&next, a->dx, a->dtype)};
  const int t = next, work = next + 1;
  flow_t f = flow_of(s, STREAMS, core_span(a->n, LANES));
  while (flow_next(&f)) {
    const int x = s[X].slot, dx = s[DX].slot;
    if (a->form == ERF) {
      erf_slope(dx, x, t, work, &f.shape);
    } else {
      tanh_slope(dx, x, t, work, &f.shape);
    }
    // Which the bounds have taken for a number.
    nan_of(t, x, &f.shape);
    add_tiles(dx, dx, t, &f.shape);
    mul_tiles(dx, dx, s[DY].slot, &f.shape);
    flow_done(&f);
  }
}
