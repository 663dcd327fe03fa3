// Scaled-dot-product attention and its gradients, never holding a [Tq, Tk] matrix.
//
//   s = scale q . k^T, of the keys a query sees      p = exp(s - lse)      out = p . v      lse = ln sum exp s
//   delta = sum_d dout out      ds = scale p (dout . v^T - delta)      dq = ds . k      dk = ds^T . q      dv = p^T . dout
//
// Layout: q, out, dout, dq [B, Tq, H, D]; k, v, dk, dv [B, Tk, Hkv, D]; lse, delta [B, H, Tq] f32; q, k, v by strides.
// A core takes ROWS queries (keys, for dk and dv) at a time and streams the other side through local memory, COLS at
// a time, of which the next is loaded while this one is computed: the block of scores has its rows over the lanes, so that sums over a row stay within a lane. dk and dv
// remake the scores with keys as rows, since a core sums what it owns and nothing is shared; the order of sums does not
// depend on the number of cores.
//
// Numbers: scores, exponentials and sums are f32; p and ds are rounded to the type of the operands before they are
// multiplied, f32 products are exact to about 2^-24 (product.h). What is not seen scores minus infinity. NaN in q or k
// makes NaN of all queries of the blocks that it is in, seen or not.
// Limits: head_dim at most 1024 (the lanes' memory).
#include "product.h"
#include "rows.h"

#define ROWS 128
#define COLS 256

// The operands of all passes, and the shape; `window` is INT32_MAX for none.
typedef struct {
  uint64_t q, k, v;
  uint64_t q_segments, k_segments;  // u32 [B, Tq] and [B, Tk]; 0: none
  int64_t q_batch, k_batch, v_batch;  // strides in elements
  int32_t q_row, k_row, v_row;
  int32_t q_head, k_head, v_head;
  int32_t batch, queries, keys;
  int32_t heads, kv_heads, head_dim;
  int32_t window;
  uint32_t causal;
  uint32_t dtype;
  float scale;
} problem_t;

typedef struct {
  launch_t launch;
  problem_t problem;
  uint64_t out, lse;
} attention_t;

// dq, and delta for the other half.
typedef struct {
  launch_t launch;
  problem_t problem;
  uint64_t out, lse, dout, dq, delta;
} attention_dq_t;

typedef struct {
  launch_t launch;
  problem_t problem;
  uint64_t lse, dout, delta, dk, dv;
} attention_dkv_t;

// ---- where things are ----

static inline global_addr_t row_of(global_addr_t base, int64_t batch_stride, int row_stride, int head_stride, long long b, long long t, long long h, int bytes) {
  return base + (global_addr_t)(b * batch_stride + t * row_stride + h * head_stride) * bytes;
}

static inline global_addr_t q_at(const problem_t *p, int b, int t, int h) {
  return row_of(p->q, p->q_batch, p->q_row, p->q_head, b, t, h, dtype_bytes(p->dtype));
}

static inline global_addr_t k_at(const problem_t *p, int b, int t, int h) {
  return row_of(p->k, p->k_batch, p->k_row, p->k_head, b, t, h, dtype_bytes(p->dtype));
}

static inline global_addr_t v_at(const problem_t *p, int b, int t, int h) {
  return row_of(p->v, p->v_batch, p->v_row, p->v_head, b, t, h, dtype_bytes(p->dtype));
}

// A row of a dense [B, T, heads, D].
static inline global_addr_t dense_at(const problem_t *p, global_addr_t base, int tokens, int heads, int b, int t, int h) {
  const int row = heads * p->head_dim;
  return row_of(base, (int64_t)tokens * row, row, p->head_dim, b, t, h, dtype_bytes(p->dtype));
}

// An element of [B, H, Tq] f32.
static inline global_addr_t stat_at(const problem_t *p, global_addr_t base, int b, int h, int t) {
  return base + (((long long)b * p->heads + h) * p->queries + t) * 4;
}

// ---- who sees whom ----

// Queries or keys `first .. first + count`.
typedef struct { int first, count; } range_t;

static inline range_t clamped(long long first, long long end, int len) {
  first = MIN(MAX(first, 0), len);
  end = MIN(MAX(end, first), len);
  return (range_t){(int)first, (int)(end - first)};
}

// The keys that some query of the range may see, by position.
static inline range_t keys_seen_by(const problem_t *p, range_t queries) {
  const long long position = (long long)queries.first + p->keys - p->queries;
  const long long first = position - p->window + 1;
  return clamped(first, p->causal ? position + queries.count : p->keys, p->keys);
}

