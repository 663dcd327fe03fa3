"""Loads checkpoints of ours with transformers and compares their logits with ours.

usage: compare_logits.py CHECKPOINT OURS [CHECKPOINT OURS ...]
       compare_logits.py save CHECKPOINT OUT

OURS is a safetensors file with input_ids [B, T] (i64) and logits [B, T, V] (f32), and the text that the first row's ids
encode in its metadata. Prints a JSON object for each pair, in a list: max_abs_difference, the ids that AutoTokenizer makes of
the text, and the likeliest tokens that follow them, up to an end of text. `save` has transformers write the checkpoint anew.
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
        follow = model.generate(input_ids, attention_mask=torch.ones_like(input_ids), do_sample=False, max_new_tokens=16)

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    return {
        "max_abs_difference": (theirs - logits).abs().max().item(),
        "largest_logit": theirs.abs().max().item(),
        "ids": tokenizer(text)["input_ids"],
        "text": tokenizer.decode(tokenizer(text)["input_ids"]),
        "eos_token_id": tokenizer.eos_token_id,
        "greedy": follow[0, input_ids.shape[1] :].tolist(),
    }


def save(checkpoint, out):
    AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).save_pretrained(out)
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(out)


if __name__ == "__main__":
    if sys.argv[1] == "save":
        save(*sys.argv[2:])
    else:
        arguments = iter(sys.argv[1:])
        print(json.dumps([compare(*pair) for pair in zip(arguments, arguments)]))
