"""Time of a step and memory of a run, by preset and number of ranks, turn by turn.

    cargo build --release && python benchmarks/ranks.py target/release/tpu-train [ROUNDS]

The default model, four rows of 256 tokens a step in micro-batches of one. Ratios to one rank are of the same round.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RUN = """+model=qwen2 +trainer=lm trainer.max_steps=8 trainer.global_batch_size=4 trainer.micro_batch_size=1
    trainer.sample.count=0 logging.report=false data.num_val_blocks=1 trainer.log_interval=100""".split()

WAYS = [
    (1, "replicated", []),
    (2, "replicated", []),
    (2, "zero1", []),
    (2, "zero2", []),
    (2, "zero3", []),
    (2, "zero3", ["model.sharding.prefetch=true"]),
    (4, "zero3", []),
]


def measure(program, ranks, preset, more):
    """Median milliseconds of a step, the first two left out, and peak bytes of the process."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        args = [f"device.ranks={ranks}", f"model/sharding={preset}", f"hydra.run.dir={run}"]
        subprocess.run([program, *RUN, *args, *more], check=True, capture_output=True)
        rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        times = [row["step_time_ms"] for row in rows if "loss" in row]
        summary = json.loads((run / "summary.json").read_text())
        return statistics.median(times[2:]), summary["peak_rss_bytes"]


def main():
    program, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    rows = [[measure(program, *way) for way in WAYS] for _ in range(rounds)]
    for i, (ranks, preset, more) in enumerate(WAYS):
        times = [row[i][0] for row in rows]
        ratios = [row[i][0] / row[0][0] for row in rows]
        name = preset + (", prefetch" if more else "")
        memory = rows[-1][i][1] / 1e6
        ms = " ".join(f"{time:.0f}" for time in times)
        print(f"| {ranks} | {name} | {ms} | {statistics.median(ratios):.2f} | {memory:.0f} |")


main()