// The queries that may see some key of the range.
static inline range_t queries_that_see(const problem_t *p, range_t keys) {
  const long long row = (long long)keys.first + p->queries - p->keys;  // the query at the position of the first key
  const long long end = row + keys.count - 1 + p->window;
  return clamped(p->causal ? row : 0, end, p->queries);
}

// ---- tiles of [rows, cols] f32 and of one number a row ----

static inline dim4 tile(int rows, int cols) { return (dim4){1, rows, 1, cols}; }

// The stride that repeats one row of all lanes over the rows.
static inline dim4 repeat_row(void) { return (dim4){0, 0, 0, 1}; }

// One number a row, from and to consecutive numbers in DRAM.
static inline void load_stat(local_addr_t dst, global_addr_t src, int rows, data_type_t dtype) {
  const dim4 shape = tile(rows, 1);
  tpu_gdma_cpy_S2L(dst, src, &shape, NULL, NULL, dtype);
}

static inline void store_stat(global_addr_t dst, local_addr_t src, int rows) {
  const dim4 shape = tile(rows, 1);
  tpu_gdma_cpy_L2S(dst, src, &shape, NULL, NULL, DT_FP32);
}

// Consecutive numbers as a row of every lane.
static inline void load_row(local_addr_t dst, global_addr_t src, int cols, data_type_t dtype) {
  const dim4 shape = tile(LANES, cols);
  tpu_gdma_channel_bcast_S2L(dst, src, &shape, NULL, NULL, dtype);
}

// The least and the largest id of a range, read by the scalar core: packed documents see few blocks but their own.
typedef struct { uint32_t low, high; } ids_t;

static inline ids_t ids_of(global_addr_t segments, int tokens, int b, range_t range) {
  ids_t ids = {UINT32_MAX, 0};
  if (segments == 0) return ids;
  const global_addr_t at = segments + ((long long)b * tokens + range.first) * 4;
  const global_addr_t line = at / 64 * 64;
  tpu_invalidate_cache(line, ALIGN(at + range.count * 4 - line, 64));
  const volatile uint32_t *id = (const volatile uint32_t *)tpu_global_mem_addr(at);
  for (int i = 0; i < range.count; i++) {
    const uint32_t value = id[i];
    ids.low = MIN(ids.low, value);
    ids.high = MAX(ids.high, value);
  }
  return ids;
}

// No id is in both ranges.
static inline bool apart(const problem_t *p, ids_t a, ids_t b) {
  return p->q_segments != 0 && (a.high < b.low || b.high < a.low);
}

// Block `index` of ROWS out of `len`, and the next COLS of a range.
static inline range_t rows_at(int index, int len) { return (range_t){index * ROWS, MIN(ROWS, len - index * ROWS)}; }

static inline range_t cols_at(range_t range, int done) {
  return (range_t){range.first + done, MIN(COLS, range.count - done)};
}

// ---- the walk of a core: blocks of scores, task by task ----

// A task has a block of rows, queries or keys, and goes over the other side: over what is seen in blocks of columns, and for keys
// over the heads that share them. A step is a block, or a task that has none (`cols.count` 0).
typedef struct {
  long long task;
  int b, h, kv;
  range_t rows, cols;
  range_t seen;
  int done, end_h;
  ids_t ids;  // of the rows
  bool is_first;
  int row_buffer, col_buffer;  // where rows and columns are loaded
} step_t;

typedef struct {
  const problem_t *p;
  bool rows_are_queries;
  int blocks, heads;
  long long tasks;
} walk_t;

static inline walk_t walk_of(const problem_t *p, bool rows_are_queries) {
  walk_t w = {p, rows_are_queries, DIV_UP(rows_are_queries ? p->queries : p->keys, ROWS), rows_are_queries ? p->heads : p->kv_heads, 0};
  w.tasks = (long long)p->batch * w.heads * w.blocks;
  return w;
}

// The first block from here on with anything to see, or none.
static inline step_t seek(const walk_t *w, const step_t *from) {
  step_t s = *from;
  const global_addr_t segments = w->rows_are_queries ? w->p->k_segments : w->p->q_segments;
  const int tokens = w->rows_are_queries ? w->p->keys : w->p->queries;
  for (; s.h < s.end_h; s.h++, s.done = 0) {
    for (; s.done < s.seen.count; s.done += COLS) {
      s.cols = cols_at(s.seen, s.done);
      if (!apart(w->p, s.ids, ids_of(segments, tokens, s.b, s.cols))) return s;
    }
  }
  s = *from;
  s.cols.count = 0;
  return s;
}

