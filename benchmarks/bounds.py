"""What bounds large networks: one gradient in several ways, next to matrix products.

    python -m benchmarks.bounds            measures, prints and writes the record of this processor,
                                           bounds-avx2.json or bounds-avx-512.json
    python -m benchmarks.bounds --table    all records as Markdown; measures nothing

Processor time of one thread, in turns. `loop` is torch in float32 and `bf16` in bfloat16, `fused`
the compiled kernels. `three at once` is a third of one gradient of three batches together, which is
what α = 1 would allow if an agent had its neighbours' data.
"""

import argparse
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from statistics import median
from typing import Any

import torch

from benchmarks.cases import Case, gradient_flops
from benchmarks.steps import machine, records, write_record
from benchmarks.table import MODELS
from parley.compute import choose as engines
from parley.compute.engine import LoopEngine
from parley.compute.precision import without_bf16
from parley.compute.task import Task
from parley.data import Batch

CASES = (
    Case("ngc1", "bert-mini", 3, batch=16, samples=16),
    Case("ngc1", "resnet18", 3, batch=16, samples=16),
)
GEMM = 1024
WAYS = ("loop", "bf16", "fused", "three at once")


def batch_of(case: Case, times: int) -> Batch:
    samples = case.samples_of(0)
    inputs = case.transform().normalise(samples.inputs)
    inputs, targets = (torch.cat([t] * times)[None] for t in (inputs, samples.targets))
    n = times * case.batch
    return Batch(inputs, targets, torch.full((1, n), 1 / n), (n,), (0,), 0)


def measured(case: Case, turns: int) -> dict[str, Any]:
    """Seconds of a gradient in each way."""
    model = case.start()
    task, x_PD, one = Task(model), Task(model).start()[None], batch_of(case, 1)
    loop = LoopEngine(task)
    ways: dict[str, Callable[[], object]] = {
        "loop": partial(loop.gradients, x_PD, one, [0], [0]),
        "three at once": partial(loop.gradients, x_PD, batch_of(case, 3), [0], [0]),
    }
    if not without_bf16(torch.device("cpu")):
        half = LoopEngine(Task(model, precision="bf16"))
        ways["bf16"] = partial(half.gradients, x_PD, one, [0], [0])
    if "fused" in engines.candidates(task, case.shape):
        fused = engines.build("fused", task)
        ways["fused"] = partial(fused.gradients, x_PD, one, [0], [0])
    square = torch.randn(GEMM, GEMM)
    ways["gemm"] = lambda: square @ square
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 1):
        for name, run in ways.items():
            began = time.process_time()
            run()
            spent = time.process_time() - began
            if turn:  # the first one sets everything up
                seconds[name].append(spent / (3 if name == "three at once" else 1))
    flops = case.batch * gradient_flops(model, case.shape)
    rate = 2 * GEMM**3 / min(seconds.pop("gemm"))
    return {
        "model": case.model,
        "batch": case.batch,
        "gflop": flops / 1e9,
        "gemm_gflops": rate / 1e9,
        "limit": flops / rate,
        "seconds": seconds,
    }


def table(records: dict[str, dict[str, Any]]) -> str:
    """Markdown."""
    if not records:
        return ""
    head = ["", "limit, ms", *(f"{way} / limit" for way in WAYS)]
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for kind, record in records.items():
        for row in record["rows"]:
            found = (row["seconds"].get(way) for way in WAYS)
            cells = [f"{median(s) / row['limit']:.2f}" if s else "" for s in found]
            name = f"{MODELS[row['model']]}, batches of {row['batch']}, {kind}"
            lines.append(f"| {name} | {1e3 * row['limit']:.0f} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bounds", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--table", action="store_true", help="print the records; measure nothing")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    if not options.table:
        torch.set_num_threads(1)
        found = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(os.getloadavg()),
            "rows": [measured(case, options.turns) for case in CASES],
        }
        write_record("bounds", found)
    print(table(records("bounds")))
