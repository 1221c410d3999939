"""How long does averaging in a fixed order take, compared with the matrix product it replaced?

    python -m benchmarks.average            measures, and writes benchmarks/average.json

One thread; both ways alternate in one run, and the ratio is the median over the turns.
"""

import json
import multiprocessing
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from parley import graphs
from parley.compute import kernels
from parley.compute.sums import Sums
from parley.graphs import Topology

RECORD = Path(__file__).with_name("average.json")
LENET5, LOGISTIC = 61_706, 650
CASES = {
    "ring of 10, LeNet-5": (graphs.ring(10), LENET5),
    "ring of 100, logistic regression": (graphs.ring(100), LOGISTIC),
    "ring of 1,000, logistic regression": (graphs.ring(1000), LOGISTIC),
    "ring of 10,000, logistic regression": (graphs.ring(10_000), LOGISTIC),
    "full graph of 16, LeNet-5": (graphs.full(16), LENET5),
    "full graph of 100, logistic regression": (graphs.full(100), LOGISTIC),
}
SECONDS, TURNS = 0.05, 15
DENSE = 1 / 16
"""Smallest share of nonzero entries of W for which the product is dense."""


def in_order(topology: Topology) -> Callable[[Tensor], Tensor]:
    own, edges = range(topology.agents), topology.edges
    weights = [*topology.self_weights, *topology.edge_weights]
    senders, receivers = ([edge[end] for edge in edges] for end in (0, 1))
    sums = Sums([*own, *receivers], [*own, *senders], torch.tensor(weights, dtype=torch.float32))
    return sums.of


def product(topology: Topology) -> Callable[[Tensor], Tensor]:
    mixing = topology.mixing.copy()
    if mixing.nnz >= DENSE * topology.agents**2:
        dense = torch.from_numpy(mixing.toarray()).float()
        return lambda x_AD: dense @ x_AD
    parts = map(torch.from_numpy, (mixing.indptr, mixing.indices, mixing.data))
    with warnings.catch_warnings():  # torch calls its sparse matrices a beta feature
        warnings.simplefilter("ignore", UserWarning)
        sparse = torch.sparse_csr_tensor(*parts, size=mixing.shape).float()
    return lambda x_AD: sparse @ x_AD


def seconds(average: Callable[[Tensor], Tensor], x_AD: Tensor) -> float:
    """Seconds per call, over as many calls as fill `SECONDS`."""
    calls, began = 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS or not calls:
        average(x_AD)
        calls += 1
    return (time.perf_counter() - began) / calls


def measure(name: str) -> dict[str, object]:
    torch.set_num_threads(1)
    topology, size = CASES[name]
    x_AD = torch.randn(topology.agents, size, generator=torch.Generator().manual_seed(0))
    new, old = in_order(topology), product(topology)
    torch.testing.assert_close(new(x_AD), old(x_AD))
    turns = [(seconds(new, x_AD), seconds(old, x_AD)) for _ in range(TURNS)]
    ratios = [round(mine / theirs, 3) for mine, theirs in turns]
    return {"ratio": statistics.median(ratios), "ratios": sorted(ratios)}


def main() -> None:
    assert kernels.available(), kernels.reason()
    # Each in its own process: the heap that one leaves behind changes the next one's page faults.
    spawn = multiprocessing.get_context("spawn")
    found = {}
    for name in CASES:
        with spawn.Pool(1) as pool:
            found[name] = pool.apply(measure, (name,))
    vectors = "AVX-512" if "avx512f" in kernels.processor() else "AVX2"
    record = {"processor": vectors, "torch": torch.__version__, "cases": found}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for name, row in found.items():
        print(f"{name}: {row['ratio']} times the product's time")


if __name__ == "__main__":
    main()