static inline step_t begin(const walk_t *w, long long task) {
  const problem_t *p = w->p;
  step_t s = {.task = task, .is_first = true};
  if (task >= w->tasks) return s;
  const int head = task / w->blocks % w->heads, block = task % w->blocks, group = p->heads / p->kv_heads;
  s.b = task / w->blocks / w->heads;
  if (w->rows_are_queries) {
    s.h = head;
    s.end_h = head + 1;
    s.kv = head / group;
    s.rows = rows_at(block, p->queries);
    s.seen = keys_seen_by(p, s.rows);
    s.ids = ids_of(p->q_segments, p->queries, s.b, s.rows);
  } else {
    s.h = head * group;
    s.end_h = s.h + group;
    s.kv = head;
    s.rows = rows_at(block, p->keys);
    s.seen = queries_that_see(p, s.rows);
    s.ids = ids_of(p->k_segments, p->keys, s.b, s.rows);
  }
  return seek(w, &s);
}

static inline step_t after(const walk_t *w, const step_t *s) {
  step_t next = *s;
  if (s->cols.count > 0) {
    next.is_first = false;
    next.done += COLS;
    next = seek(w, &next);
  }
  if (s->cols.count == 0 || next.cols.count == 0) {
    next = begin(w, s->task + tpu_core_num());
    next.row_buffer = 1 - s->row_buffer;
  }
  next.col_buffer = 1 - s->col_buffer;
  return next;
}

// ---- a block of scores ----

// Local memory of all passes.
typedef struct {
  local_addr_t exp_table;
  local_addr_t distance;     // of the query to the key, if both count from the block's first; f32
  local_addr_t row_segment[2];  // a number a row
  local_addr_t col_segment[2];  // a row for all
  local_addr_t scores, probs, work0, work1;  // [ROWS, COLS] f32
  local_addr_t wide;                         // [COLS, D] f32
} block_t;

static inline block_t take_block(const problem_t *p, local_addr_t *next, bool rows_are_queries) {
  block_t m;
  m.exp_table = take_tile(next, 1, 64, DT_FP32);
  m.distance = take_tile(next, ROWS, COLS, DT_FP32);
  for (int i = 0; i < 2; i++) m.row_segment[i] = take_tile(next, ROWS, 1, DT_FP32);
  for (int i = 0; i < 2; i++) m.col_segment[i] = take_tile(next, LANES, COLS, DT_FP32);
  m.scores = take_tile(next, ROWS, COLS, DT_FP32);
  m.probs = take_tile(next, ROWS, COLS, DT_FP32);
  m.work0 = take_tile(next, ROWS, COLS, DT_FP32);
  m.work1 = take_tile(next, ROWS, COLS, DT_FP32);
  m.wide = take_tile(next, COLS, p->head_dim, DT_FP32);
  tpu_bdc_load_fp_exp_coeff(m.exp_table, DT_FP32);

  // distance[i, j] = i - j, or j - i where keys are the rows.
  const dim4 all = tile(ROWS, COLS), one_a_row = tile(ROWS, 1), row = tile(LANES, COLS);
  const dim4 by_row = row_stride(ROWS), by_col = repeat_row();
  tpu_bdc_arithmetic_sequence_distribute_aligned(m.work0, 0, 1, ROWS);
  tpu_bdc_cast(m.row_segment[0], m.work0, &one_a_row, NULL, NULL, DT_FP32, DT_INT32, RM_HALF_TO_EVEN);
  tpu_bdc_arithmetic_sequence_bcast(m.work0, LANES, 0, 1, COLS);
  tpu_bdc_cast(m.col_segment[0], m.work0, &row, NULL, NULL, DT_FP32, DT_INT32, RM_HALF_TO_EVEN);
  if (rows_are_queries)
    tpu_bdc_fp_sub(m.distance, m.row_segment[0], m.col_segment[0], &all, NULL, &by_row, &by_col, DT_FP32);
  else
    tpu_bdc_fp_sub(m.distance, m.col_segment[0], m.row_segment[0], &all, NULL, &by_col, &by_row, DT_FP32);
  return m;
}

static inline variable_t tensor(local_addr_t addr) { return (variable_t){TENSOR, {.addr = addr}}; }
static inline variable_t scalar(float value) { return (variable_t){SCALAR, {.scalar = {.f32 = value}}}; }

// Keeps the scores where a > b.
static inline void keep_where_greater(local_addr_t scores, variable_t a, variable_t b, const dim4 *shape) {
  const variable_t kept = tensor(scores), hidden = scalar(-INFINITY);
  tpu_bdc_greater_select(scores, &a, &b, &kept, &hidden, shape, DT_FP32, DT_FP32);
}

