// What a chip minds and the emulator lets pass, checked by the emulator's build: so that a kernel that passes its tests breaks
// none of these rules there. What fails ends the process, as the emulator's own checks do, and is told by the supervisor.
//
// - A dim of a DMA command is 1 to 65535, the stride of w at most 128 bytes.
// - Addresses are multiples of their element; of 64 in local memory, where the layout is the aligned one.
// - What a command touches of local memory lies in a lane's 256 KiB.
// - No address or stride is beyond what 32 bits hold in elements, which the engines count with.
// - The scalar core looks at memory whose lines it has invalidated, and flushes only those.
// - Between tpu_parallel_start and _end, neither engine writes what the other touches.
#pragma once

#include "counts.h"

#define LOCAL_BYTES (256 << 10)
#define MAX_DIM 65535

#define CHECK(holds)                                                                        \
  do {                                                                                      \
    if (!(holds)) {                                                                         \
      printf("%s: Assertion \"%s\" failed: a chip would not do this.\n", __func__, #holds); \
      fflush(stdout);                                                                       \
      exit(233);                                                                            \
    }                                                                                       \
  } while (0)

static inline void check_shape(const dim4 *shape) {
  CHECK(shape->n >= 1 && shape->c >= 1 && shape->h >= 1 && shape->w >= 1);
  CHECK(shape->n <= MAX_DIM && shape->c <= MAX_DIM && shape->h <= MAX_DIM && shape->w <= MAX_DIM);
}

// What each engine touches of local memory in a parallel region.
#define MAX_TOUCHES 1024
typedef struct { bool writes; long long start, end; } touch_t;
__attribute__((weak)) __thread touch_t touches[2][MAX_TOUCHES];
__attribute__((weak)) __thread int num_touches[2];

static inline void touch(engine_t engine, bool writes, long long start, long long end) {
  if (!counts.parallel) return;
  for (int i = 0; i < num_touches[!engine]; i++) {
    const touch_t *other = &touches[!engine][i];
    CHECK(!(writes || other->writes) || end <= other->start || other->end <= start);
  }
  CHECK(num_touches[engine] < MAX_TOUCHES);
  touches[engine][num_touches[engine]++] = (touch_t){writes, start, end};
}

static inline void checked_parallel_start(void) {
  CHECK(!counts.parallel);
  engines_wait();
  counts.parallel = true;
  num_touches[DMA] = num_touches[ARITHMETIC] = 0;
  tpu_parallel_start();
}
#define tpu_parallel_start checked_parallel_start

static inline void checked_parallel_end(void) {
  CHECK(counts.parallel);
  counts.parallel = false;
  engines_wait();
  tpu_parallel_end();
}
#define tpu_parallel_end checked_parallel_end

static inline long long aligned_bytes(const dim4 *shape, data_type_t dtype) {
  const long long slots = (shape->c + 63) / 64;
  return shape->n * slots * (((long long)shape->h * shape->w * dtype_bytes(dtype) + 63) / 64 * 64);
}

static inline void check_local(engine_t engine, bool writes, local_addr_t at, const dim4 *shape, const dim4 *stride, data_type_t dtype) {
  check_shape(shape);
  const long long bytes = dtype_bytes(dtype), slots = (shape->c + 63) / 64;
  CHECK(at % bytes == 0);
  long long extent;
  if (stride == NULL) {
    CHECK(at % 64 == 0);
    extent = aligned_bytes(shape, dtype);
  } else {
    extent = ((shape->n - 1LL) * stride->n + (slots - 1) * stride->c + (shape->h - 1LL) * stride->h +
              (shape->w - 1LL) * stride->w + 1) * bytes;
  }
  CHECK(at + extent <= LOCAL_BYTES);
  touch(engine, writes, at, at + extent);
}

static inline void check_source(local_addr_t at, const dim4 *shape, const dim4 *stride, data_type_t dtype) {
  check_local(ARITHMETIC, false, at, shape, stride, dtype);
}

static inline void check_result(local_addr_t at, const dim4 *shape, const dim4 *stride, data_type_t dtype) {
  check_local(ARITHMETIC, true, at, shape, stride, dtype);
}

static inline void check_system(global_addr_t at, const dim4 *shape, const dim4 *stride, data_type_t dtype) {
  check_shape(shape);
  const long long bytes = dtype_bytes(dtype);
  CHECK(at != 0 && at % bytes == 0);
  if (stride != NULL) {
    CHECK(stride->n >= 0 && stride->c >= 0 && stride->h >= 0 && stride->w >= 0);
    CHECK(shape->w == 1 || stride->w * bytes <= 128);
  }
}

static inline void checked_cpy_S2L(local_addr_t dst, global_addr_t src, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dtype) {
  check_local(DMA, true, dst, shape, dst_stride, dtype);
  check_system(src, shape, src_stride, dtype);
  count_dma(elements_of(shape) * dtype_bytes(dtype), 0);
  tpu_gdma_cpy_S2L(dst, src, shape, dst_stride, src_stride, dtype);
}
#define tpu_gdma_cpy_S2L checked_cpy_S2L

static inline void checked_cpy_L2S(global_addr_t dst, local_addr_t src, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dtype) {
  check_system(dst, shape, dst_stride, dtype);
  check_local(DMA, false, src, shape, src_stride, dtype);
  count_dma(0, elements_of(shape) * dtype_bytes(dtype));
  tpu_gdma_cpy_L2S(dst, src, shape, dst_stride, src_stride, dtype);
}
#define tpu_gdma_cpy_L2S checked_cpy_L2S

static inline void checked_cpy_S2S(global_addr_t dst, global_addr_t src, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dtype) {
  check_system(dst, shape, dst_stride, dtype);
  check_system(src, shape, src_stride, dtype);
  count_dma(elements_of(shape) * dtype_bytes(dtype), elements_of(shape) * dtype_bytes(dtype));
  tpu_gdma_cpy_S2S(dst, src, shape, dst_stride, src_stride, dtype);
}
#define tpu_gdma_cpy_S2S checked_cpy_S2S

static inline void checked_cw_trans_S2L(local_addr_t dst, global_addr_t src, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dtype) {
  check_local(DMA, true, dst, shape, dst_stride, dtype);
  const dim4 source = {shape->n, shape->w, shape->h, shape->c};
  check_system(src, &source, src_stride, dtype);
  count_dma(elements_of(shape) * dtype_bytes(dtype), 0);
  tpu_gdma_cpy_cw_trans_S2L(dst, src, shape, dst_stride, src_stride, dtype);
}
#define tpu_gdma_cpy_cw_trans_S2L checked_cw_trans_S2L

static inline void checked_channel_bcast_S2L(local_addr_t dst, global_addr_t src, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dtype) {
  CHECK(shape->c <= 64);
  check_local(DMA, true, dst, shape, dst_stride, dtype);
  check_system(src, shape, src_stride, dtype);
  count_dma(elements_of(shape) * dtype_bytes(dtype) / shape->c, 0);
  tpu_gdma_channel_bcast_S2L(dst, src, shape, dst_stride, src_stride, dtype);
}
#define tpu_gdma_channel_bcast_S2L checked_channel_bcast_S2L

static inline void checked_set_C_system(global_addr_t dst, scalar_t value, const dim4 *shape, const dim4 *dst_stride, data_type_t dtype) {
  check_system(dst, shape, dst_stride, dtype);
  count_dma(0, elements_of(shape) * dtype_bytes(dtype));
  tpu_gdma_set_C_system(dst, value, shape, dst_stride, dtype);
}
#define tpu_gdma_set_C_system checked_set_C_system

static inline void checked_h_gather_S2S(global_addr_t out, global_addr_t param, global_addr_t index, bool index_is_local, scalar_t fill, const dim4 *shape, int param_h, const dim4 *out_stride, const dim4 *param_stride, const dim4 *index_stride, data_type_t dtype) {
  CHECK(param_h >= 1);
  check_system(out, shape, out_stride, dtype);
  check_system(param, shape, param_stride, dtype);
  if (!index_is_local) CHECK(index % 4 == 0);
  count_dma(elements_of(shape) * dtype_bytes(dtype) + shape->h * 4LL, elements_of(shape) * dtype_bytes(dtype));
  tpu_gdma_h_gather_S2S(out, param, index, index_is_local, fill, shape, param_h, out_stride, param_stride, index_stride, dtype);
}
#define tpu_gdma_h_gather_S2S checked_h_gather_S2S

// What this core has invalidated last; each core of the emulator is a thread, and each file of kernels has its own list.
#define RANGES 4
static __thread struct { global_addr_t start, end; } fresh[RANGES];
static __thread unsigned num_fresh;

static inline bool is_fresh(global_addr_t at, unsigned long long bytes) {
  for (int i = 0; i < RANGES; i++)
    if (at >= fresh[i].start && at + bytes <= fresh[i].end) return true;
  return false;
}

static inline void checked_invalidate(global_addr_t at, unsigned long long bytes) {
  CHECK(bytes > 0);
  fresh[num_fresh % RANGES].start = at / 64 * 64;
  fresh[num_fresh++ % RANGES].end = (at + bytes + 63) / 64 * 64;
  tpu_invalidate_cache(at, bytes);
}
#define tpu_invalidate_cache checked_invalidate

static inline void *checked_mem_addr(global_addr_t at) {
  CHECK(is_fresh(at, 1));
  return tpu_global_mem_addr(at);
}
#define tpu_global_mem_addr checked_mem_addr

static inline void checked_flush(global_addr_t at, unsigned long long bytes) {
  CHECK(bytes > 0 && is_fresh(at, bytes));
  tpu_flush_cache(at, bytes);
}
#define tpu_flush_cache checked_flush

// ---- arithmetic: the operands of a command, in local memory ----

static inline void check_binary(local_addr_t dst, local_addr_t a, local_addr_t b, const dim4 *shape, const dim4 *dst_stride, const dim4 *a_stride, const dim4 *b_stride, data_type_t dtype) {
  check_result(dst, shape, dst_stride, dtype);
  check_source(a, shape, a_stride, dtype);
  check_source(b, shape, b_stride, dtype);
  count_passes(shape, 1, dtype);
}
#define CHECKED_BINARY(name)                                                                                       \
  static inline void checked_##name(local_addr_t dst, local_addr_t a, local_addr_t b, const dim4 *shape,           \
                                    const dim4 *dst_stride, const dim4 *a_stride, const dim4 *b_stride,            \
                                    data_type_t dtype) {                                                           \
    check_binary(dst, a, b, shape, dst_stride, a_stride, b_stride, dtype);                                         \
    tpu_bdc_##name(dst, a, b, shape, dst_stride, a_stride, b_stride, dtype);                                       \
  }
