// Dropout: y[i] = x[i] / (1 - p) if element i of the stream is kept, else 0, the same elements as on the CPU.
//
// Element i is word i % 4 of the Philox 4x32-10 block with counter (i / 4, stream) under a key, each two words; it is kept
// if its top 24 bits, as a number in [0, 1), are at least p.
// A lane makes whole blocks: a tile is [1, 64, blocks, 4], so that block b of a lane is its row b, and words are its columns.
// The engine multiplies 32 bits to their low half only; the high half is put together from products of 16-bit halves.
// Source: Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3".
#include "kernel.h"

typedef struct {
  launch_t launch;
  uint64_t x;
  uint64_t y;
  uint64_t n;
  uint64_t key;
  uint64_t stream;
  float p;
  uint32_t dtype;
} dropout_t;

// Blocks of a lane in a tile, and bytes of one word of each.
#define BLOCKS 1024
#define WORD_BYTES (BLOCKS * 4)
#define TILE_BYTES (4 * WORD_BYTES)

// Words of the counter, and what a product needs.
enum { C0, C1, C2, C3, HIGH0, HIGH1, LOW_HALF, HIGH_HALF, PART, CARRY };
#define WORD(i) ((local_addr_t)((i) * WORD_BYTES))
enum { X = 12 * WORD_BYTES, RAW = X + TILE_BYTES, KEEP = RAW + TILE_BYTES, UNIT = KEEP + TILE_BYTES };

static void mul_word(int y, int x, uint32_t value, const dim4 *shape) {
  tpu_bdc_int_mul_C(WORD(y), WORD(x), u32_scalar(value), shape, NULL, NULL, DT_UINT32, DT_UINT32, DT_UINT32, 0, RM_TOWARDS_ZERO, false);
}

static void add_words(int y, int a, int b, const dim4 *shape) {
  tpu_bdc_int_add(WORD(y), WORD(a), WORD(b), shape, NULL, NULL, NULL, DT_UINT32, DT_UINT32, DT_UINT32, 0, RM_TOWARDS_ZERO, false);
}

static void low_half(int y, int x, const dim4 *shape) { tpu_bdc_and_C(WORD(y), WORD(x), u32_scalar(0xffff), shape, NULL, NULL, DT_UINT32); }

static void high_half(int y, int x, const dim4 *shape) {
  tpu_bdc_logical_shift_C(WORD(y), WORD(x), -16, shape, NULL, NULL, DT_UINT32, DT_UINT32, RM_TOWARDS_ZERO);
}

// The upper 32 bits of x * value, to y.
static void high_word(int y, int x, uint32_t value, const dim4 *shape) {
  const uint32_t lo = value & 0xffff, hi = value >> 16;
  low_half(LOW_HALF, x, shape);
  high_half(HIGH_HALF, x, shape);
  mul_word(PART, LOW_HALF, lo, shape);  // weight 1
  high_half(CARRY, PART, shape);
  mul_word(PART, HIGH_HALF, lo, shape);  // weight 2^16
  high_half(y, PART, shape);
  low_half(PART, PART, shape);
  add_words(CARRY, CARRY, PART, shape);
  mul_word(PART, LOW_HALF, hi, shape);  // weight 2^16
  low_half(LOW_HALF, PART, shape);
  high_half(PART, PART, shape);
  add_words(y, y, PART, shape);
  add_words(CARRY, CARRY, LOW_HALF, shape);
  high_half(CARRY, CARRY, shape);
  add_words(y, y, CARRY, shape);
  mul_word(PART, HIGH_HALF, hi, shape);  // weight 2^32
  add_words(y, y, PART, shape);
}

static void xor_const(int y, int x, uint32_t value, const dim4 *shape) {
  tpu_bdc_xor_C(WORD(y), WORD(x), u32_scalar(value), shape, NULL, NULL, DT_UINT32);
}

static void xor_words(int y, int a, int b, const dim4 *shape) {
  tpu_bdc_xor(WORD(y), WORD(a), WORD(b), shape, NULL, NULL, NULL, DT_UINT32);
}