// Scores of what is not seen become minus infinity; `work0` is used.
static inline void mask(const problem_t *p, const block_t *m, local_addr_t scores, const step_t *s, bool rows_are_queries) {
  const range_t queries = rows_are_queries ? s->rows : s->cols, keys = rows_are_queries ? s->cols : s->rows;
  const int rows = rows_are_queries ? queries.count : keys.count;
  const int cols = rows_are_queries ? keys.count : queries.count;
  const dim4 shape = tile(rows, cols);
  // How far the block's first query is after its first key; the extremes over the block.
  const long long base = (long long)queries.first + p->keys - p->queries - keys.first;
  const bool some_later = p->causal && base - (keys.count - 1) < 0;
  const bool some_far = base + queries.count - 1 >= p->window;
  if (some_later || some_far) {
    const dim4 whole = tile(ROWS, COLS);
    dim4 pitch;
    tpu_aligned_stride(&pitch, 0, &whole, DT_FP32);
    // A select has no strides: the distances take the pitch of this block.
    tpu_bdc_cpy(m->work0, m->distance, &shape, NULL, &pitch, DT_FP32);
    const variable_t distance = tensor(m->work0);
    if (some_later) keep_where_greater(scores, distance, scalar(-base - 0.5f), &shape);
    if (some_far) keep_where_greater(scores, scalar(p->window - base - 0.5f), distance, &shape);
  }
  if (p->q_segments != 0) {
    const dim4 by_row = row_stride(rows), by_col = repeat_row();
    tpu_bdc_equal(m->work0, m->row_segment[s->row_buffer], m->col_segment[s->col_buffer], f32_scalar(1), &shape, NULL, &by_row, &by_col, DT_FP32, DT_INT32);
    keep_where_greater(scores, tensor(m->work0), scalar(0.5f), &shape);
  }
}

// The ids of a task's rows, or of a block's columns.
static inline void load_row_segments(const block_t *m, const step_t *s, global_addr_t segments, int tokens) {
  if (segments != 0) load_stat(m->row_segment[s->row_buffer], segments + ((long long)s->b * tokens + s->rows.first) * 4, s->rows.count, DT_INT32);
}

static inline void load_col_segments(const block_t *m, const step_t *s, global_addr_t segments, int tokens) {
  if (segments != 0) load_row(m->col_segment[s->col_buffer], segments + ((long long)s->b * tokens + s->cols.first) * 4, s->cols.count, DT_INT32);
}

// ---- forward: a task is (batch, head, block of queries) ----
//
// Per block of keys, with the running maximum m and sum l of each query:
//   m' = max(m, max s)   p = exp(s - m')   l' = l exp(m - m') + sum p   o' = o exp(m - m') + p . v
// at the end out = o / l, lse = m + ln l.

static void load_forward(const problem_t *p, const block_t *m, const step_t *s, const side_t *q, const side_t *k, const side_t *v) {
  if (s->is_first) {
    load_side(q, s->row_buffer, q_at(p, s->b, s->rows.first, s->h), p->q_row, false, s->rows.count, p->head_dim);
    load_row_segments(m, s, p->q_segments, p->queries);
  }
  if (s->cols.count == 0) return;
  load_side(k, s->col_buffer, k_at(p, s->b, s->cols.first, s->kv), p->k_row, false, s->cols.count, p->head_dim);
  load_side(v, s->col_buffer, v_at(p, s->b, s->cols.first, s->kv), p->v_row, false, s->cols.count, p->head_dim);
  load_col_segments(m, s, p->k_segments, p->keys);
}

