"""What encryption between peers costs: the same steps by gloo and over links with TLS 1.3.

    python -m benchmarks.peers              measures, prints and writes benchmarks/peers.json

Three hosts (network namespaces, veth pairs through a bridge), each with one agent and 300,000
parameters: at full speed, and with 20 Mbit/s for what each host sends. Blocks of steps by gloo and
over links take turns in the same processes, so that whatever else the machine does hits both. Needs
root and iproute2.
"""

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import TCPStore

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from parley.algorithms import NGC
from parley.compute.engine import LoopEngine
from parley.compute.task import Task
from parley.data import Batches, Samples, Transform
from parley.fabric.base import Member
from parley.fabric.gloo import Gloo
from parley.graphs import ring
from parley.neighbourhood import Neighbourhood
from parley.peers import keys
from parley.peers.fabric import Linked
from parley.peers.file import Peers
from parley.peers.join import linked
from parley.wire.placement import spread
from parley.wire.spread import Spread
from parley.wire.transport import KINDS, Transport
from tests import namespaces
from tests.peers.groups import NAMES, write_group

HOSTS = 3
BLOCK = 3
"""Steps in a row by one transport."""
RATES = {"veth": "", "20 Mbit/s": "20mbit"}
PATIENCE = 300.0
RECORD = Path(__file__).with_name("peers.json")


def net() -> nn.Module:
    """300,000 parameters in four tensors: messages of 1.2 MB."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 10_000), nn.ReLU(), nn.Linear(10_000, 9))


def group(folder: Path) -> Path:
    """Keys and a peers.toml for the hosts of `namespaces.network`."""
    addresses = [f"10.77.0.{number + 1}:7400" for number in range(HOSTS)]
    return write_group(folder, [[number] for number in range(HOSTS)], addresses=addresses)


def steps_of(transport: Transport) -> Callable[[int], None]:
    """What makes one step of NGC, given its number."""
    hood = Neighbourhood(transport, LoopEngine(Task(net())))
    samples = Samples(torch.randn(32, 20), torch.randint(9, (32,)))
    batches = Batches([samples], hood.agents, 32, Transform(), 0)
    algorithm = NGC()
    state: list[Any] = [algorithm.init(hood.task.start()[None], hood)]

    def step(number: int) -> None:
        state[0] = algorithm.step(state[0], hood.at(number), batches.at(number), 0.01).state

    return step


def work(rank: int, name: str, file: Path, blocks: int, said: Any) -> None:
    """One host: blocks of steps by gloo and over links, and what left its interface."""
    namespaces.enter(name)
    torch.set_num_threads(1)
    store = TCPStore(
        "10.77.0.1", 29500, is_master=rank == 0, timeout=timedelta(seconds=PATIENCE)
    )  # fmt: skip
    dist.init_process_group("gloo", store=store, rank=rank, world_size=HOSTS)
    placement = spread(ring(HOSTS), HOSTS, rank)
    peers = Peers.read(file)
    identity = keys.find(NAMES[rank], file.parent)
    with linked(identity, peers, {"protocol": 1, "plan": {}}, PATIENCE, None) as links:
        made = Linked(links, [Member(n) for n in peers.names], [(0, 1), (0, 2), (1, 2)], 0)
        links.want(made.partners)
        transports: dict[str, Transport] = {
            "gloo": Spread(placement, Gloo()),
            "links": Spread(placement, made),
        }
        taken: dict[str, list[float]] = {kind: [] for kind in transports}
        wire = dict.fromkeys(transports, 0)
        steps = {kind: steps_of(transport) for kind, transport in transports.items()}
        for block in range(blocks + 1):
            for kind in transports:
                dist.barrier()
                before, began = namespaces.sent(), time.perf_counter()
                for number in range(block * BLOCK, (block + 1) * BLOCK):
                    steps[kind](number)
                seconds = (time.perf_counter() - began) / BLOCK
                dist.barrier()
                if block:  # the first ones open connections and fill caches
                    taken[kind].append(seconds)
                    wire[kind] += namespaces.sent() - before
                else:
                    for counts in transports[kind].sent.values():
                        counts.zero_()
        counted = {
            kind: sum(int(transport.sent[k].sum()) for k in KINDS)
            for kind, transport in transports.items()
        }
        said.put({"rank": rank, "seconds": taken, "wire": wire, "counted": counted})
        dist.barrier()
    dist.destroy_process_group()


def measure(rate: str, blocks: int) -> list[dict[str, Any]]:
    """What every host has to say."""
    context = multiprocessing.get_context("forkserver")
    said = context.Queue()
    with tempfile.TemporaryDirectory() as folder, namespaces.network(HOSTS, rate) as names:
        file = group(Path(folder))
        hosts = [
            context.Process(target=work, args=(rank, name, file, blocks, said), daemon=True)
            for rank, name in enumerate(names)
        ]
        for host in hosts:
            host.start()
        found = [said.get(timeout=2 * PATIENCE) for _ in hosts]
        for host in hosts:
            host.join(30)
            host.kill()
    return sorted(found, key=lambda row: row["rank"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=20, help="blocks of each kind")
    given = parser.parse_args()
    if reason := namespaces.missing():
        sys.exit(reason)
    record = {}
    for name, rate in RATES.items():
        first, *_ = measure(rate, given.blocks)
        taken = first["seconds"]
        ratios = [a / b for a, b in zip(taken["links"], taken["gloo"], strict=True)]
        record[name] = {
            "milliseconds_gloo": round(1e3 * statistics.median(taken["gloo"]), 1),
            "milliseconds_links": round(1e3 * statistics.median(taken["links"]), 1),
            "ratio_median": round(statistics.median(ratios), 3),
            "blocks": given.blocks,
            "bytes_counted": first["counted"]["links"],
            "bytes_interface_links": first["wire"]["links"],
            "bytes_interface_gloo": first["wire"]["gloo"],
        }
        print(name, json.dumps(record[name]))
    RECORD.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
