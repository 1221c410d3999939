"""Which engine is used: what may be tried, what was fastest, and what is remembered."""

import json
import warnings

import pytest
import torch
from torch import nn

from parley import models
from parley.cache import cache_folder
from parley.compute import choose as engines
from parley.compute import kernels
from parley.compute.engine import Engine, Pairs, Share
from parley.compute.task import Task
from parley.data import Batch
from parley.errors import BadValue


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path, monkeypatch):
    kernels.available()  # built in the cache of all tests, not in this one
    monkeypatch.setenv("PARLEY_CACHE", str(tmp_path))


def batch(rows: int = 3, size: int = 4) -> Batch:
    weights = torch.full((rows, size), 1 / size)
    inputs, targets = torch.randn(rows, size, 1, 8, 8), torch.randint(10, (rows, size))
    return Batch(inputs, targets, weights, (size,) * rows, tuple(range(rows)), 0)


def task(name: str = "mlp") -> Task:
    return Task(models.build(name, (1, 8, 8), 10))


class Branching(nn.Module):
    """Cannot be batched: it looks at its values."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x.flatten(1))
        return y if float(y.sum()) > 1e9 else y * 2


def test_the_fastest_is_found_once_and_remembered(monkeypatch):
    tried = []
    seconds = {"fused": 3.0, "stacked": 2.0, "loop": 1.0}
    monkeypatch.setattr(engines, "_trial", lambda name, *_: tried.append(name) or seconds[name])
    assert engines.fastest(task(), batch()) == "loop"
    assert engines.fastest(task(), batch()) == "loop"
    assert tried == engines.candidates(task())
    assert list(json.loads((cache_folder() / "engines.json").read_text()).values()) == ["loop"]


def test_another_model_or_batch_is_tried_anew(monkeypatch):
    tried = []
    monkeypatch.setattr(engines, "_trial", lambda name, *_: tried.append(name) or 1.0)
    engines.fastest(task(), batch())
    engines.fastest(task("logistic"), batch())
    engines.fastest(task(), batch(size=5))
    assert tried == engines.candidates(task()) * 3


@pytest.mark.parametrize("text", ["", "{", "[]", '{"other": "loop"}'])
def test_a_damaged_memory_is_no_obstacle(text):
    (cache_folder() / "engines.json").write_text(text)
    assert engines.fastest(task(), batch()) in engines.candidates(task())


def test_what_cannot_be_batched_goes_one_by_one():
    branching = Task(Branching())
    assert engines.candidates(branching) == ["vmap", "loop"]
    assert engines.fastest(branching, batch()) == "loop"


def test_a_model_that_does_not_work_is_not_hidden():
    with pytest.raises(RuntimeError):
        engines.fastest(Task(nn.Sequential(nn.Flatten(), nn.Linear(3, 10))), batch())


def test_unknown_engine():
    with pytest.raises(BadValue, match=r"engine: 'stackd' .*did you mean 'stacked'"):
        engines.build("stackd", task())


@pytest.mark.parametrize("name", ["loop", "vmap", "stacked", "fused"])
@pytest.mark.parametrize("few", [1, 1 << 30], ids=["one at a time", "all at once"])
def test_accumulating_is_adding_up(name, few, monkeypatch):
    monkeypatch.setattr("parley.compute.engine.ACCUMULATED_BYTES", few)
    network, data = task(), batch()
    engine: Engine
    try:
        engine = engines.build(name, network)
    except BadValue as error:
        pytest.skip(str(error))
    x_AD = network.start() + torch.randn(3, network.size) / 10
    pairs = Pairs(*map(torch.tensor, ([1, 2, 0, 0], [0, 1, 2, 1], [1, 2, 0, 0])))
    shares = [
        Share(torch.tensor([0, 1, 2, 1]), torch.tensor([0.5, 0.25, 1.0, 2.0])),
        Share(torch.tensor([1, 2, 0, 0]), torch.tensor([1.0, 1.0, 0.0, 3.0])),
    ]
    starts = [torch.randn(3, network.size) for _ in shares]
    sums = [start_AD.clone() for start_AD in starts]
    engine.accumulate(x_AD, data, pairs, shares, sums)
    # One after the other, in the order of the pairs: to the bit where the engine promises it.
    alone = [
        engine.gradients(x_AD[[m]], data, [r], [o])[1][0]
        for m, r, o in zip(*(part.tolist() for part in pairs), strict=True)
    ]
    for (targets, weights), start_AD, sum_AD in zip(shares, starts, sums, strict=True):
        for target, weight, g_D in zip(targets, weights, alone, strict=True):
            start_AD[target] = start_AD[target] + weight * g_D
        torch.testing.assert_close(sum_AD, start_AD, rtol=1e-4, atol=1e-5)
        assert torch.equal(sum_AD, start_AD) or not engine.same_in_any_company


@pytest.mark.parametrize("name", ["loop", "fused"])
@pytest.mark.parametrize("model", ["mlp", "cnn5"])
def test_a_gradient_is_the_same_in_any_company(name, model):
    """And wherever in memory it lies: this is what makes placements equal to the bit."""
    network, data = task(model), batch(rows=5, size=7)
    try:
        engine = engines.build(name, network)
    except BadValue as error:
        pytest.skip(str(error))
    assert engine.same_in_any_company
    x_PD = network.start() + torch.randn(5, network.size) / 10
    loss_P, g_PD = engine.gradients(x_PD, data, range(5), range(5))
    for p in range(5):
        one = Batch(*(t[p : p + 1].clone() for t in data[:3]), data.sizes[:1], (p,), 0)
        loss, g_D = engine.gradients(x_PD[p : p + 1].clone(), one, [0], [p])
        assert torch.equal(loss[0], loss_P[p]) and torch.equal(g_D[0], g_PD[p])


def test_engines_that_batch_products_promise_nothing():
    promises = {name for name, (engine, _) in engines.ENGINES.items() if engine.same_in_any_company}
    assert promises == {"loop", "fused"}


def test_of_runs_that_started_together_the_first_decides(monkeypatch):
    """Another run has found and written something else since this one looked for it."""
    settled = engines._settled

    def late(memory, key, names, found):
        assert settled(memory, key, names, "loop") == "loop"
        return settled(memory, key, names, found)

    monkeypatch.setattr(engines, "_settled", late)
    monkeypatch.setattr(engines, "_trial", lambda name, *_: 0.0 if name == "stacked" else 1.0)
    assert engines.fastest(task(), batch()) == "loop"
    assert list(json.loads((cache_folder() / "engines.json").read_text()).values()) == ["loop"]


def test_statistics_are_those_of_an_agents_own_gradient_whatever_dropout_draws() -> None:
    torch.manual_seed(0)
    layers = nn.Linear(6, 5), nn.Dropout(0.5), nn.BatchNorm1d(5), nn.Linear(5, 3)
    task = Task(nn.Sequential(*layers))
    inputs, targets = torch.randn(2, 8, 6), torch.randint(3, (2, 8))
    batch = Batch(inputs, targets, torch.ones(2, 8), (8, 5), (4, 7), 3)
    x_PD = task.start().expand(2, -1).clone()
    b_PS = task.layout.start(x_PD).expand(2, -1)
    found = []
    for name in ["loop", *["fused"] * kernels.available()]:
        torch.manual_seed(len(found))  # of no consequence
        found.append(engines.build(name, task, seed=1).moved(x_PD, b_PS, batch, [0, 1]))
        engine = engines.build(name, task, seed=1)
        engine.gradients(x_PD, batch, [0, 1], [4, 7])
        assert torch.equal(engine.moved(x_PD, b_PS, batch, [0, 1]), found[-1])
    torch.testing.assert_close(found[0], found[-1], rtol=1e-5, atol=1e-6)
    assert not torch.equal(
        found[0], engines.build("loop", task, seed=2).moved(x_PD, b_PS, batch, [0, 1])
    )


class Deprecated(nn.Module):
    """Warns: that is between the model and whoever wrote it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.GELU(), nn.Linear(8, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        warnings.warn("this model is deprecated", DeprecationWarning, stacklevel=2)
        answers: torch.Tensor = self.layers(x)
        return answers


@pytest.mark.filterwarnings("ignore:this model is deprecated")
def test_a_model_that_warns_is_tried_like_any_other(monkeypatch):
    seconds = {}
    trial = engines._trial
    monkeypatch.setattr(
        engines, "_trial", lambda name, *rest: seconds.setdefault(name, trial(name, *rest))
    )
    warning = Task(Deprecated())
    assert engines.fastest(warning, batch()) in engines.candidates(warning, (1, 8, 8))
    assert all(0 < each < float("inf") for each in seconds.values())
