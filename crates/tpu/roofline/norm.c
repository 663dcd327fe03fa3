#include "../kernels/norm.c"

#include "dry_run.h"

void step_of_norm(void) {
  const int norms = 2 * LAYERS + 1;
  RUN(norms, rms_norm, rms_norm_t, .x = SOMEWHERE, .weight = SOMEWHERE, .inv_rms = SOMEWHERE, .y = SOMEWHERE, .rows = TOKENS, .dim = DIM,
      .x_dtype = DT_BFP16, .y_dtype = DT_BFP16);
  // One launch for dx, one for what weight's gradient is summed of.
  RUN(norms, rms_norm_backward, rms_norm_backward_t, .x = SOMEWHERE, .weight = SOMEWHERE, .inv_rms = SOMEWHERE, .dy = SOMEWHERE, .dx = SOMEWHERE,
      .rows = TOKENS, .dim = DIM, .x_dtype = DT_BFP16, .dy_dtype = DT_BFP16);
  RUN(norms, rms_norm_backward, rms_norm_backward_t, .x = SOMEWHERE, .weight = SOMEWHERE, .inv_rms = SOMEWHERE, .dy = SOMEWHERE,
      .products = SOMEWHERE, .rows = TOKENS, .dim = DIM, .x_dtype = DT_BFP16, .dy_dtype = DT_BFP16);
}
