"""Hosts that die, fall silent and come back: real processes, killed, stopped and started again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import Hosts
from safetensors import safe_open

RUN: dict[str, Any] = {
    "algorithm": "compngc", "agents": 6, "epochs": 40, "gossip_rounds": 1, "partition": "iid",
    "batch": 32, "on_failure": "heal", "patience": 10,
}  # fmt: skip


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path, 3, **RUN)
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


def test_a_host_that_dies_is_dropped_and_taken_back(hosts: Hosts) -> None:
    hosts.until(lambda: len(hosts.records()) >= 2)
    hosts.kill(2)
    hosts.until(lambda: hosts.generations()[-1]["workers"] == [0, 1])
    assert hosts.generations()[-1]["gone"] == [2]
    seen = len(hosts.records())
    hosts.until(lambda: len(hosts.records()) >= seen + 2)
    assert hosts.records()[-1]["accuracy_agents"][4:] == [None, None]
    hosts.start(2, resume=True)
    hosts.until(lambda: hosts.generations()[-1]["back"] == [2])
    hosts.hurry()
    in_agreement(hosts, [0, 1, 2], RUN["epochs"])
    assert "note: worker 2 has gone; the others go on without agents 4, 5" in hosts.err(0)
    assert "note: worker 2 has gone" in hosts.err(1)
    assert "note: worker 2 is back with agents 4, 5" in hosts.err(1)
    assert None not in hosts.records()[-1]["accuracy_agents"]
