"""What does it cost that everything a run writes is on the disk before the run goes on?

    python -m benchmarks.durability [FOLDER]    measures, and writes benchmarks/durability.json

Both ways alternate: what is written after an epoch (a record and a checkpoint), as it is and with
`os.fsync` left out. The folder decides which disk is measured; without one, it is the present one.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from parley import graphs
from parley.store import checkpoint
from parley.store.folder import RunFolder
from parley.wire.placement import spread
from parley.wire.transport import Local

RECORD = Path(__file__).with_name("durability.json")
AGENTS, TURNS = 10, 25
SIZES = {"LeNet-5": 61_706, "ResNet-20": 269_722}
"""Parameters. The state is that of NGC with momentum: two such rows for each agent."""
ABOUT = {"epoch": 1, "seconds": 1.0, "samples": 1}


class State(NamedTuple):
    x_AD: Tensor
    v_AD: Tensor


@contextmanager
def without_sync() -> Iterator[None]:
    fsync = os.fsync
    os.fsync = lambda file: None
    try:
        yield
    finally:
        os.fsync = fsync


def seconds(run: Path, epoch: int, state: State, transport: Local) -> float:
    began = time.perf_counter()
    RunFolder(run).append({"epoch": epoch, "accuracy_agents": [0.5] * AGENTS})
    checkpoint.save(run, epoch, state, transport, ABOUT)
    checkpoint.prune(run, epoch)
    return time.perf_counter() - began


def measure(folder: Path, size: int) -> dict[str, float]:
    transport = Local(spread(graphs.ring(AGENTS), 1))
    x_AD = torch.randn(AGENTS, size, generator=torch.Generator().manual_seed(0))
    state = State(x_AD, x_AD.clone())
    synced, unsynced = [], []
    for turn in range(TURNS):
        synced.append(seconds(folder, 2 * turn + 1, state, transport))
        with without_sync():
            unsynced.append(seconds(folder, 2 * turn + 2, state, transport))
        os.sync()  # what was left is not for the next turn to wait for
    median = statistics.median
    return {
        "checkpoint_mb": round(2 * AGENTS * size * 4 / 1e6, 1),
        "synced_ms": round(1e3 * median(synced), 1),
        "unsynced_ms": round(1e3 * median(unsynced), 1),
        "added_ms": round(1e3 * median(a - b for a, b in zip(synced, unsynced, strict=True)), 1),
        "turns": TURNS,
    }


def main() -> None:
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
    found = {}
    for name, size in SIZES.items():
        with tempfile.TemporaryDirectory(dir=place) as folder:
            found[name] = measure(Path(folder), size)
        print(name, json.dumps(found[name]))
    record = {"agents": AGENTS, "models": found}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
