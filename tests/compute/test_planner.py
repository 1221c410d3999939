"""Which losses the kernels know, for which targets, and that they compute them as torch does."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from parley import measures, models
from parley.compute import choose
from parley.compute.compiled import FusedEngine, supports
from parley.compute.goals import Goal
from parley.compute.losses import Settings, named_loss
from parley.compute.task import Task
from parley.compute.trial import tried
from parley.errors import BadValue
from tests.compute.test_fused import _built, assert_same_gradients, make_batch, moved

__all__ = ["_built"]

LOSSES = {
    "smoothed": lambda: nn.CrossEntropyLoss(label_smoothing=0.1, reduction="none"),
    "weighted": lambda: nn.CrossEntropyLoss(weight=torch.rand(10) + 0.5, reduction="none"),
    "both": lambda: nn.CrossEntropyLoss(
        torch.rand(10) + 0.5, reduction="none", label_smoothing=0.2
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    torch.manual_seed(0)
    task = Task(models.build("lenet5", (1, 12, 12), 10), LOSSES[name]())
    assert supports(task) == ""
    assert_same_gradients(task, make_batch((1, 12, 12), (9, 20)))


BY_OUTPUT = {
    "binary": lambda: nn.BCEWithLogitsLoss(reduction="none"),
    "binary, weighted": lambda: nn.BCEWithLogitsLoss(
        reduction="none", pos_weight=torch.rand(10) + 0.5
    ),
    "squared error": lambda: nn.MSELoss(reduction="none"),
}


@pytest.mark.parametrize("name", BY_OUTPUT)
def test_losses_of_every_output(name: str) -> None:
    torch.manual_seed(0)
    task = Task(models.build("lenet5", (1, 12, 12), 10), BY_OUTPUT[name]())
    batch = make_batch((1, 12, 12), (9, 20))
    batch = batch._replace(targets=torch.rand(2, 20, 10).round(decimals=1))
    assert_same_gradients(task, batch)
    with pytest.raises(BadValue, match="targets of 10 numbers"):
        batch = batch._replace(targets=torch.rand(2, 20, 3))
        FusedEngine(task).gradients(moved(task, 1), batch, [0], [0])


NAMED = {
    "multilabel": Settings(),
    "multilabel, weighted and smoothed": Settings(tuple(0.5 + 0.2 * k for k in range(10)), 0.1),
    "binary": Settings(smoothing=0.2),
    "binary, one number a sample": Settings(),
    "regression": Settings(),
}


@pytest.mark.parametrize("name", NAMED)
def test_losses_of_tasks(name: str) -> None:
    torch.manual_seed(0)
    kind = name.partition(",")[0]
    outputs = 1 if kind == "binary" else 10
    model = models.build("lenet5", (1, 12, 12), outputs)
    if "one number" in name:
        model = nn.Sequential(model, nn.Flatten(0))
    task = Task(model, named_loss(kind, "auto", NAMED[name]), goal=Goal(kind))
    batch = make_batch((1, 12, 12), (9, 20))
    targets = torch.rand(2, 20, 10)
    targets = targets if kind == "regression" else targets.round()
    targets = targets[..., 0].long() if kind == "binary" else targets
    batch = batch._replace(targets=targets)
    task = tried(task, "lenet5", batch.inputs[0, :4], targets[0, :4], max(2, outputs))
    assert supports(task, (1, 12, 12)) == ""
    assert_same_gradients(task, batch)
    answers = task.predict(task.start(), batch.inputs[0])
    torch.testing.assert_close(FusedEngine(task).predict(task.start(), batch.inputs[0]), answers)


def test_one_logit_with_class_weights_is_left_to_torch() -> None:
    task = Task(nn.Linear(3, 1), named_loss("binary", "auto", Settings((1.0, 2.0))))
    assert "the loss is not" in supports(task)


OUTPUTS = 5
N = 12
CLASSES = torch.arange(N) % OUTPUTS
SHARES = torch.rand(N, OUTPUTS, generator=torch.Generator().manual_seed(1)).softmax(1)
YES = (SHARES > 0.2).float()


class Case(NamedTuple):
    task: str
    loss: Any
    targets: Tensor
    refusal: str = ""
    """Why it is left to torch, if it is."""
    last: Callable[[], nn.Module] = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, OUTPUTS))


NO_CLASSES = "does not have one class for each sample"
BROADCAST = "broadcasts outputs or targets"
CASES = {
    "classes": Case(measures.CLASSIFICATION, nn.CrossEntropyLoss(), CLASSES),
    "shares of classes": Case(measures.OWN, nn.CrossEntropyLoss(), SHARES, NO_CLASSES),
    "shares, a function": Case(measures.OWN, functional.cross_entropy, SHARES, NO_CLASSES),
    "shares as numbers": Case(measures.REGRESSION, nn.CrossEntropyLoss(), SHARES, NO_CLASSES),
    "labels": Case(measures.MULTILABEL, nn.CrossEntropyLoss(), YES, NO_CLASSES),
    "some do not count": Case(
        measures.OWN, nn.CrossEntropyLoss(), CLASSES.where(CLASSES > 0, -100), NO_CLASSES
    ),
    "one weight": Case(
        measures.MULTILABEL, nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0)), YES
    ),
    "a row of one weight": Case(
        measures.MULTILABEL, nn.BCEWithLogitsLoss(pos_weight=torch.tensor([3.0])), YES
    ),
    "all weights": Case(
        measures.MULTILABEL, nn.BCEWithLogitsLoss(pos_weight=torch.arange(1.0, 6)), YES
    ),
    "a weight for one logit": Case(
        measures.BINARY,
        nn.BCEWithLogitsLoss(pos_weight=torch.tensor([3.0])),
        CLASSES % 2,
        last=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 1)),
    ),
    "squares": Case(measures.OWN, nn.MSELoss(), SHARES),
    "one target for all outputs": Case(measures.OWN, nn.MSELoss(), SHARES[:, :1], BROADCAST),
    "a map of one pixel": Case(
        measures.OWN, nn.MSELoss(), SHARES[..., None, None], last=lambda: nn.Conv2d(4, OUTPUTS, 4)
    ),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", CASES)
def test_a_loss_and_its_targets(name: str) -> None:
    """The kernels agree with torch, or leave it to torch."""
    case = CASES[name]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), case.last())
    task = Task(model, case.loss, goal=Goal(case.task))
    batch = make_batch((1, 6, 6), (N, N - 3))
    targets = torch.stack([case.targets, case.targets])
    batch = batch._replace(targets=targets)
    task = tried(task, "model", batch.inputs[0, :4], case.targets[:4], OUTPUTS)
    why = supports(task, (1, 6, 6))
    if case.refusal:
        assert case.refusal in why
        assert "fused" not in choose.candidates(task, (1, 6, 6))
        with pytest.raises(BadValue, match=r"engine: 'fused'.*valid: loop, auto"):
            FusedEngine(task).gradients(moved(task, 1), batch, [0], [0])
        return
    assert why == ""
    assert_same_gradients(task, batch)
    answers = task.predict(task.start(), batch.inputs[0])
    found = FusedEngine(task).predict(task.start(), batch.inputs[0])
    assert found.shape == answers.shape
    torch.testing.assert_close(found, answers)


def test_weights_that_are_too_few_never_reach_the_kernels() -> None:
    """They would read behind their end."""
    loss = nn.BCEWithLogitsLoss(reduction="none", pos_weight=torch.ones(3))
    task = Task(models.build("lenet5", (1, 12, 12), 10), loss)
    assert supports(task, (1, 12, 12)) == "the loss has 3 weights for 10 outputs"
    with pytest.raises(BadValue, match="3 weights for 10 outputs"):
        FusedEngine(task).gradients(moved(task, 1), make_batch((1, 12, 12), (5,)), [0], [0])


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (torch.tensor([[0, 1, -100, 9, 3]]), "data: -100 is not valid; valid: targets from 0 to 9"),
        (torch.tensor([[0, 1, 2, 10, 3]]), "data: 10 is not valid; valid: targets from 0 to 9"),
        (torch.rand(1, 5, 10), r"torch.float32 of shape \[10\].*a class, a whole number"),
    ],
)
def test_targets_that_are_no_classes_are_refused(targets: Tensor, words: str) -> None:
    task = Task(models.build("lenet5", (1, 12, 12), 10))
    batch = make_batch((1, 12, 12), (5,))._replace(targets=targets)
    with pytest.raises(BadValue, match=words):
        FusedEngine(task).gradients(task.start()[None], batch, [0], [0])
