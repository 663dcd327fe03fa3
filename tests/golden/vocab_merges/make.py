"""Makes the files here: small tokenizers as `vocab.json` and `merges.txt`, and what transformers makes of hard strings.

    pip install transformers==5.24.0 && python tests/golden/vocab_merges/make.py
"""

import json
import pathlib
import shutil

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import GPT2Tokenizer, Qwen2Tokenizer

HERE = pathlib.Path(__file__).parent
TEXT = """It's 1234 o'clock: the kite, the kites and THE KITE'S 2024 strings; they're here, we'll see, I'd say.
café naïve Zürich 東京 こんにちは мир привет   if (x == 10) {
\treturn x + 1;  // what
}

"What's that?" said Pip. I've 12,345.67 reasons... <|im_start|>user
hello<|im_end|>
""" * 3
STRINGS = [
    "", " ", "  ", "a", " a", "  a", "a ", "a  ", "\n", "\n\n", " \n ", "\t\tx", "\r\n", "a\r\nb", "a\n\n  b",
    "It's", "IT'S they'RE we'Ll I'd 'tis 'x '", "don't can't ‘quoted’ ’s 'ſ",
    "1", "12", "1234567890", "3.14159", "1,234", "²³ Ⅷ ½ ١٢٣", "x1y22z333",
    "the kite, the kites and THE KITE'S", "return x + 1;  // what", "if (x == 10) {\n\treturn x;\n}\n",
    "cafe\u0301 caf\u00e9 e\u0301\u0300", "\u1e9b\u0323", "\u2126 \u03a9 \ufb01", "Zu\u0308rich",
    "東京 こんにちは", "привет мир", "नमस्ते", "👩‍👩‍👧 🏳️‍🌈", "\u00a0x\u2003y\u3000z", "\u200bzero\u200dwidth", "\ufeffbom",
    "<|endoftext|>", "a<|endoftext|>b", " <|endoftext|> ", "<|im_start|>user\nhello<|im_end|>", "<|im_start|",
    "<|im_start|><|im_start|>", "<added>x", "a <strip>  b", "unnormalised caf\u00e9!", "...!!??--__", "=" * 40, "x" * 70,
    "\x00\x01\x7f\x80", "a\u0085b\x0bc\x0cd", "\U0010ffff",
]


def main():
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    learned.train_from_iterator([TEXT], trainer)
    model = json.loads(learned.to_str())["model"]
    vocab = model["vocab"]
    merges = ["#version: 0.2"] + [" ".join(merge) for merge in model["merges"]]

    def token(content, **flags):
        default = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
        return {"content": content, **default, **flags}

    n = len(vocab)
    qwen2 = {
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(n): token("<|endoftext|>"),
            str(n + 1): token("<|im_start|>"),
            str(n + 2): token("<|im_end|>"),
            str(n + 3): token("<strip>", lstrip=True, rstrip=True, special=False),
            str(n + 4): token("caf\u00e9!", normalized=True, special=False),
        },
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "tokenizer_class": "Qwen2Tokenizer",
    }
    with_end = {**vocab, "<|endoftext|>": n}
    cases = {
        "qwen2": (Qwen2Tokenizer, vocab, {"tokenizer_config.json": qwen2}),
        "gpt2": (GPT2Tokenizer, with_end, {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer"}}),
        # As of before `added_tokens_decoder`, and with the two keys that change what is made of a text.
        "gpt2_legacy": (
            GPT2Tokenizer,
            with_end,
            {
                "tokenizer_config.json": {
                    "tokenizer_class": "GPT2TokenizerFast",
                    "add_prefix_space": True,
                    "add_bos_token": True,
                },
                "added_tokens.json": {"<added>": n + 1, "<|im_start|>": n + 2},
                "special_tokens_map.json": {"eos_token": "<|endoftext|>", "pad_token": "<|im_start|>"},
            },
        ),
    }
    for name, (kind, vocab, others) in cases.items():
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "vocab.json").write_text(json.dumps(vocab))
        (folder / "merges.txt").write_text("\n".join(merges) + "\n")
        for file, content in others.items():
            (folder / file).write_text(json.dumps(content, indent=1))
        tokenizer = kind.from_pretrained(folder)
        expected = {
            "strings": [
                {
                    "text": text,
                    "ids": tokenizer.encode(text, add_special_tokens=False),
                    "with_special": tokenizer.encode(text),
                    "decoded": tokenizer.decode(
                        tokenizer.encode(text, add_special_tokens=False),
                        skip_special_tokens=True,
                        clean_up_tokenization_spaces=False,
                    ),
                }
                for text in STRINGS
            ],
            "eos_id": tokenizer.eos_token_id,
            "pad_id": tokenizer.pad_token_id,
        }
        (folder / "expected.json").write_text(json.dumps(expected))


main()
