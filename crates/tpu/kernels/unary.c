// y = f(x), element by element, x and y contiguous, of any dtype: integers become f32 and results are converted back.
//
// Functions are computed in f32 and rounded once. sqrt of infinity is NaN here. Integers of one kind are converted to those of another as integers.
// Limits: none on sizes; integers beyond 2^24 lose digits where one side is a float.
// A BM1684X takes what is below 1.2e-38 to be 0, and its log is off above 2^127.
#include "functions.h"

// Of the largest f32.
#define LOG_OF_MAX 88.722839f

typedef struct {
  launch_t launch;
  uint64_t x;
  uint64_t y;
  uint64_t n;
  uint32_t op;
  uint32_t x_dtype;
  uint32_t y_dtype;
  float p0;
  float p1;
  uint32_t reserved;
} unary_t;

// In the order of the host's enum.
enum {
  CAST, AFFINE, POWF, ELU, EXP, LOG, SIN, COS, TANH, ABS, NEG, RECIP, SQR, SQRT, RELU, SILU, GELU, GELU_ERF, ERF, SIGN, FLOOR, CEIL, ROUND,
  ROUND_TO_BF16,
};

static void load_tables(int op) {
  switch (op) {
    case POWF: tpu_bdc_load_fp_log_coeff(TABLE(LOG_TABLE), DT_FP32);  // fallthrough
    case EXP: case ELU: case SILU: tpu_bdc_load_fp_exp_coeff(TABLE(EXP_TABLE), DT_FP32); break;
    case LOG: tpu_bdc_load_fp_log_coeff(TABLE(LOG_TABLE), DT_FP32); break;
    case SIN: tpu_bdc_load_fp_sin_coeff(TABLE(SIN_TABLE), DT_FP32); break;
    case COS: tpu_bdc_load_fp_cos_coeff(TABLE(COS_TABLE), DT_FP32); break;
    case TANH: case GELU: tpu_bdc_load_fp_exp_coeff(TABLE(EXP_TABLE), DT_FP32); break;
    case ERF: case GELU_ERF:
      tpu_bdc_load_fp_exp_coeff(TABLE(EXP_TABLE), DT_FP32);
      tpu_bdc_load_fp_erf_coeff(TABLE(ERF_TABLE), DT_FP32);
      break;
    default: break;
  }
}

// x^n for a whole n from 1, which exp and log could not do for a negative x; y is not x.
static void whole_power(int y, int x, int n, const dim4 *shape) {
  tpu_bdc_cpy(SLOT(y), SLOT(x), shape, NULL, NULL, DT_FP32);
  for (int i = 1; i < n; i++) mul_tiles(y, y, x, shape);
}

// y = x > bound ? y : otherwise; NaN is not greater than anything.
static void keep_above(int y, float bound, int x, variable_t otherwise, const dim4 *shape) {
  const variable_t least = {SCALAR, {.scalar = {.f32 = bound}}};
  const variable_t it = {TENSOR, {.addr = SLOT(x)}}, then = {TENSOR, {.addr = SLOT(y)}};
  tpu_bdc_greater_select(SLOT(y), &it, &least, &then, &otherwise, shape, DT_FP32, DT_FP32);
}

// exp, with NaN for NaN; y is not x.
static void exp_or_nan(int y, int x, int work, const dim4 *shape) {
  exp_tile(y, x, work, shape);
#ifdef BM1684X  // whose exp is some large number where it should be infinity
  tpu_bdc_greater_C(SLOT(work), SLOT(x), f32_scalar(LOG_OF_MAX), f32_scalar(INFINITY), shape, NULL, NULL, DT_FP32, DT_FP32);
  tpu_bdc_max(SLOT(y), SLOT(y), SLOT(work), shape, NULL, NULL, NULL, DT_FP32);
#endif
  nan_of(work, x, shape);
  add_tiles(y, y, work, shape);
}

// log, with NaN for what is negative. Adding 0 makes +0 of -0, which the engine's log does not know.
static void log_or_nan(int y, int x, int work, const dim4 *shape) {
  add_const(work + 1, x, 0, shape);
  log_tile(y, work + 1, work, shape);
  keep_above(y, -1.1754944e-38f, x, (variable_t){SCALAR, {.scalar = {.u32 = 0x7fc00000}}}, shape);
}

// 1 / x.
static void reciprocal(int y, int x, int work, const dim4 *shape) {
#ifdef BM1684X  // whose 1 / infinity is infinity
  const variable_t size = {TENSOR, {.addr = SLOT(work)}}, infinity = {SCALAR, {.scalar = {.f32 = INFINITY}}};
  const variable_t zero = {SCALAR, {.scalar = {.f32 = 0}}}, quotient = {TENSOR, {.addr = SLOT(y)}};
  tpu_bdc_abs(SLOT(work), SLOT(x), shape, NULL, NULL, DT_FP32);
  tpu_bdc_fp32_C_div(SLOT(y), SLOT(x), 1.f, shape, NULL, NULL);
  tpu_bdc_equal_select(SLOT(y), &size, &infinity, &zero, &quotient, shape, DT_FP32, DT_FP32);
#else
  (void)work;
  tpu_bdc_fp32_C_div(SLOT(y), SLOT(x), 1.f, shape, NULL, NULL);
#endif
}

