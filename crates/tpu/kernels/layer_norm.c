// Normalisation of the rows of x [rows, dim] by mean and deviation, and its gradients, in f32.
//
// layer_norm:          inv_std = 1 / sqrt(mean((x - mean)^2) + eps), y = h weight + bias with h = (x - mean) inv_std.
// layer_norm_backward: with e = dy weight, dx = inv_std (e - mean(e) - h mean(e h)), and where asked for the matrix dy h, whose
//                      column sums are the gradient of weight; that of bias is the column sums of dy.
// Rows lie over the lanes, several in each if they are short; long ones pass through in pieces, once for each sum and once more.
// Source: Ba et al. 2016, arXiv:1607.06450.
#include "rows.h"

typedef struct {
  launch_t launch;
  uint64_t x;
  uint64_t weight;   // f32
  uint64_t bias;     // f32
  uint64_t mean;     // f32 [rows]
  uint64_t inv_std;  // f32 [rows]
  uint64_t y;
  int64_t rows;
  int64_t dim;
  float eps;
  uint32_t x_dtype;
  uint32_t y_dtype;
  uint32_t reserved;
} layer_norm_t;

typedef struct {
  launch_t launch;
  uint64_t x;
  uint64_t weight;
  uint64_t mean;
  uint64_t inv_std;
  uint64_t dy;
  uint64_t dx;        // 0: not wanted; of x's type
  uint64_t products;  // 0: not wanted; f32 [rows, dim]
  int64_t rows;
  int64_t dim;
  uint32_t x_dtype;
  uint32_t dy_dtype;
} layer_norm_backward_t;

enum { X = 0, RAW = PIECE_BYTES, WEIGHT = 2 * PIECE_BYTES, DY = 3 * PIECE_BYTES, BIAS = DY, WORK = 4 * PIECE_BYTES,
       SUM = 5 * PIECE_BYTES, ALONG = SUM + NUMBERS_BYTES, PART = ALONG + NUMBERS_BYTES, MEAN = PART + NUMBERS_BYTES,
       INV = MEAN + NUMBERS_BYTES };

// The sum of each row becomes its mean.
static void mean_of(local_addr_t sum, long long dim, const dim4 *one) {
  tpu_bdc_fp_mul_C(sum, sum, f32_scalar(1.f / dim), one, NULL, NULL, DT_FP32);
}

KERNEL(layer_norm, layer_norm_t) {
  const span_t span = core_span(a->rows, 1);
  const int at_once = rows_at_once(a->dim);
  const bool is_long = a->dim > PIECE;
  for (long long row = span.start; row < span.end; row += at_once) {
    const int c = (int)MIN(at_once, span.end - row);
    const dim4 one = {1, c, 1, 1}, scalar = row_stride(c);
    for (long long at = 0; at < a->dim; at += PIECE) {
      const dim4 shape = {1, c, 1, (int)MIN(PIECE, a->dim - at)};
      load_rows(X, RAW, a->x, a->x_dtype, a->dim, row, at, &shape);
      reduce_piece(ROW_SUM, MEAN, PART, X, at == 0, c, shape.w);
    }
    mean_of(MEAN, a->dim, &one);
    tpu_gdma_cpy_L2S(a->mean + row * 4, MEAN, &one, NULL, NULL, DT_FP32);
    for (long long at = 0; at < a->dim; at += PIECE) {
      const dim4 shape = {1, c, 1, (int)MIN(PIECE, a->dim - at)};
      if (is_long) load_rows(X, RAW, a->x, a->x_dtype, a->dim, row, at, &shape);
      tpu_bdc_fp_sub(X, X, MEAN, &shape, NULL, NULL, &scalar, DT_FP32);
      tpu_bdc_fp_mul(WORK, X, X, &shape, NULL, NULL, NULL, DT_FP32);
      reduce_piece(ROW_SUM, SUM, PART, WORK, at == 0, c, shape.w);
    }
    mean_of(SUM, a->dim, &one);
    tpu_bdc_fp_add_C(SUM, SUM, f32_scalar(a->eps), &one, NULL, NULL, DT_FP32);
    tpu_bdc_fp_sqrt(INV, SUM, &one, DT_FP32);
    tpu_bdc_fp32_C_div(INV, INV, 1.f, &one, NULL, NULL);
    tpu_gdma_cpy_L2S(a->inv_std + row * 4, INV, &one, NULL, NULL, DT_FP32);
    for (long long at = 0; at < a->dim; at += PIECE) {
      const dim4 shape = {1, c, 1, (int)MIN(PIECE, a->dim - at)};
      const dim4 repeat = load_shared_row(WEIGHT, a->weight, at, shape.w);
      load_shared_row(BIAS, a->bias, at, shape.w);
      if (is_long) {
        load_rows(X, RAW, a->x, a->x_dtype, a->dim, row, at, &shape);
        tpu_bdc_fp_sub(X, X, MEAN, &shape, NULL, NULL, &scalar, DT_FP32);
      }
      tpu_bdc_fp_mul(X, X, INV, &shape, NULL, NULL, &scalar, DT_FP32);
      tpu_bdc_fp_mul(X, X, WEIGHT, &shape, NULL, NULL, &repeat, DT_FP32);
      tpu_bdc_fp_add(X, X, BIAS, &shape, NULL, NULL, &repeat, DT_FP32);
      store_rows(a->y, X, RAW, a->y_dtype, a->dim, row, at, &shape);
    }
  }
}

