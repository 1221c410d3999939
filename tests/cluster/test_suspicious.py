"""A host that is not honest: the others notice, say who it is, and do what they were told to."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import parley
from parley.cluster.rank import here
from parley.errors import BadValue
from parley.experiment import Experiment
from tests.faults import Hosts

SMALL: dict[str, Any] = {
    "algorithm": "dpsgd", "model": "logistic", "agents": 6, "epochs": 3, "batch": 64,
    "partition": "iid", "gossip_rounds": 1, "patience": 60, "engine": "stacked",
}  # fmt: skip


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[..., Hosts]]:
    """Hosts that hurry, ended with the test."""
    every: list[Hosts] = []

    def make(odd: str, **options: Any) -> Hosts:
        hosts = Hosts(tmp_path / "hosts", 3, [], {1: odd} if odd else {}, **SMALL, **options)
        every.append(hosts)
        hosts.hurry()
        for rank in range(3):
            hosts.start(rank)
        return hosts

    yield make
    for hosts in every:
        hosts.end()


def told(hosts: Hosts, rank: int) -> list[str]:
    return [line for line in hosts.err(rank).splitlines() if "suspicious: agent" in line]


@pytest.mark.parametrize("attack", ["negates", "sends 1e30"])
def test_stop(made: Callable[..., Hosts], attack: str) -> None:
    hosts = made(attack, suspicious="stop")
    for rank in (0, 2):
        assert hosts.wait(rank) == 2, hosts.words()
        [line] = told(hosts, rank)
        assert line.startswith("error: suspicious: agent ")
        assert "(worker 1) sent a model that" in line and "step 4" in line
        assert int(line.split()[3]) in (2, 3), "agents of the host that is not honest"


def test_warn(made: Callable[..., Hosts]) -> None:
    hosts = made("sends noise")
    assert [hosts.wait(rank) for rank in range(3)] == [0, 0, 0], hosts.words()
    assert {line.split("agent ")[1][0] for rank in (0, 2) for line in told(hosts, rank)} == {
        "2",
        "3",
    }
    assert hosts.records()[-1]["suspicious_messages"] > 0


def test_forged_metrics_are_left_out(made: Callable[..., Hosts]) -> None:
    hosts = made("boasts")
    assert hosts.wait(0) == 0, hosts.words()
    for record in hosts.records():
        assert record["accuracy_own_max"] <= 1
        assert record["accuracy_agents"][2:4] == [None, None]
    assert "reported an accuracy of 5.98" in hosts.err(0)


def test_honest_hosts_are_not_accused(made: Callable[..., Hosts]) -> None:
    hosts = made("", suspicious="stop")
    assert [hosts.wait(rank) for rank in range(3)] == [0, 0, 0], hosts.words()
    assert "suspicious" not in hosts.words()
    assert "suspicious_messages" not in hosts.records()[-1]


def test_a_message_that_is_too_long(made: Callable[..., Hosts]) -> None:
    """Gloo cannot go on, but does not end the process without a word."""
    hosts = made("sends too much")
    for rank in (0, 2):
        assert hosts.wait(rank) == 2, hosts.words()
        [line] = [line for line in hosts.err(rank).splitlines() if line.startswith("error: ")]
        assert f"worker 1 ({here()}, agents 2, 3)" in line
        assert "sent a message that is too long" in line
        assert "gloo" not in hosts.err(rank)


def test_drop_needs_healing() -> None:
    with pytest.raises(
        BadValue, match=r"suspicious: 'drop' .*drop together with --on-failure heal"
    ):
        Experiment.of(suspicious="drop")
    assert Experiment.of(suspicious="drop", on_failure="heal").suspicious == "drop"


def test_workers_of_one_command_record_what_one_worker_does() -> None:
    """Steps this long look like an attack, but there is nobody who could have made one."""
    steps: dict[str, Any] = {
        "algorithm": "dpsgd", "model": "mlp", "agents": 6, "epochs": 2, "batch": 16, "lr": 30.0,
        "partition": "classes:2", "fraction": 0.3, "engine": "loop", "progress": False,
    }  # fmt: skip
    alone, spread = (parley.train(**steps, workers=workers).records for workers in (1, 3))
    assert "suspicious_messages" not in spread[-1]
    assert [record.keys() for record in spread] == [record.keys() for record in alone]