static void power(int y, int x, int work, float exponent, const dim4 *shape) {
  const float size = exponent < 0 ? -exponent : exponent;
  if (size == 0) {
    tpu_bdc_set_C(SLOT(y), f32_scalar(1.f), shape, NULL, DT_FP32);
  } else if (size <= 16 && size == (float)(int)size) {
    whole_power(y, x, (int)size, shape);
    if (exponent < 0) reciprocal(y, y, work, shape);
  } else {
    log_or_nan(work + 2, x, work, shape);
    mul_const(work + 2, work + 2, exponent, shape);
    exp_or_nan(y, work + 2, work, shape);
  }
}

// Through exp away from 0, where tanh(|x|) = 1 - 2e / (1 + e) with e = exp(-2|x|), and as a series near it, so that small
// results are as exact as large ones. The engine's own is off by 1e-7 everywhere, at 0 too.
static void tanh_tile(int y, int x, int work, const dim4 *shape) {
  const int e = work + 2, t = work + 3, near = work + 4;
  tpu_bdc_abs(SLOT(t), SLOT(x), shape, NULL, NULL, DT_FP32);
  mul_const(t, t, -2.f, shape);
  exp_tile(e, t, work, shape);
  // The engine's 1 / 1 is not 1, so what is taken from 1 is divided.
  add_const(t, e, 1.f, shape);
  div_tiles(e, e, t, shape);
  mul_const(e, e, -2.f, shape);
  add_const(e, e, 1.f, shape);
  // The sign of x.
  mul_const(t, e, -1.f, shape);
  const variable_t zero = {SCALAR, {.scalar = {.f32 = 0}}}, it = {TENSOR, {.addr = SLOT(x)}};
  const variable_t minus = {TENSOR, {.addr = SLOT(t)}}, plus = {TENSOR, {.addr = SLOT(e)}};
  tpu_bdc_greater_select(SLOT(work), &zero, &it, &minus, &plus, shape, DT_FP32, DT_FP32);
  // x (1 - x^2/3 + 2 x^4/15 - 17 x^6/315 + 62 x^8/2835), to 1e-7 below 0.32. NaN counts as near.
  mul_tiles(t, x, x, shape);
  mul_const(near, t, 62.f / 2835, shape);
  add_const(near, near, -17.f / 315, shape);
  mul_tiles(near, near, t, shape);
  add_const(near, near, 2.f / 15, shape);
  mul_tiles(near, near, t, shape);
  add_const(near, near, -1.f / 3, shape);
  mul_tiles(near, near, t, shape);
  add_const(near, near, 1.f, shape);
  mul_tiles(near, near, x, shape);
  const variable_t square = {TENSOR, {.addr = SLOT(t)}}, bound = {SCALAR, {.scalar = {.f32 = 0.1f}}};
  const variable_t series = {TENSOR, {.addr = SLOT(near)}}, far = {TENSOR, {.addr = SLOT(work)}};
  tpu_bdc_greater_select(SLOT(y), &square, &bound, &far, &series, shape, DT_FP32, DT_FP32);
}

static void erf_tile(int y, int x, int work, const dim4 *shape) {
  tpu_bdc_fp_erf(SLOT(y), SLOT(x), SLOT(work), SLOT(work + 1), SLOT(work + 2), TABLE(EXP_TABLE), TABLE(ERF_TABLE), shape, DT_FP32);
}

// c * x * (1 + t), for the two forms of GELU.
static void gate(int y, int t, int x, const dim4 *shape) {
  add_const(t, t, 1.f, shape);
  mul_tiles(y, t, x, shape);
  mul_const(y, y, 0.5f, shape);
}

