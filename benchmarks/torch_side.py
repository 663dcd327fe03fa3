"""The PyTorch side of `cargo xtask bench-peers`: transformers' Qwen2, torch.optim.AdamW (fused), on the CPU.

Usage: python torch_side.py FOLDER [bf16] [compile] [checkpointing] [lora]

FOLDER holds config.json, model.safetensors and batch.safetensors. Says `ready`, and answers each line of its standard input
with the loss and seconds of one step: forward, backward, clipping of the norm to 1, AdamW. bf16 is torch.autocast, lora peft's.
"""

import json
import pathlib
import sys
import time

import torch
from safetensors.torch import load_file
from transformers import Qwen2Config, Qwen2ForCausalLM


def main() -> None:
    folder, options = pathlib.Path(sys.argv[1]), set(sys.argv[2:])
    if unknown := options - {"bf16", "compile", "checkpointing", "lora"}:
        raise SystemExit(f"unknown: {unknown}")
    shape = json.loads((folder / "config.json").read_text())
    config = Qwen2Config(
        **shape, rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=True, use_cache=False,
        attn_implementation="sdpa",
    )
    model = Qwen2ForCausalLM(config)
    missing, unexpected = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    assert missing in ([], ["lm_head.weight"]) and not unexpected, (missing, unexpected)
    if "lora" in options:  # rank 8 on all linear layers, whose weights peft draws
        from peft import LoraConfig, get_peft_model
        model = get_peft_model(model, LoraConfig(r=8, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    model.train()
    if "checkpointing" in options:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    ids = load_file(folder / "batch.safetensors")["input_ids"]
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [  # norms and biases do not decay
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, fused=True)
    loss_of = torch.compile(model) if "compile" in options else model
    autocast = torch.autocast("cpu", torch.bfloat16, enabled="bf16" in options)
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        with autocast:
            loss = loss_of(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        print(json.dumps({"loss": value, "seconds": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    main()
