"""Several hosts, each with its own part and its own data: what they must agree on, and the same
numbers as in one process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from parley.cluster import handshake, launch
from parley.cluster.host import Host
from parley.cluster.rank import here
from parley.data import own
from parley.errors import BadValue, ParleyError
from parley.experiment import Experiment
from parley.fabric.board import Board
from parley.training import problem as problems
from tests.cluster.test_launch import as_ranks, close
from tests.data.test_data import noise, write_hub_folder
from tests.memory import Hub, InMemory, together
from tests.processes import PATIENCE, TOKEN, nothing_left, records, without_torchrun

EXPERIMENT = """
data = "own"
model = "logistic"
agents = 3
algorithm = "ngc"
epochs = 3
batch = 4
gossip_rounds = 1
start_agent = 2
dtype = "float64"
"""

FUNCTION = """
import numpy as np

def images(agent):
    rng = np.random.default_rng(agent)
    made = lambda n: (rng.integers(256, size=(n, 1, 6, 6), dtype=np.uint8), rng.integers(2, size=n))
    return {"train": made(9), "test": made(5), "labels": ["cat", "dog"]}
"""


def write_images(folder: Path) -> Path:
    rng = np.random.default_rng(1)
    for split, count in (("train", 4), ("test", 2)):
        for label in ("cat", "dog"):
            place = folder / split / label
            place.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(256, size=(6, 6), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three hosts' disks: a folder of images, a user's function, and a dataset as on the hub."""
    made = [tmp_path_factory.mktemp(f"host{number}") for number in range(3)]
    write_images(made[0] / "images")
    (made[1] / "ward.py").write_text(FUNCTION)
    splits = {"train": noise(7, 6, 6), "test": noise(3, 6, 6)}
    write_hub_folder(made[2] / "root" / "clinic" / "scans", splits)
    places = ["images", "ward:images", "clinic/scans"]
    for agent, (disk, place) in enumerate(zip(made, places, strict=True)):
        (disk / "experiment.toml").write_text(EXPERIMENT)
        (disk / "host.toml").write_text(f'agents = [{agent}]\n[data]\n{agent} = "{place}"\n')
    return made


def everything(hosts: list[Path], monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """All agents in one process that sees all three disks."""
    monkeypatch.chdir(hosts[1])
    monkeypatch.syspath_prepend(str(hosts[1]))
    monkeypatch.setenv("PARLEY_DATA_ROOT", str(hosts[2] / "root"))
    places = {0: str(hosts[0] / "images"), 1: "ward:images", 2: "clinic/scans"}
    experiment = Experiment.from_toml(EXPERIMENT)
    load: Any = lambda e, agents: problems.problem(e, agents, places=places)  # noqa: E731
    out = hosts[0] / "alone"
    launch.execute(experiment, load, out, False, lambda event: None, Host(data=places))
    return records(out)


def test_torchrun_on_three_hosts_gives_the_numbers_of_one_process(
    hosts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process can see another host's data, and each host ends up with all records."""
    port = as_ranks(3)[0]["MASTER_PORT"]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--nnodes=3", "--nproc-per-node=1",
             f"--node-rank={rank}", f"--rdzv-endpoint=127.0.0.1:{port}",
             "-m", "parley", "train", "experiment.toml", "--host=host.toml", "--out=run",
             "--patience=240", *(["--data-root=root"] if rank == 2 else [])],
            env={**os.environ, TOKEN: "three-hosts", "OMP_NUM_THREADS": "1",
                 "PYTHONPATH": str(Path(launch.__file__).parents[2])},
            cwd=disk, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank, disk in enumerate(hosts)
    ]  # fmt: skip
    expected = everything(hosts, monkeypatch)
    for process in started:
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
        assert "Traceback" not in without_torchrun(err)
    assert nothing_left("three-hosts")
    for disk in hosts:
        found = records(disk / "run")
        close(found, expected)
        assert found[-1]["loss"] == pytest.approx(expected[-1]["loss"], rel=1e-9)
        assert json.loads((disk / "run" / "summary.json").read_text())["agents"] == 3
        [part] = (disk / "run" / "checkpoint" / "epoch-000003").iterdir()
        assert part.name == f"worker-{hosts.index(disk)}.safetensors"


