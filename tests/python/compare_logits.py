"""Loads checkpoints of ours with transformers and compares their logits with ours.

usage: compare_logits.py CHECKPOINT OURS [CHECKPOINT OURS ...]
       compare_logits.py save CHECKPOINT OUT

OURS is a safetensors file with input_ids [B, T] (i64) and logits [B, T, V] (f32), and the text that the first row's ids
encode in its metadata. Prints a JSON object for each pair, in a list: max_abs_difference, the ids that AutoTokenizer makes of
the text, and the likeliest tokens that follow them, up to an end of text (none of a model that looks both ways). `save` has
transformers write the checkpoint anew.

       compare_logits.py make-bert VOCAB OUT

Makes a BertForMaskedLM of drawn weights and its tokenizer from the file VOCAB, a token a line, in the folder OUT.
"""

import json
import sys

import torch
import transformers
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer


def compare(checkpoint, ours):
    with safe_open(ours, framework="pt") as file:
        input_ids = file.get_tensor("input_ids")
        logits = file.get_tensor("logits")
        text = file.metadata()["text"]

    architecture = AutoConfig.from_pretrained(checkpoint).architectures[0]
    model = getattr(transformers, architecture).from_pretrained(checkpoint, dtype=torch.float32).eval()
    with torch.no_grad():
        theirs = model(input_ids).logits
        follow = input_ids
        if model.can_generate() and not architecture.endswith("ForMaskedLM"):
            follow = model.generate(input_ids, attention_mask=torch.ones_like(input_ids), do_sample=False, max_new_tokens=16)

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    return {
        "max_abs_difference": (theirs - logits).abs().max().item(),
        "largest_logit": theirs.abs().max().item(),
        "ids": tokenizer(text)["input_ids"],
        "text": tokenizer.decode(tokenizer(text)["input_ids"]),
        "mask_token_id": tokenizer.mask_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "greedy": follow[0, input_ids.shape[1] :].tolist(),
    }


def save(checkpoint, out):
    AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).save_pretrained(out)
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(out)


def make_bert(vocab, out):
    from transformers import BertConfig, BertForMaskedLM, BertTokenizer

    torch.manual_seed(0)
    tokenizer = BertTokenizer(vocab=vocab)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    BertForMaskedLM(config).save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    if sys.argv[1] == "save":
        save(*sys.argv[2:])
    elif sys.argv[1] == "make-bert":
        make_bert(*sys.argv[2:])
    else:
        arguments = iter(sys.argv[1:])
        print(json.dumps([compare(*pair) for pair in zip(arguments, arguments)]))
