"""Placement does not matter, messages are checked, and only bytes travel: in real processes."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import parley.wire
from parley import graphs
from parley.algorithms import ALGORITHMS, DPSGD, NGC, Algorithm, CompCGA, CompNGC, Quantized
from parley.compute import kernels
from parley.compute.compiled import FusedEngine
from parley.compute.engine import LoopEngine
from parley.compute.task import Task
from parley.data import Batches, Samples, Transform
from parley.errors import ParleyError
from parley.fabric.base import WorkerLost
from parley.fabric.gloo import Gloo
from parley.graphs import Topology
from parley.neighbourhood import Neighbourhood
from parley.store.checkpoint import flat
from parley.training import metrics
from parley.wire.codec import Codec, Dense, ScaledSign
from parley.wire.local import Local
from parley.wire.placement import Placement, spread
from parley.wire.spread import Spread, over
from parley.wire.transport import HEADER, KINDS, Transport
from tests import small
from tests.algorithms import test_algorithms as table
from tests.processes import PATIENCE, process

GRAPHS = table.GRAPHS | table.FIELD_GRAPHS | {"changing": lambda: graphs.matchings(7, 4, seed=3)}
LARGEST = max(make().agents for make in GRAPHS.values())
CASES: dict[str, tuple[Algorithm, str]] = {
    case.id: (case.values[0], case.id.rpartition("-")[2]) for case in table.PAIRS
}
ONE_GRAPH_EACH = {case.id for case in table.PAIRS if not case.marks}
CASES |= {
    f"{algorithm.name}-changing": (algorithm, "changing")
    for algorithm in (DPSGD(gamma=0.5), NGC(alpha=0.5), CompNGC(alpha=0.3), Quantized(codec="sign"))
}
CONVOLUTIONS: dict[str, tuple[Algorithm, str]] = {
    f"{algorithm.label} with kernels": (algorithm, "random")
    for algorithm in (NGC(), NGC(alpha=0.4, gamma=0.5), CompNGC(momentum=0.9), CompCGA.as_run())
}
"""These train a network of convolutions by the compiled engine, if there is a compiler."""

THREE_WORKERS = {
    "ring": (0, 0, 1, 2, 2),
    "star": (0, 2, 1, 0, 1, 1),
    "random": (1, 0, 1, 2, 0, 1, 1),
    "directed ring": (0, 1, 2, 2),
    "irregular digraph": (0, 0, 1, 2, 1, 1),
    "pushed digraph": (0, 1, 2, 0, 1, 1),
    "tree": (1, 0, 1, 2, 0, 0),
    "changing": (0, 1, 1, 0, 2, 2, 1),
}
"""Uneven, and not always of consecutive agents."""

PLACEMENTS = ["three workers", "one agent per worker"]


def steps_of(algorithm: Algorithm) -> int:
    """Two rounds of messages and one step more; what is relayed crosses every graph."""
    apart = max(getattr(algorithm, name, 1) for name in ("local_steps", "longest"))
    return max(6, 2 * apart + 1)


def dtypes(case: str) -> list[torch.dtype]:
    """In float32, where most can go wrong; on one graph also in float64."""
    return [torch.float32, *[torch.float64] * case.endswith("-random")]


def compared(name: str, case: str, dtype: torch.dtype) -> bool:
    """With a worker for each agent, every algorithm on one graph: messages are the same on all."""
    alone = name == "one agent per worker"
    return not alone or (case in ONE_GRAPH_EACH and dtype is torch.float32) or "changing" in case


def seats(name: str, graph: str, topology: Topology) -> tuple[int, ...]:
    return THREE_WORKERS[graph] if name == "three workers" else tuple(range(topology.agents))


def hood(
    topology: Topology, dtype: torch.dtype, transport: Transport | None = None
) -> Neighbourhood:
    transport = transport or Local(spread(topology, 1))
    return Neighbourhood(transport, LoopEngine(Task(small.net(), dtype=dtype)))


def observe(algorithm: Algorithm, hood: Neighbourhood, source: Batches) -> dict[str, Tensor]:
    """All that a run has in its state, and what is measured of it; the same on every worker."""
    transport = hood.transport
    iterates, state = small.trajectory(algorithm, hood, steps_of(algorithm), source)
    mean_D = metrics.mean_model(state.x_AD, transport)
    seen = {
        "x_NTD": transport.gather(torch.stack(iterates, 1)),
        "mean_D": mean_D,
        "squares_N": metrics.squared_distances(state.x_AD, mean_D, transport),
        "distances_N": metrics.distances(state.x_AD, mean_D, transport),
        "total_D": transport.total(state.x_AD, "models", 0),
    }
    for name, values in flat(state).items():
        axis = name.rpartition("_")[2][0]
        seen[name] = transport.gather(values) if axis == "A" else by_edge(values, axis, transport)
    return seen | {f"bytes_{kind}_N": transport.gather(transport.sent[kind]) for kind in KINDS}


def by_edge(values: Tensor, axis: str, transport: Transport) -> Tensor:
    """What all workers have on edges, in the order of the edges' numbers."""
    rounds = {"I": transport.edges.incoming_of, "O": transport.edges.outgoing_of}[axis]
    every = values.new_zeros(len(transport.topology.edges), *values.shape[1:])
    every[[e for r in rounds for e in r]] = values
    return transport.sum(every)  # each row is of one worker only: nothing is rounded