CHECKED_BINARY(fp_add)
CHECKED_BINARY(fp_sub)
CHECKED_BINARY(fp_mul)
CHECKED_BINARY(fp_div)
CHECKED_BINARY(max)
CHECKED_BINARY(min)
CHECKED_BINARY(xor)
#define tpu_bdc_fp_add checked_fp_add
#define tpu_bdc_fp_sub checked_fp_sub
#define tpu_bdc_fp_mul checked_fp_mul
#define tpu_bdc_fp_div checked_fp_div
#define tpu_bdc_max checked_max
#define tpu_bdc_min checked_min
#define tpu_bdc_xor checked_xor

#define CHECKED_CONSTANT(name)                                                                                  \
  static inline void checked_##name(local_addr_t dst, local_addr_t src, scalar_t value, const dim4 *shape,      \
                                    const dim4 *dst_stride, const dim4 *src_stride, data_type_t dtype) {        \
    check_result(dst, shape, dst_stride, dtype);                                                                 \
    check_source(src, shape, src_stride, dtype);                                                                \
    count_passes(shape, 1, dtype);                                                                              \
    tpu_bdc_##name(dst, src, value, shape, dst_stride, src_stride, dtype);                                      \
  }
CHECKED_CONSTANT(fp_add_C)
CHECKED_CONSTANT(fp_mul_C)
CHECKED_CONSTANT(max_C)
CHECKED_CONSTANT(min_C)
CHECKED_CONSTANT(and_C)
CHECKED_CONSTANT(xor_C)
#define tpu_bdc_fp_add_C checked_fp_add_C
#define tpu_bdc_fp_mul_C checked_fp_mul_C
#define tpu_bdc_max_C checked_max_C
#define tpu_bdc_min_C checked_min_C
#define tpu_bdc_and_C checked_and_C
#define tpu_bdc_xor_C checked_xor_C

