"""The hosts of one party: a folder for each, made by one command; any of them can be replaced."""

import shutil
import signal
import stat
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from safetensors.torch import load_file

from parley.errors import BadValue
from parley.peers import hosts
from parley.peers.file import Peers
from tests.faults import lines
from tests.peers.test_heal import OPTIONS, Trio
from tests.ports import free_ports
from tests.processes import Command, recorded, until

HOSTS = ("host-0", "host-1", "host-2")


class Cluster(Trio):
    """Three hosts of one machine, as `parley peers hosts` has made them."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.running: dict[str, Any] = {}
        path = folder / "mine.toml"
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(
            tomli_w.dumps({**OPTIONS, "agents": 7, "batch": 32, "partition": "iid", **options})
        )
        shutil.copy(path, folder / "experiment.toml")
        addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
        command = Command(
            folder / "logs", "peers", "hosts", path, *addresses, "--out", folder / "made"
        )
        assert command.wait() == 0, command.err
        assert command.out.splitlines()[0].endswith(f"{addresses[0]}, agents 0, 1, 2")

    def start(self, name: str, resume: bool = False, odd: str = "", own: str = "") -> None:
        super().start(name, resume, odd, own or f"made/{name}")


def test_a_host_is_killed_and_replaced_by_another_machine(tmp_path: Path) -> None:
    """The first of three, which torchrun's store could not do without; the new one has nothing but
    a copy of the folder that was made. With BatchNorm: nobody's statistics have seen more or fewer
    batches than there were steps."""
    cluster = Cluster(tmp_path, model="tests.faults:normed", epochs=20)
    try:
        for name in HOSTS:
            cluster.start(name)
        there = lambda: len(lines(tmp_path / "host-1" / "records.jsonl")) > 1  # noqa: E731
        assert until(there, lambda: cluster.running["host-1"].exitcode is not None), cluster.words()
        cluster.running["host-0"].kill()
        cluster.running["host-0"].join()
        cluster.until_view(HOSTS[1:], list(HOSTS[1:]))
        shutil.rmtree(tmp_path / "host-0")
        shutil.copytree(tmp_path / "made" / "host-0", tmp_path / "new")
        cluster.start("host-0", own="new")
        cluster.until_view(HOSTS, list(HOSTS))
        cluster.end(HOSTS)
    finally:
        cluster.stop()
    assert "host-0 was lost; continuing without agents 0, 1, 2" in cluster.words()
    last = lines(tmp_path / "host-2" / "records.jsonl")[-1]
    assert last["accuracy_mean_model"] > 0.85 and None not in last["accuracy_agents"]
    tracked = set()
    for name, agents in zip(HOSTS, ((0, 1, 2), (3, 4), (5, 6)), strict=True):
        for agent in agents:
            found = load_file(tmp_path / name / "agents" / f"agent-{agent}.safetensors")
            assert torch.isfinite(found["2.running_mean"]).all()
            tracked.add(int(found["2.num_batches_tracked"]))
    assert len(tracked) == 1 and tracked.pop() % 20 == 0


def test_test_samples_on_an_absent_host_are_reported(tmp_path: Path) -> None:
    """Ten for each agent: seventy, then forty while a host is away, then seventy again."""
    cluster = Cluster(tmp_path, epochs=20)
    try:
        for name in HOSTS:
            cluster.start(name, odd="own test")
        alive = lambda: cluster.running["host-1"].exitcode is not None  # noqa: E731
        records = tmp_path / "host-1" / "records.jsonl"
        assert until(lambda: len(lines(records)) > 1, alive), cluster.words()
        cluster.running["host-0"].kill()
        absent = lambda: any("test_samples_absent" in r for r in lines(records))  # noqa: E731
        assert until(absent, alive), cluster.words()
        cluster.start("host-0", resume=True, odd="own test")
        cluster.until_view(HOSTS, list(HOSTS))
        cluster.end(HOSTS)
    finally:
        cluster.stop()
    seen = [(r["test_samples"], r.get("test_samples_absent")) for r in lines(records)]
    assert list(dict.fromkeys(seen)) == [(70, None), (40, 30)]
    assert seen[0] == seen[-1] == (70, None)
    said = (tmp_path / "host-1.err").read_text()
    assert said.count("test samples") == 2
    assert "note: tested on 40 of 70 test samples; the others are on absent hosts\n" in said
    assert "note: tested on 70 of 70 test samples again\n" in said


def test_a_run_that_ends_without_a_host_says_so_by_its_exit_code(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, epochs=400, patience=3.0)
    running = {}
    for name in HOSTS:
        made = tmp_path / "made" / name
        running[name] = Command(
            tmp_path / "logs", "join", made / "peers.toml", "--me", name, "--keys", made,
            "--out", tmp_path / name, *(["--quiet"] if name == "host-2" else []),
        )  # fmt: skip
    try:
        assert running["host-0"].until(lambda: recorded(tmp_path / "host-0") > 1), cluster.words()
    finally:
        running["host-0"].send(signal.SIGKILL)
    for name in HOSTS[1:]:
        assert running[name].wait() == 3, running[name].err
        assert "warning: the run ends without agents 0, 1, 2: lost host-0" in running[name].err
        assert "warning: peers: lost host-0" in running[name].err  # at once, also where all wait
        assert "warning: host-0 was lost; continuing without agents 0, 1, 2" in running[name].err


class TestTheFolders:
    def test_each_has_what_its_host_needs(self, tmp_path: Path) -> None:
        (tmp_path / "mine.toml").write_text("agents = 3\n# as it stands\n")
        made = hosts.make(tmp_path / "mine.toml", ["a.example:1", "b.example:2"], tmp_path / "out")
        assert made.names == ("a.example", "b.example")
        for name in made.names:
            folder = tmp_path / "out" / name
            assert sorted(path.name for path in folder.iterdir()) == sorted(
                [f"{name}.key", f"{name}.crt", "peers.toml", "experiment.toml"]
            )
            assert stat.S_IMODE((folder / f"{name}.key").stat().st_mode) == 0o600
            assert Peers.read(folder / "peers.toml").digest() == made.digest()
            assert (folder / "experiment.toml").read_text() == "agents = 3\n# as it stands\n"

    def test_mistakes(self, tmp_path: Path) -> None:
        (tmp_path / "mine.toml").write_text("agents = 3\n")
        for addresses, words in (
            (["a:1"], "hosts: 1 is not valid"),
            (["a:1", "b:2", "c:3", "d:4"], "hosts: 4 is not valid"),
            (["a:1", "nonsense"], "hosts: 'nonsense'"),
            (["a:1", "a:1"], "not the address a:1"),
        ):
            with pytest.raises(BadValue, match=words):
                hosts.make(tmp_path / "mine.toml", addresses, tmp_path / "out")
        assert not (tmp_path / "out").exists()
        hosts.make(tmp_path / "mine.toml", ["a:1", "b:2"], tmp_path / "out")
        with pytest.raises(BadValue, match=r"out: .*it has a peers.toml"):
            hosts.make(tmp_path / "mine.toml", ["a:1", "b:2"], tmp_path / "out")
