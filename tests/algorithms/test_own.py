"""An algorithm that the user has written, from the page that says how: on workers, and resumed."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import parley
from parley.algorithms import Algorithm, Clustering, Recipe, Stepped, build
from parley.algorithms.parts import SGD, UpdateRule
from parley.cli.flags import with_file
from parley.cli.main import main
from parley.cli.methods import chosen_methods
from parley.sweep.compare import experiments_of
from parley.user_code import ALLOWED
from tests import small

PAGE = Path(__file__).parents[2] / "docs" / "your-own-algorithm.md"
OPTIONS: dict[str, Any] = {
    "model": "logistic", "agents": 4, "local_steps": 2, "lr": 0.2, "fraction": 0.1,
    "test_fraction": 0.2, "batch": 10, "gossip_rounds": 0, "dtype": "float64", "engine": "loop",
    "progress": False,
}  # fmt: skip


@pytest.fixture
def pairwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The page's file, where workers find it too."""
    code = PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    (tmp_path / "pairwise.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(parley.__file__).parents[1]}")
    yield importlib.import_module("pairwise")
    del sys.modules["pairwise"]


def test_on_two_workers_it_is_what_it_is_on_one(pairwise: Any) -> None:
    algorithm = pairwise.Pairwise(codec="topk:0.2")
    one = parley.train(algorithm=algorithm, epochs=2, **OPTIONS)
    two = parley.train(algorithm=algorithm, epochs=2, workers=2, **OPTIONS)
    assert one.summary["label"] == "Pairwise CHOCO"
    assert one.records[-1]["loss"] < 0.9 * one.records[0]["loss"]
    torch.testing.assert_close(two.x_ND, one.x_ND, rtol=0, atol=1e-12)
    assert two.records[-1]["bytes_models"] == one.records[-1]["bytes_models"] > 0


@pytest.mark.parametrize("workers", [1, 2])
def test_it_is_resumed(pairwise: Any, tmp_path: Path, workers: int) -> None:
    algorithm = pairwise.Pairwise()
    whole = parley.train(algorithm=algorithm, epochs=3, workers=workers, **OPTIONS)
    out = tmp_path / "run"

    def stop(event: Any) -> None:
        if getattr(event, "epoch", 0) == 2:
            raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        parley.train(algorithm=algorithm, epochs=3, workers=workers, out=out, watch=stop, **OPTIONS)
    again = parley.train(
        algorithm=algorithm, epochs=3, workers=workers, out=out, resume=True, **OPTIONS
    )
    torch.testing.assert_close(again.x_ND, whole.x_ND, rtol=0, atol=1e-12)


def test_its_runs_are_compared_and_read(pairwise: Any, tmp_path: Path) -> None:
    """Its name is no registered one, so a reader is told which class it stands for."""
    options = {name: value for name, value in OPTIONS.items() if name != "local_steps"}
    methods = [pairwise.Pairwise(), "dpsgd"]
    found = parley.compare(
        methods, seeds=1, epochs=1, momentum=0.5, parallel=1, out=tmp_path / "both", **options
    )
    assert [row["label"] for row in found.rows] == ["Pairwise CHOCO", "D-PSGD"]
    [run] = found.runs[found.rows[0]["label"]]
    assert run.experiment.algorithm == methods[0]
    [other] = found.runs["D-PSGD"]
    assert other.experiment.algorithm.settings()["momentum"] == 0.5, (
        "given to all that are named and have it"
    )
    assert parley.load(run.path, algorithm=pairwise.Pairwise).experiment == run.experiment
    with pytest.raises(parley.BadValue, match=r"'pairwise'.*algorithm=its class"):
        parley.load(run.path)
    with pytest.raises(parley.BadValue, match=r"alpha: 0.5 .*no algorithm is given by name"):
        parley.compare([pairwise.Pairwise()], alpha=0.5, out=tmp_path / "none")


