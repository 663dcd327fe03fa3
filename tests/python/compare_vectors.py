"""Compares vectors of `tpu-train embed` with those that transformers makes of the same texts.

usage: compare_vectors.py CHECKPOINT TEXTS VECTORS
       compare_vectors.py body CHECKPOINT OUT

TEXTS has a text a line, VECTORS is the .npy of their mean-pooled, normalised last hidden states; prints by how much they
differ, as a JSON object. `body` has transformers write the model without its head, with the tokenizer, in the folder OUT.
"""

import json
import sys

import numpy
import torch
from transformers import AutoModel, AutoTokenizer


def body(checkpoint, out):
    torch.manual_seed(0)
    AutoModel.from_pretrained(checkpoint, dtype=torch.float32).save_pretrained(out)
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(out)


def compare(checkpoint, texts, vectors):
    model = AutoModel.from_pretrained(checkpoint, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    ours = numpy.load(vectors)
    differ_by = 0.0
    with open(texts, encoding="utf-8") as lines:
        for line, vector in zip(lines, ours, strict=True):
            ids = tokenizer(line.rstrip("\n"), return_tensors="pt")["input_ids"]
            with torch.no_grad():
                mean = model(ids).last_hidden_state[0].mean(0)
            theirs = torch.nn.functional.normalize(mean, dim=0).numpy()
            differ_by = max(differ_by, float(numpy.abs(theirs - vector).max()))
    return {"vectors_differ_by": differ_by, "class": type(model).__name__}


if __name__ == "__main__":
    if sys.argv[1] == "body":
        body(*sys.argv[2:])
    else:
        print(json.dumps(compare(*sys.argv[1:])))
