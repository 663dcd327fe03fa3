"""Makes the files here: small tokenizers of BERT as a `vocab.txt`, and what transformers makes of hard strings.

    pip install transformers==5.24.0 && python tests/golden/vocab_txt/make.py
"""

import json
import pathlib
import shutil

from tokenizers import BertWordPieceTokenizer
from transformers import BertTokenizer

HERE = pathlib.Path(__file__).parent
TEXT = """It's 1234 o'clock: the kite, the kites and THE KITE'S 2024 strings; they're here, we'll see, I'd say.
Unbelievable tokenization: bears, bearing, forbearing. café naïve Zürich 東京 こんにちは мир привет
"What's that?" said Pip. I've 12,345.67 reasons...
""" * 3
STRINGS = [
    "", " ", "a", " a", "a ", "\n", "\t\tx", "a\r\nb", "It's", "IT'S they'RE don't", "1", "1234567890", "3.14159",
    "the kite, the kites and THE KITE'S", "unbelievable forbearings", "café naïve Zürich CAFE\u0301", "東京 こんにちは",
    "привет МИР", "👩‍👩‍👧 🏳️‍🌈", "a\u00a0b\u200bc\ufeff", "[MASK] of [SEP] and [CLS]", "[mask]", "##s", "...!!??--__",
    "x" * 120, "\x00\x01a\x7f", "\ufffd", "ſ ß İ ǆ",
]


def make(name, lowercase, config):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    learned = BertWordPieceTokenizer(lowercase=lowercase)
    learned.train_from_iterator([TEXT], vocab_size=180, min_frequency=1, show_progress=False)
    learned.save_model(str(folder))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config) + "\n")
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}) + "\n")
    tokenizer = BertTokenizer.from_pretrained(str(folder))
    (folder / "expected.json").write_text(json.dumps({
        "sep_id": tokenizer.sep_token_id,
        "pad_id": tokenizer.pad_token_id,
        "mask_id": tokenizer.mask_token_id,
        "strings": [
            {
                "text": text,
                "ids": tokenizer(text, add_special_tokens=False)["input_ids"],
                "with_special": tokenizer(text)["input_ids"],
            }
            for text in STRINGS
        ],
    }, ensure_ascii=True, indent=1) + "\n")


make("uncased", True, {"do_lower_case": True, "model_max_length": 512})
make("cased", False, {"do_lower_case": False, "tokenizer_class": "BertTokenizer"})
