// Runs the kernels of a list one after the other, in one launch.
//
// records: `count` of them in DRAM, each 64 bytes of head (`record_t`) and its `bytes`, up to the next multiple of 64.
// A record is a kernel with its arguments, or data to be copied to an address, which host code would have uploaded between
// two launches. All cores read the list and run each kernel together; none begins with one before all are through with the
// last, as between launches. Limits: a kernel's arguments have at most MAX_ARGS bytes.
#include "kernel.h"

#define RECORD_BYTES 64
#define MAX_ARGS 512

typedef struct {
  uint32_t kernel;  // its place in `batch_kernels`, or DATA
  uint32_t bytes;   // of the arguments, or of the data
  uint64_t dst;     // of data
} record_t;
#define DATA 0xffffffffu

typedef struct {
  launch_t launch;
  uint64_t records;
  uint32_t count;
  uint32_t bytes;  // of the whole list
} batch_t;

#define KERNELS(X) \
  X(attention) X(attention_dq) X(attention_dkv) X(binary) X(strided_copy) X(cross_entropy) \
  X(injected_assert) X(injected_hang) X(fill) X(gelu) X(gelu_backward) X(select_rows) X(add_rows) X(by_element) \
  X(layer_norm) X(layer_norm_backward) X(matmul) \
  X(rms_norm) X(rms_norm_backward) X(optimizer_step) X(dropout) X(reduce_rows) X(sum_columns) X(rope) \
  X(swiglu) X(swiglu_backward) X(unary) X(where_select)

#define DECLARE(name) void name##_batched(const void *args);
KERNELS(DECLARE)
#define RUN(name) name##_batched,
static void (*const run[])(const void *) = {KERNELS(RUN)};
#define NAME(name) #name ";"
// By this the host knows the place of each.
const char batch_kernels[] = KERNELS(NAME);

static void copy_data(global_addr_t dst, global_addr_t src, uint32_t bytes) {
  if (tpu_core_index() != 0) return;
  for (uint32_t done = 0; done < bytes;) {
    const dim4 shape = {1, 1, 1, (int)MIN(bytes - done, MAX_DMA_DIM)};
    tpu_gdma_cpy_S2S(dst + done, src + done, &shape, NULL, NULL, DT_UINT8);
    done += shape.w;
  }
}

int batch(const void *raw) {
  batch_t a;
  memcpy(&a, raw, sizeof a);
  tpu_initialize();
  tpu_invalidate_cache(a.records, a.bytes);
  const char *list = (const char *)tpu_global_mem_addr(a.records);
  uint64_t at = 0;
  for (uint32_t i = 0; i < a.count; i++) {
    record_t record;
    memcpy(&record, list + at, sizeof record);
    at += RECORD_BYTES;
    if (record.kernel == DATA) {
      copy_data(record.dst, a.records + at, record.bytes);
    } else {
      uint64_t args[MAX_ARGS / 8];
      memcpy(args, list + at, MIN(record.bytes, MAX_ARGS));
      run[record.kernel](args);
    }
    at += ALIGN(record.bytes, RECORD_BYTES);
    tpu_poll();
    // The engines wait for each other, and the scalar core, which reads indices, for its engines.
#ifndef BM1684X  // whose one core has nothing to wait for, and no such function
    tpu_sync_all();
#endif
    tpu_poll();
  }
  return 0;
}
const uint32_t batch_args_bytes = sizeof(batch_t);
REGISTER(batch)