static inline void checked_cpy(local_addr_t dst, local_addr_t src, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dtype) {
  check_result(dst, shape, dst_stride, dtype);
  check_source(src, shape, src_stride, dtype);
  count_passes(shape, 1, dtype);
  tpu_bdc_cpy(dst, src, shape, dst_stride, src_stride, dtype);
}
#define tpu_bdc_cpy checked_cpy

static inline void checked_set_C(local_addr_t dst, scalar_t value, const dim4 *shape, const dim4 *dst_stride, data_type_t dtype) {
  check_result(dst, shape, dst_stride, dtype);
  count_passes(shape, 1, dtype);
  tpu_bdc_set_C(dst, value, shape, dst_stride, dtype);
}
#define tpu_bdc_set_C checked_set_C

static inline void checked_cast(local_addr_t dst, local_addr_t src, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dst_dtype, data_type_t src_dtype, rounding_mode_t mode) {
  check_result(dst, shape, dst_stride, dst_dtype);
  check_source(src, shape, src_stride, src_dtype);
  count_passes(shape, 1, dtype_bytes(dst_dtype) > dtype_bytes(src_dtype) ? dst_dtype : src_dtype);
  tpu_bdc_cast(dst, src, shape, dst_stride, src_stride, dst_dtype, src_dtype, mode);
}
#define tpu_bdc_cast checked_cast

