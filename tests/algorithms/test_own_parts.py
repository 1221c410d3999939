"""A part of the user's own by name, ``ngc+mine:Trimmed``: trained, resumed, compared, reported."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import parley
from parley.algorithms import AdaptiveGossip, Clustering, Recipe, build, find
from parley.algorithms.parts import Sent, TellingRule
from parley.cli.flags import with_file
from parley.cli.main import main
from parley.cli.own_algorithm import own_algorithm
from parley.neighbourhood import OnEdges
from parley.user_code import ALLOWED
from tests import small

PAGE = Path(__file__).parents[2] / "docs" / "composition.md"
OPTIONS: dict[str, Any] = {
    "model": "logistic", "agents": 5, "topology": "full", "lr": 0.2, "fraction": 0.1,
    "test_fraction": 0.2, "batch": 10, "gossip_rounds": 0, "dtype": "float64", "engine": "loop",
    "progress": False,
}  # fmt: skip


class Still(TellingRule):
    """An averaging rule without a codec."""

    def send(self, state: Any, x_AD: Tensor, hood: Any, channel: Any) -> tuple[Sent, Any]:
        return Sent(x_AD, hood.exchange(x_AD)), state

    def known(self, state: Any, sent: Sent, hood: Any) -> OnEdges:
        assert sent.heard_I is not None
        return sent.heard_I

    def mix(self, state: Any, x_AD: Tensor, sent: Sent, hood: Any) -> tuple[Tensor, Any]:
        return x_AD, state


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The page's file, where workers find it too."""
    blocks = PAGE.read_text(encoding="utf-8").split("```python\n")[1:]
    [code] = [block.split("```")[0] for block in blocks if "class Trimmed" in block]
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(parley.__file__).parents[1]}")
    monkeypatch.setenv(ALLOWED, "")
    monkeypatch.chdir(tmp_path)
    yield importlib.import_module("mine")
    del sys.modules["mine"]


