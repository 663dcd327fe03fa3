#include "../kernels/attention.c"

#include "dry_run.h"

void step_of_attention(void) {
  const int kv = KV_HEADS * HEAD_DIM;
  const problem_t problem = {
      .q = SOMEWHERE, .k = SOMEWHERE, .v = SOMEWHERE, .q_batch = LENGTH * DIM, .k_batch = LENGTH * kv, .v_batch = LENGTH * kv,
      .q_row = DIM, .k_row = kv, .v_row = kv, .q_head = HEAD_DIM, .k_head = HEAD_DIM, .v_head = HEAD_DIM, .batch = BATCH,
      .queries = LENGTH, .keys = LENGTH, .heads = NUM_HEADS, .kv_heads = KV_HEADS, .head_dim = HEAD_DIM, .window = INT32_MAX, .causal = 1,
      .dtype = DT_BFP16, .scale = 0.125f};
  RUN(LAYERS, attention, attention_t, .problem = problem, .out = SOMEWHERE, .lse = SOMEWHERE);
  RUN(LAYERS, attention_dq, attention_dq_t, .problem = problem, .out = SOMEWHERE, .lse = SOMEWHERE, .dout = SOMEWHERE, .dq = SOMEWHERE, .delta = SOMEWHERE);
  RUN(LAYERS, attention_dkv, attention_dkv_t, .problem = problem, .lse = SOMEWHERE, .dout = SOMEWHERE, .delta = SOMEWHERE, .dk = SOMEWHERE, .dv = SOMEWHERE);
}
