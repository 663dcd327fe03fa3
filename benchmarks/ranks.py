"""Time of a step and memory of a run, by preset and number of ranks, turn by turn, and what `plan` says of the time.

    cargo build --release && cargo build --release -p tt-benchmarks --bin exchange
    python benchmarks/ranks.py target/release/tpu-train target/release/exchange [ROUNDS]

The default model, four rows of 256 tokens a step in micro-batches of one. Ratios to one rank are of the same round. The
model of `plan` is fed with what is measured in the round: the step of one rank, and what threads exchange. Ranks share
the cores: each computes at the N-th part of the speed of one alone, and while one copies another cannot compute on the
same core, so nothing is hidden.
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
    (4, "replicated", []),
    (4, "zero3", []),
]

WEIGHT_MEGABYTES = "1"  # about those of the model


def arguments(ranks, preset, more):
    return [*RUN, f"device.ranks={ranks}", f"model/sharding={preset}", *more]


def measure(program, way):
    """Median seconds of a step, the first two left out, and peak bytes of the process."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        args = [*arguments(*way), f"hydra.run.dir={run}"]
        subprocess.run([program, *args], check=True, capture_output=True)
        rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        times = [row["step_time_ms"] for row in rows if "loss" in row]
        summary = json.loads((run / "summary.json").read_text())
        return statistics.median(times[2:]) / 1e3, summary["peak_rss_bytes"]


def exchanged(exchange, ranks):
    """10^9 bytes a second, those of gathers and of sums taken together."""
    lines = subprocess.run([exchange, str(ranks), WEIGHT_MEGABYTES], check=True, capture_output=True, text=True).stdout
    return statistics.harmonic_mean([float(line.split()[1]) for line in lines.splitlines()])


def plan(program, way, *hardware):
    out = subprocess.run([program, "plan", "--json", *arguments(*way), *hardware], check=True, capture_output=True)
    return json.loads(out.stdout)


def predict(program, way, of_one, gb_per_second):
    """Seconds of a step."""
    flops = plan(program, WAYS[0])["step"]["flops"]
    tflops = f"device.peak_tflops={flops / of_one / way[0] / 1e12}"
    time = plan(program, way, tflops, f"dist.ici_gb_per_second={gb_per_second}")["time"]
    return time["step_seconds"] + time["hidden_seconds"]


def main():
    program, exchange = sys.argv[1:3]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    rows = []
    for _ in range(rounds):
        speeds = {ranks: exchanged(exchange, ranks) for ranks in (2, 4)}
        measured = [measure(program, way) for way in WAYS]
        of_one = measured[0][0]
        said = [predict(program, way, of_one, speeds.get(way[0], 1.0)) for way in WAYS]
        rows.append([(time, memory, time / of_one, expected / of_one) for (time, memory), expected in zip(measured, said)])
        print(f"exchanged: {speeds}", file=sys.stderr, flush=True)
    for i, (ranks, preset, more) in enumerate(WAYS):
        times, memories, ratios, expected = zip(*(row[i] for row in rows))
        name = preset + (", prefetch" if more else "")
        ms = " ".join(f"{1e3 * time:.0f}" for time in times)
        ratio, said = statistics.median(ratios), statistics.median(expected)
        error = f"{100 * (said / ratio - 1):+.0f} %"
        print(f"| {ranks} | {name} | {ms} | {ratio:.2f} | {said:.2f} | {error} | {memories[-1] / 1e6:.0f} |")


main()
