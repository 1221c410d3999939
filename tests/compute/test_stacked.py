"""The batched dense engine against the one-by-one engine, for every kind of layer it takes."""

import pytest
import torch
from torch import nn

from parley import models
from parley.compute.dense import StackedEngine, unsupported
from parley.compute.engine import LoopEngine
from parley.compute.task import Task
from parley.data import Batch
from parley.errors import BadValue

NETS = {
    "logistic": lambda: models.build("logistic", (1, 4, 4), 5),
    "mlp": lambda: models.build("mlp", (1, 4, 4), 5, hidden=7),
    "deep": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(16, 6), nn.Tanh(), nn.Linear(6, 8, bias=False), nn.Sigmoid(),
        nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 5),
    ),
}  # fmt: skip


def batch(agents: int, sizes: list[int]) -> Batch:
    widest = max(sizes)
    weights = torch.tensor([[1 / n] * n + [0.0] * (widest - n) for n in sizes], dtype=torch.float64)
    inputs = torch.randn(agents, widest, 1, 4, 4, dtype=torch.float64)
    targets = torch.randint(5, (agents, widest))
    return Batch(inputs, targets, weights, tuple(sizes), tuple(range(agents)), 0)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("rows", [[0, 1, 2], [2, 2, 0, 1, 1]], ids=["own", "cross"])
def test_equals_one_by_one(name: str, rows: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.compute.dense.CHUNK_BYTES", 2 * 4 * 16 * 8)  # two pairs at a time
    torch.manual_seed(0)
    task = Task(NETS[name](), dtype=torch.float64)
    x_PD = task.start() + torch.randn(len(rows), task.size, dtype=torch.float64)
    data = batch(3, [4, 1, 3])
    loss, g = StackedEngine(task).gradients(x_PD, data, rows, rows)
    expected_loss, expected = LoopEngine(task).gradients(x_PD, data, rows, rows)
    assert expected.abs().max() > 1e-2
    torch.testing.assert_close(loss, expected_loss, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(g, expected, rtol=1e-12, atol=1e-12)


def test_a_nan_shows_in_the_loss_of_its_own_pair_only() -> None:
    task = Task(NETS["mlp"](), dtype=torch.float64)
    x_PD = task.start().repeat(3, 1)
    x_PD[1, 0] = torch.nan
    loss, g = StackedEngine(task).gradients(x_PD, batch(3, [2, 2, 2]), [0, 1, 2], [0, 1, 2])
    assert loss.isnan().tolist() == [False, True, False]
    assert g[[0, 2]].isfinite().all()


def test_no_pairs() -> None:
    task = Task(NETS["mlp"](), dtype=torch.float64)
    loss, g = StackedEngine(task).gradients(torch.empty(0, task.size), batch(1, [2]), [], [])
    assert loss.shape == (0,) and g.shape == (0, task.size)


@pytest.mark.parametrize(
    "model, reason",
    [
        (nn.Sequential(nn.Conv2d(1, 2, 3)), "Conv2d"),
        (nn.Linear(3, 2), "the model is a Linear, not a plain nn.Sequential"),
        (nn.Sequential(nn.Linear(3, 2), nn.Dropout()), "Dropout"),
    ],
)
def test_says_what_it_cannot_do(model: nn.Module, reason: str) -> None:
    assert reason in unsupported(Task(model))
    with pytest.raises(BadValue, match=r"engine: 'stacked' is not valid"):
        StackedEngine(Task(model))


def test_frozen_parameters_and_own_losses_are_left_to_others() -> None:
    frozen = NETS["mlp"]()
    frozen[1].bias.requires_grad_(False)
    assert "frozen" in unsupported(Task(frozen))
    assert "loss" in unsupported(Task(NETS["mlp"](), loss=lambda o, t: (o - 1).square().mean(1)))
