"""Evaluates checkpoints of ours with transformers, for a comparison with `tpu-train eval` and `embed`.

usage: compare_eval.py CHECKPOINT DOCUMENTS QUESTIONS VECTORS

DOCUMENTS and QUESTIONS are JSON lines, {"text"} and {"query", "choices", "gold"}; VECTORS is the .npy of the documents' texts.
Prints a JSON object: the mean loss of each token of a document after its first, its end included; bits per byte of those that
are text; the log-likelihood of each choice after its question and a blank; and by how much mean-pooled, normalised last hidden
states differ from the vectors.
"""

import json
import math
import sys
import unicodedata

import numpy
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def read(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def log_probs(model, ids):
    """Of each token but the first."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1]
    targets = torch.tensor(ids[1:]).unsqueeze(1)
    return torch.log_softmax(logits.double(), -1).gather(1, targets).squeeze(1)


def losses(model, tokenizer, documents):
    nats, targets, text_nats, text_bytes = 0.0, 0, 0.0, 0
    for document in documents:
        text = document["text"]
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        of_each = log_probs(model, ids + [tokenizer.eos_token_id])
        nats -= of_each.sum().item()
        targets += len(of_each)
        text_nats -= of_each[:-1].sum().item()
        # A byte-level token is written with a character for each byte; the tokenizer reads what NFC makes of a text.
        first = len(tokenizer.convert_ids_to_tokens(ids[:1])[0])
        text_bytes += len(unicodedata.normalize("NFC", text).encode()) - first
    return nats / targets, text_nats / math.log(2) / text_bytes


def scores(model, tokenizer, question):
    context, found = question["query"], []
    for choice in question["choices"]:
        blanks = len(context) - len(context.rstrip())
        before = context[: len(context) - blanks]
        choice = context[len(context) - blanks :] + " " + choice
        encode = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]
        read, whole = encode(before), encode(before + choice)
        of_each = log_probs(model, whole)
        found.append(of_each[len(read) - 1 :].sum().item())
    return found


def pooled(model, tokenizer, texts):
    tokenizer.padding_side = "right"
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = model.model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1).float()
    mean = (states * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(mean, dim=1).numpy()


if __name__ == "__main__":
    checkpoint, documents, questions, vectors = sys.argv[1:]
    documents, questions = read(documents), read(questions)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    loss, bits_per_byte = losses(model, tokenizer, documents)
    ours = numpy.load(vectors)
    theirs = pooled(model, tokenizer, [document["text"] for document in documents])
    assert ours.dtype == numpy.float32 and ours.shape == theirs.shape, (ours.dtype, ours.shape)
    print(
        json.dumps(
            {
                "loss": loss,
                "bits_per_byte": bits_per_byte,
                "log_likelihoods": [scores(model, tokenizer, it) for it in questions],
                "vectors_differ_by": float(numpy.abs(ours - theirs).max()),
            }
        )
    )
