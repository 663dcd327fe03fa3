// The engines that are not there: what of the device's functions has an answer. The rest is the stub's, which does nothing.
#include "dry_run.h"

int dry_core;
unsigned dry_launch;

int tpu_core_index(void) { return dry_core; }
int tpu_core_num(void) { return CORES_OF_CHIP; }

// All of DRAM reads as 0.
#undef tpu_global_mem_addr
void *tpu_global_mem_addr(global_addr_t addr) {
  static char zeros[1 << 20];
  return &zeros[addr % 64];
}

void tpu_aligned_stride(dim4 *stride, int start_idx, const dim4 *shape, data_type_t dtype) {
  const int slots = (start_idx + shape->c + LANES - 1) / LANES, elements = 64 / dtype_bytes(dtype);
  stride->w = 1;
  stride->h = shape->w;
  stride->c = ALIGN(shape->h * shape->w, elements);
  stride->n = slots * stride->c;
}

void step_of_matmul(void), step_of_attention(void), step_of_norm(void), step_of_rope(void), step_of_swiglu(void), step_of_binary(void),
    step_of_optimizer(void), step_of_cross_entropy(void), step_of_reduce(void);

int main(void) {
  step_of_matmul();
  step_of_attention();
  step_of_norm();
  step_of_rope();
  step_of_swiglu();
  step_of_binary();
  step_of_reduce();
  step_of_cross_entropy();
  step_of_optimizer();
  return 0;
}
