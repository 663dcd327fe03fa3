// y = gelu(x + bias) and its gradient, x and y contiguous [rows, cols] of one float type, bias [cols] in f32.
//
//   z = x + bias,  u = sqrt(2/pi) (z + 0.044715 z^3),  s = 1 / (1 + exp(-2u)) = (1 + tanh(u)) / 2
//   y = z s,       dx = dy s (1 + z (1 - s) 2u')
//
// In f32, rounded once. A core takes a span of the rows, a lane one row or several of up to TILE_W elements, longer ones in
// pieces; the bias lies in every lane. Limits: fewer than 2^31 columns.
// Source: Hendrycks and Gimpel 2016, arXiv:1606.08415.
#include "functions.h"

typedef struct {
  launch_t launch;
  uint64_t x;
  uint64_t bias;
  uint64_t dy;  // of the gradient alone
  uint64_t y;   // or dx
  uint64_t rows;
  uint64_t cols;
  uint32_t dtype;
  uint32_t reserved;
} bias_gelu_t;

// Slots of the lanes' memory, 16 KiB each; WORK is the first of six.
enum { BIAS, Z, DY, S, OUT, RAW, WORK };
#define CUBIC 0.044715f
#define TWICE 1.5957691216f  // 2 sqrt(2/pi)

// S = s, and WORK + 2 = exp(-2u).
static void gate(const dim4 *shape) {
  mul_tiles(S, Z, Z, shape);
  mul_const(S, S, TWICE * CUBIC, shape);
  add_const(S, S, TWICE, shape);
  mul_tiles(S, S, Z, shape);
  sigmoid_tile(S, S, WORK, shape);
}

// OUT = s (1 + z (1 - s) 2u').
static void slope(const dim4 *shape) {
  mul_tiles(OUT, Z, Z, shape);
  mul_const(OUT, OUT, 3 * TWICE * CUBIC, shape);
  add_const(OUT, OUT, TWICE, shape);
  mul_tiles(OUT, OUT, Z, shape);
  // 1 - s = exp(-2u) s, which keeps its digits where s is nearly 1. An infinite exponential belongs to an s of 0.
  tpu_bdc_min_C(SLOT(WORK + 2), SLOT(WORK + 2), f32_scalar(F32_MAX), shape, NULL, NULL, DT_FP32);
  mul_tiles(WORK + 2, WORK + 2, S, shape);
  mul_tiles(OUT, OUT, WORK + 2, shape);
  add_const(OUT, OUT, 1.f, shape);
  mul_tiles(OUT, OUT, S, shape);
}

static void run(const bias_gelu_t *a, bool is_gradient) {
  const int bytes = dtype_bytes(a->dtype), cols = (int)a->cols;
  const span_t rows = core_span(a->rows, 1);
  const dim4 each = {0, cols, 0, 1}, repeated = {0, 0, 0, 1};
  tpu_bdc_load_fp_exp_coeff(TABLE(EXP_TABLE), DT_FP32);
  for (int col = 0; col < cols; col += TILE_W) {
    const int w = MIN(TILE_W, cols - col), rows_at_once = LANES * (TILE_W / ALIGN(w, 16));
    const dim4 all = {1, LANES, 1, w};
    tpu_gdma_channel_bcast_S2L(SLOT(BIAS), a->bias + col * 4ull, &all, NULL, NULL, DT_FP32);
    for (long long row = rows.start; row < rows.end; row += rows_at_once) {
      const dim4 shape = {1, (int)MIN(rows_at_once, rows.end - row), 1, w};
      const uint64_t at = (row * cols + col) * bytes;
      load_f32(SLOT(Z), SLOT(RAW), a->x + at, &shape, &each, a->dtype);
      tpu_bdc_fp_add(SLOT(Z), SLOT(Z), SLOT(BIAS), &shape, NULL, NULL, &repeated, DT_FP32);
      gate(&shape);
      if (is_gradient) {
        slope(&shape);
        load_f32(SLOT(DY), SLOT(RAW), a->dy + at, &shape, &each, a->dtype);
        mul_tiles(OUT, OUT, DY, &shape);
      } else {
        mul_tiles(OUT, Z, S, &shape);
      }
      store_f32(a->y + at, SLOT(OUT), SLOT(RAW), &shape, &each, a->dtype);
    }
  }
}

KERNEL(bias_gelu, bias_gelu_t) { run(a, false); }
KERNEL(bias_gelu_backward, bias_gelu_t) { run(a, true); }
