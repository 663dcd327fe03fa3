// Functions of one f32 variable on a tile, as the engine computes them or composed of what it has.
//
// y and x are slots, `work` the first of six free ones. Tables must have been loaded.
#pragma once

#include "tiles.h"

enum { EXP_TABLE, LOG_TABLE, SIN_TABLE, COS_TABLE, ERF_TABLE };

// The engine's exp of NaN is 0 and its exp of -88 is 0: for arguments that a kernel knows to be numbers.
static inline void exp_tile(int y, int x, int work, const dim4 *shape) {
  tpu_bdc_fp_exp(SLOT(y), SLOT(x), SLOT(work), SLOT(work + 1), TABLE(EXP_TABLE), shape, DT_FP32);
}

static inline void log_tile(int y, int x, int work, const dim4 *shape) {
  tpu_bdc_fp_log(SLOT(y), SLOT(x), SLOT(work), TABLE(LOG_TABLE), shape, DT_FP32);
}

// NaN where x is, else 0: by its bits, in which NaN is beyond infinity.
static inline void nan_of(int y, int x, const dim4 *shape) {
  tpu_bdc_and_C(SLOT(y), SLOT(x), u32_scalar(0x7fffffff), shape, NULL, NULL, DT_UINT32);
  tpu_bdc_greater_C(SLOT(y), SLOT(y), u32_scalar(0x7f800000), u32_scalar(0x7fc00000), shape, NULL, NULL, DT_FP32, DT_INT32);
}

static inline void mul_const(int y, int x, float value, const dim4 *shape) {
  tpu_bdc_fp_mul_C(SLOT(y), SLOT(x), f32_scalar(value), shape, NULL, NULL, DT_FP32);
}

static inline void add_const(int y, int x, float value, const dim4 *shape) {
  tpu_bdc_fp_add_C(SLOT(y), SLOT(x), f32_scalar(value), shape, NULL, NULL, DT_FP32);
}

static inline void add_tiles(int y, int a, int b, const dim4 *shape) {
  tpu_bdc_fp_add(SLOT(y), SLOT(a), SLOT(b), shape, NULL, NULL, NULL, DT_FP32);
}

static inline void sub_tiles(int y, int a, int b, const dim4 *shape) {
  tpu_bdc_fp_sub(SLOT(y), SLOT(a), SLOT(b), shape, NULL, NULL, NULL, DT_FP32);
}

static inline void mul_tiles(int y, int a, int b, const dim4 *shape) {
  tpu_bdc_fp_mul(SLOT(y), SLOT(a), SLOT(b), shape, NULL, NULL, NULL, DT_FP32);
}

static inline void div_tiles(int y, int a, int b, const dim4 *shape) {
  tpu_bdc_fp_div(SLOT(y), SLOT(a), SLOT(b), shape, NULL, NULL, NULL, DT_FP32);
}

// 1, 0 or -1 as x is above, at or below 0; 0 of NaN. Not by `less`, which NaN is of any number.
static inline void sign_tile(int y, int x, int work, const dim4 *shape) {
  mul_const(work, x, -1.f, shape);
  tpu_bdc_greater_C(SLOT(work), SLOT(work), f32_scalar(0), f32_scalar(1.f), shape, NULL, NULL, DT_FP32, DT_FP32);
  tpu_bdc_greater_C(SLOT(y), SLOT(x), f32_scalar(0), f32_scalar(1.f), shape, NULL, NULL, DT_FP32, DT_FP32);
  sub_tiles(y, y, work, shape);
}

// 1 / (1 + exp(-x)); leaves exp(-x) in work + 2.
static inline void sigmoid_tile(int y, int x, int work, const dim4 *shape) {
  mul_const(work + 2, x, -1.f, shape);
  exp_tile(work + 2, work + 2, work, shape);
  add_const(y, work + 2, 1.f, shape);
  tpu_bdc_fp32_C_div(SLOT(y), SLOT(y), 1.f, shape, NULL, NULL);
}
