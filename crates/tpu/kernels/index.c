// Rows and elements by index. Indices are u32 or i32 and are looked at by the scalar core, which reports one that is out
// of range (FAULT_INDEX) and leaves its row or element out.
//
// select_rows:  y[o, i, :] = x[o, index[i], :], rows of `width` elements, by the gathering DMA; a bad index gives 0.
// add_rows:     y[o, index[i], :] += x[o, i, :], in the order of i; y f32 or of x's dtype. A core takes the rows of y
//               that are its own by number, so that no two write one.
// by_element:   along the middle of [outer, size, inner] with indices of [outer, count, inner]:
//               GATHER y = x[index], SCATTER y[index] = x, SCATTER_ADD y[index] += x (in order; f32, bf16).
//               One element at a time on the scalar core: these are no operations of a training step.
// Limits: offsets of by_element below 2^31 elements.
#include "indices.h"

typedef struct {
  launch_t launch;
  uint64_t x;
  uint64_t index;
  uint64_t y;
  int64_t outer;
  int64_t size;   // rows that an index chooses from
  int64_t count;  // indices
  int64_t width;
  uint32_t x_dtype;
  uint32_t y_dtype;
} rows_by_index_t;

KERNEL(select_rows, rows_by_index_t) {
  const int bytes = dtype_bytes(a->x_dtype);
  check_indices(&a->launch, a->index, a->count, a->size);
  const span_t span = core_span(a->count, 1);
  for (long long outer = 0; outer < a->outer; outer++) {
    for (long long i = span.start; i < span.end; i += MAX_DMA_DIM) {
      const int h = (int)MIN(MAX_DMA_DIM, span.end - i);
      for (long long at = 0; at < a->width; at += MAX_DMA_DIM) {
        const dim4 shape = {1, 1, h, (int)MIN(MAX_DMA_DIM, a->width - at)};
        const dim4 stride = {0, 0, (int)a->width, 1};
        tpu_gdma_h_gather_S2S(a->y + ((outer * a->count + i) * a->width + at) * bytes, a->x + (outer * a->size * a->width + at) * bytes,
                              a->index + i * 4, false, u32_scalar(0), &shape, (int)a->size, &stride, &stride, NULL, a->x_dtype);
      }
    }
  }
}

// Elements of a row in a lane at once.
#define MAX_W 4096

// y += x for `count` elements in a row, spread over the lanes.
static void add_run(global_addr_t y, data_type_t y_dtype, global_addr_t x, data_type_t x_dtype, long long count) {
  enum { SUM = 0, MORE = MAX_W * 4, RAW = 2 * MORE };
  for (long long at = 0; at < count;) {
    const long long left = count - at;
    const int w = (int)MIN(MAX_W, DIV_UP(left, LANES));
    const dim4 shape = {1, (int)MIN(LANES, left / w), 1, w};
    load_f32(SUM, RAW, y + at * dtype_bytes(y_dtype), &shape, NULL, y_dtype);
    load_f32(MORE, RAW, x + at * dtype_bytes(x_dtype), &shape, NULL, x_dtype);
    tpu_bdc_fp_add(SUM, SUM, MORE, &shape, NULL, NULL, NULL, DT_FP32);
    store_f32(y + at * dtype_bytes(y_dtype), SUM, RAW, &shape, NULL, y_dtype);
    at += (long long)shape.c * w;
  }
}

KERNEL(add_rows, rows_by_index_t) {
  check_indices(&a->launch, a->index, a->count, a->size);
  const int32_t *index = read_indices(a->index, a->count);
  for (long long outer = 0; outer < a->outer; outer++) {
    for (long long i = 0; i < a->count; i++) {
      if (!is_in_range(index[i], a->size) || index[i] % tpu_core_num() != tpu_core_index()) continue;
      const long long to = (outer * a->size + index[i]) * a->width, from = (outer * a->count + i) * a->width;
      add_run(a->y + to * dtype_bytes(a->y_dtype), a->y_dtype, a->x + from * dtype_bytes(a->x_dtype), a->x_dtype, a->width);
    }
  }
}

typedef struct {
  launch_t launch;
  uint64_t x;
  uint64_t index;
  uint64_t y;
  int64_t outer;
  int64_t size;   // of the side that is indexed
  int64_t count;  // of the indices and the other side
  int64_t inner;
  uint32_t op;
  uint32_t dtype;
  uint64_t x_bytes;
  uint64_t y_bytes;
} by_element_t;

// In the order of the host's enum.
enum { GATHER, SCATTER, SCATTER_ADD };

static float bf16_to_f32(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, 4);
  return value;
}

static uint16_t f32_to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void add_element(char *to, const char *from, data_type_t dtype) {
  if (dtype == DT_FP32) {
    *(float *)to += *(const float *)from;
  } else {
    uint16_t *sum = (uint16_t *)to;
    *sum = f32_to_bf16(bf16_to_f32(*sum) + bf16_to_f32(*(const uint16_t *)from));
  }
}

KERNEL(by_element, by_element_t) {
  if (tpu_core_index() != 0) return;
  const int bytes = dtype_bytes(a->dtype);
  const int32_t *index = read_indices(a->index, a->outer * a->count * a->inner);
  tpu_invalidate_cache(a->x, ALIGN(a->x_bytes, 64));
  tpu_invalidate_cache(a->y, ALIGN(a->y_bytes, 64));
  const char *x = (const char *)tpu_global_mem_addr(a->x);
  char *y = (char *)tpu_global_mem_addr(a->y);
  for (long long outer = 0, i = 0; outer < a->outer; outer++) {
    for (long long j = 0; j < a->count; j++) {
      for (long long inner = 0; inner < a->inner; inner++, i++) {
        if (!is_in_range(index[i], a->size)) {
          launch_fault(&a->launch, FAULT_INDEX);
          continue;
        }
        const long long there = ((outer * a->size + index[i]) * a->inner + inner) * bytes;
        if (a->op == GATHER) {
          memcpy(y + i * bytes, x + there, bytes);
        } else if (a->op == SCATTER) {
          memcpy(y + there, x + i * bytes, bytes);
        } else {
          add_element(y + there, x + i * bytes, a->dtype);
        }
      }
    }
  }
  tpu_flush_cache(a->y, ALIGN(a->y_bytes, 64));
}
