// Breaks one rule of `checks.h`, whose number is the argument; 0: none.
#include <stdlib.h>

#include "device.h"

int main(int argc, char **argv) {
  (void)argc;
  const int broken = atoi(argv[1]);
  const dim4 shape = {1, 64, broken == 1 ? 65536 : 1, 16}, stride = {0, 16, 16, broken == 2 ? 64 : 1};
  const local_addr_t at = broken == 3 ? 32 : broken == 4 ? 256 << 10 : 0;
  tpu_gdma_cpy_S2L(at, broken == 5 ? 0x40000002 : 0x40000000, &shape, NULL, &stride, DT_FP32);
  tpu_bdc_fp_mm(0, 0, broken == 6 ? (255 << 10) : 0, 64, 1024, 64, DT_FP32, DT_BFP16, false);
  tpu_invalidate_cache(0x40000000, 64);
  tpu_global_mem_addr(broken == 7 ? 0x40000040 : 0x40000000);
  tpu_flush_cache(0x40000000, broken == 8 ? 128 : 64);
  // The next tile is loaded beside the one that is worked on, or over it.
  const dim4 tile = {1, 64, 1, 16};
  tpu_parallel_start();
  tpu_gdma_cpy_S2L(broken == 9 ? 0 : 64, 0x40000000, &tile, NULL, NULL, DT_FP32);
  tpu_bdc_fp_add(128, 0, 0, &tile, NULL, NULL, NULL, DT_FP32);
  tpu_parallel_end();
  return 0;
}