static void apply(const unary_t *a, int y, int x, int work, const dim4 *shape) {
  switch (a->op) {
    case AFFINE:
      mul_const(y, x, a->p0, shape);
      if (a->p1 != 0) add_const(y, y, a->p1, shape);
      break;
    case POWF: power(y, x, work, a->p0, shape); break;
    case ELU: {
      // x > 0 ? x : p0 (exp(x) - 1), the exponential of what is not above 0.
      tpu_bdc_min_C(SLOT(work + 2), SLOT(x), f32_scalar(0), shape, NULL, NULL, DT_FP32);
      exp_tile(y, work + 2, work, shape);
      add_const(y, y, -1.f, shape);
      mul_const(y, y, a->p0, shape);
      tpu_bdc_max_C(SLOT(work + 2), SLOT(x), f32_scalar(0), shape, NULL, NULL, DT_FP32);
      add_tiles(y, y, work + 2, shape);
      nan_of(work, x, shape);  // which is neither
      add_tiles(y, y, work, shape);
      break;
    }
    case EXP: exp_or_nan(y, x, work, shape); break;
    case LOG: log_or_nan(y, x, work, shape); break;
    case SIN: tpu_bdc_fp_sin(SLOT(y), SLOT(x), SLOT(work), TABLE(SIN_TABLE), shape, DT_FP32); break;
    case COS: tpu_bdc_fp_cos(SLOT(y), SLOT(x), SLOT(work), TABLE(COS_TABLE), shape, DT_FP32); break;
    case TANH: tanh_tile(y, x, work, shape); break;
    case ABS: tpu_bdc_abs(SLOT(y), SLOT(x), shape, NULL, NULL, DT_FP32); break;
    case NEG: mul_const(y, x, -1.f, shape); break;
    case RECIP: reciprocal(y, x, work, shape); break;
    case SQR: mul_tiles(y, x, x, shape); break;
    case SQRT: tpu_bdc_fp_sqrt(SLOT(y), SLOT(x), shape, DT_FP32); break;
    case RELU: tpu_bdc_max_C(SLOT(y), SLOT(x), f32_scalar(0), shape, NULL, NULL, DT_FP32); break;
    case SILU:
      sigmoid_tile(y, x, work, shape);
      mul_tiles(y, y, x, shape);
      break;
    case GELU: {
      // tanh of sqrt(2/pi) (x + 0.044715 x^3).
      const int t = work + 5;
      mul_tiles(y, x, x, shape);
      mul_const(y, y, 0.044715f, shape);
      add_const(y, y, 1.f, shape);
      mul_tiles(y, y, x, shape);
      mul_const(y, y, 0.7978845608f, shape);
      tanh_tile(t, y, work, shape);
      gate(y, t, x, shape);
      break;
    }
    case GELU_ERF: {
      const int t = work + 5;
      mul_const(y, x, 0.7071067812f, shape);
      erf_tile(t, y, work, shape);
      gate(y, t, x, shape);
      break;
    }
    case ERF: erf_tile(y, x, work, shape); break;
    case SIGN: sign_tile(y, x, work, shape); break;
    case FLOOR: tpu_bdc_fp_floor(SLOT(y), SLOT(x), shape, NULL, NULL, DT_FP32); break;
    case CEIL: tpu_bdc_fp_ceil(SLOT(y), SLOT(x), shape, NULL, NULL, DT_FP32); break;
    case ROUND: tpu_bdc_fp_round(SLOT(y), SLOT(x), shape, NULL, NULL, DT_FP32, RM_HALF_AWAY_FROM_ZERO); break;
    case ROUND_TO_BF16:
      overflow_to_nan(SLOT(x), SLOT(work), shape, DT_BFP16);
      tpu_bdc_cast(SLOT(work), SLOT(x), shape, NULL, NULL, DT_BFP16, DT_FP32, RM_HALF_TO_EVEN);
      tpu_bdc_cast(SLOT(y), SLOT(work), shape, NULL, NULL, DT_FP32, DT_BFP16, RM_HALF_TO_EVEN);
      break;
    default: break;
  }
}

// From integers to integers, past f32.
static void cast_integers(const unary_t *a) {
  enum { X, Y };
  span_t span = core_span(a->n, LANES);
  dim4 shape;
  long long at;
  while (next_tile(&span, &shape, &at)) {
    tpu_gdma_cpy_S2L(SLOT(X), a->x + at * dtype_bytes(a->x_dtype), &shape, NULL, NULL, a->x_dtype);
    tpu_bdc_cast(SLOT(Y), SLOT(X), &shape, NULL, NULL, a->y_dtype, a->x_dtype, RM_TOWARDS_ZERO);
    tpu_gdma_cpy_L2S(a->y + at * dtype_bytes(a->y_dtype), SLOT(Y), &shape, NULL, NULL, a->y_dtype);
  }
}

KERNEL(unary, unary_t) {
  enum { X, Y, STREAMS };
  if (!is_float(a->x_dtype) && !is_float(a->y_dtype)) {
    cast_integers(a);
    return;
  }
  load_tables(a->op);
  int work = 0;
  stream_t s[STREAMS] = {reads(&work, a->x, a->x_dtype), writes(&work, a->y, a->y_dtype)};
  flow_t f = flow_of(s, STREAMS, core_span(a->n, LANES));
  while (flow_next(&f)) {
    if (a->op == CAST) {
      tpu_bdc_cpy(SLOT(s[Y].slot), SLOT(s[X].slot), &f.shape, NULL, NULL, DT_FP32);
    } else {
      apply(a, s[Y].slot, s[X].slot, work, &f.shape);
    }
    flow_done(&f);
  }
}
