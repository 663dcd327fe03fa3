// Cross-entropy of rows of f32 logits [rows, vocab] and the gradient of its sum by them.
//
// Per valid row with logits z and lse = log sum exp z:
//   loss = (1 - smoothing) (lse - z[label]) + smoothing (lse - mean z) + z_loss lse^2
//   d loss / d z_j = p_j (1 + 2 z_loss lse) - (1 - smoothing) [j = label] - smoothing / vocab
// A label of ignore_index makes a row invalid: its loss and gradient are 0. Any other label that is no position is reported
// (FAULT_INDEX). stats is f32 [3, stride]: loss, validity and lse^2 of each row, to be summed by who calls.
// The gradient is multiplied by grad_scale, and by the row's scale if there are scales, before it is rounded to its type.
// grad may be the logits themselves, if it is f32. Rows lie over the lanes; a vocabulary that is longer than a piece passes
// through three times, the next piece loaded and the last gradient stored while one is computed. Limits: vocab below 2^31.
#include "rows.h"

typedef struct {
  launch_t launch;
  uint64_t logits;
  uint64_t labels;  // i32 [rows]
  uint64_t stats;
  uint64_t grad;    // 0: not wanted
  uint64_t scales;  // f32 [rows], 0: none
  int64_t rows;
  int64_t vocab;
  int64_t stats_stride;
  int32_t ignore_index;
  float smoothing;
  float z_loss;
  uint32_t grad_dtype;
  float grad_scale;
  uint32_t reserved;
} cross_entropy_t;

enum { EXP_TABLE = 0, LOG_TABLE = 1024, LOGITS = 2048, P = LOGITS + 2 * PIECE_BYTES, HOT = P + PIECE_BYTES, WORK0 = HOT + PIECE_BYTES,
       WORK1 = WORK0 + PIECE_BYTES, GRADS = WORK1 + PIECE_BYTES, ROWS = GRADS + 2 * PIECE_BYTES };
// Logits that are looked at or come in, and gradients that are made or go out, in turn.
#define Z(buffer) ((local_addr_t)(LOGITS + (buffer) * PIECE_BYTES))
#define GRAD(buffer) ((local_addr_t)(GRADS + (buffer) * PIECE_BYTES))
// One number a row each.
enum { LABEL = ROWS, LARGEST = LABEL + NUMBERS_BYTES, SUM_EXP = LARGEST + NUMBERS_BYTES, SUM_Z = SUM_EXP + NUMBERS_BYTES, AT_LABEL = SUM_Z + NUMBERS_BYTES,
       LSE = AT_LABEL + NUMBERS_BYTES, VALID = LSE + NUMBERS_BYTES, SCALE = VALID + NUMBERS_BYTES, PART = SCALE + NUMBERS_BYTES, SPARE = PART + NUMBERS_BYTES };

static void check_labels(const cross_entropy_t *a) {
  if (tpu_core_index() != 0) return;
  tpu_invalidate_cache(a->labels, ALIGN(a->rows * 4, 64));
  const int32_t *label = (const int32_t *)tpu_global_mem_addr(a->labels);
  for (long long i = 0; i < a->rows; i++) {
    if (label[i] == a->ignore_index || (label[i] >= 0 && label[i] < a->vocab)) continue;
    launch_fault(&a->launch, FAULT_INDEX);
    return;
  }
}

static dim4 piece_at(const cross_entropy_t *a, long long at, int c) { return (dim4){1, c, 1, (int)MIN(PIECE, a->vocab - at)}; }

static void load_logits(const cross_entropy_t *a, int buffer, long long row, long long at, int c) {
  const dim4 shape = piece_at(a, at, c), stride = {0, (int)a->vocab, 0, 1};
  tpu_gdma_cpy_S2L(Z(buffer), a->logits + (row * a->vocab + at) * 4, &shape, NULL, &stride, DT_FP32);
}

static void store_grad(const cross_entropy_t *a, int buffer, long long row, long long at, int c) {
  const dim4 shape = piece_at(a, at, c), stride = {0, (int)a->vocab, 0, 1};
  tpu_gdma_cpy_L2S(a->grad + (row * a->vocab + at) * dtype_bytes(a->grad_dtype), GRAD(buffer), &shape, &stride, NULL, a->grad_dtype);
}

