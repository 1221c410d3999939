"""Peers in network namespaces of their own that are killed, stopped, cut off and slowed down.

    PARLEY_ROUNDS=20 python -m pytest tests/peers/test_rounds.py

Without that, there are only a few rounds.
"""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import namespaces
from tests.faults import lines
from tests.peers.groups import NAMES, write_group
from tests.peers.test_heal import OPTIONS, Trio, train
from tests.processes import process, until
from tests.relay import DEVICE

ROUNDS = int(os.environ.get("PARLEY_ROUNDS", "3"))
SEED = 18
SIZE = 4
PATIENCE = 4.0


class Apart(Trio):
    """Four peers, each on a host that reaches the others by one device only."""

    def __init__(self, folder: Path, places: list[str]) -> None:
        self.folder = folder
        self.places = dict(zip(NAMES, places, strict=False))
        self.hub = places[0].removesuffix("h0") + "hub"
        addresses = [f"10.77.0.{number + 1}:7400" for number in range(SIZE)]
        options = {**OPTIONS, "patience": PATIENCE, "epochs": 20 + 8 * ROUNDS}
        write_group(folder, [[n] for n in range(SIZE)], options, addresses)
        self.running: dict[str, Any] = {}

    def start(self, name: str, resume: bool = False, odd: str = "") -> None:
        place = self.places[name]
        self.running[name] = process(train, self.folder, name, resume, odd, place)

    def kill(self, name: str) -> None:
        self.running[name].kill()
        self.running[name].join()

    def cable(self, name: str, state: str) -> None:
        """Pulls a host's cable, or plugs it in again."""
        namespaces.ip("-n", self.hub, "link", "set", f"{self.places[name]}v", state)

    def slow(self, name: str, rate: str) -> None:
        """Lets a host send so much and no more; nothing: as much as it can."""
        limit = ["root", "tbf", "rate", rate, "burst", "16kb", "latency", "500ms"]
        words = ["replace", "dev", DEVICE, *limit] if rate else ["del", "dev", DEVICE, "root"]
        command = ["ip", "netns", "exec", self.places[name], "tc", "qdisc", *words]
        done = subprocess.run(command, capture_output=True, text=True)
        assert not done.returncode, done.stderr

    def harm(self, name: str, what: str) -> None:
        """Does something to a peer."""
        if what == "kill":
            self.kill(name)
        elif what == "stop":
            os.kill(self.running[name].pid, signal.SIGSTOP)
        elif what == "cut":
            self.cable(name, "down")
        else:
            self.slow(name, "200kbit")

    def mend(self, name: str, what: str) -> None:
        """And takes it back."""
        if what == "kill":
            self.start(name, resume=True)
        elif what == "stop":
            os.kill(self.running[name].pid, signal.SIGCONT)
        elif what == "cut":
            self.cable(name, "up")
        else:
            self.slow(name, "")


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Apart]:
    if reason := namespaces.missing():
        pytest.skip(reason)
    with namespaces.network(SIZE) as places:
        made = Apart(tmp_path, places)
        try:
            yield made
        finally:
            made.stop()


def test_random_rounds_of_kills_stops_cuts_and_slow_links(apart: Apart) -> None:
    """Whatever happens to whomever, at the end all are there, agree, and have lost nothing."""
    names = NAMES[:SIZE]
    chance = random.Random(SEED)
    for name in names:
        apart.start(name)
    assert until(lambda: len(lines(apart.folder / names[0] / "records.jsonl")) > 0, pause=0.1)
    harmed: dict[str, str] = {}
    for number in range(ROUNDS):
        time.sleep(chance.uniform(0, 2 * PATIENCE))
        name = chance.choice(names)
        if name in harmed:
            apart.mend(name, harmed.pop(name))
        else:
            # Each kind of harm has its turn, so that a few rounds have several.
            harmed[name] = ("cut", "stop", "kill", "slow")[number % 4]
            apart.harm(name, harmed[name])
    for name, what in harmed.items():
        apart.mend(name, what)
    apart.until_view(names, list(names))
    apart.end(names)
    said = lines(apart.folder / names[0] / "generations.jsonl")
    numbers = [line["generation"] for line in said]
    assert numbers == sorted(set(numbers))
