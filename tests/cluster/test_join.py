"""Who can reach the processes of a run, and who ends with whom."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
import torch.distributed as dist

from parley.cluster.join import INTERFACE, Meeting, local_store
from tests.cluster.test_launch import torchrun
from tests.processes import Command, nothing_left, processes_of, recorded, until

RUN = (
    "train", "--algorithm", "dpsgd", "--model", "logistic", "--agents", "4", "--epochs", "2000",
    "--batch", "32", "--gossip-rounds", "1", "--engine", "stacked",
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
    with meeting.connected(meeting.everyone, {}):
        assert dist.get_world_size() == 1
        assert INTERFACE not in os.environ


def test_workers_end_when_torchrun_is_killed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with torchrun(*RUN, "--out", str(out), token="orphans") as launcher:
        try:
            assert until(lambda: recorded(out) >= 2, lambda: launcher.poll() is not None)
            assert len(processes_of("orphans")) >= 3
        finally:
            launcher.kill()
    assert nothing_left("orphans")
    assert recorded(out) < 2000
