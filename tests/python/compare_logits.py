"""Loads checkpoints of ours with transformers and compares their logits with ours.

usage: compare_logits.py CHECKPOINT OURS [CHECKPOINT OURS ...]

OURS is a safetensors file with input_ids [B, T] (i64) and logits [B, T, V] (f32), and the text that the first row's ids
encode in its metadata. Prints a JSON object for each pair, in a list: max_abs_difference, and the ids that AutoTokenizer makes of
the text.
"""

import json
import sys

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer


def compare(checkpoint, ours):
    with safe_open(ours, framework="pt") as file:
        input_ids = file.get_tensor("input_ids")
        logits = file.get_tensor("logits")
        text = file.metadata()["text"]

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    with torch.no_grad():
        theirs = model(input_ids).logits

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    return {
        "max_abs_difference": (theirs - logits).abs().max().item(),
        "largest_logit": theirs.abs().max().item(),
        "ids": tokenizer(text)["input_ids"],
        "text": tokenizer.decode(tokenizer(text)["input_ids"]),
        "eos_token_id": tokenizer.eos_token_id,
    }


if __name__ == "__main__":
    arguments = iter(sys.argv[1:])
    print(json.dumps([compare(*pair) for pair in zip(arguments, arguments)]))
