// One optimizer step in place: param p f32, gradient g f32 times a scalar of the device, up to three states, f32 or bf16.
//
// g' = g scale + l2 p, then by rule (the formulas are those of the CPU's `UpdateRule`):
//   DESCEND   p = keep p - c0 g'
//   ADAM      m = c0 m + c1 g';  v = c2 v + c3 g'^2;  p = keep p - c4 m / (sqrt(v) c5 + c6)
//   AMSGRAD   the same with the largest v so far in the step
//   MOMENTUM  m = c0 m + c1 g';  p = p - c2 (c3 g' + c4 m)
//   LION      d = c0 m + c1 g';  p = keep p - c2 sign(d);  m = c3 m + c4 g'
//   ADAGRAD   s = s + g'^2;      p = p - c0 g' / (sqrt(s) + c1)
//   RMS_PROP  s = c0 s + c1 g'^2;  p = p - c2 g' / (sqrt(s) + c3)
// Arithmetic is f32; a bf16 state is rounded to nearest even. Root and quotient are good to a few units in the last place.
#include "functions.h"

#define MAX_STATES 3
#define COEFFICIENTS 7

typedef struct {
  launch_t launch;
  uint64_t param;
  uint64_t grad;
  uint64_t grad_scale;  // f32 [1]
  uint64_t state[MAX_STATES];
  uint64_t n;
  uint32_t state_dtype[MAX_STATES];
  uint32_t num_states;
  uint32_t rule;
  float l2;
  float keep;
  float c[COEFFICIENTS];
} optimizer_step_t;

// In the order of the host's.
enum { DESCEND, ADAM, AMSGRAD, MOMENTUM, LION, ADAGRAD, RMS_PROP };
// Slots. A, B and C are the states.
enum { P, G, A, B, C, T, U, RAW, SCALE };

// y = a y + b x; T is used.
static void blend(int y, float a, float b, int x, const dim4 *shape) {
  mul_const(y, y, a, shape);
  mul_const(T, x, b, shape);
  add_tiles(y, y, T, shape);
}

// y = a y + b g'^2.
static void blend_square(int y, float a, float b, const dim4 *shape) {
  mul_tiles(U, G, G, shape);
  blend(y, a, b, U, shape);
}

// p = keep p - rate x / (sqrt(v) factor + eps).
static void descend_by_root(float keep, float rate, int x, int v, float factor, float eps, const dim4 *shape) {
  tpu_bdc_fp_sqrt(SLOT(U), SLOT(v), shape, DT_FP32);
  mul_const(U, U, factor, shape);
  add_const(U, U, eps, shape);
  mul_const(T, x, rate, shape);
  div_tiles(T, T, U, shape);
  mul_const(P, P, keep, shape);
  sub_tiles(P, P, T, shape);
}

static void update(const optimizer_step_t *a, const dim4 *shape) {
  const float *c = a->c;
  switch (a->rule) {
    case DESCEND:
      blend(P, a->keep, -c[0], G, shape);
      break;
    case ADAM: case AMSGRAD: {
      blend(A, c[0], c[1], G, shape);
      blend_square(B, c[2], c[3], shape);
      const bool largest = a->rule == AMSGRAD;
      if (largest) tpu_bdc_max(SLOT(C), SLOT(C), SLOT(B), shape, NULL, NULL, NULL, DT_FP32);
      descend_by_root(a->keep, c[4], A, largest ? C : B, c[5], c[6], shape);
      break;
    }
    case MOMENTUM:
      blend(A, c[0], c[1], G, shape);
      mul_const(U, A, c[4], shape);
      mul_const(T, G, c[3], shape);
      add_tiles(U, U, T, shape);
      blend(P, 1.f, -c[2], U, shape);
      break;
    case LION:
      mul_const(U, A, c[0], shape);
      mul_const(T, G, c[1], shape);
      add_tiles(U, U, T, shape);
      nan_of(T, U, shape);
      add_tiles(P, P, T, shape);
      sign_tile(U, U, T, shape);
      blend(P, a->keep, -c[2], U, shape);
      blend(A, c[3], c[4], G, shape);
      break;
    case ADAGRAD:
      mul_tiles(U, G, G, shape);
      add_tiles(A, A, U, shape);
      descend_by_root(1.f, c[0], G, A, 1.f, c[1], shape);
      break;
    case RMS_PROP:
      blend_square(A, c[0], c[1], shape);
      descend_by_root(1.f, c[2], G, A, 1.f, c[3], shape);
      break;
    default: break;
  }
}

KERNEL(optimizer_step, optimizer_step_t) {
  load_scalar(SLOT(SCALE), SLOT(RAW), a->grad_scale, DT_FP32);
  span_t span = core_span(a->n, LANES);
  dim4 shape;
  long long at;
  while (next_tile(&span, &shape, &at)) {
    load_tile(P, RAW, a->param, at, &shape, DT_FP32);
    load_tile(G, RAW, a->grad, at, &shape, DT_FP32);
    for (uint32_t i = 0; i < a->num_states; i++) load_tile(A + i, RAW, a->state[i], at, &shape, a->state_dtype[i]);
    tpu_bdc_fp_mul(SLOT(G), SLOT(G), SLOT(SCALE), &shape, NULL, NULL, &NO_STRIDE, DT_FP32);
    if (a->l2 != 0) blend(G, 1.f, a->l2, P, &shape);
    update(a, &shape);
    store_tile(a->param, at, P, RAW, &shape, DT_FP32);
    for (uint32_t i = 0; i < a->num_states; i++) store_tile(a->state[i], at, A + i, RAW, &shape, a->state_dtype[i]);
  }
}
