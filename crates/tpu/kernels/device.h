// What the device offers to a kernel: our declarations of the vendor's functions, as far as kernels use them.
//
// Addresses: `local_addr_t` counts bytes within every lane's memory (256 KiB a lane); `global_addr_t` is device DRAM.
// Tensors are [n, c, h, w]: c is spread over the lanes (c modulo 64), n, h, w lie within a lane. Strides count elements.
// A local stride of NULL is the "aligned" layout: each (n, slot of c) starts at a multiple of 64 bytes, w contiguous.
// A system (DRAM) stride of NULL is contiguous. Stride 0 repeats, but not across lanes.
// DMA: every dim is at most 65535, the stride of w at most 128 bytes.
// Suffixes: S is system memory, L is local; so `S2L` loads and `L2S` stores.
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef uint32_t local_addr_t;
typedef unsigned long long global_addr_t;

typedef struct { int n, c, h, w; } dim4;
typedef struct { int h, w; } dim2;
typedef struct { int top, bottom, left, right; } padding_t;

// Bit patterns of a constant operand; the operation's dtype says which member counts.
typedef union {
  float f32;
  int32_t s32;
  uint32_t u32;
  uint16_t u16;
  uint8_t u8;
} scalar_t;

// A TENSOR at a local address, or one SCALAR for all elements.
typedef union { scalar_t scalar; local_addr_t addr; } var_context_t;
typedef enum { TENSOR = 0, SCALAR = 1 } var_type_t;
typedef struct { var_type_t type; var_context_t context; } variable_t;

typedef enum {
  DT_UINT8 = 0,
  DT_FP16 = 3,
  DT_FP32 = 5,
  DT_UINT16 = 6,
  DT_UINT32 = 8,
  DT_INT32 = 9,
  DT_BFP16 = 11,
} data_type_t;

typedef enum {
  RM_HALF_TO_EVEN = 0,
  RM_HALF_AWAY_FROM_ZERO = 1,
  RM_TOWARDS_ZERO = 2,
} rounding_mode_t;

static inline int dtype_bytes(data_type_t dtype) {
  switch (dtype) {
    case DT_UINT8: return 1;
    case DT_FP16: case DT_BFP16: case DT_UINT16: return 2;
    default: return 4;
  }
}

// ---- control ----
// How a chip's firmware comes to know a kernel; `type` 0 is that of a function of its arguments.
void tpu_register_kernel_func(const char *name, void (*kernel)(const void *), int type);
void tpu_initialize(void);
void tpu_poll(void);  // waits for the engines of this core
// Waits for all cores of the launch to come here.
void tpu_sync_all(void);
// Between these the two engines, of DMA and of arithmetic, do not wait for each other; elsewhere they do at every command.
void tpu_parallel_start(void);
void tpu_parallel_end(void);
int tpu_core_index(void);
int tpu_core_num(void);
// The scalar core's view of DRAM. Read after tpu_invalidate_cache, write before tpu_flush_cache.
void *tpu_global_mem_addr(global_addr_t addr);
void tpu_invalidate_cache(global_addr_t addr, unsigned long long bytes);
void tpu_flush_cache(global_addr_t addr, unsigned long long bytes);
int tpu_data_type_size(data_type_t dtype);
void tpu_aligned_stride(dim4 *stride, int start_idx, const dim4 *shape, data_type_t dtype);

// ---- DMA ----
void tpu_gdma_cpy_S2L(local_addr_t dst, global_addr_t src, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dtype);
void tpu_gdma_cpy_L2S(global_addr_t dst, local_addr_t src, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dtype);
void tpu_gdma_cpy_S2S(global_addr_t dst, global_addr_t src, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dtype);
// Swap c and w on the way; `shape` is the destination's.
void tpu_gdma_cpy_cw_trans_S2L(local_addr_t dst, global_addr_t src, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dtype);
// Writes one row to every lane: shape [n, 64, h, w] from a source without c.
void tpu_gdma_channel_bcast_S2L(local_addr_t dst, global_addr_t src, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dtype);
void tpu_gdma_set_C_system(global_addr_t dst, scalar_t value, const dim4 *shape, const dim4 *dst_stride, data_type_t dtype);
// Rows by int32 index: out[h] = param[index[h]], shape [1, c, h, w]; an index out of range gives `fill`.
void tpu_gdma_h_gather_S2S(global_addr_t out, global_addr_t param, global_addr_t index, bool index_is_local, scalar_t fill, const dim4 *shape, int param_h, const dim4 *out_stride, const dim4 *param_stride, const dim4 *index_stride, data_type_t dtype);

