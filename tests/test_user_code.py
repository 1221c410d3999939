"""Code by name: models, losses and metrics of the user's own, run only where the host allows it."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import parley
from parley import user_code
from parley.cli.flags import given_options
from parley.cli.main import load, main
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
    user_code.allow([own])
    made = problems.problem(experiment, [0])
    found: Any = made.loss if field == "loss" else made.functions["wrong"]
    assert found.__module__ == own


def test_whoever_types_a_name_allows_it(own: str) -> None:
    given_options({"model": "mlp", "loss": f"{own}:doubled", "metrics": "accuracy", "data": None})
    user_code.check_allowed(f"{own}:doubled")
    given_options({"metrics": "accuracy, another.place:wrong:lower"})
    user_code.check_allowed("another.place:anything")
    with pytest.raises(BadValue, match="--allow-code third"):
        user_code.check_allowed("third:wrong")


def test_a_program_names_what_it_runs(own: str) -> None:
    result = parley.train(loss=f"{own}:doubled", metrics=f"{own}:wrong:lower,accuracy", **QUICK)
    last: dict[str, Any] = dict(result.records[-1])
    assert last["wrong_mean_model"] == pytest.approx(1 - last["accuracy_mean_model"])
    assert result.experiment.from_python == ()


@pytest.mark.usefixtures("undrawn")
def test_comparisons_and_searches_follow_the_same_rule(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a program the name is enough; a file needs the flag, which its message names."""
    parley.compare("dpsgd", loss=f"{own}:doubled", seeds=1, out=tmp_path / "first", **QUICK)
    monkeypatch.setenv(user_code.ALLOWED, "")
    file = tmp_path / "experiment.toml"
    file.write_text(f'loss = "{own}:doubled"\nagents = 3\nepochs = 1\nfraction = 0.2\n')
    for command in (["compare", "--seeds=1"], ["tune", "--trials=1", "--parallel=1"]):
        words = [*command, "--algorithms=dpsgd", f"--out={tmp_path / command[0]}"]
        assert _status(monkeypatch, *words, str(file)) == 2
        assert _status(monkeypatch, *words, str(file), f"--allow-code={own}") == 0
        monkeypatch.setenv(user_code.ALLOWED, "")


def test_join_has_the_flag_that_its_message_names() -> None:
    flags = {flag for option in load("join").params for flag in option.opts}
    assert "--allow-code" in flags


def _status(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["parley", *words])
    with pytest.raises(SystemExit) as exit_:
        main()
    return int(exit_.value.code or 0)


def test_a_module_that_cannot_be_imported_is_named() -> None:
    with pytest.raises(BadValue, match="No module named 'nowhere_at_all'"):
        user_code.function_of("nowhere_at_all:net")
    with pytest.raises(BadValue, match="allow_code: 'a b' is not valid"):
        user_code.allow(["a b"])


def test_what_is_no_name_allows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(user_code.ALLOWED, "")
    user_code.allow_named({"model": nn.Linear(2, 1), "loss": nn.MSELoss(), "metrics": "f1"})
    with pytest.raises(BadValue):
        user_code.check_allowed("torch:sum")
