// Functions of one f32 variable on a tile, as the engine computes them or composed of what it has.
//
// y and x are slots, `work` the first of WORK_SLOTS free ones. Tables must have been loaded.
#pragma once

#include "tiles.h"

enum { EXP_TABLE, LOG_TABLE, SIN_TABLE, COS_TABLE, ERF_TABLE, TANH_TABLE };
#define WORK_SLOTS 6

// The largest and least arguments of exp whose results are normal numbers.
#define EXP_MAX 88.722839f
#define EXP_MIN -87.336544f

// The engine's exp of NaN is 0 and its exp of -88 is 0: for arguments that a kernel knows to be numbers.
static inline void exp_tile(int y, int x, int work, const dim4 *shape) {
  tpu_bdc_fp_exp(SLOT(y), SLOT(x), SLOT(work), SLOT(work + 1), TABLE(EXP_TABLE), shape, DT_FP32);
}

static inline void log_tile(int y, int x, int work, const dim4 *shape) {
  tpu_bdc_fp_log(SLOT(y), SLOT(x), SLOT(work), TABLE(LOG_TABLE), shape, DT_FP32);
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

// 1 / (1 + exp(-x)).
static inline void sigmoid_tile(int y, int x, int work, const dim4 *shape) {
  mul_const(work + 2, x, -1.f, shape);
  exp_tile(y, work + 2, work, shape);
  add_const(y, y, 1.f, shape);
  tpu_bdc_fp32_C_div(SLOT(y), SLOT(y), 1.f, shape, NULL, NULL);
}