class TestOwnData:
    def test_only_the_hosted_agents_data_are_opened(self, tmp_path: Path) -> None:
        places = {0: str(write_images(tmp_path / "mine")), 1: str(tmp_path / "not-here")}
        experiment = Experiment.of(data="own", agents=2, model="logistic")
        found = problems.problem(experiment, [0], places=places)
        assert [len(s) for s in found.samples] == [8]
        assert (len(found.test), found.test_is_shared) == (4, False)
        assert found.class_names == ("cat", "dog")
        with pytest.raises(BadValue, match="agent 1's data cannot be found"):
            problems.problem(experiment, [1], places=places)

    def test_a_named_test_set_beside_own_training_data(self, tmp_path: Path) -> None:
        write_images(tmp_path / "base")
        write_images(tmp_path / "mine")
        options = {"data": str(tmp_path / "base"), "partition": "own", "agents": 2}
        found = problems.problem(Experiment.of(**options), [1], places={1: str(tmp_path / "mine")})
        assert found.test_is_shared and len(found.test) == 4 and len(found.samples) == 1

    def test_a_worker_keeps_the_samples_of_its_own_agents_only(self) -> None:
        experiment = Experiment.of(agents=5)
        whole, part = problems.problem(experiment), problems.problem(experiment, [3])
        assert len(part.samples) == 1
        assert torch.equal(part.samples[0].inputs, whole.samples[3].inputs)
        held = part.samples[0].inputs.untyped_storage().nbytes()
        assert held == part.samples[0].inputs.nbytes

    def test_mistakes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "wards.py").write_text("def bad(agent):\n    return 1 / 0\n")
        monkeypatch.chdir(tmp_path)
        with pytest.raises(BadValue, match="agent 4: it raised ZeroDivisionError"):
            own.load({4: "wards:bad"})
        with pytest.raises(BadValue, match=r"agent 4: .*no attribute 'none'"):
            own.load({4: "wards:none"})
        with pytest.raises(BadValue, match="the location of its data is not given"):
            own.load({}, [2])
        with pytest.raises(BadValue, match='unless the experiment has data = "own"'):
            problems.problem(Experiment.of(agents=2), places={0: "x"})
        with pytest.raises(BadValue, match=r"partition: 'iid' .* valid: own"):
            problems.problem(Experiment.of(agents=2, data="own", partition="iid"))
        with pytest.raises(BadValue, match="this is the only host"):
            launch.execute(
                Experiment.of(agents=3), problems.problem, None, False, print, Host(agents=[0, 1])
            )


