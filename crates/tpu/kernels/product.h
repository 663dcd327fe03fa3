// Matrix products in local memory: operands of f32, bf16 or f16, sums in f32.
//
// The cube multiplies 16-bit numbers only. An f32 operand is therefore held as three bf16 parts, x = x0 + x1 + x2, which
// is exact (three times 8 bits; parts below the smallest bf16 are lost), and a product is the six cross products
// x0 y0 + x0 y1 + x1 y0 + x1 y1 + x0 y2 + x2 y0; those left out are below 2^-26 of |x| |y|.
// An infinity in f32 gives NaN.
//
// A tile is [1, rows, 1, cols] in the aligned layout: rows over the lanes, from lane 0.
#pragma once

#include "kernel.h"

#define MAX_PARTS 3

// An operand as the cube takes it.
typedef struct {
  local_addr_t part[MAX_PARTS];
  int parts;
  data_type_t dtype;
} operand_t;

// Bytes a lane of a tile.
static inline int tile_bytes(int rows, int cols, data_type_t dtype) {
  return DIV_UP(rows, LANES) * ALIGN(cols * dtype_bytes(dtype), 64);
}

// Takes room for a tile from the lanes' memory; `next` is the first free byte.
static inline local_addr_t take_tile(local_addr_t *next, int rows, int cols, data_type_t dtype) {
  const local_addr_t at = *next;
  *next += tile_bytes(rows, cols, dtype);
  return at;
}

// Room for an operand of `dtype` of at most rows x cols.
static inline operand_t take_operand(local_addr_t *next, int rows, int cols, data_type_t dtype) {
  operand_t x = {.parts = 1, .dtype = dtype};
  if (dtype == DT_FP32) {
    x.parts = MAX_PARTS;
    x.dtype = DT_BFP16;
  }
  for (int i = 0; i < x.parts; i++) x.part[i] = take_tile(next, rows, cols, x.dtype);
  return x;
}

// The f32 tile `src` as an operand; of a 16-bit type, rounded to it. `src` and `work`, of its size, are used up.
static inline void set_operand(const operand_t *x, local_addr_t src, local_addr_t work, int rows, int cols) {
  const dim4 shape = {1, rows, 1, cols};
  overflow_to_nan(src, work, &shape, x->dtype);
  for (int i = 0; i < x->parts; i++) {
    tpu_bdc_cast(x->part[i], src, &shape, NULL, NULL, x->dtype, DT_FP32, RM_HALF_TO_EVEN);
    if (i + 1 == x->parts) break;
    tpu_bdc_cast(work, x->part[i], &shape, NULL, NULL, DT_FP32, x->dtype, RM_HALF_TO_EVEN);
    tpu_bdc_fp_sub(src, src, work, &shape, NULL, NULL, NULL, DT_FP32);
  }
}

// An operand on its way: tiles of it as they are in DRAM, of which the next comes in while this one is multiplied, and what the
// cube takes, made of the one.
typedef struct {
  local_addr_t loaded[2];
  operand_t operand;
  data_type_t dtype;  // in DRAM
  bool is_ready;      // as it is loaded
} side_t;

static inline side_t take_side(local_addr_t *next, int rows, int cols, data_type_t dtype, data_type_t of_product) {
  side_t side = {.dtype = dtype, .is_ready = dtype == of_product && dtype != DT_FP32};
  for (int i = 0; i < 2; i++) side.loaded[i] = take_tile(next, rows, cols, dtype);
  if (side.is_ready) {
    side.operand = (operand_t){.parts = 1, .dtype = dtype};
  } else {
    side.operand = take_operand(next, rows, cols, of_product);
  }
  return side;
}

// Loads rows of `cols` elements, `stride` apart; or columns, to be rows.
static inline void load_side(const side_t *side, int buffer, global_addr_t src, int stride, bool trans, int rows, int cols) {
  const dim4 shape = {1, rows, 1, cols}, strides = {0, stride, 0, 1};
  if (trans) {
    tpu_gdma_cpy_cw_trans_S2L(side->loaded[buffer], src, &shape, NULL, &strides, side->dtype);
  } else {
    tpu_gdma_cpy_S2L(side->loaded[buffer], src, &shape, NULL, &strides, side->dtype);
  }
}

