"""How much is gained by sending messages while gradients are computed.

    python -m benchmarks.overlap            measures, prints and writes benchmarks/overlap.json

Three hosts (network namespaces, veth pairs), each of which can send 20 Mbit/s (tc tbf): through a
bridge, and through a relay that holds everything back for 50 ms. Steps with overlap and steps that
wait for every message take turns on the same connections, three at a time, so that whatever else
the machine does hits both. Needs root and iproute2.
"""

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import TCPStore

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from parley.algorithms import NGC, Algorithm, CompNGC
from parley.compute.engine import LoopEngine
from parley.compute.task import Task
from parley.data import Batches, Samples, Transform
from parley.fabric.gloo import Gloo
from parley.graphs import ring
from parley.neighbourhood import Neighbourhood
from parley.wire.placement import spread
from parley.wire.spread import Spread
from tests import namespaces

HOSTS = 3
BLOCK = 3
"""Steps in a row of one kind, so that the wait for the others before them hardly counts."""
RATE = "20mbit"
DELAYS = (0.0, 0.05)
METHODS: dict[str, Algorithm] = {"ngc": NGC(), "compngc": CompNGC()}
RECORD = Path(__file__).with_name("overlap.json")


def net() -> nn.Module:
    """A small convolutional network: 0.1 million parameters, some tens of ms for a gradient."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(4), nn.Flatten(), nn.Linear(32 * 8 * 8, 48), nn.ReLU(), nn.Linear(48, 10),
    )  # fmt: skip


def work(
    rank: int, name: str, method: str, pairs: int, results: "multiprocessing.Queue[list[float]]"
) -> None:
    namespaces.enter(name)
    torch.set_num_threads(1)
    store = TCPStore("10.77.0.1", 29500, is_master=rank == 0, timeout=timedelta(minutes=5))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=HOSTS)
    transport = Spread(spread(ring(HOSTS), HOSTS, rank), Gloo())
    hood = Neighbourhood(transport, LoopEngine(Task(net())))
    samples = Samples(torch.randn(64, 3, 32, 32), torch.randint(10, (64,)))
    batches = Batches([samples], hood.agents, 32, Transform(), 0)
    algorithm = METHODS[method]
    state = algorithm.init(hood.task.start()[None], hood)
    taken: dict[bool, list[float]] = {True: [], False: []}
    for block in range(2 * pairs + 2):
        transport.overlap = bool(block % 2)
        dist.barrier()
        began = time.perf_counter()
        for step in range(block * BLOCK, (block + 1) * BLOCK):
            state = algorithm.step(state, hood.at(step), batches.at(step), 0.01).state
        if block >= 2:  # the first ones open connections and fill caches
            taken[transport.overlap].append((time.perf_counter() - began) / BLOCK)
    if rank == 0:
        results.put([*taken[True], *taken[False]])
    dist.barrier()
    dist.destroy_process_group()


def measure(method: str, delay: float, pairs: int) -> dict[str, object]:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with namespaces.network(HOSTS, RATE, delay) as names:
        workers = [
            context.Process(target=work, args=(rank, name, method, pairs, results), daemon=True)
            for rank, name in enumerate(names)
        ]
        for worker in workers:
            worker.start()
        found = results.get(timeout=600)
        for worker in workers:
            worker.join(60)
    overlap, waiting = found[:pairs], found[pairs:]
    ratios = [w / o for w, o in zip(waiting, overlap, strict=True)]
    return {
        "algorithm": method,
        "hosts": HOSTS,
        "rate": RATE,
        "delay": delay,
        "parameters": sum(p.numel() for p in net().parameters()),
        "pairs": pairs,
        "steps": BLOCK,
        "seconds_overlap": round(statistics.median(overlap), 4),
        "seconds_waiting": round(statistics.median(waiting), 4),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_quartiles": [round(q, 3) for q in statistics.quantiles(ratios, n=4)[::2]],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    arguments = parser.parse_args()
    if reason := namespaces.missing():
        sys.exit(reason)
    records = []
    for delay in DELAYS:
        for method in METHODS:
            records.append(measure(method, delay, arguments.pairs))
            print(json.dumps(records[-1]), flush=True)
    RECORD.write_text(json.dumps(records, indent=1) + "\n")
