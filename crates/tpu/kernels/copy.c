// dst[i] = src[i] over up to eight dims, each side with strides of its own: permutations, slices, expansions, joins.
//
// By DMA alone, four inner dims a command; the outer four and what is too long for a command are loops. Elements are
// moved as bits. The last dim has stride 1 on both sides (the host appends a dim of one element if it does not), since
// a command's w may not stride far. src may repeat (stride 0), dst may not.
// Limits: strides of the inner four dims below 2^31 elements.
#include "kernel.h"

#define DIMS 8

typedef struct {
  launch_t launch;
  uint64_t src;
  uint64_t dst;
  int64_t src_stride[DIMS];
  int64_t dst_stride[DIMS];
  int32_t shape[DIMS];
  int32_t step[DIMS];  // elements of each dim a command takes: 1 for the outer four, at most MAX_DMA_DIM
  uint32_t bytes;      // of an element
  uint32_t reserved;
} strided_copy_t;

KERNEL(strided_copy, strided_copy_t) {
  const data_type_t dtype = a->bytes == 1 ? DT_UINT8 : a->bytes == 2 ? DT_UINT16 : DT_UINT32;
  const dim4 src_stride = {(int)a->src_stride[4], (int)a->src_stride[5], (int)a->src_stride[6], (int)a->src_stride[7]};
  const dim4 dst_stride = {(int)a->dst_stride[4], (int)a->dst_stride[5], (int)a->dst_stride[6], (int)a->dst_stride[7]};
  int at[DIMS] = {0};
  for (long long command = 0;; command++) {
    if (command % tpu_core_num() == tpu_core_index()) {
      long long src = 0, dst = 0;
      for (int d = 0; d < DIMS; d++) {
        src += at[d] * a->src_stride[d];
        dst += at[d] * a->dst_stride[d];
      }
      int size[4];
      for (int d = 0; d < 4; d++) size[d] = MIN(a->step[4 + d], a->shape[4 + d] - at[4 + d]);
      const dim4 shape = {size[0], size[1], size[2], size[3]};
      tpu_gdma_cpy_S2S(a->dst + dst * a->bytes, a->src + src * a->bytes, &shape, &dst_stride, &src_stride, dtype);
    }
    int d = DIMS - 1;
    for (; d >= 0; d--) {
      at[d] += a->step[d];
      if (at[d] < a->shape[d]) break;
      at[d] = 0;
    }
    if (d < 0) return;
  }
}
