"""Going on with a run whose records are damaged: nothing is lost in silence."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

import parley
from parley.errors import ParleyError
from parley.store.folder import GENERATIONS, RECORDS, RunFolder
from parley.store.journal import Journal
from parley.store.lock import Hold
from tests.fuzz.damage import SPECIAL

SMALL = {
    "algorithm": "dpsgd", "model": "logistic", "agents": 3, "fraction": 0.05, "test_fraction": 0.1,
    "gossip_rounds": 1, "engine": "loop", "progress": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has trained 2 epochs and is to go on for a third."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    parley.train(out=out, epochs=2, **SMALL)
    return out


def contents(run: Path) -> dict[Path, bytes]:
    files = (path for path in run.rglob("*") if path.is_file() and ".lock" not in path.name)
    return {path: path.read_bytes() for path in files}


def test_a_damaged_checkpoint_does_not_cost_the_trained_model(
    stopped: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(stopped, run)
    [part] = (run / "checkpoint" / "epoch-000002").iterdir()
    part.write_bytes(bytes(part.stat().st_size))
    kept = contents(run)
    with pytest.raises(ParleyError, match=r"epoch-000002.worker-0.safetensors is damaged"):
        parley.train(out=run, epochs=3, resume=True, **SMALL)
    assert contents(run) == kept
    assert parley.load(run).model() is not None


def first_line_lost(path: Path) -> None:
    path.write_bytes(path.read_bytes().split(b"\n", 1)[1])


LOSSES: dict[str, Callable[[Path], object]] = {
    "zeros, as a power cut leaves them": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "empty": lambda path: path.write_bytes(b""),
    "gone": Path.unlink,
    "half of the last line": lambda path: os.truncate(path, path.stat().st_size - 5),
    "the first line gone": first_line_lost,
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_run_does_not_go_on_without_its_records(loss: str, stopped: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(stopped, run)
    LOSSES[loss](run / RECORDS)
    kept = contents(run)
    with pytest.raises(ParleyError, match=r"records.jsonl lacks the record of epoch [12]; put it"):
        parley.train(out=run, epochs=3, resume=True, **SMALL)
    assert contents(run) == kept, "a refusal changes nothing, and the trained model stays"
    if loss == "half of the last line":
        shutil.rmtree(run / "checkpoint" / "epoch-000002")  # as the message says
        parley.train(out=run, epochs=3, resume=True, **SMALL)
        lines = (run / RECORDS).read_text().splitlines()
        assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3]


@pytest.mark.parametrize("what", sorted(SPECIAL))
def test_what_is_no_file_is_named(what: str, stopped: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(stopped, run)
    (run / RECORDS).unlink()
    SPECIAL[what](run / RECORDS)
    with pytest.raises(ParleyError, match=rf"^records: .*{RECORDS}.* is damaged"):
        parley.train(out=run, epochs=3, resume=True, **SMALL)


class Liar:
    """A board on which another worker says something of its own."""

    rank = 0

    def __init__(self, said: list[dict[str, Any]]) -> None:
        self.said = said

    def share(self, what: str, value: Any, kind: Any) -> list[Any]:
        return [value, TypeAdapter(kind).validate_python(self.said)]


def test_nobody_else_can_change_what_a_worker_has_seen_itself(tmp_path: Path) -> None:
    (tmp_path / GENERATIONS).write_text('{"generation": 0, "workers": ["a", "b"]}\n3\n')
    told = [{"generation": n, "workers": ["liar"]} for n in range(4)]
    with Hold(tmp_path, "run", 0) as hold:
        hold.take()
        journal = Journal(hold, Liar(told))
        journal.keeper = True
        journal.note({"generation": 2, "workers": ["a"]}, apart=True)
        lines = RunFolder(tmp_path).lines(GENERATIONS)
        assert [line["workers"] for line in lines] == [["a", "b"], ["liar"], ["a"]]
        with pytest.raises(ValidationError):
            Journal(hold, Liar([{"workers": []}])).note({"generation": 3}, apart=True)
