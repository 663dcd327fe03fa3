// y[i] = value, any dtype.
//
// By DMA alone: the value is written as bits. y is contiguous. Limits: none.
#include "kernel.h"

typedef struct {
  launch_t launch;
  uint64_t y;
  uint64_t n;
  uint32_t bits;  // of one element
  uint32_t dtype;
} fill_t;

KERNEL(fill, fill_t) {
  const int bytes = dtype_bytes(a->dtype);
  const span_t span = core_span(a->n, LANES);
  for (long long i = span.start; i < span.end;) {
    const long long left = span.end - i;
    const int w = (int)MIN(left, MAX_DMA_DIM);
    const int h = (int)MIN(left / w, MAX_DMA_DIM);
    const dim4 shape = {1, 1, h, w};
    tpu_gdma_set_C_system(a->y + i * bytes, u32_scalar(a->bits), &shape, NULL, a->dtype);
    i += (long long)h * w;
  }
}
