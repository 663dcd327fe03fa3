"""Loads adapters and merged models of ours with peft and transformers and compares their logits with ours.

usage: compare_adapter.py ADAPTER MERGED OURS [ADAPTER MERGED OURS ...]
       compare_adapter.py make BASE OUT [TARGETS]

ADAPTER is a folder in peft's layout, MERGED the folder of a whole model; OURS is a safetensors file with input_ids [B, T]
(i64) and logits [B, T, V] (f32). Prints a JSON object for each triple, in a list: the largest differences from OURS of the base
with the adapter, of the same as transformers alone loads it, of peft's own merge, of MERGED, and of the base alone. `make` has
peft make an adapter, on the layers that the regular expression TARGETS matches or those it takes by itself.
"""

import json
import sys

import torch
from peft import PeftConfig, PeftModel
from safetensors import safe_open
from transformers import AutoModelForCausalLM


def model(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def compare(adapter, merged, ours):
    with safe_open(ours, framework="pt") as file:
        input_ids = file.get_tensor("input_ids")
        expected = file.get_tensor("logits")

    def difference(model):
        with torch.no_grad():
            return (model(input_ids).logits - expected).abs().max().item()

    base = PeftConfig.from_pretrained(adapter).base_model_name_or_path
    adapted = PeftModel.from_pretrained(model(base), adapter).eval()
    return {
        "base": difference(model(base)),
        "adapter": difference(adapted),
        "by_transformers": difference(model(adapter)),
        "merged": difference(model(merged)),
        "merged_by_peft": difference(adapted.merge_and_unload()),
    }


def adapter_of_peft(base, out, targets=None):
    """Makes an adapter with peft: every weight of it drawn, so that it changes the model."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    config = LoraConfig(r=3, lora_alpha=5, target_modules=targets, bias="all", task_type="CAUSAL_LM")
    adapted = get_peft_model(model(base), config)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.normal_(0, 0.05)
    adapted.save_pretrained(out)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        adapter_of_peft(*sys.argv[2:])
    else:
        arguments = iter(sys.argv[1:])
        print(json.dumps([compare(*triple) for triple in zip(arguments, arguments, arguments)]))
