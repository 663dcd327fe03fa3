"""Time of a step and memory of a run, by preset and number of ranks, turn by turn, and what `plan` says of the time.

    cargo build --release && cargo build --release -p tt-benchmarks --bin exchange
    python benchmarks/ranks.py target/release/tpu-train target/release/exchange [ROUNDS]

The default model, four rows of 256 tokens a step in micro-batches of one. Times are processor time by the number of
cores, which is what a quiet machine takes that has all of them busy, and hardly depends on who else is on this one.
Ratios to one rank are of the same round.

The model of `plan` is fed with what is measured in the round: the step of one rank, and what threads exchange. Ranks share
the cores: each computes at the N-th part of the speed of one alone, and while one copies nobody computes on the same core,
so nothing is hidden.
"""

import json
import os
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
STEPS, EXCHANGES = (2, 6), (20, 260)  # what begins and ends a process is in both, and not in their difference
CORES = 2


def arguments(ranks, preset, more):
    return [*RUN, f"device.ranks={ranks}", f"model/sharding={preset}", *more]


def cpu_seconds(command):
    """Of all cores, in the program and in the system for it."""
    before = os.times()
    subprocess.run(command, check=True, capture_output=True)
    after = os.times()
    used = after.children_user + after.children_system
    return used - before.children_user - before.children_system


def measure(program, way):
    """Processor seconds of a step, and peak bytes of the process."""
    seconds = []
    for steps in STEPS:
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            more = [f"trainer.max_steps={steps}", f"hydra.run.dir={run}"]
            seconds.append(cpu_seconds([program, *arguments(*way), *more]))
            memory = json.loads((run / "summary.json").read_text())["peak_rss_bytes"]
    return (seconds[1] - seconds[0]) / (STEPS[1] - STEPS[0]), memory


def exchanged(exchange, ranks):
    """10^9 bytes that a rank hears in a second of CORES cores, gathers and sums taken together."""
    few, many = (cpu_seconds([exchange, str(ranks), WEIGHT_MEGABYTES, str(rounds)]) for rounds in EXCHANGES)
    seconds = (many - few) / (EXCHANGES[1] - EXCHANGES[0]) / CORES
    heard = 8 * 1e6 * int(WEIGHT_MEGABYTES) * (ranks - 1) / ranks  # eight weights, see exchange.rs
    return 2 * heard / seconds / 1e9


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
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    rows = []
    for _ in range(rounds):
        speeds = {ranks: exchanged(exchange, ranks) for ranks in (2, 4)}
        measured = [measure(program, way) for way in WAYS]
        times = [seconds / CORES for seconds, _ in measured]
        said = [predict(program, way, times[0], speeds.get(way[0], 1.0)) for way in WAYS]
        rows.append([(time, one / times[0], memory) for time, one, (_, memory) in zip(times, said, measured)])
        print(f"exchanged: {speeds}", file=sys.stderr, flush=True)
    for i, (ranks, preset, more) in enumerate(WAYS):
        times, expected, memories = zip(*(row[i] for row in rows))
        ratio = statistics.median(row[i][0] / row[0][0] for row in rows)
        said = statistics.median(expected)
        name = preset + (", prefetch" if more else "")
        ms = " ".join(f"{1e3 * time:.0f}" for time in times)
        error = f"{100 * (said / ratio - 1):+.0f} %"
        print(f"| {ranks} | {name} | {ms} | {ratio:.2f} | {said:.2f} | {error} | {memories[-1] / 1e6:.0f} |")


main()
