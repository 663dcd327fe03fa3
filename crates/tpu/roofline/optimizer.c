#include "../kernels/optimizer.c"

#include "dry_run.h"

static void adamw(int times, int rows, int cols) {
  RUN(times, optimizer_step, optimizer_step_t, .param = SOMEWHERE, .grad = SOMEWHERE, .grad_scale = SOMEWHERE, .state = {SOMEWHERE, SOMEWHERE},
      .n = (uint64_t)rows * cols, .state_dtype = {DT_FP32, DT_FP32}, .num_states = 2, .rule = ADAM, .keep = 1);
}

void step_of_optimizer(void) {
  adamw(1, VOCAB, DIM);
  adamw(2 * LAYERS, DIM, DIM);
  adamw(2 * LAYERS, DIM, KV_HEADS * HEAD_DIM);
  adamw(3 * LAYERS, HIDDEN, DIM);
}