// left [1, M, 1, K], right [1, K, 1, N] or transposed, out [1, M, 1, N].
static inline void check_product(local_addr_t out, local_addr_t left, local_addr_t right, int rows, int inner, int cols, bool is_transposed, data_type_t out_dtype, data_type_t dtype) {
  const dim4 out_shape = {1, rows, 1, cols}, left_shape = {1, rows, 1, inner};
  const dim4 right_shape = {1, is_transposed ? cols : inner, 1, is_transposed ? inner : cols};
  check_result(out, &out_shape, NULL, out_dtype);
  check_source(left, &left_shape, NULL, dtype);
  check_source(right, &right_shape, NULL, dtype);
  count_product(rows, inner, cols);
}

static inline void checked_fp_mm(local_addr_t out, local_addr_t left, local_addr_t right, int rows, int inner, int cols, data_type_t out_dtype, data_type_t dtype, bool result_add) {
  check_product(out, left, right, rows, inner, cols, false, out_dtype, dtype);
  tpu_bdc_fp_mm(out, left, right, rows, inner, cols, out_dtype, dtype, result_add);
}
#define tpu_bdc_fp_mm checked_fp_mm

static inline void checked_mm_R_trans(local_addr_t out, local_addr_t left, local_addr_t right, int rows, int inner, int cols, data_type_t out_dtype, data_type_t dtype) {
  check_product(out, left, right, rows, inner, cols, true, out_dtype, dtype);
  tpu_bdc_fp_mm_R_trans(out, left, right, rows, inner, cols, out_dtype, dtype);
}
#define tpu_bdc_fp_mm_R_trans checked_mm_R_trans

static inline void checked_mm_R_trans_with_bias(local_addr_t out, local_addr_t left, local_addr_t right, int rows, int inner, int cols, data_type_t out_dtype, data_type_t dtype, data_type_t bias_dtype, bool add_result, bool bias_is_const, var_context_t bias, bool do_relu) {
  check_product(out, left, right, rows, inner, cols, true, out_dtype, dtype);
  tpu_bdc_fp_mm_R_trans_with_bias(out, left, right, rows, inner, cols, out_dtype, dtype, bias_dtype, add_result, bias_is_const, bias, do_relu);
}
#define tpu_bdc_fp_mm_R_trans_with_bias checked_mm_R_trans_with_bias

#define CHECKED_COMPARISON(name)                                                                                     \
  static inline void checked_##name(local_addr_t dst, local_addr_t a, local_addr_t b, scalar_t true_val,             \
                                    const dim4 *shape, const dim4 *dst_stride, const dim4 *a_stride,                 \
                                    const dim4 *b_stride, data_type_t dst_dtype, data_type_t src_dtype) {            \
    check_binary(dst, a, b, shape, dst_stride, a_stride, b_stride, src_dtype);                                       \
    tpu_bdc_##name(dst, a, b, true_val, shape, dst_stride, a_stride, b_stride, dst_dtype, src_dtype);                \
  }
CHECKED_COMPARISON(greater)
CHECKED_COMPARISON(equal)
CHECKED_COMPARISON(less)
#define tpu_bdc_greater checked_greater
#define tpu_bdc_equal checked_equal
#define tpu_bdc_less checked_less

// The rest: their results and operands as f32 tensors in the aligned layout, whatever they are. A function of the engine's tables
// is as many commands as the vendor's library makes of it.
static inline void pass_over(int passes, local_addr_t dst, local_addr_t src, const dim4 *shape) {
  const long long bytes = aligned_bytes(shape, DT_FP32);
  touch(ARITHMETIC, true, dst, dst + bytes);
  touch(ARITHMETIC, false, src, src + bytes);
  count_passes(shape, passes, DT_FP32);
}