KERNEL(attention, attention_t) {
  const problem_t *p = &a->problem;
  const data_type_t dtype = p->dtype;
  const int dim = p->head_dim;
  local_addr_t next = 0;
  const block_t m = take_block(p, &next, true);
  const local_addr_t log_table = take_tile(&next, 1, 64, DT_FP32);
  const side_t q_side = take_side(&next, ROWS, dim, dtype, dtype);
  const side_t k_side = take_side(&next, COLS, dim, dtype, dtype);
  const side_t v_side = take_side(&next, COLS, dim, dtype, dtype);
  const operand_t probs = take_operand(&next, ROWS, COLS, dtype);
  result_t out = take_result(&next, ROWS, dim);                   // o
  const local_addr_t max = take_tile(&next, ROWS, 1, DT_FP32);    // m
  const local_addr_t total = take_tile(&next, ROWS, 1, DT_FP32);  // l
  const local_addr_t shift = take_tile(&next, ROWS, 1, DT_FP32);
  const local_addr_t decay = take_tile(&next, ROWS, 1, DT_FP32);
  const local_addr_t stat = take_tile(&next, ROWS, 1, DT_FP32);
  const local_addr_t stat0 = take_tile(&next, ROWS, 1, DT_FP32);
  const local_addr_t stat1 = take_tile(&next, ROWS, 1, DT_FP32);
  tpu_bdc_load_fp_log_coeff(log_table, DT_FP32);

  const walk_t w = walk_of(p, true);
  step_t step = begin(&w, tpu_core_index());
  if (step.task < w.tasks) load_forward(p, &m, &step, &q_side, &k_side, &v_side);
  operand_t q = {0};
  while (step.task < w.tasks) {
    const step_t following = after(&w, &step);
    const int rows = step.rows.count, cols = step.cols.count;
    const dim4 one = tile(rows, 1), out_shape = tile(rows, dim), by_row = row_stride(rows);
    tpu_parallel_start();
    store_result(&out, dtype);
    if (following.task < w.tasks) load_forward(p, &m, &following, &q_side, &k_side, &v_side);
    if (step.is_first) {
      q = operand_of(&q_side, step.row_buffer, m.wide, m.wide, rows, dim);
      tpu_bdc_set_C(out.sum, f32_scalar(0), &out_shape, NULL, DT_FP32);
      tpu_bdc_set_C(total, f32_scalar(0), &one, NULL, DT_FP32);
      tpu_bdc_set_C(max, f32_scalar(-INFINITY), &one, NULL, DT_FP32);
    }
    if (cols > 0) {
      const dim4 shape = tile(rows, cols), padded = tile(rows, ALIGN(cols, GROUP));
      const operand_t k = operand_of(&k_side, step.col_buffer, m.wide, m.wide, cols, dim);
      const operand_t v = operand_of(&v_side, step.col_buffer, m.wide, m.wide, cols, dim);
      product_trans(m.scores, m.work0, &q, &k, rows, dim, cols);
      // The engine's exp of NaN is 0. A query with a score that is no number gets NaN by way of its sum.
      fill_row_ends(m.scores, rows, cols, 0);
      fold_row(ROW_SUM, stat, m.scores, rows, cols);
      tpu_bdc_fp_mul_C(stat, stat, f32_scalar(0), &one, NULL, NULL, DT_FP32);
      tpu_bdc_fp_add(total, total, stat, &one, NULL, NULL, NULL, DT_FP32);
      tpu_bdc_fp_mul_C(m.scores, m.scores, f32_scalar(p->scale), &shape, NULL, NULL, DT_FP32);
      mask(p, &m, m.scores, &step, true);
      fill_row_ends(m.scores, rows, cols, -INFINITY);

      fold_row(ROW_MAX, stat, m.scores, rows, cols);
      // Where nothing was seen yet any finite shift does: exp(-inf) = 0.
      tpu_bdc_max_C(shift, stat, f32_scalar(LOWEST), &one, NULL, NULL, DT_FP32);
      tpu_bdc_max(shift, shift, max, &one, NULL, NULL, NULL, DT_FP32);
      tpu_bdc_fp_sub(stat, max, shift, &one, NULL, NULL, NULL, DT_FP32);
      tpu_bdc_fp_exp(decay, stat, stat0, stat1, m.exp_table, &one, DT_FP32);
      tpu_bdc_cpy(max, shift, &one, NULL, NULL, DT_FP32);

      tpu_bdc_fp_sub(m.scores, m.scores, shift, &padded, NULL, NULL, &by_row, DT_FP32);
      tpu_bdc_fp_exp(m.probs, m.scores, m.work0, m.work1, m.exp_table, &padded, DT_FP32);
      tpu_bdc_fp_mul(total, total, decay, &one, NULL, NULL, NULL, DT_FP32);
      fold_row(ROW_SUM, stat, m.probs, rows, cols);
      tpu_bdc_fp_add(total, total, stat, &one, NULL, NULL, NULL, DT_FP32);
      tpu_bdc_fp_mul(out.sum, out.sum, decay, &out_shape, NULL, NULL, &by_row, DT_FP32);
      set_operand(&probs, m.probs, m.work0, rows, cols);
      product(out.sum, &probs, &v, rows, cols, dim, true);
    }
    tpu_parallel_end();
    if (following.task != step.task) {
      // A query that sees something has l >= 1, since its largest score counts 1; one that does not has o = 0 and l = 0.
      const variable_t l = tensor(total), none = scalar(0), unit = scalar(1);
      tpu_bdc_equal_select(shift, &l, &none, &unit, &l, &one, DT_FP32, DT_FP32);
      tpu_bdc_fp_log(stat, shift, stat0, log_table, &one, DT_FP32);
      tpu_bdc_fp_add(stat0, stat, max, &one, NULL, NULL, NULL, DT_FP32);
      tpu_bdc_fp_mul_C(stat, total, f32_scalar(0), &one, NULL, NULL, DT_FP32);  // NaN stays NaN
      tpu_bdc_fp_add(stat0, stat0, stat, &one, NULL, NULL, NULL, DT_FP32);
      const variable_t seen_lse = tensor(stat0), unseen_lse = scalar(-INFINITY);
      tpu_bdc_equal_select(stat, &l, &none, &unseen_lse, &seen_lse, &one, DT_FP32, DT_FP32);
      store_stat(stat_at(p, a->lse, step.b, step.h, step.rows.first), stat, rows);
      tpu_bdc_fp32_C_div(decay, shift, 1, &one, NULL, NULL);
      tpu_bdc_fp_mul(out.sum, out.sum, decay, &out_shape, NULL, NULL, &by_row, DT_FP32);
      const dim4 stride = {0, p->heads * dim, 0, 1};
      finish_result(&out, dense_at(p, a->out, p->queries, p->heads, step.b, step.rows.first, step.h), &out_shape, &stride, dtype);
    }
    step = following;
  }
  store_result(&out, dtype);
}

