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
  // DMA dims are 16 bits: rows of 32768 elements, then the rest.
  for (long long i = span.start; i < span.end;) {
    const long long left = span.end - i;
    const int w = (int)MIN(left, 32768);
    const int h = (int)MIN(left / w, 32768);
    const dim4 shape = {1, 1, h, w};
    tpu_gdma_set_C_system(a->y + i * bytes, u32_scalar(a->bits), &shape, NULL, a->dtype);
    i += (long long)h * w;
  }
}
