"""One gradient, by every engine and by the textbook, side by side on one thread.

    python -m benchmarks.gradients [--models lenet5 cnn5] [--batches 32 64 96] [--json FILE]

The textbook is what one writes first: an `nn.Module` per agent, a loop, autograd. The limit is the
gradient's floating-point operations at this machine's measured rate of matrix products. Repeats
are interleaved; `use` is a forward pass of the compiled kernels, as in evaluation. Times are the
thread's own processor time for one batch, in milliseconds, so that other work on the machine counts
for little.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.own import own
from parley import models
from parley.compute import choose as engines
from parley.compute import kernels
from parley.compute.task import Task
from parley.data import Batch
from parley.errors import BadValue

SHAPES = {
    "logistic": (1, 28, 28),
    "mlp": (1, 28, 28),
    "lenet5": (1, 28, 28),
    "cnn5": (3, 32, 32),
    "cnn5-s0": (3, 32, 32),
    "vgg11": (3, 32, 32),
    "resnet20": (3, 32, 32),
    "mobilenetv2": (3, 32, 32),
    "own": (3, 32, 32),
}
AGENTS = 4
GEMM = 768


def make_task(name: str) -> Task:
    torch.manual_seed(0)
    if name == "own":
        return Task(own(SHAPES[name], 10))
    options = {"evonorm": "s0"} if name.endswith("-s0") else {}
    return Task(models.build(name.removesuffix("-s0"), SHAPES[name], 10, **options))


def make_batch(shape: tuple[int, ...], size: int) -> Batch:
    return Batch(
        torch.randn(AGENTS, size, *shape),
        torch.randint(0, 10, (AGENTS, size)),
        torch.full((AGENTS, size), 1 / size),
        (size,) * AGENTS,
        tuple(range(AGENTS)),
        0,
    )


class Textbook:
    """One module per agent and a plain loop."""

    def __init__(self, task: Task, x_AD: Tensor, batch: Batch) -> None:
        self.modules = [task.module(x_D).train() for x_D in x_AD]
        self.batch = batch

    def run(self) -> None:
        batch = self.batch
        for module, inputs, targets in zip(self.modules, batch.inputs, batch.targets, strict=True):
            module.zero_grad()
            nn.functional.cross_entropy(module(inputs), targets).backward()

    def gradients(self) -> Tensor:
        """Of the last run, [A, D]."""
        slopes = [[p.grad for p in m.parameters() if p.grad is not None] for m in self.modules]
        return torch.stack([nn.utils.parameters_to_vector(s) for s in slopes])


def operations(task: Task, batch: Batch) -> int:
    """Floating-point operations of one gradient: convolutions and matrix products."""
    with FlopCounterMode(display=False) as counter:
        x_D = task.start().requires_grad_()
        task.losses(x_D, batch.inputs[0], batch.targets[0]).mean().backward()
    return int(counter.get_total_flops())


def measure(name: str, size: int, seconds: float) -> dict[str, Any]:
    """Times of one gradient by each contestant, in milliseconds."""
    task, rows = make_task(name), list(range(AGENTS))
    batch = make_batch(SHAPES[name], size)
    x_AD = task.start() + 0.01 * torch.randn(AGENTS, task.size)
    reference = Textbook(task, x_AD, batch)
    contestants: dict[str, Callable[[], object]] = {"textbook": reference.run}
    reference.run()
    g_AD = reference.gradients()
    for engine_name, (_, unfit) in engines.ENGINES.items():
        if unfit(task, SHAPES[name]):
            continue
        try:
            made = engines.build(engine_name, task)
        except BadValue:  # not for this model, or not on this machine
            continue
        # Correct first. A pool may choose the other of two values that differ by rounding only,
        # and then two correct gradients differ in a few entries.
        error = float((made.gradients(x_AD, batch, rows, rows)[1] - g_AD).norm() / g_AD.norm())
        assert error < 1e-2, f"{engine_name} differs from the textbook by {error:.1e}"
        contestants[engine_name] = partial(made.gradients, x_AD, batch, rows, rows)
        if engine_name == "fused":
            contestants["use"] = partial(made.predict, x_AD[0], batch.inputs.flatten(0, 1))
    square = torch.randn(GEMM, GEMM)
    contestants["gemm"] = lambda: square @ square

    times: dict[str, list[float]] = {n: [] for n in contestants}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["gemm"]) < 5:
        for contestant, run in contestants.items():
            start = time.thread_time()
            run()
            times[contestant].append(1e3 * (time.thread_time() - start))
    rate = 2 * GEMM**3 / (median(times.pop("gemm")) * 1e-3)
    flops = operations(task, batch)
    result: dict[str, Any] = {
        "model": name,
        "batch": size,
        "mflop": flops / 1e6,
        "gemm_gflops": rate / 1e9,
        "limit_ms": flops / rate * 1e3,
    }
    for contestant, values in times.items():
        low, middle, high = quantiles([v / AGENTS for v in values], n=4)
        result[contestant] = {"ms": middle, "quartiles": [low, high]}
    # Ratios of neighbours in time, then their median: robust to a machine that others use too.
    for contestant in times.keys() - {"textbook", "use"}:
        pairs = zip(times["textbook"], times[contestant], strict=True)
        result[contestant]["speedup"] = median(a / b for a, b in pairs)
    return result


def describe() -> dict[str, Any]:
    """The machine, and what it takes to start."""
    start = time.perf_counter()
    available = kernels.available()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(x.split(":")[1].strip() for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):
        processor = platform.processor()
    return {
        "processor": processor,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "kernels": available or kernels.reason(),
        "kernels_start_s": time.perf_counter() - start,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--batches", nargs="+", type=int, default=[32])
    parser.add_argument("--seconds", type=float, default=5, help="per line")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    machine = describe()
    print(", ".join(f"{k} {v}" for k, v in machine.items()))
    names = ["textbook", *engines.ENGINES, "use"]
    print(f"{'model':10}{'batch':>6}", *(f"{n:>18}" for n in names), f"{'limit':>9}", "  ms")
    results = []
    for model in options.models:
        for size in options.batches:
            row = measure(model, size, options.seconds)
            results.append(row)
            cells = []
            for name in names:
                ratio = f" ({row[name]['speedup']:.1f}x)" if "speedup" in row.get(name, ()) else ""
                cells.append(f"{row[name]['ms']:.3f}{ratio}" if name in row else "-")
            print(
                f"{model:10}{size:6}",
                *(f"{c:>18}" for c in cells),
                f"{row['limit_ms']:9.3f}",
                flush=True,
            )
            if options.json:  # at once: an interruption loses nothing
                options.json.parent.mkdir(parents=True, exist_ok=True)
                record = {"machine": machine, "results": results}
                options.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
