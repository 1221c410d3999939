"""Peers that train over links have the numbers of one process, to the last bit, at every peer."""

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from parley.cluster import launch
from parley.experiment import Experiment, read_file
from parley.fabric.base import Member
from parley.fabric.board import Board
from parley.files import parse_json
from parley.peers.fabric import Linked
from parley.peers.meeting import PeerMeeting
from parley.store import checkpoint
from parley.training.problem import problem
from tests.peers.groups import NAMES, write_group
from tests.processes import TIMING, Command

SMALL = {"model": "logistic", "engine": "loop", "epochs": 2, "fraction": 0.15, "batch": 16}
SMALL |= {"gossip_rounds": 2, "patience": 120.0}


def start(folder: Path, name: str, *words: object, **environment: str) -> Command:
    """``parley join`` as one of the peers."""
    path = folder / "peers.toml"
    own = ["--me", name, "--keys", folder, "--out", folder / name, "--json"]
    return Command(folder / "said", "join", path, *own, *words, environment=environment)


def records(folder: Path) -> list[dict[str, Any]]:
    """Without what depends on the machine."""
    lines = (folder / "records.jsonl").read_text().splitlines()
    kept = [{k: v for k, v in parse_json(line).items() if k not in TIMING} for line in lines]
    assert kept
    return kept


def alone(folder: Path, options: Mapping[str, object] = {}) -> Any:
    """The same experiment in this process."""
    experiment = Experiment.of(**{**read_file(folder / "experiment.toml"), **options})
    return launch.execute(experiment, problem, folder / "alone", False, lambda event: None)


def same_as_alone(folder: Path, agents: Sequence[Sequence[int]]) -> Any:
    """Checks every peer's records and models; gives the outcome of one process."""
    outcome = alone(folder)
    for name, hosted in zip(NAMES, agents, strict=False):
        assert records(folder / name) == records(folder / "alone")
        found = checkpoint.models(folder / name, hosted)
        assert found is not None
        assert torch.equal(found.state, outcome.x_ND[list(hosted)])
    return outcome


METHODS: dict[str, dict[str, object]] = {
    "dpsgd": {},
    "ngc": {"alpha": 0.5, "dtype": "float64"},
    "compngc": {},
    "choco": {"codec": "topk:0.1"},
    "beer": {"codec": "topk:0.1", "lr": 0.02},
    "sgp": {"topology": "directed-ring"},
}


@pytest.mark.parametrize("name", METHODS)
def test_three_peers_are_one_process_to_the_bit(tmp_path: Path, name: str) -> None:
    agents = [[0], [1, 3], [2]]
    write_group(tmp_path, agents, {**SMALL, "algorithm": name, **METHODS[name]})
    peers = [start(tmp_path, peer) for peer in NAMES[:3]]
    for peer in peers:
        assert peer.wait() == 0, peer.err
    said = [{k: v for k, v in p.summary.items() if k not in (*TIMING, "out")} for p in peers]
    assert said[0] == said[1] == said[2]
    same_as_alone(tmp_path, agents)


def test_a_peer_that_is_lost_ends_the_run_in_words_and_it_can_be_resumed(tmp_path: Path) -> None:
    agents = [[0], [1], [2]]
    options = {**SMALL, "algorithm": "dpsgd", "epochs": 20, "patience": 3.0, "fraction": 1.0}
    write_group(tmp_path, agents, options)
    peers = {name: start(tmp_path, name) for name in NAMES[:3]}
    second = tmp_path / "ward-b" / "records.jsonl"
    assert peers["ward-a"].until(lambda: second.exists() and len(second.read_bytes()) > 0)
    peers["ward-b"].send(signal.SIGKILL)
    for name in ("ward-a", "ward-c"):
        assert peers[name].wait() == 2
        assert "peers: lost ward-b" in peers[name].err
        assert "start all peers again with --resume" in peers[name].err
    again = [start(tmp_path, name, "--resume") for name in NAMES[:3]]
    for peer in again:
        assert peer.wait() == 0, peer.err
    same_as_alone(tmp_path, agents)


def test_a_mistake_in_the_code_is_reported_to_other_peers_without_its_message() -> None:
    """It may quote a peer's data."""
    floods: list[dict[str, str]] = []
    none: Any = None
    links: Any = SimpleNamespace(me="ward-a", failure=None, flood=floods.append)
    links.patience = 1.0
    meeting = PeerMeeting(links=links, revisions=none, topology=none)
    board = Board(Linked(links, [Member("ward-a")], [], 0))
    with pytest.raises(ValueError), meeting.ending_together(board, final=True):
        raise ValueError("Jane Doe, born 1970")
    [said] = floods
    assert "ward-a failed with a ValueError" in said["note"]
    assert "Jane" not in said["note"]
