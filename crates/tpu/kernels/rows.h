// Sums and extrema along w of a tile [1, c, 1, w] of f32 in the aligned layout, a row of a matrix in each place of c.
#pragma once

#include "kernel.h"

#define F32_MAX 3.4028235e38f

// Sets what the alignment leaves free at the end of each row, so that rows may be seen as groups of 16.
static inline void fill_row_ends(local_addr_t x, int c, int w, float value) {
  if (w % 16 == 0) return;
  const dim4 ends = {1, c, 1, 16 - w % 16}, full = {1, c, 1, ALIGN(w, 16)};
  dim4 stride;
  tpu_aligned_stride(&stride, 0, &full, DT_FP32);
  tpu_bdc_set_C(x + w * 4, f32_scalar(value), &ends, &stride, DT_FP32);
}

typedef enum { ROW_SUM, ROW_MAX, ROW_MIN } row_op_t;

static inline void pool(row_op_t op, local_addr_t y, local_addr_t x, const dim4 *shape, const dim2 *kernel) {
  const padding_t none = {0, 0, 0, 0};
  const dim2 one = {1, 1};
  switch (op) {
    case ROW_SUM: tpu_bdc_fp_avg_pool2d(y, x, shape, kernel, &none, &one, &one, DT_FP32, f32_scalar(1.f)); break;
    case ROW_MAX: tpu_bdc_fp_max_pool2d(y, x, shape, kernel, &none, &one, &one, DT_FP32, f32_scalar(-F32_MAX)); break;
    case ROW_MIN: tpu_bdc_fp_min_pool2d(y, x, shape, kernel, &none, &one, &one, DT_FP32, f32_scalar(F32_MAX)); break;
  }
}

// y [1, c, 1, 1] of x [1, c, 1, w]; y has room for 16 elements a row. The free ends of x are overwritten.
static inline void reduce_row(row_op_t op, local_addr_t y, local_addr_t x, int c, int w) {
  fill_row_ends(x, c, w, op == ROW_SUM ? 0 : op == ROW_MAX ? -F32_MAX : F32_MAX);
  const dim4 groups = {1, c, DIV_UP(w, 16), 16}, last = {1, c, 1, 16};
  const dim2 down = {groups.h, 1}, across = {1, 16};
  pool(op, y, x, &groups, &down);
  pool(op, y, y, &last, &across);
}

// A value a row, as an operand that is the same along w.
static inline dim4 row_stride(int c) {
  const dim4 shape = {1, c, 1, 1};
  dim4 stride;
  tpu_aligned_stride(&stride, 0, &shape, DT_FP32);
  stride.h = stride.w = 0;
  return stride;
}
