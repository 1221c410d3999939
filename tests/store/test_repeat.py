"""A run's folder is enough to repeat it: elsewhere, and after what it was made from is gone."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import nn

import parley
from parley import data
from parley import graphs as topology
from parley.cli.main import main
from parley.errors import BadValue, ParleyError
from parley.experiment import Experiment, read_file
from parley.graphs import Topology
from tests.processes import records

SMALL: dict[str, Any] = {
    "model": "logistic", "batch": 100, "epochs": 2, "gossip_rounds": 2, "fraction": 0.3,
    "algorithm": "dpsgd", "partition": "dirichlet:1", "lr": 0.13,
}  # fmt: skip
FLAGS = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in SMALL.items())
UNEVEN = np.array([[0.5, 0.2, 0.3], [0.2, 0.7, 0.1], [0.3, 0.1, 0.6]])

FILES = {
    "g.txt": "0 1\n1 2\n2 3\n3 0\n0 2  # a chord\n",
    "weighted.txt": "0 1 0.3\n1 2 0.1\n0 2 0.2\n",
    "directed.txt": "0 -> 1\n1 -> 2\n2 -> 0\n0 -> 2\n",
    "rounds.txt": "round\n0 1\nround\n1 2\nround\n2 3\n",
    "weighted-rounds.txt": "round 0\n0 1 0.3\nround 1\nround 2\n1 2 0.4\n",
    "parts.json": json.dumps([list(range(agent, 900, 4)) for agent in range(4)]),
    "links.toml": 'delay = 0.1\n[edges."0-1"]\ndelay = 0.5\n',
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to start in, with all files."""
    here = tmp_path / "here"
    here.mkdir()
    for name, text in FILES.items():
        (here / name).write_text(text)
    monkeypatch.chdir(here)
    return here


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(words: str) -> tuple[Any, str]:
        monkeypatch.setattr(sys, "argv", ["parley", *words.split()])
        with pytest.raises(SystemExit) as exit_:
            main()
        return exit_.value.code, capsys.readouterr().err

    return run


TIMES = ("seconds", "gradients_per_second", "peak_memory_mb", "seconds_network")
"""What is measured by a clock, of which a simulated network's delays are only a part."""


def numbers(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k not in TIMES} for line in records(run)]


