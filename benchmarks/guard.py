"""What does it cost to look at every message of another worker before it is used?

    python -m benchmarks.guard    measures, and writes benchmarks/guard.json

NGC on LeNet-5, a ring of ten agents in two workers: the share of the CPU time of a step that a
worker spends looking. It hardly depends on what else the machine does.
"""

import json
import statistics
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch._C._distributed_c10d import TCPStore

from parley import graphs
from parley.algorithms import NGC
from parley.compute import choose
from parley.compute.task import Task
from parley.data import Batches, Samples, Transform
from parley.fabric.gloo import Gloo
from parley.models import build
from parley.neighbourhood import Neighbourhood
from parley.wire.guard import Arrived, Guard
from parley.wire.placement import spread
from parley.wire.spread import Spread

RECORD = Path(__file__).with_name("guard.json")
AGENTS, WORKERS, BATCH, STEPS, WARM = 10, 2, 32, 60, 10


class Timed(Guard):
    """Notes how long it looks."""

    seconds = 0.0

    def inspect(self, arrived: Arrived) -> None:
        began = time.process_time()
        super().inspect(arrived)
        self.seconds += time.process_time() - began


def worker(rank: int, port: int, results: Any) -> None:
    torch.set_num_threads(1)
    timeout = timedelta(seconds=300)
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timeout)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORKERS, timeout=timeout)
    guard = Timed(torch.float32, "stop")
    placement = spread(graphs.ring(AGENTS), WORKERS, rank)
    transport = Spread(placement, Gloo(), guard=guard)
    torch.manual_seed(0)
    task = Task(build("lenet5", (1, 28, 28), 10), dtype=torch.float32)
    samples = [_samples(agent) for agent in placement.agents]
    batches = Batches(samples, placement.hosted, BATCH, Transform(), seed=0)
    engine = choose.build("fused", task)
    hood = Neighbourhood(transport, engine, batches)
    algorithm = NGC(momentum=0.9)
    state = algorithm.init(task.start().repeat(len(placement.agents), 1), hood)
    shares: list[float] = []
    for step in range(STEPS):
        began, before = time.process_time(), guard.seconds
        state, _, _ = algorithm.step(state, hood.at(step), batches.at(step), 0.01)
        if step >= WARM:
            shares.append((guard.seconds - before) / (time.process_time() - began))
    results.put((rank, shares))
    dist.destroy_process_group()


def _samples(agent: int) -> Samples:
    generator = torch.Generator().manual_seed(agent)
    inputs = torch.randn(256, 1, 28, 28, generator=generator)
    return Samples(inputs, torch.randint(0, 10, (256,), generator=generator))


def summary(shares: Sequence[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles([100 * share for share in shares])
    return {"percent": round(middle, 2), "from": round(low, 2), "to": round(high, 2)}


def main() -> None:
    timeout = timedelta(seconds=300)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timeout)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(target=worker, args=(r, store.port, results)) for r in range(WORKERS)
    ]
    for process in processes:
        process.start()
    found = dict(results.get(timeout=600) for _ in processes)
    for process in processes:
        process.join()
    record = {"agents": AGENTS, "workers": WORKERS, "model": "LeNet-5", "steps": STEPS - WARM}
    record |= {"share": summary([share for rank in sorted(found) for share in found[rank]])}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
