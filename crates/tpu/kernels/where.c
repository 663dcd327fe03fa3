// y = condition != 0 ? a : b, element by element, contiguous; condition u8 or u32, a, b and y of one dtype.
//
// 32-bit elements are moved as bits; narrower ones pass through f32, which holds each of them.
#include "functions.h"

typedef struct {
  launch_t launch;
  uint64_t condition;
  uint64_t a;
  uint64_t b;
  uint64_t y;
  uint64_t n;
  uint32_t condition_dtype;
  uint32_t dtype;
} where_t;

KERNEL(where_select, where_t) {
  enum { CONDITION, A, B, Y, RAW };
  const data_type_t dtype = a->dtype;
  const bool is_wide = dtype_bytes(dtype) == 4;
  span_t span = core_span(a->n, LANES);
  dim4 shape;
  long long at;
  while (next_tile(&span, &shape, &at)) {
    load_tile(CONDITION, RAW, a->condition, at, &shape, a->condition_dtype);
    // As DT_FP32 a DMA moves 32 bits of anything.
    load_tile(A, RAW, a->a, at, &shape, is_wide ? DT_FP32 : dtype);
    load_tile(B, RAW, a->b, at, &shape, is_wide ? DT_FP32 : dtype);
    const variable_t condition = {TENSOR, {.addr = SLOT(CONDITION)}};
    const variable_t zero = {SCALAR, {.scalar = {.f32 = 0}}};
    const variable_t yes = {TENSOR, {.addr = SLOT(A)}}, no = {TENSOR, {.addr = SLOT(B)}};
    tpu_bdc_equal_select(SLOT(Y), &condition, &zero, &no, &yes, &shape, DT_FP32, DT_UINT32);
    store_tile(a->y, at, Y, RAW, &shape, is_wide ? DT_FP32 : dtype);
  }
}