// ---- backward ----

// Scores become ds; `probs` holds p afterwards. `shift` and `delta` are lse and delta of each query, repeated over the
// block by `stride`; `gradients` is dout . v^T, and becomes ds.
static inline void score_gradients(const problem_t *p, const block_t *m, local_addr_t gradients, local_addr_t shift, local_addr_t delta, const dim4 *stride, const dim4 *shape) {
  tpu_bdc_fp_sub(m->scores, m->scores, shift, shape, NULL, NULL, stride, DT_FP32);
  tpu_bdc_fp_exp(m->probs, m->scores, m->work0, m->work1, m->exp_table, shape, DT_FP32);
  tpu_bdc_fp_sub(gradients, gradients, delta, shape, NULL, NULL, stride, DT_FP32);
  tpu_bdc_fp_mul(gradients, gradients, m->probs, shape, NULL, NULL, NULL, DT_FP32);
  tpu_bdc_fp_mul_C(gradients, gradients, f32_scalar(p->scale), shape, NULL, NULL, DT_FP32);
}

static void load_dq(const attention_dq_t *a, const block_t *m, const step_t *s, const side_t *q, const side_t *dout, const local_addr_t *out, const local_addr_t *lse, const side_t *k, const side_t *v) {
  const problem_t *p = &a->problem;
  const int dim = p->head_dim, row = p->heads * dim;
  if (s->is_first) {
    const dim4 shape = tile(s->rows.count, dim), stride = {0, row, 0, 1};
    load_side(dout, s->row_buffer, dense_at(p, a->dout, p->queries, p->heads, s->b, s->rows.first, s->h), row, false, s->rows.count, dim);
    tpu_gdma_cpy_S2L(out[s->row_buffer], dense_at(p, a->out, p->queries, p->heads, s->b, s->rows.first, s->h), &shape, NULL, &stride, p->dtype);
    load_stat(lse[s->row_buffer], stat_at(p, a->lse, s->b, s->h, s->rows.first), s->rows.count, DT_FP32);
    load_side(q, s->row_buffer, q_at(p, s->b, s->rows.first, s->h), p->q_row, false, s->rows.count, dim);
    load_row_segments(m, s, p->q_segments, p->queries);
  }
  if (s->cols.count == 0) return;
  load_side(k, s->col_buffer, k_at(p, s->b, s->cols.first, s->kv), p->k_row, false, s->cols.count, dim);
  load_side(v, s->col_buffer, v_at(p, s->b, s->cols.first, s->kv), p->v_row, false, s->cols.count, dim);
  load_col_segments(m, s, p->k_segments, p->keys);
}

// f32 of what was loaded as `dtype`: that itself, or at `to`.
static inline local_addr_t widened(local_addr_t to, local_addr_t loaded, const dim4 *shape, data_type_t dtype) {
  if (dtype == DT_FP32) return loaded;
  tpu_bdc_cast(to, loaded, shape, NULL, NULL, DT_FP32, dtype, RM_HALF_TO_EVEN);
  return to;
}

