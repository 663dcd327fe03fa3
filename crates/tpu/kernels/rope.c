// Rotary position embedding of x [batch, tokens, heads, dim], y contiguous: pairs (i, i + dim/2) are turned by the angle whose
// cosine and sine are in row positions[batch, token] of cos and sin [size, dim/2], f32; `inverse` turns back.
//
// A position beyond the tables is reported (FAULT_INDEX), and its token becomes 0. x has strides of its own, but for its last dim.
// Tokens lie over the lanes: their angles are gathered in DRAM, which is where the DMA can gather rows.
// Limits: dim at most 2048.
#include "indices.h"

typedef struct {
  launch_t launch;
  uint64_t x;
  uint64_t cos;
  uint64_t sin;
  uint64_t positions;  // u32 [batch * tokens]
  uint64_t angles;     // room for f32 [2, batch * tokens, dim/2]
  uint64_t y;
  int64_t size;  // rows of the tables
  int64_t x_batch;  // strides in elements
  int32_t x_token;
  int32_t x_head;
  int32_t batch;
  int32_t tokens;
  int32_t heads;
  int32_t dim;
  uint32_t inverse;
  uint32_t dtype;
} rope_t;

#define TILE_BYTES (16 * 1024)
enum { X = 0, RAW = TILE_BYTES, Y = 2 * TILE_BYTES, WORK = 3 * TILE_BYTES, COS = 4 * TILE_BYTES, SIN = COS + 4096 };

// The angles of `c` tokens from `row` on, from one of the tables to local memory.
static void load_angles(const rope_t *a, local_addr_t to, uint64_t table, int which, long long row, int c) {
  const int half = a->dim / 2;
  const global_addr_t angles = a->angles + (which * (long long)a->batch * a->tokens + row) * half * 4;
  const dim4 rows = {1, 1, c, half}, stride = {0, 0, half, 1}, tile = {1, c, 1, half};
  tpu_gdma_h_gather_S2S(angles, table, a->positions + row * 4, false, u32_scalar(0), &rows, (int)a->size, &stride, &stride, NULL, DT_FP32);
  tpu_gdma_cpy_S2L(to, angles, &tile, NULL, NULL, DT_FP32);
}

KERNEL(rope, rope_t) {
  check_indices(&a->launch, a->positions, (long long)a->batch * a->tokens, a->size);
  const int half = a->dim / 2, bytes = dtype_bytes(a->dtype);
  const int heads_at_once = MIN(a->heads, TILE_BYTES / (a->dim * 4));
  const long long blocks = DIV_UP(a->tokens, LANES);
  for (long long task = tpu_core_index(); task < a->batch * blocks; task += tpu_core_num()) {
    const long long batch = task / blocks, token = task % blocks * LANES;
    const int c = (int)MIN(LANES, a->tokens - token);
    const dim4 angles = {1, c, 1, half};
    const long long row = batch * a->tokens + token;
    load_angles(a, COS, a->cos, 0, row, c);
    load_angles(a, SIN, a->sin, 1, row, c);
    if (a->inverse) tpu_bdc_fp_mul_C(SIN, SIN, f32_scalar(-1.f), &angles, NULL, NULL, DT_FP32);
    dim4 same;  // the angles are those of every head
    tpu_aligned_stride(&same, 0, &angles, DT_FP32);
    same.h = 0;
    for (int head = 0; head < a->heads; head += heads_at_once) {
      const int h = MIN(heads_at_once, a->heads - head);
      const dim4 shape = {1, c, h, a->dim}, part = {1, c, h, half};
      const dim4 from = {0, a->x_token, a->x_head, 1}, to = {0, a->heads * a->dim, a->dim, 1};
      dim4 in;  // half of the dims of a whole tile
      tpu_aligned_stride(&in, 0, &shape, DT_FP32);
      const global_addr_t src = a->x + (batch * a->x_batch + token * a->x_token + (long long)head * a->x_head) * bytes;
      load_f32(X, RAW, src, &shape, &from, a->dtype);
      const local_addr_t x2 = X + half * 4, y2 = Y + half * 4;
      tpu_bdc_fp_mul(Y, X, COS, &part, &in, &in, &same, DT_FP32);
      tpu_bdc_fp_mul(WORK, x2, SIN, &part, &in, &in, &same, DT_FP32);
      tpu_bdc_fp_sub(Y, Y, WORK, &part, &in, &in, &in, DT_FP32);
      tpu_bdc_fp_mul(y2, x2, COS, &part, &in, &in, &same, DT_FP32);
      tpu_bdc_fp_mul(WORK, X, SIN, &part, &in, &in, &same, DT_FP32);
      tpu_bdc_fp_add(y2, y2, WORK, &part, &in, &in, &in, DT_FP32);
      store_f32(a->y + (row * a->heads + head) * a->dim * bytes, Y, RAW, &shape, &to, a->dtype);
    }
  }
}