class TestHostFile:
    def test_flags_win(self, tmp_path: Path) -> None:
        file = tmp_path / "host.toml"
        file.write_text('agents = [1, 0]\n[data]\n0 = "a"\n1 = "b"\n')
        assert Host.of(file).hosted() == (0, 1)
        assert Host.of(file, "2", ["2=c"]).model_dump() == {
            "agents": (2,), "data": {0: "a", 1: "b", 2: "c"}, "allow_code": (),
        }  # fmt: skip

    def test_the_processes_of_a_host_share_its_agents(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        monkeypatch.setenv("LOCAL_RANK", "1")
        assert Host(agents=(4, 5, 7)).hosted() == (7,)

    @pytest.mark.parametrize(
        "arguments, words",
        [
            ((None, "x"), "agents_here: 'x'"),
            ((None, None, ["one=two"]), "data_here: 'one=two'"),
            ((None, None, ["1"]), "data_here: 1 "),
        ],
    )
    def test_mistakes(self, arguments: Any, words: str) -> None:
        with pytest.raises(BadValue, match=words):
            Host.of(*arguments)

    def test_a_number_for_a_table(self, tmp_path: Path) -> None:
        file = tmp_path / "host.toml"
        file.write_text("data = 3\n")
        with pytest.raises(BadValue, match="a TOML file with agents and data"):
            Host.of(file, None, ["1=c"])


class TestSeats:
    def seats(self, agents: int, *claims: Any) -> Any:
        found = together(
            len(claims), lambda fabric: handshake.seats(Board(fabric), agents, claims[fabric.me])
        )
        assert {str(one) for one in found} == {str(found[0])}, "all come to the same verdict"
        return found[0]

    def test_automatic(self) -> None:
        assert self.seats(5, None, None) == (0, 0, 0, 1, 1)

    def test_explicit_and_mixed(self) -> None:
        assert self.seats(4, [3, 0], [1, 2]) == (0, 1, 1, 0)
        assert self.seats(5, None, [1], None) == (0, 1, 0, 2, 2)

    @pytest.mark.parametrize(
        "claims, words",
        [
            (([0], [1]), "no worker hosts agents 2, 3"),
            (([0, 1], [1, 2, 3]), "agent 1 is hosted both by worker 0 .* and by worker 1 "),
            (([0, 1, 2, 3], None), "worker 1 .* is left without an agent"),
            (([0, 9], None), "agents_here: 9 is not valid"),
        ],
    )
    def test_refused_on_every_host(self, claims: Any, words: str) -> None:
        error = self.seats(4, *claims)
        assert isinstance(error, ParleyError)
        with pytest.raises(ParleyError, match=words):
            raise error


class TestHandshake:
    """Any disagreement is refused on all, with who, what, and both values."""

    def verdicts(self, **other: Any) -> list[Any]:
        def claims(rank: int) -> dict[str, Any]:
            changes = other if rank == 1 else {}
            model = changes.get("model_options", {})
            experiment = Experiment.of(agents=3, **{k: v for k, v in changes.items() if k == "lr"})
            problem = problems.problem(experiment.replace(model_options=model), [rank])
            said = handshake.claims(experiment, problem, problems.task_of(experiment, problem))
            return said | {k: v for k, v in changes.items() if k in said and k != "lr"}

        made = [claims(rank) for rank in range(3)]
        return together(
            3, lambda fabric: handshake.agree(Board(fabric), [fabric.me], made[fabric.me])
        )

    def test_agreement(self) -> None:
        assert self.verdicts() == [None] * 3

    @pytest.mark.parametrize(
        "change, words",
        [
            ({"lr": 0.5}, "lr is 0.5 at worker 1 ({here}, agent 1) but 0.1 at worker 0 ({here}, "),
            ({"version": "9.9"}, "version is '9.9' at worker 1"),
            ({"label names": ["a", "b"]}, "label names is ['a', 'b'] at worker 1"),
            ({"input shape": [3, 9, 9]}, "input shape is [3, 9, 9] at worker 1"),
            ({"input type": "uint8"}, "input type is 'uint8' at worker 1"),
            ({"model_options": {"hidden": 5}}, "parameters 1.weight is [5, 64] at worker 1"),
            ({"algorithm.alpha": 0.5}, "algorithm.alpha is 0.5 at worker 1"),
            ({"graph": "other"}, "graph is 'other' at worker 1"),
        ],
    )
    def test_disagreement(self, change: dict[str, Any], words: str) -> None:
        found = self.verdicts(**change)
        assert len({str(error) for error in found}) == 1
        assert str(found[0]).startswith("hosts do not agree: ")
        assert words.format(here=here()) in str(found[0])

    def test_a_silent_peer_is_named(self) -> None:
        board = Board(InMemory(Hub(), 0, 2, 0.2))
        with pytest.raises(ParleyError, match=r"worker 1 did not report its claims within 0\.2"):
            handshake.agree(board, [0], {})

    def test_a_peer_that_fails_is_heard(self) -> None:
        def work(fabric: InMemory) -> None:
            if fabric.me == 1:
                raise fabric.fail(ParleyError("my disk is full"))
            Board(fabric).share("agents", [], list[int])

        assert [str(error) for error in together(3, work)] == ["my disk is full"] * 3
