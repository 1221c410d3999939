"""A simulated network: clocks that follow from sizes and links, and what a real one takes."""

import json
import socket
import statistics
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import TCPStore

import parley
from parley.algorithms import NGC, Algorithm, CompNGC
from parley.compute.engine import LoopEngine
from parley.compute.task import Task
from parley.data import Batches, Samples, Transform
from parley.errors import BadValue
from parley.fabric.gloo import Gloo
from parley.graphs import ring
from parley.neighbourhood import Neighbourhood
from parley.wire.clock import Link, parse
from parley.wire.local import Local
from parley.wire.placement import Placement
from parley.wire.spread import Spread
from parley.wire.transport import Transport
from tests import namespaces
from tests.processes import PATIENCE, process


def after(spec: str, **options: Any) -> float:
    options = {"algorithm": "ngc", "agents": 4, "epochs": 1, **options}
    result = parley.train(**options, links=spec, progress=False)
    return float(result.summary["seconds_network"])


class TestClock:
    def test_a_link_of_its_own_for_one_edge(self, tmp_path: Path) -> None:
        file = tmp_path / "links.toml"
        file.write_text('delay = 0.1\nbandwidth = "8k"\n[edges."0-1"]\ndelay = 3\n')
        clock = parse(f"file:{file}", ring(3), seed=0)
        clock.send(ring(3).edges, 1000, step=0)
        # Agent 0's word that it waits for 1's message takes three seconds as well.
        assert clock.time_N.tolist() == pytest.approx([4.1, 4.1, 1.2])

    def test_who_waits_for_a_late_one_is_late_itself(self) -> None:
        clock = parse("delay=1", ring(4), seed=0)
        clock.time_N[0] = 5
        clock.send(ring(4).edges, 10, step=0)
        assert clock.time_N.tolist() == [7, 6, 2, 6]

    def test_replies_of_several_rounds_are_under_way_together(self) -> None:
        clock = parse("delay=1", ring(4), seed=0)
        clock.send([(0, 1)], 10, step=0, later=True)
        clock.send([(2, 1)], 10, step=0, later=True)
        assert (clock.time_N.tolist(), clock.seconds()) == ([0] * 4, 2)
        clock.send([(1, 0)], 10, step=0)
        assert clock.time_N.tolist() == [3, 2, 0, 0]

    def test_an_uplink_is_shared_by_all_that_leaves(self) -> None:
        clock = parse("uplink=8k", ring(3), seed=0)
        clock.send(ring(3).edges, 1000, step=0)
        assert clock.seconds() == pytest.approx(2)
        clock.send([(0, 1)], 1000, step=0)
        assert clock.time_N.tolist() == pytest.approx([1, 3, 2])

    def test_losses_cost_time_as_often_as_they_happen(self) -> None:
        def mean(drop: float) -> float:
            clock = parse(f"drop={drop},resend=1", ring(3), seed=1)
            for step in range(2000):
                clock.send([(0, 1)], 10, step)
                clock.time_N[0] = clock.time_N[1]  # and the next one leaves
            return clock.seconds() / 2000

        assert mean(0.0) == 0
        assert mean(0.3) == pytest.approx(0.3 / 0.7, rel=0.1)

    def test_seeds(self) -> None:
        def seconds(seed: int) -> list[float]:
            clock = parse("delay=1,spread=0.5,drop=0.2", ring(5), seed)
            clock.send(ring(5).edges, 10, step=3)
            return clock.time_N.tolist()

        assert seconds(1) == seconds(1) != seconds(2)

    def test_mistakes(self) -> None:
        for spec, words in (
            ("delay", "links: 'delay'"), ("dely=1", "did you mean 'delay'"),
            ("drop=1", r"links.drop: 1 .* from 0 to below 1"), ("bandwidth=0", "number from 1 to"),
            ("delay=x", r"links.delay: 'x'"), ("file:none.toml", "No such file"),
        ):  # fmt: skip
            with pytest.raises(BadValue, match=words):
                parse(spec, ring(3), 0)
        assert Link.of({"uplink": "1.5G"}).uplink == 1.5e9


class TestRuns:
    def test_the_time_is_the_delay_times_the_rounds(self) -> None:
        """NGC sends models, and then replies, of both rounds of edges at once; D-PSGD sends models
        only. Each takes the delay twice: for the word that it is awaited, and for itself."""
        result = parley.train(agents=4, epochs=1, links="delay=10", progress=False)
        steps = result.records[-1]["step"]
        assert result.records[-1]["seconds_network"] / steps == pytest.approx(40, rel=0.01)
        assert after("delay=10", algorithm="dpsgd") / steps == pytest.approx(20, rel=0.01)

    def test_numbers_do_not_change_and_a_resumed_run_keeps_its_clock(self, tmp_path: Path) -> None:
        options: dict[str, Any] = {"algorithm": "ngc", "agents": 3, "progress": False}
        slow = parley.train(**options, epochs=2, links="delay=1,drop=0.1")
        plain = parley.train(**options, epochs=2)
        assert torch.equal(slow.x_ND, plain.x_ND)
        assert "seconds_network" not in plain.summary

        class Stop(Exception): ...

        def stop(event: Any) -> None:
            if getattr(event, "epoch", 0) == 1:
                raise Stop

        out, again = tmp_path / "run", {**options, "epochs": 2, "links": "delay=1,drop=0.1"}
        with pytest.raises(Stop):
            parley.train(**again, out=out, watch=stop)
        resumed = parley.train(**again, out=out, resume=True)
        expected = slow.summary["seconds_network"]
        assert resumed.summary["seconds_network"] == pytest.approx(expected, rel=0.01)

    def test_several_workers_are_refused(self) -> None:
        with pytest.raises(BadValue, match=r"links: .*workers=1"):
            parley.train(agents=4, links="delay=1", workers=2, progress=False, epochs=1)


