// The frame of element-wise kernels: flat ranges, tile by tile, every operand as f32 in a slot of the lanes' memory.
#pragma once

#include "kernel.h"

// Elements of a tile in a lane.
#define TILE_W 2048
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

// ---- tiles one after the other, the next loaded and the last stored while one is computed ----

// An operand or a result that passes through, by tiles. `slot` has its tile as f32: what was loaded, what is to be stored, or both.
typedef struct {
  int slot;
  global_addr_t base;
  data_type_t dtype;
  bool is_read, is_written;
  int raw[2];  // as in DRAM, in turn; of f32 the slots themselves
  int wide;    // of other types
} stream_t;

static inline stream_t stream_of(int *next_slot, global_addr_t base, data_type_t dtype, bool is_read, bool is_written) {
  stream_t s = {.base = base, .dtype = dtype, .is_read = is_read, .is_written = is_written};
  for (int i = 0; i < 2; i++) s.raw[i] = (*next_slot)++;
  if (dtype != DT_FP32) s.wide = (*next_slot)++;
  return s;
}
static inline stream_t reads(int *next_slot, global_addr_t base, data_type_t dtype) { return stream_of(next_slot, base, dtype, true, false); }
static inline stream_t writes(int *next_slot, global_addr_t base, data_type_t dtype) { return stream_of(next_slot, base, dtype, false, true); }
static inline stream_t updates(int *next_slot, global_addr_t base, data_type_t dtype) { return stream_of(next_slot, base, dtype, true, true); }

typedef struct {
  stream_t *streams;
  int count;
  span_t left;
  dim4 shape, next_shape, last_shape;  // of the tile at hand, and of those beside it
  long long at, next_at, last_at;
  bool has_next, has_last;
  int buffer;
} flow_t;

static inline void flow_load(const flow_t *f, int buffer) {
  for (int i = 0; i < f->count; i++) {
    const stream_t *s = &f->streams[i];
    if (s->is_read) tpu_gdma_cpy_S2L(SLOT(s->raw[buffer]), s->base + f->next_at * dtype_bytes(s->dtype), &f->next_shape, NULL, NULL, s->dtype);
  }
}

static inline void flow_store(const flow_t *f, int buffer) {
  if (!f->has_last) return;
  for (int i = 0; i < f->count; i++) {
    const stream_t *s = &f->streams[i];
    if (s->is_written) tpu_gdma_cpy_L2S(s->base + f->last_at * dtype_bytes(s->dtype), SLOT(s->raw[buffer]), &f->last_shape, NULL, NULL, s->dtype);
  }
}

// Of the elements of `span`. Use: flow_t f = flow_of(..); while (flow_next(&f)) { .. f.shape and the streams' slots ..; flow_done(&f); }
static inline flow_t flow_of(stream_t *streams, int count, span_t span) {
  flow_t f = {.streams = streams, .count = count, .left = span, .buffer = 1};
  f.has_next = next_tile(&f.left, &f.next_shape, &f.next_at);
  if (f.has_next) flow_load(&f, 0);
  return f;
}

static inline bool flow_next(flow_t *f) {
  const int last = f->buffer;
  if (!f->has_next) {
    flow_store(f, last);
    return false;
  }
  f->buffer = 1 - last;
  f->shape = f->next_shape;
  f->at = f->next_at;
  f->has_next = next_tile(&f->left, &f->next_shape, &f->next_at);
  tpu_parallel_start();
  // A buffer is stored before it is loaded again, as commands of one engine run in order.
  flow_store(f, last);
  if (f->has_next) flow_load(f, last);
  for (int i = 0; i < f->count; i++) {
    stream_t *s = &f->streams[i];
    s->slot = s->dtype == DT_FP32 ? s->raw[f->buffer] : s->wide;
    if (s->is_read && s->dtype != DT_FP32)
      tpu_bdc_cast(SLOT(s->slot), SLOT(s->raw[f->buffer]), &f->shape, NULL, NULL, DT_FP32, s->dtype, RM_HALF_TO_EVEN);
  }
  return true;
}

// Rounds what is written, as store_tile does; it is used up.
static inline void flow_done(flow_t *f) {
  for (int i = 0; i < f->count; i++) {
    const stream_t *s = &f->streams[i];
    if (!s->is_written || s->dtype == DT_FP32) continue;
    if (is_float(s->dtype)) {
      round_f32(SLOT(s->raw[f->buffer]), SLOT(s->slot), &f->shape, s->dtype);
    } else {
      tpu_bdc_cast(SLOT(s->raw[f->buffer]), SLOT(s->slot), &f->shape, NULL, NULL, s->dtype, DT_FP32, RM_TOWARDS_ZERO);
    }
  }
  tpu_parallel_end();
  f->last_shape = f->shape;
  f->last_at = f->at;
  f->has_last = true;
}
