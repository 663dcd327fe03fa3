// Faults on purpose, for the tests of supervision: what a bad launch and a hanging device look like from the host.
#include <stdio.h>
#include <stdlib.h>

#include "kernel.h"

typedef struct {
  launch_t launch;
} planted_t;

KERNEL(planted_assert, planted_t) {
  // A shape of the DMA engine that does not exist: the emulator's own check ends the process.
  (void)a;
  const dim4 nothing = {0, 0, 0, 0};
  tpu_gdma_cpy_S2S(0, 0, &nothing, NULL, NULL, DT_FP32);
}

KERNEL(planted_hang, planted_t) {
  (void)a;
  for (volatile int forever = 1; forever;) {
  }
}
