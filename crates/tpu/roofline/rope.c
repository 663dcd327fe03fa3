#include "../kernels/rope.c"

#include "dry_run.h"

static void turned(int heads, bool inverse) {
  RUN(LAYERS, rope, rope_t, .x = SOMEWHERE, .cos = SOMEWHERE, .sin = SOMEWHERE, .positions = SOMEWHERE, .angles = SOMEWHERE, .y = SOMEWHERE, .size = LENGTH, .x_batch = LENGTH * heads * HEAD_DIM,
      .x_token = heads * HEAD_DIM, .x_head = HEAD_DIM, .batch = BATCH, .tokens = LENGTH, .heads = heads, .dim = HEAD_DIM, .inverse = inverse,
      .dtype = DT_BFP16);
}

void step_of_rope(void) {
  for (int back = 0; back < 2; back++) {
    turned(NUM_HEADS, back);
    turned(KV_HEADS, back);
  }
}