#define COUNTED(passes, dst, src, shape, call) (pass_over(passes, dst, src, shape), call)
#define tpu_bdc_abs(y, x, shape, ...) COUNTED(1, y, x, shape, tpu_bdc_abs(y, x, shape, __VA_ARGS__))
#define tpu_bdc_neg(y, x, shape, ...) COUNTED(1, y, x, shape, tpu_bdc_neg(y, x, shape, __VA_ARGS__))
#define tpu_bdc_fp_floor(y, x, shape, ...) COUNTED(1, y, x, shape, tpu_bdc_fp_floor(y, x, shape, __VA_ARGS__))
#define tpu_bdc_fp_ceil(y, x, shape, ...) COUNTED(1, y, x, shape, tpu_bdc_fp_ceil(y, x, shape, __VA_ARGS__))
#define tpu_bdc_fp_round(y, x, shape, ...) COUNTED(1, y, x, shape, tpu_bdc_fp_round(y, x, shape, __VA_ARGS__))
#define tpu_bdc_fp_sqrt(y, x, shape, ...) COUNTED(4, y, x, shape, tpu_bdc_fp_sqrt(y, x, shape, __VA_ARGS__))
#define tpu_bdc_fp32_C_div(y, x, value, shape, ...) COUNTED(1, y, x, shape, tpu_bdc_fp32_C_div(y, x, value, shape, __VA_ARGS__))
#define tpu_bdc_logical_shift_C(y, x, by, shape, ...) COUNTED(1, y, x, shape, tpu_bdc_logical_shift_C(y, x, by, shape, __VA_ARGS__))
#define tpu_bdc_int_mul_C(y, x, value, shape, ...) COUNTED(1, y, x, shape, tpu_bdc_int_mul_C(y, x, value, shape, __VA_ARGS__))
#define tpu_bdc_int_add(y, a, b, shape, ...) COUNTED(1, y, a, shape, COUNTED(0, y, b, shape, tpu_bdc_int_add(y, a, b, shape, __VA_ARGS__)))
#define tpu_bdc_greater_C(y, x, value, yes, shape, ...) COUNTED(1, y, x, shape, tpu_bdc_greater_C(y, x, value, yes, shape, __VA_ARGS__))
#define tpu_bdc_less_C(y, x, value, yes, shape, ...) COUNTED(1, y, x, shape, tpu_bdc_less_C(y, x, value, yes, shape, __VA_ARGS__))
#define tpu_bdc_equal_C(y, x, value, yes, shape, ...) COUNTED(1, y, x, shape, tpu_bdc_equal_C(y, x, value, yes, shape, __VA_ARGS__))
#define tpu_bdc_greater_select(y, a, b, c, d, shape, ...) COUNTED(1, y, y, shape, tpu_bdc_greater_select(y, a, b, c, d, shape, __VA_ARGS__))
#define tpu_bdc_equal_select(y, a, b, c, d, shape, ...) COUNTED(1, y, y, shape, tpu_bdc_equal_select(y, a, b, c, d, shape, __VA_ARGS__))
#define tpu_bdc_fp_exp(y, x, work0, work1, table, shape, dtype) \
  COUNTED(12, y, x, shape, COUNTED(0, work0, work1, shape, tpu_bdc_fp_exp(y, x, work0, work1, table, shape, dtype)))
#define tpu_bdc_fp_log(y, x, work, table, shape, dtype) \
  COUNTED(13, y, x, shape, COUNTED(0, work, x, shape, tpu_bdc_fp_log(y, x, work, table, shape, dtype)))
#define tpu_bdc_fp_sin(y, x, work, table, shape, dtype) \
  COUNTED(6, y, x, shape, COUNTED(0, work, x, shape, tpu_bdc_fp_sin(y, x, work, table, shape, dtype)))
#define tpu_bdc_fp_cos(y, x, work, table, shape, dtype) \
  COUNTED(5, y, x, shape, COUNTED(0, work, x, shape, tpu_bdc_fp_cos(y, x, work, table, shape, dtype)))
#define tpu_bdc_fp_erf(y, x, work0, work1, work2, exp_table, erf_table, shape, dtype) \
  COUNTED(24, y, x, shape, COUNTED(0, work0, work1, shape, COUNTED(0, work2, x, shape, tpu_bdc_fp_erf(y, x, work0, work1, work2, exp_table, erf_table, shape, dtype))))
// A pool reads its window for each element of the result.
#define POOLED(function, y, x, shape, window, ...) \
  (pass_over((window)->h * (window)->w, y, x, &(const dim4){(shape)->n, (shape)->c, (shape)->h - (window)->h + 1, (shape)->w - (window)->w + 1}), \
   touch(ARITHMETIC, false, x, (x) + aligned_bytes(shape, DT_FP32)), function(y, x, shape, window, __VA_ARGS__))
#define tpu_bdc_fp_avg_pool2d(...) POOLED(tpu_bdc_fp_avg_pool2d, __VA_ARGS__)
#define tpu_bdc_fp_max_pool2d(...) POOLED(tpu_bdc_fp_max_pool2d, __VA_ARGS__)
#define tpu_bdc_fp_min_pool2d(...) POOLED(tpu_bdc_fp_min_pool2d, __VA_ARGS__)