HOSTS, DELAY, WARM, STEPS = 3, 0.1, 2, 3
METHODS: dict[str, Algorithm] = {"ngc": NGC(), "compngc": CompNGC()}


class Case(NamedTuple):
    """A network, and how many parameters make it count and not the processor."""

    rate: str
    delay: float
    hidden: int
    links: str


CASES = {
    "rate": Case("8mbit", 0.0, 3330, "uplink=8M"),  # 100,000 parameters: 0.8 s for two models
    "delay": Case("", DELAY, 10, f"delay={DELAY}"),
    "both": Case("8mbit", DELAY, 2000, f"uplink=8M,delay={DELAY}"),
}


def net(hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(20, hidden), nn.ReLU(), nn.Linear(hidden, 9))


def seconds(transport: Transport, algorithm: Algorithm, hidden: int) -> float:
    """What a step takes, once connections have found their speed; the least of two rows of steps,
    as the machine may be busy. No step waits for all others to end."""
    hood = Neighbourhood(transport, LoopEngine(Task(net(hidden))))
    samples = [Samples(torch.randn(4, 20), torch.randint(9, (4,))) for _ in hood.agents]
    batch = Batches(samples, hood.agents, 4, Transform(), 0).at(0)
    state = algorithm.init(hood.task.start().expand(len(hood.agents), -1).clone(), hood)

    def took(steps: int) -> float:
        nonlocal state
        transport.sum(torch.zeros(1))
        began = time.perf_counter()
        for _ in range(steps):
            state = algorithm.step(state, hood, batch, 0.01).state
        return (time.perf_counter() - began) / steps

    took(WARM)
    return min(took(STEPS) for _ in range(2))


def work(rank: int, name: str, case: Case, folder: Path) -> None:
    namespaces.enter(name)
    torch.set_num_threads(1)
    patience = timedelta(seconds=PATIENCE)
    store = TCPStore("10.77.0.1", 29500, is_master=rank == 0, timeout=patience)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=HOSTS)
    placement = Placement(ring(HOSTS), tuple(range(HOSTS)), rank)
    taken = {
        n: seconds(Spread(placement, Gloo()), method, case.hidden) for n, method in METHODS.items()
    }
    dist.barrier()
    dist.destroy_process_group()
    (folder / f"{rank}.json").write_text(json.dumps(taken))


def in_namespaces(case: Case, folder: Path) -> list[dict[str, float]]:
    """What each host measures."""
    if reason := namespaces.missing():
        pytest.skip(reason)
    with namespaces.network(HOSTS, case.rate, case.delay) as names:
        workers = [process(work, rank, name, case, folder) for rank, name in enumerate(names)]
        for worker in workers:
            worker.join(PATIENCE)
            worker.kill()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(HOSTS)]


@pytest.mark.parametrize("name", CASES)
def test_a_real_network_takes_as_long_as_the_clock_says(name: str, tmp_path: Path) -> None:
    """Within 20 %: 8 Mbit/s for each host (tc on veth pairs), a relay that holds frames back for
    0.1 s, and both."""
    case = CASES[name]
    measured = in_namespaces(case, tmp_path)
    for method, algorithm in METHODS.items():
        clock = parse(case.links, ring(HOSTS), 0)
        transport = Local(Placement(ring(HOSTS), (0,) * HOSTS), clock)
        seconds(transport, algorithm, case.hidden)
        expected = clock.seconds() / (WARM + 2 * STEPS)
        found = statistics.median(host[method] for host in measured)
        assert found == pytest.approx(expected, rel=0.2), method


def answer(name: str) -> None:
    namespaces.enter(name)
    with socket.create_server(("10.77.0.1", 5000)) as server, server.accept()[0] as client:
        while said := client.recv(1):
            client.sendall(said)


def ask(name: str, file: Path) -> None:
    namespaces.enter(name)
    deadline, taken = time.monotonic() + PATIENCE, []
    while True:
        try:
            server = socket.create_connection(("10.77.0.1", 5000), timeout=PATIENCE)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    with server:
        for _ in range(10):
            began = time.perf_counter()
            server.sendall(b"?")
            assert server.recv(1) == b"?"
            taken.append(time.perf_counter() - began)
    file.write_text(json.dumps(min(taken)))


def test_the_relay_holds_frames_back_for_as_long_as_it_is_told(tmp_path: Path) -> None:
    if reason := namespaces.missing():
        pytest.skip(reason)
    with namespaces.network(2, delay=DELAY) as names:
        ends = [process(answer, names[0]), process(ask, names[1], tmp_path / "taken")]
        for end in reversed(ends):
            end.join(PATIENCE)
            end.kill()
    assert 2 * DELAY <= json.loads((tmp_path / "taken").read_text()) < 2.4 * DELAY
