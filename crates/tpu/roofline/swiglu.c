#include "../kernels/swiglu.c"

#include "dry_run.h"

void step_of_swiglu(void) {
  RUN(LAYERS, swiglu, swiglu_t, .gate = SOMEWHERE, .up = SOMEWHERE, .y = SOMEWHERE, .n = (uint64_t)TOKENS * HIDDEN, .dtype = DT_BFP16);
  RUN(LAYERS, swiglu_backward, swiglu_backward_t, .gate = SOMEWHERE, .up = SOMEWHERE, .dy = SOMEWHERE, .dgate = SOMEWHERE, .dup = SOMEWHERE,
      .n = (uint64_t)TOKENS * HIDDEN, .dtype = DT_BFP16);
}
