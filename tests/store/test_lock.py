"""Only one run at a time writes into a folder, whatever is left of those before it."""

import os
import signal
from pathlib import Path

import pytest

from parley.errors import ParleyError
from parley.store.lock import Hold
from parley.store.status import is_held
from tests.processes import Command, process, records

RUN = (
    "train", "--algorithm", "dpsgd", "--model", "logistic", "--agents", 3, "--epochs", 12,
    "--batch", 64, "--gossip-rounds", 1, "--engine", "stacked", "--json",
)  # fmt: skip


class TestHold:
    def test_one_process(self, tmp_path: Path) -> None:
        with Hold(tmp_path / "run", "one", 0) as hold:
            hold.settle([hold.take()])
            assert hold.first and hold.locked and is_held(tmp_path / "run")
            with (
                Hold(tmp_path / "run", "two", 0) as other,
                pytest.raises(ParleyError, match="anot"),
            ):
                other.settle([other.take()])
            assert is_held(tmp_path / "run")
        assert not is_held(tmp_path / "run")
        assert not (tmp_path / "run").exists(), "nothing was written"

    def test_processes_of_a_run_share_a_folder(self, tmp_path: Path) -> None:
        with Hold(tmp_path, "one", 0) as first, Hold(tmp_path, "one", 1) as second:
            took = [hold.take() for hold in (first, second)]
            for hold in (first, second):
                hold.settle(took)
            assert took == [True, False] and first.locked and second.locked
            first.__exit__()  # it dies, and the other is still at work
            assert is_held(tmp_path)
            with Hold(tmp_path, "two", 0) as other, pytest.raises(ParleyError, match="another pr"):
                other.take()
            assert second.retake() and second.first
        assert not is_held(tmp_path)

    def test_another_run_with_the_same_ranks(self, tmp_path: Path) -> None:
        """Who took the folder is asked of those who see it, and not of hosts with other disks."""
        with Hold(tmp_path / "a", "one", 0) as first, Hold(tmp_path / "b", "two", 0) as stranger:
            stranger.settle([stranger.take()])
            with Hold(tmp_path / "b", "one", 1) as second:
                took = [first.take(), second.take()]
                first.settle(took)
                with pytest.raises(ParleyError, match="another process is using"):
                    second.settle(took)

    def test_what_a_killed_process_leaves(self, tmp_path: Path) -> None:
        killed = process(_hold_and_die, tmp_path)
        killed.join()
        assert killed.exitcode == -signal.SIGKILL
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", ".lock-gone-0"]
        assert not is_held(tmp_path)
        with Hold(tmp_path, "next", 0) as hold:
            assert hold.take()
            assert not (tmp_path / ".lock-gone-0").exists()


def _hold_and_die(folder: Path) -> None:
    Hold(folder, "gone", 0).take()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("workers", [1, 2])
def test_of_many_at_once_one_trains(tmp_path: Path, workers: int) -> None:
    out = tmp_path / "run"
    begun = Command(tmp_path / "logs", *RUN, "--workers", workers, "--out", out)
    assert begun.until(lambda: len(records(out)) >= 2), begun.err
    begun.send(signal.SIGKILL)
    begun.wait()
    assert begun.nothing_left()
    words = (*RUN, "--workers", workers, "--out", out, "--resume")
    many = [Command(tmp_path / "logs", *words) for _ in range(4)]
    codes = [command.wait() for command in many]
    assert 0 in codes and set(codes) <= {0, 2}
    for command, code in zip(many, codes, strict=True):
        if code:
            assert "another process is using" in command.error()
    assert [record["epoch"] for record in records(out)] == list(range(1, 13))
