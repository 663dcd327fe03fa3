// Runs kernels with the shapes of a training step where no engine is: what they ask of the engines is counted
// (`kernels/counts.h`), by each of eight cores in its turn, and nothing is computed. `cargo xtask roofline` makes and runs it.
//
// A file here includes the file of kernels whose arguments it needs, and gives its launches of a step. What it includes comes first.
#pragma once

#include "../kernels/kernel.h"

// Qwen2-0.5B on 4 x 1024 tokens: activations in bf16, parameters and their gradients in f32.
enum { BATCH = 4, LENGTH = 1024, TOKENS = BATCH * LENGTH, LAYERS = 24, DIM = 896, NUM_HEADS = 14, KV_HEADS = 2, HEAD_DIM = 64, HIDDEN = 4864, VOCAB = 151936 };
// Where a tensor is; nothing is there.
#define SOMEWHERE 0x40000000ull
#define CORES_OF_CHIP 8

extern int dry_core;         // the core that asks
extern unsigned dry_launch;  // its number, from 1

// `times` launches with these fields of the arguments.
#define RUN(times, kernel, type, ...)                                                 \
  for (int i = 0; i < (times); i++) {                                                 \
    uint32_t started;                                                                 \
    const launch_t launch = {SOMEWHERE, (uint64_t)&started, ++dry_launch, 0};         \
    type args = {launch, __VA_ARGS__};                                                \
    for (dry_core = 0; dry_core < CORES_OF_CHIP; dry_core++) kernel##_batched(&args); \
  }
