"""The shape of `tt-benchmarks` in PyTorch: transformers' Qwen2 and torch.optim.AdamW, on the CPU.

Usage: python benchmarks/torch_qwen2.py [steps] [f32|bf16]. Needs tests/python/requirements.txt. bf16 is torch.autocast.
"""

import statistics
import sys
import time

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

BATCH, SEQ, WARMUP = 4, 256, 3


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    precision = sys.argv[2] if len(sys.argv) > 2 else "f32"
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=1024, hidden_size=512, intermediate_size=1024, num_hidden_layers=3,
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=SEQ,
        tie_word_embeddings=True, use_cache=False, attn_implementation="sdpa",
    )
    model = Qwen2ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
    ids = torch.randint(0, config.vocab_size, (BATCH, SEQ))
    seconds = []
    for _ in range(WARMUP + steps):
        start = time.perf_counter()
        with autocast:
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[WARMUP:])
    print(f"torch {torch.__version__} {precision}, {torch.get_num_threads()} threads: {BATCH * SEQ / median:.0f} tokens/s, step {median * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
