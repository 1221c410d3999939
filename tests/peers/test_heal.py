"""Any peer may be killed, stopped or started again, the first included: the others go on, and all
end with the same records and the same account of who took part."""

import io
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from parley.errors import ParleyError
from parley.experiment import Experiment, read_file
from parley.peers.file import Peers
from parley.peers.join import join
from parley.training.problem import problem
from parley.watch import log
from tests.faults import HURRY, lines, paced
from tests.peers.groups import NAMES, write_group
from tests.processes import PATIENCE, process, until

OPTIONS = {"model": "logistic", "engine": "loop", "algorithm": "dpsgd", "epochs": 40, "batch": 64}
OPTIONS |= {"gossip_rounds": 1, "on_failure": "heal", "patience": 6.0}


def train(folder: Path, name: str, resume: bool) -> None:
    """One peer, as slow as it must be for what is done to it."""
    sys.stderr = io.TextIOWrapper((folder / f"{name}.err").open("ab"), line_buffering=True)
    log.show()
    peers = Peers.read(folder / "peers.toml")
    experiment = Experiment.of(**read_file(Path(peers.experiment)))
    watch = partial(paced, folder)
    try:
        outcome = join(peers, experiment, name, folder, problem, folder / name, resume, watch)
        (folder / f"{name}.json").write_text(json.dumps(outcome.summary))
    except ParleyError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(2)


class Trio:
    """Three peers in processes of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_group(folder, [[0], [1], [2]], OPTIONS)
        self.running: dict[str, Any] = {}
        for name in NAMES[:3]:
            self.start(name)

    def start(self, name: str, resume: bool = False) -> None:
        self.running[name] = process(train, self.folder, name, resume)

    def views(self, name: str) -> list[list[str]]:
        return [line["workers"] for line in lines(self.folder / name / "generations.jsonl")]

    def until_view(self, names: tuple[str, ...], members: list[str]) -> None:
        """Waits until these peers train in a view of these members."""

        def there() -> bool:
            return all(self.views(name)[-1:] == [members] for name in names)

        def over() -> bool:
            return any(self.running[name].exitcode is not None for name in names)

        assert until(there, over, pause=0.05), self.words()

    def end(self) -> None:
        """All train to the end; checks that all tell the same story."""
        (self.folder / HURRY).touch()
        for name in NAMES[:3]:
            self.running[name].join(PATIENCE)
            assert self.running[name].exitcode == 0, self.words()
        told = [lines(self.folder / name / "generations.jsonl") for name in NAMES[:3]]
        assert told[0] == told[1] == told[2]
        records = [lines(self.folder / name / "records.jsonl") for name in NAMES[:3]]
        assert records[0] == records[1] == records[2]
        assert [record["epoch"] for record in records[0]] == list(range(1, 41))

    def words(self) -> str:
        found = sorted(self.folder.glob("*.err"))
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in found)


@pytest.fixture
def trio(tmp_path: Path) -> Any:
    made = Trio(tmp_path)
    yield made
    for one in made.running.values():
        one.kill()
        one.join()


@pytest.mark.parametrize("lost", NAMES[:2])
def test_the_others_go_on_without_a_killed_peer_and_it_comes_back(trio: Trio, lost: str) -> None:
    everyone = list(NAMES[:3])
    others = tuple(name for name in everyone if name != lost)
    assert until(lambda: len(lines(trio.folder / "ward-c" / "records.jsonl")) > 0)
    trio.running[lost].kill()
    trio.running[lost].join()
    trio.until_view(others, list(others))
    trio.start(lost, resume=True)
    trio.until_view(tuple(everyone), everyone)
    trio.end()
    assert trio.views(lost) == [everyone, list(others), everyone]


def test_a_peer_that_is_stopped_for_long_rejoins_by_itself(trio: Trio) -> None:
    everyone = list(NAMES[:3])
    assert until(lambda: len(lines(trio.folder / "ward-b" / "records.jsonl")) > 0)
    os.kill(trio.running["ward-c"].pid, signal.SIGSTOP)
    trio.until_view(("ward-a", "ward-b"), everyone[:2])
    os.kill(trio.running["ward-c"].pid, signal.SIGCONT)
    trio.until_view(tuple(everyone), everyone)
    trio.end()
