// out = a . b or out += a . b over batches of matrices, a [M, K], b [K, N], out [M, N] contiguous.
//
// A matrix is row-major, or column-major (`*_trans`), which is transposed on the way in. Operands are rounded or
// widened to the type of the product as they are loaded; f32 is three bf16 parts (product.h). Sums are f32 over all of
// K in the order of its pieces, added to what is there first, and rounded once.
// Tiles depend on the sizes alone, so results are the same for any number of cores.
// Limits: leading dims of a matrix below 2^31 elements.
#include "product.h"

#define BATCH_DIMS 4

typedef struct {
  launch_t launch;
  uint64_t a;
  uint64_t b;
  uint64_t out;
  int64_t a_batch[BATCH_DIMS];  // strides of the batch dims in elements
  int64_t b_batch[BATCH_DIMS];
  int32_t batch[BATCH_DIMS];
  int32_t m;
  int32_t n;
  int32_t k;
  int32_t a_ld;  // elements between the rows of a row-major, the columns of a column-major matrix
  int32_t b_ld;
  uint32_t a_trans;
  uint32_t b_trans;
  uint32_t a_dtype;
  uint32_t b_dtype;
  uint32_t dtype;  // of the product
  uint32_t out_dtype;
  uint32_t accumulate;
} matmul_t;

// Rows, columns and inner elements of a tile.
#define TILE_M 256
#define TILE_N 512
#define TILE_K 512
// What a BM1690 has; tiles get smaller until all have one, whether all are used or not.
#define CORES 8

typedef struct {
  global_addr_t base;
  int ld;
  bool trans;
  data_type_t dtype;
} matrix_t;

// Elements [row .. row + rows, col .. col + cols] of a matrix.
static void load_tile(const operand_t *x, local_addr_t work0, local_addr_t work1, const matrix_t *from, long long row, long long col, int rows, int cols) {
  const dim4 shape = {1, rows, 1, cols}, stride = {0, from->ld, 0, 1};
  const long long at = from->trans ? col * from->ld + row : row * from->ld + col;
  const global_addr_t src = from->base + at * dtype_bytes(from->dtype);
  const bool is_ready = x->parts == 1 && x->dtype == from->dtype;
  const bool widens = from->dtype != DT_FP32 && !is_ready;
  const local_addr_t to = is_ready ? x->part[0] : widens ? work1 : work0;
  if (from->trans) {
    tpu_gdma_cpy_cw_trans_S2L(to, src, &shape, NULL, &stride, from->dtype);
  } else {
    tpu_gdma_cpy_S2L(to, src, &shape, NULL, &stride, from->dtype);
  }
  if (is_ready) return;
  if (widens) tpu_bdc_cast(work0, work1, &shape, NULL, NULL, DT_FP32, from->dtype, RM_HALF_TO_EVEN);
  set_operand(x, work0, work1, rows, cols);
}

KERNEL(matmul, matmul_t) {
  int tile_m = TILE_M, tile_n = TILE_N;
  long long batches = 1;
  for (int d = 0; d < BATCH_DIMS; d++) batches *= a->batch[d];
  while (tile_n > 64 && batches * DIV_UP(a->m, tile_m) * DIV_UP(a->n, tile_n) < CORES) tile_n /= 2;
  while (tile_m > 64 && batches * DIV_UP(a->m, tile_m) * DIV_UP(a->n, tile_n) < CORES) tile_m /= 2;

  local_addr_t next = 0;
  const operand_t left = take_operand(&next, TILE_M, TILE_K, a->dtype), right = take_operand(&next, TILE_K, TILE_N, a->dtype);
  const local_addr_t out = take_tile(&next, TILE_M, TILE_N, DT_FP32), raw = take_tile(&next, TILE_M, TILE_N, DT_FP32);
  const local_addr_t work0 = take_tile(&next, TILE_K, TILE_N, DT_FP32), work1 = take_tile(&next, TILE_K, TILE_N, DT_FP32);

  const long long down = DIV_UP(a->m, tile_m), across = DIV_UP(a->n, tile_n);
  for (long long task = tpu_core_index(); task < batches * down * across; task += tpu_core_num()) {
    long long batch = task / (down * across), a_at = 0, b_at = 0, rest = batch;
    for (int d = BATCH_DIMS - 1; d >= 0; d--) {
      a_at += rest % a->batch[d] * a->a_batch[d];
      b_at += rest % a->batch[d] * a->b_batch[d];
      rest /= a->batch[d];
    }
    const matrix_t l = {a->a + a_at * dtype_bytes(a->a_dtype), a->a_ld, a->a_trans, a->a_dtype};
    const matrix_t r = {a->b + b_at * dtype_bytes(a->b_dtype), a->b_ld, a->b_trans, a->b_dtype};
    const long long row = task % (down * across) / across * tile_m, col = task % across * tile_n;
    const int m = (int)MIN(tile_m, a->m - row), n = (int)MIN(tile_n, a->n - col);
    const dim4 shape = {1, m, 1, n}, stride = {0, a->n, 0, 1};
    const global_addr_t to = a->out + ((batch * a->m + row) * a->n + col) * dtype_bytes(a->out_dtype);
    if (a->accumulate) load_f32(out, raw, to, &shape, &stride, a->out_dtype);
    for (int k = 0; k < a->k; k += TILE_K) {
      const int inner = MIN(TILE_K, a->k - k);
      load_tile(&left, work0, work1, &l, row, k, m, inner);
      load_tile(&right, work0, work1, &r, k, col, inner, n);
      product(out, &left, &right, m, inner, n, a->accumulate || k > 0);
    }
    store_f32(to, out, raw, &shape, &stride, a->out_dtype);
  }
}
