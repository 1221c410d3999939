"""After a power cut a run goes on, whatever the disk had not been given yet."""

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from parley.cluster import launch
from parley.errors import BadValue, ParleyError
from parley.experiment import Experiment
from parley.store import checkpoint
from parley.store.folder import RunFolder
from parley.training.events import Event
from parley.training.problem import Problem, problem
from tests.power import Disk, cut, own_file_system, power_on
from tests.processes import Command, records

EPOCHS = 4
EXPERIMENT = Experiment.of(
    algorithm="compngc", momentum=0.9, agents=3, epochs=EPOCHS, batch=256, partition="iid",
    gossip_rounds=1, model="logistic", engine="stacked",
)  # fmt: skip


def unwatched(event: Event) -> None:
    pass


def loaded(experiment: Experiment, agents: Sequence[int]) -> Problem:
    return problem(experiment, agents)


def trained(out: Path, resume: bool = False) -> list[dict[str, Any]]:
    launch.execute(EXPERIMENT, loaded, out, resume, unwatched)
    return records(out)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], Any]:
    """The folders that cuts leave, and the records of a run that was left alone."""
    root, cuts = tmp_path_factory.mktemp("disk"), tmp_path_factory.mktemp("cuts")
    made: list[Path] = []

    def before_each() -> None:
        for lost in (True, False):
            where = cuts / f"{len(made):04d}"
            made.append(disk.after_a_cut(where, names_lost=lost))

    disk = Disk(root, before_each)
    with pytest.MonkeyPatch.context() as patched, disk.watching(patched):
        whole = trained(root / "run")
        before_each()
    return made, whole


def test_a_cut_before_every_single_sync(found: tuple[list[Path], Any]) -> None:
    """Checkpoints that were there stay, and every run goes on to the same end."""
    made, whole = found
    seen, newest = set(), {True: 0, False: 0}
    for number, where in enumerate(made):
        if (left := contents(where)) in seen:
            continue  # many cuts leave the same
        seen.add(left)
        usable = max(map(epoch_of, filter(is_whole, where.rglob("*.safetensors"))), default=0)
        names_lost = number % 2 == 0
        assert usable >= newest[names_lost]
        newest[names_lost] = usable
        began = (where / "run" / "experiment.toml").exists()
        assert trained(where / "run", resume=began) == whole
    assert len(seen) > 4 * EPOCHS
    assert newest == {True: EPOCHS, False: EPOCHS}


def is_whole(path: Path) -> bool:
    try:
        return bool(checkpoint._arrays(path, checkpoint._header(path)))
    except ParleyError:
        return False


def epoch_of(path: Path) -> int:
    return int(path.parent.name.removeprefix("epoch-"))


def contents(folder: Path) -> frozenset[tuple[str, bytes]]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "status.json")
    return frozenset((str(path.relative_to(folder)), path.read_bytes()) for path in files)


@pytest.mark.parametrize("epoch", [1, 3, 6])
def test_a_disk_whose_power_is_cut(tmp_path: Path, epoch: int) -> None:
    run = (
        "train", "--algorithm", "compngc", "--agents", 5, "--epochs", 12, "--batch", 64,
        "--partition", "iid", "--gossip-rounds", 1, "--engine", "stacked", "--json",
    )  # fmt: skip
    with own_file_system(tmp_path) as place:
        out = place / "runs" / "cut"
        command = Command(tmp_path / "logs", *run, "--out", out)
        # A checkpoint is begun once the record of its epoch is on disk.
        parts = checkpoint.folder(out, epoch)
        assert command.until(parts.exists), command.err
        known = records(out)[:epoch]
        cut(place)
        command.send(signal.SIGKILL)
        command.wait()
        power_on(place)
        assert RunFolder(out).experiment() is not None
        assert records(out)[:epoch] == known
        assert all(map(is_whole, out.rglob("*.safetensors")))
        again = Command(tmp_path / "logs", *run, "--out", out, "--resume")
        assert again.wait() == 0, again.err
        alone = Command(tmp_path / "logs", *run, "--out", tmp_path / "alone")
        assert alone.wait() == 0, alone.err
        assert records(out) == records(tmp_path / "alone")


def test_an_empty_experiment_is_damage(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text("")
    with pytest.raises(
        BadValue, match=r"experiment: .*experiment.toml' is not valid \(it is empty"
    ):
        RunFolder(tmp_path).experiment()
    empty = Command(
        tmp_path / "logs", "train", tmp_path / "experiment.toml", "--out", tmp_path / "o"
    )
    assert empty.wait() == 2
    assert "(it is empty)" in empty.error()
