// Reductions of rows and of columns of contiguous matrices, in f32, the result rounded once.
//
// reduce_rows: y[r] of x[r, 0..len]: sum, sum of squares, largest, smallest, position of the first largest or smallest (u32).
// Rows lie over the lanes, several in each if they are short, and pass through in pieces if they are long.
// sum_columns: y[o, c] (+)= sum over l of x[o, l, c].
// The order of additions depends on the sizes alone. NaN gives a sum of NaN. Extrema pass it over (where the
// CPU's keep one that comes first); of NaN alone they are the infinity that any number replaces, at position 0.
// Limits: positions below 2^24.
#include "rows.h"

typedef struct {
  launch_t launch;
  uint64_t x;
  uint64_t y;
  int64_t rows;
  int64_t len;
  uint32_t op;
  uint32_t x_dtype;
  uint32_t y_dtype;
  uint32_t reserved;
} reduce_rows_t;

// In the order of the host's enum.
enum { SUM, SUM_SQUARES, MAX_OF, MIN_OF, ARG_MAX, ARG_MIN };

enum { X = 0, RAW = PIECE_BYTES, MASKED = 2 * PIECE_BYTES, INDEX = 3 * PIECE_BYTES, PART = 4 * PIECE_BYTES, ALL = PART + NUMBERS_BYTES, AT = ALL + NUMBERS_BYTES };

static void load_piece(const reduce_rows_t *a, long long row, long long from, int c, int w) {
  const dim4 shape = {1, c, 1, w}, stride = {0, (int)a->len, 0, 1};
  load_f32(X, RAW, a->x + (row * a->len + from) * dtype_bytes(a->x_dtype), &shape, &stride, a->x_dtype);
}

// As reduce_row, but infinities count, where the pools begin with the largest finite number. Folds rows in halves, in place.
static void extremum(row_op_t op, local_addr_t y, local_addr_t x, int c, int w) {
  const dim4 row = {1, c, 1, w}, one = {1, c, 1, 1};
  dim4 stride;
  tpu_aligned_stride(&stride, 0, &row, DT_FP32);
  if (op == ROW_MIN) tpu_bdc_neg(x, x, &row, NULL, NULL, DT_FP32);
  // Of NaN and a second operand the engine takes the second.
  tpu_bdc_max_C(x, x, f32_scalar(-INFINITY), &row, NULL, NULL, DT_FP32);
  while (w > 1) {
    const int half = w > 16 ? ALIGN(DIV_UP(w, 2), 16) : DIV_UP(w, 2);
    const dim4 shape = {1, c, 1, w - half};
    tpu_bdc_max(x, x, x + half * 4, &shape, &stride, &stride, &stride, DT_FP32);
    w = half;
  }
  tpu_bdc_cpy(y, x, &one, NULL, &stride, DT_FP32);
  if (op == ROW_MIN) tpu_bdc_neg(y, y, &one, NULL, NULL, DT_FP32);
}

// Values of c rows from `row` on to ALL.
static void reduce(const reduce_rows_t *a, row_op_t op, long long row, int c) {
  for (long long from = 0; from < a->len; from += PIECE) {
    const int w = (int)MIN(PIECE, a->len - from);
    const dim4 shape = {1, c, 1, w};
    load_piece(a, row, from, c, w);
    if (a->op == SUM_SQUARES) tpu_bdc_fp_mul(X, X, X, &shape, NULL, NULL, NULL, DT_FP32);
    if (op == ROW_SUM) {
      reduce_piece(op, ALL, PART, X, from == 0, c, w);
    } else {
      extremum(op, from == 0 ? ALL : PART, X, c, w);
      if (from > 0) combine_rows(op, ALL, PART, c);
    }
  }
}

// The first positions of the values in ALL, to AT.
static void find(const reduce_rows_t *a, long long row, int c) {
  const dim4 one = {1, c, 1, 1}, values = row_stride(c);
  for (long long from = 0; from < a->len; from += PIECE) {
    const int w = (int)MIN(PIECE, a->len - from);
    const dim4 shape = {1, c, 1, w}, positions = {1, LANES, 1, w}, repeat = lane_stride(w);
    load_piece(a, row, from, c, w);
    tpu_bdc_arithmetic_sequence_bcast(RAW, LANES, (int)from, 1, w);
    tpu_bdc_cast(INDEX, RAW, &positions, NULL, NULL, DT_FP32, DT_INT32, RM_HALF_TO_EVEN);
    // Where the value is attained 1, elsewhere 0; so position + (1 - attained) * more than any position.
    tpu_bdc_equal(MASKED, X, ALL, f32_scalar(-33554432.f), &shape, NULL, NULL, &values, DT_FP32, DT_FP32);
    tpu_bdc_fp_add_C(MASKED, MASKED, f32_scalar(33554432.f), &shape, NULL, NULL, DT_FP32);
    tpu_bdc_fp_add(MASKED, MASKED, INDEX, &shape, NULL, NULL, &repeat, DT_FP32);
    reduce_piece(ROW_MIN, AT, PART, MASKED, from == 0, c, w);
  }
  // A value that is nowhere, since all are NaN.
  tpu_bdc_less_C(PART, AT, f32_scalar(33554432.f), f32_scalar(1.f), &one, NULL, NULL, DT_FP32, DT_FP32);
  tpu_bdc_fp_mul(AT, AT, PART, &one, NULL, NULL, NULL, DT_FP32);
}

