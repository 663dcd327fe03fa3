// out = a . b or out += a . b over batches of matrices, a [M, K], b [K, N], out [M, N] contiguous.
//
// A matrix is row-major, or column-major (`*_trans`), which is transposed on the way in. Operands are rounded or
// widened to the type of the product as they are loaded; f32 is three bf16 parts (product.h). Sums are f32 over all of
// K in the order of its pieces, added to what is there first, and rounded once. The next piece is loaded, and the last tile stored,
// while one is multiplied.
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

// Rows, columns and inner elements of a tile; fewer rows for f32, whose operands take three times the memory.
#define TILE_M 1024
#define TILE_M_F32 512
#define TILE_N 512
#define TILE_K 512
// Of the chip, whether all are used or not; and what one of them multiplies while it loads a byte.
#ifdef BM1684X
#define CORES 1
#else
#define CORES 8
#endif
#define PRODUCTS_A_BYTE 120
#define MAX_TILES_A_CORE 4

typedef struct {
  global_addr_t base;
  int ld;
  bool trans;
} matrix_t;

// Elements [row .. row + rows, col .. col + cols] of a matrix.
static void load_piece(const side_t *side, int buffer, const matrix_t *from, long long row, long long col, int rows, int cols) {
  const long long at = from->trans ? col * from->ld + row : row * from->ld + col;
  load_side(side, buffer, from->base + at * dtype_bytes(side->dtype), from->ld, from->trans, rows, cols);
}

// A tile of out, and the piece of K that is multiplied next.
typedef struct {
  long long task;
  matrix_t left, right;
  global_addr_t to;
  long long row, col;
  int m, n, k, inner;
} step_t;

typedef struct {
  int m, n;
  long long down, across, count;
} tiles_t;

// Tiles of the sizes and types alone: of those that give every core at most a few, the ones that take the least time, which is
// that of the products or of the loads of a core with the most tiles; the fewest of equal ones.
static tiles_t tiles_of(const matmul_t *a) {
  const int most_m = a->dtype == DT_FP32 ? TILE_M_F32 : TILE_M, products = a->dtype == DT_FP32 ? NUM_PRODUCT_PAIRS : 1;
  const long long least_down = DIV_UP(a->m, most_m), least_across = DIV_UP(a->n, TILE_N);
  long long batches = 1, least = 0;
  for (int d = 0; d < BATCH_DIMS; d++) batches *= a->batch[d];
  tiles_t best = {0};
  for (long long down = least_down; down <= DIV_UP(a->m, LANES); down++) {
    for (long long across = least_across; across <= DIV_UP(a->n, 64); across *= 2) {
      const long long count = batches * down * across;
      if (best.count > 0 && count > MAX_TILES_A_CORE * CORES) break;
      const int m = (int)ALIGN(DIV_UP(a->m, down), LANES), n = (int)ALIGN(DIV_UP(a->n, across), 64);
      const long long multiply = (long long)m * n * products / PRODUCTS_A_BYTE;
      const long long bytes = (long long)m * dtype_bytes(a->a_dtype) + n * dtype_bytes(a->b_dtype);
      const long long time = DIV_UP(count, CORES) * MAX(multiply, bytes);
      if (best.count > 0 && time >= least) continue;
      least = time;
      best = (tiles_t){m, n, DIV_UP(a->m, m), DIV_UP(a->n, n), batches * DIV_UP(a->m, m) * DIV_UP(a->n, n)};
    }
    if (batches * (down + 1) * least_across > MAX_TILES_A_CORE * CORES) break;
  }
  return best;
}

// The first step of a task.
static step_t begin(const matmul_t *a, const tiles_t *t, long long task) {
  step_t s = {.task = task};
  if (task >= t->count) return s;
  const long long batch = task / (t->down * t->across);
  long long a_at = 0, b_at = 0, rest = batch;
  for (int d = BATCH_DIMS - 1; d >= 0; d--) {
    a_at += rest % a->batch[d] * a->a_batch[d];
    b_at += rest % a->batch[d] * a->b_batch[d];
    rest /= a->batch[d];
  }
  s.left = (matrix_t){a->a + a_at * dtype_bytes(a->a_dtype), a->a_ld, a->a_trans};
  s.right = (matrix_t){a->b + b_at * dtype_bytes(a->b_dtype), a->b_ld, a->b_trans};
  s.row = task % (t->down * t->across) / t->across * t->m;
  s.col = task % t->across * t->n;
  s.m = (int)MIN(t->m, a->m - s.row);
  s.n = (int)MIN(t->n, a->n - s.col);
  s.to = a->out + ((batch * a->m + s.row) * a->n + s.col) * dtype_bytes(a->out_dtype);
  s.inner = MIN(TILE_K, a->k);
  return s;
}

static step_t after(const matmul_t *a, const tiles_t *t, step_t s) {
  s.k += TILE_K;
  if (s.k >= a->k) return begin(a, t, s.task + tpu_core_num());
  s.inner = MIN(TILE_K, a->k - s.k);
  return s;
}

static void load(const step_t *s, const side_t *left, const side_t *right, int buffer) {
  load_piece(left, buffer, &s->left, s->row, s->k, s->m, s->inner);
  load_piece(right, buffer, &s->right, s->k, s->col, s->inner, s->n);
}

KERNEL(matmul, matmul_t) {
  const tiles_t t = tiles_of(a);
  local_addr_t next = 0;
  const side_t left = take_side(&next, t.m, TILE_K, a->a_dtype, a->dtype), right = take_side(&next, TILE_K, t.n, a->b_dtype, a->dtype);
  result_t out = take_result(&next, t.m, t.n);
  const int work_rows = MAX(left.is_ready ? 0 : t.m, right.is_ready ? 0 : TILE_K);
  const local_addr_t work1 = take_tile(&next, work_rows, MAX(TILE_K, t.n), DT_FP32), work0 = next;

  int buffer = 0;
  step_t step = begin(a, &t, tpu_core_index());
  if (step.task < t.count) load(&step, &left, &right, buffer);
  while (step.task < t.count) {
    const step_t following = after(a, &t, step);
    const dim4 shape = {1, step.m, 1, step.n}, stride = {0, a->n, 0, 1};
    if (a->accumulate && step.k == 0) {
      store_result(&out, a->out_dtype);
      load_f32(out.sum, out.other, step.to, &shape, &stride, a->out_dtype);
    }
    tpu_parallel_start();
    store_result(&out, a->out_dtype);
    if (following.task < t.count) load(&following, &left, &right, 1 - buffer);
    const operand_t l = operand_of(&left, buffer, work0, work1, step.m, step.inner);
    const operand_t r = operand_of(&right, buffer, work0, work1, step.inner, step.n);
    product(out.sum, &l, &r, step.m, step.inner, step.n, a->accumulate || step.k > 0);
    tpu_parallel_end();
    if (following.task != step.task) finish_result(&out, step.to, &shape, &stride, a->out_dtype);
    step = following;
    buffer = 1 - buffer;
  }
  store_result(&out, a->out_dtype);
}
