#include "../kernels/cross_entropy.c"

#include "dry_run.h"

enum { LOSS_ROWS = 1024 };

void step_of_cross_entropy(void) {
  RUN(TOKENS / LOSS_ROWS, cross_entropy, cross_entropy_t, .logits = SOMEWHERE, .labels = SOMEWHERE, .stats = SOMEWHERE, .grad = SOMEWHERE,
      .rows = LOSS_ROWS, .vocab = VOCAB, .stats_stride = TOKENS, .ignore_index = -100, .grad_dtype = DT_BFP16, .grad_scale = 1);
}
