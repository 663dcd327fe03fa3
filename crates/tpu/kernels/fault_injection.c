// Faults on purpose, for the tests of supervision: what a bad launch and a hanging device look like from the host.
#include "kernel.h"

typedef struct {
  launch_t launch;
} injected_t;

KERNEL(injected_assert, injected_t) {
  // A type that does not exist: the library's own check ends the process.
  (void)a;
  (void)tpu_data_type_size((data_type_t)99);
}

KERNEL(injected_hang, injected_t) {
  (void)a;
  for (volatile int forever = 1; forever;) {
  }
}
