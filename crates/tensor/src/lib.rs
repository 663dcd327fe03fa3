//! Tensor, device, autograd tape, operations and fused operations.
