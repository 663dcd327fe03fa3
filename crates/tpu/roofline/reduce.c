#include "../kernels/reduce.c"

#include "dry_run.h"

static void squares(int times, int rows, int cols) {
  const int len = 4096;
  RUN(times, reduce_rows, reduce_rows_t, .x = SOMEWHERE, .y = SOMEWHERE, .rows = (int64_t)rows * cols / len, .len = len, .op = SUM_SQUARES,
      .x_dtype = DT_FP32, .y_dtype = DT_FP32);
}

void step_of_reduce(void) {
  // The gradient of each norm's weight; the squares of all gradients, for their norm.
  RUN(2 * LAYERS + 1, sum_columns, sum_columns_t, .x = SOMEWHERE, .y = SOMEWHERE, .outer = 1, .len = TOKENS, .cols = DIM, .x_dtype = DT_FP32,
      .y_dtype = DT_FP32);
  squares(1, VOCAB, DIM);
  squares(2 * LAYERS, DIM, DIM);
  squares(2 * LAYERS, DIM, KV_HEADS * HEAD_DIM);
  squares(3 * LAYERS, HIDDEN, DIM);
}
