"""Code by name: models, losses and metrics of the user's own, run only where the host allows it."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import parley
from parley import code
from parley.cli.flags import given_options
from parley.errors import BadValue
from parley.experiment import Experiment
from parley.training import problem as problems
from tests.own_module import own_module

MODULE = """
from torch.nn import functional

def doubled(outputs, targets):
    return 2 * functional.cross_entropy(outputs, targets, reduction="none")

def wrong(outputs, targets):
    return float((outputs.argmax(1) != targets).double().mean())
"""
QUICK: dict[str, Any] = {"agents": 3, "epochs": 1, "fraction": 0.2, "progress": False}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module of which nobody has said that it may be used."""
    with own_module(tmp_path, monkeypatch, MODULE) as name:
        yield name


@pytest.mark.parametrize(("field", "function"), [("loss", "doubled"), ("metrics", "wrong:lower")])
def test_a_loss_or_a_metric_in_a_file_is_only_a_name(own: str, field: str, function: str) -> None:
    options: dict[str, Any] = {field: f"{own}:{function}"}
    experiment = Experiment.of(**options, agents=3, fraction=0.2)
    assert Experiment.from_toml(experiment.to_toml()) == experiment
    with pytest.raises(BadValue, match=f"{field}: .* with --allow-code {own}"):
        problems.problem(experiment, [0])
    assert own not in sys.modules
    code.allow([own])
    made = problems.problem(experiment, [0])
    found: Any = made.loss if field == "loss" else made.functions["wrong"]
    assert found.__module__ == own


def test_whoever_types_a_name_allows_it(own: str) -> None:
    given_options({"model": "mlp", "loss": f"{own}:doubled", "metrics": "accuracy", "data": None})
    code.check_allowed(f"{own}:doubled")
    given_options({"metrics": "accuracy, another.place:wrong:lower"})
    code.check_allowed("another.place:anything")
    with pytest.raises(BadValue, match="--allow-code third"):
        code.check_allowed("third:wrong")


def test_a_program_names_what_it_runs(own: str) -> None:
    result = parley.train(loss=f"{own}:doubled", metrics=f"{own}:wrong:lower,accuracy", **QUICK)
    last: dict[str, Any] = dict(result.records[-1])
    assert last["wrong_mean_model"] == pytest.approx(1 - last["accuracy_mean_model"])
    assert result.experiment.from_python == ()


def test_a_module_that_cannot_be_imported_is_named() -> None:
    with pytest.raises(BadValue, match="No module named 'nowhere_at_all'"):
        code.function_of("nowhere_at_all:net")
    with pytest.raises(BadValue, match="allow_code: 'a b' is not valid"):
        code.allow(["a b"])


def test_what_is_no_name_allows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(code.ALLOWED, "")
    code.allow_named({"model": nn.Linear(2, 1), "loss": nn.MSELoss(), "metrics": "f1"})
    with pytest.raises(BadValue):
        code.check_allowed("torch:sum")
