// y = f(a, b), element by element, contiguous, in f32; an operand may be one element for all.
//
// A quotient by 0 is NaN. Comparisons give 1 or 0, usually stored as u8, and are false where an operand is NaN, but for !=.
// Limits: none on sizes; integers beyond 2^24 are compared and computed after rounding to f32.
#include "functions.h"

typedef struct {
  launch_t launch;
  uint64_t a;
  uint64_t b;
  uint64_t y;
  uint64_t n;
  uint32_t op;
  uint32_t a_dtype;
  uint32_t b_dtype;
  uint32_t y_dtype;
  uint32_t a_is_scalar;
  uint32_t b_is_scalar;
  float p0;
  float p1;
} binary_t;

// In the order of the host's enum. LINEAR: p0 a + p1 b; SCALE: a (p0 b); CLIP: a b within -p0 .. p0.
enum { ADD, SUB, MUL, DIV, MAX_OF, MIN_OF, EQ, NE, LT, LE, GT, GE, LINEAR, SCALE, CLIP };

typedef struct {
  local_addr_t at;
  const dim4 *stride;
} tile_t;

// Where a and b are numbers and not NaN, 1, else 0: |x| as an integer is at most that of infinity. To `y`; `work` is used.
static void both_numbers(local_addr_t y, local_addr_t work, tile_t a, tile_t b, const dim4 *shape) {
  const scalar_t one = f32_scalar(1.f), beyond = u32_scalar(0x7f800001);
  tpu_bdc_and_C(work, a.at, u32_scalar(0x7fffffff), shape, NULL, a.stride, DT_UINT32);
  tpu_bdc_less_C(y, work, beyond, one, shape, NULL, NULL, DT_FP32, DT_INT32);
  tpu_bdc_and_C(work, b.at, u32_scalar(0x7fffffff), shape, NULL, b.stride, DT_UINT32);
  tpu_bdc_less_C(work, work, beyond, one, shape, NULL, NULL, DT_FP32, DT_INT32);
  tpu_bdc_fp_mul(y, y, work, shape, NULL, NULL, NULL, DT_FP32);
}

static void compare(void (*op)(local_addr_t, local_addr_t, local_addr_t, scalar_t, const dim4 *, const dim4 *, const dim4 *, const dim4 *, data_type_t, data_type_t),
                    local_addr_t y, tile_t a, tile_t b, const dim4 *shape) {
  op(y, a.at, b.at, f32_scalar(1.f), shape, NULL, a.stride, b.stride, DT_FP32, DT_FP32);
}

static void apply(const binary_t *k, int y, tile_t a, tile_t b, int work, const dim4 *shape) {
  const local_addr_t out = SLOT(y), other = SLOT(work), numbers = SLOT(work + 1);
  const bool compares = k->op >= EQ && k->op <= GE;
  // The engine takes NaN to be equal to itself and less than any number.
  if (compares) both_numbers(numbers, other, a, b, shape);
  switch (k->op) {
    case ADD: tpu_bdc_fp_add(out, a.at, b.at, shape, NULL, a.stride, b.stride, DT_FP32); break;
    case SUB: tpu_bdc_fp_sub(out, a.at, b.at, shape, NULL, a.stride, b.stride, DT_FP32); break;
    case MUL: tpu_bdc_fp_mul(out, a.at, b.at, shape, NULL, a.stride, b.stride, DT_FP32); break;
    case DIV: tpu_bdc_fp_div(out, a.at, b.at, shape, NULL, a.stride, b.stride, DT_FP32); break;
    case MAX_OF: tpu_bdc_max(out, a.at, b.at, shape, NULL, a.stride, b.stride, DT_FP32); break;
    case MIN_OF: tpu_bdc_min(out, a.at, b.at, shape, NULL, a.stride, b.stride, DT_FP32); break;
    case EQ: case NE: compare(tpu_bdc_equal, out, a, b, shape); break;
    case LT: compare(tpu_bdc_less, out, a, b, shape); break;
    case GT: compare(tpu_bdc_greater, out, a, b, shape); break;
    case LE: case GE:
      compare(k->op == LE ? tpu_bdc_less : tpu_bdc_greater, out, a, b, shape);
      compare(tpu_bdc_equal, other, a, b, shape);
      tpu_bdc_fp_add(out, out, other, shape, NULL, NULL, NULL, DT_FP32);
      break;
    case LINEAR:
      tpu_bdc_fp_mul_C(out, a.at, f32_scalar(k->p0), shape, NULL, a.stride, DT_FP32);
      tpu_bdc_fp_mul_C(other, b.at, f32_scalar(k->p1), shape, NULL, b.stride, DT_FP32);
      tpu_bdc_fp_add(out, out, other, shape, NULL, NULL, NULL, DT_FP32);
      break;
    case SCALE:
      tpu_bdc_fp_mul_C(other, b.at, f32_scalar(k->p0), shape, NULL, b.stride, DT_FP32);
      tpu_bdc_fp_mul(out, a.at, other, shape, NULL, a.stride, NULL, DT_FP32);
      break;
    case CLIP:
      tpu_bdc_fp_mul(out, a.at, b.at, shape, NULL, a.stride, b.stride, DT_FP32);
      tpu_bdc_min_C(out, out, f32_scalar(k->p0), shape, NULL, NULL, DT_FP32);
      tpu_bdc_max_C(out, out, f32_scalar(-k->p0), shape, NULL, NULL, DT_FP32);
      break;
    default: break;
  }
  if (compares) tpu_bdc_fp_mul(out, out, numbers, shape, NULL, NULL, NULL, DT_FP32);
  if (k->op == NE) {
    tpu_bdc_fp_mul_C(out, out, f32_scalar(-1.f), shape, NULL, NULL, DT_FP32);
    tpu_bdc_fp_add_C(out, out, f32_scalar(1.f), shape, NULL, NULL, DT_FP32);
  }
}

KERNEL(binary, binary_t) {
  enum { Y, MOST = 3 };
  int next = 0, count = 1, left_at = 0, right_at = 0;
  stream_t s[MOST];
  s[Y] = writes(&next, a->y, a->y_dtype);
  // An operand that is one element is loaded once.
  tile_t left = {0, &NO_STRIDE}, right = {0, &NO_STRIDE};
  if (a->a_is_scalar) {
    left.at = SLOT(next++);
  } else {
    s[left_at = count++] = reads(&next, a->a, a->a_dtype);
  }
  if (a->b_is_scalar) {
    right.at = SLOT(next++);
  } else {
    s[right_at = count++] = reads(&next, a->b, a->b_dtype);
  }
  const int work = next;
  if (a->a_is_scalar) load_scalar(left.at, SLOT(work), a->a, a->a_dtype);
  if (a->b_is_scalar) load_scalar(right.at, SLOT(work), a->b, a->b_dtype);
  flow_t f = flow_of(s, count, core_span(a->n, LANES));
  while (flow_next(&f)) {
    if (left_at != 0) left = (tile_t){SLOT(s[left_at].slot), NULL};
    if (right_at != 0) right = (tile_t){SLOT(s[right_at].slot), NULL};
    apply(a, s[Y].slot, left, right, work, &f.shape);
    flow_done(&f);
  }
}