// X = h and DY = dy of a piece; WEIGHT, of which the stride is returned.
static dim4 load_piece(const layer_norm_backward_t *a, long long row, long long at, const dim4 *shape, const dim4 *scalar) {
  load_rows(X, RAW, a->x, a->x_dtype, a->dim, row, at, shape);
  load_rows(DY, RAW, a->dy, a->dy_dtype, a->dim, row, at, shape);
  tpu_bdc_fp_sub(X, X, MEAN, shape, NULL, NULL, scalar, DT_FP32);
  tpu_bdc_fp_mul(X, X, INV, shape, NULL, NULL, scalar, DT_FP32);
  return load_shared_row(WEIGHT, a->weight, at, shape->w);
}

KERNEL(layer_norm_backward, layer_norm_backward_t) {
  const span_t span = core_span(a->rows, 1);
  const int at_once = rows_at_once(a->dim);
  for (long long row = span.start; row < span.end; row += at_once) {
    const int c = (int)MIN(at_once, span.end - row);
    const dim4 one = {1, c, 1, 1}, scalar = row_stride(c);
    tpu_gdma_cpy_S2L(MEAN, a->mean + row * 4, &one, NULL, NULL, DT_FP32);
    tpu_gdma_cpy_S2L(INV, a->inv_std + row * 4, &one, NULL, NULL, DT_FP32);
    for (long long at = 0; at < a->dim; at += PIECE) {
      const dim4 shape = {1, c, 1, (int)MIN(PIECE, a->dim - at)};
      const dim4 repeat = load_piece(a, row, at, &shape, &scalar);
      if (a->products) {
        tpu_bdc_fp_mul(WORK, DY, X, &shape, NULL, NULL, NULL, DT_FP32);
        store_rows(a->products, WORK, RAW, DT_FP32, a->dim, row, at, &shape);
      }
      if (!a->dx) continue;
      tpu_bdc_fp_mul(DY, DY, WEIGHT, &shape, NULL, NULL, &repeat, DT_FP32);
      tpu_bdc_fp_mul(WORK, DY, X, &shape, NULL, NULL, NULL, DT_FP32);
      reduce_piece(ROW_SUM, ALONG, PART, WORK, at == 0, c, shape.w);
      reduce_piece(ROW_SUM, SUM, PART, DY, at == 0, c, shape.w);
    }
    if (!a->dx) continue;
    mean_of(SUM, a->dim, &one);
    mean_of(ALONG, a->dim, &one);
    for (long long at = 0; at < a->dim; at += PIECE) {
      const dim4 shape = {1, c, 1, (int)MIN(PIECE, a->dim - at)};
      if (a->dim > PIECE) {
        const dim4 repeat = load_piece(a, row, at, &shape, &scalar);
        tpu_bdc_fp_mul(DY, DY, WEIGHT, &shape, NULL, NULL, &repeat, DT_FP32);
      }
      tpu_bdc_fp_mul(X, X, ALONG, &shape, NULL, NULL, &scalar, DT_FP32);
      tpu_bdc_fp_sub(DY, DY, SUM, &shape, NULL, NULL, &scalar, DT_FP32);
      tpu_bdc_fp_sub(DY, DY, X, &shape, NULL, NULL, NULL, DT_FP32);
      tpu_bdc_fp_mul(DY, DY, INV, &shape, NULL, NULL, &scalar, DT_FP32);
      store_rows(a->dx, DY, RAW, a->x_dtype, a->dim, row, at, &shape);
    }
  }
}
