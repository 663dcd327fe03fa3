// RMS normalisation of the rows of x [rows, dim], and its gradients, in f32.
//
// rms_norm:          inv_rms = 1 / sqrt(mean(x^2) + eps), y = x inv_rms weight.
// rms_norm_backward: dx = inv_rms dy weight - x inv_rms^3 / dim * sum(dy weight x), and where asked for the matrix
//                    dy x inv_rms, whose column sums are the gradient of weight.
// Rows lie over the lanes, several in each if they are short; long ones pass through in pieces, once to be summed and once more.
#include "rows.h"

typedef struct {
  launch_t launch;
  uint64_t x;
  uint64_t weight;   // f32
  uint64_t inv_rms;  // f32 [rows]
  uint64_t y;
  int64_t rows;
  int64_t dim;
  float eps;
  uint32_t x_dtype;
  uint32_t y_dtype;
  uint32_t reserved;
} rms_norm_t;

typedef struct {
  launch_t launch;
  uint64_t x;
  uint64_t weight;
  uint64_t inv_rms;
  uint64_t dy;
  uint64_t dx;        // 0: not wanted; of x's type
  uint64_t products;  // 0: not wanted; f32 [rows, dim]
  int64_t rows;
  int64_t dim;
  uint32_t x_dtype;
  uint32_t dy_dtype;
} rms_norm_backward_t;

enum { X = 0, RAW = PIECE_BYTES, WEIGHT = 2 * PIECE_BYTES, DY = 3 * PIECE_BYTES, WORK = 4 * PIECE_BYTES,
       SUM = 5 * PIECE_BYTES, PART = SUM + NUMBERS_BYTES, INV = PART + NUMBERS_BYTES };

KERNEL(rms_norm, rms_norm_t) {
  const span_t span = core_span(a->rows, 1);
  const int at_once = rows_at_once(a->dim);
  for (long long row = span.start; row < span.end; row += at_once) {
    const int c = (int)MIN(at_once, span.end - row);
    const dim4 one = {1, c, 1, 1}, scalar = row_stride(c);
    for (long long at = 0; at < a->dim; at += PIECE) {
      const dim4 shape = {1, c, 1, (int)MIN(PIECE, a->dim - at)};
      load_rows(X, RAW, a->x, a->x_dtype, a->dim, row, at, &shape);
      tpu_bdc_fp_mul(WORK, X, X, &shape, NULL, NULL, NULL, DT_FP32);
      reduce_piece(ROW_SUM, SUM, PART, WORK, at == 0, c, shape.w);
    }
    tpu_bdc_fp_mul_C(SUM, SUM, f32_scalar(1.f / a->dim), &one, NULL, NULL, DT_FP32);
    tpu_bdc_fp_add_C(SUM, SUM, f32_scalar(a->eps), &one, NULL, NULL, DT_FP32);
    tpu_bdc_fp_sqrt(INV, SUM, &one, DT_FP32);
    tpu_bdc_fp32_C_div(INV, INV, 1.f, &one, NULL, NULL);
    tpu_gdma_cpy_L2S(a->inv_rms + row * 4, INV, &one, NULL, NULL, DT_FP32);
    for (long long at = 0; at < a->dim; at += PIECE) {
      const dim4 shape = {1, c, 1, (int)MIN(PIECE, a->dim - at)};
      const dim4 repeat = load_shared_row(WEIGHT, a->weight, at, shape.w);
      if (a->dim > PIECE) load_rows(X, RAW, a->x, a->x_dtype, a->dim, row, at, &shape);
      tpu_bdc_fp_mul(X, X, INV, &shape, NULL, NULL, &scalar, DT_FP32);
      tpu_bdc_fp_mul(X, X, WEIGHT, &shape, NULL, NULL, &repeat, DT_FP32);
      store_rows(a->y, X, RAW, a->y_dtype, a->dim, row, at, &shape);
    }
  }
}

KERNEL(rms_norm_backward, rms_norm_backward_t) {
  const span_t span = core_span(a->rows, 1);
  const int at_once = rows_at_once(a->dim);
  for (long long row = span.start; row < span.end; row += at_once) {
    const int c = (int)MIN(at_once, span.end - row);
    const dim4 one = {1, c, 1, 1}, scalar = row_stride(c);
    tpu_gdma_cpy_S2L(INV, a->inv_rms + row * 4, &one, NULL, NULL, DT_FP32);
    for (long long at = 0; at < a->dim; at += PIECE) {
      const dim4 shape = {1, c, 1, (int)MIN(PIECE, a->dim - at)};
      const dim4 repeat = load_shared_row(WEIGHT, a->weight, at, shape.w);
      load_rows(X, RAW, a->x, a->x_dtype, a->dim, row, at, &shape);
      load_rows(DY, RAW, a->dy, a->dy_dtype, a->dim, row, at, &shape);
      tpu_bdc_fp_mul(WORK, DY, X, &shape, NULL, NULL, NULL, DT_FP32);
      if (a->products) {
        tpu_bdc_fp_mul(RAW, WORK, INV, &shape, NULL, NULL, &scalar, DT_FP32);
        const dim4 stride = {0, (int)a->dim, 0, 1};
        tpu_gdma_cpy_L2S(a->products + (row * a->dim + at) * 4, RAW, &shape, &stride, NULL, DT_FP32);
      }
      tpu_bdc_fp_mul(WORK, WORK, WEIGHT, &shape, NULL, NULL, &repeat, DT_FP32);
      reduce_piece(ROW_SUM, SUM, PART, WORK, at == 0, c, shape.w);
    }
    if (!a->dx) continue;
    // sum inv^2 / dim; what is left of inv^3 is the factor of both terms.
    tpu_bdc_fp_mul(PART, INV, INV, &one, NULL, NULL, NULL, DT_FP32);
    tpu_bdc_fp_mul(SUM, SUM, PART, &one, NULL, NULL, NULL, DT_FP32);
    tpu_bdc_fp_mul_C(SUM, SUM, f32_scalar(1.f / a->dim), &one, NULL, NULL, DT_FP32);
    for (long long at = 0; at < a->dim; at += PIECE) {
      const dim4 shape = {1, c, 1, (int)MIN(PIECE, a->dim - at)};
      const dim4 repeat = load_shared_row(WEIGHT, a->weight, at, shape.w);
      if (a->dim > PIECE) {
        load_rows(X, RAW, a->x, a->x_dtype, a->dim, row, at, &shape);
        load_rows(DY, RAW, a->dy, a->dy_dtype, a->dim, row, at, &shape);
      }
      tpu_bdc_fp_mul(DY, DY, WEIGHT, &shape, NULL, NULL, &repeat, DT_FP32);
      tpu_bdc_fp_mul(X, X, SUM, &shape, NULL, NULL, &scalar, DT_FP32);
      tpu_bdc_fp_sub(DY, DY, X, &shape, NULL, NULL, NULL, DT_FP32);
      tpu_bdc_fp_mul(DY, DY, INV, &shape, NULL, NULL, &scalar, DT_FP32);
      store_rows(a->dx, DY, RAW, a->x_dtype, a->dim, row, at, &shape);
    }
  }
}