// A task is (batch, head, block of queries).
KERNEL(attention_dq, attention_dq_t) {
  const problem_t *p = &a->problem;
  const data_type_t dtype = p->dtype;
  const int dim = p->head_dim;
  local_addr_t next = 0;
  const block_t m = take_block(p, &next, true);
  const side_t q_side = take_side(&next, ROWS, dim, dtype, dtype);
  const side_t dout_side = take_side(&next, ROWS, dim, dtype, dtype);
  const side_t k_side = take_side(&next, COLS, dim, dtype, dtype);
  const side_t v_side = take_side(&next, COLS, dim, dtype, dtype);
  const operand_t ds = take_operand(&next, ROWS, COLS, dtype);
  const local_addr_t gradients = take_tile(&next, ROWS, COLS, DT_FP32);
  result_t dq = take_result(&next, ROWS, dim);
  local_addr_t out[2], lse[2];
  for (int i = 0; i < 2; i++) {
    out[i] = take_tile(&next, ROWS, dim, dtype);
    lse[i] = take_tile(&next, ROWS, 1, DT_FP32);
  }
  const local_addr_t delta = take_tile(&next, ROWS, 1, DT_FP32);

  const walk_t w = walk_of(p, true);
  step_t step = begin(&w, tpu_core_index());
  if (step.task < w.tasks) load_dq(a, &m, &step, &q_side, &dout_side, out, lse, &k_side, &v_side);
  operand_t q = {0}, dout = {0};
  while (step.task < w.tasks) {
    const step_t following = after(&w, &step);
    const int rows = step.rows.count, cols = step.cols.count;
    const dim4 one = tile(rows, 1), out_shape = tile(rows, dim), by_row = row_stride(rows);
    const local_addr_t shift = lse[step.row_buffer];
    if (step.is_first) {
      // Here dq's tiles are free but for what waits to be stored.
      store_result(&dq, dtype);
      const local_addr_t of_dout = widened(dq.sum, dout_side.loaded[step.row_buffer], &out_shape, dtype);
      const local_addr_t of_out = widened(dq.other, out[step.row_buffer], &out_shape, dtype);
      tpu_bdc_fp_mul(m.wide, of_dout, of_out, &out_shape, NULL, NULL, NULL, DT_FP32);
      fill_row_ends(m.wide, rows, dim, 0);
      fold_row(ROW_SUM, delta, m.wide, rows, dim);
      store_stat(stat_at(p, a->delta, step.b, step.h, step.rows.first), delta, rows);
    }
    tpu_parallel_start();
    if (following.task < w.tasks) load_dq(a, &m, &following, &q_side, &dout_side, out, lse, &k_side, &v_side);
    if (step.is_first) {
      // A query that sees nothing has an lse of minus infinity; its scores are that too, and exp(-inf - LOWEST) = 0.
      tpu_bdc_max_C(shift, shift, f32_scalar(LOWEST), &one, NULL, NULL, DT_FP32);
      q = operand_of(&q_side, step.row_buffer, m.wide, m.wide, rows, dim);
      dout = operand_of(&dout_side, step.row_buffer, m.wide, m.wide, rows, dim);
      tpu_bdc_set_C(dq.sum, f32_scalar(0), &out_shape, NULL, DT_FP32);
    }
    if (cols > 0) {
      const dim4 shape = tile(rows, cols);
      const operand_t k = operand_of(&k_side, step.col_buffer, m.wide, m.wide, cols, dim);
      const operand_t v = operand_of(&v_side, step.col_buffer, m.wide, m.wide, cols, dim);
      product_trans(m.scores, m.work0, &q, &k, rows, dim, cols);
      product_trans(gradients, m.work0, &dout, &v, rows, dim, cols);
      tpu_bdc_fp_mul_C(m.scores, m.scores, f32_scalar(p->scale), &shape, NULL, NULL, DT_FP32);
      mask(p, &m, m.scores, &step, true);
      score_gradients(p, &m, gradients, shift, delta, &by_row, &shape);
      set_operand(&ds, gradients, m.work0, rows, cols);
      product(dq.sum, &ds, &k, rows, cols, dim, true);
    }
    tpu_parallel_end();
    if (following.task != step.task) {
      const dim4 stride = {0, p->heads * dim, 0, 1};
      finish_result(&dq, dense_at(p, a->dq, p->queries, p->heads, step.b, step.rows.first, step.h), &out_shape, &stride, dtype);
    }
    step = following;
  }
  store_result(&dq, dtype);
}

static void load_dkv(const attention_dkv_t *a, const block_t *m, const step_t *s, const side_t *k, const side_t *v, const side_t *q, const side_t *dout, const local_addr_t *lse, const local_addr_t *delta) {
  const problem_t *p = &a->problem;
  const int dim = p->head_dim;
  if (s->is_first) {
    load_side(k, s->row_buffer, k_at(p, s->b, s->rows.first, s->kv), p->k_row, false, s->rows.count, dim);
    load_side(v, s->row_buffer, v_at(p, s->b, s->rows.first, s->kv), p->v_row, false, s->rows.count, dim);
    load_row_segments(m, s, p->k_segments, p->keys);
  }
  if (s->cols.count == 0) return;
  load_side(q, s->col_buffer, q_at(p, s->b, s->cols.first, s->h), p->q_row, false, s->cols.count, dim);
  load_side(dout, s->col_buffer, dense_at(p, a->dout, p->queries, p->heads, s->b, s->cols.first, s->h), p->heads * dim, false, s->cols.count, dim);
  load_col_segments(m, s, p->q_segments, p->queries);
  load_row(lse[s->col_buffer], stat_at(p, a->lse, s->b, s->h, s->cols.first), s->cols.count, DT_FP32);
  load_row(delta[s->col_buffer], stat_at(p, a->delta, s->b, s->h, s->cols.first), s->cols.count, DT_FP32);
}