def test_the_command_line_names_its_class(
    pairwise: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = parley.Experiment.of(algorithm=pairwise.Pairwise(codec="topk:0.1"), agents=4)
    given = {"algorithm": "pairwise:Pairwise:codec=topk:0.1", "agents": "4"}
    assert parley.Experiment.of(**with_file(None, given)) == experiment
    file = tmp_path / "experiment.toml"
    file.write_text(experiment.to_toml(), encoding="utf-8")
    with pytest.raises(parley.BadValue, match="algorithm: 'pairwise' is not valid"):
        with_file(file, {"agents": "4"})  # reading a file imports nothing
    assert parley.Experiment.of(**with_file(file, {"algorithm": "pairwise:Pairwise"})) == experiment
    (tmp_path / "recipes.py").write_text(
        "import parley\nmine = parley.NGC(alpha=0.5)\n", encoding="utf-8"
    )
    assert parley.Experiment.of(**with_file(None, {"algorithm": "recipes:mine"})).algorithm == (
        parley.NGC(alpha=0.5)
    )


def test_commands_for_many_runs_name_its_class(
    pairwise: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    specs = "dpsgd,pairwise:Pairwise:codec=topk:0.1:lr=0.2,pairwise:Pairwise"
    options, methods = chosen_methods(None, {"lr": "0.3", "momentum": "0.5"}, specs, "")
    plain, sparse, dense = experiments_of(methods, options)
    assert (plain.lr, plain.algorithm) == (0.3, parley.DPSGD(momentum=0.5))
    assert (sparse.lr, sparse.algorithm) == (0.2, pairwise.Pairwise(codec="topk:0.1"))
    assert (dense.lr, dense.algorithm) == (0.3, pairwise.Pairwise())
    assert [method.key for method in methods[1:]] == [
        "pairwise:Pairwise:codec=topk:0.1",
        "pairwise:Pairwise",
    ]
    file = tmp_path / "experiment.toml"
    file.write_text(sparse.to_toml(), encoding="utf-8")
    given = {"algorithm": "pairwise:Pairwise"}
    options, methods = chosen_methods(file, dict(given), None, "")
    assert experiments_of(methods, options) == [sparse]
    with pytest.raises(parley.BadValue, match="algorithm: 'pairwise' is not valid"):
        chosen_methods(file, {}, "dpsgd", "")  # the file alone imports nothing


def test_it_is_compared_in_processes_of_its_own(
    pairwise: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a model that only the command names, in processes that a server may have started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(ALLOWED, "")
    (tmp_path / "two_layers.py").write_text(
        "from torch import nn\n\n\ndef net():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n",
        encoding="utf-8",
    )
    specs = "dpsgd:model=two_layers:net,pairwise:Pairwise:model=two_layers:net"
    command = ["parley", "compare", "--algorithms", specs, "--seeds", "1", "--parallel", "2"]
    command += ["--agents", "3", "--epochs", "1", "--fraction", "0.1", "--out", "both", "--quiet"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    lines = (tmp_path / "both" / "table.md").read_text(encoding="utf-8").splitlines()[2:]
    assert [line.split("|")[1].strip() for line in lines] == ["D-PSGD", "Pairwise CHOCO"]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"algorithm": "broken:Pairwise"}, "SyntaxError: .*broken.py"),
        ({"algorithm": "pairwise:Nothing"}, "no attribute 'Nothing'.*module:Class"),
        ({"algorithm": "no_such_module:Pairwise"}, "No module named 'no_such_module'"),
        ({"algorithm": "pairwise:State"}, "not a complete subclass"),
        ({"algorithm": "pairwise:Algorithm"}, "not a complete subclass"),
        ({"algorithm": "pairwise:Pairwise:codec=sign:codec=dense"}, "codec is given twice"),
        ({"algorithm": "pairwise:Pairwise:codec=sign", "codec": "dense"}, "given twice"),
    ],
)
def test_what_is_not_a_class_is_refused(
    pairwise: Any, tmp_path: Path, given: dict[str, str], why: str
) -> None:
    (tmp_path / "broken.py").write_text("class Pairwise(\n", encoding="utf-8")
    with pytest.raises(parley.BadValue, match=why):
        with_file(None, given)


def test_a_name_that_is_taken_is_refused(pairwise: Any) -> None:
    """The run would be read as one of the other algorithm."""

    class Impostor(pairwise.Pairwise):  # type: ignore[misc]
        name = "ngc"

    with pytest.raises(parley.BadValue, match=r"'ngc' .*a different algorithm of that name"):
        parley.Experiment.of(algorithm=Impostor())


def test_models_that_differ_come_together(pairwise: Any) -> None:
    """Without gradients, from a start apart: the mean stays, the distance goes."""
    topology = parley.ring(5)
    hood = small.hood(topology)
    x_AD = torch.randn(5, hood.task.size, dtype=torch.float64)
    algorithm = pairwise.Pairwise(local_steps=1, codec="topk:0.5")
    state = algorithm.init(x_AD.clone(), hood, apart=True)
    for step in range(150):
        state, _, _ = algorithm.step(
            state, hood.at(step), small.batches(hood.placement).at(step), 0
        )
    torch.testing.assert_close(state.x_AD.mean(0), x_AD.mean(0), rtol=0, atol=1e-10)
    assert (state.x_AD - x_AD.mean(0)).norm() < 1e-3 * (x_AD - x_AD.mean(0)).norm()