// ---- arithmetic on local memory: dst, operands, shape, strides of each, dtype ----
void tpu_bdc_set_C(local_addr_t dst, scalar_t value, const dim4 *shape, const dim4 *dst_stride, data_type_t dtype);
void tpu_bdc_cpy(local_addr_t dst, local_addr_t src, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dtype);
void tpu_bdc_cast(local_addr_t dst, local_addr_t src, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dst_dtype, data_type_t src_dtype, rounding_mode_t mode);
void tpu_bdc_fp_add(local_addr_t dst, local_addr_t a, local_addr_t b, const dim4 *shape, const dim4 *dst_stride, const dim4 *a_stride, const dim4 *b_stride, data_type_t dtype);
void tpu_bdc_fp_sub(local_addr_t dst, local_addr_t a, local_addr_t b, const dim4 *shape, const dim4 *dst_stride, const dim4 *a_stride, const dim4 *b_stride, data_type_t dtype);
void tpu_bdc_fp_mul(local_addr_t dst, local_addr_t a, local_addr_t b, const dim4 *shape, const dim4 *dst_stride, const dim4 *a_stride, const dim4 *b_stride, data_type_t dtype);
void tpu_bdc_fp_div(local_addr_t dst, local_addr_t a, local_addr_t b, const dim4 *shape, const dim4 *dst_stride, const dim4 *a_stride, const dim4 *b_stride, data_type_t dtype);
void tpu_bdc_max(local_addr_t dst, local_addr_t a, local_addr_t b, const dim4 *shape, const dim4 *dst_stride, const dim4 *a_stride, const dim4 *b_stride, data_type_t dtype);
void tpu_bdc_min(local_addr_t dst, local_addr_t a, local_addr_t b, const dim4 *shape, const dim4 *dst_stride, const dim4 *a_stride, const dim4 *b_stride, data_type_t dtype);
void tpu_bdc_fp_add_C(local_addr_t dst, local_addr_t src, scalar_t value, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dtype);
void tpu_bdc_fp_mul_C(local_addr_t dst, local_addr_t src, scalar_t value, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dtype);
void tpu_bdc_max_C(local_addr_t dst, local_addr_t src, scalar_t value, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dtype);
void tpu_bdc_min_C(local_addr_t dst, local_addr_t src, scalar_t value, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dtype);
void tpu_bdc_fp32_C_div(local_addr_t dst, local_addr_t src, float value, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride);  // value / src
void tpu_bdc_abs(local_addr_t dst, local_addr_t src, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dtype);
void tpu_bdc_neg(local_addr_t dst, local_addr_t src, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dtype);
void tpu_bdc_and_C(local_addr_t dst, local_addr_t src, scalar_t value, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dtype);
// Bits and whole numbers. A shift to the right is negative; sums and products wrap if they do not saturate.
void tpu_bdc_xor(local_addr_t dst, local_addr_t a, local_addr_t b, const dim4 *shape, const dim4 *dst_stride, const dim4 *a_stride, const dim4 *b_stride, data_type_t dtype);
void tpu_bdc_xor_C(local_addr_t dst, local_addr_t src, scalar_t value, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dtype);
void tpu_bdc_logical_shift_C(local_addr_t dst, local_addr_t src, char shift, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dst_dtype, data_type_t src_dtype, rounding_mode_t mode);
void tpu_bdc_int_add(local_addr_t dst, local_addr_t a, local_addr_t b, const dim4 *shape, const dim4 *dst_stride, const dim4 *a_stride, const dim4 *b_stride, data_type_t dst_dtype, data_type_t a_dtype, data_type_t b_dtype, char shift, rounding_mode_t mode, bool saturates);
void tpu_bdc_int_mul_C(local_addr_t dst, local_addr_t src, scalar_t value, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dst_dtype, data_type_t src_dtype, data_type_t value_dtype, char shift, rounding_mode_t mode, bool saturates);
// Functions in the aligned layout; exp and log read a table that is loaded into local memory first.
void tpu_bdc_fp_sqrt(local_addr_t dst, local_addr_t src, const dim4 *shape, data_type_t dtype);
void tpu_bdc_load_fp_exp_coeff(local_addr_t table, data_type_t dtype);
void tpu_bdc_load_fp_log_coeff(local_addr_t table, data_type_t dtype);
void tpu_bdc_fp_exp(local_addr_t dst, local_addr_t src, local_addr_t work0, local_addr_t work1, local_addr_t table, const dim4 *shape, data_type_t dtype);
void tpu_bdc_fp_log(local_addr_t dst, local_addr_t src, local_addr_t work, local_addr_t table, const dim4 *shape, data_type_t dtype);
void tpu_bdc_fp_sin(local_addr_t dst, local_addr_t src, local_addr_t work, local_addr_t table, const dim4 *shape, data_type_t dtype);
void tpu_bdc_fp_cos(local_addr_t dst, local_addr_t src, local_addr_t work, local_addr_t table, const dim4 *shape, data_type_t dtype);
void tpu_bdc_fp_erf(local_addr_t dst, local_addr_t src, local_addr_t work0, local_addr_t work1, local_addr_t work2, local_addr_t exp_table, local_addr_t erf_table, const dim4 *shape, data_type_t dtype);
void tpu_bdc_load_fp_sin_coeff(local_addr_t table, data_type_t dtype);
void tpu_bdc_load_fp_cos_coeff(local_addr_t table, data_type_t dtype);
void tpu_bdc_load_fp_erf_coeff(local_addr_t table, data_type_t dtype);
void tpu_bdc_fp_floor(local_addr_t dst, local_addr_t src, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dtype);
void tpu_bdc_fp_ceil(local_addr_t dst, local_addr_t src, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dtype);
void tpu_bdc_fp_round(local_addr_t dst, local_addr_t src, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dtype, rounding_mode_t mode);
// dst = true_val where the comparison holds, else 0; the two dtypes may differ but not in size.
void tpu_bdc_greater(local_addr_t dst, local_addr_t a, local_addr_t b, scalar_t true_val, const dim4 *shape, const dim4 *dst_stride, const dim4 *a_stride, const dim4 *b_stride, data_type_t dst_dtype, data_type_t src_dtype);
void tpu_bdc_equal(local_addr_t dst, local_addr_t a, local_addr_t b, scalar_t true_val, const dim4 *shape, const dim4 *dst_stride, const dim4 *a_stride, const dim4 *b_stride, data_type_t dst_dtype, data_type_t src_dtype);
void tpu_bdc_less(local_addr_t dst, local_addr_t a, local_addr_t b, scalar_t true_val, const dim4 *shape, const dim4 *dst_stride, const dim4 *a_stride, const dim4 *b_stride, data_type_t dst_dtype, data_type_t src_dtype);
void tpu_bdc_greater_C(local_addr_t dst, local_addr_t src, scalar_t value, scalar_t true_val, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dst_dtype, data_type_t src_dtype);
void tpu_bdc_less_C(local_addr_t dst, local_addr_t src, scalar_t value, scalar_t true_val, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dst_dtype, data_type_t src_dtype);
void tpu_bdc_equal_C(local_addr_t dst, local_addr_t src, scalar_t value, scalar_t true_val, const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride, data_type_t dst_dtype, data_type_t src_dtype);
// dst = a > b ? c : d.
void tpu_bdc_greater_select(local_addr_t dst, const variable_t *a, const variable_t *b, const variable_t *c, const variable_t *d, const dim4 *shape, data_type_t ab_dtype, data_type_t dst_dtype);
void tpu_bdc_equal_select(local_addr_t dst, const variable_t *a, const variable_t *b, const variable_t *c, const variable_t *d, const dim4 *shape, data_type_t ab_dtype, data_type_t dst_dtype);
// start, start + step, .. int32: along w in each of `lanes` lanes; or along c, one a row of the aligned layout.
void tpu_bdc_arithmetic_sequence_bcast(local_addr_t dst, int lanes, int start, int step, int num);
void tpu_bdc_arithmetic_sequence_distribute_aligned(local_addr_t dst, int start, int step, int num);
// start, start + step, .. one in each lane, int32 [1, num, 1, 1].
void tpu_bdc_arithmetic_sequence_distribute(local_addr_t dst, int start, int step, int num);
void tpu_bdc_fp_avg_pool2d(local_addr_t out, local_addr_t in, const dim4 *in_shape, const dim2 *kernel, const padding_t *padding, const dim2 *stride, const dim2 *dilation, data_type_t dtype, scalar_t scale);
void tpu_bdc_fp_max_pool2d(local_addr_t out, local_addr_t in, const dim4 *in_shape, const dim2 *kernel, const padding_t *padding, const dim2 *stride, const dim2 *dilation, data_type_t dtype, scalar_t pad_val);
void tpu_bdc_fp_min_pool2d(local_addr_t out, local_addr_t in, const dim4 *in_shape, const dim2 *kernel, const padding_t *padding, const dim2 *stride, const dim2 *dilation, data_type_t dtype, scalar_t pad_val);

// ---- matrix products: left [1, M, 1, K], right [1, K, 1, N], out [1, M, 1, N], aligned, from lane 0 ----
// 16-bit operands; out f32 or of their type; `result_add` adds to out.
void tpu_bdc_fp_mm(local_addr_t out, local_addr_t left, local_addr_t right, int rows, int inner, int cols, data_type_t out_dtype, data_type_t dtype, bool result_add);
// right is [1, N, 1, K].
void tpu_bdc_fp_mm_R_trans(local_addr_t out, local_addr_t left, local_addr_t right, int rows, int inner, int cols, data_type_t out_dtype, data_type_t dtype);
// Not on a BM1684X. With bias_is_const and a bias of 0 this is the accumulating form of the transposed product.
void tpu_bdc_fp_mm_R_trans_with_bias(local_addr_t out, local_addr_t left, local_addr_t right, int rows, int inner, int cols, data_type_t out_dtype, data_type_t dtype, data_type_t bias_dtype, bool add_result, bool bias_is_const, var_context_t bias, bool do_relu);

#ifdef EMULATOR
#include "checks.h"
#endif
