"""Where the time of a step goes.

    python -m benchmarks.profile            measures, prints and writes benchmarks/profile.json
    python -m benchmarks.profile --table    the record as Markdown; measures nothing

One worker, one thread. Every part is timed without the parts inside it; of several rounds the one
with the fastest steps counts, as others may work on the machine too.
"""

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import Case
from benchmarks.contestants import Parley
from benchmarks.steps import machine
from parley.algorithms.cga import ProjectionRule
from parley.algorithms.parts import SGD
from parley.compute.compiled import FusedEngine
from parley.data import Batches
from parley.neighbourhood import Neighbourhood
from parley.training.trainer import Trainer
from parley.wire.codec import ScaledSign

RECORD = Path(__file__).with_name("profile.json")
CASES = (
    Case("dpsgd", "lenet5", 10),
    Case("ngc1", "lenet5", 10),
    Case("compngc", "lenet5", 10),
    Case("cga", "lenet5", 10),
    Case("ngc1", "cnn5", 10),
    Case("ngc1", "mlp", 10),
    Case("ngc1", "logistic", 100),
)
PARTS: dict[str, tuple[tuple[type, str], ...]] = {
    "batches": ((Batches, "at"), (FusedEngine, "_ready")),
    "gradients": ((FusedEngine, "gradients"), (FusedEngine, "accumulate")),
    "averaging": ((Neighbourhood, "average"), (Neighbourhood, "gossip")),
    "clustering": ((Neighbourhood, "cluster"),),
    "momentum": ((SGD, "apply"),),
    "codec": ((ScaledSign, "encode"), (ScaledSign, "take"), (ScaledSign, "decode")),
    "projection": ((ProjectionRule, "project"),),
    "check of the loss": ((Trainer, "_count"),),
}
REST = "the rest"


class Clock:
    """Time by part, each without the parts that it calls."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inside = [0.0]

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self._inside.append(0.0)
            began = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                taken = time.perf_counter() - began
                self.seconds[part] += taken - self._inside.pop()
                self._inside[-1] += taken

        return call


@contextmanager
def clocked() -> Iterator[Clock]:
    """Puts a clock around every part."""
    clock, before = Clock(), []
    for part, functions in PARTS.items():
        for owner, name in functions:
            function = getattr(owner, name)
            before.append((owner, name, owner.__dict__.get(name)))
            setattr(owner, name, clock.timed(part, function))
    try:
        yield clock
    finally:
        for owner, name, own in before:
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)


def profile(case: Case, rounds: int, seconds: float) -> dict[str, Any]:
    """Milliseconds of a step, part by part."""
    player = Parley(case)
    for _ in range(3):
        player.step()
    began = time.perf_counter()
    player.step()
    steps = max(1, round(seconds / (time.perf_counter() - began)))
    best: dict[str, float] = {}
    with clocked() as clock:
        for _ in range(rounds):
            clock.seconds.clear()
            began = time.perf_counter()
            for _ in range(steps):
                player.step()
            whole = time.perf_counter() - began
            if not best or whole < best["step"]:
                best = {"step": whole, **clock.seconds}
    best[REST] = 2 * best["step"] - sum(best.values())
    return {
        "case": case.key,
        "engine": type(player.run.engine).__name__,
        "steps": steps,
        "milliseconds": {part: round(1e3 * value / steps, 4) for part, value in best.items()},
    }


def table(record: dict[str, Any]) -> str:
    """Markdown."""
    cases = record["profiles"]
    parts = [part for part in (*PARTS, REST) if any(part in c["milliseconds"] for c in cases)]
    lines = [
        "\n### Where a step's time goes\n",
        "One worker with one thread; names are model/agents/algorithm.\n",
    ]
    lines += ["| | " + " | ".join(c["case"] for c in cases) + " |", "|---" * (len(cases) + 1) + "|"]
    whole = [f"{c['milliseconds']['step']:.3g} ms" for c in cases]
    lines.append("| a step | " + " | ".join(whole) + " |")
    for part in parts:
        shares = [
            f"{c['milliseconds'][part] / c['milliseconds']['step']:.0%}"
            if part in c["milliseconds"]
            else ""
            for c in cases
        ]
        lines.append(f"| {part} | " + " | ".join(shares) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--table", action="store_true", help="print the record; measure nothing")
    parser.add_argument("--rounds", type=int, default=7, help="of which the fastest counts")
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long a round takes")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(RECORD.read_text(encoding="utf-8"))))
    else:
        torch.set_num_threads(1)
        found = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(os.getloadavg()),
            "profiles": [profile(case, options.rounds, options.seconds) for case in CASES],
        }
        RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(table(found))
