// Conventions of our kernels.
//
// A kernel is `KERNEL(name, args_t) { .. }`. The host passes a copy of `args_t` (the Rust struct of the same fields,
// `#[repr(C)]`) whose first field is `launch`; `a` points to it. The host has checked every shape, dtype and range
// before: a kernel does not check again, since nothing that it finds comes back. All cores of the launch run the body
// and share the work out by `tpu_core_index()`. Launches of one stream run one after the other.
#pragma once

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "device.h"

#define LANES 64
#define F32_MAX 3.4028235e38f
// A dim of a DMA command has 16 bits; what is longer goes in pieces of this.
#define MAX_DMA_DIM 32768
#define MIN(x, y) ((x) < (y) ? (x) : (y))
#define MAX(x, y) ((x) > (y) ? (x) : (y))
#define DIV_UP(x, y) (((x) + (y)-1) / (y))
#define ALIGN(x, y) (DIV_UP(x, y) * (y))

// Common to all launches. `state` is the address of three words that the host reads when something is wrong:
// the sequence number of the last launch that began, the first fault, and the launch that reported it. `started` is a
// word of the host's for the same sequence number, which only the emulator can reach: it runs in the host's process.
typedef struct {
  uint64_t state;
  uint64_t started;
  uint32_t sequence;
  uint32_t reserved;
} launch_t;

// What a kernel may find wrong in data that the host has not seen.
enum { FAULT_NONE = 0, FAULT_INDEX = 1 };

static inline scalar_t f32_scalar(float value) { return (scalar_t){.f32 = value}; }
static inline scalar_t u32_scalar(uint32_t value) { return (scalar_t){.u32 = value}; }

static inline void launch_begin(const launch_t *launch) {
#ifdef EMULATOR
  // By every core: the first one to begin may be the one to fail, and none begins before all are through with the last.
  *(volatile uint32_t *)launch->started = launch->sequence;
#endif
  if (tpu_core_index() != 0) return;
  const dim4 one = {1, 1, 1, 1};
  tpu_gdma_set_C_system(launch->state, u32_scalar(launch->sequence), &one, NULL, DT_UINT32);
}

// Leaves `fault` for the host, unless there is one already.
static inline void launch_fault(const launch_t *launch, uint32_t fault) {
  tpu_invalidate_cache(launch->state, 64);
  volatile uint32_t *words = (volatile uint32_t *)tpu_global_mem_addr(launch->state);
  if (words[1] != FAULT_NONE) return;
  words[1] = fault;
  words[2] = launch->sequence;
  tpu_flush_cache(launch->state, 64);
}

#ifdef EMULATOR
#define COUNT_FROM_HERE count_from_here
#define COUNT_TO_HERE count_to_here
#else
#define COUNT_FROM_HERE()
#define COUNT_TO_HERE(name, launch)
#endif

#if defined(EMULATOR) && defined(BM1690)
#define REGISTER(name)
#else
// When the module is loaded. The emulator of a BM1690 looks kernels up by their names.
#define REGISTER(name)                                                 \
  static void name##_registered(const void *raw) { name(raw); }        \
  __attribute__((constructor)) static void name##_register(void) {     \
    tpu_register_kernel_func(#name, name##_registered, 0);             \
  }
#endif

// `name_args_bytes` lets the host compare the size of its struct with ours before the first launch.
// `name_batched` runs it within a launch that has begun (`batch.c`).
#define KERNEL(name, args_t)                        \
  static void name##_body(const args_t *a);         \
  const uint32_t name##_args_bytes = sizeof(args_t); \
  void name##_batched(const void *raw) {            \
    args_t args;                                    \
    memcpy(&args, raw, sizeof args);                \
    COUNT_FROM_HERE();                              \
    launch_begin(&args.launch);                     \
    name##_body(&args);                             \
    COUNT_TO_HERE(#name, args.launch.sequence);     \
  }                                                 \
  int name(const void *raw) {                       \
    tpu_initialize();                               \
    name##_batched(raw);                            \
    tpu_poll();                                     \
    return 0;                                       \
  }                                                 \
  REGISTER(name)                                    \
  static void name##_body(const args_t *a)

// ---- sharing out ----

typedef struct { long long start, end; } span_t;

// This core's part of 0..n in multiples of `unit`.
static inline span_t core_span(long long n, long long unit) {
  const long long share = ALIGN(DIV_UP(n, (long long)tpu_core_num()), unit);
  const long long start = MIN(n, share * tpu_core_index());
  return (span_t){start, MIN(n, start + share)};
}

// The next tile of a flat range: as many full columns of all lanes as fit, else what is left, one element a lane.
// Takes shape.c * shape.w elements, which lie in order in DRAM.
static inline dim4 flat_tile(long long left, int max_w) {
  if (left < LANES) return (dim4){1, (int)left, 1, 1};
  return (dim4){1, LANES, 1, (int)MIN((long long)max_w, left / LANES)};
}

// ---- loads and stores through f32 ----

// Loads `shape` as f32 to `dst`; a 16-bit source goes through `raw`, of the same size as `dst`.
static inline void load_f32(local_addr_t dst, local_addr_t raw, global_addr_t src, const dim4 *shape, const dim4 *src_stride, data_type_t dtype) {
  if (dtype == DT_FP32) {
    tpu_gdma_cpy_S2L(dst, src, shape, NULL, src_stride, dtype);
    return;
  }
  tpu_gdma_cpy_S2L(raw, src, shape, NULL, src_stride, dtype);
  tpu_bdc_cast(dst, raw, shape, NULL, NULL, DT_FP32, dtype, RM_HALF_TO_EVEN);
}

// The engine's casts turn what is too large for a 16-bit type, infinities too, into its largest number. So that an overflow
// is not lost, such elements of the f32 at `x` become NaN before they are cast; `work` is of the same size.
static inline void overflow_to_nan(local_addr_t x, local_addr_t work, const dim4 *shape, data_type_t dtype) {
  // f16 rounds 65520 to infinity, which this takes to the end of f32's range. An infinity times 0 is NaN, any number is 0.
  const float to_end = dtype == DT_FP16 ? (float)(0x1p128 / 65520) : 1.f;
  tpu_bdc_fp_mul_C(work, x, f32_scalar(to_end), shape, NULL, NULL, DT_FP32);
  tpu_bdc_fp_mul_C(work, work, f32_scalar(0), shape, NULL, NULL, DT_FP32);
  tpu_bdc_fp_add(x, x, work, shape, NULL, NULL, NULL, DT_FP32);
}

// f32 at `src` rounded to the 16-bit `dtype` at `raw`, to nearest even, an overflow as NaN; `raw` has the size of `src`, which is used up.
static inline void round_f32(local_addr_t raw, local_addr_t src, const dim4 *shape, data_type_t dtype) {
  overflow_to_nan(src, raw, shape, dtype);
  tpu_bdc_cast(raw, src, shape, NULL, NULL, dtype, DT_FP32, RM_HALF_TO_EVEN);
}

// Stores f32 at `src` as `dtype`, rounded like that; `raw` as above. A 16-bit store uses `src` up.
static inline void store_f32(global_addr_t dst, local_addr_t src, local_addr_t raw, const dim4 *shape, const dim4 *dst_stride, data_type_t dtype) {
  if (dtype == DT_FP32) {
    tpu_gdma_cpy_L2S(dst, src, shape, dst_stride, NULL, dtype);
    return;
  }
  round_f32(raw, src, shape, dtype);
  tpu_gdma_cpy_L2S(dst, raw, shape, dst_stride, NULL, dtype);
}