def with_kernels(topology: Topology, transport: Transport) -> tuple[Neighbourhood, Batches]:
    """Small images of one class an agent, and a network like LeNet-5."""
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, 2), nn.ReLU(),
        nn.Flatten(), nn.Linear(20, 9), nn.ReLU(), nn.Linear(9, 3),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(2)
    everyone = [
        Samples(
            torch.randn(9 + a, 1, 8, 8, generator=generator) + a % 3, torch.full((9 + a,), a % 3)
        )
        for a in range(topology.agents)
    ]
    agents = transport.placement.agents
    source = Batches([everyone[a] for a in agents], agents, 6, Transform(), seed=3)
    return Neighbourhood(transport, FusedEngine(Task(net))), source


def anew(transport: Transport) -> Transport:
    """The same with nothing counted yet."""
    fabric = getattr(transport, "fabric", None)
    return over(fabric, transport.placement) if fabric else Local(transport.placement)


def every_run(name: str, graph: str, transport: Transport) -> dict[str, dict[str, Tensor]]:
    """All cases on a graph that a placement is compared in, one after the other."""
    topology, seen = transport.topology, {}
    # Each with a transport of its own, which counts its bytes.
    for case, (algorithm, on) in CASES.items():
        for dtype in dtypes(case) if on == graph else ():
            if not compared(name, case, dtype):
                continue
            here = hood(topology, dtype, anew(transport))
            source = small.batches(here.placement, dtype)
            seen[f"{case} {dtype}"] = observe(algorithm, here, source)
    for case, (algorithm, on) in CONVOLUTIONS.items() if kernels.available() else ():
        if on == graph:
            own = with_kernels(topology, anew(transport))
            seen[case] = observe(algorithm, *own)
    return seen


def work(name: str, rank: int, folder: Path, cache: Path) -> None:
    """One worker: every algorithm on every graph, one after the other."""
    os.environ["PARLEY_CACHE"] = str(cache)
    torch.set_num_threads(1)
    seen = {}
    for graph, make in GRAPHS.items():
        topology = make()
        worker_of = seats(name, graph, topology)
        if rank > max(worker_of):
            continue
        with joined(folder / f"{name} {graph}".replace(" ", "-"), rank, max(worker_of) + 1):
            transport = Spread(Placement(topology, worker_of, rank), Gloo())
            for case, found in every_run(name, graph, transport).items():
                seen |= {f"{case}/{key}": value.contiguous() for key, value in found.items()}
    save_file(seen, folder / f"{name}-{rank}.safetensors")


