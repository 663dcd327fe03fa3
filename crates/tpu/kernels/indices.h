// Indices as the scalar core looks at them.
#pragma once

#include "kernel.h"

static inline const int32_t *read_indices(uint64_t address, long long count) {
  tpu_invalidate_cache(address, ALIGN(count * 4, 64));
  return (const int32_t *)tpu_global_mem_addr(address);
}

static inline bool is_in_range(int32_t index, long long size) { return index >= 0 && index < size; }

// Reports one that is out of range, if any is.
static inline void check_indices(const launch_t *launch, uint64_t address, long long count, long long size) {
  if (tpu_core_index() != 0) return;
  const int32_t *index = read_indices(address, count);
  for (long long i = 0; i < count; i++) {
    if (is_in_range(index[i], size)) continue;
    launch_fault(launch, FAULT_INDEX);
    return;
  }
}
