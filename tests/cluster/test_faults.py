"""What can be wrong at the start or later: a clear message on every host, no hang, nothing lost."""

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from parley.cluster import launch
from parley.cluster.rank import here
from parley.experiment import Experiment
from parley.training.problem import problem
from parley.version import commit
from tests.cluster.test_launch import OPTIONS, RUN, torchrun
from tests.faults import Hosts
from tests.processes import PATIENCE, nothing_left, processes_of, recorded, records, until

SMALL: dict[str, Any] = {
    "algorithm": "ngc", "agents": 4, "epochs": 12, "gossip_rounds": 1, "partition": "iid",
    "patience": 60, "engine": "stacked",
}  # fmt: skip


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Any]:
    hosts: list[Hosts] = []

    def make(*arguments: Any, **options: Any) -> Hosts:
        hosts.append(Hosts(tmp_path / "hosts", *arguments, **SMALL | options))
        return hosts[0]

    yield make
    for one in hosts:
        one.end()


def errors(hosts: Hosts) -> list[str]:
    """The one error of each host, after all have ended by themselves."""
    found = []
    for rank in hosts.running:
        assert hosts.wait(rank) == 2, hosts.words()
        beside = (
            "note: ",
            "warning: suspicious: ",
        )  # a host that diverges sends what is not finite
        lines = [line for line in hosts.err(rank).splitlines() if not line.startswith(beside)]
        assert len(lines) == 1, hosts.words()
        found.append(lines[0].removeprefix("error: "))
    return found


def test_a_host_that_does_not_join(made: Any) -> None:
    for said in errors(made(3, [0, 1], patience=3)):
        assert said.startswith("workers: ")
        assert "3 seconds (--patience)" in said
        assert "did not all join" in said or "could not all be connected" in said


def test_a_port_that_is_taken(made: Any) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        hosts = made(2, [], patience=3)
        port = str(other.getsockname()[1])
        for environment in hosts.environments:
            environment["MASTER_PORT"] = port
        for rank in range(2):
            hosts.start(rank)
        first, second = errors(hosts)
    assert first.startswith(f"port: {port} is not valid (another program on this host uses it)")
    assert second.startswith("workers: ")
    assert "within 3 seconds (--patience)" in second


def test_another_version(made: Any) -> None:
    hosts = made(2, odd={1: "version"})
    for said in errors(hosts):
        version = f"9.9 (commit {commit()})".replace("-dirty", "")
        assert f"do not agree: version is {version!r} at worker 1 ({here()}, agents 2, 3)" in said
    assert not hosts.out(0).exists() and not hosts.out(1).exists()


def test_one_host_diverges(made: Any) -> None:
    """The epochs before it stay: its sample comes last in the first pass, or later."""
    hosts = made(2, odd={1: "huge"})
    first, second = errors(hosts)
    for said in (first, second):
        assert re.match("loss: (nan|inf) at agent 3, step ", said)
        assert "training has diverged" in said
    assert "agent 3 (worker 1) sent a gradient that is not finite" in hosts.err(0)
    assert f"(reported by worker 1 on {here()})" in first


def test_a_full_disk(made: Any, tmp_path: Path) -> None:
    """All stop with the error of the host whose disk is full, and resume from what was written."""
    small = tmp_path / "hosts" / "host-1"
    small.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        hosts = made(2)
        hosts.until(lambda: recorded(hosts.out(1)) >= 2)
        # Again and again: what the run removes meanwhile is filled, too.
        assert until(lambda: fill(small / "ballast") or hosts.running[1].exitcode is not None)
        first, second = errors(hosts)
        assert "cannot be written" in second
        assert "o space left" in second or "ot enough space" in second or "full" in second.lower()
        assert first.startswith(second) and f"(reported by worker 1 on {here()})" in first
        (small / "ballast").unlink()
        hosts.hurry()
        for rank in range(2):
            hosts.start(rank, resume=True)
        for rank in range(2):
            assert hosts.wait(rank) == 0, hosts.words()
        epochs = list(range(1, SMALL["epochs"] + 1))
        assert [r["epoch"] for r in hosts.records(1)] == epochs
        assert hosts.records(0) == hosts.records(1)
    finally:
        hosts.end()
        subprocess.run(["umount", "-l", str(small)], check=True)


def fill(path: Path) -> bool:
    """Takes what is left of a disk; never enough."""
    with suppress(OSError), path.open("ab", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    return False


def test_a_host_that_dies_is_named_on_every_other(made: Any) -> None:
    """Host and agents, and not what gloo has to say about sockets."""
    hosts = made(3)
    hosts.until(lambda: len(hosts.records()) >= 1)
    hosts.kill(1)
    for rank in (0, 2):
        assert hosts.wait(rank) == 2, hosts.words()
        [said] = [line for line in hosts.err(rank).splitlines() if line.startswith("error: ")]
        assert said.startswith(f"error: workers: lost worker 1 ({here()}, agent 2)"), hosts.words()
        assert "gloo" not in hosts.err(rank) and "Traceback" not in hosts.err(rank)


def test_torchrun_restarts_a_killed_worker(tmp_path: Path) -> None:
    """From the last common checkpoint, to the numbers of a run that was left alone."""
    out = tmp_path / "run"
    with torchrun(*RUN, "--out", str(out), token="restarted", restarts=2) as process:
        try:
            assert until(lambda: recorded(out) >= 2, lambda: process.poll() is not None)
            [worker] = [pid for pid in processes_of("restarted") if b"RANK=1" in variables(pid)]
            os.kill(worker, signal.SIGKILL)
            _, err = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, err
        finally:
            process.kill()
    assert nothing_left("restarted")
    experiment = Experiment.of(**OPTIONS, workers=2)
    launch.execute(experiment, problem, tmp_path / "alone", False, lambda event: None)
    assert records(out) == records(tmp_path / "alone")


def variables(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