// 1 at the label, 0 elsewhere, to HOT.
static void one_hot(long long at, const dim4 *shape, const dim4 *scalar) {
  const dim4 repeat = lane_stride(shape->w);
  tpu_bdc_arithmetic_sequence_bcast(WORK0, LANES, (int)at, 1, shape->w);
  tpu_bdc_equal(HOT, WORK0, LABEL, f32_scalar(1.f), shape, NULL, &repeat, scalar, DT_FP32, DT_INT32);
}

// exp(z - largest), to P.
static void exponentials(local_addr_t z, const dim4 *shape, const dim4 *scalar) {
  tpu_bdc_fp_sub(P, z, LARGEST, shape, NULL, NULL, scalar, DT_FP32);
  tpu_bdc_fp_exp(P, P, WORK0, WORK1, EXP_TABLE, shape, DT_FP32);
}

static void store_stat(const cross_entropy_t *a, int which, long long row, local_addr_t from, const dim4 *one) {
  tpu_gdma_cpy_L2S(a->stats + (which * a->stats_stride + row) * 4, from, one, NULL, NULL, DT_FP32);
}

KERNEL(cross_entropy, cross_entropy_t) {
  check_labels(a);
  tpu_bdc_load_fp_exp_coeff(EXP_TABLE, DT_FP32);
  tpu_bdc_load_fp_log_coeff(LOG_TABLE, DT_FP32);
  const int at_once = rows_at_once(a->vocab);
  const bool is_whole = a->vocab <= PIECE;
  const span_t span = core_span(a->rows, 1);
  for (long long row = span.start; row < span.end; row += at_once) {
    const int c = (int)MIN(at_once, span.end - row);
    const dim4 one = {1, c, 1, 1}, scalar = row_stride(c);
    tpu_gdma_cpy_S2L(LABEL, a->labels + row * 4, &one, NULL, NULL, DT_INT32);
    // 1 - [label = ignore_index].
    tpu_bdc_equal_C(VALID, LABEL, (scalar_t){.s32 = a->ignore_index}, f32_scalar(-1.f), &one, NULL, NULL, DT_FP32, DT_INT32);
    tpu_bdc_fp_add_C(VALID, VALID, f32_scalar(1.f), &one, NULL, NULL, DT_FP32);

    int buffer = 0;
    load_logits(a, buffer, row, 0, c);
    for (long long at = 0; at < a->vocab; at += PIECE) {
      const dim4 shape = piece_at(a, at, c);
      tpu_parallel_start();
      // After the last piece, the first of the next time.
      if (!is_whole) load_logits(a, 1 - buffer, row, at + PIECE < a->vocab ? at + PIECE : 0, c);
      reduce_piece(ROW_MAX, LARGEST, PART, Z(buffer), at == 0, c, shape.w);
      tpu_parallel_end();
      if (!is_whole) buffer = 1 - buffer;
    }
    for (long long at = 0; at < a->vocab; at += PIECE) {
      const dim4 shape = piece_at(a, at, c);
      tpu_parallel_start();
      if (!is_whole) load_logits(a, 1 - buffer, row, at + PIECE < a->vocab ? at + PIECE : 0, c);
      reduce_piece(ROW_SUM, SUM_Z, PART, Z(buffer), at == 0, c, shape.w);
      one_hot(at, &shape, &scalar);
      tpu_bdc_fp_mul(HOT, HOT, Z(buffer), &shape, NULL, NULL, NULL, DT_FP32);
      reduce_piece(ROW_SUM, AT_LABEL, PART, HOT, at == 0, c, shape.w);
      exponentials(Z(buffer), &shape, &scalar);
      reduce_piece(ROW_SUM, SUM_EXP, PART, P, at == 0, c, shape.w);
      tpu_parallel_end();
      if (!is_whole) buffer = 1 - buffer;
    }
    tpu_bdc_fp_log(LSE, SUM_EXP, PART, LOG_TABLE, &one, DT_FP32);
    tpu_bdc_fp_add(LSE, LSE, LARGEST, &one, NULL, NULL, NULL, DT_FP32);
    // The exponentials of NaN are 0; a sum of logits is NaN if one is. Times 0, it makes the loss NaN and leaves others.
    tpu_bdc_fp_mul_C(PART, SUM_Z, f32_scalar(0), &one, NULL, NULL, DT_FP32);
    tpu_bdc_fp_add(LSE, LSE, PART, &one, NULL, NULL, NULL, DT_FP32);

    // loss = lse - (1 - smoothing) z[label] - smoothing / vocab sum z + z_loss lse^2, where valid.
    tpu_bdc_fp_mul(SPARE, LSE, LSE, &one, NULL, NULL, NULL, DT_FP32);
    tpu_bdc_fp_mul_C(SCALE, SPARE, f32_scalar(a->z_loss), &one, NULL, NULL, DT_FP32);
    tpu_bdc_fp_add(SCALE, SCALE, LSE, &one, NULL, NULL, NULL, DT_FP32);
    tpu_bdc_fp_mul_C(AT_LABEL, AT_LABEL, f32_scalar(a->smoothing - 1.f), &one, NULL, NULL, DT_FP32);
    tpu_bdc_fp_add(SCALE, SCALE, AT_LABEL, &one, NULL, NULL, NULL, DT_FP32);
    tpu_bdc_fp_mul_C(SUM_Z, SUM_Z, f32_scalar(-a->smoothing / a->vocab), &one, NULL, NULL, DT_FP32);
    tpu_bdc_fp_add(SCALE, SCALE, SUM_Z, &one, NULL, NULL, NULL, DT_FP32);
    tpu_bdc_fp_mul(SCALE, SCALE, VALID, &one, NULL, NULL, NULL, DT_FP32);
    tpu_bdc_fp_mul(SPARE, SPARE, VALID, &one, NULL, NULL, NULL, DT_FP32);
    store_stat(a, 0, row, SCALE, &one);
    store_stat(a, 1, row, VALID, &one);
    store_stat(a, 2, row, SPARE, &one);
    if (!a->grad) continue;
    if (a->grad_scale != 1.f) tpu_bdc_fp_mul_C(VALID, VALID, f32_scalar(a->grad_scale), &one, NULL, NULL, DT_FP32);
    if (a->scales) {
      tpu_gdma_cpy_S2L(SPARE, a->scales + row * 4, &one, NULL, NULL, DT_FP32);
      tpu_bdc_fp_mul(VALID, VALID, SPARE, &one, NULL, NULL, NULL, DT_FP32);
    }

    // What multiplies exp(z - largest): (1 + 2 z_loss lse) / sum.
    tpu_bdc_fp_mul_C(SCALE, LSE, f32_scalar(2 * a->z_loss), &one, NULL, NULL, DT_FP32);
    tpu_bdc_fp_add_C(SCALE, SCALE, f32_scalar(1.f), &one, NULL, NULL, DT_FP32);
    tpu_bdc_fp_div(SCALE, SCALE, SUM_EXP, &one, NULL, NULL, NULL, DT_FP32);
    for (long long at = 0; at < a->vocab; at += PIECE) {
      const dim4 shape = piece_at(a, at, c);
      tpu_parallel_start();
      if (at > 0) store_grad(a, 1 - buffer, row, at - PIECE, c);
      if (at + PIECE < a->vocab) load_logits(a, 1 - buffer, row, at + PIECE, c);
      if (!is_whole) exponentials(Z(buffer), &shape, &scalar);
      one_hot(at, &shape, &scalar);
      tpu_bdc_fp_mul(P, P, SCALE, &shape, NULL, NULL, &scalar, DT_FP32);
      tpu_bdc_fp_mul_C(HOT, HOT, f32_scalar(a->smoothing - 1.f), &shape, NULL, NULL, DT_FP32);
      tpu_bdc_fp_add(P, P, HOT, &shape, NULL, NULL, NULL, DT_FP32);
      if (a->smoothing != 0) tpu_bdc_fp_add_C(P, P, f32_scalar(-a->smoothing / a->vocab), &shape, NULL, NULL, DT_FP32);
      if (a->grad_dtype == DT_FP32) {
        tpu_bdc_fp_mul(GRAD(buffer), P, VALID, &shape, NULL, NULL, &scalar, DT_FP32);
      } else {
        tpu_bdc_fp_mul(P, P, VALID, &shape, NULL, NULL, &scalar, DT_FP32);
        round_f32(GRAD(buffer), P, &shape, a->grad_dtype);
      }
      tpu_parallel_end();
      if (at + PIECE >= a->vocab) store_grad(a, buffer, row, at, c);
      buffer = 1 - buffer;
    }
  }
}