def again(run: Path, command: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Repeats a run from its folder, which is all that is left, in another place."""
    kept = run.resolve()
    elsewhere = kept.parent.parent / "elsewhere"
    elsewhere.mkdir()
    moved = shutil.move(kept, elsewhere / "moved")
    shutil.rmtree(kept.parent)
    monkeypatch.chdir(elsewhere)
    code, err = command(f"train {moved}/experiment.toml --out second")
    assert code == 0, err
    assert numbers(Path("second")) == numbers(Path(moved)) and numbers(Path("second"))
    return Path("second")


@pytest.mark.parametrize(
    ("flags", "agents", "kept"),
    [
        ("--topology file:g.txt", 4, {"graph.txt"}),
        ("--topology file:g.txt --weights uniform --algorithm central", 4, {"graph.txt"}),
        ("--topology file:weighted.txt", 3, {"graph.txt"}),
        ("--topology file:weighted.txt --weights metropolis", 3, {"graph.txt"}),
        ("--topology file:directed.txt", 3, {"graph.txt"}),
        ("--topology file:directed.txt --weights push --algorithm sgp", 3, {"graph.txt"}),
        ("--topology schedule:rounds.txt", 4, {"graph.txt"}),
        ("--topology schedule:weighted-rounds.txt", 3, {"graph.txt"}),
        ("--topology spanning-tree:file:g.txt --algorithm relaysgd", 4, {"graph.txt"}),
        ("--topology torus:2x3", 6, set()),
        ("--topology matchings:5 --agents 6 --seed 3", 6, set()),
        ("--agents 4 --partition file:parts.json", 4, {"partition.json"}),
        ("--agents 4 --links file:links.toml", 4, {"links.toml"}),
        (
            "--topology file:g.txt --partition file:parts.json --workers 2",
            4,
            {"graph.txt", "partition.json"},
        ),
    ],
)
def test_from_the_command_line(
    place: Path,
    command: Any,
    monkeypatch: pytest.MonkeyPatch,
    flags: str,
    agents: int,
    kept: set[str],
) -> None:
    code, err = command(f"train {FLAGS} {flags} --out first")
    assert code == 0, err
    assert read_file(Path("first/experiment.toml"))["agents"] == agents
    present = {path.name for path in Path("first").iterdir()}
    assert present & {"graph.txt", "partition.json", "links.toml"} == kept
    second = again(Path("first"), command, monkeypatch)
    if "links.toml" in kept:
        assert all(line["seconds_network"] > 1 for line in records(second))  # 0.5 a step and more


def two_rounds() -> Topology:
    first = topology.from_graph(
        nx.path_graph(3), weights=[[0.9, 0.1, 0], [0.1, 0.6, 0.3], [0, 0.3, 0.7]]
    )
    return topology.sequence([first, topology.from_graph(nx.cycle_graph(3), name="b")])


@pytest.mark.parametrize(
    ("graph", "more"),
    [
        (nx.petersen_graph(), {}),
        (nx.path_graph(["b", "c", "a"]), {}),
        (nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)]), {}),
        (nx.star_graph(4), {"weights": "uniform", "algorithm": "central"}),
        (topology.full(3, weights=UNEVEN), {}),
        (topology.ring(3, weights=UNEVEN), {}),
        (topology.ring(5), {}),
        (topology.erdos_renyi(6, 0.5, seed=7), {}),
        ([nx.Graph([(0, 1)]), nx.Graph([(1, 2)])], {}),
        (two_rounds(), {}),
        (topology.ring(1), {}),
        ("file:g.txt", {}),
    ],
)
def test_from_python(
    place: Path, command: Any, monkeypatch: pytest.MonkeyPatch, graph: Any, more: dict[str, Any]
) -> None:
    result = parley.train(topology=graph, out="first", progress=False, **SMALL | more)
    kept = numbers(Path("first"))
    assert kept[-1]["loss"] == result.records[-1]["loss"]
    again(Path("first"), command, monkeypatch)


@pytest.mark.parametrize("graph", [topology.ring(3, weights=UNEVEN), two_rounds()])
def test_a_graph_of_python_is_resumed_only_as_itself(place: Path, graph: Topology) -> None:
    parley.train(topology=graph, out="first", progress=False, **SMALL)
    whole = parley.train(topology=graph, out="first", resume=True, progress=False, **SMALL)
    assert len(whole.records) == 2
    other = topology.ring(3, weights="metropolis")
    with pytest.raises(
        ParleyError, match=r"holds a different experiment .they differ in .*topology"
    ):
        parley.train(topology=other, out="first", resume=True, progress=False, **SMALL)


def test_a_file_that_has_changed_is_another_experiment(place: Path, command: Any) -> None:
    words = f"train {FLAGS} --topology file:g.txt --partition file:parts.json --out first"
    assert command(words)[0] == 0
    assert command(f"{words} --resume")[0] == 0
    moved = words.replace("g.txt", "moved.txt")
    Path("moved.txt").write_text(FILES["g.txt"])
    assert command(f"{moved} --resume")[0] == 0, "the same graph, wherever it is"
    Path("g.txt").write_text("0 1\n1 2\n2 3\n")
    parts = [list(range(agent, 800, 4)) for agent in range(4)]
    Path("parts.json").write_text(json.dumps(parts))
    code, err = command(f"{words} --resume")
    assert code == 2 and "differ in topology, partition" in err


def test_the_file_says_how_many_agents_there_are(place: Path, command: Any) -> None:
    code, err = command(f"train {FLAGS} --topology file:g.txt --agents 5 --out first")
    assert code == 2 and "agents: 5 is not valid (topology 'file:g.txt' has 4 agents)" in err
    code, err = command(f"train {FLAGS} --topology torus:2x3 --agents 5 --out first")
    assert code == 2 and not Path("first").exists()
    assert Experiment.of(topology="schedule:rounds.txt").agents == 4
    assert Experiment.of(topology="ring").agents == 10
    with pytest.raises(BadValue, match=r"topology: 'file:none.txt' .*No such file"):
        Experiment.of(topology="file:none.txt")


def test_files_of_a_toml_are_looked_for_from_where_it_is(place: Path, command: Any) -> None:
    (place / "deep").mkdir()
    shutil.move("g.txt", "deep/graph.txt")
    Path("deep/mine.toml").write_text('topology = "file:graph.txt"\npartition = "iid"\n')
    code, err = command(f"train deep/mine.toml {FLAGS} --out first")
    assert code == 0, err
    assert numbers(Path("first"))[0]["accuracy_agents"].__len__() == 4


def test_comparisons_and_searches_keep_their_files(
    place: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = FLAGS.replace("--lr 0.13", "").replace("--algorithm dpsgd", "--algorithms dpsgd,ngc")
    words = f"compare {few} --topology file:g.txt --seeds 1 --parallel 1 --out all"
    assert command(words)[0] == 0 and command(f"{words} --resume")[0] == 0
    assert Path("all/ngc/seed-0/graph.txt").read_text().splitlines()[0] == "# 4 agents"
    words = f"tune {few} --topology file:g.txt --trials 1 --parallel 1 --out found"
    code, err = command(words)
    assert code == 0, err
    assert command("train found/dirichlet-1/ngc.toml --epochs 1 --out first")[0] == 0
    again(Path("first"), command, monkeypatch)


class TestOwnParts:
    """What only Python has: the folder says so, and nothing else is run in its place."""

    def digits(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        train = data.load("digits").train
        parts = [train.take(range(agent, 300, 3)) for agent in range(3)]
        return [(part.inputs.float().flatten(1), part.targets) for part in parts]

    def test_model_data_and_loss(self, place: Path, command: Any) -> None:
        def mlp() -> nn.Module:  # the name of a network of ours
            return nn.Linear(64, 10)

        few = {"algorithm": "dpsgd", "epochs": 1, "progress": False}

        def mine(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return 2 * nn.functional.cross_entropy(outputs, targets, reduction="none")

        cases: list[tuple[dict[str, Any], list[str]]] = [
            ({"model": mlp, "data": self.digits(), "loss": mine}, ["model", "data", "loss"]),
            ({"model": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10))}, ["model"]),
            ({"loss": mine}, ["loss"]),
        ]
        for number, (given, missing) in enumerate(cases):
            parley.train(out=f"run-{number}", **given, **few)
            assert read_file(Path(f"run-{number}/experiment.toml"))["from_python"] == missing
            code, err = command(f"train run-{number}/experiment.toml --out again")
            assert code == 2 and f"its {' and '.join(missing)} came from Python" in err
            assert "the Python program that provided them" in err and not Path("again").exists()
        code, err = command("train run-1/experiment.toml --model logistic --epochs 1 --out again")
        assert code == 0, err
        assert read_file(Path("again/experiment.toml"))["from_python"] == []

    def test_fraction_and_validation_are_of_each_agent_s_own(self) -> None:
        common: dict[str, Any] = {"algorithm": "dpsgd", "epochs": 1, "progress": False}
        common |= {"model": nn.Linear(64, 10), "batch": 10}
        sizes = [
            [sum(row) for row in result.about["agents"]["held"]]
            for result in (
                parley.train(data=self.digits(), **common),
                parley.train(data=self.digits(), fraction=0.5, **common),
                parley.train(data=self.digits(), validation=0.2, **common),
            )
        ]
        assert sizes[0] == [100, 100, 100]
        assert all(size == pytest.approx(50, abs=6) for size in sizes[1])
        assert all(size == pytest.approx(80, abs=6) for size in sizes[2])
