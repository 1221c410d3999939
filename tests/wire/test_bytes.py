"""What Parley says that it sends is what leaves the hosts: three network namespaces, veth pairs."""

import json
import os
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import TCPStore

from parley.algorithms import NGC, Algorithm, CompNGC
from parley.compute.engine import LoopEngine
from parley.compute.task import Task
from parley.data import Batches, Samples, Transform
from parley.fabric.gloo import Gloo
from parley.graphs import ring
from parley.neighbourhood import Neighbourhood
from parley.wire.codec import ScaledSign
from parley.wire.placement import spread
from parley.wire.spread import Spread
from parley.wire.transport import KINDS
from tests import namespaces
from tests.processes import PATIENCE, process

HOSTS, STEPS = 3, 3
METHODS: dict[str, Algorithm] = {"ngc": NGC(), "compngc": CompNGC()}


def net() -> nn.Module:
    """300,000 parameters in four tensors: messages of 1.2 MB, or 37 kB at one bit per entry."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 10_000), nn.ReLU(), nn.Linear(10_000, 9))


def work(rank: int, name: str, folder: Path) -> None:
    """One host: whole steps of each method, and the second round alone."""
    namespaces.enter(name)
    torch.set_num_threads(1)
    store = TCPStore(
        "10.77.0.1", 29500, is_master=rank == 0, timeout=timedelta(seconds=PATIENCE)
    )  # fmt: skip
    dist.init_process_group("gloo", store=store, rank=rank, world_size=HOSTS)
    placement = spread(ring(HOSTS), HOSTS, rank)
    samples = Samples(torch.randn(4, 20), torch.randint(9, (4,)))
    batches = Batches([samples], placement.agents, 4, Transform(), 0)
    seen: dict[str, dict[str, int]] = {}

    def counted() -> int:
        dist.barrier()
        return namespaces.sent()

    for method, algorithm in METHODS.items():
        hood = Neighbourhood(Spread(placement, Gloo()), LoopEngine(Task(net())))
        state = algorithm.init(hood.task.start()[None], hood)
        before = counted()
        for step in range(STEPS):
            state = algorithm.step(state, hood.at(step), batches.at(step), 0.01).state
        wire = counted() - before
        own = {kind: int(hood.transport.sent[kind].sum()) for kind in KINDS}
        seen[method] = {"wire": wire, **own}

        x_I = hood.exchange(state[0])
        g_I = hood.stored(hood.collect(hood.cross_gradient(x_I, batches.at(0))))
        if method == "compngc":
            g_I = hood.compress(g_I, hood.zeros_I(), ScaledSign((hood.task.size,)))
        counts = hood.transport.sent["cross_gradients"].clone()
        before = counted()
        hood.cluster(torch.zeros_like(state[0]), g_I, alpha=1.0)
        seen[method]["second wire"] = counted() - before
        seen[method]["second"] = int((hood.transport.sent["cross_gradients"] - counts).sum())
    dist.barrier()
    dist.destroy_process_group()
    (folder / f"{rank}.json").write_text(json.dumps(seen))
    os._exit(0)  # the store of the first must not wait for the others' goodbyes


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, int]]]:
    if reason := namespaces.missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("bytes")
    with namespaces.network(HOSTS) as names:
        workers = [process(work, rank, name, folder) for rank, name in enumerate(names)]
        for worker in workers:
            worker.join(PATIENCE)
            worker.kill()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(HOSTS)]


@pytest.mark.parametrize("method", METHODS)
def test_the_interfaces_count_what_parley_counts(seen, method) -> None:
    """Within 5 %: what is not counted is TCP's and Ethernet's."""
    for host in seen:
        counted = sum(host[method][kind] for kind in KINDS)
        assert counted > STEPS * 2 * 1_200_000
        assert host[method]["wire"] == pytest.approx(counted, rel=0.05)
        assert host[method]["wire"] > counted


def test_the_second_round_is_one_bit_per_entry(seen) -> None:
    """At least 30 times less leaves a host than with plain NGC."""
    for host in seen:
        assert host["compngc"]["second wire"] == pytest.approx(host["compngc"]["second"], rel=0.05)
        assert host["ngc"]["second wire"] / host["compngc"]["second wire"] >= 30
        assert host["ngc"]["cross_gradients"] / host["compngc"]["cross_gradients"] > 31
