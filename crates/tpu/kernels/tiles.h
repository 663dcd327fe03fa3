// The frame of element-wise kernels: flat ranges, tile by tile, every operand as f32 in a slot of the lanes' memory.
#pragma once

#include "kernel.h"

// Elements of a tile in a lane.
#define TILE_W 4096
// Below the slots: tables of exp, log and the like.
#define TABLE(i) ((local_addr_t)((i) * 1024))
#define NUM_TABLES 8
// Slot i holds a tile of f32, or of anything narrower.
#define SLOT(i) ((local_addr_t)(NUM_TABLES * 1024 + (i) * TILE_W * 4))

static inline bool is_float(data_type_t dtype) { return dtype == DT_FP32 || dtype == DT_BFP16 || dtype == DT_FP16; }

// Takes the next tile of `span`: its shape, and where it begins.
static inline bool next_tile(span_t *span, dim4 *shape, long long *at) {
  if (span->start >= span->end) return false;
  *shape = flat_tile(span->end - span->start, TILE_W);
  *at = span->start;
  span->start += (long long)shape->c * shape->w;
  return true;
}

// Elements `at ..` of a contiguous operand of any dtype as f32 in `slot`; `raw` is another slot. Integers beyond 2^24 are rounded.
static inline void load_tile(int slot, int raw, global_addr_t src, long long at, const dim4 *shape, data_type_t dtype) {
  load_f32(SLOT(slot), SLOT(raw), src + at * dtype_bytes(dtype), shape, NULL, dtype);
}

// Stores f32: rounded to nearest even to a float type, towards zero to an integer.
static inline void store_tile(global_addr_t dst, long long at, int slot, int raw, const dim4 *shape, data_type_t dtype) {
  const global_addr_t to = dst + at * dtype_bytes(dtype);
  if (is_float(dtype)) {
    store_f32(to, SLOT(slot), SLOT(raw), shape, NULL, dtype);
    return;
  }
  tpu_bdc_cast(SLOT(raw), SLOT(slot), shape, NULL, NULL, dtype, DT_FP32, RM_TOWARDS_ZERO);
  tpu_gdma_cpy_L2S(to, SLOT(raw), shape, NULL, NULL, dtype);
}

// One element for all: in every lane at `address`, to be read with the strides NO_STRIDE.
static const dim4 NO_STRIDE = {0, 0, 0, 0};

static inline void load_scalar(local_addr_t address, local_addr_t raw, global_addr_t src, data_type_t dtype) {
  const dim4 shape = {1, LANES, 1, 1};
  if (dtype == DT_FP32) {
    tpu_gdma_channel_bcast_S2L(address, src, &shape, NULL, NULL, dtype);
    return;
  }
  tpu_gdma_channel_bcast_S2L(raw, src, &shape, NULL, NULL, dtype);
  tpu_bdc_cast(address, raw, &shape, NULL, NULL, DT_FP32, dtype, RM_HALF_TO_EVEN);
}
