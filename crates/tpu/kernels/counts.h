// What kernels make the engines do, counted by the emulator's build. If TT_TPU_COUNTS names a file, every core adds a line to it
// at the end of a kernel, of the names and numbers of `counts_t`.
//
// Cycles are computed, as the emulator has no clock of the chip's: bytes and multiplications over what is published
// (`docs/tpu-support.md` has the sources), without latencies. A core's two engines, for DMA and for arithmetic, wait for each
// other at every command, but for those between tpu_parallel_start and _end.
#pragma once

#include <stdio.h>
#include <stdlib.h>

// Per core and cycle of 1 ns: an eighth of 546 GB/s; multiplications of 16-bit numbers, an eighth of 128 TFLOPS; bytes of a
// lane's vector unit.
#define BYTES_A_CYCLE 68
#define PRODUCTS_A_CYCLE (64 * 128)
#define VECTOR_BYTES 64

typedef enum { DMA, ARITHMETIC } engine_t;

typedef struct {
  long long loaded, stored;  // bytes of DRAM
  long long products, product_cycles;  // of the cube
  long long commands[2], busy[2];  // of each engine: commands, and cycles that it works
  long long now[2];                // when it is through with all so far
  bool parallel;
} counts_t;

// One for all files of a module. Each core of the emulator is a thread with a module of its own.
__attribute__((weak)) __thread counts_t counts;

static inline void engines_wait(void) {
  const long long later = counts.now[DMA] > counts.now[ARITHMETIC] ? counts.now[DMA] : counts.now[ARITHMETIC];
  counts.now[DMA] = counts.now[ARITHMETIC] = later;
}

static inline void count(engine_t engine, long long commands, long long cycles) {
  if (!counts.parallel) engines_wait();
  counts.commands[engine] += commands;
  counts.busy[engine] += cycles;
  counts.now[engine] += cycles;
}

static inline void count_dma(long long loaded, long long stored) {
  counts.loaded += loaded;
  counts.stored += stored;
  count(DMA, 1, (loaded + stored + BYTES_A_CYCLE - 1) / BYTES_A_CYCLE);
}

static inline long long elements_of(const dim4 *shape) { return (long long)shape->n * shape->c * shape->h * shape->w; }

// `passes` commands that go over `shape`.
static inline void count_passes(const dim4 *shape, int passes, data_type_t dtype) {
  const long long row = (long long)shape->h * shape->w * dtype_bytes(dtype);
  count(ARITHMETIC, passes, (long long)passes * shape->n * ((shape->c + 63) / 64) * ((row + VECTOR_BYTES - 1) / VECTOR_BYTES));
}

// A product has its rows over the lanes. The vendor's function gives two commands.
static inline void count_product(int rows, int inner, int cols) {
  const long long products = (long long)rows * inner * cols, padded = (rows + 63) / 64 * 64LL * inner * cols;
  const long long cycles = (padded + PRODUCTS_A_CYCLE - 1) / PRODUCTS_A_CYCLE;
  counts.products += products;
  counts.product_cycles += cycles;
  count(ARITHMETIC, 2, cycles);
}

static inline void count_from_here(void) { counts = (counts_t){0}; }

static inline void count_to_here(const char *kernel, unsigned launch) {
  const char *path = getenv("TT_TPU_COUNTS");
  FILE *file = path == NULL ? NULL : fopen(path, "a");
  if (file == NULL) return;
  engines_wait();
  fprintf(file, "launch=%u core=%d kernel=%s loaded=%lld stored=%lld products=%lld dma_commands=%lld commands=%lld dma_cycles=%lld product_cycles=%lld arithmetic_cycles=%lld cycles=%lld\n",
          launch, tpu_core_index(), kernel, counts.loaded, counts.stored, counts.products, counts.commands[DMA],
          counts.commands[ARITHMETIC], counts.busy[DMA], counts.product_cycles, counts.busy[ARITHMETIC], counts.now[DMA]);
  fclose(file);
}