def run(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["parley", *line.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code, line


def test_it_averages_as_the_page_says(mine: Any) -> None:
    """The middle of five values, one of them a lie."""
    topology = parley.full(5)
    hood = small.hood(topology)
    x_AD = torch.randn(5, hood.task.size, dtype=torch.float64)
    x_AD[3] = 1e9
    mixed_AD = mine.Trimmed(trim=1).combine(x_AD, hood.exchange(x_AD), hood)
    expected_D = x_AD.sort(0).values[1:-1].mean(0)
    torch.testing.assert_close(mixed_AD, expected_D.expand_as(mixed_AD))


def test_a_name_is_a_recipe(mine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(parley.BadValue, match=r"algorithm: 'mine:Trimmed'.*--allow-code mine"):
        build("ngc+mine:Trimmed", {})
    monkeypatch.setenv(ALLOWED, "mine")
    algorithm = build("ngc+mine:Trimmed", {"alpha": 0.5, "trim": 2})
    assert algorithm == Recipe(gradient=Clustering(alpha=0.5), averaging=mine.Trimmed(trim=2))
    assert (algorithm.name, algorithm.label) == ("ngc+mine:Trimmed", "NGC + Trimmed mean α=0.5")
    assert list(find("mine:Trimmed").options()) == [
        *("weight_decay", "decoupled", "decay_on", "momentum", "nesterov"),
        *("gamma", "codec", "trim", "local_steps"),
    ]
    with pytest.raises(parley.BadValue, match=r"trim: 0\.5 is not valid; valid: a whole number"):
        build("ngc+mine:Trimmed", {"trim": 0.5})
    with pytest.raises(parley.BadValue, match=r"trim: 1 .*ngc has no such option"):
        build("ngc", {"trim": 1})


def test_rates_that_gossip_could_not_have_are_named_too() -> None:
    made = Recipe(gradient=Clustering(), averaging=AdaptiveGossip(gamma=5.0))
    assert made == build("ngc+adagossip", {"gamma": 5.0}) and made.name == "ngc+adagossip"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("ngc+mine:Nothing", "no attribute 'Nothing'"),
        ("ngc+mine:Tensor", "not a subclass of a rule"),
        ("choco+mine:Trimmed", "choco and mine:Trimmed are both the averaging rule"),
        ("push-sum+mine:Trimmed", "does not preserve"),
        ("ngc+tests.algorithms.test_own_parts:Still+sign", "Still encodes nothing"),
        ("ngc:alpha", "algorithm: .ngc:alpha. is not valid"),
    ],
)
def test_what_does_not_fit_is_refused(
    mine: Any, name: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOWED, "mine,tests.algorithms.test_own_parts")
    with pytest.raises(parley.BadValue, match=why):
        build(name, {})


def test_files_name_it_and_run_nothing(mine: Any, tmp_path: Path) -> None:
    given = {"algorithm": "ngc+mine:Trimmed:trim=2", "alpha": "0.5", "agents": "5"}
    experiment = parley.Experiment.of(**with_file(None, given))
    file = tmp_path / "experiment.toml"
    file.write_text(experiment.to_toml(), encoding="utf-8")
    assert parley.Experiment.of(**with_file(file, {"algorithm": "ngc+mine:Trimmed"})) == experiment
    own = own_algorithm("ngc+mine:Trimmed")
    assert own is not None and own["name"] is experiment.algorithm.kind


def test_a_file_alone_is_refused(mine: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv(ALLOWED, "mine")
    text = parley.Experiment.of(algorithm="ngc+mine:Trimmed", agents=5).to_toml()
    monkeypatch.setenv(ALLOWED, "")
    with pytest.raises(parley.BadValue, match=r"algorithm: 'mine:Trimmed'.*just because a file"):
        parley.Experiment.from_toml(text)


def test_on_two_workers_and_resumed_it_is_the_same(mine: Any, tmp_path: Path) -> None:
    how = OPTIONS | {"algorithm": "ngc+mine:Trimmed", "alpha": 0.5, "trim": 1}
    one = parley.train(epochs=3, **how)
    assert one.summary["label"] == "NGC + Trimmed mean α=0.5"
    two = parley.train(epochs=3, workers=2, **how)
    assert two.x_ND.equal(one.x_ND)
    out = tmp_path / "run"

    def stop(event: Any) -> None:
        if getattr(event, "epoch", 0) == 2:
            raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        parley.train(epochs=3, out=out, watch=stop, **how)
    again = parley.train(epochs=3, out=out, resume=True, **how)
    assert again.x_ND.equal(one.x_ND)


def test_commands_train_resume_compare_and_report(
    mine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    how = "--agents 5 --topology full --fraction 0.1 --gossip-rounds 0 --quiet"
    run(f"train --algorithm ngc+mine:Trimmed:trim=2 {how} --epochs 1 --out a/one", monkeypatch)
    run(
        f"train --algorithm ngc+mine:Trimmed:trim=2 {how} --epochs 2 --out a/one --resume",
        monkeypatch,
    )
    both = "dpsgd,ngc+mine:Trimmed:trim=1,mine:Trimmed:local_steps=2"
    run(
        f"compare --algorithms {both} --seeds 1 --parallel 2 {how} --epochs 1 --out both",
        monkeypatch,
    )
    table = (tmp_path / "both" / "table.md").read_text(encoding="utf-8")
    named = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
    assert named == ["D-PSGD", "NGC + Trimmed mean", "Trimmed mean local_steps=2"]
    monkeypatch.setenv(ALLOWED, "")
    run("report a/one --out page.html --quiet", monkeypatch)
    assert "NGC + Trimmed mean" in (tmp_path / "page.html").read_text(encoding="utf-8")
    capsys.readouterr()
    run("algorithms ngc+mine:Trimmed", monkeypatch)
    assert "trim = 1" in capsys.readouterr().out
