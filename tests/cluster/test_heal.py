"""Hosts that die, fall silent and come back: real processes, killed, stopped and started again."""

import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from parley import graphs
from parley.cluster.heal import without
from tests.faults import Hosts

RUN: dict[str, Any] = {
    "algorithm": "compngc", "agents": 6, "epochs": 20, "gossip_rounds": 1, "partition": "iid",
    "batch": 32, "on_failure": "heal", "patience": 6, "engine": "stacked",
}  # fmt: skip


@pytest.fixture
def hosts(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Hosts]:
    made = Hosts(tmp_path, 3, **RUN | getattr(request, "param", {}))
    yield made
    made.end()


def models(hosts: Hosts, rank: int, epoch: int) -> torch.Tensor:
    path = hosts.out(rank) / "checkpoint" / f"epoch-{epoch:06d}"
    [file] = path.glob("*.safetensors")
    with safe_open(file, "pt") as opened:
        found: torch.Tensor = opened.get_tensor("x_AD")
        return found


def in_agreement(hosts: Hosts, ranks: list[int], epochs: int) -> None:
    """The same records everywhere, one for every epoch, and whole models that are near."""
    for rank in ranks:
        assert hosts.wait(rank) == 0, hosts.words()
        assert hosts.records(rank) == hosts.records(ranks[0])
        assert [r["epoch"] for r in hosts.records(rank)] == list(range(1, epochs + 1))
        assert (hosts.out(rank) / "summary.json").exists()
        assert "Traceback" not in hosts.err(rank)
    x_ND = torch.cat([models(hosts, rank, epochs) for rank in ranks])
    assert torch.isfinite(x_ND).all()
    assert float((x_ND - x_ND.mean(0)).norm(dim=1).max() / x_ND.mean(0).norm()) < 0.2
    assert hosts.records(ranks[0])[-1]["accuracy_mean_model"] > 0.85


class TestTheGraphThatIsLeft:
    def test_weights_are_metropolis_and_the_others_neighbours_stay(self) -> None:
        graph, bridges = without(graphs.full(5), [0, 2, 4])
        assert (bridges, graph.scheme, graph.doubly_stochastic) == ([], "metropolis", True)
        assert graph.weights == pytest.approx(torch.full((3, 3), 1 / 3).numpy())

    def test_a_star_without_its_centre_is_bridged(self) -> None:
        graph, bridges = without(graphs.star(5), [1, 2, 3, 4])
        assert bridges == [(1, 2), (2, 3), (3, 4)]
        assert graph.symmetric and graph.diameter == 3

    def test_a_directed_ring(self) -> None:
        """One-way edges that are left lead nowhere back: both ways between what falls apart."""
        graph, bridges = without(graphs.directed_ring(4), [0, 1, 3])
        assert bridges == [(0, 1), (1, 3)]
        assert graph.doubly_stochastic

    def test_nobody_and_everybody_but_one(self) -> None:
        whole = graphs.ring(4)
        assert without(whole, range(4)) == (whole, [])
        graph, bridges = without(whole, [2])
        assert (graph.agents, bridges, graph.weights.tolist()) == (1, [], [[1.0]])


@pytest.mark.parametrize("disk", ["kept", "lost"])
def test_a_host_that_dies_is_dropped_and_readmitted(hosts: Hosts, disk: str) -> None:
    """From its own folder, or with nothing: on a new machine."""
    hosts.until(lambda: len(hosts.records()) >= 2)
    hosts.kill(2)
    hosts.until(lambda: any(2 in g["gone"] for g in hosts.generations()))
    seen = len(hosts.records())
    hosts.until(lambda: len(hosts.records()) >= seen + 2)
    assert hosts.records()[-1]["accuracy_agents"][4:] == [None, None]
    # Every host has all test samples: what is measured stays comparable.
    assert {r["test_samples"] for r in hosts.records()} == {360}
    assert not any("test_samples_absent" in r for r in hosts.records())
    if disk == "lost":
        shutil.rmtree(hosts.out(2))
    hosts.start(2, resume=True)
    hosts.until(lambda: any(2 in g["back"] for g in hosts.generations()))
    hosts.hurry()
    in_agreement(hosts, [0, 1, 2], RUN["epochs"])
    assert "note: worker 2 was lost; continuing without agents 4, 5" in hosts.err(0)
    assert "note: worker 2 was lost" in hosts.err(1)
    assert "note: worker 2 rejoined with agents 4, 5" in hosts.err(1)
    assert None not in hosts.records()[-1]["accuracy_agents"]


