//! Generation: KV cache, sampler, token stream.
