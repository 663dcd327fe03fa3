#include "../kernels/binary.c"

#include "dry_run.h"

// Sums of the residual stream and of its gradients, two a layer each way.
void step_of_binary(void) {
  RUN(4 * LAYERS, binary, binary_t, .a = SOMEWHERE, .b = SOMEWHERE, .y = SOMEWHERE, .n = (uint64_t)TOKENS * DIM, .op = ADD, .a_dtype = DT_BFP16,
      .b_dtype = DT_BFP16, .y_dtype = DT_BFP16);
}