@contextmanager
def joined(store: Path, rank: int, world: int) -> Iterator[None]:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=PATIENCE),
    )
    # Who leaves before all have connected makes the others fail while they are still joining.
    dist.barrier()
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def spread_out(
    tmp_path_factory: pytest.TempPathFactory, cache_of_all: Path
) -> Iterator[Callable[[str], list[Path]]]:
    """The files of a placement's workers, once they are done."""
    folder = tmp_path_factory.mktemp("placements")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARLEY_CACHE", str(cache_of_all))
        kernels.available()  # built once, not by every worker
    workers = {
        name: [process(work, name, rank, folder, cache_of_all) for rank in range(world)]
        for name, world in zip(PLACEMENTS, (3, LARGEST), strict=True)
    }

    def files(name: str) -> list[Path]:
        for worker in workers[name]:
            worker.join(PATIENCE)
            assert worker.exitcode == 0
        return [folder / f"{name}-{rank}.safetensors" for rank in range(len(workers[name]))]

    yield files
    for worker in [w for group in workers.values() for w in group]:
        worker.kill()


@pytest.fixture(scope="module")
def together(spread_out: Any) -> dict[str, dict[str, Tensor]]:
    """The same with all agents in this process, while the others are at work."""
    seen = {}
    for graph, make in GRAPHS.items():
        seen |= every_run("three workers", graph, Local(spread(make(), 1)))
    return seen


@pytest.mark.parametrize("name", PLACEMENTS)
def test_placement_does_not_matter(
    spread_out: Callable[[str], list[Path]], together: dict[str, dict[str, Tensor]], name: str
) -> None:
    """Every algorithm: models after each step, all of the last state, what is measured, and every
    agent's bytes of each kind have the same bits."""
    wanted = {f"{c} {d}" for c in CASES for d in dtypes(c) if compared(name, c, d)}
    expected = {
        f"{case}/{key}": value
        for case, seen in together.items()
        for key, value in seen.items()
        if case in wanted or case in CONVOLUTIONS
    }
    seen = [load_file(file) for file in spread_out(name)]
    assert set().union(*seen) == expected.keys()
    wrong = {
        key
        for worker in seen
        for key, value in worker.items()
        if not torch.equal(value, expected[key])
    }
    assert not wrong


def test_every_algorithm_is_compared_with_a_worker_for_each_agent() -> None:
    names = {algorithm.name for case, (algorithm, _) in CASES.items() if case in ONE_GRAPH_EACH}
    assert names >= set(ALGORITHMS)


def test_the_runs_that_are_compared_go_somewhere(together: dict[str, dict[str, Tensor]]) -> None:
    for case, seen in together.items():
        moved_NT = (seen["x_NTD"] - seen["x_NTD"][:, :1]).norm(dim=2)
        assert moved_NT[:, -1].max() > 0.05, case
        assert not torch.equal(moved_NT[0], moved_NT[1]) or "central" in case, case


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What worker 0 learns about each mistake of worker 1."""
    folder = tmp_path_factory.mktemp("refusals")
    workers = [process(send_wrongly, rank, folder) for rank in range(2)]
    for worker in workers:
        worker.join(PATIENCE)
        assert worker.exitcode == 0
    return {path.stem: path.read_text() for path in folder.glob("*.txt")}


class TestRefusals:
    """Two real workers of which one sends something else than the other expects."""

    @pytest.mark.parametrize(
        "what, expected, got",
        [
            ("step", "step 7", "step 8"),
            ("kind", "models", "evaluation"),
            ("codec", "codec 1", "codec 2"),
            ("length", "24 bytes", "20 bytes"),
            ("edge", "agent 1 to 0", "agent 2 to 0"),
            ("magic", "b'PRLY' version 1", "b'HTTP' version 1"),
        ],
    )
    def test_a_message_that_does_not_fit(
        self, refusals: dict[str, str], what: str, expected: str, got: str
    ) -> None:
        first, _, second = refusals[what].partition("; got ")
        assert first.startswith("ParleyError: unexpected message from worker 1: expected b'PRLY' ")
        assert expected in first
        assert got in second
        assert expected not in second

    def test_a_worker_that_was_lost(self, refusals: dict[str, str]) -> None:
        """It is named, and gloo's own words are left out."""
        assert refusals["gone"] == "WorkerLost: workers: lost worker 1 (it closed its connection)"

    def test_too_few_processes(self, refusals: dict[str, str]) -> None:
        assert refusals["few"] == "ParleyError: workers: 3 are needed, 2 were started"
        assert refusals["rank"] == "ParleyError: placement: this is process 0, not worker 1"


