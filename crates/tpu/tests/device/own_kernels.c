// Kernels of a user's own, for the tests: arithmetic, and two that report.
#include "tiles.h"

typedef struct {
  launch_t launch;
  uint64_t x;
  uint64_t y;
  uint64_t n;
  float by;
  uint32_t reserved;
} times_t;

// y = x * by, f32.
KERNEL(times, times_t) {
  enum { X };
  span_t span = core_span(a->n, LANES);
  dim4 shape;
  long long at;
  while (next_tile(&span, &shape, &at)) {
    load_tile(X, X, a->x, at, &shape, DT_FP32);
    tpu_bdc_fp_mul_C(SLOT(X), SLOT(X), f32_scalar(a->by), &shape, NULL, NULL, DT_FP32);
    store_tile(a->y, at, X, X, &shape, DT_FP32);
  }
}

typedef struct {
  launch_t launch;
  uint64_t index;
  uint64_t size;
} is_below_t;

// Reports an index that is not below `size`.
KERNEL(is_below, is_below_t) {
  if (tpu_core_index() != 0) return;
  tpu_invalidate_cache(a->index, 64);
  const uint32_t *index = (const uint32_t *)tpu_global_mem_addr(a->index);
  if (*index >= a->size) launch_fault(&a->launch, FAULT_INDEX);
}

typedef struct {
  launch_t launch;
} complains_t;

// A fault that we know nothing of.
KERNEL(complains, complains_t) {
  if (tpu_core_index() == 0) launch_fault(&a->launch, 70);
}