KERNEL(reduce_rows, reduce_rows_t) {
  const row_op_t op = a->op <= SUM_SQUARES ? ROW_SUM : a->op == MAX_OF || a->op == ARG_MAX ? ROW_MAX : ROW_MIN;
  const bool finds = a->op >= ARG_MAX;
  const int at_once = rows_at_once(a->len);
  const span_t span = core_span(a->rows, 1);
  for (long long row = span.start; row < span.end; row += at_once) {
    const int c = (int)MIN(at_once, span.end - row);
    const dim4 one = {1, c, 1, 1};
    reduce(a, op, row, c);
    if (finds) {
      find(a, row, c);
      tpu_bdc_cast(PART, AT, &one, NULL, NULL, DT_UINT32, DT_FP32, RM_HALF_TO_EVEN);
      tpu_gdma_cpy_L2S(a->y + row * 4, PART, &one, NULL, NULL, DT_UINT32);
    } else {
      store_f32(a->y + row * dtype_bytes(a->y_dtype), ALL, PART, &one, NULL, a->y_dtype);
    }
  }
}

typedef struct {
  launch_t launch;
  uint64_t x;
  uint64_t y;
  int64_t outer;
  int64_t len;
  int64_t cols;
  uint32_t x_dtype;
  uint32_t y_dtype;
  uint32_t accumulate;
  uint32_t reserved;
} sum_columns_t;

// Columns in a lane: sixteen f32, what its unit takes at once. Rows of a piece.
#define WIDTH 16
#define HEIGHT 512

static void sum_block(const sum_columns_t *a, long long outer, long long column, int lanes, int w) {
  enum { TALL_X = 0, TALL_RAW = HEIGHT * WIDTH * 4, SUMS = 2 * TALL_RAW, MORE = SUMS + 64, SPARE = MORE + 64 };
  const dim4 out = {1, lanes, 1, w}, out_stride = {0, w, 0, 1};
  const padding_t none = {0, 0, 0, 0};
  const dim2 one = {1, 1};
  for (long long from = 0; from < a->len; from += HEIGHT) {
    const int h = (int)MIN(HEIGHT, a->len - from);
    const dim4 shape = {1, lanes, h, w}, stride = {0, w, (int)a->cols, 1};
    const dim2 down = {h, 1};
    load_f32(TALL_X, TALL_RAW, a->x + ((outer * a->len + from) * a->cols + column) * dtype_bytes(a->x_dtype), &shape, &stride, a->x_dtype);
    tpu_bdc_fp_avg_pool2d(from == 0 ? SUMS : MORE, TALL_X, &shape, &down, &none, &one, &one, DT_FP32, f32_scalar(1.f));
    if (from > 0) tpu_bdc_fp_add(SUMS, SUMS, MORE, &out, NULL, NULL, NULL, DT_FP32);
  }
  const global_addr_t y = a->y + (outer * a->cols + column) * dtype_bytes(a->y_dtype);
  if (a->accumulate) {
    load_f32(MORE, SPARE, y, &out, &out_stride, a->y_dtype);
    tpu_bdc_fp_add(SUMS, SUMS, MORE, &out, NULL, NULL, NULL, DT_FP32);
  }
  store_f32(y, SUMS, MORE, &out, &out_stride, a->y_dtype);
}

KERNEL(sum_columns, sum_columns_t) {
  // As few lanes as give every core a block.
  const long long groups = DIV_UP(a->cols, WIDTH);
  const int block = (int)MIN(LANES, DIV_UP(a->outer * groups, tpu_core_num())) * WIDTH;
  const long long blocks = DIV_UP(a->cols, block);
  for (long long task = tpu_core_index(); task < a->outer * blocks; task += tpu_core_num()) {
    const long long outer = task / blocks, column = task % blocks * block;
    const int cols = (int)MIN(block, a->cols - column);
    const int full = cols / WIDTH, rest = cols % WIDTH;
    if (full > 0) sum_block(a, outer, column, full, WIDTH);
    if (rest > 0) sum_block(a, outer, column + full * WIDTH, 1, rest);
  }
}
