// Rows of a contiguous matrix over the lanes, in f32: sums and extrema of each, and numbers that belong to each.
//
// A tile is [1, c, 1, w] in the aligned layout, a row of the matrix in each place of c: several rows in a lane if they are
// short, one in pieces if they are long.
#pragma once

#include "kernel.h"

#define LOWEST (-F32_MAX)

// Elements of a row that are folded at once.
#define GROUP 16

// Elements of a row in a piece, and bytes a lane of all rows of a piece.
#define PIECE 4096
#define PIECE_BYTES (PIECE * 4)
// As many rows as short ones fill a piece with; one number a row, in a group of its own.
#define MAX_ROWS_A_LANE 64
#define NUMBERS_BYTES (MAX_ROWS_A_LANE * 64)

// Rows of `len` elements that fill a piece.
static inline int rows_at_once(long long len) {
  const int row_bytes = (int)MIN(PIECE_BYTES, ALIGN(len * 4, 64));
  return LANES * MIN(MAX_ROWS_A_LANE, PIECE_BYTES / row_bytes);
}

// A number a row, as an operand that is the same along w.
static inline dim4 row_stride(int c) {
  const dim4 shape = {1, c, 1, 1};
  dim4 stride;
  tpu_aligned_stride(&stride, 0, &shape, DT_FP32);
  stride.h = stride.w = 0;
  return stride;
}

// The same w elements in every lane, as an operand that repeats them for all rows of a lane.
static inline dim4 lane_stride(int w) {
  const dim4 shape = {1, LANES, 1, w};
  dim4 stride;
  tpu_aligned_stride(&stride, 0, &shape, DT_FP32);
  stride.c = 0;
  return stride;
}

// Sets what the alignment leaves free at the end of each row, so that rows may be seen as groups.
static inline void fill_row_ends(local_addr_t x, int c, int w, float value) {
  if (w % GROUP == 0) return;
  const dim4 ends = {1, c, 1, GROUP - w % GROUP}, full = {1, c, 1, ALIGN(w, GROUP)};
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
    case ROW_MAX: tpu_bdc_fp_max_pool2d(y, x, shape, kernel, &none, &one, &one, DT_FP32, f32_scalar(LOWEST)); break;
    case ROW_MIN:
#ifndef BM1684X  // which has none, see fold_row
      tpu_bdc_fp_min_pool2d(y, x, shape, kernel, &none, &one, &one, DT_FP32, f32_scalar(F32_MAX));
#endif
      break;
  }
}

// y [1, c, 1, 1] of x [1, c, 1, w], whose free ends are set; y has room for a group a row, as the alignment gives.
// Extrema are finite: a row of infinities has the finite number nearest to them.
static inline void fold_row(row_op_t op, local_addr_t y, local_addr_t x, int c, int w) {
  const dim4 groups = {1, c, DIV_UP(w, GROUP), GROUP}, last = {1, c, 1, GROUP};
  const dim2 down = {groups.h, 1}, across = {1, GROUP};
#ifdef BM1684X
  if (op == ROW_MIN) {
    // The largest of what is negated, which is exact.
    const dim4 one = {1, c, 1, 1};
    tpu_bdc_neg(x, x, &groups, NULL, NULL, DT_FP32);
    fold_row(ROW_MAX, y, x, c, w);
    tpu_bdc_neg(x, x, &groups, NULL, NULL, DT_FP32);
    tpu_bdc_neg(y, y, &one, NULL, NULL, DT_FP32);
    return;
  }
#endif
  pool(op, y, x, &groups, &down);
  pool(op, y, y, &last, &across);
}

// The same, setting the free ends to what changes nothing.
static inline void reduce_row(row_op_t op, local_addr_t y, local_addr_t x, int c, int w) {
  fill_row_ends(x, c, w, op == ROW_SUM ? 0 : op == ROW_MAX ? LOWEST : F32_MAX);
  fold_row(op, y, x, c, w);
}

// y = y op part, a number a row each.
static inline void combine_rows(row_op_t op, local_addr_t y, local_addr_t part, int c) {
  const dim4 one = {1, c, 1, 1};
  switch (op) {
    case ROW_SUM: tpu_bdc_fp_add(y, y, part, &one, NULL, NULL, NULL, DT_FP32); break;
    case ROW_MAX: tpu_bdc_max(y, y, part, &one, NULL, NULL, NULL, DT_FP32); break;
    case ROW_MIN: tpu_bdc_min(y, y, part, &one, NULL, NULL, NULL, DT_FP32); break;
  }
}

// reduce_row for one piece of rows after another; `part` has the size of y.
static inline void reduce_piece(row_op_t op, local_addr_t y, local_addr_t part, local_addr_t x, bool is_first, int c, int w) {
  reduce_row(op, is_first ? y : part, x, c, w);
  if (!is_first) combine_rows(op, y, part, c);
}

// ---- pieces of rows [rows, dim] from DRAM and back ----

// Elements `at ..` of the rows from `row` on, as f32; `raw` has the size of what is loaded.
static inline void load_rows(local_addr_t to, local_addr_t raw, uint64_t from, data_type_t dtype, long long dim, long long row, long long at,
                             const dim4 *shape) {
  const dim4 stride = {0, (int)dim, 0, 1};
  load_f32(to, raw, from + (row * dim + at) * dtype_bytes(dtype), shape, &stride, dtype);
}

// The same way back, rounded; 16-bit stores use what is stored up.
static inline void store_rows(uint64_t to, local_addr_t from, local_addr_t raw, data_type_t dtype, long long dim, long long row, long long at,
                              const dim4 *shape) {
  const dim4 stride = {0, (int)dim, 0, 1};
  store_f32(to + (row * dim + at) * dtype_bytes(dtype), from, raw, shape, &stride, dtype);
}

// The same piece of one f32 row in every lane; the stride repeats it for all rows of a lane.
static inline dim4 load_shared_row(local_addr_t to, uint64_t from, long long at, int w) {
  const dim4 shape = {1, LANES, 1, w};
  tpu_gdma_channel_bcast_S2L(to, from + at * 4, &shape, NULL, NULL, DT_FP32);
  return lane_stride(w);
}
