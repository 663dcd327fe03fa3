"""Speed of data: files to tokens, tpu-train beside Hugging Face `datasets` with `tokenizers`, on the same files.

    python3 -m venv bench && bench/bin/pip install datasets tokenizers
    cargo build --release -p tt-benchmarks --bin data
    bench/bin/python benchmarks/data.py                    # --megabytes 16 --rounds 3 --sources parquet,jsonl

The documents are the sources of the Python that runs this, cut at blank lines into pieces of about 2 KB, and the
tokenizer is a byte-level BPE of 16,384 tokens with Qwen2's pre-tokenizer, learned from them; `--text 'books/**/*.txt'`
and `--tokenizer tokenizer.json` take others. Each round runs every side once, each in a process of its own, and a
side's time leaves out starting it, its imports and its tokenizer. `datasets` is timed without `load_dataset`, which
turns files into its Arrow cache; ours is timed with opening and indexing them, in shuffled order, to packed batches.
The counts of rows and tokens of all sides must be equal.
"""

import argparse
import glob
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import time

COLUMN = "text"
SIDES = {
    "tpu-train, 0 workers": {"num_workers": 0},
    "tpu-train, 1 worker": {"num_workers": 1},
    "tpu-train, 2 workers": {"num_workers": 2},
    "datasets, streaming": {"how": "streaming"},
    "datasets, map batched": {"how": "map"},
    "datasets, map batched, num_proc=2": {"how": "map", "num_proc": 2},
    "datasets, map batched, TOKENIZERS_PARALLELISM": {"how": "map", "threads": True},
}


def documents(pattern, most_bytes):
    """Pieces of files of about 2 KB, without blank lines, so that a blank line can stand between them."""
    pattern = pattern or os.path.join(sysconfig.get_path("stdlib"), "**/*.py")
    total = 0
    for path in sorted(glob.glob(pattern, recursive=True)):
        if "site-packages" in path:
            continue
        with open(path, encoding="utf-8", errors="ignore") as file:
            paragraphs = [p.strip() for p in file.read().replace("\r", "").split("\n\n")]
        piece = []
        for paragraph in paragraphs + [None]:
            if paragraph:
                lines = [line for line in paragraph.split("\n") if line.strip()]
                piece.append("\n".join(lines))
            if piece and (paragraph is None or sum(map(len, piece)) > 2000):
                text = "\n".join(piece).strip()
                piece = []
                total += len(text.encode())
                yield text
                if total > most_bytes:
                    return


def make(folder, texts, tokenizer):
    """The same documents in each kind of file."""
    import datasets
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    os.makedirs(folder, exist_ok=True)
    rows = datasets.Dataset.from_dict({COLUMN: texts, "id": list(range(len(texts)))})
    rows.to_parquet(f"{folder}/parquet.parquet", batch_size=4096)
    rows.save_to_disk(f"{folder}/arrow")
    with open(f"{folder}/jsonl.jsonl", "w") as file:
        for i, text in enumerate(texts):
            print(json.dumps({COLUMN: text, "id": i}, ensure_ascii=False), file=file)
    with open(f"{folder}/text.txt", "w") as file:
        file.write("\n\n".join(texts))
    with open(f"{folder}/val.txt", "w") as file:
        file.write("one\n\ntwo")
    if tokenizer:
        return tokenizer
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    learned = Tokenizer(models.BPE())
    learned.normalizer = normalizers.NFC()
    learned.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    learned.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=16384,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learned.train_from_iterator(texts, trainer)
    path = f"{folder}/tokenizer.json"
    learned.save(path)
    return path


