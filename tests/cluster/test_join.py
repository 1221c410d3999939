"""Who can reach the processes of a run, and who ends with whom."""

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import TCPStore

from parley.cluster.join import INTERFACE, Meeting, _of_this_start, local_store
from parley.errors import ParleyError
from parley.fabric.base import Fabric
from parley.fabric.gloo import ENDED, PARTING
from tests.cluster.test_launch import free_ports, torchrun
from tests.processes import (
    PATIENCE,
    Command,
    nothing_left,
    process,
    processes_of,
    recorded,
    until,
)

EPOCHS = 100_000
"""More than there is time for: these runs are killed."""
RUN = (
    "train", "--algorithm", "dpsgd", "--model", "logistic", "--agents", "4",
    "--epochs", str(EPOCHS), "--batch", "32", "--gossip-rounds", "1", "--engine", "stacked",
)  # fmt: skip


def listening(pids: list[int]) -> set[str]:
    """The addresses at which these processes wait for connections, in hexadecimal."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                target = str(link.readlink())
                inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                found.add(words[1].partition(":")[0])
    return found


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's table of sockets")
def test_workers_of_one_machine_are_open_to_no_other(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = Command(tmp_path / "logs", *RUN, "--workers", "2", "--out", out)
    try:
        assert command.until(lambda: recorded(out) >= 1), command.err
        found = listening([command.pid, *command.workers()])
        assert found == {"0100007F"}, "127.0.0.1, and nothing else"
    finally:
        command.send(signal.SIGKILL)
    assert command.nothing_left()


def test_the_interface_is_chosen_for_the_run_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(INTERFACE, raising=False)
    meeting = Meeting(0, 1, store=local_store(60.0), local=True)
    with meeting.connected(meeting.everyone):
        assert dist.get_world_size() == 1
        assert INTERFACE not in os.environ


class Dying:
    """A store that is gone after so many questions; before, a stranger has written into it."""

    def __init__(self, questions: int) -> None:
        self.left = questions

    def _answer(self, found: object) -> object:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("Connection reset by peer\n[C++ stack]")
        return found

    def set(self, key: str, value: str) -> object:
        return self._answer(None)

    def check(self, keys: list[str]) -> object:
        return self._answer(True)

    def multi_get(self, keys: list[str]) -> object:
        return self._answer([b"\xff\xfe"] * len(keys))


@pytest.mark.parametrize("questions", range(8))
def test_a_store_that_is_lost_while_workers_count_each_other(questions: int) -> None:
    store: Any = Dying(questions)
    with pytest.raises(ParleyError, match=r"within 60 seconds .*: Connection reset by peer$"):
        _of_this_start(store, 0, 2, 60.0)


SECRET = "Jane Doe, born 1970"


def test_a_mistake_in_the_code_is_reported_to_other_hosts_without_its_message() -> None:
    """It may quote a host's data. On one machine there is nobody to hide it from."""
    for local in (False, True):
        meeting = Meeting(0, 1, store=local_store(60.0), local=local)
        board = meeting.lobby()
        with pytest.raises(ValueError), meeting.ending_together(board, final=True):
            raise ValueError(SECRET)
        said = str(meeting.fabric.told())  # type: ignore[attr-defined]
        assert ("failed with a ValueError" in said) != local
        assert (SECRET in said) == local


def wait_for_the_other(fabric: Fabric, error: BaseException | None) -> None:
    place = torch.zeros(1, dtype=torch.uint8)
    [request] = fabric.exchange([], [(1 - fabric.me, place)])
    if error is not None:
        time.sleep(0.5)
        raise error
    request.wait()


def two(rank: int, port: int, said: Path, stopped: bool) -> None:
    store = TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
    meeting = Meeting(rank, 2, store=store, local=True)
    error = KeyboardInterrupt() if stopped else ParleyError("disk: full")
    began = time.monotonic()
    try:
        with meeting.connected(meeting.everyone) as board:
            wait_for_the_other(board.fabric, error if rank == 0 else None)
    except (ParleyError, KeyboardInterrupt) as found:
        said.write_text(str(found))
        if stopped and rank == 0:
            assert time.monotonic() - began < PARTING
            time.sleep(2 * PARTING)  # the other is not waited for, and has a store to look at
            assert store.add(ENDED, 0) == 2
        os._exit(0)  # and its store, if it has one, is gone with it


def test_whoever_waits_for_a_worker_that_fails_hears_why_while_its_store_is_there(
    tmp_path: Path,
) -> None:
    """A failed worker's connections are closed at once, though it was waiting for messages."""
    [port] = free_ports(1)
    said = [tmp_path / str(rank) for rank in (0, 1)]
    for one in [process(two, rank, port, said[rank], False) for rank in (0, 1)]:
        one.join(PATIENCE)
    assert [path.read_text() for path in said] == ["disk: full"] * 2


def test_a_worker_that_was_stopped_is_not_waited_for(tmp_path: Path) -> None:
    """By the others, who otherwise see to it that everyone has heard why a run ends."""
    [port] = free_ports(1)
    said = [tmp_path / str(rank) for rank in (0, 1)]
    for one in [process(two, rank, port, said[rank], True) for rank in (0, 1)]:
        one.join(PATIENCE)
        assert one.exitcode == 0
    assert [path.read_text() for path in said] == ["", "workers: worker 0 was stopped"]


def test_workers_end_when_torchrun_is_killed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with torchrun(*RUN, "--out", str(out), token="orphans") as launcher:
        try:
            assert until(lambda: recorded(out) >= 2, lambda: launcher.poll() is not None)
            assert len(processes_of("orphans")) >= 3
        finally:
            launcher.kill()
    assert nothing_left("orphans")
    assert recorded(out) < EPOCHS


def test_torchrun_passes_sigterm_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with torchrun(*RUN, "--out", str(out), token="told to stop") as launcher:
        try:
            assert until(lambda: recorded(out) >= 2, lambda: launcher.poll() is not None)
            launcher.terminate()
            _, err = launcher.communicate(timeout=PATIENCE)
        finally:
            launcher.kill()
    assert launcher.returncode == 1, "torchrun's own"
    assert err.count(f"stopped; to continue: the same command with --out {out} --resume") == 1
    assert "parley/cli/main.py" not in err, err
    assert json.loads((out / "status.json").read_text())["state"] == "stopped"
    assert nothing_left("told to stop")
