"""How much of an epoch its evaluation takes.

    python -m benchmarks.evaluation [--cases lenet5/dpsgd lenet5/ngc1 ...] [--json FILE]

Ten agents on a ring, batches of 32, one thread. In a complete evaluation every agent's model is
evaluated before and after gossip, and the averaged model: 21 models on 10,000 test samples, for
60,000 training samples (28 x 28) or 50,000 (32 x 32). By default the averaged model is evaluated
after every epoch, and all are after every few epochs. Steps and passes over some test samples take
turns; times are processor time, so that other work on the machine counts for little.
"""

import argparse
import json
import math
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from benchmarks.cases import Case
from benchmarks.contestants import Parley
from benchmarks.steps import machine
from parley.data import Samples
from parley.training.frequency import frequency_of
from parley.training.metrics import TestSet

AGENTS, TESTED = 10, 10_000
TRAINED = {28: 60_000, 32: 50_000}
CASES = ("lenet5/dpsgd", "lenet5/ngc1", "cnn5/dpsgd", "cnn5/ngc1")


def measure(model: str, rule: str, seconds: float, samples: int) -> dict[str, Any]:
    """Milliseconds of a step, and microseconds of one model on one test sample."""
    case = Case(rule, model, AGENTS)
    player = Parley(case)
    run, random = player.run, torch.Generator().manual_seed(0)
    inputs = torch.randint(256, (samples, *case.shape), generator=random, dtype=torch.uint8)
    held_out = Samples(inputs, torch.randint(10, (samples,), generator=random))
    test = TestSet(held_out, case.transform(), run.engine, run.transport)
    steps: list[float] = []
    passes: list[float] = []
    averaged: list[float] = []
    began = time.perf_counter()
    while len(passes) < 5 or time.perf_counter() - began < seconds:
        start = time.process_time()
        player.step()
        steps.append(time.process_time() - start)
        own_AE = run.now.models_AE
        start = time.process_time()
        test.everything(own_AE, 0.9 * own_AE, own_AE.mean(0))
        passes.append(time.process_time() - start)
        start = time.process_time()
        test.score(own_AE.mean(0))
        averaged.append(time.process_time() - start)
    models = 2 * AGENTS + 1
    step, each = median(steps[1:]), median(passes[1:]) / (models * samples)
    steps_per_epoch = TRAINED[case.shape[-1]] / AGENTS / case.batch
    epoch, scale = steps_per_epoch * step, TESTED / samples
    counts = (len(run.transport.topology.edges), math.ceil(steps_per_epoch), TESTED, run.task.size)
    every = frequency_of(run.experiment.replace(evaluate_every=None), run.stop, *counts).own
    seconds_by_default = median(averaged[1:]) * (1 - 1 / every) + median(passes[1:]) / every
    return {
        "model": model,
        "rule": rule,
        "step_ms": 1e3 * step,
        "sample_us": 1e6 * each,
        "evaluation_s": models * TESTED * each,
        "epoch_s": epoch,
        "share": models * TESTED * each / epoch,
        "own_models_every": every,
        "share_by_default": seconds_by_default * scale / epoch,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", default=list(CASES), help="model/rule")
    parser.add_argument("--seconds", type=float, default=10, help="for each case")
    parser.add_argument("--samples", type=int, default=1024, help="test samples of a pass")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    record: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(os.getloadavg()),
        "cases": [],
    }
    print(
        f"{'':16}{'step':>12}{'model x sample':>16}{'epoch':>10}{'evaluation':>12}{'share':>8}"
        f"{'all models every':>18}{'share':>8}"
    )
    for name in options.cases:
        row = measure(*name.split("/"), options.seconds, options.samples)
        record["cases"].append(row)
        print(
            f"{name:16}{row['step_ms']:9.2f} ms{row['sample_us']:13.2f} us"
            f"{row['epoch_s']:8.1f} s{row['evaluation_s']:10.2f} s{row['share']:8.0%}"
            f"{row['own_models_every']:11} epochs{row['share_by_default']:8.1%}",
            flush=True,
        )
        if options.json:
            options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