class Clipped(UpdateRule):
    """SGD with steps of bounded length."""

    word = "clipped"
    title = "Clipped"
    clip: float = 1.0

    def init(self, x_AD: torch.Tensor) -> tuple[()]:
        return ()

    def apply(self, state: Any, g_AD: torch.Tensor, at_AD: torch.Tensor, lr: float) -> Any:
        size_A1 = g_AD.norm(dim=1, keepdim=True)
        return -lr * g_AD * (self.clip / size_A1).clamp(max=1), state


class TestAPartOfOnesOwn:
    def test_it_goes_with_the_others(self) -> None:
        recipe = Recipe(gradient=Clustering(alpha=0.5), update=Clipped(clip=1e9))
        assert (recipe.name, recipe.label) == ("ngc+clipped", "NGC + Clipped α=0.5")
        assert recipe.clip == 1e9
        got, _ = small.trajectory(recipe, small.hood(parley.ring(4)), 5)
        plain = Recipe(gradient=Clustering(alpha=0.5), update=SGD())
        wanted, _ = small.trajectory(plain, small.hood(parley.ring(4)), 5)
        torch.testing.assert_close(got[-1], wanted[-1], rtol=0, atol=1e-13)

    def test_its_options_are_those_of_a_run(self) -> None:
        recipe = Recipe(gradient=Clustering(alpha=0.5), update=Clipped())
        experiment = parley.Experiment.of(algorithm=recipe, clip=0.1, agents=4)
        assert experiment.algorithm == Recipe(
            gradient=Clustering(alpha=0.5), update=Clipped(clip=0.1)
        )
        with pytest.raises(parley.BadValue, match=r"mu: 0.5 .*has no such option"):
            parley.Experiment.of(algorithm=recipe, mu=0.5)


def test_three_ways_to_say_the_same() -> None:
    """The command's name, Python's parts and the named recipe."""
    spelled = Recipe(gradient=Clustering(alpha=0.5))
    assert spelled == parley.NGC(alpha=0.5) == build("ngc", {"alpha": 0.5})
    assert spelled == build("ngc+gossip", {"alpha": 0.5})
    assert spelled.name == "ngc" and spelled.settings() == parley.NGC(alpha=0.5).settings()
    assert spelled != parley.NGC(alpha=0.4) and hash(spelled) == hash(parley.NGC(alpha=0.5))


class Bare(NamedTuple):
    """Models alone."""

    x_AD: torch.Tensor


class Misnamed(NamedTuple):
    """Models under another name."""

    models_AD: torch.Tensor


class Sloppy(Algorithm):
    """Makes one mistake."""

    name = "sloppy"
    title = "Sloppy"

    mistake: str = ""

    def init(self, x_AD: torch.Tensor, hood: Any, apart: bool = False) -> Any:
        match self.mistake:
            case "state is a tensor":
                return x_AD
            case "misnamed":
                return Misnamed(x_AD)
            case "misshapen init":
                return Bare(x_AD[:, :5])
        return Bare(x_AD)

    def step(self, state: Any, hood: Any, batch: Any, lr: float) -> Any:
        if self.mistake == "empty batch":
            batch = batch._replace(sizes=(0, *batch.sizes[1:]))
        g_AD, loss_A = hood.gradient(state.x_AD, batch)
        match self.mistake:
            case "bare state":
                return Bare(state.x_AD - lr * g_AD)
            case "misshapen step":
                return Stepped(Bare((state.x_AD - lr * g_AD).mean(0)), loss_A)
            case "summed loss":
                return Stepped(Bare(state.x_AD - lr * g_AD), loss_A.sum())
        return Stepped(Bare(state.x_AD - lr * g_AD), loss_A)


@pytest.mark.parametrize("engine", ["loop", "auto"])
@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("state is a tensor", "its init returned Tensor); valid: a NamedTuple of tensors, whose"),
        ("misnamed", "init returned Misnamed(models_AD)); valid: a NamedTuple whose first field"),
        ("misshapen init", "init returned x_AD of shape [4, 5]); valid: x_AD of shape [4, 650]: a"),
        ("bare state", "its step returned Bare); valid: Stepped(state, loss_A)"),
        ("misshapen step", "step returned x_AD of shape [650]); valid: x_AD of shape [4, 650]: "),
        ("summed loss", "its step returned loss_A of shape []); valid: loss_A of shape [4], one"),
        ("empty batch", "batch: 'agent 0' is not valid (it has no samples in the batch of step 1)"),
    ],
)
def test_a_mistake_is_named_in_one_line(mistake: str, words: str, engine: str) -> None:
    options = {k: v for k, v in OPTIONS.items() if k != "local_steps"}
    with pytest.raises(parley.BadValue) as raised:
        parley.train(algorithm=Sloppy(mistake=mistake), epochs=1, **options | {"engine": engine})
    said = str(raised.value)
    assert words in said and "\n" not in said
    assert said.startswith("algorithm: 'Sloppy' is not valid" if "batch" not in words else "batch")