// What was loaded, as the cube takes it, which uses it up. `work0` and `work1` are f32 tiles, for what is not ready.
static inline operand_t operand_of(const side_t *side, int buffer, local_addr_t work0, local_addr_t work1, int rows, int cols) {
  operand_t x = side->operand;
  const dim4 shape = {1, rows, 1, cols};
  if (side->is_ready) {
    x.part[0] = side->loaded[buffer];
  } else if (side->dtype == DT_FP32) {
    set_operand(&x, side->loaded[buffer], work1, rows, cols);
  } else {
    tpu_bdc_cast(work0, side->loaded[buffer], &shape, NULL, NULL, DT_FP32, side->dtype, RM_HALF_TO_EVEN);
    set_operand(&x, work0, work1, rows, cols);
  }
  return x;
}

// A tile of f32 results that is stored while the next is summed up: the one that is at work, and the other.
typedef struct {
  local_addr_t sum, other;
  local_addr_t from;  // what waits to be stored, if any
  global_addr_t to;
  dim4 shape, stride;
  bool waits;
} result_t;

static inline result_t take_result(local_addr_t *next, int rows, int cols) {
  result_t r = {.sum = take_tile(next, rows, cols, DT_FP32)};
  r.other = take_tile(next, rows, cols, DT_FP32);
  return r;
}

// Starts the store of what waits.
static inline void store_result(result_t *r, data_type_t dtype) {
  if (r->waits) tpu_gdma_cpy_L2S(r->to, r->from, &r->shape, &r->stride, NULL, dtype);
  r->waits = false;
}

// The sum is complete, and waits as `dtype`; the next may be begun.
static inline void finish_result(result_t *r, global_addr_t to, const dim4 *shape, const dim4 *stride, data_type_t dtype) {
  const local_addr_t sum = r->sum, other = r->other;
  r->to = to;
  r->shape = *shape;
  r->stride = *stride;
  r->waits = true;
  if (dtype == DT_FP32) {
    r->from = sum;
    r->sum = other;
    r->other = sum;
  } else {
    round_f32(other, sum, shape, dtype);
    r->from = other;
  }
}

// The pairs of parts in a product, the smallest first, so that they are not lost in a sum that begins with the largest.
static const int PRODUCT_PAIRS[][2] = {{2, 0}, {0, 2}, {1, 1}, {1, 0}, {0, 1}, {0, 0}};
#define NUM_PRODUCT_PAIRS 6

// out [rows, cols] (+)= left [rows, inner] . right [inner, cols], f32.
static inline void product(local_addr_t out, const operand_t *left, const operand_t *right, int rows, int inner, int cols, bool accumulate) {
  const int pairs = left->parts == 1 ? 1 : NUM_PRODUCT_PAIRS;
  const int(*pair)[2] = PRODUCT_PAIRS + (NUM_PRODUCT_PAIRS - pairs);
  for (int i = 0; i < pairs; i++)
    tpu_bdc_fp_mm(out, left->part[pair[i][0]], right->part[pair[i][1]], rows, inner, cols, DT_FP32, left->dtype, accumulate || i > 0);
}

// out [rows, cols] = left [rows, inner] . right^T, with right [cols, inner]; `work` has the size of out.
static inline void product_trans(local_addr_t out, local_addr_t work, const operand_t *left, const operand_t *right, int rows, int inner, int cols) {
  const int pairs = left->parts == 1 ? 1 : NUM_PRODUCT_PAIRS;
  const int(*pair)[2] = PRODUCT_PAIRS + (NUM_PRODUCT_PAIRS - pairs);
  for (int i = 0; i < pairs; i++) {
    const local_addr_t l = left->part[pair[i][0]], r = right->part[pair[i][1]];
#ifdef BM1684X  // which cannot add to what is there
    const dim4 shape = {1, rows, 1, cols};
    tpu_bdc_fp_mm_R_trans(i == 0 ? out : work, l, r, rows, inner, cols, DT_FP32, left->dtype);
    if (i > 0) tpu_bdc_fp_add(out, out, work, &shape, NULL, NULL, NULL, DT_FP32);
#else
    const var_context_t zero = {.scalar = {.u32 = 0}};
    tpu_bdc_fp_mm_R_trans_with_bias(out, l, r, rows, inner, cols, DT_FP32, left->dtype, DT_FP32, i > 0, true, zero, false);
    (void)work;
#endif
  }
}
