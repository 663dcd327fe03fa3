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
// Slots of the tile at hand, and two free ones.
typedef struct { int param, grad, state[MAX_STATES], t, u; } slots_t;

// y = a y + b x; t is used.
static void blend(const slots_t *s, int y, float a, float b, int x, const dim4 *shape) {
  mul_const(y, y, a, shape);
  mul_const(s->t, x, b, shape);
  add_tiles(y, y, s->t, shape);
}

// y = a y + b g'^2.
static void blend_square(const slots_t *s, int y, float a, float b, const dim4 *shape) {
  mul_tiles(s->u, s->grad, s->grad, shape);
  blend(s, y, a, b, s->u, shape);
}

// p = keep p - rate x / (sqrt(v) factor + eps).
static void descend_by_root(const slots_t *s, float keep, float rate, int x, int v, float factor, float eps, const dim4 *shape) {
  tpu_bdc_fp_sqrt(SLOT(s->u), SLOT(v), shape, DT_FP32);
  mul_const(s->u, s->u, factor, shape);
  add_const(s->u, s->u, eps, shape);
  mul_const(s->t, x, rate, shape);
  div_tiles(s->t, s->t, s->u, shape);
  mul_const(s->param, s->param, keep, shape);
  sub_tiles(s->param, s->param, s->t, shape);
}

static void update(const optimizer_step_t *a, const slots_t *s, const dim4 *shape) {
  const float *c = a->c;
  switch (a->rule) {
    case DESCEND:
      blend(s, s->param, a->keep, -c[0], s->grad, shape);
      break;
    case ADAM: case AMSGRAD: {
      blend(s, s->state[0], c[0], c[1], s->grad, shape);
      blend_square(s, s->state[1], c[2], c[3], shape);
      const bool largest = a->rule == AMSGRAD;
      if (largest) tpu_bdc_max(SLOT(s->state[2]), SLOT(s->state[2]), SLOT(s->state[1]), shape, NULL, NULL, NULL, DT_FP32);
      descend_by_root(s, a->keep, c[4], s->state[0], largest ? s->state[2] : s->state[1], c[5], c[6], shape);
      break;
    }
    case MOMENTUM:
      blend(s, s->state[0], c[0], c[1], s->grad, shape);
      mul_const(s->u, s->state[0], c[4], shape);
      mul_const(s->t, s->grad, c[3], shape);
      add_tiles(s->u, s->u, s->t, shape);
      blend(s, s->param, 1.f, -c[2], s->u, shape);
      break;
    case LION:
      mul_const(s->u, s->state[0], c[0], shape);
      mul_const(s->t, s->grad, c[1], shape);
      add_tiles(s->u, s->u, s->t, shape);
      nan_of(s->t, s->u, shape);
      add_tiles(s->param, s->param, s->t, shape);
      sign_tile(s->u, s->u, s->t, shape);
      blend(s, s->param, a->keep, -c[2], s->u, shape);
      blend(s, s->state[0], c[3], c[4], s->grad, shape);
      break;
    case ADAGRAD:
      mul_tiles(s->u, s->grad, s->grad, shape);
      add_tiles(s->state[0], s->state[0], s->u, shape);
      descend_by_root(s, 1.f, c[0], s->grad, s->state[0], 1.f, c[1], shape);
      break;
    case RMS_PROP:
      blend_square(s, s->state[0], c[0], c[1], shape);
      descend_by_root(s, 1.f, c[2], s->grad, s->state[0], 1.f, c[3], shape);
      break;
    default: break;
  }
}

KERNEL(optimizer_step, optimizer_step_t) {
  enum { PARAM, GRAD, STATE, MOST = STATE + MAX_STATES };
  int next = 0;
  stream_t streams[MOST] = {updates(&next, a->param, DT_FP32), reads(&next, a->grad, DT_FP32)};
  for (uint32_t i = 0; i < a->num_states; i++) streams[STATE + i] = updates(&next, a->state[i], a->state_dtype[i]);
  slots_t s = {.t = next, .u = next + 1};
  const int scale = next + 2;
  load_scalar(SLOT(scale), SLOT(s.t), a->grad_scale, DT_FP32);
  flow_t f = flow_of(streams, STATE + a->num_states, core_span(a->n, LANES));
  while (flow_next(&f)) {
    s.param = streams[PARAM].slot;
    s.grad = streams[GRAD].slot;
    for (uint32_t i = 0; i < a->num_states; i++) s.state[i] = streams[STATE + i].slot;
    tpu_bdc_fp_mul(SLOT(s.grad), SLOT(s.grad), SLOT(scale), &f.shape, NULL, NULL, &NO_STRIDE, DT_FP32);
    if (a->l2 != 0) blend(&s, s.grad, 1.f, a->l2, s.param, &f.shape);
    update(a, &s, &f.shape);
    flow_done(&f);
  }
}
