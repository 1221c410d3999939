"""A simulated network: clocks that follow from sizes and links, and what a real one takes."""

import json
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import namespaces
import pytest
import torch
import torch.distributed as dist
from processes import PATIENCE, process
from torch import nn
from torch._C._distributed_c10d import TCPStore

import parley
from parley.algorithms import NGC, Algorithm, CompNGC
from parley.data import Batches, Samples, Transform
from parley.engine import LoopEngine
from parley.errors import BadValue
from parley.links import Link, parse
from parley.neighbourhood import Neighbourhood
from parley.placement import Placement
from parley.task import Task
from parley.topology import ring
from parley.transport import Local, Processes, Transport


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
        assert clock.time_N.tolist() == pytest.approx([1.1, 4.0, 1.1])

    def test_who_waits_for_a_late_one_is_late_itself(self) -> None:
        clock = parse("delay=1", ring(4), seed=0)
        clock.time_N[0] = 5
        clock.send(ring(4).edges, 10, step=0)
        assert clock.time_N.tolist() == [5, 6, 1, 6]

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
            ("drop=1", r"links.drop: 1 .* from 0 to below 1"), ("bandwidth=0", "a number above 0"),
            ("delay=x", r"links.delay: 'x'"), ("file:none.toml", "No such file"),
        ):  # fmt: skip
            with pytest.raises(BadValue, match=words):
                parse(spec, ring(3), 0)
        assert Link.of({"uplink": "1.5G"}).uplink == 1.5e9


class TestRuns:
    def test_the_time_is_the_delay_times_the_rounds(self) -> None:
        """NGC sends models, and then replies in two rounds of edges; D-PSGD sends models only."""
        result = parley.train(agents=4, epochs=1, links="delay=10", progress=False)
        steps = result.records[-1]["step"]
        assert result.records[-1]["seconds_network"] / steps == pytest.approx(30, rel=0.01)
        assert after("delay=10", algorithm="dpsgd") / steps == pytest.approx(10, rel=0.01)

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


HOSTS, RATE, STEPS = 3, 8_000_000, 4


def net() -> nn.Module:
    """100,000 parameters, for which 8 Mbit/s are slow and a processor is quick."""
    return nn.Sequential(nn.Linear(20, 3_330), nn.ReLU(), nn.Linear(3_330, 9))


METHODS: dict[str, Algorithm] = {"ngc": NGC(), "compngc": CompNGC()}


def step(transport: Transport, algorithm: Algorithm) -> float:
    """Seconds that a step takes once connections have found their speed and kernels are there; the
    least of some, as the machine may be busy."""
    hood = Neighbourhood(transport, LoopEngine(Task(net())))
    samples = [Samples(torch.randn(4, 20), torch.randint(9, (4,))) for _ in hood.agents]
    batch = Batches(samples, hood.agents, 4, Transform(), 0).at(0)
    state = algorithm.init(hood.task.start().expand(len(hood.agents), -1).clone(), hood)
    taken = []
    for _ in range(STEPS):
        transport.sum(torch.zeros(1))
        began = time.perf_counter()
        state = algorithm.step(state, hood, batch, 0.01)
        transport.sum(torch.zeros(1))
        taken.append(time.perf_counter() - began)
    return min(taken[1:])


def work(rank: int, name: str, folder: Path) -> None:
    namespaces.enter(name)
    torch.set_num_threads(1)
    patience = timedelta(seconds=PATIENCE)
    store = TCPStore("10.77.0.1", 29500, is_master=rank == 0, timeout=patience)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=HOSTS)
    placement = Placement(ring(HOSTS), tuple(range(HOSTS)), rank)
    seconds = {name: step(Processes(placement), method) for name, method in METHODS.items()}
    dist.destroy_process_group()
    (folder / f"{rank}.json").write_text(json.dumps(seconds))


def test_a_real_network_takes_as_long_as_the_clock_says(tmp_path: Path) -> None:
    """8 Mbit/s for each host, by tc on veth pairs, so that computing hardly counts: within 20 %."""
    if reason := namespaces.missing():
        pytest.skip(reason)
    with namespaces.network(HOSTS, rate="8mbit") as names:
        workers = [process(work, rank, name, tmp_path) for rank, name in enumerate(names)]
        for worker in workers:
            worker.join(PATIENCE)
            worker.kill()
    measured = json.loads((tmp_path / "0.json").read_text())
    for method, algorithm in METHODS.items():
        transport = Local(Placement(ring(HOSTS), (0,) * HOSTS))
        transport.clock = parse(f"uplink={RATE}", ring(HOSTS), 0)
        step(transport, algorithm)
        expected = transport.clock.seconds() / STEPS
        assert measured[method] == pytest.approx(expected, rel=0.2), method