@pytest.mark.parametrize(
    "hosts", [{"model": "tests.faults:normed", "engine": "loop"}], indirect=True
)
def test_running_statistics_go_through_it(hosts: Hosts) -> None:
    """With BatchNorm: whoever stays goes on with its own, whoever comes back with nothing gets a
    neighbour's, and nobody's have seen more or fewer batches than there were steps."""
    hosts.until(lambda: len(hosts.records()) >= 2)
    hosts.kill(2)
    hosts.until(lambda: any(2 in g["gone"] for g in hosts.generations()))
    shutil.rmtree(hosts.out(2))
    hosts.start(2, resume=True)
    hosts.until(lambda: any(2 in g["back"] for g in hosts.generations()))
    hosts.hurry()
    in_agreement(hosts, [0, 1, 2], RUN["epochs"])
    assert min(hosts.records()[-1]["accuracy_agents"]) > 0.8  # of models in use, not in training
    tracked = set()
    for rank in range(3):
        for agent in (2 * rank, 2 * rank + 1):
            found = load_file(hosts.out(rank) / "agents" / f"agent-{agent}.safetensors")
            assert torch.isfinite(found["2.running_mean"]).all()
            assert (found["2.running_var"] > 0).all()
            tracked.add(int(found["2.num_batches_tracked"]))
    steps = -(-240 // RUN["batch"]) * RUN["epochs"]  # of 1,437 samples, an agent has up to 240
    assert tracked == {steps}
    averages = [load_file(hosts.out(rank) / "model.safetensors") for rank in range(3)]
    for other in averages[1:]:
        assert all(torch.equal(other[name], value) for name, value in averages[0].items())


def test_test_samples_on_absent_hosts_are_reported(tmp_path: Path) -> None:
    """Ten at each agent: sixty, then forty while a host is away, then sixty again."""
    hosts = Hosts(tmp_path, 3, odd=dict.fromkeys(range(3), "own test"), **RUN)
    try:
        # An epoch counts once every worker has its checkpoint.
        hosts.until(lambda: len(hosts.records()) >= 2)
        hosts.kill(2)
        hosts.until(lambda: any("test_samples_absent" in r for r in hosts.records()))
        hosts.start(2, resume=True)
        hosts.until(lambda: any(2 in g["back"] for g in hosts.generations()))
        hosts.hurry()
        in_agreement(hosts, [0, 1, 2], RUN["epochs"])
        seen = [(r["test_samples"], r.get("test_samples_absent")) for r in hosts.records()]
        assert list(dict.fromkeys(seen)) == [(60, None), (40, 20)]
        assert seen[0] == seen[-1] == (60, None)
        for rank in (0, 1):
            assert hosts.err(rank).count("test samples") == 2
            assert (
                "note: tested on 40 of 60 test samples; the others are on absent hosts\n"
                in hosts.err(rank)
            )
            assert "note: tested on 60 of 60 test samples again\n" in hosts.err(rank)
    finally:
        hosts.end()


@pytest.mark.parametrize("hosts", [{"algorithm": "beer"}], indirect=True)
def test_a_silent_host_is_dropped_and_comes_back_by_itself(hosts: Hosts) -> None:
    """With a method whose agents keep copies of their neighbours' models and gradients."""
    hosts.until(lambda: len(hosts.records()) >= 2)
    hosts.send(1, signal.SIGSTOP)
    hosts.until(lambda: any(1 in g["gone"] for g in hosts.generations()))
    hosts.send(1, signal.SIGCONT)
    hosts.until(lambda: any(1 in g["back"] for g in hosts.generations()))
    hosts.hurry()
    in_agreement(hosts, [0, 1, 2], RUN["epochs"])


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_host_with_the_store_is_lost(hosts: Hosts, how: signal.Signals) -> None:
    """The others stop, say how to continue, and all continue from there."""
    hosts.until(lambda: len(hosts.records(1)) >= 2)
    hosts.send(0, how)
    began = time.monotonic()
    for rank in (1, 2):
        assert hosts.wait(rank) == 2, hosts.words()
        assert "the host that keeps the common store (127.0.0.1:" in hosts.err(rank)
        assert "start all hosts again with the same command and --resume" in hosts.err(rank)
        assert "Traceback" not in hosts.err(rank)
    # A lost message, a store that does not answer, and the machine may be busy.
    assert time.monotonic() - began < 6 * RUN["patience"] + 30
    hosts.kill(0)
    seen = len(hosts.records(1))
    for rank in range(3):
        hosts.start(rank, resume=True)
    hosts.hurry()
    in_agreement(hosts, [0, 1, 2], RUN["epochs"])
    assert hosts.generations(1)[-1]["epoch"] >= seen - 1


def test_twenty_rounds_of_random_faults(tmp_path: Path) -> None:
    """Kills, pauses and restarts at random moments: the survivors agree, and nothing is lost."""
    chance = random.Random(5)
    options = RUN | {"epochs": 60, "patience": 3, "agents": 4}
    hosts = Hosts(tmp_path, 4, **options)
    down: dict[int, str] = {}
    try:
        hosts.until(lambda: len(hosts.records()) >= 1)
        for _ in range(20):
            time.sleep(chance.uniform(0, 1.5))
            rank = chance.randrange(1, 4)
            what = down.pop(rank, None)
            if what == "killed":
                hosts.start(rank, resume=True)
            elif what == "paused":
                hosts.send(rank, signal.SIGCONT)
            elif chance.random() < 0.5:
                hosts.kill(rank)
                down[rank] = "killed"
            else:
                hosts.send(rank, signal.SIGSTOP)
                down[rank] = "paused"
        for rank, what in down.items():
            hosts.start(rank, resume=True) if what == "killed" else hosts.send(rank, signal.SIGCONT)
        hosts.until(lambda: hosts.generations()[-1]["workers"] == [0, 1, 2, 3])
        hosts.hurry()
        in_agreement(hosts, [0, 1, 2, 3], options["epochs"])
        said = [g["generation"] for g in hosts.generations()]
        assert said == sorted(set(said)) and said[-1] >= 3
    finally:
        hosts.end()