static void philox(uint64_t key, const dim4 *shape) {
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
  for (int round = 0; round < 10; round++) {
    high_word(HIGH0, C0, 0xD2511F53u, shape);
    high_word(HIGH1, C2, 0xCD9E8D57u, shape);
    mul_word(LOW_HALF, C0, 0xD2511F53u, shape);
    mul_word(HIGH_HALF, C2, 0xCD9E8D57u, shape);
    xor_words(C0, HIGH1, C1, shape);
    xor_const(C0, C0, k0, shape);
    xor_words(C2, HIGH0, C3, shape);
    xor_const(C2, C2, k1, shape);
    tpu_bdc_cpy(WORD(C1), WORD(HIGH_HALF), shape, NULL, NULL, DT_UINT32);
    tpu_bdc_cpy(WORD(C3), WORD(LOW_HALF), shape, NULL, NULL, DT_UINT32);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

// Counters of blocks first + lane * blocks + b, for lanes 0.. and b 0..blocks. Below 2^32, as the host has checked.
static void set_counters(uint64_t stream, uint32_t first, int lanes, int blocks) {
  const dim4 shape = {1, lanes, 1, blocks};
  tpu_bdc_arithmetic_sequence_bcast(WORD(C0), lanes, 0, 1, blocks);
  // One number a lane: where its blocks begin.
  tpu_bdc_arithmetic_sequence_distribute(WORD(PART), (int)first, blocks, lanes);
  dim4 one = {1, lanes, 1, 1}, stride;
  tpu_aligned_stride(&stride, 0, &one, DT_UINT32);
  stride.h = stride.w = 0;
  tpu_bdc_int_add(WORD(C0), WORD(C0), WORD(PART), &shape, NULL, NULL, &stride, DT_UINT32, DT_UINT32, DT_UINT32, 0, RM_TOWARDS_ZERO, false);
  tpu_bdc_set_C(WORD(C1), u32_scalar(0), &shape, NULL, DT_UINT32);
  tpu_bdc_set_C(WORD(C2), u32_scalar((uint32_t)stream), &shape, NULL, DT_UINT32);
  tpu_bdc_set_C(WORD(C3), u32_scalar((uint32_t)(stream >> 32)), &shape, NULL, DT_UINT32);
}

// `lanes` lanes of 4 * blocks elements each, from element `at` on, which is a multiple of four. The last `missing` are not there.
static void drop(const dropout_t *a, long long at, int lanes, int blocks, int missing) {
  const int bytes = dtype_bytes(a->dtype), w = 4 * blocks - missing;
  const dim4 words = {1, lanes, 1, blocks}, shape = {1, lanes, 1, w}, all = {1, lanes, 1, 4 * blocks};
  set_counters(a->stream, (uint32_t)(at / 4), lanes, blocks);
  philox(a->key, &words);
  dim4 aligned;
  tpu_aligned_stride(&aligned, 0, &all, DT_FP32);
  const dim4 apart = {aligned.n, aligned.c, aligned.h, 4};
  const int word[4] = {C0, C1, C2, C3};
  for (int i = 0; i < 4; i++) {
    tpu_bdc_logical_shift_C(WORD(word[i]), WORD(word[i]), -8, &words, NULL, NULL, DT_UINT32, DT_UINT32, RM_TOWARDS_ZERO);
    tpu_bdc_cast(UNIT + i * 4, WORD(word[i]), &words, &apart, NULL, DT_FP32, DT_UINT32, RM_HALF_TO_EVEN);
  }
  // Kept where not less than p, both times 2^24, which is exact.
  tpu_bdc_less_C(KEEP, UNIT, f32_scalar(a->p * 16777216.f), f32_scalar(-1.f), &all, NULL, NULL, DT_FP32, DT_FP32);
  tpu_bdc_fp_add_C(KEEP, KEEP, f32_scalar(1.f), &all, NULL, NULL, DT_FP32);
  const dim4 rows = {0, 4 * blocks, 0, 1};
  load_f32(X, RAW, a->x + at * bytes, &shape, &rows, a->dtype);
  tpu_bdc_fp_mul_C(X, X, f32_scalar(1.f / (1.f - a->p)), &shape, NULL, NULL, DT_FP32);
  // A product with 0 would keep a NaN that is dropped.
  tpu_bdc_cpy(RAW, KEEP, &shape, NULL, &aligned, DT_FP32);
  const variable_t kept = {TENSOR, {.addr = RAW}}, half = {SCALAR, {.scalar = {.f32 = 0.5f}}};
  const variable_t value = {TENSOR, {.addr = X}}, zero = {SCALAR, {.scalar = {.f32 = 0}}};
  tpu_bdc_greater_select(KEEP, &kept, &half, &value, &zero, &shape, DT_FP32, DT_FP32);
  store_f32(a->y + at * bytes, KEEP, RAW, &shape, &rows, a->dtype);
}

KERNEL(dropout, dropout_t) {
  const span_t span = core_span(a->n, 4 * LANES);
  for (long long at = span.start; at < span.end;) {
    const long long left = span.end - at;
    const int blocks = (int)MIN(BLOCKS, left / (4 * LANES));
    if (blocks > 0) {
      drop(a, at, LANES, blocks, 0);
      at += 4ll * LANES * blocks;
    } else {
      // What is left is less than a block a lane: full blocks, a lane each, then a part of one.
      const int lanes = (int)(left / 4), rest = (int)(left % 4);
      if (lanes > 0) drop(a, at, lanes, 1, 0);
      if (rest > 0) drop(a, at + 4 * lanes, 1, 1, 4 - rest);
      at = span.end;
    }
  }
}