def read_by_datasets(how, source, path, tokenizer_path, num_proc=None):
    """One pass of `datasets`: seconds, rows, tokens."""
    import datasets
    from tokenizers import Tokenizer

    datasets.disable_progress_bars()
    tokenizer = Tokenizer.from_file(tokenizer_path)
    kwargs = {"split": "train", "streaming": how == "streaming"}
    if source == "text":
        rows = datasets.load_dataset("text", data_files=path, sample_by="paragraph", **kwargs)
    elif source == "arrow":
        rows = datasets.load_from_disk(path)
        if how == "streaming":
            rows = rows.to_iterable_dataset()
    else:
        name = "json" if source == "jsonl" else source
        rows = datasets.load_dataset(name, data_files=path, **kwargs)

    def encode(batch):
        encodings = tokenizer.encode_batch_fast(batch[COLUMN], add_special_tokens=False)
        return {"input_ids": [encoding.ids for encoding in encodings]}

    start = time.perf_counter()
    if how == "streaming":
        num_rows, num_tokens = 0, 0
        for row in rows:
            num_rows += 1
            num_tokens += len(tokenizer.encode(row[COLUMN], add_special_tokens=False).ids)
        return time.perf_counter() - start, num_rows, num_tokens
    rows = rows.map(
        encode,
        batched=True,
        num_proc=num_proc,
        remove_columns=rows.column_names,
        load_from_cache_file=False,
    )
    seconds = time.perf_counter() - start
    lengths = rows.with_format("arrow")["input_ids"]
    return seconds, len(rows), sum(len(chunk.values) for chunk in lengths[:].chunks)


def run(side, source, folder, tokenizer):
    options = SIDES[side]
    path = {
        "parquet": f"{folder}/parquet.parquet",
        "arrow": f"{folder}/arrow",
        "jsonl": f"{folder}/jsonl.jsonl",
        "text": f"{folder}/text.txt",
    }[source]
    environment = dict(os.environ, TOKENIZERS_PARALLELISM="false", HF_DATASETS_CACHE=f"{folder}/cache")
    if "num_workers" in options:
        val_path = f"{folder}/val.txt" if source == "text" else path
        command = ["target/release/data", f"url={source}", f"path={path}", f"val_path={val_path}"]
        command += [f"tokenizer={tokenizer}", f"num_workers={options['num_workers']}"]
        if source == "text":
            command.append("separator=blank_line")
    else:
        if options.get("threads"):
            environment["TOKENIZERS_PARALLELISM"] = "true"
        command = [sys.executable, __file__, "--side", side, "--sources", source, "--path", path]
        command += ["--tokenizer", tokenizer]
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(output.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="target/data-benchmark")
    parser.add_argument("--megabytes", type=float, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sources", default="parquet,arrow,jsonl,text")
    parser.add_argument("--text")
    parser.add_argument("--tokenizer")
    parser.add_argument("--side")
    parser.add_argument("--path")
    args = parser.parse_args()
    if args.side:
        options = SIDES[args.side]
        how, num_proc = options["how"], options.get("num_proc")
        seconds, rows, tokens = read_by_datasets(how, args.sources, args.path, args.tokenizer, num_proc)
        print(json.dumps({"seconds": seconds, "rows": rows, "tokens": tokens}))
        return
    texts = list(documents(args.text, args.megabytes * 1e6))
    tokenizer = make(args.folder, texts, args.tokenizer)
    print(f"{len(texts)} documents, {sum(len(text.encode()) for text in texts) / 1e6:.1f} MB", flush=True)
    print("| source | side | rows/s | tokens/s | seconds of each round |\n| --- | --- | --- | --- | --- |", flush=True)
    for source in args.sources.split(","):
        done = {side: [] for side in SIDES}
        for _ in range(args.rounds):
            for side in SIDES:
                done[side].append(run(side, source, args.folder, tokenizer))
        counts = {(it["rows"], it["tokens"]) for runs in done.values() for it in runs}
        assert len(counts) == 1, f"{source}: the sides count (rows, tokens) {counts}"
        median = {}
        for side, runs in done.items():
            seconds = [it["seconds"] for it in runs]
            median[side] = statistics.median(seconds)
            rows, tokens = runs[0]["rows"] / median[side], runs[0]["tokens"] / median[side]
            each = ", ".join(f"{it:.2f}" for it in seconds)
            print(f"| {source} | {side} | {rows:,.0f} | {tokens:,.0f} | {each} |")
        ours = median["tpu-train, 2 workers"]
        batched = min(it for side, it in median.items() if "map" in side)
        streaming = median["datasets, streaming"]
        print(
            f"\n{source}: {batched / ours:.2f} times the best batched map, both cores; "
            f"{streaming / ours:.2f} times plain streaming with 2 workers, "
            f"{streaming / median['tpu-train, 1 worker']:.2f} with 1\n",
            flush=True,
        )


if __name__ == "__main__":
    main()
