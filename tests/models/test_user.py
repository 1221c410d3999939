"""A user's own model by name: imported from this host's path, and only if this host allows it."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import parley
from parley import user_code
from parley.cluster import handshake
from parley.cluster.host import Host
from parley.errors import BadValue
from parley.experiment import Experiment
from parley.files import parse_json
from parley.models.architecture import Architecture
from parley.training import problem as problems
from tests.own_module import own_module

MODULE = """
from torch import nn

def net(classes, input_shape, hidden=4):
    size = input_shape[0] * input_shape[1] * input_shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(size, hidden), nn.Linear(hidden, classes))

class Net(nn.Module):
    def __init__(self, hidden=4):
        super().__init__()
        self.net = net(10, (1, 8, 8), hidden)

    def forward(self, x):
        return self.net(x)

def fails():
    raise RuntimeError("no such device")

def nothing():
    return None

constant = 3

def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")

def score(outputs, targets):
    return float((outputs.argmax(1) == targets).float().mean())
"""
QUICK: dict[str, Any] = {"agents": 3, "epochs": 1, "fraction": 0.2, "progress": False}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module with models, of which nobody has said that it may be used."""
    with own_module(tmp_path, monkeypatch, MODULE) as name:
        yield name


def test_a_function_or_a_class_is_called_with_what_it_asks_for(own: str) -> None:
    user_code.allow([own])
    result = parley.train(model=f"{own}:net", model_options={"hidden": 6}, **QUICK)
    assert result.model()[1].out_features == 6
    by_class = parley.train(model=f"{own}:Net", model_options={"hidden": 6}, **QUICK)
    assert torch.equal(by_class.x_ND, result.x_ND)
    assert result.experiment.from_python == ()


def test_a_task_of_one_s_own_is_a_loss_and_metrics(own: str) -> None:
    """By name or as a function, and the same as the task own with that loss."""
    options = {"metrics": f"{own}:score", "algorithm": "dpsgd", "engine": "loop", **QUICK}
    short = parley.train(task=f"{own}:loss", **options)
    whole = parley.train(task="own", loss=f"{own}:loss", **options)
    function = parley.train(task=sys.modules[own].loss, **options)
    assert short.experiment == whole.experiment and short.experiment.task == "own"
    assert torch.equal(short.x_ND, whole.x_ND) and torch.equal(short.x_ND, function.x_ND)
    assert short.records[-1]["score_own"] == whole.records[-1]["score_own"]
    with pytest.raises(BadValue, match="loss: 'mse' is not valid; valid: none: the task is a loss"):
        Experiment.of(task=f"{own}:loss", loss="mse", metrics=f"{own}:score")
    with pytest.raises(BadValue, match="loss: 'mse' is not valid; valid: none: the task is a loss"):
        parley.train(task=sys.modules[own].loss, loss="mse", **options)


@pytest.mark.parametrize("task", ["segmentation", "language-model"])
def test_data_with_one_class_for_each_sample_are_for_classification(own: str, task: str) -> None:
    words = rf"task: '{task}' is not valid \(the data have one of 10 classes for each sample\)"
    with pytest.raises(BadValue, match=words):
        parley.train(model=f"{own}:net", task=task, algorithm="dpsgd", **QUICK)


def test_a_task_in_a_file_is_only_a_name(own: str) -> None:
    experiment = Experiment.from_toml(f'task = "{own}:loss"\nmetrics = "{own}:score"')
    with pytest.raises(BadValue, match=f"with --allow-code {own}"):
        problems.problem(experiment, [0])
    assert own not in sys.modules


def test_code_in_a_file_is_only_a_name(own: str) -> None:
    experiment = Experiment.of(model=f"{own}:net")
    assert Experiment.from_toml(experiment.to_toml()) == experiment
    with pytest.raises(BadValue, match=f"with --allow-code {own}"):
        problems.problem(experiment, [0])
    assert own not in sys.modules
    user_code.allow(["another"])
    with pytest.raises(BadValue, match="does not run just because a file names it"):
        problems.problem(experiment, [0])
    user_code.allow([own])
    assert isinstance(problems.problem(experiment, [0]).model(), nn.Sequential)


def test_a_program_that_names_code_may_run_it_and_a_folder_may_not(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = parley.train(model=f"{own}:net", **QUICK, out=tmp_path / "run")
    card = parse_json((tmp_path / "run" / "model.json").read_text())
    assert card["architecture"]["kind"] == "code"
    monkeypatch.setenv(user_code.ALLOWED, "")
    found = parley.load(tmp_path / "run")
    with pytest.raises(BadValue, match=r"valid: model\(allow_code="):
        found.model()
    inputs = torch.rand(2, 1, 8, 8)
    assert torch.equal(found.model(allow_code=own)(inputs), result.model()(inputs))


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("missing", {}, "has no attribute 'missing'"),
        ("constant", {}, "it is a int"),
        ("fails", {}, "RuntimeError: no such device"),
        ("nothing", {}, "it returned a NoneType"),
        ("net", {"hiden": 3}, "has no such option.*valid: hidden"),
    ],
)
def test_what_cannot_be_built_is_refused(
    own: str, name: str, options: dict[str, Any], why: str
) -> None:
    made = Architecture(
        model=f"{own}:{name}", kind="code", options=options, input_shape=(1, 8, 8), classes=10
    )
    with pytest.raises(BadValue, match=why):
        made.build()


def test_hosts_compare_architectures_and_not_code(own: str) -> None:
    user_code.allow([own])

    def said(model: str, **options: Any) -> dict[str, Any]:
        experiment = Experiment.of(model=model, model_options=options, agents=3, fraction=0.2)
        problem = problems.problem(experiment, [0])
        return handshake.claims(experiment, problem, problems.task_of(experiment, problem), "1")

    assert said(f"{own}:net") == said(f"{own}:net", hidden=4)
    wider = said(f"{own}:net", hidden=5)
    assert wider["parameters"] != said(f"{own}:net")["parameters"]
    by_class = said(f"{own}:Net")
    assert by_class["model"] == wider["model"] == "own"
    assert next(iter(by_class["parameters"])) == "net.1.weight"  # other names: another architecture


def test_a_hosts_own_file_allows_modules(tmp_path: Path) -> None:
    (tmp_path / "host.toml").write_text('allow_code = ["wards"]\nagents = [0]\n')
    assert Host.of(tmp_path / "host.toml").allow_code == ("wards",)