def send_wrongly(rank: int, folder: Path) -> None:
    """Worker 1 makes one mistake after another; worker 0 notes what it is told."""
    torch.set_num_threads(1)
    topology = graphs.ring(3)
    placement = Placement(topology, (0, 1, 1), rank)

    def note(what: str, action: Callable[[], Any]) -> None:
        try:
            action()
        except ParleyError as error:
            if rank == 0:
                (folder / f"{what}.txt").write_text(f"{type(error).__name__}: {error}")

    def exchange(transport: Transport, wrong: bool, what: str) -> None:
        wire_AB = torch.zeros(len(placement.agents), 24, dtype=torch.uint8)
        kind, codec = KINDS[0], Dense(6)
        step = 8 if wrong and what == "step" else 7
        if wrong and what == "kind":
            kind = "evaluation"
        if wrong and what == "codec":
            codec = ScaledSign((6,))  # type: ignore[assignment]
        if wrong and what == "edge":
            transport._out.leaving["sender"] = [2, 1]  # type: ignore[attr-defined]
        if wrong and what == "magic":
            transport._out.leaving["magic"] = b"HTTP"  # type: ignore[attr-defined]
        if wrong and what == "length":
            transport._out.leaving["codec"] = 1  # type: ignore[attr-defined]
            short = torch.from_numpy(transport._out.leaving.view(np.uint8).reshape(2, -1)).clone()  # type: ignore[attr-defined]
            short.view(torch.int64)[:, [1, 3]] = torch.tensor([7, 20])  # step and length
            request = dist.isend(torch.cat([short, wire_AB[:, :20]], 1), 0)
            dist.recv(torch.empty(2, 32 + 24, dtype=torch.uint8), 0)
            request.wait()
        else:
            arrivals = transport.forward(wire_AB, kind, codec, step)
            arrivals.of(transport.edges.incoming_of[0])

    for what in ("step", "kind", "codec", "length", "edge", "magic"):
        # Connections are new each time: what follows a refusal is not to be relied on.
        with joined(folder / what, rank, 2):
            transport = Spread(placement, Gloo())
            note(what, lambda: exchange(transport, rank == 1, what))  # noqa: B023
            dist.barrier()
    with joined(folder / "gone", rank, 2):
        three = spread(topology, 3, rank)
        note("few", lambda: Spread(three, Gloo()))
        note("rank", lambda: Spread(Placement(topology, (0, 1, 1), 1 - rank), Gloo()))
        transport = Spread(placement, Gloo())
        if rank == 0:
            note("gone", lambda: exchange(transport, False, ""))


def test_only_raw_bytes_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The header is 32 bytes of plain numbers, and no module on the way can pickle."""
    assert HEADER.itemsize == 32
    assert not HEADER.hasobject
    for path in Path(parley.wire.__file__).parent.rglob("*.py"):
        unsafe = r"\bpickle|object_list|_object\(|torch\.(save|load)"
        assert not re.search(unsafe, path.read_text()), path


def everyones_messages(codec: Codec, agents: int, dtype: torch.dtype) -> Tensor:
    rows = torch.arange(agents, dtype=dtype)[:, None] + torch.arange(5, dtype=dtype) / 10
    return codec.encode(rows)


@pytest.mark.parametrize("make", table.GRAPHS.values(), ids=table.GRAPHS)
def test_local_messages_arrive_on_their_edges(make: Callable[[], Topology]) -> None:
    topology = make()
    transport = Local(spread(topology, 1))
    wire_AB = everyones_messages(Dense(5), topology.agents, torch.float32)
    arrivals = transport.forward(wire_AB, "models", Dense(5), step=0)
    for edges in transport.edges.incoming_of:
        expected = wire_AB[[topology.edges[e][0] for e in edges]]
        assert torch.equal(arrivals.of(edges), expected)
    assert sorted(transport.edges.incoming) == list(range(len(topology.edges)))
    out_degrees = np.array(topology.out_degrees)
    assert transport.sent["models"].tolist() == (out_degrees * (32 + 20)).tolist()
    assert transport.sent["cross_gradients"].tolist() == [0] * topology.agents


def test_a_lost_worker_is_a_parley_error() -> None:
    assert issubclass(WorkerLost, ParleyError)