// A task is (batch, key/value head, block of keys), which are the rows; it sums over the queries of the heads that share
// the key/value head.
KERNEL(attention_dkv, attention_dkv_t) {
  const problem_t *p = &a->problem;
  const data_type_t dtype = p->dtype;
  const int dim = p->head_dim;
  local_addr_t next = 0;
  const block_t m = take_block(p, &next, false);
  const side_t k_side = take_side(&next, ROWS, dim, dtype, dtype);
  const side_t v_side = take_side(&next, ROWS, dim, dtype, dtype);
  const side_t q_side = take_side(&next, COLS, dim, dtype, dtype);
  const side_t dout_side = take_side(&next, COLS, dim, dtype, dtype);
  const operand_t left = take_operand(&next, ROWS, COLS, dtype);  // p^T, then ds^T
  const local_addr_t gradients = take_tile(&next, ROWS, COLS, DT_FP32);
  result_t dk = take_result(&next, ROWS, dim), dv = take_result(&next, ROWS, dim);
  local_addr_t lse[2], deltas[2];
  for (int i = 0; i < 2; i++) {
    lse[i] = take_tile(&next, LANES, COLS, DT_FP32);
    deltas[i] = take_tile(&next, LANES, COLS, DT_FP32);
  }

  const walk_t w = walk_of(p, false);
  step_t step = begin(&w, tpu_core_index());
  if (step.task < w.tasks) load_dkv(a, &m, &step, &k_side, &v_side, &q_side, &dout_side, lse, deltas);
  operand_t k = {0}, v = {0};
  while (step.task < w.tasks) {
    const step_t following = after(&w, &step);
    const int rows = step.rows.count, cols = step.cols.count;
    const dim4 out_shape = tile(rows, dim), by_col = repeat_row();
    tpu_parallel_start();
    store_result(&dk, dtype);
    store_result(&dv, dtype);
    if (following.task < w.tasks) load_dkv(a, &m, &following, &k_side, &v_side, &q_side, &dout_side, lse, deltas);
    if (step.is_first) {
      k = operand_of(&k_side, step.row_buffer, m.wide, m.wide, rows, dim);
      v = operand_of(&v_side, step.row_buffer, m.wide, m.wide, rows, dim);
      tpu_bdc_set_C(dk.sum, f32_scalar(0), &out_shape, NULL, DT_FP32);
      tpu_bdc_set_C(dv.sum, f32_scalar(0), &out_shape, NULL, DT_FP32);
    }
    if (cols > 0) {
      const dim4 shape = tile(rows, cols), row = tile(LANES, cols);
      const operand_t q = operand_of(&q_side, step.col_buffer, m.wide, m.wide, cols, dim);
      const operand_t dout = operand_of(&dout_side, step.col_buffer, m.wide, m.wide, cols, dim);
      const local_addr_t shift = lse[step.col_buffer], delta = deltas[step.col_buffer];
      tpu_bdc_max_C(shift, shift, f32_scalar(LOWEST), &row, NULL, NULL, DT_FP32);
      product_trans(m.scores, m.work0, &k, &q, rows, dim, cols);
      product_trans(gradients, m.work0, &v, &dout, rows, dim, cols);
      tpu_bdc_fp_mul_C(m.scores, m.scores, f32_scalar(p->scale), &shape, NULL, NULL, DT_FP32);
      mask(p, &m, m.scores, &step, false);
      score_gradients(p, &m, gradients, shift, delta, &by_col, &shape);
      set_operand(&left, m.probs, m.work0, rows, cols);
      product(dv.sum, &left, &dout, rows, cols, dim, true);
      set_operand(&left, gradients, m.work0, rows, cols);
      product(dk.sum, &left, &q, rows, cols, dim, true);
    }
    tpu_parallel_end();
    if (following.task != step.task) {
      const dim4 stride = {0, p->kv_heads * dim, 0, 1};
      finish_result(&dk, dense_at(p, a->dk, p->keys, p->kv_heads, step.b, step.rows.first, step.kv), &out_shape, &stride, dtype);
      finish_result(&dv, dense_at(p, a->dv, p->keys, p->kv_heads, step.b, step.rows.first, step.kv), &out_shape, &stride, dtype);
    }
    step = following;
  }
  store_result(&dk, dtype);
  store_result(&dv, dtype);
}
